//! HTTP request, from its head to the end of its audit event, with its body, which is read within
//! limits of size and time.
//!
//! Invariant: the audit event that begins with the head ends with the response, unless a later step
//! has taken it over.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, EXPECT, HeaderMap, HeaderName};
use hyper::http::request::Parts;

use super::ClientConnection;
use super::connection::replicas::RequestOrigin;
use super::head::{self, AcceptedForms};
use super::refusal::HttpRefusal;
use super::response_body::{self, ConnectionClosed, HttpResponse};
use super::routes::HttpRoute;
use crate::modern::headers;
use crate::response::{ClientResponse, ErrorOrigin, ErrorResponse, results};
use crate::session::session_id::OpenedId;
use crate::{ServerState, ServerStateCell, era, host_check, session};
use weir_base::memory::memory_budget::MemoryPressure;
use weir_base::tasks::fairness::Workload;
use weir_base::tasks::request_scope;
use weir_base::tasks::suppressible_waker::SuppressibleWaker;
use weir_fleet::Fleet;
use weir_gateway::ClientContext;
use weir_mcp::jsonrpc::PartialMessage;
use weir_mcp::revision::{Era, Revision};
use weir_mcp::trace_context;
use weir_record::audit::{
    AuditEvent, AuditOutcome, AuditUnavailable, EventCompletion, TransportKind,
};

/// One HTTP request. The whole request is served under one `state`, even if the configuration is
/// replaced meanwhile.
pub(super) struct HttpRequest {
    pub(super) state_cell: Arc<ServerStateCell>,
    pub(super) state: Arc<ServerState>,
    pub(super) connection: Arc<ClientConnection>,
    pub(super) parts: Parts,
    /// Body until it is read.
    body: Option<Incoming>,
    /// Text of the body once it is read, for another replica; empty without a fleet.
    pub(super) text: Bytes,
    /// Forms of a response that the client accepts.
    pub(super) forms: AcceptedForms,
    /// Ends the response; never ready if a lost connection does not.
    pub(super) gone: ConnectionClosed,
    pub(super) audit_event: AuditEvent,
}

impl HttpRequest {
    /// Takes over a request whose head was read, and begins its audit event.
    pub(super) fn begin(
        state_cell: Arc<ServerStateCell>,
        state: Arc<ServerState>,
        connection: Arc<ClientConnection>,
        route: Option<HttpRoute>,
        (parts, body): (Parts, Incoming),
        gone: ConnectionClosed,
    ) -> Self {
        let audit_event = begin_event(&state, &connection, route, &parts);
        Self {
            state_cell,
            state,
            connection,
            parts,
            body: Some(body),
            text: Bytes::new(),
            forms: AcceptedForms::Both,
            gone,
            audit_event,
        }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// Returns the value of the version header.
    pub(super) fn version(&self) -> Option<&str> {
        host_check::single_value(self.headers(), &headers::VERSION)
    }

    /// Returns the era of a message that carries no version of its own.
    pub(super) fn era_of_unversioned(&self) -> Era {
        era::of_unversioned(&self.state.settings.versions, self.version())
    }

    /// Returns the fleet in which the request may be forwarded: once only.
    pub(super) fn fleet_for_forwarding(&self) -> Option<&Arc<Fleet>> {
        self.state.fleet().filter(|_| !self.connection.is_forwarded())
    }

    /// Returns the session id of the request and what it contains, if it is one of this client and
    /// has not expired.
    pub(super) fn opened_session(&self, client: &ClientContext) -> Option<(&str, OpenedId)> {
        let id = host_check::single_value(self.headers(), &session::HEADER)?;
        let max_age = self.state.settings.session_lifetime.max_age;
        Some((id, self.state.sessions.open_id(client, id, max_age)?))
    }

    /// Refuses a request in a session of this revision if its version header is invalid or
    /// unsupported.
    pub(super) fn check_version(&self, revision: Revision) -> Result<(), HttpRefusal> {
        // Spec 2025-06-18 and later, transports: an invalid or unsupported version MUST get 400.
        // Earlier revisions have no such header. Without the header the session's version applies.
        let is_checked = revision >= Revision::V2025_06_18;
        if is_checked && self.headers().contains_key(headers::VERSION) {
            let version = self.version().and_then(|text| text.parse().ok());
            if !version.is_some_and(|revision| self.state.settings.versions.has(revision)) {
                let text = "this MCP-Protocol-Version is not supported here";
                return Err((StatusCode::BAD_REQUEST, text).into());
            }
        }
        Ok(())
    }

    /// Reads the body within limits of size and time; the connection of a body that is refused
    /// ends. A body that was read before is empty.
    pub(super) async fn read_text(&mut self) -> Result<Bytes, HttpRefusal> {
        let text = match self.body.take() {
            Some(incoming) => {
                let reading = read_all(&self.state, &self.connection.waker, incoming);
                let reading = tokio::time::timeout(self.state.settings.timeouts.body, reading);
                let late = (StatusCode::REQUEST_TIMEOUT, "timeout while reading the body");
                let read = reading.await.unwrap_or_else(|_| Err(late.into()));
                read.map_err(HttpRefusal::with_connection_close)?
            }
            None => Bytes::new(),
        };
        self.audit_event.set_bytes_in(text.len());
        if self.state.fleet().is_some() {
            self.text = text.clone();
        }
        Ok(text)
    }

    /// Skips the body if it was not read, and returns whether the connection can be reused.
    pub(super) async fn skip_body(&mut self) -> bool {
        match self.body.take() {
            Some(unread) if !unread.is_end_stream() => {
                Box::pin(skip(&self.parts.headers, unread)).await
            }
            _ => true,
        }
    }

    /// Returns whether so much memory is in use that no stream is opened.
    pub(super) fn is_memory_scarce(&self) -> bool {
        self.state.budget().pressure() >= MemoryPressure::High
    }

    /// Refuses to open a stream while the memory budget is nearly exhausted.
    pub(super) fn require_memory(&self) -> Result<(), HttpRefusal> {
        match self.is_memory_scarce() {
            true => Err(results::memory_scarce().into()),
            false => Ok(()),
        }
    }

    /// Ends the audit event with the response or, if it is an event stream, with the stream.
    pub(super) async fn end_event(&mut self, response: &mut HttpResponse) {
        let audit_event = std::mem::take(&mut self.audit_event);
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
        audit_event.end(EventCompletion {
            outcome,
            code,
            status: Some(status.as_u16()),
            bytes_out,
        });
    }
}

/// Begins the audit event of a request after its head was read.
fn begin_event(
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
    let audit_event = state.audit.begin(transport, from);
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

/// Reads a body within a limit of size.
async fn read_all(
    state: &ServerState,
    waker: &SuppressibleWaker,
    mut incoming: Incoming,
) -> Result<Bytes, HttpRefusal> {
    let limit = state.settings.max_body;
    let too_large = || ErrorResponse {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        ..results::too_large("the client", limit)
    };
    let announced = usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(too_large().into());
    }
    let (mut text, mut reservation) = (BytesMut::new(), state.budget().start_reservation());
    let mut workload = Workload::default();
    while !incoming.is_end_stream()
        && let Some(frame) = poll_fn(|cx| poll_frame(&mut incoming, waker, cx)).await
    {
        let frame = frame.map_err(|_| (StatusCode::BAD_REQUEST, "the body is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        let refuse = |refused: ErrorResponse| {
            let beginning = [&text[..], &data].concat();
            HttpRefusal::from(refused).naming(PartialMessage::read(&beginning).id.as_ref())
        };
        if text.len() + data.len() > limit {
            return Err(refuse(too_large()));
        }
        // Received bytes count against the budget, not announced ones: announcing costs the client
        // nothing.
        reservation.grow(data.len()).map_err(|_| refuse(results::memory_scarce()))?;
        // A buffer that doubles each time leaves as much behind as it has, and the allocator keeps
        // it. Before its first bytes, an announcement reserves nothing.
        if text.len() >= PROVEN_BYTES && text.capacity() < announced {
            text.reserve(announced - text.len());
        }
        text.extend_from_slice(&data);
        workload.add(data.len());
        workload.yield_if_due().await;
    }
    Ok(reservation.attach(text.freeze()))
}

/// Polls a body for its next frame. hyper wakes the task of the connection for each piece that is
/// taken, to read the next one; after the last one there is nothing to read.
fn poll_frame(
    incoming: &mut Incoming,
    waker: &SuppressibleWaker,
    cx: &mut Context<'_>,
) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
    // The next piece comes while the connection is polled, which then polls this.
    let noop = &mut Context::from_waker(Waker::noop());
    let (frame, wakes) = waker.without_waking(|| Pin::new(&mut *incoming).poll_frame(noop));
    let is_last = matches!(frame, Poll::Ready(Some(Ok(_)))) && incoming.is_end_stream();
    wake_unless_needless(wakes, is_last, cx.waker());
    frame
}

/// Wakes the task if anything but the last piece of a body would have woken it.
fn wake_unless_needless(wakes: usize, is_last: bool, task: &Waker) {
    // hyper wakes it exactly once with each piece.
    let needless = usize::from(is_last);
    if wakes > needless {
        task.wake_by_ref();
    }
}

/// Skips the body of a refused request, and returns whether the connection can be reused. That is
/// the case if the body is small and arrives soon. Otherwise the connection has to be closed with a
/// notice to the client (RFC 9112, 9.6), which would send its next request on it.
///
/// Many clients send a head and its body separately. A client that waits for `100 Continue` (RFC
/// 9110, 10.1.1) does not get it.
async fn skip(headers: &HeaderMap, mut unread: Incoming) -> bool {
    if headers.contains_key(EXPECT) || unread.size_hint().lower() > MAX_SKIPPED_BYTES {
        return false;
    }
    let skipping = async {
        let mut skipped = 0;
        while let Some(frame) = unread.frame().await {
            let Ok(frame) = frame else { return false };
            skipped += frame.data_ref().map_or(0, Bytes::len) as u64;
            if skipped > MAX_SKIPPED_BYTES {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(SKIP_TIMEOUT, skipping).await.unwrap_or(false)
}

/// Bytes of a body that must have arrived before the announced length is believed: from then on its
/// buffer has that size. Memory that is not written takes none of the machine.
const PROVEN_BYTES: usize = 64 * 1024;
/// Largest body that is skipped.
const MAX_SKIPPED_BYTES: u64 = 64 * 1024;
/// Time limit for skipping a body.
const SKIP_TIMEOUT: Duration = Duration::from_secs(1);
/// Header with the trace id (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static(trace_context::TRACEPARENT);

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use std::convert::Infallible;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use weir_base::tasks::suppressible_waker::WakeCounter;

    /// Serves one request that arrives in pieces, and returns how often the task of the connection
    /// was woken by its own poll after each of them, and the response, which repeats the body.
    async fn serve(pieces: &[&str]) -> (Vec<usize>, String) {
        let (suppressible, task) = (Arc::<SuppressibleWaker>::default(), Arc::default());
        suppressible.register(&Waker::from(Arc::<WakeCounter>::clone(&task)));
        let (ours, mut client) = duplex(1_024);
        let service = service_fn(|request: Request<Incoming>| {
            let (mut body, waker) = (request.into_body(), Arc::clone(&suppressible));
            async move {
                let mut text = Vec::new();
                while !body.is_end_stream()
                    && let Some(frame) = poll_fn(|cx| poll_frame(&mut body, &waker, cx)).await
                {
                    text.extend(frame.expect("ok").into_data().expect("data"));
                }
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
            }
        });
        let mut connection =
            pin!(http1::Builder::new().serve_connection(TokioIo::new(ours), service));
        let waker = Waker::from(Arc::clone(&suppressible));
        let mut wakes = Vec::new();
        for piece in pieces {
            client.write_all(piece.as_bytes()).await.expect("space");
            task.take_wakes();
            suppressible.register(&Waker::from(Arc::clone(&task)));
            assert!(connection.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            wakes.push(task.take_wakes());
        }
        while wakes.last() != Some(&0) {
            suppressible.register(&Waker::from(Arc::clone(&task)));
            assert!(connection.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            wakes.push(task.take_wakes());
        }
        let mut response = vec![0; 1_024];
        let length = client.read(&mut response).await.expect("a response");
        response.truncate(length);
        (wakes, String::from_utf8(response).expect("text"))
    }

    #[tokio::test]
    async fn only_a_body_that_is_not_complete_wakes_its_connection_to_read_more() {
        const HEAD: &str = "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n";
        for (pieces, expected) in [
            (&[HEAD, "body"][..], &[0, 0][..]),
            (&[&format!("{HEAD}body")], &[0]),
            (&[&format!("{HEAD}bo"), "dy"], &[1, 0]),
        ] {
            let (wakes, response) = serve(pieces).await;
            assert_eq!(wakes, expected, "{pieces:?}");
            assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("body"));
        }
    }

    #[tokio::test]
    async fn a_wake_by_another_thread_while_the_last_piece_is_taken_is_not_lost() {
        let (suppressible, task) = (Arc::<SuppressibleWaker>::default(), Arc::default());
        suppressible.register(&Waker::from(Arc::<WakeCounter>::clone(&task)));
        let waker = Waker::from(Arc::clone(&suppressible));
        // hyper's wake and another one.
        let (_, wakes) = suppressible.without_waking(|| {
            waker.wake_by_ref();
            std::thread::scope(|scope| scope.spawn(|| waker.wake_by_ref()).join().expect("ok"));
        });
        wake_unless_needless(wakes, true, &waker);
        assert_eq!(task.take_wakes(), 1);
        wake_unless_needless(1, true, &waker);
        assert_eq!(task.take_wakes(), 0);
    }
}
