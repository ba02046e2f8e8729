//! Time and rates: clocks, timestamps, back-off, jitter and rate limits.

pub mod backoff;
pub mod boot_clock;
pub mod jitter;
pub mod rate_limit;
pub mod timestamp;
