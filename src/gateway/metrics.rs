//! Metrics of the process: requests by method and status, rejections by reason, hits of limits.
//!
//! Invariants: counting a request allocates no memory and takes no lock, whatever its client sends;
//! the number of time series is bounded by methods and codes. Only a rejection by a limit takes a
//! lock, for one map label.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use strum::{IntoStaticStr, VariantArray};
use tokio::time::Instant;

use super::ClientContext;
use crate::jsonrpc::code;
use crate::mcp;
use crate::mcp::methods::MethodLabel;
use crate::metrics::{Counter, Gauge, Histogram, labeled};
use crate::sync::Mutex;
use crate::upstream::call_metrics::CallDurations;

/// Metrics of one gateway.
#[derive(Debug, Default)]
pub struct GatewayMetrics {
    requests: Box<[[Histogram; STATUSES]; MethodLabel::COUNT]>,
    refusals: [Counter; RefusalReason::ALL.len()],
    limits: Mutex<BTreeMap<usize, LimitHits>>,
    /// Durations of calls to upstreams, all upstreams together.
    pub calls: CallDurations,
    /// Open connections.
    pub connections: Arc<Gauge>,
    /// Open streams for notifications.
    pub streams: Arc<Gauge>,
    /// Durations of ended sessions.
    pub sessions: Arc<Histogram>,
}

/// Reason for a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum RefusalReason {
    /// The `Host` or `Origin` of the request is not trusted.
    Host,
    /// The credentials are missing or invalid.
    Auth,
    /// A limit is reached.
    Limit,
    /// The role may not use the item.
    Denied,
    /// There is no such item.
    Unknown,
    /// The guard rejects the request.
    Guard,
    /// An upstream has its maximum of calls, or a client its maximum of streams or sessions.
    Overload,
    /// Auditing is mandatory and not possible.
    Audit,
    /// The process is stopping.
    Stopping,
}

impl RefusalReason {
    /// All reasons.
    pub const ALL: [Self; Self::VARIANTS.len()] =
        *Self::VARIANTS.as_array().expect("the length is its own");
}

/// Rejections by one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitHits {
    /// Number of rejections.
    pub count: u64,
    /// Time of the last rejection.
    pub last: SystemTime,
}

/// Status of an ended request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestStatus {
    /// A result.
    Success,
    /// An error with this code; `None` if the code is unreadable.
    Error(Option<i64>),
    /// Cancelled by the client or its disconnection.
    Cancelled,
}

/// Timer of a request. Dropped before its end, it counts as cancelled.
#[derive(Debug)]
pub struct RequestTimer {
    metrics: Arc<GatewayMetrics>,
    label: MethodLabel,
    began: Instant,
    status: RequestStatus,
}

impl RequestTimer {
    /// Counts the request with its status.
    pub fn end(mut self, status: RequestStatus) {
        self.status = status;
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        let of_method = &self.metrics.requests[self.label.index()];
        of_method[status_index(self.status)].observe(self.began.elapsed());
    }
}

impl GatewayMetrics {
    /// Starts the timer of a request.
    pub fn begin(self: &Arc<Self>, method: &str) -> RequestTimer {
        let (metrics, label) = (Arc::clone(self), MethodLabel::of(method));
        RequestTimer { metrics, label, began: Instant::now(), status: RequestStatus::Cancelled }
    }

    /// Counts a rejection.
    pub fn refused(&self, reason: RefusalReason) {
        self.refusals[reason as usize].increment();
    }

    /// Counts a rejection by a limit, given by its index in the configuration.
    pub fn limited(&self, limit: usize) {
        self.refused(RefusalReason::Limit);
        let mut limits = self.limits.lock();
        let hit =
            limits.entry(limit).or_insert(LimitHits { count: 0, last: SystemTime::UNIX_EPOCH });
        (hit.count, hit.last) = (hit.count + 1, SystemTime::now());
    }

    /// Durations of requests by method and error type, without empty histograms.
    pub fn requests(
        &self,
    ) -> impl Iterator<Item = (MethodLabel, Option<&'static str>, &Histogram)> {
        let statuses = std::array::from_fn(error_type);
        labeled(MethodLabel::all(), statuses, &*self.requests).filter(|(.., cell)| cell.count() > 0)
    }

    /// Number of rejections by the label of their reason.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let labels = RefusalReason::ALL.into_iter().map(Into::into);
        labels.zip(self.refusals.iter().map(Counter::read))
    }

    /// Limits with rejections, by their indexes in the configuration.
    pub fn limits(&self) -> BTreeMap<usize, LimitHits> {
        self.limits.lock().clone()
    }
}

impl ClientContext {
    /// Starts the timer of a request of this client.
    pub fn timing(&self, method: &str) -> RequestTimer {
        self.gateway.metrics.begin(method)
    }
}

/// Codes with a series of their own, with their text for `error.type` of the semantic conventions.
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

/// Number of statuses: success, each code, every other code, and cancelled.
const STATUSES: usize = CODES.len() + 3;

fn status_index(end: RequestStatus) -> usize {
    match end {
        RequestStatus::Success => 0,
        RequestStatus::Error(code) => {
            let known = CODES.iter().position(|(known, _)| Some(*known) == code);
            1 + known.unwrap_or(CODES.len())
        }
        RequestStatus::Cancelled => STATUSES - 1,
    }
}

fn error_type(index: usize) -> Option<&'static str> {
    match index {
        0 => None,
        at if at == STATUSES - 1 => Some("cancelled"),
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
            assert_eq!(error_type(status_index(RequestStatus::Error(Some(code)))), Some(text));
        }
        for code in [None, Some(0), Some(i64::MIN)] {
            assert_eq!(error_type(status_index(RequestStatus::Error(code))), Some("_OTHER"));
        }
        assert_eq!(error_type(status_index(RequestStatus::Success)), None);
        assert_eq!(error_type(status_index(RequestStatus::Cancelled)), Some("cancelled"));
        assert!(
            RefusalReason::ALL.into_iter().enumerate().all(|(at, reason)| reason as usize == at)
        );
    }

    #[test]
    fn a_request_is_counted_once_and_one_that_nobody_ends_was_cancelled() {
        let metrics = Arc::new(GatewayMetrics::default());
        metrics.begin("tools/list").end(RequestStatus::Success);
        drop(metrics.begin("tools/list"));
        for number in 0..10_000 {
            metrics.begin(&format!("x/{number}")).end(RequestStatus::Error(Some(number)));
        }
        let series: Vec<_> = metrics
            .requests()
            .map(|(label, error, took)| (label.name(), error, took.count()))
            .collect();
        let other = 10_000 - 4;
        assert_eq!(series[..2], [("tools/list", None, 1), ("tools/list", Some("cancelled"), 1)]);
        // A few of the numbers are codes of our own.
        assert_eq!(series.last(), Some(&("other", Some("_OTHER"), other - 1)));
        assert_eq!(series.len(), 2 + 5 + 1);
    }
}
