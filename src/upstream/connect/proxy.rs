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
        Err(_) if is_public_name(host.trim_end_matches('.')) => Ok(()),
        _ => {
            let text = format!(
                "{host} is not a public name; if it may be used, add its network to \
                 sign_in.private_networks, or reach it without the proxy"
            );
            Err(io::Error::other(text))
        }
    }
}

/// Returns whether a name can be one of the public DNS (RFC 6761, 6.3: `localhost` and the names
/// below it are this machine).
fn is_public_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains('.') && !name.ends_with(".localhost") && name != "localhost.localdomain"
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
fn address(proxy: &Intercept) -> &str {
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
            status if status.is_success() => {}
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

#[cfg(test)]
mod tests {
    use hyper_util::client::proxy::matcher::Matcher;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn proxy() -> Intercept {
        let matcher = Matcher::builder().https("http://weir:hunter2@proxy.test:3128").build();
        matcher.intercept(&Uri::from_static("https://mcp.test")).expect("a proxy")
    }

    /// Asks a proxy that answers with these texts, one after the other.
    async fn ask(replies: &[&str]) -> (io::Result<Box<dyn ByteStream>>, String) {
        let (ours, mut theirs) = duplex(64 * 1024);
        let answer = async {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                theirs.read_buf(&mut request).await.expect("a request");
            }
            for reply in replies {
                let _ = theirs.write_all(reply.as_bytes()).await;
            }
            // The end of the server, which echoes.
            let mut sent = [0; 5];
            if theirs.read_exact(&mut sent).await.is_ok() {
                let _ = theirs.write_all(&sent).await;
            }
            String::from_utf8(request).expect("text")
        };
        let open = async {
            let mut opened = tunnel(Box::new(ours), &proxy(), "mcp.test:443").await;
            if let Ok(stream) = &mut opened {
                let mut echoed = [0; 5];
                stream.write_all(b"hello").await.expect("written");
                stream.read_exact(&mut echoed).await.expect("read");
                assert_eq!(&echoed, b"hello");
            }
            opened
        };
        tokio::join!(open, answer)
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_opens_a_tunnel_or_says_why_not() {
        let (opened, request) = ask(&["HTTP/1.1 200 Connection established\r\n\r\n"]).await;
        assert!(opened.is_ok());
        assert!(request.starts_with("CONNECT mcp.test:443 HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("host: mcp.test:443\r\n"), "{request}");
        assert!(request.contains("proxy-authorization: Basic d2VpcjpodW50ZXIy\r\n"), "{request}");
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(500_000));
        for (replies, expected) in [
            (&["HTTP/1.1 407 No\r\n\r\n"][..], "it demands other credentials"),
            (&["HTTP/1.1 403 No\r\n\r\n"], "it refuses a connection to mcp.test:443: 403"),
            (&["HTTP/1.1 200 OK\r\n\r\nTLS"], "it sends data before the server does"),
            (&["nonsense\r\n\r\n"], "invalid HTTP version parsed"),
            (&[&*long], "message head is too large"),
            (&[], "no response within 10 s"),
        ] {
            let (opened, _) = ask(replies).await;
            let error = opened.err().expect(expected).to_string();
            assert!(error.starts_with("the proxy proxy.test:3128: "), "{error}");
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_proxy_is_asked_for_public_addresses_and_whole_names_only() {
        let allowed = AllowedAddresses::default();
        for (host, is_allowed) in [
            ("id.example.com", true),
            ("1.1.1.1", true),
            ("10.0.0.1", false),
            ("169.254.169.254", false),
            ("::1", false),
            ("intranet", false),
            ("intranet.", false),
            ("a.LocalHost", false),
            ("localhost.localdomain.", false),
        ] {
            assert_eq!(check_host(host, &allowed).is_ok(), is_allowed, "{host}");
        }
    }
}
