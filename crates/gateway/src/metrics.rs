//! Metrics of the process: requests by method and status, rejections by reason, hits of limits,
//! and both by role.
//!
//! Invariants: counting a request allocates no memory and takes no lock, whatever its client sends;
//! the number of time series is bounded by methods and codes. Only a rejection by a limit takes a
//! lock, for one map label.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use strum::{IntoStaticStr, VariantArray};
use tokio::time::Instant;

use weir_access::policy::role::{NO_ROLE, OWN_ROLE_PREFIX};
use weir_base::metrics::{Counter, Gauge, Histogram, labeled};
use weir_base::tasks::sync::Mutex;
use weir_mcp as mcp;
use weir_mcp::jsonrpc::code;
use weir_mcp::methods::MethodLabel;
use weir_upstream::call_metrics::CallDurations;

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
    pub(crate) const ALL: [Self; Self::VARIANTS.len()] =
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

    /// Counts a hit of a limit, given by its index in the configuration.
    pub(super) fn limited(&self, limit: usize) {
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
    pub(crate) fn limits(&self) -> BTreeMap<usize, LimitHits> {
        self.limits.lock().clone()
    }
}

// === Roles ===

/// Requests and refusals by role.
///
/// Invariant: the roles are those of the configuration; those that belong to one client, which have
/// no name, count as one. Counting allocates no memory and takes no lock.
#[derive(Debug, Default)]
pub struct RoleMetrics(Vec<(Arc<str>, Arc<RoleCounts>)>);

/// Counts of one role.
#[derive(Debug, Default)]
struct RoleCounts {
    requests: Counter,
    refusals: [Counter; RefusalReason::ALL.len()],
}

impl RoleMetrics {
    /// Creates the counts of these roles. Those that there were `before` go on.
    pub(super) fn new<'r>(roles: impl IntoIterator<Item = &'r str>, before: Option<&Self>) -> Self {
        let names = roles.into_iter().map(label).chain([NO_ROLE]);
        let counts =
            |name: &str| before.and_then(|before| before.find(name).cloned()).unwrap_or_default();
        let names: BTreeSet<_> = names.collect();
        Self(names.into_iter().map(|name| (name.into(), counts(name))).collect())
    }

    fn find(&self, name: &str) -> Option<&Arc<RoleCounts>> {
        let at = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    /// Counts a request.
    pub(super) fn request(&self, role: &str) {
        self.each(role, |counts| counts.requests.increment());
    }

    /// Counts a refusal.
    pub(super) fn refusal(&self, role: &str, reason: RefusalReason) {
        self.each(role, |counts| counts.refusals[reason as usize].increment());
    }

    /// Calls `count` for each role of a principal: the names of several are joined with `+`.
    fn each(&self, role: &str, count: impl Fn(&RoleCounts)) {
        role.split('+').filter_map(|name| self.find(label(name))).for_each(|counts| count(counts));
    }

    /// Returns the names of the roles, with the number of requests.
    pub fn requests(&self) -> Vec<(&str, u64)> {
        self.0.iter().map(|(name, counts)| (&**name, counts.requests.read())).collect()
    }

    /// Returns the names of the roles with the reasons for which they were refused, and the
    /// numbers of refusals.
    pub fn refusals(&self) -> Vec<(&str, &'static str, u64)> {
        let mut all = Vec::new();
        for (name, counts) in &self.0 {
            let reasons = RefusalReason::ALL.into_iter().zip(&counts.refusals);
            let reasons = reasons.map(|(reason, count)| (&**name, reason.into(), count.read()));
            all.extend(reasons.filter(|(.., count)| *count > 0));
        }
        all.sort_unstable();
        all
    }
}

/// Returns the label of a role: no client is named.
fn label(role: &str) -> &str {
    if role.starts_with(OWN_ROLE_PREFIX) { OWN_RULES } else { role }
}

/// Label of all roles that belong to one client: no role of the configuration can have this name.
const OWN_RULES: &str = "(own)";

// === Codes ===

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

    #[test]
    fn requests_are_counted_by_the_roles_of_the_configuration_and_by_no_client() {
        let roles = ["dev", "ops", "client:ann", "client:bob"];
        let metrics = RoleMetrics::new(roles, None);
        for role in ["dev", "dev+ops", "client:ann", "client:bob", NO_ROLE, "*", "gone", ""] {
            metrics.request(role);
        }
        let expected = [(NO_ROLE, 1), (OWN_RULES, 2), ("dev", 2), ("ops", 1)];
        assert_eq!(metrics.requests(), expected);
        metrics.refusal("dev+ops", RefusalReason::Denied);
        metrics.refusal("dev", RefusalReason::Limit);
        // A reload keeps the counts of the roles that remain.
        let next = RoleMetrics::new(["dev", "new"], Some(&metrics));
        metrics.request("dev");
        assert_eq!(next.requests(), [(NO_ROLE, 1), ("dev", 3), ("new", 0)]);
        assert_eq!(next.refusals(), [("dev", "denied", 1), ("dev", "limit", 1)]);
    }
}
