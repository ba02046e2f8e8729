//! Upstream calls: concurrency permit, deadline, suspension for client input, streamed body,
//! metrics.

pub(crate) mod active_call;
pub(crate) mod body_stream;
pub mod call_metrics;
