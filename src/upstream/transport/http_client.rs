//! Carries messages to a server over HTTP, one a request: what both HTTP wires have in common.
//!
//! Promises: a message is written at most once. What is sent aside, with nobody waiting, takes a bounded
//! time; answers to the server's own requests beyond [`MAX_REPLIES`] at a time are dropped, so that a
//! server that asks without end costs itself its answers.
//!
//! Knows nothing of: what a response to a message means, protocol eras and sessions; the headers that
//! differ come with each message.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::Full;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::http::response::Parts as Head;
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Method, Request, Response, Uri};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::mcp::call::Outcome;
use crate::memory_budget::Budget;
use crate::upstream::message::{Failure, Sent};
use crate::upstream::transport::dispatcher::Ear;
use crate::upstream::transport::http_pool::{Arrival, NoResponse, Pool};
use crate::upstream::transport::sse_body::{Events, Media, Oversize, media_type};

/// How long a message that nobody waits for may take.
const ASIDE: Duration = Duration::from_secs(5);
/// How many answers to the server's own requests may be on their way.
const MAX_REPLIES: usize = 64;
/// How often a cancellation is sent at the most, where the connection breaks: to hear it twice does no server harm.
const ATTEMPTS: usize = 3;
/// How much of the body of a refusal is read, and how long that may take.
const REFUSAL_BYTES: usize = 64 * 1024;
const REFUSAL: Duration = Duration::from_secs(5);

/// The longest `Retry-After` that is passed on.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const USER_AGENT_TEXT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// The way to a server behind a URL. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Courier {
    shared: Arc<Shared>,
    /// Where requests go: always on the server that the pool connects to.
    url: Uri,
    /// What a request's head names of it. The form that servers expect: the path alone, and the authority as `Host`.
    path: Uri,
}

struct Shared {
    pool: Pool,
    /// On every request: as configured, and of our own.
    headers: HeaderMap,
    max_message: usize,
    /// What messages count against that are not small.
    budget: Budget,
    tasks: TaskTracker,
    replies: Arc<Semaphore>,
}

impl Courier {
    pub(crate) fn new(
        pool: Pool,
        url: Uri,
        configured: HeaderMap,
        max_message: usize,
        budget: Budget,
        tasks: TaskTracker,
    ) -> Self {
        let replies = Arc::new(Semaphore::new(MAX_REPLIES));
        let headers = usual(configured, &url);
        let path = path_of(&url);
        let shared = Shared { pool, headers, max_message, budget, tasks, replies };
        Self { shared: Arc::new(shared), url, path }
    }

    /// A courier to another place on the same server.
    pub(crate) fn towards(&self, path: PathAndQuery) -> Self {
        let mut parts = self.url.clone().into_parts();
        parts.path_and_query = Some(path);
        let url = Uri::from_parts(parts).expect("a URL with another path is a URL");
        Self { shared: Arc::clone(&self.shared), path: path_of(&url), url }
    }

    /// Where requests go.
    pub(crate) fn url(&self) -> &Uri {
        &self.url
    }

    /// The largest message that is taken, in bytes.
    pub(crate) fn max_message(&self) -> usize {
        self.shared.max_message
    }

    /// What messages count against that are not small.
    pub(crate) fn budget(&self) -> &Budget {
        &self.shared.budget
    }

    /// The events in a body.
    pub(crate) fn events(&self, body: Arrival, oversize: Oversize) -> Events {
        Events::new(body, self.shared.max_message, &self.shared.budget, oversize)
    }

    /// Where what goes on by itself is run.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.shared.tasks
    }

    /// Sends a message and waits for the head of its response.
    pub(crate) async fn post(
        &self,
        message: Bytes,
        headers: &HeaderMap,
        sent: &Sent,
    ) -> Result<Response<Arrival>, Failure> {
        self.send(self.request(Method::POST, message, headers), sent).await
    }

    /// Opens an event stream, or takes up one that was lost behind `last_id`.
    pub(crate) async fn listen(
        &self,
        headers: &HeaderMap,
        last_id: Option<&str>,
        oversize: Oversize,
    ) -> Result<Events, Failure> {
        let mut request = self.request(Method::GET, Bytes::new(), headers);
        let all = request.headers_mut();
        all.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            all.insert(LAST_EVENT_ID, id);
        }
        let (head, body) = self.send(request, &Sent::default()).await?.into_parts();
        if !head.status.is_success() {
            body.drain();
            return Err(refused(&head));
        }
        match media_type(&head.headers) {
            Media::Events => Ok(self.events(body, oversize)),
            _ => Err(Failure::Protocol("it answered with something else than events".into())),
        }
    }

    /// Sends a message to which no answer is expected.
    pub(crate) async fn notify(&self, message: Bytes, headers: &HeaderMap) -> Result<(), Failure> {
        let (head, body) = self.post(message, headers, &Sent::default()).await?.into_parts();
        body.drain();
        if head.status.is_success() {
            return Ok(());
        }
        Err(refused(&head))
    }

    /// Tells the server that its session is over, if it wants to know. Waits a moment for it.
    pub(crate) async fn delete(&self, headers: &HeaderMap) {
        let request = self.request(Method::DELETE, Bytes::new(), headers);
        let _ = tokio::time::timeout(ASIDE, self.send(request, &Sent::default())).await;
    }

    /// Sends the server what it is owed for its own requests.
    pub(crate) fn send_back(&self, replies: Vec<Bytes>, headers: &HeaderMap) {
        for reply in replies {
            match Arc::clone(&self.shared.replies).try_acquire_owned() {
                Ok(turn) => self.send_aside(reply, headers, 1, Some(turn)),
                Err(_) => tracing::debug!("the server asks faster than it takes answers"),
            }
        }
    }

    /// Tells the server that nobody waits for something any more, and waits for no answer.
    pub(crate) fn cancel(&self, message: Bytes, headers: &HeaderMap) {
        self.send_aside(message, headers, ATTEMPTS, None);
    }

    fn send_aside(
        &self,
        message: Bytes,
        headers: &HeaderMap,
        attempts: usize,
        turn: Option<OwnedSemaphorePermit>,
    ) {
        let courier = self.clone();
        let headers = headers.clone();
        self.finish(async move {
            let _turn = turn;
            for _ in 0..attempts {
                let Err(failure) = courier.notify(message.clone(), &headers).await else { return };
                tracing::debug!(?failure, "a message aside was lost");
                if !matches!(failure, Failure::Broke(_)) {
                    return;
                }
            }
        });
    }

    /// Lets something that nobody waits for come to its end, if it does so soon.
    pub(crate) fn finish(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.shared.tasks.spawn(async move {
            if tokio::time::timeout(ASIDE, work).await.is_err() {
                tracing::debug!("a message aside took too long");
            }
        });
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
        sent: &Sent,
    ) -> Result<Response<Arrival>, Failure> {
        self.shared.pool.send(request, sent).await.map_err(|none| match none {
            NoResponse::Unsent(reason) => Failure::Unsent(reason),
            NoResponse::Broke(reason) => Failure::Broke(reason),
            NoResponse::Flooded => Failure::Protocol(
                "it sent more than 128 KiB of informational responses before its response".into(),
            ),
        })
    }

    fn request(&self, method: Method, message: Bytes, headers: &HeaderMap) -> Request<Full<Bytes>> {
        let usual = &self.shared.headers;
        let mut all = HeaderMap::with_capacity(usual.len() + headers.len() + 1);
        // One of a name stands in the place of what is usual, and several of it stay several.
        let others = usual.iter().filter(|(name, _)| !headers.contains_key(*name));
        for (name, value) in others.chain(headers) {
            all.append(name, value.clone());
        }
        if method == Method::POST && !headers.contains_key(CONTENT_TYPE) {
            all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let mut request = Request::new(Full::new(message));
        *request.method_mut() = method;
        *request.uri_mut() = self.path.clone();
        *request.headers_mut() = all;
        request
    }
}

/// The headers of every request to a server.
fn usual(configured: HeaderMap, url: &Uri) -> HeaderMap {
    let mut headers = configured;
    let host = url.authority().map(|authority| {
        // Credentials in a URL are not for the Host header.
        authority.as_str().rsplit('@').next().unwrap_or_default()
    });
    if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok()) {
        headers.insert(HOST, host);
    }
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(USER_AGENT_TEXT));
    let accept = HeaderValue::from_static("application/json, text/event-stream");
    headers.insert(ACCEPT, accept);
    headers
}

fn path_of(url: &Uri) -> Uri {
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    path.parse().unwrap_or_else(|_| Uri::from_static("/"))
}

/// What the head of a refusal says.
fn refused(head: &Head) -> Failure {
    let seconds = head.headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
    Failure::Refused {
        status: head.status,
        error: None,
        names_it: false,
        // The other form, a date, needs clocks that agree.
        retry_after: seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER)),
    }
}

/// Reads a refusal: its head, and the JSON-RPC error about request `id` if it holds one.
pub(crate) async fn refusal(ear: &Ear, id: u64, head: &Head, mut body: Arrival) -> Failure {
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
    let heard = ear.hear(text.freeze(), Some(id)).unwrap_or_default();
    let names_it = heard.answers.iter().any(|(answered, _)| *answered == Some(id));
    let error = match heard.answer_to(id) {
        Some(Ok(Outcome::Error(error))) => Some(error),
        _ => None,
    };
    match refused(head) {
        Failure::Refused { status, retry_after, .. } => {
            Failure::Refused { status, error, names_it, retry_after }
        }
        other => other,
    }
}
