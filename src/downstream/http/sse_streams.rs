//! Streams that stay open to tell of changes: a legacy session's GET and a modern listen.
//!
//! Nothing queues in them: a stream that is not read is not polled, and the changes that it misses
//! are one notice when it is. A comment breaks the silence, so that proxies keep the connection.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use tokio::time::Interval;
use tokio_util::sync::CancellationToken;

use super::response_body::{self, Reply};
use super::resume;
use crate::downstream::Door;
use crate::downstream::modern::Listening;
use crate::downstream::response::results;
use crate::downstream::session::event_store::{Reader, Writer};
use crate::downstream::session::{InUse, Primary};
use crate::gateway::Guest;
use crate::json::Object;
use crate::sse::{KEEP_ALIVE, write_message, write_numbered};

/// The primary stream of a legacy session; with a track it can be taken up again.
pub(super) fn changes(
    door: &Arc<Door>,
    session: InUse,
    guest: &Guest,
    track: Option<(Writer, Reader)>,
    gone: BoxFuture<'static, ()>,
) -> Reply {
    let place: Vec<_> =
        track.iter().flat_map(|(_, reader)| resume::place(&session, reader)).map(Ok).collect();
    let changes = Changes {
        turn: Turn::Waiting(session, guest.clone()),
        track,
        silence: response_body::silence(door.settings.sse_keepalive),
        stop: door.stop.clone(),
    };
    // A comment at once: some clients wait for the first byte before they go on.
    let begin = stream::once(std::future::ready(Ok(Bytes::from_static(KEEP_ALIVE))));
    let rest = stream::unfold(changes, |changes| async {
        let (event, changes) = changes.next().await?;
        Some((Ok(event), changes))
    });
    let mut reply = response_body::events(begin.chain(stream::iter(place)).chain(rest));
    reply.body_mut().until(gone);
    reply
}

struct Changes {
    turn: Turn,
    track: Option<(Writer, Reader)>,
    silence: Interval,
    stop: CancellationToken,
}

enum Turn {
    /// The stream before this one has not let go yet; its client may be stalled, so the response
    /// begins without waiting for it.
    Waiting(InUse, Guest),
    Primary(Primary),
    /// The last event has gone out.
    Over,
}

impl Changes {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let mut primary = match self.turn {
            Turn::Waiting(session, guest) => tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                primary = session.become_primary(&guest) => primary,
            },
            Turn::Primary(primary) => primary,
            Turn::Over => return None,
        };
        let event = loop {
            let kept = async {
                match &mut self.track {
                    Some((_, reader)) => reader.next().await,
                    None => std::future::pending().await,
                }
            };
            let news = tokio::select! {
                biased;
                () = primary.over.cancelled() => return None,
                () = self.stop.cancelled() => {
                    let farewell = resume::farewell(&primary)?;
                    return Some((farewell, Self { turn: Turn::Over, ..self }));
                }
                kept = kept => {
                    // Its end is that it was taken up elsewhere.
                    let kept = kept?.ok()?;
                    break write_numbered(&kept.id, &kept.text);
                }
                news = primary.listen.next() => news,
                _ = self.silence.tick() => break Bytes::from_static(KEEP_ALIVE),
            };
            // Its client would not be let in any more.
            let message = results::news(&news?, Object::new());
            match &self.track {
                Some((writer, _)) => writer.push(message),
                None => break write_message(&message),
            }
        };
        self.silence.reset();
        Some((event, Self { turn: Turn::Primary(primary), ..self }))
    }
}

/// A modern listen: acknowledged first, ended with a result when the house closes, or its client would not be let in
/// any more.
pub(super) fn listen(
    door: &Arc<Door>,
    listening: Listening,
    gone: BoxFuture<'static, ()>,
) -> Reply {
    let silence = response_body::silence(door.settings.sse_keepalive);
    // Boxed: what moves from event to event is in several places of the stream, and there are thousands of them.
    let told = Box::new(Told { listening: Some(listening), silence, stop: door.stop.clone() });
    let events = stream::unfold(told, |mut told| async {
        let event = told.next().await?;
        Some((Ok(event), told))
    });
    let mut reply = response_body::events(events);
    reply.body_mut().until(gone);
    reply
}

/// What a listen has to go on with.
struct Told {
    /// Until the last event has gone out.
    listening: Option<Listening>,
    silence: Interval,
    stop: CancellationToken,
}

impl Told {
    async fn next(&mut self) -> Option<Bytes> {
        let listening = self.listening.as_mut()?;
        let event = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            change = listening.next() => change.map(|change| write_message(&change)),
            _ = self.silence.tick() => Some(Bytes::from_static(KEEP_ALIVE)),
        };
        if event.is_none() {
            return self.listening.take().map(|listening| write_message(&listening.ended()));
        }
        self.silence.reset();
        event
    }
}
