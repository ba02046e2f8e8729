//! Completion of audit events and request metrics with the response.
//!
//! Invariants: an audit event ends when its response is complete, or, if the result is streamed,
//! with its last piece; a stream that its client drops is recorded as cancelled.

use crate::response::results::own_code;
use crate::response::{ClientResponse, ErrorOrigin, ResponseBody};
use weir_gateway::{RequestStatus, RequestTimer};
use weir_mcp::jsonrpc::code;
use weir_record::audit::{
    AuditEvent, AuditOutcome, EventCompletion, RequestProgress, TransportKind,
};

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
        ResponseBody::Arriving(arriving) => {
            arriving.end = Some(end);
        }
        text => end.record(text.len()),
    }
    response
}

/// Audit event and timer of a request, with the end that its response gives them.
pub(super) struct RequestEnd {
    audit_event: Option<(AuditEvent, EventCompletion)>,
    timing: Option<(RequestTimer, RequestStatus)>,
}

impl RequestEnd {
    /// Records the end, after so many bytes of the response.
    pub(super) fn record(self, bytes_out: Option<u64>) {
        if let Some((audit_event, completion)) = self.audit_event {
            audit_event.end(EventCompletion { bytes_out, ..completion });
        }
        if let Some((timing, status)) = self.timing {
            timing.end(status);
        }
    }

    /// Records another end than the response's.
    pub(super) fn record_as(self, outcome: AuditOutcome, status: RequestStatus, bytes_out: u64) {
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
