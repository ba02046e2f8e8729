//! A client over HTTP, with one connection for each request in flight.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use weir_base::text::sse::SseDecoder;
use weir_mcp::call;
use weir_mcp::revision::Revision;

use super::{Connector, object, string};
use crate::cell::{Side, Transport};

/// Authority of the gateway in the clients' requests.
pub(crate) const AUTHORITY: &str = "127.0.0.1:8642";

/// Path of the MCP endpoint.
const PATH: &str = "/mcp";

/// The client's end of HTTP connections.
pub(crate) struct Http {
    side: Side,
    open: Connector,
    key: Option<String>,
    tasks: TaskTracker,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    idle: Mutex<Vec<Connection>>,
    /// Number of opened connections.
    opened: AtomicUsize,
    session: Mutex<Option<String>>,
}

struct Connection {
    requests: SendRequest<Full<Bytes>>,
    /// Closes the connection when dropped.
    _open: DropGuard,
}

/// A request in flight on a connection of its own. Dropped early, it closes the connection.
pub(crate) struct Exchange {
    state: State,
    shared: Arc<Shared>,
    judged: Box<Judged>,
    /// Whether the body has broken off.
    is_broken: bool,
}

/// The part of a response that the judge has yet to check.
struct Judged {
    open: Connector,
    is_message: bool,
    body: Vec<u8>,
    events: SseDecoder,
}

enum State {
    Coming(AbortOnDropHandle<hyper::Result<(Response<Incoming>, Connection)>>),
    Here(Box<Here>),
    Over(u16),
}

struct Here {
    response: Response<Incoming>,
    connection: Connection,
    events: SseDecoder,
    ready: std::collections::VecDeque<Bytes>,
}

/// A whole response.
#[derive(Debug, Clone)]
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Http {
    pub(super) fn new(side: Side, open: Connector, key: Option<&str>, tasks: &TaskTracker) -> Self {
        let key = key.map(str::to_owned);
        Self { side, open, key, tasks: tasks.clone(), shared: Arc::default() }
    }

    /// Id of the legacy session, if there is one.
    pub(crate) fn session(&self) -> Option<String> {
        lock(&self.shared.session).clone()
    }

    /// Number of connections that this client has opened.
    pub(crate) fn connections(&self) -> usize {
        self.shared.opened.load(Ordering::Relaxed)
    }

    /// Headers of a request: those of every POST, and those that the revision adds.
    pub(crate) fn headers(&self, method: &str, params: &str) -> HeaderMap {
        let mut headers = self.plain_headers();
        set(&mut headers, CONTENT_TYPE.as_str(), "application/json");
        if self.side.is_modern() {
            set(&mut headers, "mcp-protocol-version", self.side.revision.as_str());
            set(&mut headers, "mcp-method", method);
            let member = call::Method::of(method).and_then(call::Method::header_member);
            if let Some(name) = member.and_then(|member| {
                object(params).get_string(member).map(std::borrow::Cow::into_owned)
            }) {
                set(&mut headers, "mcp-name", &encoded(&name));
            }
        }
        headers
    }

    /// Headers of any request.
    pub(crate) fn plain_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        set(&mut headers, HOST.as_str(), AUTHORITY);
        set(&mut headers, ACCEPT.as_str(), "application/json, text/event-stream");
        if let Some(key) = &self.key {
            set(&mut headers, AUTHORIZATION.as_str(), &format!("Bearer {key}"));
        }
        if let Some(session) = self.session() {
            set(&mut headers, "mcp-session-id", &session);
            if self.side.revision >= Revision::V2025_06_18 {
                set(&mut headers, "mcp-protocol-version", self.side.revision.as_str());
            }
        }
        headers
    }

    /// Posts a body to the endpoint.
    pub(crate) fn post(&self, body: impl Into<Bytes>, headers: &HeaderMap) -> Exchange {
        self.send(Method::POST, PATH, body, headers)
    }

    /// Opens the session's own stream.
    pub(crate) fn get(&self) -> Exchange {
        self.send(Method::GET, PATH, "", &self.plain_headers())
    }

    /// Sends any request.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        headers: &HeaderMap,
    ) -> Exchange {
        let body = body.into();
        self.open.record_sent(&body, if path == PATH { Transport::Http } else { Transport::Sse });
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method.clone();
        *request.uri_mut() = path.parse().expect("a path");
        *request.headers_mut() = headers.clone();
        let idle = std::iter::from_fn(|| lock(&self.shared.idle).pop());
        let idle = idle.into_iter().find(|idle| !idle.requests.is_closed());
        if idle.is_none() {
            self.shared.opened.fetch_add(1, Ordering::Relaxed);
        }
        let (open, tasks) = (self.open.clone(), self.tasks.clone());
        let exchange = async move {
            let mut connection = match idle {
                Some(idle) => idle,
                None => Connection::open(&open, &tasks).await?,
            };
            connection.requests.ready().await?;
            let response = connection.requests.send_request(request).await?;
            Ok((response, connection))
        };
        let coming = AbortOnDropHandle::new(self.tasks.spawn(exchange));
        let judged = Box::new(Judged {
            open: self.open.clone(),
            // Responses below `/.well-known/` are documents, not messages.
            is_message: method != Method::HEAD && !path.starts_with("/.well-known/"),
            body: Vec::new(),
            events: SseDecoder::new(64 << 20),
        });
        let shared = Arc::clone(&self.shared);
        Exchange { state: State::Coming(coming), shared, judged, is_broken: false }
    }
}

impl Connection {
    async fn open(open: &Connector, tasks: &TaskTracker) -> hyper::Result<Self> {
        let (requests, connection) = handshake(TokioIo::new(open.connect())).await?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tasks.spawn(async move {
            // The reader of the response sees an error of the connection.
            let _ = stopped.run_until_cancelled(connection).await;
        });
        Ok(Self { requests, _open: stop.drop_guard() })
    }
}

impl Exchange {
    /// Waits for the response's head; `false` if the connection ended before it.
    pub(crate) async fn opened(&mut self) -> bool {
        if let State::Coming(coming) = &mut self.state {
            self.state = match coming.await.expect("the task is not aborted") {
                Ok((response, connection)) => {
                    if let Some(session) = response.headers().get("mcp-session-id") {
                        let session = session.to_str().expect("an ASCII header").to_owned();
                        *lock(&self.shared.session) = Some(session);
                    }
                    let (events, ready) = (SseDecoder::new(64 << 20), Default::default());
                    State::Here(Box::new(Here { response, connection, events, ready }))
                }
                Err(_) => State::Over(0),
            };
        }
        !matches!(self.state, State::Over(0))
    }

    /// Status of the response, once it has arrived; 0 if there is none.
    pub(crate) fn status(&self) -> u16 {
        match &self.state {
            State::Coming(_) => panic!("the response has not come"),
            State::Here(here) => here.response.status().as_u16(),
            State::Over(status) => *status,
        }
    }

    /// The next message of the response: an event, or the whole body.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        self.opened().await;
        let as_events = match &self.state {
            State::Here(here) => here.is_event_stream(),
            _ => return None,
        };
        if !as_events {
            let mut body = Vec::new();
            while let Some(piece) = self.piece().await {
                body.extend_from_slice(&piece);
            }
            return (!body.is_empty() && !self.is_broken).then(|| body.into());
        }
        loop {
            let State::Here(here) = &mut self.state else { return None };
            if let Some(message) = here.ready.pop_front() {
                return Some(message);
            }
            let piece = self.piece().await?;
            let State::Here(here) = &mut self.state else { return None };
            let events = here.events.feed(&piece).expect("an event within the limit");
            let full = events.into_iter().filter(|event| !event.data.is_empty());
            here.ready.extend(full.map(|event| event.data));
        }
    }

    /// The next chunk of the body; `None` at its end or where it breaks off.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        self.opened().await;
        let State::Here(here) = &mut self.state else { return None };
        loop {
            match here.response.body_mut().frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.judged.piece(here, &data);
                        return Some(data);
                    }
                }
                broken_or_over => {
                    self.is_broken = broken_or_over.is_some();
                    let status = here.response.status().as_u16();
                    let state = std::mem::replace(&mut self.state, State::Over(status));
                    if let (State::Here(here), None) = (state, broken_or_over) {
                        self.judged.end(&here);
                        let sent = here.response.headers().get(hyper::header::CONNECTION);
                        if sent.is_none_or(|sent| sent != "close") {
                            lock(&self.shared.idle).push(here.connection);
                        }
                    }
                    return None;
                }
            }
        }
    }

    /// Reads the whole response.
    pub(crate) async fn whole(mut self) -> HttpReply {
        assert!(self.opened().await, "the connection ended without a response");
        let headers = match &self.state {
            State::Here(here) => here.response.headers().clone(),
            _ => HeaderMap::new(),
        };
        let mut body = Vec::new();
        while let Some(piece) = self.piece().await {
            body.extend_from_slice(&piece);
        }
        HttpReply { status: self.status(), headers, body: string(body.into()) }
    }
}

impl Judged {
    fn piece(&mut self, here: &Here, piece: &[u8]) {
        if !here.is_event_stream() {
            return self.body.extend_from_slice(piece);
        }
        for event in self.events.feed(piece).unwrap_or_default() {
            // The pair's first event is an address; a priming event is empty.
            if event.data.starts_with(b"{") || event.data.starts_with(b"[") {
                self.open.check_received(&event.data);
            }
        }
    }

    fn end(&self, here: &Here) {
        let content_type = here.response.headers().get(CONTENT_TYPE);
        let is_json =
            content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/json"));
        if is_json && self.is_message {
            self.open.check_received(&self.body);
        }
    }
}

impl Here {
    fn is_event_stream(&self) -> bool {
        let content_type = self.response.headers().get(CONTENT_TYPE);
        content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
    }
}

impl HttpReply {
    /// Code of the JSON-RPC error in the body.
    pub(crate) fn code(&self) -> i64 {
        let error = object(&self.body).get_object("error");
        let error = error.unwrap_or_else(|| panic!("no error: {self:?}"));
        error.get("code").expect("a code").parse().expect("a number")
    }
}

/// Sets a header.
pub(crate) fn set(headers: &mut HeaderMap, name: &str, value: &str) {
    let name: hyper::header::HeaderName = name.parse().expect("a header name");
    headers.insert(name, value.parse().expect("a header value"));
}

/// A header's value, with the sentinel where it is needed (spec, value encoding).
fn encoded(value: &str) -> String {
    let plain = value.bytes().all(|byte| (0x20..0x7f).contains(&byte)) && value.trim() == value;
    if plain && !value.starts_with("=?base64?") {
        return value.to_owned();
    }
    format!("=?base64?{}?=", base64::engine::general_purpose::STANDARD.encode(value))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
