//! How requests ended, told to their records.
//!
//! Promises: a record ends when its answer is there, or, where that arrives in pieces, with the last of them; what
//! its client does not wait for is cancelled.
//!
//! Knows nothing of: what else stands in a record.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

use crate::audit::{Ending, Outcome, Record, Wire};
use crate::downstream::response::results::own_code;
use crate::downstream::response::{Answer, Failure, Text};
use crate::gateway::{End, Timing};
use crate::jsonrpc::code;
use crate::mcp::call::Broken;

/// The answer, which is the end of the record and of what is counted.
pub(crate) fn concluded(record: &Record, timing: Timing, answer: Answer) -> Answer {
    end(record, Some(timing), answer)
}

/// The answer, which is the end of the record.
pub(crate) fn recorded(record: &Record, answer: Answer) -> Answer {
    end(record, None, answer)
}

fn end(record: &Record, timing: Option<Timing>, answer: Answer) -> Answer {
    let ending = record.wire().map(|wire| {
        let (outcome, code) = judge(record, answer.failure);
        let status = (wire == Wire::Http).then(|| answer.status.as_u16());
        Ending { outcome, code, status, bytes_out: None }
    });
    let end = match answer.failure {
        None => End::Good,
        Some(Failure::Own(code)) => End::Error(Some(code)),
        Some(Failure::Upstreams(code)) => End::Error(code),
    };
    let text = match answer.text {
        Text::Arriving(head, pieces) => {
            // What stands around the pieces goes out, too.
            let sent = head.len() as u64 + 1;
            let record = ending.map(|ending| (record.clone(), ending));
            let timing = timing.map(|timing| (timing, end));
            Text::Arriving(head, Told { pieces, sent, record, timing }.boxed())
        }
        text => {
            if let Some(ending) = ending {
                record.end(Ending { bytes_out: text.len(), ..ending });
            }
            if let Some(timing) = timing {
                timing.end(end);
            }
            text
        }
    };
    Answer { text, ..answer }
}

/// Whether a request failed because of its upstream, or was refused here.
fn judge(record: &Record, failure: Option<Failure>) -> (Outcome, Option<i64>) {
    match failure {
        None => (Outcome::Ok, None),
        Some(Failure::Upstreams(code)) => (Outcome::Error, code),
        Some(Failure::Own(code)) => {
            let failed = [own_code::UNAVAILABLE, own_code::TIMED_OUT, code::INTERNAL_ERROR];
            let is_error = failed.contains(&code) || record.is_sent() && code != own_code::TOO_BUSY;
            (
                if is_error && !record.is_refused() { Outcome::Error } else { Outcome::Refused },
                Some(code),
            )
        }
    }
}

/// The pieces of an answer on their way out. Dropped before their end, nobody waits for them.
struct Told {
    pieces: BoxStream<'static, Result<Bytes, Broken>>,
    sent: u64,
    /// What the last of them ends, and how.
    record: Option<(Record, Ending)>,
    timing: Option<(Timing, End)>,
}

impl Told {
    /// As it was meant, or otherwise.
    fn end(&mut self, otherwise: Option<(Outcome, End)>) {
        if let Some((record, ending)) = self.record.take() {
            let outcome = otherwise.map_or(ending.outcome, |(outcome, _)| outcome);
            record.end(Ending { outcome, bytes_out: Some(self.sent), ..ending });
        }
        if let Some((timing, end)) = self.timing.take() {
            timing.end(otherwise.map_or(end, |(_, end)| end));
        }
    }
}

impl Stream for Told {
    type Item = Result<Bytes, Broken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = std::task::ready!(self.pieces.as_mut().poll_next(cx));
        match &piece {
            Some(Ok(piece)) => self.sent += piece.len() as u64,
            Some(Err(_)) => self.end(Some((Outcome::Error, End::Error(None)))),
            None => self.end(None),
        }
        Poll::Ready(piece)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.end(Some((Outcome::Cancelled, End::Cancelled)));
    }
}

/// A stream that stays open. One line tells that it begins; dropped, another one that it has ended.
pub(crate) struct Streaming(Record);

impl Streaming {
    pub(crate) fn begin(record: Record) -> Self {
        record.stream();
        Self(record)
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        let status = (self.0.wire() != Some(Wire::Stdio)).then_some(200);
        self.0.end(Ending { outcome: Outcome::Ok, code: None, status, bytes_out: None });
    }
}
