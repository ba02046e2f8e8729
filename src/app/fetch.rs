//! Fetching the documents of identity providers, through the same connector as upstreams.
//!
//! Invariants: one request, no redirect, no more bytes than allowed; it is cancelled when its
//! future is dropped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;

use crate::policy::tokens::Fetch;
use crate::upstream::connect::Connect;

/// Fetcher with a new connection per document, since it runs every few minutes only.
pub(super) struct Fetcher(pub(super) Arc<dyn Connect>);

impl Fetch for Fetcher {
    fn fetch<'a>(&'a self, url: &'a Uri, limit: usize) -> BoxFuture<'a, Result<Bytes, String>> {
        fetch(&*self.0, url, limit).boxed()
    }
}

async fn fetch(dial: &dyn Connect, url: &Uri, limit: usize) -> Result<Bytes, String> {
    let stream = dial.connect(url, CONNECT).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let exchange = pin!(async move {
        let path = url.path_and_query().map_or("/", |it| it.as_str());
        let request = Request::get(path)
            .header(HOST, url.authority().map_or("", |it| it.as_str()))
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("weir/", env!("CARGO_PKG_VERSION")))
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("the response status is {}", response.status()));
        }
        let body = Limited::new(response.into_body(), limit).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
    });
    match select(exchange, pin!(connection)).await {
        Either::Left((fetched, _)) => fetched,
        // Data that has arrived can still be read after the connection ends.
        Either::Right((_, exchange)) => exchange.await,
    }
}

/// Time limit for connecting to one address. Keys are fetched in advance, so no request waits for
/// it.
const CONNECT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::upstream::connect::{ByteStream, Child, ChildCommand};

    /// Server that sends this text for any request.
    struct Says(String);

    impl Connect for Says {
        fn connect<'a>(
            &'a self,
            _: &'a Uri,
            _: Duration,
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

    #[tokio::test]
    async fn a_document_is_whole_small_and_where_it_was_asked_for() {
        let url = Uri::from_static("https://id.test:8443/a/keys?v=1");
        let redirect =
            "HTTP/1.1 302 Found\r\nlocation: https://evil.test/\r\ncontent-length: 0\r\n\r\n";
        for (said, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Ok("{}")),
            ("HTTP/1.1 200 OK\r\n\r\n{}", Ok("{}")),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n12345678901",
                Err("length limit exceeded"),
            ),
            ("HTTP/1.1 200 OK\r\n\r\n12345678901", Err("length limit exceeded")),
            (
                "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
                Err("the response status is 404 Not Found"),
            ),
            (redirect, Err("the response status is 302 Found")),
        ] {
            let fetched = Fetcher(Arc::new(Says(said.to_owned()))).fetch(&url, 10).await;
            let fetched = fetched.as_deref().map(|it| std::str::from_utf8(it).expect("text"));
            assert_eq!(fetched.map_err(String::as_str), expected, "{said}");
        }
        for broken in ["", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"] {
            let fetched = Fetcher(Arc::new(Says(broken.to_owned()))).fetch(&url, 10).await;
            assert!(fetched.is_err(), "{broken}");
        }
    }
}
