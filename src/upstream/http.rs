//! The HTTP wire: one message a request, answered by a JSON body or an event stream.
//!
//! Promises: a request is written at most once. Dropping an exchange closes its response stream at
//! once, and sends a cancellation where the dialect wants one. An event stream that ends after an
//! event with an id, but without the answer, is taken up again where the dialect wants that; taking a
//! stream up is not sending the request again.
//!
//! Knows nothing of: protocol eras and sessions; the headers that differ come with each request.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::Full;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use tokio_util::task::TaskTracker;

use super::ear::{Claim, Ear, Heard, Side};
use super::events::{Events, Media, media_type};
use super::pool::{Arrival, NoResponse, Pool};
use super::reply::{self, Read};
use super::wire::{Answer, Cancel, Failure, Outgoing, cancelled};
use crate::mcp::call::{Body, Outcome};
use crate::rpc;

/// How long a message that nobody waits for may take.
const ASIDE: Duration = Duration::from_secs(5);
/// How much of the body of a refusal is read, and how long that may take.
const REFUSAL_BYTES: usize = 64 * 1024;
const REFUSAL: Duration = Duration::from_secs(5);
/// When a lost stream is taken up again where the server does not say; and never sooner than this.
const RESUME_AFTER: Duration = Duration::from_secs(1);
const RESUME_AT_LEAST: Duration = Duration::from_millis(50);
/// How many times in a row taking a stream up may fail.
const RESUME_TRIES: u32 = 3;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// A server behind a URL and the requests that are open on it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Wire {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    url: Uri,
    /// On every request, as configured.
    headers: HeaderMap,
    ear: Arc<Ear>,
    max_message: usize,
    tasks: TaskTracker,
}

impl Wire {
    pub(super) fn new(
        pool: Pool,
        url: Uri,
        headers: HeaderMap,
        ear: Arc<Ear>,
        max_message: usize,
        tasks: TaskTracker,
    ) -> Self {
        Self { shared: Arc::new(Shared { pool, url, headers, ear, max_message, tasks }) }
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn exchange(&self, mut request: Outgoing) -> Result<Answer, Failure> {
        let side = Side { notes: request.notes.clone(), listen: request.listen };
        let closed = || Failure::Unsent("the connection is closing".into());
        let claim = self.shared.ear.pending.open(side).ok_or_else(closed)?;
        let message = request.write(claim.id());
        let mut open = Open { wire: self, claim, headers: None };
        if request.cancel == Cancel::Notify {
            open.headers = Some(request.headers.clone());
        }
        let answer = self.ask(open.claim.id(), &request, message).await;
        open.headers = None;
        answer
    }

    async fn ask(&self, id: u64, request: &Outgoing, message: Bytes) -> Result<Answer, Failure> {
        let response = self.post(message, &request.headers).await?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            return Err(self.refused(id, request, head.status, body).await);
        }
        let outcome = match media_type(&head.headers) {
            Media::Json => {
                let limit = self.shared.max_message;
                match reply::read(body, id, limit, request.stream).await? {
                    Read::Arriving(pieces) => Outcome::Result(Body::Arriving(pieces)),
                    Read::Whole(text) => {
                        let heard = self.shared.ear.hear(text);
                        let heard = heard.map_err(|junk| Failure::Protocol(junk.to_string()))?;
                        let missing = || Failure::Protocol("it answered something else".into());
                        self.answer_in(heard, id, &request.headers).ok_or_else(missing)?
                    }
                }
            }
            Media::Events => self.follow(id, request, self.events(body)).await?,
            Media::None => {
                return Err(Failure::Protocol(format!("HTTP {} without an answer", head.status)));
            }
            Media::Other(name) => {
                return Err(Failure::Protocol(format!("it answered with content type {name}")));
            }
        };
        Ok(Answer { outcome, headers: head.headers })
    }

    /// Reads events until the answer to request `id` comes, over several responses if need be.
    async fn follow(
        &self,
        id: u64,
        request: &Outgoing,
        mut events: Events,
    ) -> Result<Outcome, Failure> {
        let mut failures = 0;
        let mut last_id: Option<String> = None;
        loop {
            let broke = loop {
                match events.next().await {
                    Ok(Some(event)) => {
                        failures = 0;
                        let Some(heard) = self.hear(event.data) else { continue };
                        if let Some(outcome) = self.answer_in(heard, id, &request.headers) {
                            events.drain();
                            return Ok(outcome);
                        }
                    }
                    Ok(None) => break "the event stream ended without the answer".to_owned(),
                    Err(Failure::Broke(reason)) => break reason,
                    Err(failure) => return Err(failure),
                }
            };
            last_id = events.last_id().or(last_id);
            let Some(from) = last_id.as_deref().filter(|_| request.resume) else {
                return Err(Failure::Broke(broke));
            };
            let mut pause = events.retry().unwrap_or(RESUME_AFTER).max(RESUME_AT_LEAST);
            events = loop {
                tokio::time::sleep(pause).await;
                match self.listen(&request.headers, Some(from)).await {
                    Ok(events) => break events,
                    Err(Failure::Unsent(_) | Failure::Broke(_)) if failures < RESUME_TRIES => {
                        failures += 1;
                        pause = pause.max(RESUME_AFTER);
                    }
                    Err(_) => return Err(Failure::Broke(broke)),
                }
            };
        }
    }

    /// Opens the stream that a server speaks on by itself, or takes up one that was lost.
    pub(super) async fn listen(
        &self,
        headers: &HeaderMap,
        last_id: Option<&str>,
    ) -> Result<Events, Failure> {
        let mut request = self.request(Method::GET, Bytes::new(), headers);
        let all = request.headers_mut();
        all.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            all.insert(LAST_EVENT_ID, id);
        }
        let (head, body) = self.send(request).await?.into_parts();
        if !head.status.is_success() {
            return Err(Failure::Refused { status: head.status, error: None, names_it: false });
        }
        match media_type(&head.headers) {
            Media::Events => Ok(self.events(body)),
            _ => Err(Failure::Protocol("it answered with something else than events".into())),
        }
    }

    /// Takes an event's data; `None` if it is no message (an empty one only carries an id).
    pub(super) fn hear(&self, data: Bytes) -> Option<Heard> {
        if data.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        match self.shared.ear.hear(data) {
            Ok(heard) => Some(heard),
            Err(junk) => {
                tracing::debug!(%junk, "an event is no message");
                None
            }
        }
    }

    /// Picks the answer to request `id`, and sends back what the server is owed.
    fn answer_in(&self, heard: Heard, id: u64, headers: &HeaderMap) -> Option<Outcome> {
        self.send_back(heard.replies, headers);
        // An error without an id, on this request's own response, can be about this request only.
        let is_ours = |(answered, outcome): &(Option<u64>, rpc::Outcome)| match answered {
            Some(answered) => *answered == id,
            None => matches!(outcome, rpc::Outcome::Error(_)),
        };
        let (_, outcome) = heard.answers.into_iter().find(is_ours)?;
        Some(match outcome {
            rpc::Outcome::Result(result) => Outcome::Result(Body::Whole(result)),
            rpc::Outcome::Error(error) => Outcome::Error(error),
        })
    }

    /// Sends what the server is owed for its own requests.
    pub(super) fn send_back(&self, replies: Vec<Bytes>, headers: &HeaderMap) {
        for reply in replies {
            self.aside(reply, headers);
        }
    }

    pub(super) async fn notify(&self, message: Bytes, headers: &HeaderMap) -> Result<(), Failure> {
        let (head, body) = self.post(message, headers).await?.into_parts();
        if head.status.is_success() {
            body.drain();
            return Ok(());
        }
        Err(Failure::Refused { status: head.status, error: None, names_it: false })
    }

    /// Tells the server that its session is over, if it wants to know. Waits a moment for it.
    pub(super) async fn delete(&self, headers: &HeaderMap) {
        let request = self.request(Method::DELETE, Bytes::new(), headers);
        let _ = tokio::time::timeout(ASIDE, self.send(request)).await;
    }

    /// Sends a message that nobody waits for.
    fn aside(&self, message: Bytes, headers: &HeaderMap) {
        let wire = self.clone();
        let request = self.request(Method::POST, message, headers);
        self.shared.tasks.spawn(async move {
            match tokio::time::timeout(ASIDE, wire.send(request)).await {
                Ok(Ok(response)) => response.into_body().drain(),
                Ok(Err(failure)) => tracing::debug!(?failure, "a message aside was lost"),
                Err(_) => tracing::debug!("a message aside took too long"),
            }
        });
    }

    async fn post(
        &self,
        message: Bytes,
        headers: &HeaderMap,
    ) -> Result<Response<Arrival>, Failure> {
        self.send(self.request(Method::POST, message, headers)).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Arrival>, Failure> {
        self.shared.pool.send(request).await.map_err(|none| match none {
            NoResponse::Unsent(reason) => Failure::Unsent(reason),
            NoResponse::Broke(reason) => Failure::Broke(reason),
        })
    }

    fn request(&self, method: Method, message: Bytes, headers: &HeaderMap) -> Request<Full<Bytes>> {
        let url = &self.shared.url;
        let is_post = method == Method::POST;
        let mut request = Request::new(Full::new(message));
        *request.method_mut() = method;
        // The form that servers expect: the path alone, and the authority as `Host`.
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
        let all = request.headers_mut();
        all.clone_from(&self.shared.headers);
        let host = url.authority().map(|authority| {
            // Credentials in a URL are not for the Host header.
            authority.as_str().rsplit('@').next().unwrap_or_default()
        });
        if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok()) {
            all.insert(HOST, host);
        }
        all.entry(USER_AGENT).or_insert(HeaderValue::from_static(USER_AGENT_TEXT));
        let accept = HeaderValue::from_static("application/json, text/event-stream");
        all.insert(ACCEPT, accept);
        if is_post {
            all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        for (name, value) in headers {
            all.insert(name, value.clone());
        }
        request
    }

    /// Reads a refusal: its status, and the JSON-RPC error about request `id` if it holds one.
    async fn refused(
        &self,
        id: u64,
        request: &Outgoing,
        status: StatusCode,
        mut body: Arrival,
    ) -> Failure {
        let mut text = BytesMut::new();
        let read = async {
            while let Some(Ok(chunk)) = body.chunk().await {
                text.extend_from_slice(&chunk);
                if text.len() > REFUSAL_BYTES {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(REFUSAL, read).await;
        let heard = self.shared.ear.hear(text.freeze()).unwrap_or_default();
        let names_it = heard.answers.iter().any(|(answered, _)| *answered == Some(id));
        let error = match self.answer_in(heard, id, &request.headers) {
            Some(Outcome::Error(error)) => Some(error),
            _ => None,
        };
        Failure::Refused { status, error, names_it }
    }

    fn events(&self, body: Arrival) -> Events {
        Events::new(body, self.shared.max_message)
    }
}

const USER_AGENT_TEXT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// An open request. Dropping it before its end sends the cancellation that its dialect wants; its
/// response stream closes by itself.
struct Open<'a> {
    wire: &'a Wire,
    claim: Claim,
    /// The headers of the cancellation; `None` where there is nothing (any more) to be told.
    headers: Option<HeaderMap>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(headers) = self.headers.take() {
            self.wire.aside(cancelled(self.claim.id()), &headers);
        }
    }
}
