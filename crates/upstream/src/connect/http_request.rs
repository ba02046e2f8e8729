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

use crate::connect::{Connect, Destination, Egress};
use weir_base::net::allowed_addresses::AllowedAddresses;
use weir_base::net::http_connection::HttpConnection;
use weir_base::net::http_send::HttpSend;
use weir_oauth::{Exchange, ReceivedBody};

/// HTTP client for a few requests to many servers, such as those for metadata, keys and tokens.
pub struct HttpRequests {
    /// Opens the connections.
    pub connect: Arc<dyn Connect>,
    /// Way to the servers.
    pub egress: Egress,
}

impl HttpSend for HttpRequests {
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::connect::tls::TlsSettings;
    use crate::connect::{Child, ChildCommand};
    use weir_base::net::http_connection::ByteStream;
    use weir_base::tasks::sync::Mutex;

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
            let request = get(&Uri::from_static(url));
            assert!(http.send(request, 1, allowed).await.is_err());
        }
        let called =
            [("https://mcp.test/".to_owned(), true), ("https://id.test/".to_owned(), false)];
        assert_eq!(*recorder.0.lock(), called);
    }

    /// Server that sends this text for any request.
    struct Says(String);

    impl Connect for Says {
        fn connect<'a>(
            &'a self,
            _: Destination<'a>,
        ) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
            let (ours, mut theirs) = tokio::io::duplex(1 << 20);
            let text = self.0.clone();
            TaskTracker::new().spawn(async move {
                let mut head = vec![0; 4096];
                let read = theirs.read(&mut head).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..read]).into_owned();
                assert!(head.starts_with("GET /a/keys?v=1 HTTP/1.1\r\n"), "{head}");
                assert!(head.contains("\r\nhost: id.test:8443\r\n"), "{head}");
                let _ = theirs.write_all(text.as_bytes()).await;
            });
            async { Ok(Box::new(ours) as Box<dyn ByteStream>) }.boxed()
        }

        fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn client(said: &str) -> HttpRequests {
        HttpRequests { connect: Arc::new(Says(said.to_owned())), egress: Egress::default() }
    }

    fn get(url: &Uri) -> Request<Bytes> {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = url.clone();
        request
    }

    #[tokio::test]
    async fn a_document_is_whole_small_and_where_it_was_asked_for() {
        let url = Uri::from_static("https://id.test:8443/a/keys?v=1");
        let redirect =
            "HTTP/1.1 302 Found\r\nlocation: https://evil.test/\r\ncontent-length: 0\r\n\r\n";
        for (said, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Ok((200, "{}"))),
            ("HTTP/1.1 200 OK\r\n\r\n{}", Ok((200, "{}"))),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n12345678901",
                Err("the response is larger than 10 bytes"),
            ),
            ("HTTP/1.1 200 OK\r\n\r\n12345678901", Err("the response is larger than 10 bytes")),
            ("HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}", Ok((404, ""))),
            ("HTTP/1.1 404 Not Found\r\ncontent-length: 11\r\n\r\n<html>", Ok((404, ""))),
            (redirect, Ok((302, ""))),
        ] {
            let got = client(said).send(get(&url), 10, None).await;
            let got = got.as_ref().map_err(String::as_str).map(|response| {
                let text = std::str::from_utf8(response.body()).expect("text");
                (response.status().as_u16(), text)
            });
            assert_eq!(got, expected, "{said}");
        }
        for broken in ["", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"] {
            let got = client(broken).send(get(&url), 10, None).await;
            assert!(got.is_err(), "{broken}");
        }
    }
}
