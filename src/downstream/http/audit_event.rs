//! The record of an HTTP request: begun with its head, and ended here if nobody behind the door has taken it on.
//!
//! Knows nothing of: what is asked.

use std::net::SocketAddr;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName};
use hyper::http::request::Parts;

use super::Connection;
use super::response_body::{self, Reply};
use super::routes::Route;
use crate::audit::{Ending, Outcome, Record, Unrecorded, Wire};
use crate::downstream::response::audit_events::Streaming;
use crate::downstream::response::results;
use crate::downstream::response::{Answer, Failure};
use crate::downstream::{Door, host_check};
use crate::mcp::trace_context;
use crate::request_scope;

/// Begins the record of a request whose head is there.
pub(super) fn begin(
    door: &Door,
    connection: &Connection,
    route: Option<Route>,
    parts: &Parts,
) -> Record {
    let wire = match route {
        Some(Route::PairStream | Route::PairMessages) => Wire::Sse,
        Some(Route::Endpoint | Route::Metadata) | None => Wire::Http,
    };
    let from = connection.peer.map(|peer| peer.ip().to_canonical());
    let record = door.settings.audit.begin(wire, from);
    record.over_http(parts.method.as_str());
    if let Some(trace) = host_check::only(&parts.headers, &TRACEPARENT) {
        record.traced(trace);
        request_scope::leave(|known| known.trace = trace_context::trace_id(trace));
    }
    record
}

/// Tells of a connection that ended before it could ask for anything.
pub(super) fn refused_handshake(door: &Door, peer: SocketAddr) {
    let record = door.settings.audit.begin(Wire::Http, Some(peer.ip().to_canonical()));
    record.refused_by("tls");
    let outcome = Outcome::Refused;
    record.end(Ending { outcome, code: None, status: None, bytes_out: None });
}

/// Ends the record with the response, or with its stream.
pub(super) async fn end(record: Record, reply: &mut Reply) {
    if !record.is_at_the_door() {
        return;
    }
    let is_stream = reply.headers().get(CONTENT_TYPE).is_some_and(|it| it == "text/event-stream");
    if is_stream && reply.status() == StatusCode::OK {
        match record.reserve().await {
            Ok(()) => return reply.body_mut().record(Streaming::begin(record)),
            Err(Unrecorded) => {
                *reply = response_body::json(Answer::refused(None, &results::unrecorded()));
            }
        }
    }
    let status = reply.status();
    // A notification, an answer, or a message that is answered on another stream.
    if status == StatusCode::ACCEPTED {
        return record.forget();
    }
    let code = match reply.extensions().get::<Failure>() {
        Some(Failure::Own(code)) => Some(*code),
        Some(Failure::Upstreams(code)) => *code,
        None => None,
    };
    let is_good = status.is_success() && code.is_none();
    let outcome = if is_good { Outcome::Ok } else { Outcome::Refused };
    let bytes_out = reply.body().len();
    record.end(Ending { outcome, code, status: Some(status.as_u16()), bytes_out });
}

/// Names the trace that the request is a part of (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static(trace_context::TRACEPARENT);
