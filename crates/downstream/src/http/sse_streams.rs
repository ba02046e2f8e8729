//! Event streams for notifications: a legacy session's standalone GET stream and a modern listen.
//!
//! Without resumability these streams have no queue; a resumable one stores up to `MAX_EVENTS`
//! events. hyper does not poll a stream that its client does not read, and the changes in between
//! coalesce into one notification.

use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::response_body::{self, HttpResponse};
use crate::ServerState;
use crate::modern::ListenSubscription;
use crate::response::results;
use crate::session::event_store::{EventReader, EventWriter};
use crate::session::{Session, SessionGuard, StandaloneStream};
use weir_base::json::Object;
use weir_base::text::sse::{
    KEEP_ALIVE, write_message, write_numbered, write_resume_point, write_retry,
};
use weir_gateway::ClientContext;
use weir_mcp::revision::Revision;

/// Opens the standalone stream of a legacy session; with a stored stream it can be resumed.
pub(super) fn standalone(
    state: &ServerState,
    session: SessionGuard,
    client: &ClientContext,
    stored: Option<(EventWriter, EventReader)>,
) -> HttpResponse {
    // Some clients wait for the first byte before they continue, so a comment is sent immediately.
    let mut begin = vec![Ok(Bytes::from_static(KEEP_ALIVE))];
    begin.extend(stored.iter().filter_map(|(_, reader)| initial_event(&session, reader)).map(Ok));
    let (client, stop) = (client.clone(), state.stop.clone());
    // The previous stream still holds the notifications; its client may be stalled, so the response
    // begins without waiting for it.
    let opening = async move {
        let standalone = stop.run_until_cancelled(session.into_standalone(&client)).await?;
        Some(Box::new(GetStream { standalone, stored, stop }))
    };
    // Boxed: otherwise the open stream would reserve space for its opening.
    let events = stream::once(opening.boxed()).flat_map(|get_stream| {
        stream::unfold(get_stream, |get_stream| async { get_stream?.next().await })
    });
    let events = events.map(Ok);
    response_body::events(state.settings.sse_keepalive, stream::iter(begin).chain(events))
}

/// An open stream. Boxed wherever it is moved, because there are thousands.
struct GetStream {
    standalone: StandaloneStream,
    stored: Option<(EventWriter, EventReader)>,
    stop: CancellationToken,
}

impl GetStream {
    /// Returns the next event, and the rest of the stream unless that was the last event.
    async fn next(mut self: Box<Self>) -> Option<(Bytes, Option<Box<Self>>)> {
        loop {
            let event = async { Some(self.stored.as_mut()?.1.next().await) };
            let notification = tokio::select! {
                biased;
                () = self.standalone.over.cancelled() => return None,
                () = self.stop.cancelled() => return Some((closing_event(&self.standalone)?, None)),
                Some(event) = event => {
                    // The stored stream ends for this reader if another one has resumed it.
                    let event = event?.ok()?;
                    return Some((write_numbered(&event.id, &event.text), Some(self)));
                }
                notification = self.standalone.notifications.next() => notification,
            };
            // `None`: the client's credentials are no longer valid.
            let message = results::change_notification(&notification?, Object::new());
            match &self.stored {
                // The reader of the same event store then delivers it, so that an event has one
                // order and one id for this stream and for one that resumes it.
                Some((writer, _)) => writer.push(message),
                None => return Some((write_message(&message), Some(self))),
            }
        }
    }
}

/// Opens a modern listen stream. It starts with an acknowledgment and ends with a result at
/// shutdown, or when the client's credentials are no longer valid.
pub(super) fn listen(state: &ServerState, listening: ListenSubscription) -> HttpResponse {
    let stop = state.stop.clone();
    // Boxed: the state is moved with each event and would occur several times in the stream's type,
    // and there are thousands of streams.
    let events = stream::unfold(Some(Box::new((listening, stop))), |open| async {
        let mut open = open?;
        let (listening, stop) = &mut *open;
        match listening.next().with_cancellation_token(stop).await.flatten() {
            Some(change) => Some((Ok(write_message(&change)), Some(open))),
            None => Some((Ok(write_message(&listening.final_result())), None)),
        }
    });
    response_body::events(state.settings.sse_keepalive, events)
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
    session.peer.context.revision >= Revision::V2025_11_25
}

/// Reconnection time of a client that has lost a stream.
const RETRY: Duration = Duration::from_secs(1);
