//! Response demultiplexer for a stream that all requests of a connection share: a child's standard
//! output, or the event stream of the HTTP+SSE transport. Notifications and server requests pass
//! here too, on their way to the dispatcher.
//!
//! Invariants: a response ends the request that it names and no other. So does one that is too
//! large, or for which the memory budget is exhausted, if its beginning or end shows the id.
//! Nothing here waits.

use bytes::Bytes;

use crate::json::MemberExtractor;
use crate::memory_budget::BufferError;
use crate::upstream::message::TransportError;
use crate::upstream::transport::dispatcher::{Dispatched, Dispatcher, UnparsableMessage};

impl Dispatcher {
    /// Dispatches a text of a shared stream, and completes the requests that it responds to.
    pub(crate) fn demux(&self, text: Bytes) -> Result<Dispatched, UnparsableMessage> {
        let mut dispatched = self.dispatch(text.clone(), None).inspect_err(|junk| {
            // A malformed text may still show the id of the request that it was the response to.
            let error = TransportError::Protocol(format!("invalid response: {junk}"));
            self.fail_named(&text[..text.len().min(MAX_HEAD_BYTES)], &text, error);
        })?;
        for (id, outcome) in dispatched.responses.drain(..) {
            if !id.is_some_and(|id| self.pending.complete(id, outcome)) {
                self.health.dropped.increment();
                tracing::debug!(upstream = %self.name, ?id, "response without a pending request");
            }
        }
        Ok(dispatched)
    }

    /// Ends the request whose response was skipped, as far as `head` and `tail` show its id; an end
    /// that was not buffered is empty.
    pub(crate) fn skip(&self, head: &[u8], tail: &[u8], why: BufferError) {
        let ended = self.fail_named(head, tail, why.into());
        tracing::warn!(upstream = %self.name, ended, %why, "message skipped");
    }

    /// Ends the request that a text was the response to, as far as its ends show the id.
    fn fail_named(&self, head: &[u8], tail: &[u8], failure: TransportError) -> bool {
        let mut extractor = MemberExtractor::new("result", head.len());
        let _ = extractor.feed(&Bytes::copy_from_slice(head));
        // The text is a response only if its `result` has begun, and the bytes before that are its
        // envelope.
        let id = extractor
            .has_started()
            .then(|| leading_id(&extractor.envelope()).or_else(|| trailing_id(tail)));
        id.flatten().is_some_and(|id| self.pending.complete(id, Err(failure)))
    }
}

/// Returns the number after `"id":` in the beginning of an envelope.
fn leading_id(head: &[u8]) -> Option<u64> {
    let head = std::str::from_utf8(head).ok()?;
    let behind = head.split_once("\"id\"")?.1.trim_start().strip_prefix(':')?.trim_start();
    let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
    behind[..digits].parse().ok()
}

/// Returns the number in `,"id":N}` at the end of an envelope, where the TypeScript SDK writes it.
/// In valid JSON these bytes cannot be part of a string, so the brace closes the envelope and the
/// id is its own.
fn trailing_id(tail: &[u8]) -> Option<u64> {
    let inside = tail.trim_ascii_end().strip_suffix(b"}")?.trim_ascii_end();
    let digits = inside.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, number) = inside.split_at(inside.len() - digits);
    let before = before.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
    before.strip_suffix(b"\"id\"")?.trim_ascii_end().strip_suffix(b",")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Bytes of a malformed text that are searched for the id of its request.
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
            assert_eq!(trailing_id(tail.as_bytes()), id, "{tail}");
        }
    }
}
