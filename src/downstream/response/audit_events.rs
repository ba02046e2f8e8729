//! Completion of audit events and request metrics with the response.
//!
//! Invariants: an audit event ends when its response is complete, or, if the result is streamed,
//! with its last piece; a stream that its client drops is recorded as cancelled.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

use crate::audit::{AuditEvent, AuditOutcome, EventCompletion, RequestProgress, TransportKind};
use crate::downstream::response::results::own_code;
use crate::downstream::response::{ClientResponse, ErrorOrigin, ResponseBody};
use crate::gateway::{RequestStatus, RequestTimer};
use crate::jsonrpc::code;
use crate::mcp::call::PayloadBroken;

/// Ends the audit event and the request metrics with this response, and returns it.
pub(crate) fn finish_request(
    audit_event: &AuditEvent,
    timing: RequestTimer,
    response: ClientResponse,
) -> ClientResponse {
    end(audit_event, Some(timing), response)
}

/// Ends the audit event with this response, and returns it.
pub(crate) fn finish_event(audit_event: &AuditEvent, response: ClientResponse) -> ClientResponse {
    end(audit_event, None, response)
}

fn end(
    audit_event: &AuditEvent,
    timing: Option<RequestTimer>,
    response: ClientResponse,
) -> ClientResponse {
    let audit_event = audit_event.transport().map(|transport| {
        let (outcome, code) = outcome_of(audit_event, response.failure);
        let status = (transport == TransportKind::Http).then(|| response.status.as_u16());
        let completion = EventCompletion { code, status, ..EventCompletion::of(outcome) };
        (audit_event.clone(), completion)
    });
    let status = match response.failure {
        None => RequestStatus::Success,
        Some(ErrorOrigin::Gateway(code)) => RequestStatus::Error(Some(code)),
        Some(ErrorOrigin::Upstream(code)) => RequestStatus::Error(code),
    };
    let end = RequestEnd { audit_event, timing: timing.map(|timing| (timing, status)) };
    let text = match response.text {
        ResponseBody::Arriving(head, pieces) => {
            // The text around the pieces counts as well.
            let sent = head.len() as u64 + 1;
            let pieces = RecordedPieces { pieces, sent, end: Some(end) };
            ResponseBody::Arriving(head, pieces.boxed())
        }
        text => {
            end.record(text.len());
            text
        }
    };
    ClientResponse { text, ..response }
}

/// Audit event and timer of a request, with the end that its response gives them.
struct RequestEnd {
    audit_event: Option<(AuditEvent, EventCompletion)>,
    timing: Option<(RequestTimer, RequestStatus)>,
}

impl RequestEnd {
    fn record(self, bytes_out: Option<u64>) {
        if let Some((audit_event, completion)) = self.audit_event {
            audit_event.end(EventCompletion { bytes_out, ..completion });
        }
        if let Some((timing, status)) = self.timing {
            timing.end(status);
        }
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

/// Streamed result with its audit event and metrics. Dropped before its end, it is recorded as
/// cancelled.
struct RecordedPieces {
    pieces: BoxStream<'static, Result<Bytes, PayloadBroken>>,
    sent: u64,
    /// End of the request, until it is recorded.
    end: Option<RequestEnd>,
}

impl RecordedPieces {
    /// Records the planned end of the request.
    fn finish(&mut self) {
        if let Some(end) = self.end.take() {
            end.record(Some(self.sent));
        }
    }

    /// Records another end than the planned one.
    fn fail(&mut self, outcome: AuditOutcome, failed: RequestStatus) {
        if let Some(RequestEnd { audit_event, timing }) = &mut self.end {
            audit_event.iter_mut().for_each(|(_, completion)| completion.outcome = outcome);
            timing.iter_mut().for_each(|(_, status)| *status = failed);
        }
        self.finish();
    }
}

impl Stream for RecordedPieces {
    type Item = Result<Bytes, PayloadBroken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = std::task::ready!(self.pieces.as_mut().poll_next(cx));
        match &piece {
            Some(Ok(piece)) => self.sent += piece.len() as u64,
            Some(Err(_)) => self.fail(AuditOutcome::Error, RequestStatus::Error(None)),
            None => self.finish(),
        }
        Poll::Ready(piece)
    }
}

impl Drop for RecordedPieces {
    fn drop(&mut self) {
        self.fail(AuditOutcome::Cancelled, RequestStatus::Cancelled);
    }
}
