//! Setting up: a client's servers become Weir's, and the client is pointed at Weir.
//!
//! The real program runs in a home of its own, on files in each client's real format.

mod connect;
mod desk;
mod init;
mod readme;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod release;
