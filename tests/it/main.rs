//! The behaviour tests: the whole house in memory, between scripted upstreams and raw clients.

mod cell;
mod client;
mod harness;
mod upstream;
