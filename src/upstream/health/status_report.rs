//! What an operator wants to know of one upstream, at one moment.
//!
//! Promises: a report is cheap to make and holds nothing secret but what a server says in its own words
//! ([`Report::reason`] and the lines of standard error), which are bounded and without control characters.
//!
//! Knows nothing of: who reads it, and how it is shown.

use std::sync::Arc;

use tokio::time::Instant;

use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::upstream::{About, Error};

/// How one upstream is doing.
#[derive(Debug, Clone)]
pub struct Report {
    /// What it is called.
    pub name: UpstreamName,
    /// How it is doing, in a word.
    pub state: State,
    /// Since when.
    pub since: Instant,
    /// Why it is not up, in words fit for the operator; `None` where there is nothing to be told.
    pub reason: Option<String>,
    /// What it said of itself: revision, era, wire, and which connection it is. `None` while it is not connected.
    pub about: Option<Arc<About>>,
    /// The process id of its child, if it is one and runs.
    pub process: Option<u32>,
    /// How many attempts to connect have failed in a row.
    pub failures: u32,
    /// When the next attempt is due, while one is waited for.
    pub next_try: Option<Instant>,
    /// Calls that have a turn.
    pub in_flight: usize,
    /// Calls that wait for one.
    pub waiting: usize,
    /// The last list of each kind that came whole, by [`Kind::index`].
    pub lists: [Option<LastList>; 4],
    /// What has happened since Weir started.
    pub counts: Counts,
}

impl Report {
    /// The last list of a kind that came whole.
    pub fn list(&self, kind: Kind) -> Option<LastList> {
        self.lists[kind.index()]
    }
}

/// How an upstream is doing, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// It has neither connected nor failed yet, or is started after it slept.
    Starting,
    /// It is not connected, since nobody uses it. A call has it started.
    Asleep,
    /// It is connected.
    Up,
    /// It is connected, and left alone for a while, since too many calls in a row failed.
    Open,
    /// It was left alone; the next call finds out whether it is back.
    HalfOpen,
    /// It is not connected, and tried again.
    Down,
    /// It is not connected: it ends again and again soon after it was started.
    CrashLoop,
}

impl State {
    /// Each of them.
    pub const ALL: [Self; 7] = [
        Self::Starting,
        Self::Asleep,
        Self::Up,
        Self::Open,
        Self::HalfOpen,
        Self::Down,
        Self::CrashLoop,
    ];

    /// The state as metrics and JSON name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Asleep => "asleep",
            Self::Up => "up",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
            Self::Down => "down",
            Self::CrashLoop => "crash-loop",
        }
    }

    /// Whether a call that comes now may be sent, if need be after a start.
    pub fn takes_calls(self) -> bool {
        match self {
            Self::Asleep | Self::Up | Self::HalfOpen => true,
            Self::Starting | Self::Open | Self::Down | Self::CrashLoop => false,
        }
    }
}

/// The last list of one kind that came whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastList {
    /// When it came.
    pub at: Instant,
    /// How many items it held.
    pub items: usize,
    /// How many bytes their definitions take.
    pub bytes: usize,
}

/// What has happened with an upstream since Weir started. Each only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often it was started, or connected to, after the first time.
    pub restarts: u64,
    /// How often it was left alone because too many calls in a row failed.
    pub breaker_opens: u64,
    /// Messages of it that nobody waited for, or that had no place.
    pub dropped: u64,
    /// Lines on the standard output of its child that are no message.
    pub junk: u64,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallEnd {
    /// With a result.
    Result,
    /// With an error of the server's own.
    Error,
    /// Unsent: there is no connection, or the server is left alone.
    Unavailable,
    /// Unsent: too many others were under way.
    Busy,
    /// The connection broke.
    Broke,
    /// The server answered with an HTTP status that is no success.
    HttpStatus,
    /// There was no answer in time.
    TimedOut,
    /// The answer cannot be passed on: it is too large, or breaks the protocol.
    Unfit,
    /// Nobody waited for it any more.
    Cancelled,
}

impl CallEnd {
    /// Each of them.
    pub const ALL: [Self; 9] = [
        Self::Result,
        Self::Error,
        Self::Unavailable,
        Self::Busy,
        Self::Broke,
        Self::HttpStatus,
        Self::TimedOut,
        Self::Unfit,
        Self::Cancelled,
    ];

    /// How a call ended of which there is no reply for this reason.
    pub fn of_failure(error: &Error) -> Self {
        match error {
            Error::Unavailable(_) | Error::NoSuchTask => Self::Unavailable,
            Error::Busy { .. } => Self::Busy,
            Error::Broke(_) => Self::Broke,
            Error::HttpStatus { .. } => Self::HttpStatus,
            Error::TimedOut(_) => Self::TimedOut,
            Error::TooLarge(_)
            | Error::NoRoom
            | Error::Undeclared(_)
            | Error::Crowded
            | Error::Protocol(_) => Self::Unfit,
        }
    }

    /// The end as metrics and JSON name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Error => "error",
            Self::Unavailable => "unavailable",
            Self::Busy => "busy",
            Self::Broke => "broke",
            Self::HttpStatus => "http-status",
            Self::TimedOut => "timed-out",
            Self::Unfit => "unfit",
            Self::Cancelled => "cancelled",
        }
    }
}
