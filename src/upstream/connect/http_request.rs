//! Single HTTP requests, each over a connection of its own.
//!
//! Invariants: no redirect is followed, and no more bytes are read than allowed; a request is
//! cancelled when its future is dropped.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::Full;
use hyper::header::{ACCEPT, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio_util::sync::CancellationToken;

use crate::allowed_addresses::AllowedAddresses;
use crate::http_connection::HttpConnection;
use crate::oauth::{Exchange, OAuthHttp, ReceivedBody};
use crate::upstream::connect::{Connect, Destination, Egress};

/// HTTP client for a few requests to many servers, such as those for metadata, keys and tokens.
pub struct HttpRequests {
    /// Opens the connections.
    pub connect: Arc<dyn Connect>,
    /// Way to the servers.
    pub egress: Egress,
}

impl OAuthHttp for HttpRequests {
    fn send<'a>(
        &'a self,
        request: Request<Bytes>,
        limit: usize,
        allowed: Option<&'a AllowedAddresses>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, String>> {
        send(self, request, limit, allowed).boxed()
    }
}

async fn send(
    http: &HttpRequests,
    mut request: Request<Bytes>,
    limit: usize,
    allowed: Option<&AllowedAddresses>,
) -> Result<Response<Bytes>, String> {
    let (url, target) = (request.uri().clone(), target(request.uri()));
    let host = url.authority().and_then(|it| HeaderValue::from_str(it.as_str()).ok());
    let headers = request.headers_mut();
    headers.extend(host.map(|host| (HOST, host)));
    headers.entry(ACCEPT).or_insert(const { HeaderValue::from_static("application/json") });
    headers.insert(USER_AGENT, const { HeaderValue::from_static(OWN_NAME) });
    *request.uri_mut() = target;
    http.egress.prepare(&url, &mut request);
    let is_post = request.method() == Method::POST;
    // The TLS settings are those of the upstream, not of the servers that it names.
    let egress = allowed.map(|_| http.egress.with_tls(None));
    let egress = egress.as_ref().unwrap_or(&http.egress);
    let to = Destination { url: &url, timeout: CONNECT, allowed, egress };
    let stream = http.connect.connect(to).await.map_err(|error| error.to_string())?;
    let connection = HttpConnection::open(stream, CancellationToken::new()).await;
    let mut connection = connection.map_err(|error| error.to_string())?;
    let received = request.extensions_mut().remove::<ReceivedBody>();
    Exchange::begin(&mut request)?;
    let response = connection.send(request.map(Full::new)).await;
    let response = response.map_err(|error| connection.describe(&error.into_error()))?;
    let (head, mut incoming) = response.into_parts();
    if limit == 0 || !needs_body(is_post, head.status) {
        return Ok(Response::from_parts(head, Bytes::new()));
    }
    // An error contains no tokens.
    let body = received.filter(|_| head.status.is_success()).unwrap_or_default();
    while let Some(frame) = connection.frame(&mut incoming).await {
        let Ok(data) = frame?.into_data() else { continue };
        if !body.append(&data, limit) {
            return Err(format!("the response is larger than {limit} bytes"));
        }
    }
    Ok(Response::from_parts(head, body.take()))
}

/// Returns whether a caller needs the body of a response: a document, or the error of a form.
fn needs_body(is_post: bool, status: StatusCode) -> bool {
    status.is_success() || is_post && status.is_client_error()
}

/// Returns the target of a request: the path alone, with the authority in `Host`.
fn target(url: &Uri) -> Uri {
    url.path_and_query().map_or_else(|| Uri::from_static("/"), |path| path.clone().into())
}

const OWN_NAME: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// Time limit for connecting to one address.
const CONNECT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::io;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::sync::Mutex;
    use crate::upstream::connect::tls::TlsSettings;
    use crate::upstream::connect::{ByteStream, Child, ChildCommand};

    /// Network without servers, which records with which settings they are called.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<(String, bool)>>);

    impl Connect for Recorder {
        fn connect<'a>(
            &'a self,
            to: Destination<'a>,
        ) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
            self.0.lock().push((to.url.to_string(), to.egress.tls().is_some()));
            async { Err(io::Error::other("no server")) }.boxed()
        }

        fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
            Err(io::Error::other("no program"))
        }
    }

    #[tokio::test]
    async fn the_tls_settings_of_an_upstream_are_for_no_server_that_it_names() {
        let key = KeyPair::generate().expect("a key");
        let ca = CertificateParams::default().self_signed(&key).expect("a certificate").pem();
        let tls = TlsSettings::new(Some(ca.as_bytes()), None).expect("a CA");
        let recorder = Arc::new(Recorder::default());
        let egress = Egress::default().with_tls(Some(tls));
        let http = HttpRequests { connect: recorder.clone(), egress };
        let allowed = AllowedAddresses::default();
        for (url, allowed) in [("https://mcp.test/", None), ("https://id.test/", Some(&allowed))] {
            let mut request = Request::new(Bytes::new());
            *request.uri_mut() = Uri::from_static(url);
            assert!(http.send(request, 1, allowed).await.is_err());
        }
        let called =
            [("https://mcp.test/".to_owned(), true), ("https://id.test/".to_owned(), false)];
        assert_eq!(*recorder.0.lock(), called);
    }
}
