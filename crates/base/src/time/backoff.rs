//! Exponential back-off with a maximum and optional jitter.

use std::time::Duration;

use crate::time::jitter;

/// Pauses between the attempts of one operation: each is twice as long as the one before it, up to
/// the longest.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    has_jitter: bool,
    next: Duration,
}

impl Backoff {
    /// Creates a back-off that begins with the first pause.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, has_jitter: false, next: first }
    }

    /// Adds jitter of up to a fifth to each pause, so that many operations are not repeated at
    /// once.
    pub const fn with_jitter(self, has_jitter: bool) -> Self {
        Self { has_jitter, ..self }
    }

    /// Returns to the first pause.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = (pause * 2).min(self.longest);
        self.jittered(pause)
    }

    /// Returns the longest pause, and continues with it.
    pub fn longest_pause(&mut self) -> Duration {
        self.next = self.longest;
        self.jittered(self.longest)
    }

    fn jittered(&self, pause: Duration) -> Duration {
        if self.has_jitter { jitter::apply(pause) } else { pause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_give_or_take_a_fifth() {
        let pauses = |has_jitter| {
            let backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
            let mut backoff = backoff.with_jitter(has_jitter);
            std::iter::repeat_with(move || backoff.next_pause()).take(10)
        };
        let exact: Vec<u128> = pauses(false).map(|pause| pause.as_millis()).collect();
        assert_eq!(exact, [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        for (pause, exact) in pauses(true).zip(exact) {
            let (least, most) = (exact * 4 / 5, exact * 6 / 5);
            assert!((least..=most).contains(&pause.as_millis()), "{pause:?}");
        }
    }
}
