//! Weir between third-party programs: real servers behind it, real clients before it.
//!
//! Real processes, real sockets, a real clock. `./dev prepare` installs the programs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_types, reason = "a test reads what others typed")]

#[path = "../lab/mod.rs"]
mod lab;

mod agents;
mod clients;
mod differential;
mod direct;
mod egress;
mod expected;
mod fleet;
mod inspected;
mod malformed;
mod many;
mod numbers;
mod oauth;
#[cfg(target_os = "linux")]
mod pages;
mod parts;
mod pipe;
mod programs;
mod questions;
mod servers;
mod uris;
