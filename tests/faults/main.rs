//! Fault tests, row by row, against the real program: the behavior that Weir guarantees when
//! upstreams fail in every known way.
//!
//! Real processes, real sockets, a real clock; the tools are in `tests/lab`. A test's name begins
//! with its row, and `tests/faults.toml` names the tests of each row.
//!
//! By day all tests run side by side, and bounds of time only tell right from wrong. By night
//! (`WEIR_NIGHTLY`) measurements run alone on the machine (`lab::alone_by_night`), beside a
//! baseline of the same run; there are more repetitions, and tests that only run then (`_nightly`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_types, reason = "a test reads what others typed")]
#![cfg(target_os = "linux")]

#[path = "../lab/mod.rs"]
mod lab;

mod blast;
mod bodies;
mod children;
mod crowds;
mod floods;
mod garbage;
mod lists;
mod machine;
mod network;
mod soak;
mod tls;
