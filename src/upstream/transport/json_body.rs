//! Reads the answer to a request from the JSON body of an HTTP response.
//!
//! A small body is read whole. A large one whose `result` has begun may be handed on while it arrives:
//! no byte of it is held, and only its envelope is checked, at the end. If that check fails, or the
//! body breaks off, the stream ends with [`Broken`]. A member that has to be read keeps a result from being
//! handed on; should it come when much has gone out already, the stream ends in the same way.
//!
//! Knows nothing of: event streams, and what the result means.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::json::{Extract, Extracted, Object};
use crate::mcp::call::Broken;
use crate::memory_budget::{Budget, Growing, NoRoom};
use crate::upstream::message::Failure;
use crate::upstream::transport::http_pool::Arrival;

/// Up to this size a body is held.
const HELD_BYTES: usize = 64 * 1024;

/// How much an envelope may hold beside its result.
const ENVELOPE_BYTES: usize = 4 * 1024;

/// A body, or the result in one that is still arriving.
pub(crate) enum Read {
    Whole(Bytes),
    Arriving(BoxStream<'static, Result<Bytes, Broken>>),
}

/// Reads the body of the answer to request `id`, at most `limit` bytes, which count against `budget`; hands a large result on while
/// it arrives if `stream` allows it, unless it has this member.
pub(crate) async fn read(
    mut body: Arrival,
    id: u64,
    limit: usize,
    budget: &Budget,
    stream: bool,
    unless: Option<&'static str>,
) -> Result<Read, Failure> {
    if body.length().is_some_and(|length| length > limit as u64) {
        return Err(Failure::TooLarge(limit));
    }
    let (mut held, mut growing) = (BytesMut::new(), Growing::new(budget));
    let mut may_stream = stream;
    while let Some(chunk) = body.chunk().await {
        held.extend_from_slice(&chunk.map_err(Failure::Broke)?);
        if held.len() > limit {
            return Err(Failure::TooLarge(limit));
        }
        growing.reach(held.len()).map_err(|NoRoom| Failure::NoRoom)?;
        if may_stream && held.len() > HELD_BYTES {
            let mut extract = Extract::new("result", ENVELOPE_BYTES).watching(unless);
            let text = held.split().freeze();
            match extract.feed(&text) {
                Ok(begun) if extract.found() && !extract.has_come() => {
                    let room = limit - text.len();
                    return Ok(Read::Arriving(Follow { body, extract, id, room }.pieces(begun)));
                }
                // What has to be read, an error object, or an array of messages: read it whole.
                _ => may_stream = false,
            }
            held = BytesMut::from(text);
        }
    }
    Ok(Read::Whole(growing.bind(held.freeze())))
}

/// Follows a body whose result is being handed on.
struct Follow {
    body: Arrival,
    extract: Extract,
    id: u64,
    /// How many bytes may still come.
    room: usize,
}

/// Where the stream of pieces stands.
enum At {
    Begun(Follow, Extracted),
    Inside(Follow),
    End,
}

impl Follow {
    fn pieces(self, begun: Extracted) -> BoxStream<'static, Result<Bytes, Broken>> {
        futures::stream::unfold(At::Begun(self, begun), |at| async {
            match at {
                At::Begun(follow, extracted) => follow.take(extracted).await,
                At::Inside(follow) => follow.next().await,
                At::End => None,
            }
        })
        .filter(|piece| {
            // Nothing but the end of the envelope came.
            let is_empty = piece.as_ref().is_ok_and(Bytes::is_empty);
            std::future::ready(!is_empty)
        })
        .boxed()
    }

    async fn next(mut self) -> Option<(Result<Bytes, Broken>, At)> {
        let broken = |text: &str| Some((Err(Broken(text.to_owned())), At::End));
        let chunk = match self.body.chunk().await {
            None => return broken("the body ended too early"),
            Some(Err(error)) => return broken(&error),
            Some(Ok(chunk)) => chunk,
        };
        let Some(room) = self.room.checked_sub(chunk.len()) else {
            return broken("the body is larger than allowed");
        };
        self.room = room;
        match self.extract.feed(&chunk) {
            // What has gone out cannot be taken back, and what is asked for now nobody has read. A server that
            // asks has no more than an opaque state to say before it.
            Ok(_) if self.extract.has_come() => {
                broken("it asks for input behind a large beginning")
            }
            Ok(extracted) => self.take(extracted).await,
            Err(unreadable) => broken(&unreadable.to_string()),
        }
    }

    async fn take(mut self, extracted: Extracted) -> Option<(Result<Bytes, Broken>, At)> {
        match extracted {
            Extracted::Part(piece) => Some((Ok(piece), At::Inside(self))),
            Extracted::End(piece) => match self.end().await {
                // The last piece must not look like success if the envelope is wrong: what breaks
                // is the whole.
                Err(broken) => Some((Err(broken), At::End)),
                Ok(()) => Some((Ok(piece), At::End)),
            },
        }
    }

    /// Checks the envelope, and that nothing but white space follows.
    async fn end(&mut self) -> Result<(), Broken> {
        let envelope = Object::parse(self.extract.rest()).map_err(|bad| Broken(bad.to_string()))?;
        let id = self.id.to_string();
        if envelope.get("id") != Some(&id) || envelope.get("jsonrpc") != Some("\"2.0\"") {
            return Err(Broken("the reply is not the answer to the call".into()));
        }
        if envelope.has("error") {
            return Err(Broken("the reply is both a result and an error".into()));
        }
        while let Some(chunk) = self.body.chunk().await {
            let chunk = chunk.map_err(Broken)?;
            let room = self.room.checked_sub(chunk.len());
            self.room = room.ok_or_else(|| Broken("the body is larger than allowed".into()))?;
            self.extract.feed(&chunk).map_err(|unreadable| Broken(unreadable.to_string()))?;
        }
        Ok(())
    }
}
