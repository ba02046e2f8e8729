//! Counters of a replica.

use weir_base::metrics::{Counter, Histogram};

/// Counters of a replica.
#[derive(Debug, Default)]
pub struct FleetMetrics {
    /// Requests that were forwarded, by their results.
    pub(crate) responses: Counter,
    pub(crate) unreachable: Counter,
    pub(crate) broken: Counter,
    /// Sessions that were taken over.
    pub(crate) takeovers: Counter,
    /// Calls of the store that failed, and heartbeats that were too late for a request.
    pub(crate) store_errors: Counter,
    /// Durations of the heartbeats that succeeded.
    pub heartbeats: Histogram,
}
