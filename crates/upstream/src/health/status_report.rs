//! Status report of one upstream at one moment, for operators.
//!
//! Invariants: a report is cheap to build. It contains nothing secret, apart from texts of the
//! server itself ([`UpstreamReport::reason`] and the lines of standard error), which are bounded
//! and free of control characters.

use std::sync::Arc;

use strum::{IntoStaticStr, VariantArray};
use tokio::time::Instant;

use crate::ConnectionInfo;
use weir_mcp::name::UpstreamName;

/// Status of one upstream.
#[derive(Debug, Clone)]
pub struct UpstreamReport {
    /// Configured name.
    pub name: UpstreamName,
    /// State in one word.
    pub state: State,
    /// Time of the last state change.
    pub since: Instant,
    /// Reason why the upstream is not up, as text for the operator, if there is one.
    pub reason: Option<String>,
    /// Handshake result: revision, era, transport and number of the connection. `None` while not
    /// connected.
    pub about: Option<Arc<ConnectionInfo>>,
    /// Consecutive failed connection attempts.
    pub failures: u32,
    /// Time of the next attempt, if one is pending.
    pub next_try: Option<Instant>,
    /// Calls in flight.
    pub in_flight: usize,
    /// Calls that wait for a permit.
    pub waiting: usize,
    /// Counters since Weir started.
    pub counts: UpstreamCounts,
}

/// State of an upstream in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum State {
    /// Neither connected nor failed yet, or being started on demand.
    Starting,
    /// Stopped because it was idle; a call starts it.
    Asleep,
    /// Connected.
    Up,
    /// Connected, but the circuit breaker is open after too many failures in a row.
    #[strum(serialize = "open")]
    BreakerOpen,
    /// The circuit breaker is half-open: the next call is the probe.
    #[strum(serialize = "half-open")]
    BreakerHalfOpen,
    /// Not connected; retried.
    Down,
    /// Not connected: the process is in a crash loop.
    CrashLoop,
    /// A user has to sign in to it, with `weir login`.
    NeedsSignIn,
}

impl State {
    /// Name of the state in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether a call that arrives now may be sent, if need be after an on-demand start.
    pub fn takes_calls(self) -> bool {
        match self {
            Self::Asleep | Self::Up | Self::BreakerHalfOpen => true,
            Self::Starting
            | Self::BreakerOpen
            | Self::Down
            | Self::CrashLoop
            | Self::NeedsSignIn => false,
        }
    }
}

/// Counters of an upstream since Weir started. Each only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpstreamCounts {
    /// Number of starts or connection attempts after the first one.
    pub restarts: u64,
    /// Number of times that the circuit breaker opened.
    pub breaker_opens: u64,
    /// Messages without a receiver, or that exceeded a bound.
    pub(crate) dropped: u64,
    /// Lines on the process's standard output that are not JSON-RPC messages.
    pub(crate) junk: u64,
}
