//! Setting up: a client's servers become Weir's upstreams, and the client is pointed at Weir.
//!
//! The real program runs in a home of its own, on files in each client's real format.

#![allow(clippy::disallowed_types, reason = "files of clients are read as JSON")]

mod clients;
mod connect;
mod doctor;
mod init;
mod merging;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod release;
mod take_over;
mod upstreams;
mod user_home;
