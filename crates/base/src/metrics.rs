//! Metric cells without locks: counter, gauge and histogram.
//!
//! Invariants: counting is a few atomic instructions, without a lock or an allocation. A value that
//! is read may be slightly old, and never decreases, except that of a [`Gauge`]. Counters and
//! histograms are encoded for Prometheus from the cells themselves.
//!
//! Decision: docs/decisions/0022-metrics.md

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Counter of events.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current count.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Number of things that exist at present.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

/// One unit of a [`Gauge`], which is subtracted when this is dropped.
#[derive(Debug)]
pub struct GaugeGuard(Arc<Gauge>);

impl Gauge {
    /// Adds one until the returned guard is dropped.
    pub fn enter(gauge: &Arc<Self>) -> GaugeGuard {
        gauge.0.fetch_add(1, Ordering::Relaxed);
        GaugeGuard(Arc::clone(gauge))
    }

    /// Adds one if fewer than `limit` are there.
    pub fn enter_below(gauge: &Arc<Self>, limit: usize) -> Option<GaugeGuard> {
        let before = gauge.0.fetch_add(1, Ordering::Relaxed);
        let guard = GaugeGuard(Arc::clone(gauge));
        (before < limit as u64).then_some(guard)
    }

    /// Returns the current value.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
}

impl Histogram {
    /// Records one duration.
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.iter().position(|bound| micros <= *bound);
        self.buckets[bucket.unwrap_or(BOUNDS.len())].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the number of durations per bucket: at most the bound of the same index in
    /// [`BOUNDS`] and longer than the previous one; the last bucket counts those longer than all.
    pub fn buckets(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed))
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets().sum()
    }

    /// Returns the sum of all durations, in microseconds.
    pub fn sum_micros(&self) -> u64 {
        self.micros.load(Ordering::Relaxed)
    }
}

impl TypedMetric for &Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for &Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        // Read once, so that the count is the sum of the buckets.
        let buckets: Vec<_> = bounds.zip(self.buckets()).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.sum_micros() as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// Pairs each cell of a table with the labels of its row and its column.
pub fn labeled<R: Copy, C: Copy, T, const COLUMNS: usize>(
    rows: impl IntoIterator<Item = R>,
    columns: [C; COLUMNS],
    cells: &[[T; COLUMNS]],
) -> impl Iterator<Item = (R, C, &T)> {
    rows.into_iter().zip(cells).flat_map(move |(label, row)| {
        columns.into_iter().zip(row).map(move |(column, cell)| (label, column, cell))
    })
}

/// Upper bounds of the buckets in seconds. From 10 ms on they are the bounds that the semantic
/// conventions of OpenTelemetry recommend for MCP; most operations of a gateway are faster.
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

/// Number of buckets.
pub const BUCKETS: usize = BOUNDS.len() + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_it_does_not_pass() {
        let histogram = Histogram::default();
        for (micros, bucket) in [(0, 0), (100, 0), (101, 1), (300_000_000, 16), (300_000_001, 17)] {
            let values = || (histogram.buckets().collect::<Vec<_>>(), histogram.sum_micros());
            let (mut buckets, sum) = values();
            histogram.observe(Duration::from_micros(micros));
            buckets[bucket] += 1;
            assert_eq!(histogram.count(), buckets.iter().sum::<u64>());
            assert_eq!(values(), (buckets, sum + micros), "{micros}");
        }
        let bounds = BOUNDS.map(|seconds| (seconds * 1e6).round() as u64);
        assert_eq!(bounds, BOUNDS_MICROS);
    }

    #[test]
    fn what_is_present_is_counted_until_it_is_dropped() {
        let gauge = Arc::new(Gauge::default());
        let (one, other) = (Gauge::enter(&gauge), Gauge::enter(&gauge));
        assert_eq!(gauge.read(), 2);
        assert!(Gauge::enter_below(&gauge, 2).is_none());
        assert!(Gauge::enter_below(&gauge, 3).is_some());
        drop((one, other));
        assert_eq!(gauge.read(), 0);
    }
}
