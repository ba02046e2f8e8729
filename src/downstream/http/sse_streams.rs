//! Event streams for notifications: a legacy session's standalone GET stream and a modern listen.
//!
//! Without resumability these streams have no queue; a resumable one stores up to `MAX_EVENTS`
//! events. hyper does not poll a stream that its client does not read, and the changes in between
//! coalesce into one notification. A comment breaks a silence, so that proxies keep the connection
//! open.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use tokio::time::Interval;
use tokio_util::sync::CancellationToken;

use super::response_body::{self, HttpResponse};
use crate::downstream::ServerState;
use crate::downstream::modern::ListenSubscription;
use crate::downstream::response::results;
use crate::downstream::session::Session;
use crate::downstream::session::event_store::{EventReader, EventWriter};
use crate::downstream::session::{SessionGuard, StandaloneStream};
use crate::gateway::ClientContext;
use crate::json::Object;
use crate::mcp::revision::Revision;
use crate::sse::write_resume_point;
use crate::sse::write_retry;
use crate::sse::{KEEP_ALIVE, write_message, write_numbered};
use std::time::Duration;

/// Opens the standalone stream of a legacy session; with a stored stream it can be resumed.
pub(super) fn standalone(
    state: &Arc<ServerState>,
    session: SessionGuard,
    client: &ClientContext,
    stored: Option<(EventWriter, EventReader)>,
    gone: BoxFuture<'static, ()>,
) -> HttpResponse {
    let first_events: Vec<_> =
        stored.iter().flat_map(|(_, reader)| initial_event(&session, reader)).map(Ok).collect();
    let get_stream = GetStream {
        state: StreamState::Waiting(session, client.clone()),
        stored,
        keep_alive: response_body::keep_alive_timer(state.settings.sse_keepalive),
        stop: state.stop.clone(),
    };
    // Some clients wait for the first byte before they continue, so a comment is sent immediately.
    let begin = stream::once(std::future::ready(Ok(Bytes::from_static(KEEP_ALIVE))));
    let rest = stream::unfold(get_stream, |get_stream| async {
        let (event, get_stream) = get_stream.next().await?;
        Some((Ok(event), get_stream))
    });
    let mut response = response_body::events(begin.chain(stream::iter(first_events)).chain(rest));
    response.body_mut().end_when(gone);
    response
}

struct GetStream {
    state: StreamState,
    stored: Option<(EventWriter, EventReader)>,
    keep_alive: Interval,
    stop: CancellationToken,
}

enum StreamState {
    /// The previous stream still holds the notifications; its client may be stalled, so the
    /// response begins without waiting for it.
    Waiting(SessionGuard, ClientContext),
    Standalone(StandaloneStream),
    /// The last event was sent.
    Over,
}

impl GetStream {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let mut standalone = match self.state {
            StreamState::Waiting(session, client) => tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                standalone = session.into_standalone(&client) => standalone,
            },
            StreamState::Standalone(standalone) => standalone,
            StreamState::Over => return None,
        };
        let event = loop {
            let event = async {
                match &mut self.stored {
                    Some((_, reader)) => reader.next().await,
                    None => std::future::pending().await,
                }
            };
            let notification = tokio::select! {
                biased;
                () = standalone.over.cancelled() => return None,
                () = self.stop.cancelled() => {
                    let closing_event = closing_event(&standalone)?;
                    return Some((closing_event, Self { state: StreamState::Over, ..self }));
                }
                event = event => {
                    // The stored stream ends for this reader if another one has resumed it.
                    let event = event?.ok()?;
                    break write_numbered(&event.id, &event.text);
                }
                notification = standalone.notifications.next() => notification,
                _ = self.keep_alive.tick() => break Bytes::from_static(KEEP_ALIVE),
            };
            // `None`: the client's credentials are no longer valid.
            let message = results::change_notification(&notification?, Object::new());
            match &self.stored {
                // The reader of the same event store then delivers it, so that an event has one
                // order and one id for this stream and for one that resumes it.
                Some((writer, _)) => writer.push(message),
                None => break write_message(&message),
            }
        };
        self.keep_alive.reset();
        Some((event, Self { state: StreamState::Standalone(standalone), ..self }))
    }
}

/// Opens a modern listen stream. It starts with an acknowledgment and ends with a result at
/// shutdown, or when the client's credentials are no longer valid.
pub(super) fn listen(
    state: &Arc<ServerState>,
    listening: ListenSubscription,
    gone: BoxFuture<'static, ()>,
) -> HttpResponse {
    let keep_alive = response_body::keep_alive_timer(state.settings.sse_keepalive);
    // Boxed: the state is moved with each event and would occur several times in the stream's type,
    // and there are thousands of streams.
    let listen_stream =
        Box::new(ListenStream { listening: Some(listening), keep_alive, stop: state.stop.clone() });
    let events = stream::unfold(listen_stream, |mut listen_stream| async {
        let event = listen_stream.next().await?;
        Some((Ok(event), listen_stream))
    });
    let mut response = response_body::events(events);
    response.body_mut().end_when(gone);
    response
}

/// State of a listen stream.
struct ListenStream {
    /// `None` once the last event is sent.
    listening: Option<ListenSubscription>,
    keep_alive: Interval,
    stop: CancellationToken,
}

impl ListenStream {
    async fn next(&mut self) -> Option<Bytes> {
        let listening = self.listening.as_mut()?;
        let event = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            change = listening.next() => change.map(|change| write_message(&change)),
            _ = self.keep_alive.tick() => Some(Bytes::from_static(KEEP_ALIVE)),
        };
        if event.is_none() {
            return self.listening.take().map(|listening| write_message(&listening.final_result()));
        }
        self.keep_alive.reset();
        event
    }
}

/// First event of a stream: an id to resume with, for clients that accept an event without data.
pub(super) fn initial_event(session: &Session, reader: &EventReader) -> Option<Bytes> {
    has_initial_event(session).then(|| write_resume_point(&reader.last_event_id(), RETRY))
}

/// Last event of a standalone stream at shutdown: the reconnection time, for clients that accept an
/// event without data.
fn closing_event(session: &Session) -> Option<Bytes> {
    has_initial_event(session).then(|| write_retry(RETRY))
}

/// True if a stream starts with an event that has an id and no data: earlier clients take that for
/// a message.
pub(super) fn has_initial_event(session: &Session) -> bool {
    session.peer.revision >= Revision::V2025_11_25
}

/// Reconnection time of a client that has lost a stream.
const RETRY: Duration = Duration::from_secs(1);
