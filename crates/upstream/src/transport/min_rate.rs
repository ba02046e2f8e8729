//! Minimum transfer rate of a message over HTTP, once it has begun.
//!
//! Invariants: a message that has begun brings [`WINDOW_BYTES`], or its end, within each [`WINDOW`]
//! of waiting, so one that drips is given up, however long its call may take. The time before a
//! message begins is not limited: a server that computes, an idle stream or one with comments,
//! white space that keeps a body alive. Time in which Weir does not read, because a client is slow,
//! does not count.

use std::time::Duration;

use tokio::time::{Instant, timeout};

/// Time for the next [`WINDOW_BYTES`] of a message: a rate of 1 KiB a second.
const WINDOW: Duration = Duration::from_secs(30);
const WINDOW_BYTES: usize = 30 * 1024;

/// Error text for a message that arrives too slowly.
pub(crate) const TOO_SLOW: &str = "its response arrives at less than 1 KiB per second";

/// Minimum rate of one stream of bytes.
#[derive(Debug, Default)]
pub(crate) struct MinRate {
    /// `None` between messages.
    window: Option<RateWindow>,
}

#[derive(Debug)]
struct RateWindow {
    bytes: usize,
    /// Remaining time.
    remaining: Duration,
}

impl RateWindow {
    const FULL: Self = Self { bytes: 0, remaining: WINDOW };
}

impl MinRate {
    /// Waits for the next bytes; `None` if the time of a message that has begun is used up.
    /// Cancel-safe if `next` is.
    pub(crate) async fn wait<T>(&mut self, next: impl Future<Output = T>) -> Option<T> {
        let Some(window) = &mut self.window else { return Some(next.await) };
        let timer = WaitTimer { since: Instant::now(), remaining: &mut window.remaining };
        timeout(*timer.remaining, next).await.ok()
    }

    /// Counts received bytes. The first that are not white space begin a message.
    pub(crate) fn on_bytes(&mut self, piece: &[u8]) {
        match &mut self.window {
            None if piece.iter().all(u8::is_ascii_whitespace) => {}
            None => self.window = Some(RateWindow::FULL),
            Some(window) => {
                window.bytes += piece.len();
                if window.bytes >= WINDOW_BYTES {
                    *window = RateWindow::FULL;
                }
            }
        }
    }

    /// Records that a message has ended, and whether another one has begun.
    pub(crate) fn on_message_end(&mut self, has_begun: bool) {
        self.window = has_begun.then_some(RateWindow::FULL);
    }
}

/// Subtracts the waited time from the remaining time, also if the wait is dropped.
struct WaitTimer<'a> {
    since: Instant,
    remaining: &'a mut Duration,
}

impl Drop for WaitTimer<'_> {
    fn drop(&mut self) {
        *self.remaining = self.remaining.saturating_sub(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use crate::transport::min_rate::*;

    #[tokio::test(start_paused = true)]
    async fn f11_time_in_which_nobody_waits_does_not_count_and_a_wait_that_is_dropped_does() {
        let mut min_rate = MinRate::default();
        min_rate.on_bytes(b" {");
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(min_rate.wait(sleep(Duration::from_secs(10))).await, Some(()));
        assert!(timeout(Duration::from_secs(15), min_rate.wait(sleep(WINDOW))).await.is_err());
        let begin = Instant::now();
        assert_eq!(min_rate.wait(sleep(WINDOW)).await, None);
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
        // Bytes that are ready at once are read all the same.
        assert_eq!(min_rate.wait(std::future::ready(())).await, Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn f11_each_thirty_kibibytes_buy_thirty_seconds() {
        let mut min_rate = MinRate::default();
        min_rate.on_bytes(b"{");
        for _ in 0..100 {
            assert_eq!(min_rate.wait(sleep(Duration::from_secs(29))).await, Some(()));
            min_rate.on_bytes(&[b'x'; WINDOW_BYTES]);
        }
        for _ in 0..29 {
            assert_eq!(min_rate.wait(sleep(Duration::from_secs(1))).await, Some(()));
            min_rate.on_bytes(&[b'x'; 1_000]);
        }
        assert_eq!(min_rate.wait(sleep(Duration::from_secs(2))).await, None);
    }
}
