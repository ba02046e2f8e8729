//! The deprecated HTTP+SSE pair of 2024-11-05: a stream for what the client hears, a path for what it says.
//!
//! `GET /sse` opens the stream, whose first event tells where to post; `POST /messages?sessionId=…` takes a
//! message and answers 202, and its answer comes as an event. Clients settle on any legacy revision over it;
//! what would be modern is served as legacy says, so that a client that probes falls back.
//!
//! Promises: a session is its stream. Whatever ends the stream (its client, a client that takes nothing for
//! too long, the closing house) ends the session, and its calls with it, unlike a lost stream of Streamable
//! HTTP. Unknown, ended and somebody else's sessions look the same. A POST never waits for the stream.
//!
//! Knows nothing of: Host, Origin and credentials, which are good already; and what a message means.

mod session;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{self, BoxFuture};
use futures::{StreamExt, stream};
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Interval;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::handler::is_full;
use super::head;
use super::request_body::{FULL, FULL_RETRY, Unread, closing, read};
use super::response_body::{self, Reply};
use crate::audit::{SessionMark, Wire};
use crate::downstream::limits::stream_limit::Slot;
use crate::downstream::response::Answer;
use crate::downstream::{Door, Doors, batch};
use crate::gateway::Guest;
use crate::jsonrpc::Message;
use crate::sse::{KEEP_ALIVE, write_event, write_message};
use session::{Posted, Talk, Told};
pub(in crate::downstream) use sessions::Pairs;

/// Where a client opens its stream.
pub const STREAM_PATH: &str = "/sse";
/// Where a client posts its messages, as it is told on its stream.
pub const MESSAGES_PATH: &str = "/messages";

// === GET ===

/// Opens a stream and the session that lives as long.
pub(super) async fn open(
    doors: &Doors,
    door: &Arc<Door>,
    guest: Guest,
    headers: &HeaderMap,
    gone: BoxFuture<'static, ()>,
) -> Reply {
    if let Err((status, text)) = head::check_get(headers) {
        return response_body::refusal(status, text);
    }
    if is_full(door) {
        return response_body::later(FULL, FULL_RETRY);
    }
    // A client of these revisions learns once what can be asked here.
    guest.settle().await;
    let principal = guest.principal();
    let Some(slot) = door.streams.open(principal) else {
        return response_body::too_busy(STREAM_RETRY);
    };
    let Ok(seat) = door.sessions.seat(principal) else {
        return response_body::too_busy(STREAM_RETRY);
    };

    let (inbox, posted) = mpsc::channel(INBOX);
    let (queue, messages) = mpsc::channel(session::QUEUE);
    let end = CancellationToken::new();
    let listed = door.pairs.enter(principal, inbox, seat);
    let address = address(&door.settings.public_prefix, listed.id());
    let record = door.settings.audit.conversation(Wire::Sse, guest.from());
    let mark = SessionMark::of(listed.id());
    record.in_session(&mark);
    guest.record().in_session(&mark);
    let guest = guest.recorded(record);
    let talk = Talk::new(doors, Arc::clone(door), guest, posted, queue, end.clone(), listed);
    door.tasks.spawn(talk.run());

    let outgoing = Outgoing {
        messages,
        silence: response_body::silence(door.settings.sse_keepalive),
        _open: end.drop_guard(),
        _slot: slot,
    };
    // Spec 2024-11-05, transports: the server MUST send an `endpoint` event when a client connects.
    let endpoint = stream::once(future::ready(Ok(write_event("endpoint", &address))));
    let rest = stream::unfold(outgoing, |mut outgoing| async {
        let event = outgoing.next().await?;
        Some((Ok(event), outgoing))
    });
    let mut reply = response_body::events(endpoint.chain(rest));
    reply.body_mut().until(gone);
    reply
}

/// Where a session's messages go, as a path from the root: clients resolve it against the address that
/// they have opened, which may be a proxy's.
fn address(prefix: &str, id: &str) -> String {
    format!("{prefix}{MESSAGES_PATH}?{ID_MEMBER}={id}")
}

/// What goes out on the stream. Dropped, it has ended, and so has its session.
struct Outgoing {
    /// Bounded: see [`talk::QUEUE`]. A stream that its client does not read is not polled, until the
    /// connection's own timer ends it.
    messages: mpsc::Receiver<Bytes>,
    silence: Interval,
    _open: DropGuard,
    _slot: Slot,
}

impl Outgoing {
    /// The next event, or a comment after a silence; `None` once nobody has anything more to say.
    async fn next(&mut self) -> Option<Bytes> {
        let event = tokio::select! {
            biased;
            message = self.messages.recv() => write_message(&message?),
            _ = self.silence.tick() => Bytes::from_static(KEEP_ALIVE),
        };
        self.silence.reset();
        Some(event)
    }
}

// === POST ===

/// Takes a message for a session.
pub(super) async fn post(door: &Door, guest: &Guest, parts: &Parts, unread: &mut Unread) -> Reply {
    match take(door, guest, parts, unread).await {
        Ok(reply) => reply,
        Err(reply) => *reply,
    }
}

async fn take(
    door: &Door,
    guest: &Guest,
    parts: &Parts,
    unread: &mut Unread,
) -> Result<Reply, Box<Reply>> {
    let refuse = |(status, text)| response_body::refusal(status, text);
    head::check_body(&parts.headers).map_err(refuse)?;
    let id = session_id(parts.uri.query().unwrap_or_default()).map_err(refuse)?;
    let inbox = door.pairs.find(guest.principal(), id).ok_or_else(|| ended(door))?;
    guest.record().in_session(&SessionMark::of(id));
    let text = read(door, unread).await.map_err(|reply| closing(*reply))?;
    guest.record().took(text.len());
    let message = match batch::is_batch(&text) {
        true => Told::Batch(text),
        false => Told::Message(Message::parse(text).map_err(|invalid| {
            if let Some(answer) = invalid.as_answer() {
                let told = Told::Message(Message::Answer(answer));
                // Full or closed: then its call has more to worry about.
                let _ = inbox.try_send(Posted { told, verdict: oneshot::channel().0 });
            }
            response_body::json(Answer::from(invalid))
        })?),
    };
    if let Told::Message(Message::Request(request)) = &message {
        guest.record().of_method(&request.method);
    }
    let (verdict, taken) = oneshot::channel();
    inbox.try_send(Posted { told: message, verdict }).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => response_body::too_busy(STREAM_RETRY),
        mpsc::error::TrySendError::Closed(_) => ended(door),
    })?;
    match taken.await {
        Ok(Ok(())) => Ok(response_body::empty(StatusCode::ACCEPTED)),
        Ok(Err(answer)) => Err(response_body::json(answer).into()),
        // It has ended at this very moment.
        Err(_) => Err(ended(door).into()),
    }
}

/// Reads which session is meant. An id has no character that would be escaped.
fn session_id(query: &str) -> Result<&str, (StatusCode, &'static str)> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut ids = pairs.filter(|(name, _)| *name == ID_MEMBER).map(|(_, id)| id);
    match (ids.next(), ids.next()) {
        (Some(id), None) => Ok(id),
        _ => Err((
            StatusCode::BAD_REQUEST,
            "no session: GET /sse first, then post to the address that its `endpoint` event tells",
        )),
    }
}

/// The refusal of a message whose session is not there.
fn ended(door: &Door) -> Reply {
    if door.stop.is_cancelled() {
        let text = "shutting down; connect again";
        return closing(response_body::refusal(StatusCode::SERVICE_UNAVAILABLE, text));
    }
    let text = "no session has this id, or its stream has ended: GET /sse again";
    response_body::refusal(StatusCode::NOT_FOUND, text)
}

/// The member of the query that names a session, as the SDKs call it.
const ID_MEMBER: &str = "sessionId";
/// How many posted messages wait for the session's task, which waits for nobody; more are refused.
const INBOX: usize = 64;
/// When a client with too many streams, sessions or messages may try again.
const STREAM_RETRY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_messages_is_a_path_behind_the_proxys_own() {
        assert_eq!(address("", "x"), "/messages?sessionId=x");
        assert_eq!(address("/weir", "x"), "/weir/messages?sessionId=x");
    }

    #[test]
    fn one_session_is_named() {
        for (query, expected) in [
            ("sessionId=x", Some("x")),
            ("a=b&sessionId=x&c", Some("x")),
            ("sessionId=", Some("")),
            ("sessionId=x&sessionId=y", None),
            ("session_id=x", None),
            ("sessionId", None),
            ("", None),
        ] {
            assert_eq!(session_id(query).ok(), expected, "{query}");
        }
    }
}
