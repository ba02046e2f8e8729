//! How often something may happen in a while.
//!
//! Promise: a plain counter; nothing is remembered but when the while began.

use std::time::Duration;

use tokio::time::Instant;

/// Counts what happens within a while, which begins with the first of it.
#[derive(Debug)]
pub(super) struct Rate {
    window: Duration,
    most: u32,
    began: Option<Instant>,
    count: u32,
}

impl Rate {
    /// No more than `most` in each `window`.
    pub(super) fn new(most: u32, window: Duration) -> Self {
        Self { window, most, began: None, count: 0 }
    }

    /// It happens so many times more; tells whether that is too often.
    pub(super) fn exceeds(&mut self, more: u32) -> bool {
        let now = Instant::now();
        if self.began.is_none_or(|began| now.duration_since(began) >= self.window) {
            (self.began, self.count) = (Some(now), 0);
        }
        self.count = self.count.saturating_add(more);
        self.count > self.most
    }

    /// So many of those in this while do not count.
    pub(super) fn take_back(&mut self, fewer: u32) {
        self.count = self.count.saturating_sub(fewer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_happens_too_often_in_a_while_is_found() {
        let mut rate = Rate::new(3, Duration::from_secs(10));
        assert!(!rate.exceeds(3));
        assert!(rate.exceeds(1));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!rate.exceeds(0) && !rate.exceeds(3) && rate.exceeds(1));
    }
}
