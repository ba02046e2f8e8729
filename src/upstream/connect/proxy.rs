//! Connections through an HTTP proxy (RFC 9110, 9.3.6).

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::allowed_addresses::AllowedAddresses;
use crate::upstream::connect::ByteStream;

/// Checks that a proxy may be asked for this host: it looks the name up itself, in a network that
/// Weir does not know.
pub(super) fn check_host(host: &str, allowed: &AllowedAddresses) -> io::Result<()> {
    match host.parse() {
        Ok(address) if allowed.contain(address) => Ok(()),
        Err(_) if host.trim_end_matches('.').contains('.') => Ok(()),
        _ => {
            let text = format!(
                "{host} is not a public name; if it may be used, add its network to \
                 sign_in.private_networks, or reach it without the proxy"
            );
            Err(io::Error::other(text))
        }
    }
}

/// Asks the proxy at the other end of the stream for a connection to a server, and returns it.
pub(super) async fn tunnel(
    stream: Box<dyn ByteStream>,
    proxy: &Intercept,
    server: &str,
) -> io::Result<Box<dyn ByteStream>> {
    let opened = timeout(TUNNEL_TIMEOUT, open(stream, proxy, server)).await;
    let error = match opened {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => error,
        Err(_) => format!("no response within {} s", TUNNEL_TIMEOUT.as_secs()),
    };
    Err(io::Error::other(format!("the proxy {}: {error}", address(proxy))))
}

/// Returns the host and port of a proxy, without its credentials.
pub(super) fn address(proxy: &Intercept) -> &str {
    proxy.uri().authority().map_or("", |authority| authority.as_str())
}

async fn open(
    stream: Box<dyn ByteStream>,
    proxy: &Intercept,
    server: &str,
) -> Result<Box<dyn ByteStream>, String> {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let mut request = Request::connect(Uri::try_from(server).map_err(|error| error.to_string())?)
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let host = HeaderValue::from_str(server).map_err(|error| error.to_string())?;
    request.headers_mut().insert(HOST, host);
    let authorization = proxy.basic_auth().map(|it| (PROXY_AUTHORIZATION, it.clone()));
    request.headers_mut().extend(authorization);
    let opening = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        match response.status() {
            StatusCode::OK => {}
            // tinyproxy sends 401 for wrong credentials.
            StatusCode::PROXY_AUTHENTICATION_REQUIRED | StatusCode::UNAUTHORIZED => {
                return Err("it demands other credentials: correct them in egress.proxy".into());
            }
            status => return Err(format!("it refuses a connection to {server}: {status}")),
        }
        hyper::upgrade::on(response).await.map_err(|error| error.to_string())
    };
    // The connection ends when it is handed over.
    let running = async {
        let _ = connection.with_upgrades().await;
        std::future::pending().await
    };
    let upgraded = tokio::select! {
        biased;
        opened = opening => opened?,
        never = running => never,
    };
    match upgraded.downcast::<TokioIo<Box<dyn ByteStream>>>() {
        Ok(parts) if parts.read_buf.is_empty() => Ok(parts.io.into_inner()),
        Ok(_) | Err(_) => Err("it sends data before the server does".into()),
    }
}

/// Time limit of the proxy for connecting to the server.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(10);
