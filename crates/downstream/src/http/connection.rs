//! HTTP connections below the level of requests: listener, worker threads, TLS, framing, timeouts.

pub(crate) mod connection_over;
pub(crate) mod framing;
pub(crate) mod idle_eviction;
pub(crate) mod listener;
pub(super) mod replicas;
pub(crate) mod timed_io;
pub mod tls;
pub(crate) mod workers;
