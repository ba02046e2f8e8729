//! What happened in one history, and what must not have.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sha2::{Digest, Sha256};
use tokio::time::Instant;
use weir::mcp::kind::Topic;

use super::dice::Dice;

pub(super) struct Ledger {
    seed: u64,
    /// When the first thing happened, on the clock of its house.
    begin: OnceLock<Instant>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    /// How often each request was executed, by its number.
    executed: HashMap<u64, u32>,
    /// How often a list has changed for a role.
    changes: HashMap<(&'static str, Topic), u32>,
    numbers: u64,
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

    /// The number of a new request.
    pub(super) fn number(&self) -> u64 {
        let mut state = self.lock();
        state.numbers += 1;
        state.numbers
    }

    /// What becomes of a request, and the dice for how.
    pub(super) fn fate(&self, number: u64) -> (Fate, Dice) {
        let mut dice = Dice::new(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let fate = match dice.below(100) {
            0..50 => Fate::Answered,
            50..60 => Fate::Noted,
            60..66 => Fate::Large,
            66..71 => Fate::CutShort,
            71..79 => Fate::Refused,
            79..84 => Fate::Silence,
            84..88 => Fate::HungUp,
            88..92 => Fate::Garbage,
            92..96 => Fate::Twice,
            _ => Fate::Misdirected,
        };
        (fate, dice)
    }

    pub(super) fn execute(&self, number: u64) {
        *self.lock().executed.entry(number).or_default() += 1;
    }

    pub(super) fn executed(&self, number: u64) -> u32 {
        self.lock().executed.get(&number).copied().unwrap_or_default()
    }

    /// A list changes for this role.
    pub(super) fn change(&self, role: &'static str, topic: Topic) {
        *self.lock().changes.entry((role, topic)).or_default() += 1;
    }

    pub(super) fn has_changed(&self, role: &'static str, topic: Topic) -> bool {
        self.lock().changes.contains_key(&(role, topic))
    }

    pub(super) fn storms(&self) {
        self.lock().is_stormy = true;
    }

    pub(super) fn is_stormy(&self) -> bool {
        self.lock().is_stormy
    }

    pub(super) fn stops(&self) {
        self.lock().has_stopped = true;
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.lock().has_stopped
    }

    pub(super) fn wrong(&self) -> Vec<String> {
        let state = self.lock();
        let twice = state.executed.iter().filter(|(_, times)| **times > 1);
        let twice = twice.map(|(number, times)| format!("{number} was executed {times} times"));
        state.wrong.iter().cloned().chain(twice).collect()
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
