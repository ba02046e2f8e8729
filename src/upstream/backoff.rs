//! Pauses between attempts that double, up to a longest one.

use std::time::Duration;

use super::Retry;

/// The next pause, and what it grows by.
pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: bool,
    next: Duration,
}

impl Backoff {
    /// Begins with the first pause.
    pub(super) fn new(retry: &Retry) -> Self {
        let (first, longest) = (retry.backoff, retry.max_backoff);
        Self { first, longest, jitter: retry.jitter, next: first }
    }

    /// Begins with the first pause again.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    /// The next pause, give or take a fifth, so that many upstreams do not come back at once.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = (pause * 2).min(self.longest);
        self.vary(pause)
    }

    /// The longest pause, give or take as much, which is then the next one, too.
    pub(super) fn longest(&mut self) -> Duration {
        self.next = self.longest;
        self.vary(self.longest)
    }

    fn vary(&self, pause: Duration) -> Duration {
        if !self.jitter {
            return pause;
        }
        // Without randomness the pauses are merely regular.
        let random = getrandom::u32().unwrap_or(u32::MAX / 2);
        pause.mul_f64(0.8 + 0.4 * f64::from(random) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
