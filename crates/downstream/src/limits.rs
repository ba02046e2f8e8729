//! Limits per client: concurrent requests, open streams, time limits.

pub(crate) mod client_limits;
pub(crate) mod concurrency;
pub(crate) mod shared_questions;
pub(crate) mod stream_limit;
