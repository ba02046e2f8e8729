//! What comes in on the one stream that all open requests of a connection share: a child's standard
//! output, or the event stream of the HTTP+SSE pair.
//!
//! Promises: an answer ends the request that it names and no other; so does one that is too large, or for which there
//! is no room, if its ends tell whose it is. Nothing here waits.
//!
//! Knows nothing of: how the stream is framed, and how anything is sent.

use std::sync::Arc;

use bytes::Bytes;
use hyper::HeaderMap;

use crate::json::Extract;
use crate::memory_budget::Unheld;
use crate::upstream::message::{Answer, Failure};
use crate::upstream::transport::dispatcher::{Claim, Ear, Junk};
use crate::upstream::transport::junk_limits::Useless;

/// Hears one stream for all open requests.
pub(crate) struct Inbox {
    pub(crate) ear: Arc<Ear>,
}

/// What a text held that the wire has to see to.
pub(crate) struct Taken {
    /// What goes back to the server.
    pub(crate) replies: Vec<Bytes>,
    pub(crate) useless: Useless,
}

impl Inbox {
    /// Gives the answers in a text to their requests, and returns what goes back to the server.
    pub(crate) fn take(&self, text: Bytes) -> Result<Taken, Junk> {
        let heard = self.ear.hear(text.clone(), None).inspect_err(|junk| {
            // What cannot be read at all may still tell whose answer it was to be.
            let broken = Failure::Protocol(format!("its answer is none: {junk}"));
            self.end_named(&text[..text.len().min(MAX_HEAD_BYTES)], &text, broken);
        })?;
        for (id, outcome) in heard.answers {
            if !id.is_some_and(|id| self.ear.pending.settle(id, outcome)) {
                self.ear.vitals.dropped();
                tracing::debug!(upstream = %self.ear.name, ?id, "an answer that nobody waits for");
            }
        }
        Ok(Taken { replies: heard.replies, useless: heard.useless })
    }

    /// Ends the request that a text which is not held was the answer to, as far as its ends tell; an end
    /// that was not kept is empty.
    pub(crate) fn refuse(&self, head: &[u8], tail: &[u8], why: Unheld) {
        let settled = self.end_named(head, tail, why.into());
        tracing::warn!(upstream = %self.ear.name, settled, %why, "a message was skipped");
    }

    /// Ends the request that a text was to answer, as far as its ends tell.
    fn end_named(&self, head: &[u8], tail: &[u8], failure: Failure) -> bool {
        let mut extract = Extract::new("result", head.len());
        let _ = extract.feed(&Bytes::copy_from_slice(head));
        // Only where the result has begun is it an answer, and what precedes it the envelope.
        let id = extract.found().then(|| minted_id(&extract.rest()).or_else(|| last_id(tail)));
        id.flatten().is_some_and(|id| self.ear.pending.settle(id, Err(failure)))
    }
}

/// Waits for an answer that comes in on the shared stream; `None` if that has ended. Cancel-safe.
pub(crate) async fn answer(claim: &mut Claim) -> Option<Result<Answer, Failure>> {
    let settled = claim.await?;
    Some(settled.map(|outcome| Answer { outcome, headers: HeaderMap::new() }))
}

/// The number behind `"id":` in the beginning of an envelope.
fn minted_id(head: &[u8]) -> Option<u64> {
    let head = std::str::from_utf8(head).ok()?;
    let behind = head.split_once("\"id\"")?.1.trim_start().strip_prefix(':')?.trim_start();
    let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
    behind[..digits].parse().ok()
}

/// The number in `,"id":N}` at the end of an envelope, where the TypeScript SDK writes it. In valid JSON
/// these bytes cannot be part of a string, so the brace closes the envelope and the id is its own.
fn last_id(tail: &[u8]) -> Option<u64> {
    let inside = tail.trim_ascii_end().strip_suffix(b"}")?.trim_ascii_end();
    let digits = inside.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, number) = inside.split_at(inside.len() - digits);
    let before = before.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
    before.strip_suffix(b"\"id\"")?.trim_ascii_end().strip_suffix(b",")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// How much of a text that cannot be read is searched for whose answer it was to be.
const MAX_HEAD_BYTES: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use crate::upstream::transport::demux::*;

    #[test]
    fn an_id_at_the_end_is_read_where_it_can_only_be_the_envelopes() {
        for (tail, id) in [
            (r#"x"},"jsonrpc":"2.0","id":42}"#, Some(42)),
            ("x\"} ,\n\"id\" : 7 }\n", Some(7)),
            (r#"{"n":1,"id":42}}"#, None),
            (r#""text":"a,\"id\":42}"}"#, None),
            (r#""text":"a","id":"42"}"#, None),
            (r#"{"id":42}"#, None),
            (r#","id":}"#, None),
            (r#","id":99999999999999999999999}"#, None),
            ("", None),
        ] {
            assert_eq!(last_id(tail.as_bytes()), id, "{tail}");
        }
    }
}
