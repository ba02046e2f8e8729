//! Access: who may see and use what.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

pub mod catalog;
pub mod guard;
pub mod pins;
pub mod policy;
mod role_filter;
