//! Resumable event streams of legacy sessions: a client that has lost a stream requests the events
//! after the last one that it has (spec 2025-11-25, transports, resumability and redelivery).
//!
//! Invariants: a call whose stream is lost continues, and its notifications, its requests to the
//! client and its response are stored until the stream is resumed. A call that completes
//! immediately is answered as JSON, as always. The limits of the store are in `event_store`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, future, stream};
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName};
use tokio_util::sync::CancellationToken;

use super::response_body::{self, HttpResponse};
use super::sse_streams::{self, has_initial_event, initial_event};
use crate::downstream::response::ResponseFuture;
use crate::downstream::session::SessionGuard;
use crate::downstream::session::event_store::{EventReader, EventWriter, StreamKind};
use crate::downstream::{ServerState, host_check};
use crate::gateway::ClientContext;
use crate::mcp::call::PayloadBroken;
use crate::sse::{KEEP_ALIVE, write_numbered};

/// Header with the id of the last event that a client has received.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Responds to a call with a resumable stream, or with JSON if the call completes immediately.
pub(super) async fn respond(
    state: &Arc<ServerState>,
    session: &SessionGuard,
    call: ResponseFuture,
) -> HttpResponse {
    let keep_alive = state.settings.sse_keepalive;
    let ResponseFuture { mut response, mut messages } = call;
    // A response that is ready needs no stream that could be lost.
    if let Some(done) = (&mut response).now_or_never() {
        return response_body::respond(
            ResponseFuture { response: future::ready(done).boxed(), messages },
            keep_alive,
        )
        .await;
    }
    let Some((writer, reader)) = session.event_store.create(StreamKind::Call) else {
        // The store is full: this stream cannot be resumed.
        return response_body::respond(ResponseFuture { response, messages }, keep_alive).await;
    };
    if !has_initial_event(session) {
        // These clients have no id to resume with before the first event.
        tokio::select! {
            biased;
            done = &mut response => {
                reader.forget();
                let call = ResponseFuture { response: future::ready(done).boxed(), messages };
                return response_body::respond(call, keep_alive).await;
            }
            message = messages.next() => writer.push(message),
        }
    }
    let work = write(
        ResponseFuture { response, messages },
        writer,
        session.clone_guard(),
        state.stop.clone(),
    );
    state.tracker.spawn(work);
    let initial = stream::iter(initial_event(session, &reader).map(Ok));
    response_body::events(initial.chain(stream_events(reader, session.clone_guard(), keep_alive)))
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

/// Resumes the stream that a GET names in `Last-Event-ID`; without one, opens the standalone
/// stream.
pub(super) fn get(
    state: &Arc<ServerState>,
    session: SessionGuard,
    client: &ClientContext,
    headers: &HeaderMap,
    gone: future::BoxFuture<'static, ()>,
) -> HttpResponse {
    if !headers.contains_key(LAST_EVENT_ID) {
        let stored = session.event_store.create(StreamKind::Standalone);
        return sse_streams::standalone(state, session, client, stored, gone);
    }
    let last_event_id = host_check::single_value(headers, &LAST_EVENT_ID);
    match last_event_id.and_then(|id| session.event_store.resume(id)) {
        Some((Some(writer), reader)) => {
            sse_streams::standalone(state, session, client, Some((writer, reader)), gone)
        }
        Some((None, reader)) => {
            let alive = stream::once(future::ready(Ok(Bytes::from_static(KEEP_ALIVE))));
            let rest = stream_events(reader, session, state.settings.sse_keepalive);
            let mut response = response_body::events(alive.chain(rest));
            response.body_mut().end_when(gone);
            response
        }
        // 404 would make the client open a new session (spec, session management: MUST), but this
        // session exists, with all of its other calls.
        None => response_body::refusal(
            StatusCode::BAD_REQUEST,
            "no stream can be resumed from this Last-Event-ID; its events are lost",
        ),
    }
}

/// Streams the events of a call from the reader's position.
fn stream_events(
    reader: EventReader,
    session: SessionGuard,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, PayloadBroken>> + Send {
    let state = (reader, session, response_body::keep_alive_timer(keep_alive));
    stream::unfold(state, |(mut reader, session, mut keep_alive_timer)| async {
        let event = tokio::select! {
            biased;
            event = reader.next() => match event? {
                Ok(event) => Ok(write_numbered(&event.id, &event.text)),
                Err(_) => Err(PayloadBroken(LOST.into())),
            },
            _ = keep_alive_timer.tick() => Ok(Bytes::from_static(KEEP_ALIVE)),
        };
        keep_alive_timer.reset();
        Some((event, (reader, session, keep_alive_timer)))
    })
}

/// Error of a stream that ends early.
const LOST: &str = "the stream was resumed elsewhere, or its events have expired";
