//! Way back of the browser after a sign-in: a listener on this machine (RFC 8252, 7.3), or a URL
//! that the user pastes.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use weir_oauth::SignIn;

/// Listener for the response of an authorization server.
pub(super) struct RedirectListener {
    listener: TcpListener,
    port: u16,
}

impl RedirectListener {
    /// Listens on this port, or on a free one.
    pub(super) async fn bind(port: Option<u16>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port.unwrap_or(0))).await?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    /// Returns the URI to which the browser is sent.
    pub(super) fn uri(&self) -> String {
        format!("http://127.0.0.1:{}{PATH}", self.port)
    }

    /// Waits for the response to a sign-in, and returns its query. Other requests are refused.
    /// With `reads_input`, a line of standard input can be the response, too.
    pub(super) async fn response(self, sign_in: &SignIn, reads_input: bool) -> String {
        let typed = async {
            if reads_input && let Some(query) = pasted(sign_in).await {
                return query;
            }
            std::future::pending().await
        };
        match select(pin!(self.serve(sign_in)), pin!(typed)).await {
            Either::Left((query, _)) | Either::Right((query, _)) => query,
        }
    }

    async fn serve(&self, sign_in: &SignIn) -> String {
        // Each connection is served in a task of its own, which ends with the program.
        let (tasks, places) = (TaskTracker::new(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
        let (sender, mut queries) = mpsc::channel(MAX_QUERIES);
        let accept = async {
            loop {
                // A program of this machine could open any number of connections.
                let place = Arc::clone(&places).acquire_owned().await;
                let Ok((stream, _)) = self.listener.accept().await else {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                let sender = sender.clone();
                let service = service_fn(move |request| answer(request, sender.clone()));
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service);
                tasks.spawn(async move {
                    let _place = place;
                    let _ = connection.await;
                });
            }
        };
        let find = async {
            while let Some((query, reply)) = queries.recv().await {
                let is_response = sign_in.is_response(&query);
                // The browser may have gone.
                let _ = reply.send(is_response);
                if is_response {
                    return query;
                }
            }
            std::future::pending().await
        };
        let query = match select(pin!(accept), pin!(find)).await {
            Either::Left((never, _)) => never,
            Either::Right((query, _)) => query,
        };
        // The page is on its way to the browser.
        tasks.close();
        let _ = timeout(LINGER, tasks.wait()).await;
        query
    }
}

/// Query of a request, and the channel for the decision about it.
type Asked = (String, oneshot::Sender<bool>);

async fn answer(
    request: Request<Incoming>,
    queries: mpsc::Sender<Asked>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let (sender, is_response) = oneshot::channel();
    let is_response = request.method() == Method::GET
        && request.uri().path() == PATH
        && queries.send((query, sender)).await.is_ok()
        && is_response.await.unwrap_or(false);
    let (status, text) = match is_response {
        true => (StatusCode::OK, "Weir has the response. The terminal shows the result."),
        false => (StatusCode::NOT_FOUND, "This is no response to a sign-in that Weir waits for."),
    };
    let page = format!("<!doctype html><meta charset=utf-8><title>Weir</title><p>{text}</p>\n");
    let mut response = Response::new(Full::from(page));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("content-security-policy", HeaderValue::from_static("default-src 'none'"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    headers.insert("connection", HeaderValue::from_static("close"));
    Ok(response)
}

/// Reads lines of standard input until one is the URL of the response; `None` at its end.
async fn pasted(sign_in: &SignIn) -> Option<String> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let query = line.trim().split_once('?').map_or("", |(_, query)| query);
        let query = query.split('#').next().unwrap_or_default();
        if sign_in.is_response(query) {
            return Some(query.to_owned());
        }
    }
    None
}

const PATH: &str = "/callback";
/// Requests that wait for a decision; further ones wait for a place.
const MAX_QUERIES: usize = 16;
/// Connections that are served at the same time.
const MAX_CONNECTIONS: usize = 32;
/// Time for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for the page to reach the browser.
const LINGER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use weir_oauth::testing::sign_in;

    async fn request(port: u16, line: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
        let text = format!("{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        stream.write_all(text.as_bytes()).await.expect("written");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("a response");
        response.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn only_the_response_to_the_sign_in_ends_the_wait() {
        let sign_in = sign_in().await;
        let (_, state) = sign_in.url().split_once("state=").expect("a state");
        let state = state.split('&').next().expect("a state").to_owned();
        let listener = RedirectListener::bind(None).await.expect("a port");
        let port = listener.port;
        // These send nothing, and take no place for ever.
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(TcpStream::connect(("127.0.0.1", port)).await.expect("connected"));
        }
        let requests = async {
            for line in [
                "GET /callback".to_owned(),
                "GET /callback?code=evil&state=x".to_owned(),
                format!("GET /other?code=evil&state={state}"),
                format!("POST /callback?code=evil&state={state}"),
                "GET /favicon.ico".to_owned(),
            ] {
                let status = request(port, &line).await;
                assert_eq!(status, "HTTP/1.1 404 Not Found", "{line}");
            }
            let long = format!("GET /callback?code={}", "x".repeat(1_000_000));
            assert!(!request(port, &long).await.contains("200"));
            let line = format!("GET /callback?code=c&state={state}");
            assert_eq!(request(port, &line).await, "HTTP/1.1 200 OK");
        };
        let (query, ()) = tokio::join!(listener.response(&sign_in, false), requests);
        assert_eq!(query, format!("code=c&state={state}"));
    }
}
