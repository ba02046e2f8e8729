//! Streams that stay open to tell of changes: a legacy session's GET and a modern listen.
//!
//! Nothing queues in them: a stream that is not read is not polled, and the changes that it misses
//! are one notice when it is. A comment breaks the silence, so that proxies keep the connection.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use tokio::time::Interval;

use super::body::{self, Reply};
use crate::downstream::modern::Listening;
use crate::downstream::session::{InUse, Primary};
use crate::downstream::{Door, encode};
use crate::event_stream::{KEEP_ALIVE, write_message};
use crate::json::Object;

/// The primary stream of a legacy session.
pub(super) fn changes(door: &Arc<Door>, session: InUse, gone: BoxFuture<'static, ()>) -> Reply {
    let changes = Changes {
        turn: Turn::Waiting(session),
        silence: body::silence(door.settings.sse_keepalive),
        door: Arc::clone(door),
    };
    // A comment at once: some clients wait for the first byte before they go on.
    let begin = stream::once(std::future::ready(Ok(Bytes::from_static(KEEP_ALIVE))));
    let rest = stream::unfold(changes, |changes| async {
        let (event, changes) = changes.next().await?;
        Some((Ok(event), changes))
    });
    let mut reply = body::events(begin.chain(rest));
    reply.body_mut().until(gone);
    reply
}

struct Changes {
    turn: Turn,
    silence: Interval,
    door: Arc<Door>,
}

enum Turn {
    /// The stream before this one has not let go yet; its client may be stalled, so the response
    /// begins without waiting for it.
    Waiting(InUse),
    Primary(Primary),
}

impl Changes {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let mut primary = match self.turn {
            Turn::Waiting(session) => session.become_primary().await,
            Turn::Primary(primary) => primary,
        };
        let event = tokio::select! {
            biased;
            () = primary.over.cancelled() => return None,
            () = self.door.stop.cancelled() => return None,
            news = primary.listen.next() => write_message(&encode::news(&news, Object::new())),
            _ = self.silence.tick() => Bytes::from_static(KEEP_ALIVE),
        };
        self.silence.reset();
        Some((event, Self { turn: Turn::Primary(primary), ..self }))
    }
}

/// A modern listen: acknowledged first, ended with a result when the house closes.
pub(super) fn listen(
    door: &Arc<Door>,
    listening: Listening,
    gone: BoxFuture<'static, ()>,
) -> Reply {
    let silence = body::silence(door.settings.sse_keepalive);
    let state = (Some(listening), silence, Arc::clone(door));
    let events = stream::unfold(state, |(listening, mut silence, door)| async {
        let mut listening = listening?;
        let event = tokio::select! {
            biased;
            () = door.stop.cancelled() => {
                let end = write_message(&listening.ended());
                return Some((Ok(end), (None, silence, door)));
            }
            change = listening.next() => write_message(&change),
            _ = silence.tick() => Bytes::from_static(KEEP_ALIVE),
        };
        silence.reset();
        Some((Ok(event), (Some(listening), silence, door)))
    });
    let mut reply = body::events(events);
    reply.body_mut().until(gone);
    reply
}
