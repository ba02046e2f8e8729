//! Audit event of an HTTP request: begun with its head, and ended here if no later step has taken
//! it over.

use std::net::SocketAddr;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName};
use hyper::http::request::Parts;

use super::connection::replicas::RequestOrigin;
use super::response_body::{self, HttpResponse};
use super::routes::HttpRoute;
use super::{ClientConnection, head};
use crate::response::results;
use crate::response::{ClientResponse, ErrorOrigin};
use crate::{ServerState, host_check};
use weir_base::tasks::request_scope;
use weir_mcp::trace_context;
use weir_record::audit::{
    AuditEvent, AuditOutcome, AuditUnavailable, EventCompletion, TransportKind,
};

/// Begins the audit event of a request after its head was read.
pub(super) fn begin(
    state: &ServerState,
    connection: &ClientConnection,
    route: Option<HttpRoute>,
    parts: &Parts,
) -> AuditEvent {
    let transport = match route {
        Some(HttpRoute::SseStream | HttpRoute::SseMessages) => TransportKind::Sse,
        Some(HttpRoute::Endpoint | HttpRoute::Metadata) | None => TransportKind::Http,
    };
    let from = head::client_address(state, connection, &parts.headers);
    let audit_event = state.settings.audit.begin(transport, from);
    audit_event.set_http_method(parts.method.as_str());
    if let RequestOrigin::Replica(name, _) = &connection.origin {
        audit_event.set_via(name);
    }
    if let Some(trace) = host_check::single_value(&parts.headers, &TRACEPARENT) {
        audit_event.set_trace(trace);
        request_scope::record(|known| known.trace = trace_context::trace_id(trace));
    }
    audit_event
}

/// Records a connection that failed in its TLS handshake.
pub(super) fn refused_handshake(state: &ServerState, peer: SocketAddr) {
    let audit_event =
        state.settings.audit.begin(TransportKind::Http, Some(peer.ip().to_canonical()));
    audit_event.set_refused_by("tls");
    audit_event.end(EventCompletion::of(AuditOutcome::Refused));
}

/// Ends the audit event with the response or, if it is an event stream, with the stream.
pub(super) async fn end(audit_event: AuditEvent, response: &mut HttpResponse) {
    if !audit_event.is_unclaimed() {
        return;
    }
    let is_stream =
        response.headers().get(CONTENT_TYPE).is_some_and(|it| it == "text/event-stream");
    if is_stream && response.status() == StatusCode::OK {
        match audit_event.reserve().await {
            Ok(()) => return response.body_mut().record_stream(audit_event.begin_stream()),
            Err(AuditUnavailable) => {
                *response =
                    response_body::json(ClientResponse::refused(None, &results::unrecorded()));
            }
        }
    }
    let status = response.status();
    // A notification, a response, or a message that is answered on another stream.
    if status == StatusCode::ACCEPTED {
        return audit_event.discard();
    }
    let code = response.extensions().get::<ErrorOrigin>().and_then(|origin| origin.code());
    let is_good = status.is_success() && code.is_none();
    let outcome = if is_good { AuditOutcome::Ok } else { AuditOutcome::Refused };
    let bytes_out = response.body().len();
    audit_event.end(EventCompletion { outcome, code, status: Some(status.as_u16()), bytes_out });
}

/// Header with the trace id (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static(trace_context::TRACEPARENT);
