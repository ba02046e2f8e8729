//! Memory and queues: the budget of buffered bytes, queues and quotas.

pub mod coalescing_queue;
pub mod memory_budget;
pub mod quota;
