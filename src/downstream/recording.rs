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

use super::answer::{Answer, Failure, Text};
use super::encode::own_code;
use crate::audit::{Ending, Outcome, Record, Wire};
use crate::gateway::{End, Timing};
use crate::mcp::call::Broken;
use crate::rpc::code;

/// The answer, which is the end of what is counted: with its last piece, where it arrives in pieces.
pub(super) fn timed(timing: Timing, answer: Answer) -> Answer {
    let end = match answer.failure {
        None => End::Good,
        Some(Failure::Own(code)) => End::Error(Some(code)),
        Some(Failure::Upstreams(code)) => End::Error(code),
    };
    let text = match answer.text {
        Text::Whole(text) => {
            timing.end(end);
            Text::Whole(text)
        }
        Text::Arriving(head, pieces) => {
            Text::Arriving(head, Timed { pieces, timing: Some(timing), end }.boxed())
        }
    };
    Answer { text, ..answer }
}

/// The pieces of an answer on their way out. Dropped before their end, nobody waits for them.
struct Timed {
    pieces: BoxStream<'static, Result<Bytes, Broken>>,
    timing: Option<Timing>,
    end: End,
}

impl Stream for Timed {
    type Item = Result<Bytes, Broken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = std::task::ready!(self.pieces.as_mut().poll_next(cx));
        let end = match &piece {
            Some(Ok(_)) => None,
            Some(Err(_)) => Some(End::Error(None)),
            None => Some(self.end),
        };
        if let Some((timing, end)) = end.and_then(|end| Some((self.timing.take()?, end))) {
            timing.end(end);
        }
        Poll::Ready(piece)
    }
}

/// The answer, which is the end of the record.
pub(super) fn recorded(record: &Record, answer: Answer) -> Answer {
    let Some(wire) = record.wire() else { return answer };
    let (outcome, code) = judge(record, answer.failure);
    let status = (wire == Wire::Http).then(|| answer.status.as_u16());
    let ending = Ending { outcome, code, status, bytes_out: None };
    let text = match answer.text {
        Text::Whole(text) => {
            record.end(Ending { bytes_out: Some(text.len() as u64), ..ending });
            Text::Whole(text)
        }
        Text::Arriving(head, pieces) => {
            // What stands around the pieces goes out, too.
            let sent = head.len() as u64 + 1;
            Text::Arriving(head, Counted { pieces, sent, ending, record: record.clone() }.boxed())
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
struct Counted {
    pieces: BoxStream<'static, Result<Bytes, Broken>>,
    sent: u64,
    ending: Ending,
    record: Record,
}

impl Counted {
    fn end(&self, outcome: Outcome) {
        self.record.end(Ending { outcome, bytes_out: Some(self.sent), ..self.ending });
    }
}

impl Stream for Counted {
    type Item = Result<Bytes, Broken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = std::task::ready!(self.pieces.as_mut().poll_next(cx));
        match &piece {
            Some(Ok(piece)) => self.sent += piece.len() as u64,
            Some(Err(_)) => self.end(Outcome::Error),
            None => self.end(self.ending.outcome),
        }
        Poll::Ready(piece)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.end(Outcome::Cancelled);
    }
}

/// A stream that stays open. One line tells that it begins; dropped, another one that it has ended.
pub(super) struct Streaming(Record);

impl Streaming {
    pub(super) fn begin(record: Record) -> Self {
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
