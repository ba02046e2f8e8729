//! Completion of audit events and request metrics with the response.
//!
//! Invariants: an audit event ends when its response is complete, or, if the result is streamed,
//! with its last piece; a stream that its client drops is recorded as cancelled.

use crate::audit::{AuditEvent, AuditOutcome, EventCompletion, RequestProgress, TransportKind};
use crate::downstream::response::results::own_code;
use crate::downstream::response::{ClientResponse, ErrorOrigin, ResponseBody};
use crate::gateway::{RequestStatus, RequestTimer};
use crate::jsonrpc::code;

/// Ends the audit event with this response, and returns it.
pub(crate) fn finish_event(audit_event: &AuditEvent, response: ClientResponse) -> ClientResponse {
    finish_request(audit_event, None, response)
}

/// Ends the audit event and the request metrics with this response, and returns it.
pub(crate) fn finish_request(
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
        // The text around the result counts as well.
        ResponseBody::Arriving(arriving) => {
            let sent = arriving.envelope_len() as u64;
            arriving.completion = Some(StreamedCompletion { sent, end: Some(end) });
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

/// Completion of a streamed result. Dropped before the result's end, it records a cancellation.
pub(super) struct StreamedCompletion {
    sent: u64,
    /// End of the request, until it is recorded.
    end: Option<RequestEnd>,
}

impl StreamedCompletion {
    /// Counts a piece.
    pub(super) fn add_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// Records the planned end after the last piece.
    pub(super) fn finish(mut self) {
        if let Some(end) = self.end.take() {
            end.record(Some(self.sent));
        }
    }

    /// Records that the upstream broke off the result.
    pub(super) fn fail(mut self) {
        self.end_otherwise(AuditOutcome::Error, RequestStatus::Error(None));
    }

    /// Records another end than the planned one, if none has been recorded.
    fn end_otherwise(&mut self, outcome: AuditOutcome, status: RequestStatus) {
        let Some(RequestEnd { audit_event, timing }) = self.end.take() else { return };
        let audit_event =
            audit_event.map(|(event, planned)| (event, EventCompletion { outcome, ..planned }));
        let timing = timing.map(|(timing, _)| (timing, status));
        RequestEnd { audit_event, timing }.record(Some(self.sent));
    }
}

impl Drop for StreamedCompletion {
    fn drop(&mut self) {
        self.end_otherwise(AuditOutcome::Cancelled, RequestStatus::Cancelled);
    }
}
