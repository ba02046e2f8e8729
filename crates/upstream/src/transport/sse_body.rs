//! Body of an HTTP response as a stream of SSE events, and the media type of a response.
//!
//! Reading yields after a bounded number of events and bytes, and a stream with too much junk is an
//! error.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE};

use crate::message::TransportError;
use crate::message::message_trace::MessageTrace;
use crate::transport::dispatcher::{Dispatched, UnparsableMessage};
use crate::transport::http_pool::PooledBody;
use crate::transport::junk_limits::JunkLimits;
use weir_base::memory::memory_budget::{BufferError, BufferLimit};
use weir_base::tasks::fairness::{PIECE_BYTES, Workload};
use weir_base::text::sse::{Event, SseDecoder, TruncatedEvent};
use weir_mcp::name::UpstreamName;

/// SSE events of one response.
pub(crate) struct SseBody {
    body: PooledBody,
    decoder: SseDecoder,
    /// Received bytes that are not parsed yet.
    unparsed: Bytes,
    decoded: std::vec::IntoIter<Event>,
    /// Maximum size of an event, and the received size of the present one, at most one piece less.
    limit: usize,
    event_bytes: usize,
    workload: Workload,
    /// Limits on junk in the stream.
    pub(crate) limits: JunkLimits,
    trace: Option<Arc<MessageTrace>>,
}

/// Effect of an event that cannot be buffered: it is over the limit, or the memory budget is
/// exhausted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OversizePolicy {
    /// The stream fails. For Streamable HTTP, where no other request shares it.
    Fail,
    /// The event is reduced to its beginning and end, so that the events behind it are still read.
    Truncate,
}

impl SseBody {
    /// Decodes the events in a body, each of which is limited.
    pub(crate) fn new(
        mut body: PooledBody,
        BufferLimit { limit, budget }: &BufferLimit,
        oversize: OversizePolicy,
    ) -> Self {
        let decoder = match oversize {
            OversizePolicy::Fail => SseDecoder::new(*limit),
            OversizePolicy::Truncate => SseDecoder::truncating(*limit),
        };
        let trace = body.take_trace();
        Self {
            body,
            decoder: decoder.with_budget(budget),
            unparsed: Bytes::new(),
            decoded: Vec::new().into_iter(),
            limit: *limit,
            event_bytes: 0,
            workload: Workload::default(),
            limits: JunkLimits::default(),
            trace,
        }
    }

    /// Returns the next event; `None` at the end of the stream. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, TransportError> {
        loop {
            self.workload.yield_if_due().await;
            if let Some(event) = self.decoded.next() {
                self.workload.add(0);
                if let Some(trace) = &self.trace {
                    trace.received_event(&event);
                }
                // A large event now and then costs no more than its call; many of them are a flood.
                // An event that exceeds the memory budget is not the server's fault.
                if let Some(TruncatedEvent { reason: BufferError::TooLarge(limit), .. }) =
                    event.truncated
                {
                    self.limits.count_skipped(limit).map_err(TransportError::Protocol)?;
                }
                return Ok(Some(event));
            }
            if self.unparsed.is_empty() {
                match self.body.chunk().await {
                    None => return Ok(None),
                    Some(Err(error)) => return Err(TransportError::ConnectionLost(error)),
                    Some(Ok(chunk)) => self.unparsed = chunk,
                }
            }
            let piece = self.unparsed.split_to(self.unparsed.len().min(PIECE_BYTES));
            self.workload.add(piece.len());
            let events = self.decoder.feed(&piece)?;
            let padding_lines = self.decoder.take_padding_lines();
            self.limits.padding.count(padding_lines).map_err(TransportError::Protocol)?;
            let has_begun = self.decoder.has_partial_event();
            if !has_begun || !events.is_empty() {
                self.body.min_rate.on_message_end(has_begun);
                self.event_bytes = 0;
            } else {
                self.event_bytes += piece.len();
                if self.event_bytes > self.limit {
                    let skipped = self.limits.count_skipped(piece.len());
                    skipped.map_err(TransportError::Protocol)?;
                }
            }
            self.decoded = events.into_iter();
        }
    }

    /// Counts the junk in an event that was dispatched. One that is no message is junk as a whole,
    /// and dispatches nothing.
    pub(crate) fn count_dispatched(
        &mut self,
        upstream: &UpstreamName,
        dispatched: Result<Dispatched, UnparsableMessage>,
    ) -> Result<Dispatched, String> {
        match dispatched {
            Ok(dispatched) => {
                self.limits.count_message(&dispatched.junk_counts).map(|()| dispatched)
            }
            Err(junk) => {
                tracing::debug!(%upstream, %junk, "invalid message in an event");
                self.limits.invalid.count(1).map(|()| Dispatched::default())
            }
        }
    }

    /// Discards the rest of the stream.
    pub(crate) fn drain(self) {
        self.body.drain();
    }

    /// Returns the last event id that the stream has set.
    pub(crate) fn last_id(&self) -> Option<String> {
        self.decoder.last_id().filter(|id| !id.is_empty()).map(str::to_owned)
    }

    /// Returns the `retry` time: the pause that the server requests before the stream is resumed.
    pub(crate) fn retry(&self) -> Option<Duration> {
        self.decoder.retry_ms().map(Duration::from_millis)
    }
}

/// Media type of a body.
pub(crate) enum MediaType {
    Json,
    EventStream,
    None,
    Other(String),
}

/// Reads the media type of a body from the headers of its response.
pub(crate) fn media_type(headers: &HeaderMap) -> MediaType {
    let Some(value) = headers.get(CONTENT_TYPE) else { return MediaType::None };
    let name = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    let name = name.trim_ascii();
    if let Some(coding) = headers.get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
        let [name, coding] = [name, coding.as_bytes()].map(String::from_utf8_lossy);
        return MediaType::Other(format!("{name} with the coding {coding}"));
    }
    if name.eq_ignore_ascii_case(b"application/json") {
        MediaType::Json
    } else if name.eq_ignore_ascii_case(b"text/event-stream") {
        MediaType::EventStream
    } else {
        MediaType::Other(String::from_utf8_lossy(name).into_owned())
    }
}
