//! Pauses between attempts that double, up to a longest one.

use std::time::Duration;

use crate::jitter;
use crate::upstream::Retry;

/// The next pause, and what it grows by.
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: bool,
    next: Duration,
}

impl Backoff {
    /// Begins with the first pause.
    pub(crate) fn new(retry: &Retry) -> Self {
        let (first, longest) = (retry.backoff, retry.max_backoff);
        Self { first, longest, jitter: retry.jitter, next: first }
    }

    /// Begins with the first pause again.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// The next pause, give or take a fifth, so that many upstreams do not come back at once.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = (pause * 2).min(self.longest);
        self.vary(pause)
    }

    /// The longest pause, give or take as much, which is then the next one, too.
    pub(crate) fn longest(&mut self) -> Duration {
        self.next = self.longest;
        self.vary(self.longest)
    }

    fn vary(&self, pause: Duration) -> Duration {
        if self.jitter { jitter::spread(pause) } else { pause }
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream::health::backoff::*;

    #[test]
    fn pauses_double_up_to_the_longest_give_or_take_a_fifth() {
        let retry = |jitter| Retry {
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
