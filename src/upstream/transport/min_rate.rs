//! How slowly a message may arrive over HTTP once it has begun.
//!
//! Promises: a message that has begun brings [`STEP_BYTES`], or its end, within each [`STEP`] in which it is waited
//! for; so one that drips is given up, however long its call may take. What has not begun takes its time: a server that
//! thinks, a stream that idles or carries comments, white space that keeps a body alive. Time in which nobody
//! reads, since a client is slow, does not count.
//!
//! Knows nothing of: what the bytes mean.

use std::time::Duration;

use tokio::time::{Instant, timeout};

/// How long the next [`STEP_BYTES`] of a message may take: at 1 KiB a second.
const STEP: Duration = Duration::from_secs(30);
const STEP_BYTES: usize = 30 * 1024;

/// What is said of a message that arrives too slowly.
pub(crate) const TOO_SLOW: &str = "its answer arrives at less than 1 KiB a second";

/// The pace of one stream of bytes.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// `None` between messages.
    step: Option<Step>,
}

#[derive(Debug)]
struct Step {
    bytes: usize,
    /// How much longer it may be waited for.
    left: Duration,
}

impl Step {
    const BEGUN: Self = Self { bytes: 0, left: STEP };
}

impl Pace {
    /// Waits for what comes next; `None` if a message that has begun has had its time. Cancel-safe if `next` is.
    pub(crate) async fn wait<T>(&mut self, next: impl Future<Output = T>) -> Option<T> {
        let Some(step) = &mut self.step else { return Some(next.await) };
        let waiting = Waiting { since: Instant::now(), left: &mut step.left };
        timeout(*waiting.left, next).await.ok()
    }

    /// Some more has come. The first of it that is no white space begins a message.
    pub(crate) fn took(&mut self, piece: &[u8]) {
        match &mut self.step {
            None if piece.iter().all(u8::is_ascii_whitespace) => {}
            None => self.step = Some(Step::BEGUN),
            Some(step) => {
                step.bytes += piece.len();
                if step.bytes >= STEP_BYTES {
                    *step = Step::BEGUN;
                }
            }
        }
    }

    /// A message has ended, and perhaps another one begun.
    pub(crate) fn ended(&mut self, has_begun: bool) {
        self.step = has_begun.then_some(Step::BEGUN);
    }
}

/// Takes the time that was waited from what is left, also if the wait is dropped.
struct Waiting<'a> {
    since: Instant,
    left: &'a mut Duration,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.left = self.left.saturating_sub(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use crate::upstream::transport::min_rate::*;

    #[tokio::test(start_paused = true)]
    async fn f11_time_in_which_nobody_waits_does_not_count_and_a_wait_that_is_dropped_does() {
        let mut pace = Pace::default();
        pace.took(b" {");
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(pace.wait(sleep(Duration::from_secs(10))).await, Some(()));
        assert!(timeout(Duration::from_secs(15), pace.wait(sleep(STEP))).await.is_err());
        let begin = Instant::now();
        assert_eq!(pace.wait(sleep(STEP)).await, None);
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
        // What is there at once is taken all the same.
        assert_eq!(pace.wait(std::future::ready(())).await, Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn f11_each_thirty_kibibytes_buy_thirty_seconds() {
        let mut pace = Pace::default();
        pace.took(b"{");
        for _ in 0..100 {
            assert_eq!(pace.wait(sleep(Duration::from_secs(29))).await, Some(()));
            pace.took(&[b'x'; STEP_BYTES]);
        }
        for _ in 0..29 {
            assert_eq!(pace.wait(sleep(Duration::from_secs(1))).await, Some(()));
            pace.took(&[b'x'; 1_000]);
        }
        assert_eq!(pace.wait(sleep(Duration::from_secs(2))).await, None);
    }
}
