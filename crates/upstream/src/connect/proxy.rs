//! Connections through an HTTP proxy (RFC 9110, 9.3.6).

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use weir_base::net::http_connection::ByteStream;
use weir_base::tasks::fairness::FairStream;

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
    // hyper reads informational responses for as long as there are any.
    let stream = FairStream::new(stream);
    let read_bytes = stream.read_bytes();
    let handshake = http1::handshake(TokioIo::new(stream)).await;
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
    let mut connection = pin!(connection.with_upgrades());
    let mut is_running = true;
    let flooding = poll_fn(|cx| {
        // The connection ends when it is handed over.
        is_running = is_running && connection.as_mut().poll(cx).is_pending();
        match read_bytes.load(Ordering::Relaxed) > MAX_HEAD_BYTES {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    let upgraded = tokio::select! {
        biased;
        opened = opening => opened?,
        () = flooding => {
            return Err("it sends more than 64 KiB before the connection is open".into());
        }
    };
    match upgraded.downcast::<TokioIo<FairStream<Box<dyn ByteStream>>>>() {
        Ok(parts) if parts.read_buf.is_empty() => Ok(parts.io.into_inner().into_inner()),
        Ok(_) | Err(_) => Err("it sends data before the server does".into()),
    }
}

/// Time limit of the proxy for connecting to the server.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes from the proxy until then.
const MAX_HEAD_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Waker};

    use hyper_util::client::proxy::matcher::Matcher;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex};

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
            (&[&*long], "it sends more than 64 KiB before the connection is open"),
            (&[], "no response within 10 s"),
        ] {
            let (opened, _) = ask(replies).await;
            let error = opened.err().expect(expected).to_string();
            assert!(error.starts_with("the proxy proxy.test:3128: "), "{error}");
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }

    /// Stream that always has more of this text to read once a request was written, and counts what
    /// was read.
    struct Endless {
        /// `None` after the request.
        reader: Option<Waker>,
        text: &'static [u8],
        at: usize,
        read_bytes: Arc<AtomicUsize>,
    }

    impl AsyncRead for Endless {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(reader) = &mut self.reader {
                reader.clone_from(cx.waker());
                return Poll::Pending;
            }
            let before = into.filled().len();
            while into.remaining() > 0 {
                let rest = &self.text[self.at..];
                let length = rest.len().min(into.remaining());
                into.put_slice(&rest[..length]);
                self.at = (self.at + length) % self.text.len();
            }
            self.read_bytes.fetch_add(into.filled().len() - before, Ordering::Relaxed);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Endless {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_proxy_that_sends_without_end_is_given_up_after_few_bytes() {
        for text in [
            "HTTP/1.1 103 Early Hints\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 102 Processing\r\nx: y\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx: ",
            "\r\n",
            "x",
        ] {
            let read_bytes = Arc::<AtomicUsize>::default();
            let (reader, text_bytes) = (Some(Waker::noop().clone()), text.as_bytes());
            let stream =
                Endless { reader, text: text_bytes, at: 0, read_bytes: read_bytes.clone() };
            let opened = tunnel(Box::new(stream), &proxy(), "mcp.test:443").await;
            assert!(opened.is_err(), "{text}");
            let read_bytes = read_bytes.load(Ordering::Relaxed);
            assert!(read_bytes < 512 * 1024, "{text}: {read_bytes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_drips_informational_responses_is_given_up_after_ten_seconds() {
        let (ours, mut theirs) = duplex(64 * 1024);
        let drip = async {
            let mut ticks = tokio::time::interval(Duration::from_secs(1));
            while theirs.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").await.is_ok() {
                ticks.tick().await;
            }
        };
        let (begin, proxy) = (tokio::time::Instant::now(), proxy());
        let (opened, ()) = tokio::join!(tunnel(Box::new(ours), &proxy, "mcp.test:443"), drip);
        let error = opened.err().expect("no tunnel").to_string();
        assert_eq!(error, "the proxy proxy.test:3128: no response within 10 s");
        assert!(begin.elapsed() < Duration::from_secs(12));
    }

    #[tokio::test]
    async fn a_few_informational_responses_do_not_prevent_a_tunnel() {
        let hints = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".repeat(100);
        let (opened, _) = ask(&[&*hints, "HTTP/1.1 200 OK\r\n\r\n"]).await;
        assert!(opened.is_ok());
    }
}
