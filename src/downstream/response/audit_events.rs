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
    record: &AuditEvent,
    timing: RequestTimer,
    response: ClientResponse,
) -> ClientResponse {
    end(record, Some(timing), response)
}

/// Ends the audit event with this response, and returns it.
pub(crate) fn finish_event(record: &AuditEvent, response: ClientResponse) -> ClientResponse {
    end(record, None, response)
}

fn end(
    record: &AuditEvent,
    timing: Option<RequestTimer>,
    response: ClientResponse,
) -> ClientResponse {
    let completion = record.transport().map(|transport| {
        let (outcome, code) = outcome_of(record, response.failure);
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
            let record = completion.map(|completion| (record.clone(), completion));
            let timing = timing.map(|timing| (timing, end));
            ResponseBody::Arriving(head, RecordedPieces { pieces, sent, record, timing }.boxed())
        }
        text => {
            if let Some(completion) = completion {
                record.end(EventCompletion { bytes_out: text.len(), ..completion });
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
fn outcome_of(record: &AuditEvent, failure: Option<ErrorOrigin>) -> (AuditOutcome, Option<i64>) {
    match failure {
        None => (AuditOutcome::Ok, None),
        Some(ErrorOrigin::Upstream(code)) => (AuditOutcome::Error, code),
        Some(ErrorOrigin::Gateway(code)) => {
            let failed = [own_code::UNAVAILABLE, own_code::TIMED_OUT, code::INTERNAL_ERROR];
            let is_error = failed.contains(&code) || record.is_sent() && code != own_code::TOO_BUSY;
            (
                if is_error && !record.is_refused() {
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
    record: Option<(AuditEvent, EventCompletion)>,
    timing: Option<(RequestTimer, RequestStatus)>,
}

impl RecordedPieces {
    /// Ends the audit event with the planned outcome, or with `otherwise`.
    fn end(&mut self, otherwise: Option<(AuditOutcome, RequestStatus)>) {
        if let Some((record, completion)) = self.record.take() {
            let outcome = otherwise.map_or(completion.outcome, |(outcome, _)| outcome);
            record.end(EventCompletion { outcome, bytes_out: Some(self.sent), ..completion });
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
    pub(crate) fn begin(record: AuditEvent) -> Self {
        record.record_stream_start();
        Self(record)
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
