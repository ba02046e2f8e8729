//! Faults, row by row, against the real program: what Weir promises of upstreams that break in every way there is.
//!
//! Real processes, real sockets, a real clock; the tools are in `tests/lab`. A test's name begins with its row,
//! and `docs/reliability.md` says which row is shown where. What is measured is measured alone on the machine
//! (`lab::alone`), beside a baseline of the same run. By night (`WEIR_NIGHTLY`) there is more of it, and rows that take long.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_types, reason = "a test reads what others typed")]
#![cfg(target_os = "linux")]

#[path = "../lab/mod.rs"]
mod lab;

mod blast;
mod children;
mod crowds;
mod floods;
mod garbage;
mod lists;
mod machine;
mod network;
mod soak;
mod tls;
