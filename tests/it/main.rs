//! Behaviour tests: a whole gateway in memory, between scripted upstreams and raw clients.

#![allow(clippy::disallowed_types, reason = "the judge reads what Weir wrote")]

mod audit;
mod away;
mod bad_input;
mod cancelling;
mod cell;
mod changes;
#[path = "../../fuzz/checks/mod.rs"]
mod checks;
mod client;
mod closing;
mod crowd;
mod definitions;
mod forwarding;
mod fuzz;
mod garbage;
mod guard;
mod harness;
mod identity;
mod introductions;
mod judge;
mod limits;
mod limits_per_client;
mod listing;
mod logging;
mod malformed;
mod orderings;
mod origins;
mod paging;
mod pair;
mod ping;
mod pins;
mod policy;
mod progress;
mod properties;
mod questions;
mod reload;
mod restarting;
mod resuming;
mod retrying;
mod revisions;
mod routes;
mod rules;
mod schema;
mod security;
mod sessions;
mod sight;
mod sim;
mod subscriptions;
mod tasks;
mod tokens;
mod translation;
mod turns;
mod upstream;
mod uris;
mod walk;
mod world;

/// Whether the long suites run: nightly, in an optimized build. Their measurements need that build.
pub(crate) fn by_night() -> bool {
    std::env::var_os("WEIR_NIGHTLY").is_some() && cfg!(not(debug_assertions))
}
