//! The real program under load, in real time: stopped, upgraded, and overloaded.
//!
//! Every request has a number, and a ledger records the outcome of each: answered with its own
//! number, refused with an error, or cut off; the server behind Weir records what was executed, and
//! how often. Long tests run with `WEIR_NIGHTLY` set, in an optimized build: only that build has to
//! meet the strict bounds.
//!
//! A test's name begins with the rows of the fault table that it shows (F-60 to F-97). Rows that
//! other files show are not repeated here:
//!
//! | row | subject | file |
//! |---|---|---|
//! | F-60 | slow readers: others are served, memory is bounded | `tests/load/crowding.rs` |
//! | F-62, F-63 | a client that leaves: cancelled or detached, by era | `tests/it/cancelling.rs` |
//! | F-65, F-66 | slow heads, silence | `tests/load/strangers.rs`, `tests/it/limits.rs` |
//! | F-67 | slow bodies, wrong lengths | `tests/load/strangers.rs`, `tests/it/limits.rs` |
//! | F-68 | thousands of idle streams | `tests/load/crowding.rs` |
//! | F-69, F-70 | overload, and one client that sends too much | `tests/load/overload.rs` |
//! | F-71, F-72 | heads and bodies that are too large | `tests/load/strangers.rs` |
//! | F-73 | depth, numbers and members of JSON | `tests/it/bad_input.rs` |
//! | F-75 | half-closed and pipelined connections | `tests/load/strangers.rs` |
//! | F-80, F-91 | stopping | `tests/load/stopping.rs`, `tests/it/closing.rs` |
//! | F-84, F-85 | upgrading, and starting again | `tests/load/upgrading.rs` |
//! | F-90 | a panic ends its own request only | `crates/downstream/src/response.rs` |
//! | F-96 | no file descriptors left | `tests/load/overload.rs` |
//! | F-97 | memory budget nearly used up | `tests/load/crowding.rs` |
//! | F-97 | memory budget used up | `crates/base/src/memory/memory_budget.rs` |

#![allow(clippy::disallowed_types, reason = "the lab reads JSON of a running Weir")]

mod client;
mod crowding;
mod gateway;
#[path = "../lab/mod.rs"]
mod lab;
mod overload;
mod server;
mod stopping;
mod strangers;
mod upgrading;

/// Each of these tests uses the whole machine.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Number of repetitions: by day, and by night.
fn often(by_day: usize, at_night: usize) -> usize {
    if lab::by_night() { at_night } else { by_day }
}
