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

use crate::message::TransportError;
use crate::transport::http_pool::PooledBody;
use weir_base::json::{Extraction, MemberExtractor, Object, WatchedMember};
use weir_base::memory::memory_budget::{
    BudgetExhausted, BufferError, BufferLimit, GrowingReservation,
};
use weir_mcp::call::PayloadBroken;

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
        return Err(BufferError::TooLarge(limit).into());
    }
    let (mut buffered, mut reservation) = (BytesMut::new(), GrowingReservation::new(budget));
    let mut may_stream = stream;
    while let Some(chunk) = body.chunk().await {
        buffered.extend_from_slice(&chunk.map_err(TransportError::ConnectionLost)?);
        if buffered.len() > limit {
            return Err(BufferError::TooLarge(limit).into());
        }
        reservation
            .grow_to(buffered.len())
            .map_err(|BudgetExhausted| BufferError::BudgetExhausted)?;
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

impl StreamedResult {
    fn pieces(self, begun: Extraction) -> BoxStream<'static, Result<Bytes, PayloadBroken>> {
        // The part of the first text is passed on first; `None` is the end.
        let start = Some((self, Some(begun)));
        futures::stream::try_unfold(start, |state| async {
            let Some((mut result, begun)) = state else { return Ok(None) };
            let extraction = match begun {
                Some(begun) => begun,
                None => result.next().await?,
            };
            match extraction {
                Extraction::Part(piece) => Ok(Some((piece, Some((result, None))))),
                // The last piece must not look like success if the envelope is invalid: the whole
                // response is broken then.
                Extraction::End(piece) => {
                    result.check_envelope().await?;
                    Ok(Some((piece, None)))
                }
            }
        })
        .filter(|piece| {
            // An empty piece carried only the end of the envelope.
            let is_empty = piece.as_ref().is_ok_and(Bytes::is_empty);
            std::future::ready(!is_empty)
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<Extraction, PayloadBroken> {
        let Some(extraction) = self.extract_next().await? else {
            return Err(PayloadBroken("the body ended too early".into()));
        };
        // The part that was passed on cannot be taken back, and the input requests that follow were
        // not read. A server that needs input has only an opaque state to send before them, and one
        // that begins a task only the state of the task.
        if self.extractor.has_matched() {
            let text = "it requests input or begins a task after a large part of the result";
            return Err(PayloadBroken(text.into()));
        }
        Ok(extraction)
    }

    /// Reads the next piece of the body; `None` at its end.
    async fn extract_next(&mut self) -> Result<Option<Extraction>, PayloadBroken> {
        let Some(chunk) = self.body.chunk().await else { return Ok(None) };
        let chunk = chunk.map_err(PayloadBroken)?;
        let remaining_bytes = self.remaining_bytes.checked_sub(chunk.len());
        self.remaining_bytes = remaining_bytes
            .ok_or_else(|| PayloadBroken("the body is larger than allowed".into()))?;
        let extraction = self.extractor.feed(&chunk);
        extraction.map(Some).map_err(|unreadable| PayloadBroken(unreadable.to_string()))
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
        while self.extract_next().await?.is_some() {}
        Ok(())
    }
}
