//! Fetching the documents of identity providers, through the same connector as upstreams.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::{Request, StatusCode, Uri};

use crate::oauth::OAuthHttp;
use crate::policy::tokens::Fetch;
use crate::upstream::connect::HttpRequests;

impl Fetch for HttpRequests {
    fn fetch<'a>(&'a self, url: &'a Uri, limit: usize) -> BoxFuture<'a, Result<Bytes, String>> {
        async move {
            let mut request = Request::new(Bytes::new());
            *request.uri_mut() = url.clone();
            // The operator has configured the provider, which may be in a private network.
            let response = self.send(request, limit, None).await?;
            match response.status() {
                StatusCode::OK => Ok(response.into_body()),
                status => Err(format!("the response status is {status}")),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::upstream::connect::{ByteStream, Child, ChildCommand, Connect, Destination, Egress};

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
                Err("the response is larger than 10 bytes"),
            ),
            ("HTTP/1.1 200 OK\r\n\r\n12345678901", Err("the response is larger than 10 bytes")),
            (
                "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
                Err("the response status is 404 Not Found"),
            ),
            (
                "HTTP/1.1 404 Not Found\r\ncontent-length: 11\r\n\r\n<html>",
                Err("the response status is 404 Not Found"),
            ),
            (redirect, Err("the response status is 302 Found")),
        ] {
            let fetched = client(said).fetch(&url, 10).await;
            let fetched = fetched.as_deref().map(|it| std::str::from_utf8(it).expect("text"));
            assert_eq!(fetched.map_err(String::as_str), expected, "{said}");
        }
        for broken in ["", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"] {
            let fetched = client(broken).fetch(&url, 10).await;
            assert!(fetched.is_err(), "{broken}");
        }
    }
}
