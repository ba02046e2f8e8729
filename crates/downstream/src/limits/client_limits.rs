//! Time limits and quotas per client.

use std::time::Duration;

/// Time limits of an HTTP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionTimeouts {
    /// TLS handshake.
    pub handshake: Duration,
    /// Request head, counted from its first byte or the connection's start.
    pub head: Duration,
    /// Request body.
    pub body: Duration,
    /// Write stall: the client reads none of the bytes that are written to it.
    pub write: Duration,
    /// Idle time between two requests.
    pub idle: Duration,
}

impl Default for ConnectionTimeouts {
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

/// Quota of one client. All clients without credentials are one principal, with a multiple of the
/// quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientQuota {
    /// Requests in progress.
    pub calls: usize,
    /// Requests that wait for a permit; further ones are refused at once.
    pub waiting: usize,
    /// Longest wait for a permit; the request is refused after it.
    pub wait: Duration,
    /// Open notification streams.
    pub streams: usize,
    /// Legacy sessions.
    pub sessions: usize,
}

impl Default for ClientQuota {
    fn default() -> Self {
        Self { calls: 64, waiting: 128, wait: Duration::from_secs(1), streams: 8, sessions: 32 }
    }
}
