//! Weir: one MCP endpoint in front of many MCP servers.
//!
//! This package is the program: it builds the components of the other crates ([`app`]), runs the
//! commands ([`cli`]), and serves operators ([`admin`]). ARCHITECTURE.md describes the crates,
//! section 3.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

pub mod admin;
pub mod app;
pub mod cli;
