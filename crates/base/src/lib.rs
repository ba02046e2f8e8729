//! Base: what is neither the protocol nor a gateway.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

pub mod ended_sessions;
pub mod files;
pub mod json;
pub mod memory;
pub mod metrics;
pub mod net;
pub mod secrets;
pub mod tasks;
pub mod text;
pub mod time;
