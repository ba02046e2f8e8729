//! Limits on useless data from an upstream, equal on all transports.
//!
//! A limit applies to one stream: the standard output of a child, an event stream, a response.
//! Within it everything useless is skipped and counted; beyond it the stream is ended, and with it
//! the child, or the request that it is the response to.
//!
//! No configuration keys exist for these limits: a server that follows the protocol stays far below
//! each one, and for one that does not another number would change nothing.

use std::time::Duration;

use tokio::time::Instant;

/// Window in which all but oversized messages are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines and events that are no messages, and progress of unknown calls.
const MAX_JUNK: u32 = 1_000;
/// Empty lines, comments, events without data, and fields of events. Those around messages do not
/// count: each message allows for [`PADDING_PER_MESSAGE`].
const MAX_PADDING: u32 = 1_000;
const PADDING_PER_MESSAGE: u32 = 8;
/// Responses to requests that were never sent.
const MAX_UNASKED: u32 = 100;
/// Messages that belong to no request in flight: list changes, log messages for no client, late
/// progress and responses, requests of the server. All of them are legal, and 20 000 a second cost
/// some hundredths of a processor.
const MAX_UNATTRIBUTED: u32 = 200_000;
/// Messages over the size limit, and the window in which they are counted.
const MAX_OVERSIZED: u32 = 2;
/// Each such amount of one oversized message counts as a further one.
const SKIPPED_BYTES: usize = 256 << 20;
const OVERSIZED_WINDOW: Duration = Duration::from_secs(60);

/// Counts of useless messages, by the limit that they count against.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct JunkCounts {
    /// Invalid messages, and progress of unknown calls.
    pub(crate) invalid: u32,
    /// Responses to requests that were never sent.
    pub(crate) unsolicited: u32,
    /// Valid messages that belong to no request in flight; limited too.
    pub(crate) unattributed: u32,
}

/// Counters of the useless data of one stream.
#[derive(Debug)]
pub(crate) struct JunkLimits {
    /// Lines and events that are no messages.
    pub(crate) invalid: JunkLimit,
    /// Lines that are part of no message.
    pub(crate) padding: JunkLimit,
    unsolicited: JunkLimit,
    unattributed: JunkLimit,
    /// Messages over the size limit.
    pub(crate) oversized: JunkLimit,
    /// Skipped bytes of oversized messages that are not counted yet.
    skipped_bytes: usize,
}

/// Maximum number in a window, which begins with its first message.
#[derive(Debug)]
pub(crate) struct JunkLimit {
    max: u32,
    window: Duration,
    what: &'static str,
    began: Option<Instant>,
    count: u32,
}

impl Default for JunkLimits {
    fn default() -> Self {
        let limit = |max, what| JunkLimit::new(max, WINDOW, what);
        Self {
            invalid: limit(MAX_JUNK, "lines or events that are no messages"),
            padding: limit(MAX_PADDING, "empty lines or comments"),
            unsolicited: limit(MAX_UNASKED, "responses to unknown requests"),
            unattributed: limit(MAX_UNATTRIBUTED, "messages that belong to no request"),
            oversized: JunkLimit::new(MAX_OVERSIZED, OVERSIZED_WINDOW, "messages over the limit"),
            skipped_bytes: 0,
        }
    }
}

impl JunkLimits {
    /// Counts skipped bytes of an oversized message: one without an end counts again and again.
    pub(crate) fn count_skipped(&mut self, bytes: usize) -> Result<(), String> {
        self.skipped_bytes += bytes;
        while self.skipped_bytes >= SKIPPED_BYTES {
            self.skipped_bytes -= SKIPPED_BYTES;
            self.oversized.count(1)?;
        }
        Ok(())
    }

    /// Counts the useless messages of a text that contained messages.
    pub(crate) fn count_message(&mut self, counts: &JunkCounts) -> Result<(), String> {
        self.padding.count = self.padding.count.saturating_sub(PADDING_PER_MESSAGE);
        self.invalid.count(counts.invalid)?;
        self.unsolicited.count(counts.unsolicited)?;
        self.unattributed.count(counts.unattributed)
    }
}

impl JunkLimit {
    fn new(max: u32, window: Duration, what: &'static str) -> Self {
        Self { max, window, what, began: None, count: 0 }
    }

    /// Counts messages or lines. Fails beyond the limit, with the reason why the stream ends.
    pub(crate) fn count(&mut self, more: u32) -> Result<(), String> {
        // The clock is read only if there is something to count.
        if more == 0 {
            return Ok(());
        }
        let now = Instant::now();
        if self.began.is_none_or(|began| now.duration_since(began) >= self.window) {
            (self.began, self.count) = (Some(now), 0);
        }
        self.count = self.count.saturating_add(more);
        if self.count <= self.max {
            return Ok(());
        }
        let (max, what, seconds) = (self.max, self.what, self.window.as_secs());
        Err(format!("it sent too much junk: more than {max} {what} in {seconds} s"))
    }
}

#[cfg(test)]
mod tests {
    use crate::transport::junk_limits::*;

    fn counts(invalid: u32, unsolicited: u32, unattributed: u32) -> JunkCounts {
        JunkCounts { invalid, unsolicited, unattributed }
    }

    #[tokio::test(start_paused = true)]
    async fn each_kind_of_nonsense_is_too_much_beyond_its_own_limit() {
        let mut limits = JunkLimits::default();
        limits.count_message(&counts(MAX_JUNK, MAX_UNASKED, MAX_UNATTRIBUTED)).expect("within");
        limits.padding.count(MAX_PADDING).expect("within");
        assert_eq!(
            limits.invalid.count(1).expect_err("too much"),
            "it sent too much junk: more than 1000 lines or events that are no messages in 10 s"
        );
        assert!(limits.padding.count(1).is_err());
        assert!(limits.count_message(&counts(0, 1, 0)).is_err());
        assert!(limits.count_message(&counts(0, 0, 1)).is_err());
        tokio::time::advance(WINDOW).await;
        limits
            .count_message(&counts(MAX_JUNK, MAX_UNASKED, MAX_UNATTRIBUTED))
            .expect("a new window");
        for _ in 0..MAX_OVERSIZED {
            limits.oversized.count(1).expect("within");
        }
        assert!(limits.oversized.count(1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_happens_too_often_in_a_while_is_found() {
        let mut limit = JunkLimit::new(3, Duration::from_secs(10), "messages");
        assert!(limit.count(3).is_ok());
        assert!(limit.count(1).is_err());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(limit.count(0).is_ok() && limit.count(3).is_ok() && limit.count(1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_without_an_end_counts_as_one_over_the_limit_again_and_again() {
        let mut limits = JunkLimits::default();
        limits.oversized.count(1).expect("the first");
        limits.count_skipped(SKIPPED_BYTES - 1).expect("a large one");
        limits.count_skipped(1).expect("the second");
        assert!(limits.count_skipped(SKIPPED_BYTES).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn comments_that_keep_a_stream_alive_and_lines_around_messages_are_never_too_much() {
        let mut limits = JunkLimits::default();
        // An hour of a comment and its empty line each second.
        for _ in 0..3_600 {
            limits.padding.count(2).expect("a keep-alive");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // A burst of messages with a name, an id, a comment and an empty line each.
        for _ in 0..100_000 {
            limits.padding.count(4).expect("around a message");
            limits.count_message(&JunkCounts::default()).expect("a message");
        }
    }
}
