//! Status document of the process, which `weir status` and `weir top` show.
//!
//! Invariants: it contains no secret and names no client. Counters count from the start, so a
//! reader computes rates from two documents. A reader ignores unknown members.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Admin;
use super::health::Health;
use super::notes::NoteStatus;
use super::process::Process;
pub use super::process::Usage;
use weir_access::catalog::{ExportProblems, RoleView};
use weir_base::metrics::{BUCKETS, Histogram};
use weir_base::text::invisible_chars::make_visible;
use weir_base::text::shell_word::ShellWord;
use weir_base::time::timestamp;
pub use weir_fleet::FleetStatus;
use weir_gateway::GatewayMetrics;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
pub use weir_record::audit::AuditStatus;
use weir_upstream::Upstream as LiveUpstream;

/// Status of the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of Weir.
    pub version: String,
    /// Path of the configuration file.
    pub configuration: Option<String>,
    /// Last reload, if it was refused.
    pub refused: Option<RefusedReload>,
    /// URL of the MCP endpoint.
    pub endpoint: String,
    /// Process id.
    pub process: u32,
    /// True if the file of its program has been replaced or removed since the start.
    pub replaced: bool,
    /// Start time.
    pub started: String,
    /// Time since the start, in seconds.
    pub uptime_seconds: f64,
    /// True if the process is ready for clients.
    pub ready: bool,
    /// True if the process is draining.
    pub draining: bool,
    /// Open connections.
    pub connections: u64,
    /// Sessions of legacy clients.
    pub sessions: u64,
    /// Open streams for notifications.
    pub streams: u64,
    /// The upstreams, by name.
    pub upstreams: Vec<UpstreamStatus>,
    /// Names of the upstreams that the configuration disables.
    pub disabled: Vec<String>,
    /// Requests of clients, by method.
    pub methods: Vec<MethodStatus>,
    /// Refused requests, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// Limits that have refused requests.
    pub limits: Vec<LimitStatus>,
    /// Users with a valid token and without a role, by identity provider.
    pub users_without_role: BTreeMap<String, usize>,
    /// State of the fleet; `None` if the process serves its clients alone.
    pub fleet: Option<FleetStatus>,
    /// State of the audit log; `None` if it is off.
    pub audit: Option<AuditStatus>,
    /// Resource usage of the process, if the kernel reports it.
    pub usage: Option<Usage>,
}

/// Refused reload; the previous configuration stays active.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedReload {
    /// Time of the first reload that was refused since one succeeded.
    pub at: String,
    /// First error and its location, of the last reload.
    pub why: String,
}

impl RefusedReload {
    /// Returns the state of the configuration, in the wording that all commands use.
    pub fn describe(&self) -> String {
        format!("the file has been refused since {}, the former one is active", self.at)
    }
}

/// Status of one upstream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpstreamStatus {
    /// Name of the upstream.
    pub name: String,
    /// `starting`, `asleep`, `up`, `open` (circuit breaker open), `half-open`, `down`,
    /// `crash-loop`, `needs-sign-in`.
    pub state: String,
    /// Time in this state, in seconds.
    pub since_seconds: u64,
    /// Time until the next connection attempt, in seconds, if one is scheduled.
    pub next_try_seconds: Option<u64>,
    /// Number of connection attempts that failed in a row.
    pub failures: u32,
    /// True if readiness requires this upstream.
    pub required: bool,
    /// Transport, after the first connection.
    pub wire: Option<String>,
    /// Negotiated protocol revision.
    pub revision: Option<String>,
    /// Reason for not being connected, as a text for the operator.
    pub reason: Option<String>,
    /// Number of items that clients can see, by kind.
    pub items: BTreeMap<String, usize>,
    /// Lists that were never read. These, the lists of a hidden upstream, and truncated lists are
    /// the ones that `weir/partial` reports to clients.
    pub missing: Vec<String>,
    /// True if the upstream is hidden from lists, because it has been disconnected for longer than
    /// `on_down_grace`.
    pub hidden: bool,
    /// Truncated lists, with the limit that truncated them.
    pub cut: BTreeMap<String, String>,
    /// Items excluded from lists, with reasons; only the first ones of very many.
    pub left_out: Vec<String>,
    /// Number of excluded items.
    pub left_out_items: usize,
    /// Items that are listed in another form than their upstream's, with what is different; only
    /// the first ones of very many.
    pub altered: Vec<String>,
    /// Mistakes of the server, for its author.
    pub notes: Vec<NoteStatus>,
    /// Calls in progress.
    pub in_flight: usize,
    /// Queued calls.
    pub waiting: usize,
    /// Number of reconnections.
    pub restarts: u64,
    /// Number of times that the circuit breaker opened.
    pub breaker_opens: u64,
    /// Completed calls.
    pub calls: u64,
    /// Number of failed calls.
    pub errors: u64,
    /// Durations of the calls.
    pub took: Latency,
}

/// Requests of one method.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MethodStatus {
    /// Name of the method, or `other`.
    pub name: String,
    /// Number of completed requests.
    pub count: u64,
    /// Number of failed requests.
    pub errors: u64,
    /// Durations of the requests.
    pub took: Latency,
}

/// Histogram of durations: counts per bucket (see [`weir_base::metrics::BOUNDS`]) and their sum.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Counts per bucket.
    pub buckets: Vec<u64>,
    /// Sum, in microseconds.
    pub micros: u64,
}

/// Limit that has refused requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitStatus {
    /// Index in the configuration.
    pub number: usize,
    /// Description of the limit.
    pub what: String,
    /// Number of refused requests.
    pub refused: u64,
    /// Time of the last refusal.
    pub last: String,
    /// Time since the last refusal, in seconds.
    pub ago_seconds: u64,
}

impl Status {
    pub(super) fn of(admin: &Admin) -> Self {
        let (gateway, metrics) = (&admin.gateway, admin.gateway.metrics());
        let everything = gateway.operator().view();
        let (problems, withheld) = (gateway.problems(), gateway.awaiting_approval());
        let of_live = |live: &LiveUpstream| {
            let mut upstream =
                UpstreamStatus::of(live, gateway.is_hidden(live.name()), &everything);
            for (_, kind, problems) in problems.iter().filter(|(name, ..)| name == live.name()) {
                upstream.add_excluded(*kind, problems);
            }
            let withheld = withheld.iter().filter(|(name, ..)| name == live.name());
            upstream.add_withheld(live.name(), withheld.map(|(_, kind, own)| (*kind, &**own)));
            let mistakes = live.file_mistakes().into_iter();
            upstream.left_out.extend(mistakes.map(|mistake| format!("file {mistake}")));
            let UpstreamStatus { missing, hidden, cut, .. } = &mut upstream;
            missing.retain(|list| !*hidden && !cut.contains_key(list));
            upstream
        };
        let refusals = metrics.refusals().map(|(reason, count)| (reason.to_owned(), count));
        let limits = gateway.limits_hit().into_iter().map(|(number, what, hit)| LimitStatus {
            number,
            what,
            refused: hit.count,
            last: timestamp::format_rfc3339(hit.last),
            ago_seconds: hit.last.elapsed().map(|ago| ago.as_secs()).unwrap_or_default(),
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration: admin.settings.configuration.clone(),
            refused: admin.settings.reloads.refused(),
            endpoint: admin.settings.endpoint.clone(),
            process: std::process::id(),
            replaced: is_program_replaced(),
            started: timestamp::format_rfc3339(admin.started),
            uptime_seconds: (admin.started_at.elapsed().as_secs_f64() * 10.0).round() / 10.0,
            ready: Health::of(admin).is_ready(),
            draining: admin.draining.is_cancelled(),
            connections: metrics.connections.read(),
            sessions: admin.server_state.now().sessions() as u64,
            streams: metrics.streams.read(),
            upstreams: gateway.upstreams().iter().map(of_live).collect(),
            disabled: admin.settings.reloads.disabled(),
            methods: MethodStatus::all(metrics),
            refusals: refusals.collect(),
            limits: limits.collect(),
            users_without_role: gateway.users_without_role(),
            fleet: admin.server_state.now().fleet().map(|fleet| fleet.status()),
            audit: admin.settings.audit.status(),
            usage: Process::read().map(|it| it.usage),
        }
    }
}

impl UpstreamStatus {
    fn of(live: &LiveUpstream, hidden: bool, everything: &RoleView) -> Self {
        let report = live.report();
        let about = report.about.clone();
        let items = Kind::ALL
            .map(|kind| (kind.list_member().to_owned(), everything.count(kind, live.name())));
        let missing =
            Kind::ALL.into_iter().filter(|kind| everything.missing(*kind).contains(live.name()));
        let (mut calls, mut errors) = (0, 0);
        for (_, end, count) in live.call_metrics().ends() {
            calls += count;
            errors += if end.error_type().is_some() { count } else { 0 };
        }
        Self {
            name: live.name().to_string(),
            state: report.state.as_str().to_owned(),
            since_seconds: report.since.elapsed().as_secs(),
            next_try_seconds: report
                .next_try
                .map(|at| at.saturating_duration_since(Instant::now()).as_secs()),
            failures: report.failures,
            required: live.settings().required,
            wire: about.as_ref().map(|about| about.transport.to_owned()),
            // A prompt library has no protocol revision.
            revision: about
                .filter(|about| about.transport != "library")
                .map(|about| about.revision.to_string()),
            reason: report.reason,
            items: items.into_iter().collect(),
            missing: missing.map(|kind| kind.list_method().to_owned()).collect(),
            hidden,
            cut: BTreeMap::new(),
            left_out: Vec::new(),
            left_out_items: 0,
            altered: Vec::new(),
            notes: NoteStatus::all(live),
            in_flight: report.in_flight,
            waiting: report.waiting,
            restarts: report.counts.restarts,
            breaker_opens: report.counts.breaker_opens,
            calls,
            errors,
            took: Latency::default().plus(live.call_metrics().durations()),
        }
    }
}

impl UpstreamStatus {
    /// Adds the items excluded from a list.
    fn add_excluded(&mut self, kind: Kind, problems: &ExportProblems) {
        self.left_out_items += problems.excluded();
        self.left_out.extend(problems.left_out(kind));
        self.altered.extend(problems.altered.lines(kind));
        let cut = problems.cut.iter().map(|by| (kind.list_method().to_owned(), by.to_string()));
        self.cut.extend(cut);
    }

    /// Adds the items withheld until their approval.
    fn add_withheld<'a>(
        &mut self,
        name: &UpstreamName,
        items: impl Iterator<Item = (Option<Kind>, &'a str)>,
    ) {
        let (count, lines) = held_back_lines(name, items);
        self.left_out_items += count;
        self.left_out.extend(lines);
    }

    /// Returns the reasons for which clients do not see all items, in the wording that all commands
    /// use: a state that is a reason, and problems of lists.
    pub fn problems_for_clients(&self) -> Vec<String> {
        let mut why = Vec::new();
        if !self.is_well() {
            why.push(match &self.reason {
                Some(reason) => format!("{}: {reason}", self.state),
                None => self.state.clone(),
            });
        }
        why.extend(self.hidden.then(|| HIDDEN.to_owned()));
        if !self.missing.is_empty() {
            why.push(format!("{NEVER_READ}: {}", self.missing.join(", ")));
        }
        why.extend(self.cut.iter().map(|(list, by)| format!("{CUT}: {by} of {list}")));
        why
    }

    /// Returns whether calls to the upstream succeed, if necessary after a start.
    pub fn is_well(&self) -> bool {
        matches!(&*self.state, "up" | "half-open" | "asleep")
    }

    /// Returns whether the upstream is connected, and takes calls now or soon.
    pub fn is_connected(&self) -> bool {
        matches!(&*self.state, "up" | "open" | "half-open")
    }
}

/// Returns whether the file of this process's program is another one now, or none. Only Linux says.
fn is_program_replaced() -> bool {
    let program = std::env::current_exe();
    program.is_ok_and(|program| program.to_string_lossy().ends_with(" (deleted)"))
}

/// Returns the text for an item that is not approved, with the commands to run.
pub fn held_back(upstream: &UpstreamName, own: Option<&str>) -> String {
    let target =
        own.map_or_else(|| upstream.to_string(), |own| format!("{upstream}/{}", make_visible(own)));
    let target = ShellWord(&target);
    format!(
        "is held back until it is approved: `weir pins diff {target}` shows it, \
         `weir pins approve {target}` approves it"
    )
}

/// Returns the number of items of an upstream that are not approved, and a text for each of the
/// first of them, with the commands to run.
pub fn held_back_lines<'a>(
    upstream: &UpstreamName,
    items: impl Iterator<Item = (Option<Kind>, &'a str)>,
) -> (usize, Vec<String>) {
    let mut lines = Vec::new();
    let mut count = 0;
    for (kind, own) in items {
        count += 1;
        match kind {
            _ if count > ExportProblems::MAX => {}
            Some(kind) => {
                lines.push(format!("{kind} {own:?} {}", held_back(upstream, Some(own))));
            }
            None => lines.push(format!("the instructions {}", held_back(upstream, None))),
        }
    }
    if count > ExportProblems::MAX {
        let more = count - ExportProblems::MAX;
        lines.push(format!("and {more} more: {}", held_back(upstream, None)));
    }
    (count, lines)
}

/// Text for an upstream that is hidden from lists.
pub const HIDDEN: &str = "hidden: away for longer than `on_down_grace`, and `on_down = \"hide\"`";
/// Text for lists that were not read since the start.
pub const NEVER_READ: &str = "never read, and so missing from clients' lists";
/// Text for a truncated list.
pub const CUT: &str = "lists more than is read";

impl MethodStatus {
    fn all(metrics: &GatewayMetrics) -> Vec<Self> {
        let mut methods: Vec<Self> = Vec::new();
        // The histograms of one method follow each other.
        for (label, error, durations) in metrics.requests() {
            let name = label.name();
            let mut method = methods
                .pop_if(|last| last.name == name)
                .unwrap_or_else(|| Self { name: name.to_owned(), ..Self::default() });
            let count = durations.count();
            method.count += count;
            method.errors += if error.is_some() { count } else { 0 };
            method.took = method.took.plus(durations);
            methods.push(method);
        }
        methods
    }
}

impl Latency {
    fn plus(mut self, durations: &Histogram) -> Self {
        self.micros += durations.sum_micros();
        self.buckets.resize(BUCKETS, 0);
        self.buckets.iter_mut().zip(durations.buckets()).for_each(|(sum, more)| *sum += more);
        self
    }
}
