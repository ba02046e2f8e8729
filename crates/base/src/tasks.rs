//! Tasks and locks: fairness, CPU-bound work, wakers and task-local values.

pub mod cpu_bound;
pub mod fairness;
pub mod request_scope;
pub mod suppressible_waker;
pub mod sync;
