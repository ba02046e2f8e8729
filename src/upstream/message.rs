//! What a wire carries: a dressed request out, an answer or a failure back.
//!
//! A dialect says what a request holds, what its headers are and what dropping it means; a wire mints
//! the id, carries it, and routes what comes back. Neither asks about the other.
//!
//! Knows nothing of: protocol eras, and what the messages mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use tokio::sync::mpsc;

use super::Error;
use super::input_requests::Questions;
use super::task_owners::TaskClaim;
use crate::json::Object;
use crate::jsonrpc;
use crate::mcp::call::Outcome;
use crate::mcp::call_notifications::Notes;
use crate::mcp::input_request::Abilities;
use crate::mcp::meta;
use crate::memory_budget::Unheld;
use crate::upstream::health::breaker::Strike;
use crate::upstream::transport::{http_sse, stdio, streamable_http};

/// A request, dressed by a dialect.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) method: &'static str,
    pub(crate) params: Object,
    /// What an HTTP request repeats outside its body; other wires have no use for it.
    pub(crate) headers: HeaderMap,
    /// Where progress and log messages go; `None` where nobody hears any.
    pub(crate) notes: Option<Notes>,
    /// Where the server's questions go; `None` refuses them.
    pub(crate) questions: Option<Questions>,
    pub(crate) cancel: Cancel,
    /// Whether an event stream that was lost is taken up again where it ended.
    pub(crate) resume: bool,
    /// Whether a large result may be handed on while it arrives.
    pub(crate) stream: bool,
    /// A member of a result that keeps it from being handed on: it has to be read.
    pub(crate) unless: Option<&'static str>,
    /// Whether this request stays open to hear of changes; the other side may end it by cancelling.
    pub(crate) listen: bool,
    /// Where the resources go that the other side agrees to tell of.
    pub(crate) acknowledged: Option<mpsc::Sender<Honored>>,
    /// Whose tasks its answer may name, where the server tells of them by itself.
    pub(crate) tasks: Option<TaskClaim>,
    /// Told once it is on its way.
    pub(crate) sent: Sent,
}

/// The resources or tasks of which the other side agrees to tell.
pub(crate) type Honored = Vec<Box<str>>;

/// What dropping an open request means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancel {
    /// Nothing: it may not be cancelled.
    Never,
    /// `notifications/cancelled` goes out.
    Notify,
    /// Its response stream closes, which says it all.
    HangUp,
}

impl Outgoing {
    /// A request that nobody hears notes of, and that may not be cancelled.
    pub(crate) fn new(method: &'static str, params: Object, headers: HeaderMap) -> Self {
        Self {
            method,
            params,
            headers,
            notes: None,
            questions: None,
            cancel: Cancel::Never,
            resume: false,
            stream: false,
            unless: None,
            listen: false,
            acknowledged: None,
            tasks: None,
            sent: Sent::default(),
        }
    }

    /// The message under the id that was minted for it. The id is the progress token, too: unique
    /// among all requests of the connection, which is what the specification asks of a token.
    pub(crate) fn write(&mut self, id: u64) -> Bytes {
        if self.notes.as_ref().is_some_and(Notes::wanted) {
            let mut meta = self.params.get_object("_meta").unwrap_or_default();
            meta.set(meta::PROGRESS_TOKEN, id.to_string());
            self.params.set("_meta", meta.to_bytes());
        }
        jsonrpc::write_request(&id.into(), self.method, &self.params.to_bytes())
    }
}

// === Sent ===

/// Whether a request has begun to be written, and whether any of its call's has: what never was, nobody has
/// executed and nobody has to be told to stop. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent {
    request: Arc<AtomicBool>,
    of_call: Arc<AtomicUsize>,
}

impl Sent {
    /// For a further request of the same call.
    pub(crate) fn next(&self) -> Self {
        Self { request: Arc::default(), of_call: Arc::clone(&self.of_call) }
    }

    /// From now on the other side may see it.
    pub(crate) fn begin(&self) {
        if !self.request.swap(true, Ordering::Relaxed) {
            self.of_call.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The other side has seen nothing of it, after all, or has refused it unexecuted.
    pub(crate) fn take_back(&self) {
        if self.request.swap(false, Ordering::Relaxed) {
            self.of_call.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether this request has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.request.load(Ordering::Relaxed)
    }

    /// Whether any request of its call has.
    pub(crate) fn has_any(&self) -> bool {
        self.of_call.load(Ordering::Relaxed) > 0
    }
}

/// `notifications/cancelled` for request `id`.
pub(crate) fn cancelled(id: u64) -> Bytes {
    let params =
        format!("{{\"requestId\":{id},\"reason\":\"nobody waits for the answer any more\"}}");
    jsonrpc::write_notification("notifications/cancelled", params.as_bytes())
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    /// The headers that came with it; empty where there are none.
    pub(crate) headers: HeaderMap,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request was never written: there is no way to the server.
    Unsent(String),
    /// What the connection was opened with holds no longer (a session, a revision). The request was
    /// refused unexecuted; it may go once more over a new connection.
    Stale(String),
    /// An HTTP status that is no success, with the error object that came along, if one did, and
    /// whether that names the request: then it comes from whoever read and perhaps executed it. And when it may be
    /// tried again, if the server says so.
    Refused {
        status: StatusCode,
        error: Option<Bytes>,
        names_it: bool,
        retry_after: Option<Duration>,
    },
    /// The request was never written: the server does not read, and too many wait for that already.
    Deaf,
    /// The connection ended before the answer was there.
    Broke(String),
    /// There was no answer within this time.
    TimedOut(Duration),
    /// The answer was larger than this.
    TooLarge(usize),
    /// There was no room to hold the answer.
    NoRoom,
    /// It takes something of the client that this did not declare.
    Undeclared(Abilities),
    /// Too much that it asks waits for clients' answers already.
    Crowded,
    /// It names a task that did not begin on this connection. Nothing was sent.
    NoSuchTask,
    /// What came back is no answer.
    Protocol(String),
}

impl Failure {
    /// The failure in words, for the reason of a connection that could not be opened.
    pub(crate) fn into_reason(self) -> String {
        match Error::from(self) {
            Error::Unavailable(reason) | Error::Broke(reason) | Error::Protocol(reason) => reason,
            other => other.to_string(),
        }
    }
}

impl Failure {
    /// Why this counts against the server, if it does. The end of a child, or of a stream that all requests share,
    /// is not the failure of each of them: its supervisor sees to that.
    pub(crate) fn strike(&self, wire: &str) -> Option<Strike> {
        let reason = match self {
            Self::Refused { status, .. } if matches!(status.as_u16(), 429 | 500..) => {
                format!("it answered with HTTP {status}")
            }
            Self::Broke(reason) if wire == "http" => reason.clone(),
            Self::TimedOut(time) => Error::TimedOut(*time).to_string(),
            _ => return None,
        };
        Some(Strike { reason })
    }
}

impl From<Unheld> for Failure {
    fn from(unheld: Unheld) -> Self {
        match unheld {
            Unheld::TooLarge(limit) => Self::TooLarge(limit),
            Unheld::NoRoom => Self::NoRoom,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unsent(reason) | Failure::Stale(reason) => Self::Unavailable(reason),
            Failure::Deaf => Self::Unavailable("it does not read what it is sent".into()),
            Failure::Broke(reason) => Self::Broke(reason),
            Failure::TimedOut(time) => Self::TimedOut(time),
            Failure::TooLarge(limit) => Self::TooLarge(limit),
            Failure::NoRoom => Self::NoRoom,
            Failure::Undeclared(abilities) => Self::Undeclared(abilities),
            Failure::Crowded => Self::Crowded,
            Failure::NoSuchTask => Self::NoSuchTask,
            Failure::Protocol(reason) => Self::Protocol(reason),
            Failure::Refused { status, retry_after, .. } => match status.as_u16() {
                401 | 403 | 429 | 500.. => Self::HttpStatus { status, retry_after },
                _ => Self::Protocol(format!("it answered with HTTP {status}")),
            },
        }
    }
}

// === Wire ===

/// A connection to a server, in one of three framings. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Wire {
    Stdio(stdio::Wire),
    Http(streamable_http::Wire),
    Sse(http_sse::Wire),
}

impl Wire {
    /// What the wire is called.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Stdio(_) => "stdio",
            Self::Http(_) => "http",
            Self::Sse(_) => "http+sse",
        }
    }

    /// Whether what a server says in the middle of a call tells which call it is about.
    pub(crate) fn tells_whose(&self) -> bool {
        match self {
            Self::Http(_) => true,
            // One stream for all that it says.
            Self::Stdio(_) | Self::Sse(_) => false,
        }
    }

    /// Sends a request and waits for its answer. Dropping the future does what `cancel` says.
    pub(crate) async fn exchange(&self, request: Outgoing) -> Result<Answer, Failure> {
        match self {
            Self::Stdio(wire) => wire.exchange(request).await,
            Self::Http(wire) => wire.exchange(request).await,
            Self::Sse(wire) => wire.exchange(request).await,
        }
    }

    /// Sends a notification.
    pub(crate) async fn notify(&self, message: Bytes, headers: &HeaderMap) -> Result<(), Failure> {
        match self {
            Self::Stdio(wire) => wire.notify(message).await,
            Self::Http(wire) => wire.notify(message, headers).await,
            Self::Sse(wire) => wire.notify(message, headers).await,
        }
    }

    /// Sends what the server is owed for its own requests; nobody waits for it, and beyond a bound it is
    /// dropped.
    pub(crate) fn send_back(&self, replies: Vec<Bytes>, headers: &HeaderMap) {
        match self {
            Self::Stdio(wire) => wire.send_back(replies),
            Self::Http(wire) => wire.send_back(replies, headers),
            Self::Sse(wire) => wire.send_back(replies, headers),
        }
    }

    /// Waits until the connection has ended by itself and tells why. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        match self {
            Self::Stdio(wire) => wire.ended().await,
            // Each request finds out for itself.
            Self::Http(_) => std::future::pending().await,
            Self::Sse(wire) => wire.ended().await,
        }
    }

    /// Ends the connection and whatever keeps it; returns when that is done.
    pub(crate) async fn close(&self) {
        match self {
            Self::Stdio(wire) => wire.close().await,
            // Its requests end with those who wait for them.
            Self::Http(_) => {}
            Self::Sse(wire) => wire.close().await,
        }
    }
}
