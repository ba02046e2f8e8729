//! What is kept of how one upstream is doing: written by whoever learns it, read by reports.
//!
//! Promises: what happens with each message is counted without a lock; the rest changes rarely, and
//! is behind one. Nothing here waits.
//!
//! Knows nothing of: who reads it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::upstream::connect::Number;
use crate::upstream::health::breaker::{self, Breaker, Pass, Position, Strike, Verdict};
use crate::upstream::health::status_report::{Counts, LastList, Report, State};
use crate::upstream::message::Failure;
use crate::upstream::transport::child::Tail;
use crate::upstream::{Error, Listing, Status};

/// How one upstream is doing.
#[derive(Debug)]
pub(crate) struct Vitals {
    name: UpstreamName,
    breaker: Breaker,
    restarts: AtomicU64,
    dropped: AtomicU64,
    junk: AtomicU64,
    facts: Mutex<Facts>,
}

#[derive(Debug)]
struct Facts {
    /// Since when its status is what it is.
    since: Instant,
    /// The child that was started last, and what it says on standard error.
    child: Option<(Option<Number>, Tail)>,
    failures: u32,
    next_try: Option<Instant>,
    lists: [Option<LastList>; 4],
}

impl Vitals {
    pub(crate) fn new(name: UpstreamName, breaker: breaker::Settings) -> Arc<Self> {
        let facts = Facts {
            since: Instant::now(),
            child: None,
            failures: 0,
            next_try: None,
            lists: [None; 4],
        };
        Arc::new(Self {
            name,
            breaker: Breaker::new(breaker),
            restarts: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            junk: AtomicU64::new(0),
            facts: Mutex::new(facts),
        })
    }

    // === What is learned ===

    /// Begins something that is sent to the server, if it is not left alone.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Trial, Error> {
        let pass = self.breaker.admit(Instant::now()).map_err(Error::Unavailable)?;
        Ok(Trial { vitals: Arc::clone(self), pass: Some(pass) })
    }

    /// It is connected. `anew`: to another process than before, of which nothing is known.
    pub(crate) fn connected(&self, anew: bool) {
        let now = Instant::now();
        if anew {
            self.breaker.forget(now);
        }
        let mut facts = self.lock();
        facts.since = now;
        facts.failures = 0;
        facts.next_try = None;
    }

    /// It is not connected, or not any more; `since` then, if that is not how it was before.
    pub(crate) fn disconnected(&self, is_change: bool) {
        let mut facts = self.lock();
        facts.failures += 1;
        if is_change {
            facts.since = Instant::now();
        }
        if let Some((process, _)) = &mut facts.child {
            *process = None;
        }
    }

    /// Nobody uses it, and it is stopped.
    pub(crate) fn fell_asleep(&self) {
        self.lock().since = Instant::now();
    }

    /// Its child has been stopped, if it had one.
    pub(crate) fn sleeps(&self) {
        if let Some((process, _)) = &mut self.lock().child {
            *process = None;
        }
    }

    /// It is started for somebody who uses it.
    pub(crate) fn wakes(&self) {
        self.lock().since = Instant::now();
    }

    /// It is tried again after this time.
    pub(crate) fn waits(&self, pause: Duration) {
        self.lock().next_try = Some(Instant::now() + pause);
    }

    /// It is tried again now.
    pub(crate) fn tries_again(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.lock().next_try = None;
    }

    /// Its child was started.
    pub(crate) fn child_started(&self, process: Option<Number>, tail: Tail) {
        self.lock().child = Some((process, tail));
    }

    /// A list of a kind came whole.
    pub(crate) fn listed(&self, kind: Kind, listing: &Listing) {
        let bytes = listing.items.iter().map(|item| item.definition.to_bytes().len()).sum();
        let last = LastList { at: Instant::now(), items: listing.items.len(), bytes };
        self.lock().lists[kind.index()] = Some(last);
    }

    /// A message of it that nobody waits for, or that has no place.
    pub(crate) fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// A line of its child that is no message.
    pub(crate) fn junk(&self) {
        self.junk.fetch_add(1, Ordering::Relaxed);
    }

    // === What is told ===

    /// Until when it is left alone, if it is.
    pub(crate) fn rests_until(&self) -> Option<Instant> {
        match self.breaker.position() {
            Position::Open(until) => Some(until),
            Position::Closed | Position::HalfOpen => None,
        }
    }

    pub(crate) fn report(&self, status: &Status, in_flight: usize, waiting: usize) -> Report {
        let (mut since, process, failures, next_try, lists) = {
            let facts = self.lock();
            let process = facts.child.as_ref().and_then(|(process, _)| *process);
            (facts.since, process, facts.failures, facts.next_try, facts.lists)
        };
        let process = process.map(Number::now);
        let (mut about, mut reason) = (None, None);
        let mut until = next_try;
        let state = match status {
            Status::Starting => State::Starting,
            Status::Asleep => State::Asleep,
            Status::Down { reason: why, crash_loop } => {
                reason = Some(why.clone());
                if *crash_loop { State::CrashLoop } else { State::Down }
            }
            Status::Up(it) => {
                about = Some(Arc::clone(it));
                let position = self.breaker.position();
                if position != Position::Closed {
                    let (opened, why) = self.breaker.why();
                    (since, reason) = (opened, Some(why));
                }
                match position {
                    Position::Closed => State::Up,
                    Position::HalfOpen => State::HalfOpen,
                    Position::Open(due) => {
                        until = Some(due);
                        State::Open
                    }
                }
            }
        };
        Report {
            name: self.name.clone(),
            state,
            since,
            reason,
            about,
            process,
            failures,
            next_try: until,
            in_flight,
            waiting,
            lists,
            counts: Counts {
                restarts: self.restarts.load(Ordering::Relaxed),
                breaker_opens: self.breaker.opened(),
                dropped: self.dropped.load(Ordering::Relaxed),
                junk: self.junk.load(Ordering::Relaxed),
            },
        }
    }

    /// The last lines of its child's standard error, the oldest first.
    pub(crate) fn last_words(&self, lines: usize) -> Vec<String> {
        let tail = self.lock().child.as_ref().map(|(_, tail)| tail.clone());
        tail.map(|tail| tail.last_lines(lines)).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === Trial ===

/// Something that was sent to the server. What comes of it is told once; dropped before that, nothing is known.
#[derive(Debug)]
pub(crate) struct Trial {
    vitals: Arc<Vitals>,
    pass: Option<Pass>,
}

impl Trial {
    /// The server answered.
    pub(crate) fn answered(mut self) {
        self.settle(Verdict::Alive);
    }

    /// There is no answer.
    pub(crate) fn failed(mut self, failed: &Failed) {
        let verdict = match (&failed.strike, &failed.error) {
            (Some(strike), _) => Verdict::Failed(strike.clone()),
            // It said something, even if nobody can use it.
            (
                None,
                Error::TooLarge(_)
                | Error::NoRoom
                | Error::Undeclared(_)
                | Error::Crowded
                | Error::HttpStatus { .. }
                | Error::Protocol(_),
            ) => Verdict::Alive,
            (None, _) => Verdict::Unknown,
        };
        self.settle(verdict);
    }

    fn settle(&mut self, verdict: Verdict) {
        let Some(pass) = self.pass.take() else { return };
        let (breaker, upstream) = (&self.vitals.breaker, &self.vitals.name);
        let Some(opened) = breaker.settle(pass, verdict, Instant::now()) else { return };
        let (pause, reason) = (opened.pause, opened.reason);
        if opened.again {
            tracing::debug!(%upstream, reason, ?pause, "a probe failed: nothing is sent to it for a while");
        } else {
            let text = "too many failures in a row: nothing is sent to it for a while";
            tracing::warn!(%upstream, reason, ?pause, failures = opened.failures, "{text}");
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.vitals.breaker.release(pass);
        }
    }
}

// === Failed ===

/// Why there is no reply, and whether that counts against the server.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    pub(crate) strike: Option<Strike>,
}

impl Failed {
    /// What failed over a connection of this wire.
    pub(crate) fn of(failure: Failure, wire: &str) -> Self {
        let strike = failure.strike(wire);
        Self { error: failure.into(), strike }
    }
}

impl From<Error> for Failed {
    /// Only that it did not answer in time is known of an error alone to be the server's.
    fn from(error: Error) -> Self {
        let strike = match &error {
            Error::TimedOut(_) => Some(Strike { reason: error.to_string() }),
            _ => None,
        };
        Self { error, strike }
    }
}

// === Meter ===

/// Tells once what a call shows of its server. Dropped before its end, it shows nothing.
#[derive(Debug)]
pub(crate) struct Meter {
    vitals: Arc<Vitals>,
    trial: Option<Trial>,
}

impl Meter {
    pub(crate) fn new(vitals: &Arc<Vitals>) -> Self {
        Self { vitals: Arc::clone(vitals), trial: None }
    }

    /// The call is sent, if the server is not left alone. Once it may, it may: a probe is not to be in its own way.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        if self.trial.is_none() {
            self.trial = Some(self.vitals.begin()?);
        }
        Ok(())
    }

    /// The server asks something, or has replied: it is there.
    pub(crate) fn answered(&mut self) {
        if let Some(trial) = self.trial.take() {
            trial.answered();
        }
    }

    /// There is no reply.
    pub(crate) fn failed(self, failed: &Failed) {
        if let Some(trial) = self.trial {
            trial.failed(failed);
        }
    }
}
