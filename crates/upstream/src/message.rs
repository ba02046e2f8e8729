//! Messages between sessions and transports: an outbound request, and its failure.
//!
//! A session decides the content of a request, its headers, and the effect of dropping it. A
//! transport assigns the id, sends the request, and routes the response. A transport does not know
//! the meaning of a request: a cancellation is sent and a stream is resumed where
//! `OutboundRequest::cancel` or `resume` says so. Of the eras it knows only which deviations of a
//! server it bears.

pub(crate) mod message_trace;
pub(crate) mod request_params;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::mpsc;

use super::Error;
use super::input_requests::InputRequests;
use super::task_owners::TaskClaim;
use crate::message::request_params::RequestParams;
use weir_base::json::{self, Object, WatchedMember};
use weir_base::memory::memory_budget::BufferError;
use weir_base::text::quote::quote;
use weir_mcp::call::CancelReason;
use weir_mcp::call_notifications::NotificationSink;
use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::meta;

/// Request that a session has built.
#[derive(Debug)]
pub(crate) struct OutboundRequest {
    pub(crate) method: &'static str,
    pub(crate) params: RequestParams,
    /// HTTP headers; unused by other transports.
    pub(crate) headers: RequestHeaders,
    pub(crate) context: PendingContext,
    pub(crate) cancel: CancelMode,
    /// Reason of the client for dropping it.
    pub(crate) cancel_reason: CancelReason,
    /// Whether a lost event stream is resumed.
    pub(crate) resume: bool,
    /// Whether a large result may be streamed to the client while it arrives.
    pub(crate) stream: bool,
    /// Members of a result that prevent streaming: a result with one of them is read whole.
    pub(crate) buffer_if_member: &'static [WatchedMember],
    /// Set once the request is being written.
    pub(crate) sent: SentFlag,
}

/// Context of a request in flight: receivers of the server's messages about it.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingContext {
    /// Sink of progress and log notifications; `None` if no client receives them.
    pub(crate) notifications: Option<NotificationSink>,
    /// Receiver of the server's input requests; `None` rejects them.
    pub(crate) input_requests: Option<InputRequests>,
    /// Whether the request stays open as a notification stream; the server may end it by
    /// cancelling.
    pub(crate) listen: bool,
    /// Channel to which the names are sent that the server accepts for a subscription.
    pub(crate) accepted_tx: Option<mpsc::Sender<AcceptedSubscriptions>>,
    /// Owner of the tasks that the response names, if the server sends status notifications without
    /// a subscription.
    pub(crate) task_claim: Option<TaskClaim>,
    /// Whether the result has no required members, so that a server in PHP may write it as `[]`.
    pub(crate) may_be_empty: bool,
}

/// Resources or tasks whose subscription the server accepted.
pub(crate) type AcceptedSubscriptions = Vec<Box<str>>;

/// Effect of dropping an open request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CancelMode {
    /// None: the request must not be cancelled.
    #[default]
    Never,
    /// `notifications/cancelled` is sent.
    Notify,
    /// The response stream is closed, which cancels the request.
    CloseStream,
}

impl OutboundRequest {
    /// Creates a request without notifications, which must not be cancelled.
    pub(crate) fn new(
        method: &'static str,
        params: RequestParams,
        headers: RequestHeaders,
    ) -> Self {
        Self {
            method,
            params,
            headers,
            context: PendingContext::default(),
            cancel: CancelMode::default(),
            cancel_reason: CancelReason::default(),
            resume: false,
            stream: false,
            buffer_if_member: &[],
            sent: SentFlag::default(),
        }
    }

    /// Encodes the request under this id, once. If progress is wanted, the id is also the progress
    /// token: it is unique among the requests of the connection, as the specification requires of a
    /// token.
    pub(crate) fn write(&mut self, id: u64, wants_progress: bool) -> Bytes {
        let id = Id::from(id);
        if wants_progress {
            self.params.add_meta(meta::PROGRESS_TOKEN, id.as_bytes());
        }
        jsonrpc::write_request(&id, self.method, &self.params.take_text())
    }
}

// === RequestHeaders ===

/// HTTP headers of a request: those that all requests of a session have in common, and its own.
/// Empty for transports without headers. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestHeaders {
    common: Arc<HeaderMap>,
    /// They replace the common ones of their names. Several of one name follow each other.
    own: Vec<(HeaderName, HeaderValue)>,
}

impl RequestHeaders {
    /// Creates the headers that requests have in common.
    pub(crate) fn new(headers: HeaderMap) -> Self {
        // Copies of the map have this capacity, too.
        let mut common = HeaderMap::with_capacity(headers.len() + USUAL_OWN_HEADERS);
        common.extend(headers);
        Self { common: Arc::new(common), own: Vec::new() }
    }

    /// Sets one of the request's own headers.
    pub(crate) fn set(&mut self, name: HeaderName, value: HeaderValue) {
        self.remove(&name);
        self.own.push((name, value));
    }

    /// Removes one of the request's own headers.
    pub(crate) fn remove(&mut self, name: &HeaderName) {
        self.own.retain(|(other, _)| other != name);
    }

    /// Adds headers of which the request has none.
    pub(crate) fn add_all(&mut self, headers: &HeaderMap) {
        self.own.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    }

    /// Returns all headers as they are sent.
    pub(crate) fn to_map(&self) -> HeaderMap {
        let mut all = HeaderMap::clone(&self.common);
        let mut previous = None;
        for (name, value) in &self.own {
            if previous.replace(name) == Some(name) {
                all.append(name, value.clone());
            } else {
                all.insert(name, value.clone());
            }
        }
        all
    }
}

// === SentFlag ===

/// Whether a request has begun to be written: the server cannot have executed one that was never
/// written, and needs no cancellation for it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentFlag {
    is_sent: Arc<AtomicBool>,
    /// Call that the request belongs to.
    call: Option<SentCount>,
}

/// Number of requests of one call that have begun to be written. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentCount(Arc<AtomicUsize>);

impl SentCount {
    /// Creates the flag of a further request of the call.
    pub(crate) fn for_next_request(&self) -> SentFlag {
        SentFlag { is_sent: Arc::default(), call: Some(self.clone()) }
    }

    /// Whether any request of the call has begun to be written.
    pub(crate) fn is_any_sent(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl SentFlag {
    /// Marks the request as visible to the server.
    pub(crate) fn mark_sent(&self) {
        let was_sent = self.is_sent.swap(true, Ordering::Relaxed);
        if let Some(SentCount(count)) = self.call.as_ref().filter(|_| !was_sent) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reverts the mark: the server did not receive the request, or rejected it unexecuted.
    pub(crate) fn mark_unsent(&self) {
        let was_sent = self.is_sent.swap(false, Ordering::Relaxed);
        if let Some(SentCount(count)) = self.call.as_ref().filter(|_| was_sent) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether this request has begun to be written.
    pub(crate) fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Relaxed)
    }
}

/// Encodes `notifications/cancelled` for request `id`, with the client's reason if there is one.
pub(crate) fn cancel_notification(id: u64, reason: &CancelReason) -> Bytes {
    let reason = reason.get().unwrap_or("the response is no longer needed");
    let params =
        Object::new().with("requestId", id.to_string()).with("reason", json::quote(reason));
    jsonrpc::write_notification("notifications/cancelled", &params.to_bytes())
}

/// Reason why a request has no response.
#[derive(Debug)]
pub(crate) enum TransportError {
    /// The request was never written: the server cannot be reached.
    NotSent(String),
    /// The session or revision of the connection is no longer valid. The request was rejected
    /// unexecuted and may be sent once more over a new connection.
    SessionLost(String),
    /// The request was never written, because another user has signed in since the connection was
    /// opened. It may be sent over a new connection, unless a part of the call was sent before.
    SignInReplaced,
    /// The response has an HTTP error status, or a JSON-RPC error that names no request.
    Http(Box<HttpFailure>),
    /// The connection was lost before the response.
    ConnectionLost(String),
    /// The response is not a valid JSON-RPC response.
    Protocol(String),
    /// Any other error, with which the call ends.
    Other(Error),
}

/// Response that refuses a request by its HTTP status, or by a JSON-RPC error without an id.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpFailure {
    pub(crate) status: StatusCode,
    /// JSON-RPC error object of the body, if there is one.
    pub(crate) error: Option<Bytes>,
    /// Whether that error carries the request's id: then it comes from a server that read the
    /// request and may have executed it.
    pub(crate) names_request: bool,
    /// Time that the server itself names.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the server asks for an access token (RFC 6750, 3).
    pub(crate) has_challenge: bool,
    /// For the operator: the place to which the server redirects, or the text of its body.
    pub(crate) said: Option<Box<str>>,
}

impl HttpFailure {
    /// Returns the status for the operator, with what else the server has said.
    pub(crate) fn describe(&self) -> String {
        match &self.said {
            Some(said) => format!("HTTP {} ({said})", self.status),
            None => format!("HTTP {}", self.status),
        }
    }
}

impl TransportError {
    /// Returns the error of a call of which a part was sent before: it is not begun anew in a
    /// session of another sign-in.
    pub(crate) fn of_sent_call(self) -> Self {
        match self {
            Self::SignInReplaced => Self::Other(Error::Unavailable(SIGN_IN_REPLACED.into())),
            error => error,
        }
    }

    /// HTTP status of the response, if there is one.
    pub(crate) fn http_status(&self) -> Option<StatusCode> {
        match self {
            Self::Http(failure) => Some(failure.status),
            _ => None,
        }
    }

    /// Returns the error as text, as the reason of a failed connection attempt.
    pub(crate) fn into_reason(self) -> String {
        match Error::from(self) {
            Error::Unavailable(reason)
            | Error::SignInNeeded(reason)
            | Error::ConnectionLost(reason)
            | Error::Protocol(reason) => reason,
            other => other.to_string(),
        }
    }
}

impl From<BufferError> for TransportError {
    fn from(buffer_error: BufferError) -> Self {
        Self::Other(match buffer_error {
            BufferError::TooLarge(limit) => Error::TooLarge(limit),
            BufferError::BudgetExhausted => Error::MemoryExhausted,
        })
    }
}

impl From<TransportError> for Error {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::NotSent(reason) | TransportError::SessionLost(reason) => {
                Self::Unavailable(reason)
            }
            TransportError::SignInReplaced => Self::Unavailable(SIGN_IN_REPLACED.into()),
            TransportError::ConnectionLost(reason) => Self::ConnectionLost(reason),
            TransportError::Protocol(reason) => Self::Protocol(reason),
            TransportError::Other(error) => error,
            TransportError::Http(failure) => match failure.status.as_u16() {
                401 | 403 | 429 | 500.. => {
                    let HttpFailure { status, retry_after, .. } = *failure;
                    Self::HttpStatus { status, retry_after }
                }
                _ => Self::Protocol(format!("the server responded with HTTP {}", failure.status)),
            },
        }
    }
}

/// Reason why a request is not sent, or not once more, in a session of a former sign-in.
pub(crate) const SIGN_IN_REPLACED: &str = "another user has signed in to it";

/// Code of a JSON-RPC error object.
pub(crate) fn error_code(error: &Bytes) -> Option<i64> {
    let error = Object::parse(error.clone()).ok()?;
    error.get("code")?.parse().ok()
}

/// Message of a JSON-RPC error object, bounded and without control characters.
pub(crate) fn error_text(error: &Bytes) -> String {
    let object = Object::parse(error.clone()).unwrap_or_default();
    match object.get_string("message") {
        Some(message) => quote(&message, 200),
        None => "an error without a message".into(),
    }
}

/// Capacity for the headers of a single request: method, name and length.
const USUAL_OWN_HEADERS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_headers_replace_common_ones_and_several_of_a_name_are_all_sent() {
        const A: HeaderName = HeaderName::from_static("a");
        const B: HeaderName = HeaderName::from_static("b");
        let map = |pairs: &[(HeaderName, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(name, HeaderValue::from_static(value));
            }
            map
        };
        let mut headers = RequestHeaders::new(map(&[(A, "1"), (A, "2"), (B, "3")]));
        assert_eq!(headers.to_map(), map(&[(A, "1"), (A, "2"), (B, "3")]));
        headers.add_all(&map(&[(A, "4"), (A, "5")]));
        assert_eq!(headers.to_map(), map(&[(A, "4"), (A, "5"), (B, "3")]));
        headers.set(A, HeaderValue::from_static("6"));
        assert_eq!(headers.to_map(), map(&[(A, "6"), (B, "3")]));
        headers.remove(&A);
        assert_eq!(headers.to_map(), map(&[(A, "1"), (A, "2"), (B, "3")]));
    }
}
