//! How many notes may go out in a second.
//!
//! Promise: after a second of silence as many may go at once as in a second; from then on one in each
//! equal part of it.
//!
//! Knows nothing of: what waits meanwhile.

use std::time::Duration;

use tokio::time::Instant;

/// A rate with a burst: as many at once as in a second, refilled at the same rate.
#[derive(Debug)]
pub(super) struct Rate {
    /// The time that one note takes of the rate.
    spacing: Duration,
    /// How far ahead of now the next one's time may lie.
    burst: Duration,
    /// When the next one would go out if they were evenly spread.
    next_at: Instant,
}

impl Rate {
    /// A rate of which nothing has been used.
    pub(super) fn new(per_second: u32) -> Self {
        let spacing = Duration::from_secs(1) / per_second;
        Self { spacing, burst: Duration::from_secs(1) - spacing, next_at: Instant::now() }
    }

    /// How long it is until the next one may go out.
    pub(super) fn early(&self, now: Instant) -> Duration {
        self.next_at.saturating_duration_since(now + self.burst)
    }

    /// One goes out.
    pub(super) fn count(&mut self, now: Instant) {
        self.next_at = self.next_at.max(now) + self.spacing;
    }

    /// How many may go out now.
    pub(super) fn left(&self, now: Instant) -> usize {
        let used = self.next_at.saturating_duration_since(now);
        let left = self.burst.saturating_sub(used).as_nanos() / self.spacing.as_nanos();
        usize::try_from(left).map_or(usize::MAX, |left| left + 1)
    }
}
