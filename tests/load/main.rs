//! The real program under load, in real time: stopped, upgraded, and asked for more than it can do.
//!
//! Every request has a number, and `ledger.rs` knows what became of each: answered with its own number, refused in
//! words, or cut off; and the server behind the house knows what was executed, and how often. What takes long runs
//! with `WEIR_NIGHTLY` set, in an optimized build: only that is held to the bounds that are worth a night.
//!
//! A test's name begins with the rows of the fault table that it shows (F-60 to F-97). What other files show is not
//! shown here again:
//!
//! | row | what | where |
//! |---|---|---|
//! | F-60 | who reads slowly holds up nobody, and takes a bounded part of memory | `tests/load/crowding.rs` |
//! | F-62, F-63 | a client that leaves: cancelled or detached, by era | `tests/it/cancelling.rs` |
//! | F-65, F-66 | heads that trickle and connections that say nothing | `tests/load/strangers.rs`, `tests/it/limits.rs` |
//! | F-67 | bodies that trickle or lie about their length | `tests/load/strangers.rs`, `tests/it/limits.rs` |
//! | F-68 | thousands of idle streams | `tests/load/crowding.rs` |
//! | F-69, F-70 | more than there is room for, and one who asks too much | `tests/load/overload.rs` |
//! | F-71, F-72 | heads and bodies that are too large | `tests/load/strangers.rs` |
//! | F-73 | depth, numbers and members of JSON | `tests/it/bad_input.rs` |
//! | F-75 | half-closed and pipelined connections | `tests/load/strangers.rs` |
//! | F-80, F-91 | stopping | `tests/load/stopping.rs`, `tests/it/closing.rs`, `tests/cli/serving.rs` |
//! | F-84, F-85 | upgrading, and starting again | `tests/load/upgrading.rs` |
//! | F-90 | a panic ends its own request only | `src/downstream/response.rs` |
//! | F-96 | no file descriptors left | `tests/load/overload.rs` |
//! | F-97 | what is held for clients is nearly all that may be | `tests/load/crowding.rs`, `src/memory_budget.rs` |

mod client;
mod crowding;
mod house;
mod ledger;
mod overload;
mod server;
mod stopping;
mod strangers;
mod upgrading;

/// Each of these takes the whole machine.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// How often something is done: by day, and by night.
fn often(by_day: usize, by_night: usize) -> usize {
    let is_night = std::env::var_os("WEIR_NIGHTLY").is_some() && cfg!(not(debug_assertions));
    if is_night { by_night } else { by_day }
}
