//! The behaviour tests: the whole house in memory, between scripted upstreams and raw clients.

mod bad_input;
mod cancelling;
mod cell;
mod changes;
mod client;
mod forwarding;
mod garbage;
mod harness;
mod listing;
mod origins;
mod paging;
mod policy;
mod progress;
mod retrying;
mod revisions;
mod sessions;
mod upstream;
mod walk;
mod world;
