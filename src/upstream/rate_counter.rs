//! Counter of events in a fixed time window.
//!
//! Invariant: it stores only the start of the window and the count.

use std::time::Duration;

use tokio::time::Instant;

/// Counts events in a window that begins with its first event.
#[derive(Debug)]
pub(super) struct RateCounter {
    window: Duration,
    max_events: u32,
    began: Option<Instant>,
    count: u32,
}

impl RateCounter {
    /// Allows `max_events` events in each `window`.
    pub(super) fn new(max_events: u32, window: Duration) -> Self {
        Self { window, max_events, began: None, count: 0 }
    }

    /// Counts `more` events and returns whether the limit is exceeded.
    pub(super) fn exceeds(&mut self, more: u32) -> bool {
        let now = Instant::now();
        if self.began.is_none_or(|began| now.duration_since(began) >= self.window) {
            (self.began, self.count) = (Some(now), 0);
        }
        self.count = self.count.saturating_add(more);
        self.count > self.max_events
    }

    /// Subtracts `fewer` events of this window.
    pub(super) fn subtract(&mut self, fewer: u32) {
        self.count = self.count.saturating_sub(fewer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_happens_too_often_in_a_while_is_found() {
        let mut rate = RateCounter::new(3, Duration::from_secs(10));
        assert!(!rate.exceeds(3));
        assert!(rate.exceeds(1));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!rate.exceeds(0) && !rate.exceeds(3) && rate.exceeds(1));
    }
}
