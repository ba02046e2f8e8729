//! What clients may take: of our time, and of what there is.
//!
//! Knows nothing of: how any of it is counted.

use std::time::Duration;

/// How long a client may take on a connection over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For a request's head, counted from its first byte or the connection's start.
    pub head: Duration,
    /// For a request's body.
    pub body: Duration,
    /// While it takes nothing of what is written to it.
    pub write: Duration,
    /// Between two requests.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            write: Duration::from_secs(30),
            idle: Duration::from_secs(75),
        }
    }
}

/// What one client may have at a time. Those without credentials are many in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerClient {
    /// Requests that are being worked on.
    pub calls: usize,
    /// Requests that wait for that; further ones are refused at once.
    pub waiting: usize,
    /// How long they wait before they are refused.
    pub wait: Duration,
    /// Change streams of the modern era.
    pub streams: usize,
    /// Legacy sessions.
    pub sessions: usize,
}

impl Default for PerClient {
    fn default() -> Self {
        Self { calls: 64, waiting: 128, wait: Duration::from_secs(1), streams: 8, sessions: 32 }
    }
}
