//! What happened in one history, and what must not have.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sha2::{Digest, Sha256};
use tokio::time::Instant;
use weir::mcp::kind::Topic;

use super::dice::Dice;
use super::fact::{ClientEnd, Fact, ServerEnd};
use super::rules::Rules;
use crate::cell::Side;

pub(super) struct Ledger {
    seed: u64,
    /// When the first thing happened, on the clock of its house.
    begin: OnceLock<Instant>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    /// Each request, by its number.
    facts: BTreeMap<u64, Fact>,
    /// Every configuration, and how many of them have been taken up.
    rules: Vec<Rules>,
    taken_up: usize,
    /// Every task's handle, and the number of the request that began it.
    tasks: Vec<(String, u64)>,
    /// Who has begun which task, or asked about it.
    followers: HashSet<(String, u64)>,
    /// How often a list has changed for a role.
    changes: HashMap<(&'static str, Topic), u32>,
    /// Changes of what a role may not see: which, of which topic, and what the item is called.
    unseen: Vec<(&'static str, Topic, String)>,
    /// How often there was what, of what a run of many seeds should have met.
    counts: BTreeMap<&'static str, u64>,
    is_stormy: bool,
    has_stopped: bool,
    wrong: Vec<String>,
}

/// Something that somebody saw.
struct Event {
    at_ms: u128,
    who: String,
    what: String,
}

/// A time, by the configurations that may have held in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since(usize);

/// What becomes of a request at its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
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
    /// It asks its client something.
    Asks,
    /// It goes on as a task, where that is possible.
    Task,
}

impl Ledger {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { seed, begin: OnceLock::new(), state: Mutex::default() })
    }

    /// Notes what somebody has seen.
    pub(super) fn tell(&self, who: &str, what: impl Into<String>) {
        let at_ms = self.now_ms();
        self.lock().events.push(Event { at_ms, who: who.to_owned(), what: what.into() });
    }

    /// Notes what must not be.
    pub(super) fn object(&self, what: impl Into<String>) {
        let (at_ms, what) = (self.now_ms(), what.into());
        self.lock().wrong.push(format!("at {at_ms} ms: {what}"));
    }

    fn now_ms(&self) -> u128 {
        self.begin.get_or_init(Instant::now).elapsed().as_millis()
    }

    /// Counts something that a run of many seeds should have met.
    pub(super) fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }

    // === Requests ===

    /// The number of a new request.
    pub(super) fn begin(&self, fact: Fact) -> u64 {
        let mut state = self.lock();
        let number = state.facts.len() as u64 + 1;
        state.facts.insert(number, fact);
        number
    }

    /// What becomes of a request, and the dice for how.
    pub(super) fn fate(&self, number: u64) -> (Fate, Dice) {
        let mut dice = Dice::new(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let fate = match dice.below(100) {
            0..30 => Fate::Answered,
            30..38 => Fate::Noted,
            38..43 => Fate::Large,
            43..47 => Fate::CutShort,
            47..53 => Fate::Refused,
            53..57 => Fate::Silence,
            57..61 => Fate::HungUp,
            61..65 => Fate::Garbage,
            65..69 => Fate::Twice,
            69..73 => Fate::Misdirected,
            73..82 => Fate::Asks,
            _ => Fate::Task,
        };
        (fate, dice)
    }

    pub(super) fn fact(&self, number: u64) -> Option<Fact> {
        self.lock().facts.get(&number).cloned()
    }

    /// A server has a request in its hands.
    pub(super) fn execute(&self, number: u64) {
        self.change_fact(number, |fact| fact.executed += 1);
    }

    /// A server has an answer to what it had asked.
    pub(super) fn hear(&self, number: u64) {
        self.change_fact(number, |fact| fact.heard += 1);
    }

    /// What a server knows of a request's end. The first thing counts.
    pub(super) fn ended_there(&self, number: u64, end: ServerEnd) {
        self.change_fact(number, |fact| fact.server = fact.server.or(Some(end)));
    }

    pub(super) fn ended_here(&self, number: u64, end: ClientEnd) {
        self.change_fact(number, |fact| fact.client = Some(end));
    }

    fn change_fact(&self, number: u64, change: impl FnOnce(&mut Fact)) {
        match self.lock().facts.get_mut(&number) {
            Some(fact) => change(fact),
            None => panic!("nobody has asked {number}"),
        }
    }

    /// Whether a call may still wait for answers that a client of the newer era has not brought.
    pub(super) fn is_awaited(&self) -> bool {
        let state = self.lock();
        let asked = |number: &u64| self.fate(*number).0 == Fate::Asks;
        let mut facts = state.facts.iter().filter(|(number, _)| asked(number));
        facts.any(|(_, fact)| fact.side.is_modern() && fact.client != Some(ClientEnd::Has))
    }

    // === Tasks ===

    /// A client knows a task by this handle.
    pub(super) fn hand_out(&self, handle: &str, number: u64) {
        self.lock().tasks.push((handle.to_owned(), number));
    }

    /// Somebody asks about a task of its principal's, and may hear of it from now on.
    pub(super) fn follow(&self, who: &str, number: u64) {
        self.lock().followers.insert((who.to_owned(), number));
    }

    pub(super) fn follows(&self, who: &str, number: u64) -> bool {
        let state = self.lock();
        let has_begun = state.facts.get(&number).is_some_and(|fact| fact.who == who);
        has_begun || state.followers.contains(&(who.to_owned(), number))
    }

    /// One of the tasks that somebody has begun: its handle, and by which request.
    pub(super) fn any_task(&self, dice: &mut Dice) -> Option<(String, u64)> {
        let state = self.lock();
        let count = state.tasks.len() as u64;
        (count > 0).then(|| state.tasks[dice.below(count) as usize].clone())
    }

    // === Configurations ===

    /// The next configuration, which may hold from now on.
    pub(super) fn write(&self, rules: Rules) {
        self.lock().rules.push(rules);
    }

    /// The newest configuration holds, and no other; lists have changed for those whom it concerns.
    pub(super) fn take_up(&self) {
        let mut state = self.lock();
        let newest = state.rules.len() - 1;
        let (before, next) = (state.rules[state.taken_up].clone(), state.rules[newest].clone());
        state.taken_up = newest;
        for role in ["staff", "guest"].into_iter().filter(|role| before.concerns(&next, role)) {
            for topic in Topic::ALL {
                state.count_change(role, topic);
            }
        }
        // What changed before it may be seen now, and may be read only now.
        let seen = state.unseen.extract_if(.., |(role, _, name)| next.may(role, name));
        for (role, topic, _) in seen.collect::<Vec<_>>() {
            state.count_change(role, topic);
        }
    }

    pub(super) fn rules(&self) -> Rules {
        let state = self.lock();
        state.rules[state.taken_up].clone()
    }

    pub(super) fn since(&self) -> Since {
        Since(self.lock().taken_up)
    }

    /// Every configuration that may have held since then.
    pub(super) fn rules_since(&self, since: Since) -> Vec<Rules> {
        self.lock().rules[since.0..].to_vec()
    }

    /// Whether a server has been there from the beginning until now.
    pub(super) fn has_stayed(&self, server: &str) -> bool {
        self.lock().rules.iter().all(|rules| rules.has(server))
    }

    /// A list changes by the item that is called so.
    pub(super) fn change(&self, topic: Topic, name: &str) {
        let mut state = self.lock();
        let rules = state.rules[state.taken_up].clone();
        for role in ["staff", "guest"] {
            match rules.may(role, name) {
                true => state.count_change(role, topic),
                false => state.unseen.push((role, topic, name.to_owned())),
            }
        }
    }

    /// How often a list has changed for this role, at the most.
    pub(super) fn changes(&self, role: &'static str, topic: Topic) -> u32 {
        self.lock().changes.get(&(role, topic)).copied().unwrap_or_default()
    }

    // === The weather ===

    pub(super) fn storms(&self) {
        self.lock().is_stormy = true;
    }

    pub(super) fn is_stormy(&self) -> bool {
        self.lock().is_stormy
    }

    /// A server falls. Where that is between its resources and its templates, of a change that is told as one the first
    /// half is told now and the other when it is back.
    pub(super) fn fall(&self) {
        let mut state = self.lock();
        for role in ["staff", "guest"] {
            *state.changes.entry((role, Topic::Resources)).or_default() += 1;
        }
    }

    pub(super) fn stops(&self) {
        self.lock().has_stopped = true;
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.lock().has_stopped
    }

    // === In the end ===

    pub(super) fn wrong(&self) -> Vec<String> {
        let state = self.lock();
        let facts = state.facts.iter().filter_map(|(number, fact)| {
            let (fate, _) = self.fate(*number);
            let wrong = fact.wrong(fate)?;
            Some(format!("{number}: {wrong}; {fate:?}, {fact:?}"))
        });
        state.wrong.iter().cloned().chain(facts).collect()
    }

    /// All events. What was seen at the same time has no order but each one's own.
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
    /// Of two kinds of a topic one may be read at first, and the other only when the weather lets it.
    fn count_change(&mut self, role: &'static str, topic: Topic) {
        let times = if topic == Topic::Resources && self.is_stormy { 2 } else { 1 };
        *self.changes.entry((role, topic)).or_default() += times;
    }
}

/// Whether a client's side and a server's know the same kind of tasks.
pub(super) fn have_tasks(client: Side, server: Side) -> bool {
    client.revision == server.revision
}
