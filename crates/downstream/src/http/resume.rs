//! Resumable event streams of legacy sessions: a client that has lost a stream requests the events
//! after the last one that it has (spec 2025-11-25, transports, resumability and redelivery).
//!
//! Invariants: a call whose stream is lost continues, and its notifications, its requests to the
//! client and its response are stored until the stream is resumed. A call that completes
//! immediately is answered as JSON, as always. The limits of the store are in `event_store`.

use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, future, stream};
use hyper::StatusCode;
use hyper::header::HeaderName;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::forwarding;
use super::refusal::HttpRefusal;
use super::request::HttpRequest;
use super::response_body::{self, HttpResponse};
use super::sse_streams::{self, has_initial_event, initial_event};
use crate::host_check;
use crate::response::ResponseFuture;
use crate::session::SessionGuard;
use crate::session::event_store::{EventReader, EventStore, EventWriter, StreamKind};
use weir_base::tasks::fairness::promptly;
use weir_base::text::sse::{KEEP_ALIVE, write_numbered};
use weir_gateway::ClientContext;
use weir_mcp::call::PayloadBroken;

/// Header with the id of the last event that a client has received.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Responds to a call with a resumable stream, or with JSON if the call completes immediately.
pub(super) async fn respond(
    request: &HttpRequest,
    session: &SessionGuard,
    mut call: ResponseFuture,
) -> HttpResponse {
    let (state, forms) = (&request.state, request.forms);
    let keep_alive = state.settings.sse_keepalive;
    // A response that is ready needs no stream that could be lost.
    if let Some(done) = (&mut call.response).now_or_never() {
        call.response = future::ready(done).boxed();
        return response_body::respond(call, forms, keep_alive).await;
    }
    let Some((writer, reader)) = session.event_store.create(StreamKind::Call) else {
        // The store is full: this stream cannot be resumed.
        return response_body::respond(call, forms, keep_alive).await;
    };
    let mut first = initial_event(session, &reader);
    if !has_initial_event(session) {
        // These clients have no id to resume with before the first event.
        tokio::select! {
            biased;
            done = &mut call.response => {
                reader.forget();
                call.response = future::ready(done).boxed();
                return response_body::respond(call, forms, keep_alive).await;
            }
            message = call.messages.next() => writer.push(message),
            // A proxy closes a connection that is silent for too long.
            () = promptly(sleep(keep_alive)) => first = Some(Bytes::from_static(KEEP_ALIVE)),
        }
    }
    let (stop, in_use) = (state.stop.clone(), session.clone_guard());
    state.tracker.spawn(write(call, writer, in_use, stop));
    let initial = stream::iter(first.map(Ok));
    let events = initial.chain(stream_events(reader, session.clone_guard()));
    response_body::events(keep_alive, events)
}

/// Stores the messages of a call until its response, or, at shutdown, until no client reads the
/// stream.
async fn write(
    call: ResponseFuture,
    writer: EventWriter,
    _session: SessionGuard,
    stop: CancellationToken,
) {
    let ResponseFuture { mut response, mut messages } = call;
    let mut has_capacity = true;
    let done = loop {
        tokio::select! {
            biased;
            done = &mut response => break done,
            // While a client does not read, the notifications stay in their source, which coalesces
            // them.
            message = messages.next(), if has_capacity => {
                writer.push(message);
                has_capacity = writer.wait_for_capacity().now_or_never().is_some();
            }
            () = writer.wait_for_capacity(), if !has_capacity => has_capacity = true,
            () = async {
                stop.cancelled().await;
                writer.wait_until_unread().await;
            } => return,
        }
    };
    messages.rest(done.is_some()).for_each(|message| writer.push(message));
    if let Some(text) = done.and_then(|done| done.text.into_whole()) {
        writer.push(text);
    }
}

/// Forwards the resumption of the stream of a call to the replica that has its events, if that is
/// another one.
pub(super) async fn forward(
    request: &HttpRequest,
    client: &ClientContext,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    let last_event_id = host_check::single_value(request.headers(), &LAST_EVENT_ID);
    match last_event_id.and_then(EventStore::process_of_call) {
        Some(process) => forwarding::forward_to(request, client, process, "the next events").await,
        None => Ok(None),
    }
}

/// Resumes the stream that a GET names in `Last-Event-ID`; without one, opens the standalone
/// stream.
pub(super) fn get(
    request: &HttpRequest,
    session: SessionGuard,
    client: &ClientContext,
) -> Result<HttpResponse, HttpRefusal> {
    let (state, headers) = (&request.state, request.headers());
    if !headers.contains_key(LAST_EVENT_ID) {
        let stored = session.event_store.create(StreamKind::Standalone);
        return Ok(sse_streams::standalone(state, session, client, stored));
    }
    let last_event_id = host_check::single_value(headers, &LAST_EVENT_ID);
    match last_event_id.and_then(|id| session.event_store.resume(id)) {
        Some((Some(writer), reader)) => {
            Ok(sse_streams::standalone(state, session, client, Some((writer, reader))))
        }
        Some((None, reader)) => {
            let alive = stream::once(future::ready(Ok(Bytes::from_static(KEEP_ALIVE))));
            let events = alive.chain(stream_events(reader, session));
            Ok(response_body::events(state.settings.sse_keepalive, events))
        }
        // The client was notified of nothing since the process that it names has ended.
        None if last_event_id.is_some_and(|id| session.event_store.is_of_ended_process(id)) => {
            let stored = session.event_store.create(StreamKind::Standalone);
            Ok(sse_streams::standalone(state, session, client, stored))
        }
        // 404 would make the client open a new session (spec, session management: MUST), but this
        // session exists, with all of its other calls.
        None => {
            let text = "no stream can be resumed from this Last-Event-ID; its events are lost";
            Err((StatusCode::BAD_REQUEST, text).into())
        }
    }
}

/// Streams the events of a call from the reader's position.
fn stream_events(
    reader: EventReader,
    session: SessionGuard,
) -> impl Stream<Item = Result<Bytes, PayloadBroken>> + Send {
    stream::unfold((reader, session), |(mut reader, session)| async {
        let event = match reader.next().await? {
            Ok(event) => Ok(write_numbered(&event.id, &event.text)),
            Err(_) => Err(PayloadBroken(LOST.into())),
        };
        Some((event, (reader, session)))
    })
}

/// Error of a stream that ends early.
const LOST: &str = "the stream was resumed elsewhere, or its events have expired";
