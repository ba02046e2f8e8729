//! Legacy event streams that outlive their connection: a client that has lost one asks for what came behind
//! the last event that it has (spec 2025-11-25, transports, resumability and redelivery).
//!
//! Promises: a call whose stream is lost runs on, and its notes, its questions and its answer wait for
//! whoever takes the stream up. What is answered at once is answered as JSON, as ever.
//!
//! Knows nothing of: what is kept, and for how long; see `tracks`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, future, stream};
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName};
use tokio_util::sync::CancellationToken;

use super::response_body::{self, Reply};
use super::sse_streams;
use crate::downstream::response::Call;
use crate::downstream::session::event_store::{Kind, Reader, Writer};
use crate::downstream::session::{InUse, Session};
use crate::downstream::{Door, host_check};
use crate::gateway::Guest;
use crate::mcp::call::Broken;
use crate::mcp::revision::Revision;
use crate::sse::{KEEP_ALIVE, write_numbered, write_place, write_retry};

/// The header that names the last event that a client has.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Answers a call whose answer will be whole, on a stream that can be taken up again.
pub(super) async fn answer(door: &Arc<Door>, session: &InUse, call: Call) -> Reply {
    let keep_alive = door.settings.sse_keepalive;
    let Call { mut answer, mut beside } = call;
    // Nothing to wait for is nothing to lose.
    if let Some(done) = (&mut answer).now_or_never() {
        return response_body::answer(
            Call { answer: future::ready(done).boxed(), beside },
            keep_alive,
        )
        .await;
    }
    let Some((writer, reader)) = session.tracks.begin(Kind::Call) else {
        // Too many are kept: this one goes on as if none could be taken up.
        return response_body::answer(Call { answer, beside }, keep_alive).await;
    };
    if !is_primed(session) {
        // Before its first event these clients have no id to come back with.
        tokio::select! {
            biased;
            done = &mut answer => {
                reader.forget();
                let call = Call { answer: future::ready(done).boxed(), beside };
                return response_body::answer(call, keep_alive).await;
            }
            message = beside.next() => writer.push(message),
        }
    }
    let work = write(Call { answer, beside }, writer, session.again(), door.stop.clone());
    door.tasks.spawn(work);
    let begin = stream::iter(place(session, &reader).map(Ok));
    response_body::events(begin.chain(follow(reader, session.again(), keep_alive)))
}

/// Writes what a call says until it has been answered, or nobody waits for that in a house that closes.
async fn write(call: Call, writer: Writer, _session: InUse, stop: CancellationToken) {
    let Call { mut answer, mut beside } = call;
    let mut has_room = true;
    let done = loop {
        tokio::select! {
            biased;
            done = &mut answer => break done,
            // A client that does not read has its notes thinned where they come from.
            message = beside.next(), if has_room => {
                writer.push(message);
                has_room = writer.room().now_or_never().is_some();
            }
            () = writer.room(), if !has_room => has_room = true,
            () = async {
                stop.cancelled().await;
                writer.abandoned().await;
            } => return,
        }
    };
    beside.rest(done.is_some()).for_each(|message| writer.push(message));
    if let Some(text) = done.and_then(|done| done.text.into_whole()) {
        writer.push(text);
    }
}

/// Takes up the stream that a GET names, if it does; else opens the one that tells of changes.
pub(super) fn get(
    door: &Arc<Door>,
    session: InUse,
    guest: &Guest,
    headers: &HeaderMap,
    gone: future::BoxFuture<'static, ()>,
) -> Reply {
    if !headers.contains_key(LAST_EVENT_ID) {
        let track = session.tracks.begin(Kind::Changes);
        return sse_streams::changes(door, session, guest, track, gone);
    }
    let place = host_check::only(headers, &LAST_EVENT_ID);
    match place.and_then(|place| session.tracks.take_up(place)) {
        Some((Some(writer), reader)) => {
            sse_streams::changes(door, session, guest, Some((writer, reader)), gone)
        }
        Some((None, reader)) => {
            let alive = stream::once(future::ready(Ok(Bytes::from_static(KEEP_ALIVE))));
            let rest = follow(reader, session, door.settings.sse_keepalive);
            let mut reply = response_body::events(alive.chain(rest));
            reply.body_mut().until(gone);
            reply
        }
        // Not 404, to which a client MUST answer with a new session (spec, session management): the session
        // is there, with all its other calls.
        None => response_body::refusal(
            StatusCode::BAD_REQUEST,
            "no stream can be taken up behind this Last-Event-ID; what it brought is lost",
        ),
    }
}

/// What a stream begins with: a place to come back to, for clients that take one from an event without data.
pub(super) fn place(session: &Session, reader: &Reader) -> Option<Bytes> {
    is_primed(session).then(|| write_place(&reader.place(), RETRY))
}

/// What the stream that tells of changes ends with when the house closes: when to come back, for clients that take that
/// from an event without data.
pub(super) fn farewell(session: &Session) -> Option<Bytes> {
    is_primed(session).then(|| write_retry(RETRY))
}

/// Whether a stream begins with an event that has an id and no data: earlier clients take that for a message.
fn is_primed(session: &Session) -> bool {
    session.peer.revision >= Revision::V2025_11_25
}

/// What a call says, from where its reader is.
fn follow(
    reader: Reader,
    session: InUse,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, Broken>> + Send {
    let state = (reader, session, response_body::silence(keep_alive));
    stream::unfold(state, |(mut reader, session, mut silence)| async {
        let event = tokio::select! {
            biased;
            event = reader.next() => match event? {
                Ok(event) => Ok(write_numbered(&event.id, &event.text)),
                Err(_) => Err(Broken("the stream was taken up elsewhere, or is kept no more".into())),
            },
            _ = silence.tick() => Ok(Bytes::from_static(KEEP_ALIVE)),
        };
        silence.reset();
        Some((event, (reader, session, silence)))
    })
}

/// When a client should come back that has lost a stream.
const RETRY: Duration = Duration::from_secs(1);
