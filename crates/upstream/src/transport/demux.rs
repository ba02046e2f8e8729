//! Response demultiplexer for a stream that requests of a connection share: a child's standard
//! output, the event stream of the HTTP+SSE transport, or the stream of another request.
//! Notifications and server requests pass here too, on their way to the dispatcher.
//!
//! Invariants: a response ends the request that it names and no other. So does one that is too
//! large, or for which the memory budget is exhausted, if its beginning or end shows the id.
//! Nothing here waits.

use bytes::Bytes;

use crate::message::TransportError;
use crate::transport::dispatcher::{Dispatched, Dispatcher, UnparsableMessage};
use weir_base::memory::memory_budget::BufferError;
use weir_mcp::call::ResponseOutcome;
use weir_mcp::jsonrpc::{self, Id, MessageShape, PartialMessage};

impl Dispatcher {
    /// Dispatches a text of a shared stream, and completes the requests that it responds to.
    pub(crate) fn demux(&self, text: Bytes) -> Result<Dispatched, UnparsableMessage> {
        let mut dispatched = self.dispatch(text.clone(), None).inspect_err(|junk| {
            // A malformed text may still show the id of the request that it was the response to.
            let error = TransportError::Protocol(format!("invalid response: {junk}"));
            self.fail_named(&text, &text, error);
        })?;
        for (id, outcome) in dispatched.responses.drain(..) {
            self.complete(id, outcome);
        }
        Ok(dispatched)
    }

    /// Completes the requests whose responses arrived on another stream of the session than that of
    /// request `own`: its standalone stream, or that of another request. In an era without sessions
    /// nothing connects two requests, and such a response is dropped.
    pub(crate) fn complete_others(&self, dispatched: &mut Dispatched, own: Option<u64>) {
        if !self.has_session() {
            return;
        }
        let is_other = |(id, _): &mut (Option<u64>, _)| id.is_some() && *id != own;
        for (id, outcome) in dispatched.responses.extract_if(.., is_other) {
            self.complete(id, outcome);
        }
    }

    fn complete(&self, id: Option<u64>, outcome: Result<ResponseOutcome, TransportError>) {
        if !id.is_some_and(|id| self.pending.complete(id, outcome)) {
            self.health.dropped.increment();
            tracing::debug!(upstream = %self.name, ?id, "response without a pending request");
        }
    }

    /// Ends the request whose response was skipped, or returns the error response to a request that
    /// was, as far as `head` and `tail` show the id; an end that was not buffered is empty.
    pub(crate) fn skip(&self, head: &[u8], tail: &[u8], why: BufferError) -> Option<Bytes> {
        let ended = self.fail_named(head, tail, why.into());
        tracing::warn!(upstream = %self.name, ended, %why, "message skipped");
        let PartialMessage { id, shape } = PartialMessage::read(head);
        let id = id.or_else(|| trailing_id(tail).map(Id::from));
        let id = id.filter(|_| shape == MessageShape::Request)?;
        self.refuse(&id, &jsonrpc::Error::new(jsonrpc::code::INVALID_REQUEST, why.to_string()))
    }

    /// Ends the request that a text was the response to, as far as its ends show the id.
    fn fail_named(&self, head: &[u8], tail: &[u8], failure: TransportError) -> bool {
        // The text is a response only if its `result` or `error` has begun.
        let PartialMessage { id, shape } = PartialMessage::read(head);
        let id = id.and_then(|id| id.as_local()).or_else(|| trailing_id(tail));
        let id = id.filter(|_| shape == MessageShape::Response);
        id.is_some_and(|id| self.pending.complete(id, Err(failure)))
    }
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

#[cfg(test)]
mod tests {
    use crate::transport::demux::*;

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
