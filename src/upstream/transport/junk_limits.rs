//! Limits on what an upstream sends that is of no use, the same on every transport.
//!
//! A limit applies to one stream: the standard output of a child, an event stream, a response. Within it everything is
//! skipped and counted; beyond it the stream is ended, and with it the child, or the request that it is the response to.
//!
//! There are no keys for this: a server that follows the protocol stays far below each limit, and for one that does not
//! another number would change nothing.

use std::time::Duration;

use crate::upstream::message::Failure;
use crate::upstream::rate_counter::Rate;

/// The time in which all but messages over the limit are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines and events that are no messages, and progress of calls that never were.
const MAX_JUNK: u32 = 1_000;
/// Empty lines, comments, events without data, and fields of events; what stands around messages is not counted: each of
/// them allows for [`PADDING_PER_MESSAGE`].
const MAX_PADDING: u32 = 1_000;
const PADDING_PER_MESSAGE: u32 = 8;
/// Responses to requests that never were.
const MAX_UNASKED: u32 = 100;
/// Messages that belong to no request under way: news of changes, log messages for no client, late progress and responses,
/// requests of the server. All of them are legal, and 20 000 a second cost some hundredths of a processor.
const MAX_UNATTRIBUTED: u32 = 200_000;
/// Messages over the limit of their size, and the time in which they are counted.
const MAX_OVERSIZED: u32 = 2;
/// So much of one message over the limit counts as a further one.
const SKIPPED_BYTES: usize = 256 << 20;
const OVERSIZED_WINDOW: Duration = Duration::from_secs(60);

/// How much of what a server sent is of no use, by the limit that it counts against.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Useless {
    /// What is no message, and progress of a call that never was.
    pub(crate) junk: u32,
    /// Responses to requests that never were.
    pub(crate) unasked: u32,
    /// Messages that belong to no request under way.
    pub(crate) unattributed: u32,
}

/// What one stream has brought that is of no use.
#[derive(Debug)]
pub(crate) struct NonsenseLimits {
    junk: Limit,
    padding: Limit,
    unasked: Limit,
    unattributed: Limit,
    oversized: Limit,
    /// Bytes of messages over the limit that were skipped and are not counted yet.
    skipped_bytes: usize,
}

#[derive(Debug)]
struct Limit {
    rate: Rate,
    most: u32,
    window: Duration,
    what: &'static str,
}

/// Why a stream is ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it sent too much of no use: more than {most} {what} in {} s", window.as_secs())]
pub(crate) struct TooMuch {
    most: u32,
    what: &'static str,
    window: Duration,
}

impl Default for NonsenseLimits {
    fn default() -> Self {
        let limit = |most, what| Limit::new(most, WINDOW, what);
        Self {
            junk: limit(MAX_JUNK, "lines or events that are no messages"),
            padding: limit(MAX_PADDING, "empty lines or comments"),
            unasked: limit(MAX_UNASKED, "responses to what was never asked"),
            unattributed: limit(MAX_UNATTRIBUTED, "messages that belong to no request"),
            oversized: Limit::new(MAX_OVERSIZED, OVERSIZED_WINDOW, "messages over the limit"),
            skipped_bytes: 0,
        }
    }
}

impl NonsenseLimits {
    /// A line or an event was no message.
    pub(crate) fn junk(&mut self) -> Result<(), TooMuch> {
        self.junk.count(1)
    }

    /// So many lines held nothing of a message.
    pub(crate) fn padding(&mut self, lines: u32) -> Result<(), TooMuch> {
        self.padding.count(lines)
    }

    /// A message was larger than allowed.
    pub(crate) fn oversized(&mut self) -> Result<(), TooMuch> {
        self.oversized.count(1)
    }

    /// So many bytes of a message over the limit were skipped: one that has no end counts again and again.
    pub(crate) fn skipped(&mut self, bytes: usize) -> Result<(), TooMuch> {
        self.skipped_bytes += bytes;
        while self.skipped_bytes >= SKIPPED_BYTES {
            self.skipped_bytes -= SKIPPED_BYTES;
            self.oversized()?;
        }
        Ok(())
    }

    /// A text was read that held messages, of which this is of no use.
    pub(crate) fn message(&mut self, useless: &Useless) -> Result<(), TooMuch> {
        self.padding.rate.take_back(PADDING_PER_MESSAGE);
        self.junk.count(useless.junk)?;
        self.unasked.count(useless.unasked)?;
        self.unattributed.count(useless.unattributed)
    }
}

impl Limit {
    fn new(most: u32, window: Duration, what: &'static str) -> Self {
        Self { rate: Rate::new(most, window), most, window, what }
    }

    fn count(&mut self, more: u32) -> Result<(), TooMuch> {
        // The clock is read only where there is something to be counted.
        if more > 0 && self.rate.exceeds(more) {
            let Self { most, window, what, .. } = *self;
            return Err(TooMuch { most, what, window });
        }
        Ok(())
    }
}

impl From<TooMuch> for Failure {
    fn from(too_much: TooMuch) -> Self {
        Self::Protocol(too_much.to_string())
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream::transport::junk_limits::*;

    fn useless(junk: u32, unasked: u32, unattributed: u32) -> Useless {
        Useless { junk, unasked, unattributed }
    }

    #[tokio::test(start_paused = true)]
    async fn each_kind_of_nonsense_is_too_much_beyond_its_own_limit() {
        let mut limits = NonsenseLimits::default();
        limits.message(&useless(MAX_JUNK, MAX_UNASKED, MAX_UNATTRIBUTED)).expect("within");
        limits.padding(MAX_PADDING).expect("within");
        let what = "lines or events that are no messages";
        let junk = TooMuch { most: MAX_JUNK, what, window: WINDOW };
        assert_eq!(limits.junk(), Err(junk.clone()));
        assert_eq!(
            junk.to_string(),
            "it sent too much of no use: more than 1000 lines or events that are no messages in 10 s"
        );
        assert!(limits.padding(1).is_err());
        assert!(limits.message(&useless(0, 1, 0)).is_err());
        assert!(limits.message(&useless(0, 0, 1)).is_err());
        tokio::time::advance(WINDOW).await;
        limits.message(&useless(MAX_JUNK, MAX_UNASKED, MAX_UNATTRIBUTED)).expect("a new window");
        for _ in 0..MAX_OVERSIZED {
            limits.oversized().expect("within");
        }
        assert!(limits.oversized().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_without_an_end_counts_as_one_over_the_limit_again_and_again() {
        let mut limits = NonsenseLimits::default();
        limits.oversized().expect("the first");
        limits.skipped(SKIPPED_BYTES - 1).expect("a large one");
        limits.skipped(1).expect("the second");
        assert!(limits.skipped(SKIPPED_BYTES).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn comments_that_keep_a_stream_alive_and_lines_around_messages_are_never_too_much() {
        let mut limits = NonsenseLimits::default();
        // An hour of a comment and its empty line each second.
        for _ in 0..3_600 {
            limits.padding(2).expect("a keep-alive");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // A burst of messages with a name, an id, a comment and an empty line each.
        for _ in 0..100_000 {
            limits.padding(4).expect("around a message");
            limits.message(&Useless::default()).expect("a message");
        }
    }
}
