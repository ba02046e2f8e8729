//! Completion of audit events and request metrics with the response.
//!
//! Invariants: an audit event ends when its response is complete, or, if the result is streamed,
//! with its last piece; a stream that its client drops is recorded as cancelled.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

use crate::audit::{AuditEvent, AuditOutcome, EventCompletion, TransportKind};
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
    let completion = audit_event.transport().map(|transport| {
        let (outcome, code) = outcome_of(audit_event, response.failure);
        let status = (transport == TransportKind::Http).then(|| response.status.as_u16());
        EventCompletion { outcome, code, status, bytes_out: None }
    });
    let end = match response.failure {
        None => RequestStatus::Success,
        Some(ErrorOrigin::Gateway(code)) => RequestStatus::Error(Some(code)),
        Some(ErrorOrigin::Upstream(code)) => RequestStatus::Error(code),
    };
    let text = match response.text {
        ResponseBody::Arriving(head, pieces) => {
            // The text around the pieces counts as well.
            let sent = head.len() as u64 + 1;
            let audit_event = completion.map(|completion| (audit_event.clone(), completion));
            let timing = timing.map(|timing| (timing, end));
            ResponseBody::Arriving(
                head,
                RecordedPieces { pieces, sent, audit_event, timing }.boxed(),
            )
        }
        text => {
            if let Some(completion) = completion {
                audit_event.end(EventCompletion { bytes_out: text.len(), ..completion });
            }
            if let Some(timing) = timing {
                timing.end(end);
            }
            text
        }
    };
    ClientResponse { text, ..response }
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
            let is_error =
                failed.contains(&code) || audit_event.is_sent() && code != own_code::TOO_BUSY;
            (
                if is_error && !audit_event.is_refused() {
                    AuditOutcome::Error
                } else {
                    AuditOutcome::Refused
                },
                Some(code),
            )
        }
    }
}

/// Streamed result with its audit event and metrics. Dropped before its end, it is recorded as
/// cancelled.
struct RecordedPieces {
    pieces: BoxStream<'static, Result<Bytes, PayloadBroken>>,
    sent: u64,
    /// Audit event that the last piece ends, and its completion.
    audit_event: Option<(AuditEvent, EventCompletion)>,
    timing: Option<(RequestTimer, RequestStatus)>,
}

impl RecordedPieces {
    /// Ends the audit event with the planned outcome, or with `otherwise`.
    fn end(&mut self, otherwise: Option<(AuditOutcome, RequestStatus)>) {
        if let Some((audit_event, completion)) = self.audit_event.take() {
            let outcome = otherwise.map_or(completion.outcome, |(outcome, _)| outcome);
            audit_event.end(EventCompletion { outcome, bytes_out: Some(self.sent), ..completion });
        }
        if let Some((timing, end)) = self.timing.take() {
            timing.end(otherwise.map_or(end, |(_, end)| end));
        }
    }
}

impl Stream for RecordedPieces {
    type Item = Result<Bytes, PayloadBroken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = std::task::ready!(self.pieces.as_mut().poll_next(cx));
        match &piece {
            Some(Ok(piece)) => self.sent += piece.len() as u64,
            Some(Err(_)) => self.end(Some((AuditOutcome::Error, RequestStatus::Error(None)))),
            None => self.end(None),
        }
        Poll::Ready(piece)
    }
}

impl Drop for RecordedPieces {
    fn drop(&mut self) {
        self.end(Some((AuditOutcome::Cancelled, RequestStatus::Cancelled)));
    }
}

/// Audit event of a stream that stays open: one entry when it opens, one on drop.
pub(crate) struct StreamRecord(AuditEvent);

impl StreamRecord {
    pub(crate) fn begin(audit_event: AuditEvent) -> Self {
        audit_event.record_stream_start();
        Self(audit_event)
    }
}

impl Drop for StreamRecord {
    fn drop(&mut self) {
        let status = (self.0.transport() != Some(TransportKind::Stdio)).then_some(200);
        self.0.end(EventCompletion {
            outcome: AuditOutcome::Ok,
            code: None,
            status,
            bytes_out: None,
        });
    }
}
