//! Numbers that many tasks count at once.
//!
//! Promises: counting is a few atomic instructions, without a lock and without memory; what is read may be a moment
//! old, and never goes down, but for a [`Gauge`].
//!
//! Knows nothing of: what is counted, and who reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often something has happened.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// It has happened once more.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How often until now.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How much there is of something at present.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

/// One of what a [`Gauge`] counts, until it is dropped.
#[derive(Debug)]
pub struct Present(Arc<Gauge>);

impl Gauge {
    /// One more, for as long as what is returned is held.
    pub fn enter(gauge: &Arc<Self>) -> Present {
        gauge.0.fetch_add(1, Ordering::Relaxed);
        Present(Arc::clone(gauge))
    }

    /// How many there are.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long something takes.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
}

/// What a [`Histogram`] has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Durations {
    /// How many were not longer than the bound of this number in [`BOUNDS`], and longer than the one before; in the
    /// last place, how many were longer than all.
    pub buckets: [u64; BUCKETS],
    /// All together, in microseconds.
    pub micros: u64,
}

impl Histogram {
    /// It took so long once.
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.iter().position(|bound| micros <= *bound);
        self.buckets[bucket.unwrap_or(BOUNDS.len())].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What was counted until now.
    pub fn read(&self) -> Durations {
        let buckets = std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed));
        Durations { buckets, micros: self.micros.load(Ordering::Relaxed) }
    }
}

impl Durations {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// These and those.
    pub fn plus(&self, other: &Self) -> Self {
        let buckets = std::array::from_fn(|at| self.buckets[at] + other.buckets[at]);
        Self { buckets, micros: self.micros.wrapping_add(other.micros) }
    }
}

/// The bounds of the buckets in seconds. From 10 ms on they are those that the semantic conventions of OpenTelemetry
/// advise for MCP; most of what a gateway does is done before that.
pub const BOUNDS: [f64; 17] = [
    0.000_1, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0,
];

const BOUNDS_MICROS: [u64; 17] = [
    100,
    1_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
];

/// How many buckets there are.
pub const BUCKETS: usize = BOUNDS.len() + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_it_does_not_pass() {
        let histogram = Histogram::default();
        for (micros, bucket) in [(0, 0), (100, 0), (101, 1), (300_000_000, 16), (300_000_001, 17)] {
            let before = histogram.read();
            histogram.observe(Duration::from_micros(micros));
            let after = histogram.read();
            assert_eq!(after.buckets[bucket], before.buckets[bucket] + 1, "{micros}");
            assert_eq!((after.count(), after.micros), (before.count() + 1, before.micros + micros));
        }
        let bounds = BOUNDS.map(|seconds| (seconds * 1e6).round() as u64);
        assert_eq!(bounds, BOUNDS_MICROS);
    }

    #[test]
    fn what_is_present_is_counted_until_it_is_dropped() {
        let gauge = Arc::new(Gauge::default());
        let (one, other) = (Gauge::enter(&gauge), Gauge::enter(&gauge));
        assert_eq!(gauge.read(), 2);
        drop((one, other));
        assert_eq!(gauge.read(), 0);
    }
}
