//! Exponential back-off with a maximum and optional jitter.

use std::time::Duration;

use crate::jitter;
use crate::upstream::RetrySettings;

/// Back-off of one retried operation.
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: bool,
    next: Duration,
}

impl Backoff {
    /// Creates a back-off that begins with the first pause.
    pub(crate) fn new(retry: &RetrySettings) -> Self {
        let (first, longest) = (retry.backoff, retry.max_backoff);
        Self { first, longest, jitter: retry.jitter, next: first }
    }

    /// Returns to the first pause.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// Returns the next pause, jittered by up to a fifth, so that many upstreams do not reconnect
    /// at once.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = (pause * 2).min(self.longest);
        self.with_jitter(pause)
    }

    /// Returns the longest pause, jittered likewise, and continues with it.
    pub(crate) fn longest(&mut self) -> Duration {
        self.next = self.longest;
        self.with_jitter(self.longest)
    }

    fn with_jitter(&self, pause: Duration) -> Duration {
        if self.jitter { jitter::apply(pause) } else { pause }
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream::health::backoff::*;

    #[test]
    fn pauses_double_up_to_the_longest_give_or_take_a_fifth() {
        let retry = |jitter| RetrySettings {
            backoff: Duration::from_millis(250),
            max_backoff: Duration::from_secs(30),
            jitter,
        };
        let pauses = |jitter| {
            let mut backoff = Backoff::new(&retry(jitter));
            std::iter::repeat_with(move || backoff.next()).take(10)
        };
        let exact: Vec<u128> = pauses(false).map(|pause| pause.as_millis()).collect();
        assert_eq!(exact, [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        for (pause, exact) in pauses(true).zip(exact) {
            let (least, most) = (exact * 4 / 5, exact * 6 / 5);
            assert!((least..=most).contains(&pause.as_millis()), "{pause:?}");
        }
    }
}
