//! Events of one history, and its violations.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sha2::{Digest, Sha256};
use tokio::time::Instant;
use weir_mcp::kind::ListTopic;

use super::dice::Dice;
use super::fact::{ClientEnd, RequestFacts, ServerEnd};
use super::rules::Rules;
use crate::cell::Side;

pub(super) struct Ledger {
    seed: u64,
    /// Time of the first event, on the clock of the history's runtime.
    begin: OnceLock<Instant>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    /// Facts of each request, by its number.
    facts: BTreeMap<u64, RequestFacts>,
    /// All configurations, and how many of them have been applied.
    rules: Vec<Rules>,
    applied: usize,
    /// Handle of each task, and the number of the request that began it.
    tasks: Vec<(String, u64)>,
    /// Clients by the tasks that they have begun or asked about.
    followers: HashSet<(String, u64)>,
    /// Number of list changes, by role and topic.
    changes: HashMap<(&'static str, ListTopic), u32>,
    /// Changes of items that a role may not see: role, topic, and name of the item.
    unseen: Vec<(&'static str, ListTopic, String)>,
    /// Number of each event that a run of many seeds should meet.
    counts: BTreeMap<&'static str, u64>,
    is_stormy: bool,
    has_stopped: bool,
    wrong: Vec<String>,
}

/// An observation of one participant.
struct Event {
    at_ms: u128,
    who: String,
    what: String,
}

/// A point in time, as the range of configurations that may have applied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since(usize);

/// Planned behaviour of the server for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerAction {
    Answered,
    Noted,
    Large,
    CutShort,
    Refused,
    Silence,
    HungUp,
    Garbage,
    Twice,
    Misdirected,
    /// It sends an input request.
    Asks,
    /// It becomes a task, if possible.
    Task,
}

impl Ledger {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { seed, begin: OnceLock::new(), state: Mutex::default() })
    }

    /// Records an observation.
    pub(super) fn record(&self, who: &str, what: impl Into<String>) {
        let at_ms = self.now_ms();
        self.lock().events.push(Event { at_ms, who: who.to_owned(), what: what.into() });
    }

    /// Records a violation.
    pub(super) fn object(&self, what: impl Into<String>) {
        let (at_ms, what) = (self.now_ms(), what.into());
        self.lock().wrong.push(format!("at {at_ms} ms: {what}"));
    }

    fn now_ms(&self) -> u128 {
        self.begin.get_or_init(Instant::now).elapsed().as_millis()
    }

    /// Counts an event that a run of many seeds should meet.
    pub(super) fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }

    // === Requests ===

    /// Registers a new request; returns its number.
    pub(super) fn begin(&self, fact: RequestFacts) -> u64 {
        let mut state = self.lock();
        let number = state.facts.len() as u64 + 1;
        state.facts.insert(number, fact);
        number
    }

    /// Planned behaviour for a request, with the random numbers for its details.
    pub(super) fn action(&self, number: u64) -> (ServerAction, Dice) {
        let mut dice = Dice::new(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let action = match dice.below(100) {
            0..30 => ServerAction::Answered,
            30..38 => ServerAction::Noted,
            38..43 => ServerAction::Large,
            43..47 => ServerAction::CutShort,
            47..53 => ServerAction::Refused,
            53..57 => ServerAction::Silence,
            57..61 => ServerAction::HungUp,
            61..65 => ServerAction::Garbage,
            65..69 => ServerAction::Twice,
            69..73 => ServerAction::Misdirected,
            73..82 => ServerAction::Asks,
            _ => ServerAction::Task,
        };
        (action, dice)
    }

    pub(super) fn fact(&self, number: u64) -> Option<RequestFacts> {
        self.lock().facts.get(&number).cloned()
    }

    /// Records that a server executes a request.
    pub(super) fn execute(&self, number: u64) {
        self.change_fact(number, |fact| fact.executed += 1);
    }

    /// Records that a server has the response to its input request.
    pub(super) fn record_response(&self, number: u64) {
        self.change_fact(number, |fact| fact.received += 1);
    }

    /// Records how a request ended for its server. Only the first end counts.
    pub(super) fn ended_there(&self, number: u64, end: ServerEnd) {
        self.change_fact(number, |fact| fact.server = fact.server.or(Some(end)));
    }

    pub(super) fn ended_here(&self, number: u64, end: ClientEnd) {
        self.change_fact(number, |fact| fact.client = Some(end));
    }

    fn change_fact(&self, number: u64, change: impl FnOnce(&mut RequestFacts)) {
        match self.lock().facts.get_mut(&number) {
            Some(fact) => change(fact),
            None => panic!("nobody has asked {number}"),
        }
    }

    /// Whether a call may still wait for responses that a modern client has not sent.
    pub(super) fn has_waiting_calls(&self) -> bool {
        let state = self.lock();
        let asked = |number: &u64| self.action(*number).0 == ServerAction::Asks;
        let mut facts = state.facts.iter().filter(|(number, _)| asked(number));
        facts.any(|(_, fact)| fact.side.is_modern() && fact.client != Some(ClientEnd::Has))
    }

    // === Tasks ===

    /// Records the handle by which a client names a task.
    pub(super) fn record_handle(&self, handle: &str, number: u64) {
        self.lock().tasks.push((handle.to_owned(), number));
    }

    /// Records that a client asks about a task of its principal and may be notified of it from now
    /// on.
    pub(super) fn follow(&self, who: &str, number: u64) {
        self.lock().followers.insert((who.to_owned(), number));
    }

    pub(super) fn follows(&self, who: &str, number: u64) -> bool {
        let state = self.lock();
        let has_begun = state.facts.get(&number).is_some_and(|fact| fact.who == who);
        has_begun || state.followers.contains(&(who.to_owned(), number))
    }

    /// A random task: its handle, and the number of its request.
    pub(super) fn any_task(&self, dice: &mut Dice) -> Option<(String, u64)> {
        let state = self.lock();
        let count = state.tasks.len() as u64;
        (count > 0).then(|| state.tasks[dice.below(count) as usize].clone())
    }

    // === Configurations ===

    /// Adds the next configuration, which may apply from now on.
    pub(super) fn write(&self, rules: Rules) {
        self.lock().rules.push(rules);
    }

    /// Records that only the newest configuration applies; lists have changed for the affected
    /// roles.
    pub(super) fn mark_applied(&self) {
        let mut state = self.lock();
        let newest = state.rules.len() - 1;
        let (before, next) = (state.rules[state.applied].clone(), state.rules[newest].clone());
        state.applied = newest;
        for role in ["staff", "guest"].into_iter().filter(|role| before.concerns(&next, role)) {
            for topic in ListTopic::ALL {
                state.count_change(role, topic);
            }
        }
        // An item that changed before may be visible now, and may be read only now.
        let seen = state.unseen.extract_if(.., |(role, _, name)| next.may(role, name));
        for (role, topic, _) in seen.collect::<Vec<_>>() {
            state.count_change(role, topic);
        }
    }

    pub(super) fn rules(&self) -> Rules {
        let state = self.lock();
        state.rules[state.applied].clone()
    }

    pub(super) fn since(&self) -> Since {
        Since(self.lock().applied)
    }

    /// All configurations that may have applied since then.
    pub(super) fn rules_since(&self, since: Since) -> Vec<Rules> {
        self.lock().rules[since.0..].to_vec()
    }

    /// Whether all configurations until now have this server.
    pub(super) fn has_stayed(&self, server: &str) -> bool {
        self.lock().rules.iter().all(|rules| rules.has(server))
    }

    /// Records a list change by the item of this name.
    pub(super) fn change(&self, topic: ListTopic, name: &str) {
        let mut state = self.lock();
        let rules = state.rules[state.applied].clone();
        for role in ["staff", "guest"] {
            match rules.may(role, name) {
                true => state.count_change(role, topic),
                false => state.unseen.push((role, topic, name.to_owned())),
            }
        }
    }

    /// Greatest number of changes of a list for this role.
    pub(super) fn changes(&self, role: &'static str, topic: ListTopic) -> u32 {
        self.lock().changes.get(&(role, topic)).copied().unwrap_or_default()
    }

    // === Faults ===

    pub(super) fn storms(&self) {
        self.lock().is_stormy = true;
    }

    pub(super) fn is_stormy(&self) -> bool {
        self.lock().is_stormy
    }

    /// Records a server outage. If it falls between the lists of its resources and its templates,
    /// the first half of a change, which is announced as one, is announced now and the other after
    /// its return.
    pub(super) fn fall(&self) {
        let mut state = self.lock();
        for role in ["staff", "guest"] {
            *state.changes.entry((role, ListTopic::Resources)).or_default() += 1;
        }
    }

    pub(super) fn stops(&self) {
        self.lock().has_stopped = true;
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.lock().has_stopped
    }

    // === The verdict ===

    pub(super) fn wrong(&self) -> Vec<String> {
        let state = self.lock();
        let facts = state.facts.iter().filter_map(|(number, fact)| {
            let (action, _) = self.action(*number);
            let wrong = fact.wrong(action)?;
            Some(format!("{number}: {wrong}; {action:?}, {fact:?}"))
        });
        state.wrong.iter().cloned().chain(facts).collect()
    }

    /// All events. Simultaneous events are only ordered for each participant.
    pub(super) fn history(&self) -> String {
        let mut state = self.lock();
        state.events.sort_by(|a, b| (a.at_ms, &a.who).cmp(&(b.at_ms, &b.who)));
        state.events.iter().fold(String::new(), |mut text, Event { at_ms, who, what }| {
            let _ = writeln!(text, "{at_ms:>7} {who} {what}");
            text
        })
    }

    pub(super) fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.history()).into()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts a change. Of the two kinds of a topic one may be read at first, and the other only
    /// when the network allows it.
    fn count_change(&mut self, role: &'static str, topic: ListTopic) {
        let times = if topic == ListTopic::Resources && self.is_stormy { 2 } else { 1 };
        *self.changes.entry((role, topic)).or_default() += times;
    }
}

/// Whether a client's side and a server's side have the same kind of tasks.
pub(super) fn have_tasks(client: Side, server: Side) -> bool {
    client.revision == server.revision
}
