//! Health of one upstream: circuit breaker, back-off, crash-loop detection, on-demand start, status
//! report, log, notes for the author of the server.

pub mod author_notes;
pub mod breaker;
pub(crate) mod crash_loop;
pub(crate) mod health_state;
pub(crate) mod keyed_backoff;
pub(crate) mod on_demand;
pub mod status_report;
pub mod upstream_log;
