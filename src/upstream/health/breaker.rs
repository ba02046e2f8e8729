//! Leaves a server alone that fails call after call, and finds out by one probe at a time when it is back.
//!
//! What counts is about the server: it did not answer in time, broke off, or said that it cannot serve. Whatever
//! else it says, its own errors included, shows that it is there. `Retry-After` is about the request that it answers:
//! its client is told, and nobody else waits for that long.
//!
//! Promises: while it is open nothing is sent; in half-open there is never more than one probe; the time that it
//! stays open doubles with each probe that fails, and begins anew once one has succeeded. A clean breaker costs a
//! call one relaxed load before it, and one behind it.
//!
//! Knows nothing of: what is called, and whether there is a connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// When a server is left alone, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// After so many failures in a row.
    pub failures: u32,
    /// For how long at first; it doubles with each probe that fails.
    pub cool_down: Duration,
    /// The longest; not less than `cool_down`.
    pub max_cool_down: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            failures: 5,
            cool_down: Duration::from_secs(5),
            max_cool_down: Duration::from_secs(60),
        }
    }
}

/// A failure that is the server's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Strike {
    /// What it was, in words.
    pub(crate) reason: String,
}

/// Decides whether anything is sent.
#[derive(Debug)]
pub(crate) struct Breaker {
    settings: Settings,
    /// Whether the server's last answer was good: then nobody has to look further.
    is_clean: AtomicBool,
    opened: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    at: At,
    /// How long it opens next.
    cool_down: Duration,
    /// What failed last.
    reason: String,
    /// What was sent earlier says nothing any more.
    since: Instant,
}

#[derive(Debug)]
enum At {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen { is_probed: bool },
}

/// The right to send something once. What has come of it is told to [`Breaker::settle`]; of one that is given up
/// [`Breaker::release`].
#[derive(Debug)]
pub(crate) struct Pass {
    is_probe: bool,
    at: Instant,
}

/// What has come of something that was sent.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The server answered.
    Alive,
    /// It failed.
    Failed(Strike),
    /// It cannot be told: nothing was sent, or nobody waited for the end.
    Unknown,
}

/// Where a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// Everything is sent.
    Closed,
    /// Nothing is sent until then.
    Open(Instant),
    /// One probe at a time is sent.
    HalfOpen,
}

impl Breaker {
    pub(crate) fn new(settings: Settings) -> Self {
        let (at, cool_down) = (At::Closed { failures: 0 }, settings.cool_down);
        let inner = Inner { at, cool_down, reason: String::new(), since: Instant::now() };
        Self {
            settings,
            is_clean: AtomicBool::new(true),
            opened: AtomicU64::new(0),
            inner: Mutex::new(inner),
        }
    }

    /// Asks whether something may be sent now; an error is why not.
    pub(crate) fn admit(&self, now: Instant) -> Result<Pass, String> {
        if self.is_clean.load(Ordering::Relaxed) {
            return Ok(Pass { is_probe: false, at: now });
        }
        let mut inner = self.lock();
        match inner.at {
            At::Closed { .. } => Ok(Pass { is_probe: false, at: now }),
            At::Open { until } if until <= now => {
                inner.at = At::HalfOpen { is_probed: true };
                Ok(Pass { is_probe: true, at: now })
            }
            At::HalfOpen { is_probed: false } => {
                inner.at = At::HalfOpen { is_probed: true };
                Ok(Pass { is_probe: true, at: now })
            }
            At::Open { .. } | At::HalfOpen { .. } => Err(inner.refusal()),
        }
    }

    /// Tells what has come of something that was sent. Returns why it is open, if it has opened now.
    pub(crate) fn settle(&self, pass: Pass, verdict: Verdict, now: Instant) -> Option<Opened> {
        match verdict {
            Verdict::Alive if self.is_clean.load(Ordering::Relaxed) => None,
            Verdict::Alive => {
                self.answered(&pass, now);
                None
            }
            Verdict::Failed(strike) => self.failed(&pass, strike, now),
            Verdict::Unknown => {
                self.release(pass);
                None
            }
        }
    }

    /// Nobody will learn what came of it: the next one may probe.
    pub(crate) fn release(&self, pass: Pass) {
        if pass.is_probe {
            let mut inner = self.lock();
            if inner.is_probed_by(&pass) {
                inner.at = At::HalfOpen { is_probed: false };
            }
        }
    }

    /// It is another server from now on: what the last one did says nothing of it.
    pub(crate) fn forget(&self, now: Instant) {
        if !self.is_clean.load(Ordering::Relaxed) {
            self.close(&mut self.lock(), now);
        }
    }

    /// Where it stands.
    pub(crate) fn position(&self) -> Position {
        if self.is_clean.load(Ordering::Relaxed) {
            return Position::Closed;
        }
        match self.lock().at {
            At::Closed { .. } => Position::Closed,
            At::Open { until } if until > Instant::now() => Position::Open(until),
            At::Open { .. } | At::HalfOpen { .. } => Position::HalfOpen,
        }
    }

    /// Since when it has stood there, and what failed last.
    pub(crate) fn why(&self) -> (Instant, String) {
        let inner = self.lock();
        (inner.since, inner.refusal())
    }

    /// How often it has opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    fn answered(&self, pass: &Pass, now: Instant) {
        let mut inner = self.lock();
        match inner.at {
            At::Closed { .. } => self.close(&mut inner, now),
            // What was sent before it opened may still be answered, one call of many; the probe decides.
            At::Open { .. } | At::HalfOpen { .. } if inner.is_probed_by(pass) => {
                self.close(&mut inner, now);
            }
            At::Open { .. } | At::HalfOpen { .. } => {}
        }
    }

    fn failed(&self, pass: &Pass, strike: Strike, now: Instant) -> Option<Opened> {
        let mut inner = self.lock();
        let is_probe = inner.is_probed_by(pass);
        let is_early = pass.at < inner.since;
        let is_enough = match &mut inner.at {
            At::Closed { .. } if is_early => return None,
            At::Closed { failures } => {
                *failures += 1;
                *failures >= self.settings.failures
            }
            At::Open { .. } | At::HalfOpen { .. } => is_probe,
        };
        self.is_clean.store(false, Ordering::Relaxed);
        inner.reason = strike.reason;
        if !is_enough {
            return None;
        }
        let pause = inner.cool_down;
        inner.cool_down = (inner.cool_down * 2).min(self.settings.max_cool_down);
        inner.at = At::Open { until: now + pause };
        inner.since = now;
        self.opened.fetch_add(1, Ordering::Relaxed);
        let failures = self.settings.failures;
        Some(Opened { pause, failures, reason: inner.reason.clone(), again: is_probe })
    }

    fn close(&self, inner: &mut Inner, now: Instant) {
        if !matches!(inner.at, At::Closed { .. }) {
            inner.since = now;
        }
        inner.at = At::Closed { failures: 0 };
        inner.cool_down = self.settings.cool_down;
        self.is_clean.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is one assignment after another, of plain values: a panic leaves nothing torn.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A breaker that has opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// For how long.
    pub(crate) pause: Duration,
    /// After how many failures in a row it does, if it was closed.
    pub(crate) failures: u32,
    /// What failed last.
    pub(crate) reason: String,
    /// Whether it was open before, and a probe has failed.
    pub(crate) again: bool,
}

impl Inner {
    /// Whether this is the probe that is under way: an earlier one may outlive its server.
    fn is_probed_by(&self, pass: &Pass) -> bool {
        let is_probed = matches!(self.at, At::HalfOpen { is_probed: true });
        is_probed && pass.is_probe && pass.at >= self.since
    }

    fn refusal(&self) -> String {
        format!("it failed too often and is left alone for a while; last: {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::time::advance;

    use crate::upstream::health::breaker::*;

    fn strike() -> Verdict {
        Verdict::Failed(Strike { reason: "why".into() })
    }

    fn try_once(breaker: &Breaker, verdict: Verdict) -> Option<Opened> {
        let pass = breaker.admit(Instant::now()).expect("it is not open");
        breaker.settle(pass, verdict, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row_and_an_answer_between_them_counts() {
        let breaker = Breaker::new(Settings::default());
        for _ in 0..4 {
            assert_eq!(try_once(&breaker, strike()), None);
        }
        try_once(&breaker, Verdict::Alive);
        for _ in 0..4 {
            assert_eq!(try_once(&breaker, strike()), None);
        }
        assert_eq!(breaker.position(), Position::Closed);
        try_once(&breaker, Verdict::Unknown);
        let opened = try_once(&breaker, strike()).expect("the fifth");
        assert_eq!((opened.pause, opened.again), (Duration::from_secs(5), false));
        let refused = breaker.admit(Instant::now()).expect_err("open");
        assert!(refused.ends_with("last: why"), "{refused}");
        assert_eq!(breaker.opened(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_that_it_stays_open_doubles_until_a_probe_succeeds() {
        let breaker = Breaker::new(Settings { failures: 1, ..Settings::default() });
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let opened = try_once(&breaker, strike()).expect("open");
            pauses.push(opened.pause.as_secs());
            advance(opened.pause - Duration::from_millis(1)).await;
            assert!(breaker.admit(Instant::now()).is_err());
            advance(Duration::from_millis(1)).await;
            assert_eq!(breaker.position(), Position::HalfOpen);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        try_once(&breaker, Verdict::Alive);
        assert_eq!(breaker.position(), Position::Closed);
        assert_eq!(try_once(&breaker, strike()).expect("open").pause.as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_before_it_closed_says_nothing_of_the_server_now() {
        let breaker = Breaker::new(Settings { failures: 1, ..Settings::default() });
        let early = breaker.admit(Instant::now()).expect("closed");
        let late = breaker.admit(Instant::now()).expect("closed");
        try_once(&breaker, strike()).expect("open");
        // A call of before is answered; but it is the probe that decides.
        breaker.settle(late, Verdict::Alive, Instant::now());
        assert!(breaker.admit(Instant::now()).is_err());
        advance(Duration::from_secs(5)).await;
        try_once(&breaker, Verdict::Alive);
        assert_eq!(breaker.settle(early, strike(), Instant::now()), None);
        assert_eq!(breaker.position(), Position::Closed);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Admit,
        Settle(usize, u8),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Admit),
            3 => (0..8_usize, 0..3_u8).prop_map(|(which, how)| Step::Settle(which, how)),
            1 => (0..30_000_u64).prop_map(Step::Wait),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// D-P27.
        #[test]
        fn there_is_never_more_than_one_probe_and_it_opens_for_as_long_as_the_schedule_says(steps in steps()) {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
            runtime.block_on(async {
                let breaker = Breaker::new(Settings { failures: 2, ..Settings::default() });
                let mut passes: Vec<Pass> = Vec::new();
                let (mut open_until, mut expected) = (None::<Instant>, 5);
                for step in steps {
                    let now = Instant::now();
                    match step {
                        Step::Admit => match breaker.admit(now) {
                            Ok(pass) => {
                                assert!(open_until.is_none_or(|until| until <= now));
                                assert_eq!(pass.is_probe, open_until.is_some());
                                passes.push(pass);
                                let probes = passes.iter().filter(|pass| pass.is_probe).count();
                                assert!(probes <= 1, "{probes} probes");
                            }
                            Err(_) => assert!(open_until.is_some()),
                        },
                        Step::Settle(which, how) if !passes.is_empty() => {
                            let at = which % passes.len();
                            let pass = passes.swap_remove(at);
                            let is_probe = pass.is_probe;
                            let verdict = match how {
                                0 => Verdict::Alive,
                                1 => strike(),
                                _ => Verdict::Unknown,
                            };
                            if let Some(opened) = breaker.settle(pass, verdict, now) {
                                assert_eq!(opened.again, is_probe);
                                assert_eq!(opened.pause.as_secs(), expected);
                                expected = (expected * 2).min(60);
                                open_until = Some(now + opened.pause);
                            } else if is_probe && how == 0 {
                                (open_until, expected) = (None, 5);
                            } else if how == 0 && open_until.is_none() {
                                expected = 5;
                            }
                        }
                        Step::Settle(..) => {}
                        Step::Wait(millis) => advance(Duration::from_millis(millis)).await,
                    }
                }
            });
        }
    }
}
