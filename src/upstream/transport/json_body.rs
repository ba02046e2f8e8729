//! Reader of a response in the JSON body of an HTTP response.
//!
//! A small body is buffered. A large one whose `result` has begun may be streamed: it is not
//! buffered, and only its envelope is checked, at the end. If that check fails, or the body breaks
//! off, the stream ends with [`PayloadBroken`]. A result with one of the members that Weir must
//! read is not streamed; if such a member appears after much has been passed on, the stream ends
//! with the same error.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::json::{Extraction, MemberExtractor, Object, WatchedMember};
use crate::mcp::call::PayloadBroken;
use crate::memory_budget::{BudgetExhausted, BufferLimit, GrowingReservation};
use crate::upstream::message::TransportError;
use crate::upstream::transport::http_pool::PooledBody;

/// Size up to which a body is buffered.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;

/// Maximum size of an envelope without its result.
const MAX_ENVELOPE_BYTES: usize = 4 * 1024;

/// Buffered body, or the result of one that is still arriving.
pub(crate) enum JsonBody {
    Buffered(Bytes),
    Streaming(BoxStream<'static, Result<Bytes, PayloadBroken>>),
}

/// Reads the body of the response to request `id` within the limit. Streams a large result if
/// `stream` allows it, unless the result has one of the members `buffer_if`.
pub(crate) async fn read_response(
    mut body: PooledBody,
    id: u64,
    BufferLimit { limit, budget }: &BufferLimit,
    stream: bool,
    buffer_if: &'static [WatchedMember],
) -> Result<JsonBody, TransportError> {
    let limit = *limit;
    if body.length().is_some_and(|length| length > limit as u64) {
        return Err(TransportError::TooLarge(limit));
    }
    let (mut buffered, mut reservation) = (BytesMut::new(), GrowingReservation::new(budget));
    let mut may_stream = stream;
    while let Some(chunk) = body.chunk().await {
        buffered.extend_from_slice(&chunk.map_err(TransportError::ConnectionLost)?);
        if buffered.len() > limit {
            return Err(TransportError::TooLarge(limit));
        }
        reservation
            .grow_to(buffered.len())
            .map_err(|BudgetExhausted| TransportError::MemoryExhausted)?;
        if may_stream && buffered.len() > MAX_BUFFERED_BYTES {
            let mut extractor =
                MemberExtractor::new("result", MAX_ENVELOPE_BYTES).watching(buffer_if);
            let text = buffered.split().freeze();
            match extractor.feed(&text) {
                Ok(begun) if extractor.has_started() && !extractor.has_matched() => {
                    let remaining_bytes = limit - text.len();
                    return Ok(JsonBody::Streaming(
                        StreamedResult { body, extractor, id, remaining_bytes }.pieces(begun),
                    ));
                }
                // A result that Weir must read, an error object or an array of messages is
                // buffered.
                _ => may_stream = false,
            }
            buffered = BytesMut::from(text);
        }
    }
    Ok(JsonBody::Buffered(reservation.bind(buffered.freeze())))
}

/// Body whose result is being streamed.
struct StreamedResult {
    body: PooledBody,
    extractor: MemberExtractor,
    id: u64,
    /// Bytes that may still arrive.
    remaining_bytes: usize,
}

/// Position of the stream of pieces.
enum StreamPosition {
    Begun(StreamedResult, Extraction),
    Inside(StreamedResult),
    End,
}

impl StreamedResult {
    fn pieces(self, begun: Extraction) -> BoxStream<'static, Result<Bytes, PayloadBroken>> {
        futures::stream::unfold(StreamPosition::Begun(self, begun), |position| async {
            match position {
                StreamPosition::Begun(result, extraction) => result.pass_on(extraction).await,
                StreamPosition::Inside(result) => result.next().await,
                StreamPosition::End => None,
            }
        })
        .filter(|piece| {
            // An empty piece carried only the end of the envelope.
            let is_empty = piece.as_ref().is_ok_and(Bytes::is_empty);
            std::future::ready(!is_empty)
        })
        .boxed()
    }

    async fn next(mut self) -> Option<(Result<Bytes, PayloadBroken>, StreamPosition)> {
        let broken = |text: &str| Some((Err(PayloadBroken(text.to_owned())), StreamPosition::End));
        let chunk = match self.body.chunk().await {
            None => return broken("the body ended too early"),
            Some(Err(error)) => return broken(&error),
            Some(Ok(chunk)) => chunk,
        };
        let Some(remaining_bytes) = self.remaining_bytes.checked_sub(chunk.len()) else {
            return broken("the body is larger than allowed");
        };
        self.remaining_bytes = remaining_bytes;
        match self.extractor.feed(&chunk) {
            // The part that was passed on cannot be taken back, and the input requests that follow
            // were not read. A server that needs input has only an opaque state to send before
            // them, and one that begins a task only the state of the task.
            Ok(_) if self.extractor.has_matched() => {
                broken("it requests input or begins a task after a large part of the result")
            }
            Ok(extraction) => self.pass_on(extraction).await,
            Err(unreadable) => broken(&unreadable.to_string()),
        }
    }

    async fn pass_on(
        mut self,
        extraction: Extraction,
    ) -> Option<(Result<Bytes, PayloadBroken>, StreamPosition)> {
        match extraction {
            Extraction::Part(piece) => Some((Ok(piece), StreamPosition::Inside(self))),
            Extraction::End(piece) => match self.check_envelope().await {
                // The last piece must not look like success if the envelope is invalid: the whole
                // response is broken then.
                Err(broken) => Some((Err(broken), StreamPosition::End)),
                Ok(()) => Some((Ok(piece), StreamPosition::End)),
            },
        }
    }

    /// Checks the envelope, and that nothing but white space follows.
    async fn check_envelope(&mut self) -> Result<(), PayloadBroken> {
        let envelope = Object::parse(self.extractor.envelope())
            .map_err(|error| PayloadBroken(error.to_string()))?;
        let id = self.id.to_string();
        if envelope.get("id") != Some(&id) || envelope.get("jsonrpc") != Some("\"2.0\"") {
            return Err(PayloadBroken("the response does not match the request".into()));
        }
        if envelope.has("error") {
            return Err(PayloadBroken("the response has both a result and an error".into()));
        }
        while let Some(chunk) = self.body.chunk().await {
            let chunk = chunk.map_err(PayloadBroken)?;
            let remaining_bytes = self.remaining_bytes.checked_sub(chunk.len());
            self.remaining_bytes = remaining_bytes
                .ok_or_else(|| PayloadBroken("the body is larger than allowed".into()))?;
            self.extractor
                .feed(&chunk)
                .map_err(|unreadable| PayloadBroken(unreadable.to_string()))?;
        }
        Ok(())
    }
}
