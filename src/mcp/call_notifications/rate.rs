//! Rate limit of notifications.
//!
//! Invariant: after a second of silence, a second's worth of notifications may be sent at once;
//! from then on they are evenly spaced.

use std::time::Duration;

use tokio::time::Instant;

/// Rate with a burst of one second's worth, refilled at the same rate.
#[derive(Debug)]
pub(super) struct Rate {
    /// Time between two notifications at this rate.
    spacing: Duration,
    /// Maximum distance of `next_at` from now.
    burst: Duration,
    /// Time of the next notification if they were evenly spaced.
    next_at: Instant,
}

impl Rate {
    /// Creates a rate with its whole burst available.
    pub(super) fn new(per_second: u32) -> Self {
        let spacing = Duration::from_secs(1) / per_second;
        Self { spacing, burst: Duration::from_secs(1) - spacing, next_at: Instant::now() }
    }

    /// Time until the next notification may be sent.
    pub(super) fn wait_time(&self, now: Instant) -> Duration {
        self.next_at.saturating_duration_since(now + self.burst)
    }

    /// Counts a notification that is sent now.
    pub(super) fn count(&mut self, now: Instant) {
        self.next_at = self.next_at.max(now) + self.spacing;
    }

    /// Number of notifications that may be sent now.
    pub(super) fn left(&self, now: Instant) -> usize {
        let used = self.next_at.saturating_duration_since(now);
        let left = self.burst.saturating_sub(used).as_nanos() / self.spacing.as_nanos();
        usize::try_from(left).map_or(usize::MAX, |left| left + 1)
    }
}
