//! Contents of the store, as the heartbeats have found them.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::{Roster, SETTLING};

/// Contents of the store, and whether it replies in time.
#[derive(Debug)]
pub(super) struct StoreContents {
    has_replied: bool,
    steady: Duration,
    age: Duration,
    /// Time at which the store came back, with contents that may be older than before.
    back_at: Option<Instant>,
    /// Time at which it was found to have lost its contents.
    lost_at: Option<Instant>,
    /// Number of heartbeats in a row for which the store has taken longer than a request waits.
    slow_beats: u32,
    /// True if the last heartbeat has failed, and before the first one.
    has_failed: bool,
}

impl Default for StoreContents {
    fn default() -> Self {
        Self {
            has_replied: false,
            steady: Duration::ZERO,
            age: Duration::ZERO,
            back_at: None,
            lost_at: None,
            slow_beats: 0,
            has_failed: true,
        }
    }
}

impl StoreContents {
    /// Takes over what a heartbeat has found. Returns whether the store came back, with contents
    /// that may be older than before.
    pub(super) fn learn(&mut self, roster: &Roster, now: Instant) -> bool {
        let (steady, age) = (roster.steady, roster.key_use.known);
        let is_back = self.has_replied && (roster.is_other || steady < self.steady);
        if is_back {
            self.back_at = Some(now);
        }
        if self.has_replied && age < self.age {
            self.lost_at = Some(now);
        }
        (self.has_replied, self.steady, self.age) = (true, steady, age);
        is_back
    }

    /// Takes note of the end of a heartbeat.
    pub(super) fn end_beat(&mut self, has_failed: bool, is_slow: bool) {
        self.has_failed = has_failed;
        self.slow_beats = if is_slow { self.slow_beats.saturating_add(1) } else { 0 };
    }

    /// Returns whether the last heartbeats were slow, or the last one has failed.
    pub(super) fn is_away(&self) -> bool {
        self.slow_beats >= MAX_SLOW_BEATS || self.has_failed
    }

    /// Returns the age that the contents have at least. They are lost for some time after they were
    /// found to be.
    pub(super) fn least_age(&self, now: Instant) -> Duration {
        let least = if is_recent(self.lost_at, now) { SETTLING } else { Duration::ZERO };
        self.age.max(least)
    }

    /// Returns whether the store may have lost the last charges.
    pub(super) fn may_have_lost_charges(&self, now: Instant) -> bool {
        is_recent(self.back_at, now)
    }
}

fn is_recent(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now - at < SETTLING)
}

/// Slow heartbeats in a row after which the store counts as away: one may be late like any other.
const MAX_SLOW_BEATS: u32 = 2;
