//! How everything is doing, as one document: what `weir status` and `weir top` show.
//!
//! Promises: nothing in it is secret, and no client is named; what only grows is counted since the start, so whoever
//! asks twice knows what happened in between. A reader takes members that it does not know for nothing.
//!
//! Knows nothing of: how it is shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Ops;
use super::health::Health;
use super::process;
use crate::catalog::{Problems, View};
use crate::mcp::kind::Kind;
use crate::metrics::Durations;
use crate::timestamp;
use crate::upstream::Upstream as Live;
use crate::upstream::call::call_metrics::error_type;

/// How everything is doing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Weir's own version.
    pub version: String,
    /// The configuration's file.
    pub configuration: Option<String>,
    /// Where its files hold another configuration by now, which was refused.
    pub refused: Option<RefusedReload>,
    /// Where clients connect.
    pub endpoint: String,
    /// The process's number.
    pub process: u32,
    /// When it started.
    pub started: String,
    /// How long ago, in seconds.
    pub uptime_seconds: f64,
    /// Whether clients should be sent here.
    pub ready: bool,
    /// Whether no new requests are taken.
    pub draining: bool,
    /// Open connections.
    pub connections: u64,
    /// Sessions of legacy clients.
    pub sessions: u64,
    /// Streams that are open to tell of changes.
    pub streams: u64,
    /// The upstreams, by name.
    pub upstreams: Vec<Upstream>,
    /// Requests of clients, by method.
    pub methods: Vec<Method>,
    /// What was not done, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// Limits that have refused something.
    pub limits: Vec<Limit>,
    /// The audit log; `None` if it is off.
    pub audit: Option<Audit>,
    /// What the process takes of its machine, if the machine tells.
    pub usage: Option<Usage>,
}

/// A configuration that was refused, so that the one before it holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedReload {
    /// When it was read.
    pub at: String,
    /// The first thing that is wrong with it, and where.
    pub why: String,
}

/// One upstream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Upstream {
    /// What it is called.
    pub name: String,
    /// `starting`, `asleep`, `up`, `open` (left alone for a while), `half-open`, `down`, `crash-loop`.
    pub state: String,
    /// For how long, in seconds.
    pub since_seconds: u64,
    /// In how many seconds it is tried again, while that is waited for.
    pub next_try_seconds: Option<u64>,
    /// How many attempts to connect have failed in a row.
    pub failures: u32,
    /// Whether nothing is ready without it.
    pub required: bool,
    /// How it is reached, once it has been.
    pub wire: Option<String>,
    /// The revision that is spoken with it.
    pub revision: Option<String>,
    /// Why it is not up, in words for the operator.
    pub reason: Option<String>,
    /// How many items of it clients can be shown, by kind.
    pub items: BTreeMap<String, usize>,
    /// Lists that could never be read. With those of one that is hidden, and those that are cut short, they are what
    /// `weir/partial` tells clients of.
    pub missing: Vec<String>,
    /// Whether it is left out of all lists, since it has been away for longer than `on_down_grace`.
    pub hidden: bool,
    /// Lists of which it has more than is read, and what that is bounded by.
    pub cut: BTreeMap<String, String>,
    /// What is left out of lists, and why; of very many the first.
    pub left_out: Vec<String>,
    /// How many items that are.
    pub left_out_items: usize,
    /// Calls under way.
    pub in_flight: usize,
    /// Calls that wait for their turn.
    pub waiting: usize,
    /// How often it was connected to, after the first time.
    pub restarts: u64,
    /// How often it was left alone because too many calls in a row failed.
    pub breaker_opens: u64,
    /// Calls that are over.
    pub calls: u64,
    /// How many of them failed.
    pub errors: u64,
    /// How long they took.
    pub took: Took,
}

/// Requests of one method.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Method {
    /// Its name, or `other`.
    pub name: String,
    /// How many are over.
    pub count: u64,
    /// How many of them failed.
    pub errors: u64,
    /// How long they took.
    pub took: Took,
}

/// How long something took: how many were in each bucket (see [`crate::meter::BOUNDS`]), and all together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Took {
    /// By bucket.
    pub buckets: Vec<u64>,
    /// In microseconds.
    pub micros: u64,
}

/// A limit that has refused something.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limit {
    /// Its number in the configuration, from 0.
    pub number: usize,
    /// What it says, in words.
    pub what: String,
    /// How many requests it has refused.
    pub refused: u64,
    /// When it last did.
    pub last: String,
    /// How long ago that is, in seconds.
    pub ago_seconds: u64,
}

/// The audit log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Audit {
    /// Records that could not be written.
    pub lost: u64,
    /// Refusals of strangers that were too many to be written.
    pub left_out: u64,
    /// Whether the last attempt to write failed.
    pub failing: bool,
}

/// What the process takes of its machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Memory, in bytes.
    pub memory: u64,
    /// Processor time, in seconds.
    pub cpu_seconds: f64,
    /// Open file descriptors.
    pub files: u64,
}

impl Status {
    pub(super) fn of(ops: &Ops) -> Self {
        let (gateway, meters) = (&ops.gateway, ops.gateway.meters());
        let everything = gateway.enter_as_operator().view();
        let (problems, withheld) = (gateway.problems(), gateway.withheld());
        let mut upstreams: Vec<_> = gateway
            .upstreams()
            .iter()
            .map(|live| {
                let mut upstream = Upstream::of(live, &everything);
                upstream.hidden = gateway.is_hidden(live.name());
                for (_, kind, problems) in problems.iter().filter(|(name, ..)| name == live.name())
                {
                    upstream.leave_out(*kind, problems);
                }
                let held = withheld.iter().filter(|(name, ..)| name == live.name());
                upstream
                    .hold_back(held.map(|(_, kind, own)| format!("{kind} {own:?} {HELD_BACK}")));
                let told = |list: &String| upstream.hidden || upstream.cut.contains_key(list);
                let missing = std::mem::take(&mut upstream.missing);
                upstream.missing = missing.into_iter().filter(|list| !told(list)).collect();
                upstream
            })
            .collect();
        upstreams.sort_by(|one, other| one.name.cmp(&other.name));
        let mut methods: Vec<Method> = Vec::new();
        for (operation, error, durations) in meters.requests() {
            let errors = if error.is_some() { durations.count() } else { 0 };
            match methods.last_mut().filter(|last| last.name == operation.name()) {
                Some(last) => last.add(errors, &durations),
                None => {
                    let name = operation.name().to_owned();
                    let mut method = Method { name, ..Method::default() };
                    method.add(errors, &durations);
                    methods.push(method);
                }
            }
        }
        let refusals = meters.refusals().map(|(reason, count)| (reason.word().to_owned(), count));
        let limits = gateway.limits_hit().into_iter().map(|(number, what, hit)| Limit {
            number,
            what,
            refused: hit.count,
            last: timestamp::to_words(hit.last),
            ago_seconds: hit.last.elapsed().map(|ago| ago.as_secs()).unwrap_or_default(),
        });
        let usage = process::Process::look().map(|it| Usage {
            memory: it.resident,
            cpu_seconds: it.cpu,
            files: it.files,
        });
        let audit = ops.settings.audit.state().map(|it| Audit {
            lost: it.lost,
            left_out: it.left_out,
            failing: it.is_failing,
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration: ops.settings.configuration.clone(),
            refused: ops.settings.reloads.refused(),
            endpoint: ops.settings.endpoint.clone(),
            process: std::process::id(),
            started: timestamp::to_words(ops.started),
            uptime_seconds: (ops.begun.elapsed().as_secs_f64() * 10.0).round() / 10.0,
            ready: Health::of(ops).is_ready(),
            draining: ops.leaving.is_cancelled(),
            connections: meters.connections.read(),
            sessions: ops.door.now().sessions() as u64,
            streams: meters.streams.read(),
            upstreams,
            methods,
            refusals: refusals.collect(),
            limits: limits.collect(),
            audit,
            usage,
        }
    }

    /// The document.
    pub fn to_json(&self) -> String {
        // Every member has a form in JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the document.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }
}

impl Upstream {
    fn of(live: &Live, everything: &View) -> Self {
        let report = live.report();
        let about = report.about.clone();
        let items = Kind::ALL
            .map(|kind| (kind.list_member().to_owned(), everything.count(kind, live.name())));
        let missing =
            Kind::ALL.into_iter().filter(|kind| everything.missing(*kind).contains(live.name()));
        let (mut calls, mut errors) = (0, 0);
        for (_, end, count) in live.calls().ends() {
            calls += count;
            errors += if error_type(end).is_some() { count } else { 0 };
        }
        Self {
            name: live.name().to_string(),
            state: report.state.as_str().to_owned(),
            since_seconds: report.since.elapsed().as_secs(),
            next_try_seconds: report
                .next_try
                .map(|at| at.saturating_duration_since(Instant::now()).as_secs()),
            failures: report.failures,
            required: live.is_required(),
            wire: about.as_ref().map(|about| about.wire.to_owned()),
            // Nothing is spoken with a folder, so it has no revision.
            revision: about
                .filter(|about| about.wire != "library")
                .map(|about| about.revision.to_string()),
            reason: report.reason,
            items: items.into_iter().collect(),
            missing: missing.map(|kind| kind.list_method().to_owned()).collect(),
            hidden: false,
            cut: BTreeMap::new(),
            left_out: Vec::new(),
            left_out_items: 0,
            in_flight: report.in_flight,
            waiting: report.waiting,
            restarts: report.counts.restarts,
            breaker_opens: report.counts.breaker_opens,
            calls,
            errors,
            took: Took::of(&live.calls().durations()),
        }
    }
}

impl Upstream {
    /// Tells what is left out of a list.
    fn leave_out(&mut self, kind: Kind, problems: &Problems) {
        self.left_out_items += problems.first.len() + problems.more;
        self.left_out.extend(problems.first.iter().map(|it| format!("{kind} {it}")));
        self.left_out.extend((problems.more > 0).then(|| format!("and {} more", problems.more)));
        let cut = problems.cut.iter().map(|by| (kind.list_method().to_owned(), by.to_string()));
        self.cut.extend(cut);
    }

    /// Tells what is held back.
    fn hold_back(&mut self, items: impl Iterator<Item = String>) {
        let mut more = 0;
        for (number, item) in items.enumerate() {
            self.left_out_items += 1;
            match number < Problems::MAX {
                true => self.left_out.push(item),
                false => more += 1,
            }
        }
        self.left_out.extend((more > 0).then(|| format!("and {more} more {HELD_BACK}")));
    }

    /// What keeps clients from seeing all of it, in the words in which everybody tells of it: its state, where that is
    /// a reason, and what becomes of its lists.
    pub fn why_not_whole(&self) -> Vec<String> {
        let mut why = Vec::new();
        if !matches!(&*self.state, "up" | "half-open" | "asleep") {
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

    /// Whether it is connected, and takes calls or will soon.
    pub fn is_connected(&self) -> bool {
        matches!(&*self.state, "up" | "open" | "half-open")
    }
}

/// What is said of an item that nobody has approved.
pub const HELD_BACK: &str = "is held back until it is approved (`weir pins approve`)";
/// What is said of an upstream of which nothing is listed for now.
pub const HIDDEN: &str = "hidden: away for longer than `on_down_grace`, and `on_down = \"hide\"`";
/// What is said of lists that could not be read since the start.
pub const NEVER_READ: &str = "never read, and so missing from clients' lists";
/// What is said of a list of which only a part is read.
pub const CUT: &str = "lists more than is read";

impl Method {
    fn add(&mut self, errors: u64, durations: &Durations) {
        self.count += durations.count();
        self.errors += errors;
        self.took.micros += durations.micros;
        self.took.buckets.resize(durations.buckets.len(), 0);
        let buckets = self.took.buckets.iter_mut().zip(durations.buckets);
        buckets.for_each(|(mine, more)| *mine += more);
    }
}

impl Took {
    fn of(durations: &Durations) -> Self {
        Self { buckets: durations.buckets.to_vec(), micros: durations.micros }
    }
}
