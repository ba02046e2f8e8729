//! Taps that record a connection: a proxy for HTTP, and a pair of `tee` for pipes.
//!
//! Both forward every byte as it arrives, and read it only after that. The one exception: the proxy
//! does not let a client resume a stream.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::recording::{Exchange, Recording, at};
use crate::fleet::PATIENCE;

// === Over HTTP ===

/// Proxy in front of one server.
pub(crate) struct Tap {
    pub(crate) url: String,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    seen: watch::Sender<Vec<Seen>>,
    /// Number of entries that were returned.
    taken: AtomicUsize,
}

/// An HTTP request.
#[derive(Debug)]
struct Seen {
    verb: Method,
    exchange: Exchange,
    is_open: bool,
}

impl Seen {
    /// Whether its response is still open; a listen stream stays open and does not count.
    fn is_open(&self) -> bool {
        self.verb == Method::POST && self.is_open && !self.exchange.is_listen()
    }
}

impl Tap {
    /// Listens on a port of its own; needs a `LocalSet`.
    pub(crate) async fn before(url: &str) -> Self {
        let (server, path) =
            url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).unwrap();
        let (server, log) = (server.to_owned(), Arc::new(Log::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/{path}", listener.local_addr().unwrap());
        let proxy = Arc::clone(&log);
        tokio::task::spawn_local(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, log) = (server.clone(), Arc::clone(&proxy));
                let service = service_fn(move |request| {
                    let (server, log) = (server.clone(), Arc::clone(&log));
                    async move { Ok::<_, Infallible>(pass(request, server, log).await) }
                });
                let serving = hyper::server::conn::http1::Builder::new();
                let serving = serving.serve_connection(TokioIo::new(client), service);
                tokio::task::spawn_local(async move { drop(serving.await) });
            }
        });
        Self { url, log }
    }

    /// Returns the messages since the last call, once this number of calls was cancelled and every
    /// POST has ended.
    pub(crate) async fn take(&self, given_up: usize) -> Recording {
        let from = self.log.taken.load(Relaxed);
        let mut changes = self.log.seen.subscribe();
        let is_whole = |seen: &Vec<Seen>| {
            let recording = Recording::of(&seen[from..]);
            let is_open = seen[from..].iter().any(Seen::is_open);
            !is_open && recording.given_up() >= given_up
        };
        let whole = tokio::time::timeout(PATIENCE, changes.wait_for(is_whole)).await;
        let Ok(Ok(seen)) = whole else {
            let seen = self.log.seen.borrow();
            let open: Vec<_> = seen[from..].iter().filter(|seen| seen.is_open()).collect();
            let given_up_so_far = Recording::of(&seen[from..]).given_up();
            panic!("{given_up_so_far} of {given_up} were given up, and these are open: {open:#?}");
        };
        self.log.taken.store(seen.len(), Relaxed);
        Recording::of(&seen[from..]).in_order()
    }
}

impl Recording {
    fn of(seen: &[Seen]) -> Self {
        let mut recording = Self::default();
        for Seen { verb, exchange, .. } in seen {
            if verb == Method::POST {
                recording.exchanges.push(exchange.clone());
            } else {
                let status = exchange.status.map_or("nothing".to_owned(), |it| it.to_string());
                recording.verbs.push(format!("{verb} {status}"));
                let notification = exchange
                    .answers
                    .iter()
                    .filter(|notification| at(notification, &["method"]).is_some());
                recording.unsolicited.extend(notification.cloned());
            }
        }
        // The order of streams that open beside the requests depends on timing.
        recording.verbs.sort();
        recording
    }
}

type Answer = http_body_util::combinators::UnsyncBoxBody<Bytes, hyper::Error>;

/// Forwards one request, and its response.
async fn pass(request: Request<Incoming>, server: String, log: Arc<Log>) -> Response<Answer> {
    if is_resuming(&request) {
        return refused(StatusCode::METHOD_NOT_ALLOWED);
    }
    let (mut head, body) = request.into_parts();
    let writing = Writing::begin(Arc::clone(&log), &head.method);
    let Ok(body) = body.collect().await else {
        return refused(StatusCode::BAD_GATEWAY);
    };
    let body = body.to_bytes();
    let mcp = |name: &str| name.starts_with("mcp-") && name != "mcp-session-id";
    let headers = head.headers.iter().filter(|(name, _)| mcp(name.as_str()));
    let headers: Vec<_> = headers
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
        .collect();
    let session = head.headers.get("mcp-session-id").and_then(|id| id.to_str().ok());
    let session = session.map(str::to_owned);
    writing.note(|exchange| {
        exchange.message = String::from_utf8_lossy(&body).into();
        (exchange.headers, exchange.session) = (headers, session);
    });
    head.headers.insert(HOST, server.parse().unwrap());
    head.headers.remove(CONNECTION);
    let Ok(wire) = TcpStream::connect(&server).await else {
        return refused(StatusCode::BAD_GATEWAY);
    };
    let Ok((mut send, serving)) = hyper::client::conn::http1::handshake(TokioIo::new(wire)).await
    else {
        return refused(StatusCode::BAD_GATEWAY);
    };
    tokio::task::spawn_local(async move { drop(serving.await) });
    let expects_response = std::str::from_utf8(&body).is_ok_and(|text| at(text, &["id"]).is_some());
    let exchange = async move {
        let answer = send.send_request(Request::from_parts(head, Full::new(body))).await.ok()?;
        writing.note(|exchange| exchange.status = Some(answer.status().as_u16()));
        Some((answer, writing, send))
    };
    // A client may leave right after a notification, whose status is recorded all the same. A
    // client that leaves a request cancels it.
    let exchanged = match expects_response {
        true => exchange.await,
        false => tokio::task::spawn_local(exchange).await.expect("no panic"),
    };
    let Some((answer, mut writing, send)) = exchanged else {
        return refused(StatusCode::BAD_GATEWAY);
    };

    let (mut head, body) = answer.into_parts();
    if body.is_end_stream() {
        writing.end();
    }
    let kind = head.headers.get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap());
    writing.is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
    head.headers.remove(TRANSFER_ENCODING);
    head.headers.remove(CONNECTION);
    // Kept alive until the response has ended: dropping a hyper client closes the connection.
    let passing = (body, writing, send);
    let frames = stream::unfold(passing, |(mut body, mut writing, send)| async move {
        match body.frame().await {
            Some(Ok(frame)) => {
                writing.take(frame.data_ref().unwrap_or(&Bytes::new()));
                // No frame follows once the length of the head is reached.
                if body.is_end_stream() {
                    writing.end();
                }
                Some((Ok(frame), (body, writing, send)))
            }
            Some(Err(error)) => Some((Err(error), (body, writing, send))),
            None => {
                writing.end();
                None
            }
        }
    });
    Response::from_parts(head, BodyExt::boxed_unsync(StreamBody::new(frames)))
}

/// Whether a request resumes a stream, which a tap does not forward: a client of the TypeScript SDK
/// v1 does so a second after each error response, if its script lasts that long, and one of the
/// servers then repeats all its earlier notifications and requests.
fn is_resuming<B>(request: &Request<B>) -> bool {
    request.method() == Method::GET && request.headers().contains_key("last-event-id")
}

fn refused(status: StatusCode) -> Response<Answer> {
    let body = Full::new(Bytes::new()).map_err(|never: Infallible| match never {});
    let mut response = Response::new(BodyExt::boxed_unsync(body));
    *response.status_mut() = status;
    response
}

/// Records one request; dropped before the end of the response, it records that the client left.
struct Writing {
    log: Arc<Log>,
    place: usize,
    is_stream: bool,
    has_ended: bool,
    /// Received bytes that are no whole event or body yet.
    rest: Vec<u8>,
}

impl Writing {
    fn begin(log: Arc<Log>, verb: &Method) -> Self {
        let place = log.seen.borrow().len();
        let seen = Seen { verb: verb.clone(), exchange: Exchange::default(), is_open: true };
        log.seen.send_modify(|all| all.push(seen));
        Self { log, place, is_stream: false, has_ended: false, rest: Vec::new() }
    }

    fn note(&self, change: impl FnOnce(&mut Exchange)) {
        self.log.seen.send_modify(|seen| change(&mut seen[self.place].exchange));
    }

    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend(bytes.iter().filter(|byte| **byte != b'\r'));
        while self.is_stream
            && let Some(end) = self.rest.windows(2).position(|two| two == b"\n\n")
        {
            let event: Vec<_> = self.rest.drain(..end + 2).collect();
            let event = String::from_utf8(event).unwrap();
            let data = event.lines().filter_map(|line| line.strip_prefix("data:"));
            let data: Vec<_> = data.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
            self.add_message(data.join("\n"));
        }
    }

    fn add_message(&self, message: String) {
        // Events without data, plain texts and empty bodies carry no message.
        if message.starts_with(['{', '[']) {
            self.note(|exchange| exchange.answers.push(message));
        }
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) && !self.is_stream {
            self.add_message(String::from_utf8_lossy(&self.rest).into());
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.log.seen.send_modify(|seen| {
            seen[self.place].is_open = false;
            seen[self.place].exchange.left = !self.has_ended;
        });
    }
}

// === Over pipes ===

/// Tap between a program and its parent, which may start it more than once.
pub(crate) struct PipeTap {
    folder: tempfile::TempDir,
}

/// Script of the tap. Each start gets a folder of its own. It needs a POSIX shell only, and ends
/// when its input does.
const TEE: &str = r#"n=0
while ! mkdir "$0/$n" 2>/dev/null; do n=$((n + 1)); done
tee "$0/$n/sent" | "$@" | tee "$0/$n/came""#;

impl PipeTap {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::TempDir::new().unwrap() }
    }

    /// Command line that starts a command with the tap around it.
    pub(crate) fn around(&self, command: Vec<String>) -> Vec<String> {
        let folder = self.folder.path().to_str().unwrap();
        ["sh", "-c", TEE, folder].map(str::to_owned).into_iter().chain(command).collect()
    }

    /// Returns all messages, once all started processes have ended.
    pub(crate) fn take(self) -> Recording {
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let starts = (0..).map(|start: u32| self.folder.path().join(start.to_string()));
        let mut all = Recording::default();
        for start in starts.take_while(|start| Path::is_dir(start)) {
            let start = Recording::of_lines(&read(start.join("sent")), &read(start.join("came")));
            all.exchanges.extend(start.exchanges);
            all.unsolicited.extend(start.unsolicited);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_in_whatever_pieces_they_come() {
        let text = "event: message\r\nid: 1\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\n: still here\n\ndata:\n\ndata:{}\n\n";
        for size in [1, 7, text.len()] {
            let log = Arc::new(Log::default());
            let mut writing = Writing::begin(Arc::clone(&log), &Method::POST);
            writing.is_stream = true;
            text.as_bytes().chunks(size).for_each(|piece| writing.take(piece));
            assert_eq!(log.seen.borrow()[0].exchange.answers, ["{\"a\":\n1}", "{}"]);
        }
    }

    #[test]
    fn only_a_stream_that_is_taken_up_again_is_not_handed_on() {
        let get = || Request::get("/");
        let (resuming, post) = (get().header("Last-Event-ID", "1"), Request::post("/"));
        for (request, expected) in [(get(), false), (resuming, true), (post, false)] {
            assert_eq!(is_resuming(&request.body(()).unwrap()), expected);
        }
    }
}
