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
mod cors;
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
#[allow(dead_code, reason = "shared with the fault tests, which use all of it")]
#[path = "../lab/night.rs"]
mod night;
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
mod request_ends;
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
#[path = "../lab/signing.rs"]
mod signing;
mod sim;
mod slow_calls;
mod subscriptions;
mod tasks;
mod tokens;
mod translation;
mod turns;
mod upstream;
mod uris;
mod walk;
mod world;

pub(crate) use night::by_night;
