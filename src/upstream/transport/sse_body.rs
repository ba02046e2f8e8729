//! The body of an HTTP response as a stream of events, and how to tell that it is one.
//!
//! Reading yields after a bounded number of events and bytes, and a stream of too much nonsense is an error.
//!
//! Knows nothing of: what the events hold.

use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::CONTENT_TYPE;

use crate::fairness::{PIECE_BYTES, Workload};
use crate::memory_budget::{Budget, Unheld};
use crate::sse::{Cut, Event, Reader};
use crate::upstream::message::Failure;
use crate::upstream::transport::http_pool::Arrival;
use crate::upstream::transport::junk_limits::NonsenseLimits;

/// The events of one response.
pub(crate) struct Events {
    body: Arrival,
    reader: Reader,
    /// What has come and is not parsed yet.
    unparsed: Bytes,
    ready: std::vec::IntoIter<Event>,
    /// The most that an event may have, and what has come of the present one, at most a piece less.
    limit: usize,
    begun_bytes: usize,
    workload: Workload,
    /// Counts what the stream brings that is of no use.
    pub(crate) limits: NonsenseLimits,
}

/// What an event does that cannot be held: it is over the limit, or there is no room for it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Oversize {
    /// It ends the stream, which is there for one request.
    Fails,
    /// Its two ends are told and the rest is skipped, for the sake of the events behind it.
    IsCut,
}

impl Events {
    /// The events in a body, each of at most `limit` bytes, which count against `budget`.
    pub(crate) fn new(body: Arrival, limit: usize, budget: &Budget, oversize: Oversize) -> Self {
        let reader = match oversize {
            Oversize::Fails => Reader::new(limit),
            Oversize::IsCut => Reader::cutting(limit),
        };
        Self {
            body,
            reader: reader.counted(budget),
            unparsed: Bytes::new(),
            ready: Vec::new().into_iter(),
            limit,
            begun_bytes: 0,
            workload: Workload::default(),
            limits: NonsenseLimits::default(),
        }
    }

    /// The next event; `None` at the end of the stream. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            self.workload.yield_if_due().await;
            if let Some(event) = self.ready.next() {
                self.workload.add(0);
                // A large event now and then costs no more than its call; many of them are a flood. One for which there
                // is no room is not the server's fault.
                if let Some(Cut { why: Unheld::TooLarge(limit), .. }) = event.cut {
                    self.limits.skipped(limit)?;
                }
                return Ok(Some(event));
            }
            if self.unparsed.is_empty() {
                match self.body.chunk().await {
                    None => return Ok(None),
                    Some(Err(error)) => return Err(Failure::Broke(error)),
                    Some(Ok(chunk)) => self.unparsed = chunk,
                }
            }
            let piece = self.unparsed.split_to(self.unparsed.len().min(PIECE_BYTES));
            self.workload.add(piece.len());
            let events = self.reader.feed(&piece)?;
            self.limits.padding(self.reader.take_padding())?;
            let has_begun = self.reader.has_begun();
            if !has_begun || !events.is_empty() {
                self.body.message_ended(has_begun);
                self.begun_bytes = 0;
            } else {
                self.begun_bytes += piece.len();
                if self.begun_bytes > self.limit {
                    self.limits.skipped(piece.len())?;
                }
            }
            self.ready = events.into_iter();
        }
    }

    /// Wants no more of the stream.
    pub(crate) fn drain(self) {
        self.body.drain();
    }

    /// The last event id that the stream has set.
    pub(crate) fn last_id(&self) -> Option<String> {
        self.reader.last_id().filter(|id| !id.is_empty()).map(str::to_owned)
    }

    /// How long the server asks to wait before the stream is taken up again.
    pub(crate) fn retry(&self) -> Option<Duration> {
        self.reader.retry_ms().map(Duration::from_millis)
    }
}

/// What a body claims to be.
pub(crate) enum Media {
    Json,
    Events,
    None,
    Other(String),
}

/// What the headers of a response say that its body is.
pub(crate) fn media_type(headers: &HeaderMap) -> Media {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Media::None };
    let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    match text.split(';').next().unwrap_or_default().trim() {
        "application/json" => Media::Json,
        "text/event-stream" => Media::Events,
        other => Media::Other(crate::upstream::transport::child::quote(other, 100)),
    }
}
