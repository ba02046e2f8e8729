//! What the whole house counts: requests by method and outcome, refusals by reason, limits that were hit.
//!
//! Promises: counting a request takes no memory and no lock, whatever its client sends; there are as many numbers as
//! there are methods and codes, and never more. Only what is refused by a limit takes a lock, for one map operation.
//!
//! Knows nothing of: who reads the numbers, and in what form.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;

use super::Guest;
use crate::jsonrpc::code;
use crate::mcp;
use crate::mcp::call::Method;
use crate::mcp::method_label::Operation;
use crate::metrics::{Counter, Durations, Gauge, Histogram};
use crate::upstream::call::call_metrics;
use crate::upstream::health::status_report::CallEnd;
use crate::upstream::{self, Called};

/// The numbers of one house.
#[derive(Debug, Default)]
pub struct Meters {
    requests: Box<[[Histogram; ENDS]; Operation::COUNT]>,
    calls: Box<[[Histogram; CallEnd::ALL.len()]; Method::ALL.len()]>,
    refusals: [Counter; Reason::ALL.len()],
    limits: Mutex<BTreeMap<usize, Hit>>,
    /// Connections that are open.
    pub connections: Arc<Gauge>,
    /// Streams that stay open to tell of changes.
    pub streams: Arc<Gauge>,
    /// How long sessions lasted that are over.
    pub sessions: Arc<Histogram>,
}

/// Why something was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The request is addressed to somebody else, or comes from a page that is not trusted.
    Host,
    /// The credentials are missing or not good.
    Auth,
    /// A limit is reached.
    Limit,
    /// The role may not use the item.
    Denied,
    /// There is no such item.
    Unknown,
    /// The guard objects to it.
    Guard,
    /// An upstream has as many calls as it takes, or a client as many streams or sessions as it may have.
    Overload,
    /// The request must be recorded, and cannot be.
    Audit,
    /// The house is closing.
    Stopping,
}

impl Reason {
    /// All there are.
    pub const ALL: [Self; 9] = [
        Self::Host,
        Self::Auth,
        Self::Limit,
        Self::Denied,
        Self::Unknown,
        Self::Guard,
        Self::Overload,
        Self::Audit,
        Self::Stopping,
    ];

    /// The reason in one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Auth => "auth",
            Self::Limit => "limit",
            Self::Denied => "denied",
            Self::Unknown => "unknown",
            Self::Guard => "guard",
            Self::Overload => "overload",
            Self::Audit => "audit",
            Self::Stopping => "stopping",
        }
    }
}

/// How often a limit has refused a request, and when it last did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// How often.
    pub count: u64,
    /// When it last did.
    pub last: SystemTime,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With a result.
    Good,
    /// With an error of this code; of one that cannot be read without.
    Error(Option<i64>),
    /// Nobody waited any more.
    Cancelled,
}

/// A request that is being counted. Dropped before its end, it was cancelled.
#[derive(Debug)]
pub struct Timing {
    meters: Arc<Meters>,
    operation: Operation,
    began: Instant,
    is_over: bool,
}

impl Timing {
    /// The request is over.
    pub fn end(mut self, end: End) {
        self.count(end);
    }

    fn count(&mut self, end: End) {
        if !std::mem::replace(&mut self.is_over, true) {
            let took = self.began.elapsed();
            self.meters.requests[self.operation.index()][place(end)].observe(took);
        }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        self.count(End::Cancelled);
    }
}

/// A call that is being counted among all; its upstream counts its own. Dropped before its end, it was cancelled.
pub(super) struct Calling<'m> {
    all: &'m Meters,
    method: Method,
    began: Instant,
    end: CallEnd,
}

impl Calling<'_> {
    /// The call is over.
    pub(super) fn end(mut self, called: &Result<Called, upstream::Error>) {
        self.end = call_metrics::end_of(called);
        if self.end == CallEnd::Busy {
            self.all.refused(Reason::Overload);
        }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.all.calls[self.method as usize][self.end as usize].observe(self.began.elapsed());
    }
}

impl Meters {
    /// Begins to count a request.
    pub fn begin(self: &Arc<Self>, method: &str) -> Timing {
        let (meters, operation) = (Arc::clone(self), Operation::of(method));
        Timing { meters, operation, began: Instant::now(), is_over: false }
    }

    /// Begins to count a call to an upstream.
    pub(super) fn begin_call(&self, method: Method) -> Calling<'_> {
        let (began, end) = (Instant::now(), CallEnd::Cancelled);
        Calling { all: self, method, began, end }
    }

    /// Counts something that was not done.
    pub fn refused(&self, reason: Reason) {
        self.refusals[reason as usize].count();
    }

    /// Counts a request that a limit refused, by its number in the configuration.
    pub fn limited(&self, limit: usize) {
        self.refused(Reason::Limit);
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let hit = limits.entry(limit).or_insert(Hit { count: 0, last: SystemTime::UNIX_EPOCH });
        (hit.count, hit.last) = (hit.count + 1, SystemTime::now());
    }

    /// The requests, by method and by what kind of failure they ended with; only what has happened.
    pub fn requests(&self) -> impl Iterator<Item = (Operation, Option<&'static str>, Durations)> {
        let each =
            Operation::all().flat_map(|operation| (0..ENDS).map(move |end| (operation, end)));
        let read = each.map(|(operation, end)| {
            (operation, error_type(end), self.requests[operation.index()][end].read())
        });
        read.filter(|(.., durations)| durations.count() > 0)
    }

    /// The calls to all upstreams, in the same way.
    pub fn calls(&self) -> impl Iterator<Item = (Method, CallEnd, Durations)> {
        let each = Method::ALL
            .into_iter()
            .flat_map(|method| CallEnd::ALL.into_iter().map(move |end| (method, end)));
        let read = each
            .map(|(method, end)| (method, end, self.calls[method as usize][end as usize].read()));
        read.filter(|(.., durations)| durations.count() > 0)
    }

    /// How often something was not done, by reason.
    pub fn refusals(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().map(|reason| (reason, self.refusals[reason as usize].read()))
    }

    /// The limits that have refused anything, by their numbers in the configuration.
    pub fn limits(&self) -> BTreeMap<usize, Hit> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Guest {
    /// Begins to count a request of this guest's.
    pub fn timing(&self, method: &str) -> Timing {
        self.gateway.meters.begin(method)
    }
}

/// The codes that are told apart, as the semantic conventions want `error.type`: by their text.
const CODES: [(i64, &str); 15] = [
    (code::INVALID_PARAMS, "-32602"),
    (code::METHOD_NOT_FOUND, "-32601"),
    (code::INVALID_REQUEST, "-32600"),
    (code::INTERNAL_ERROR, "-32603"),
    (code::PARSE_ERROR, "-32700"),
    (mcp::code::RESOURCE_NOT_FOUND, "-32002"),
    (mcp::code::HEADER_MISMATCH, "-32020"),
    (mcp::code::MISSING_CLIENT_CAPABILITY, "-32021"),
    (mcp::code::UNSUPPORTED_PROTOCOL_VERSION, "-32022"),
    (mcp::code::URL_ELICITATION_REQUIRED, "-32042"),
    (4290, "4290"),
    (5030, "5030"),
    (5031, "5031"),
    (5040, "5040"),
    (5130, "5130"),
];

/// A result, each code, every other code, and cancelled.
const ENDS: usize = CODES.len() + 3;

fn place(end: End) -> usize {
    match end {
        End::Good => 0,
        End::Error(code) => {
            let known = CODES.iter().position(|(known, _)| Some(*known) == code);
            1 + known.unwrap_or(CODES.len())
        }
        End::Cancelled => ENDS - 1,
    }
}

fn error_type(place: usize) -> Option<&'static str> {
    match place {
        0 => None,
        at if at == ENDS - 1 => Some("cancelled"),
        at => Some(CODES.get(at - 1).map_or("_OTHER", |(_, text)| text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_text_and_others_are_one() {
        for (code, text) in CODES {
            assert_eq!(code.to_string(), text);
            assert_eq!(error_type(place(End::Error(Some(code)))), Some(text));
        }
        for code in [None, Some(0), Some(i64::MIN)] {
            assert_eq!(error_type(place(End::Error(code))), Some("_OTHER"));
        }
        assert_eq!(error_type(place(End::Good)), None);
        assert_eq!(error_type(place(End::Cancelled)), Some("cancelled"));
        assert!(Reason::ALL.into_iter().enumerate().all(|(at, reason)| reason as usize == at));
    }

    #[test]
    fn a_request_is_counted_once_and_one_that_nobody_ends_was_cancelled() {
        let meters = Arc::new(Meters::default());
        meters.begin("tools/list").end(End::Good);
        drop(meters.begin("tools/list"));
        for number in 0..10_000 {
            meters.begin(&format!("x/{number}")).end(End::Error(Some(number)));
        }
        let told: Vec<_> = meters
            .requests()
            .map(|(operation, error, took)| (operation.name(), error, took.count()))
            .collect();
        let other = 10_000 - 4;
        assert_eq!(told[..2], [("tools/list", None, 1), ("tools/list", Some("cancelled"), 1)]);
        // A few of the numbers are codes of our own.
        assert_eq!(told.last(), Some(&("other", Some("_OTHER"), other - 1)));
        assert_eq!(told.len(), 2 + 5 + 1);
    }
}
