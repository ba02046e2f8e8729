//! Access: who may see and use what. A catalog of items, checks of content, approved definitions,
//! and the policy, which do not know each other.

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
