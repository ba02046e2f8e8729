//! The behaviour tests: the whole house in memory, between scripted upstreams and raw clients.

mod bad_input;
mod cancelling;
mod cell;
mod changes;
mod client;
mod closing;
mod forwarding;
mod garbage;
mod harness;
mod limits;
mod listing;
mod logging;
mod origins;
mod paging;
mod pair;
mod ping;
mod policy;
mod progress;
mod resuming;
mod retrying;
mod revisions;
mod sessions;
mod translation;
mod upstream;
mod walk;
mod world;
