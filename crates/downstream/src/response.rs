//! Response to a client's request, as a dialect produces it and a transport writes it.
//!
//! A [`ClientResponse`] is a complete JSON-RPC message, or one whose payload is still arriving from
//! its upstream. Its HTTP status is ignored by the stdio transport.
//!
//! Invariants: an audit event ends when its response is complete, or, if the result is streamed,
//! with its last piece; a stream that its client drops is recorded as cancelled.

pub(crate) mod arriving;
pub(crate) mod call_stream;
pub(crate) mod cors;
pub(crate) mod results;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{self, BoxFuture};
use hyper::StatusCode;

use crate::response::arriving::ArrivingResult;
use crate::response::call_stream::CallMessages;
use crate::response::results::own_code;
use weir_access::policy::limits::Permit;
use weir_base::json::Object;
use weir_base::memory::memory_budget::{BufferLimit, SMALL_BYTES};
use weir_gateway::{RequestStatus, RequestTimer};
use weir_mcp::call::Payload;
use weir_mcp::jsonrpc::{self, Id, code};
use weir_record::audit::{
    AuditEvent, AuditOutcome, EventCompletion, RequestProgress, TransportKind,
};

/// JSON-RPC response.
pub(super) struct ClientResponse {
    pub(super) status: StatusCode,
    /// Delay after which the client may retry.
    pub(super) retry_after: Option<Duration>,
    /// Origin and code of the error, if it is one.
    pub(super) failure: Option<ErrorOrigin>,
    pub(super) text: ResponseBody,
}

/// Origin of an error response, with its JSON-RPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorOrigin {
    Gateway(i64),
    Upstream(Option<i64>),
}

impl ErrorOrigin {
    /// Returns the code; `None` if an upstream's code cannot be read.
    pub(super) fn code(self) -> Option<i64> {
        match self {
            Self::Gateway(code) => Some(code),
            Self::Upstream(code) => code,
        }
    }
}

/// Response as JSON text on one line.
pub(super) enum ResponseBody {
    /// Complete.
    Whole(Bytes),
    /// Complete, in parts: a large shared part is not copied.
    Parts([Bytes; 3]),
    /// With a result that is still arriving. Boxed, because few responses are.
    Arriving(Box<ArrivingResult>),
}

/// Text, with a value that lives until the text is dropped.
struct OwningText<T> {
    text: Bytes,
    _value: T,
}

impl<T> AsRef<[u8]> for OwningText<T> {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// Delivery of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseMode {
    /// On an HTTP response of its own: a large result is streamed.
    OwnStream,
    /// On a stream shared with other responses: the result is buffered, because streaming it would
    /// block the others.
    SharedStream,
    /// As the text of an HTTP response of its own: a large result is streamed, and no notifications
    /// or requests to the client are possible before it.
    OwnText,
    /// As one of several in a batch: buffered, and without notifications or requests to the client.
    Batched,
}

impl ResponseMode {
    /// True if notifications and requests to the client can be sent before the response.
    pub(super) fn has_messages(self) -> bool {
        matches!(self, Self::OwnStream | Self::SharedStream)
    }

    /// True if a large result is streamed.
    pub(super) fn is_streamed(self) -> bool {
        matches!(self, Self::OwnStream | Self::OwnText)
    }
}

/// Error of the gateway itself, in the form of one era.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ErrorResponse {
    pub(super) error: jsonrpc::Error,
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
}

/// Request in progress.
pub(super) struct ResponseFuture {
    /// Resolves to `None` if the client has cancelled the request: then nothing is sent.
    pub(super) response: BoxFuture<'static, Option<ClientResponse>>,
    /// Messages for the same stream before the response.
    pub(super) messages: CallMessages,
}

impl ClientResponse {
    /// Creates a response from a result.
    pub(super) fn result(id: &Id, result: &[u8]) -> Self {
        Self::good(ResponseBody::Whole(jsonrpc::write_result(id, result)))
    }

    fn good(text: ResponseBody) -> Self {
        Self { status: StatusCode::OK, retry_after: None, failure: None, text }
    }

    /// Creates a response from a result object.
    pub(super) fn object(id: &Id, result: &Object) -> Self {
        Self::good(ResponseBody::Whole(jsonrpc::write_object(id, result)))
    }

    /// Creates a response from a result object that mostly consists of one list. The list is shared
    /// with the cache and written as it is, on one line.
    pub(super) fn list(id: &Id, result: &Object) -> Self {
        let is_large = result.written_len() >= SMALL_BYTES;
        let parts =
            is_large.then(|| jsonrpc::write_object_around(id, result, SMALL_BYTES)).flatten();
        parts.map_or_else(
            || Self::object(id, result),
            |parts| Self::good(ResponseBody::Parts(parts)),
        )
    }

    /// Creates a response from an upstream's result, buffered or still arriving, without changes.
    pub(super) fn passed_through(id: &Id, body: Payload) -> Self {
        match body {
            Payload::Parsed(result) => Self::object(id, &result),
            Payload::Complete(result) => Self::result(id, &result),
            Payload::Streaming(pieces) => {
                Self::good(ResponseBody::Arriving(Box::new(ArrivingResult::new(id, pieces))))
            }
        }
    }

    /// Buffers the whole response; an error if the stream breaks or the buffer limit is reached.
    pub(super) async fn collect(self, id: &Id, buffer_limit: &BufferLimit) -> Self {
        let text = match self.text {
            ResponseBody::Whole(text) => text,
            ResponseBody::Parts(parts) => parts.concat().into(),
            ResponseBody::Arriving(arriving) => {
                match Payload::Streaming(Pin::from(arriving)).collect(buffer_limit).await {
                    Ok(text) => text,
                    Err(why) => return Self::refused(Some(id), &results::collect_error(&why)),
                }
            }
        };
        Self { text: ResponseBody::Whole(text), ..self }
    }

    /// Keeps the rate limiter's permit until the response is written.
    pub(super) fn with_permit(mut self, permit: Permit) -> Self {
        if !permit.holds_slots() {
            return self;
        }
        match &mut self.text {
            ResponseBody::Whole(text) | ResponseBody::Parts([_, _, text]) => {
                *text = keep_with_text(permit, std::mem::take(text));
            }
            ResponseBody::Arriving(arriving) => arriving.permit = Some(permit),
        }
        self
    }

    /// Creates a response from an upstream's error object.
    pub(super) fn error(id: Option<&Id>, status: StatusCode, error: &[u8]) -> Self {
        let object = Object::parse_within(Bytes::copy_from_slice(error), usize::MAX).ok();
        let code = object.as_ref().and_then(results::code_of);
        let text = ResponseBody::Whole(jsonrpc::write_error(id, error));
        Self { status, retry_after: None, failure: Some(ErrorOrigin::Upstream(code)), text }
    }

    /// Creates a response from an error of the gateway.
    pub(super) fn refused(id: Option<&Id>, refused: &ErrorResponse) -> Self {
        let text = ResponseBody::Whole(jsonrpc::write_error(id, &refused.error.to_bytes()));
        let failure = Some(ErrorOrigin::Gateway(refused.error.code));
        Self { status: refused.status, retry_after: refused.retry_after, failure, text }
    }
}

/// Keeps a value alive until the last copy of the text is dropped.
pub(super) fn keep_with_text<T: Send + 'static>(value: T, text: Bytes) -> Bytes {
    Bytes::from_owner(OwningText { text, _value: value })
}

impl ErrorResponse {
    /// Creates an error without data.
    pub(super) fn new(status: StatusCode, code: i64, message: impl Into<String>) -> Self {
        Self { error: jsonrpc::Error::new(code, message), status, retry_after: None }
    }
}

impl From<jsonrpc::InvalidMessage> for ClientResponse {
    fn from(invalid: jsonrpc::InvalidMessage) -> Self {
        let refused = ErrorResponse::new(StatusCode::BAD_REQUEST, invalid.code, invalid.reason);
        // The id of an invalid response belongs to Weir: it could equal the id of an open request
        // of the client.
        let id = invalid.id.as_ref().filter(|_| invalid.shape != jsonrpc::MessageShape::Response);
        Self::refused(id, &refused)
    }
}

impl ResponseBody {
    /// Length in bytes, if it is known.
    pub(super) fn len(&self) -> Option<u64> {
        match self {
            Self::Whole(text) => Some(text.len() as u64),
            Self::Parts(parts) => Some(parts.iter().map(|part| part.len() as u64).sum()),
            Self::Arriving(_) => None,
        }
    }

    /// Returns the whole text; `None` if it is still arriving.
    pub(super) fn into_whole(self) -> Option<Bytes> {
        match self {
            Self::Whole(text) => Some(text),
            Self::Parts(parts) => Some(parts.concat().into()),
            Self::Arriving(_) => None,
        }
    }
}

/// Ends the audit event with this response, and returns it.
pub(super) fn finish_event(audit_event: &AuditEvent, response: ClientResponse) -> ClientResponse {
    finish_request(audit_event, None, response)
}

/// Ends the audit event and the request metrics with this response, and returns it.
pub(super) fn finish_request(
    audit_event: &AuditEvent,
    timing: Option<RequestTimer>,
    mut response: ClientResponse,
) -> ClientResponse {
    let audit_event = audit_event.transport().map(|transport| {
        let (outcome, code) = outcome_of(audit_event, response.failure);
        let status = (transport == TransportKind::Http).then(|| response.status.as_u16());
        let completion = EventCompletion { code, status, ..EventCompletion::of(outcome) };
        (audit_event.clone(), completion)
    });
    let status = match response.failure {
        None => RequestStatus::Success,
        Some(origin) => RequestStatus::Error(origin.code()),
    };
    let end = RequestEnd { audit_event, timing: timing.map(|timing| (timing, status)) };
    match &mut response.text {
        ResponseBody::Arriving(arriving) => {
            arriving.end = Some(end);
        }
        text => end.record(text.len()),
    }
    response
}

/// Audit event and timer of a request, with the end that its response gives them.
struct RequestEnd {
    audit_event: Option<(AuditEvent, EventCompletion)>,
    timing: Option<(RequestTimer, RequestStatus)>,
}

impl RequestEnd {
    /// Records the end, after so many bytes of the response.
    fn record(self, bytes_out: Option<u64>) {
        if let Some((audit_event, completion)) = self.audit_event {
            audit_event.end(EventCompletion { bytes_out, ..completion });
        }
        if let Some((timing, status)) = self.timing {
            timing.end(status);
        }
    }

    /// Records another end than the response's.
    fn record_as(self, outcome: AuditOutcome, status: RequestStatus, bytes_out: u64) {
        let Self { audit_event, timing } = self;
        let audit_event =
            audit_event.map(|(event, planned)| (event, EventCompletion { outcome, ..planned }));
        let timing = timing.map(|(timing, _)| (timing, status));
        Self { audit_event, timing }.record(Some(bytes_out));
    }
}

/// Returns the audit outcome: an error if the upstream failed, a refusal if the gateway refused.
fn outcome_of(
    audit_event: &AuditEvent,
    failure: Option<ErrorOrigin>,
) -> (AuditOutcome, Option<i64>) {
    match failure {
        None => (AuditOutcome::Ok, None),
        Some(ErrorOrigin::Upstream(code)) => (AuditOutcome::Error, code),
        Some(ErrorOrigin::Gateway(code)) => {
            let failed = [own_code::UNAVAILABLE, own_code::TIMED_OUT, code::INTERNAL_ERROR];
            let is_error = match audit_event.progress() {
                RequestProgress::Received => failed.contains(&code),
                RequestProgress::Sent => code != own_code::TOO_BUSY,
                RequestProgress::Refused => false,
            };
            (if is_error { AuditOutcome::Error } else { AuditOutcome::Refused }, Some(code))
        }
    }
}

/// Runs a request; a panic becomes an internal error, without any details of it.
pub(super) async fn catch_panics(
    id: Option<&Id>,
    response: impl Future<Output = Option<ClientResponse>>,
) -> Option<ClientResponse> {
    // Unwinding drops everything the future owns, and no lock stays poisoned: all lock helpers
    // ignore poisoning.
    let survived = AssertUnwindSafe(response).catch_unwind().await;
    survived.unwrap_or_else(|_| {
        tracing::error!("request handler panicked: this is a bug in Weir");
        Some(ClientResponse::refused(id, &results::internal_error("internal error")))
    })
}

impl ResponseFuture {
    /// Creates a request that has its response already.
    pub(super) fn ready(response: ClientResponse) -> Self {
        Self { response: future::ready(Some(response)).boxed(), messages: CallMessages::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn f90_a_panic_ends_its_request_with_an_internal_error_and_nothing_else() {
        let budget = weir_base::memory::memory_budget::MemoryBudget::new(1 << 20);
        for _ in 0..10_000 {
            let mut held = budget.start_reservation();
            held.grow(100).expect("room");
            let response = async move {
                let _held = held;
                std::panic::resume_unwind(Box::new("injected"))
            };
            let response = catch_panics(Some(&Id::from(7)), response).await.expect("an answer");
            assert_eq!(response.failure, Some(ErrorOrigin::Gateway(-32603)));
            let ResponseBody::Whole(text) = response.text else { panic!("it is whole") };
            let text = String::from_utf8_lossy(&text).into_owned();
            assert!(text.contains(r#""id":7"#) && !text.contains("injected"), "{text}");
        }
        assert_eq!(budget.reserved_bytes(), 0);
    }
}
