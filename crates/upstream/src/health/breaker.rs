//! Circuit breaker for one upstream.
//!
//! A failure counts if it is the server's: a timeout, a lost connection, or an error status that
//! means that it cannot serve. Any other response, a JSON-RPC error included, shows that the server
//! works. `Retry-After` concerns the request that it answers: that client receives it, and other
//! calls do not wait for it.
//!
//! Invariants: nothing is sent while the breaker is open; a half-open breaker allows one probe at a
//! time; the open period doubles with each failed probe and starts anew after a successful one. A
//! closed breaker without recent failures costs a call one relaxed load before and one after it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use weir_base::tasks::sync::Mutex;
use weir_base::time::backoff::Backoff;

/// Thresholds and periods of the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Consecutive failures that open the breaker.
    pub failures: u32,
    /// First open period; it doubles with each failed probe.
    pub cool_down: Duration,
    /// Longest open period; not less than `cool_down`.
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

/// Circuit breaker: admits or rejects requests.
#[derive(Debug)]
pub(crate) struct Breaker {
    settings: Settings,
    /// Whether the last response was good: then no lock is needed.
    is_clean: AtomicBool,
    open_count: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    at: BreakerPhase,
    /// Open periods.
    cool_down: Backoff,
    /// Last failure.
    reason: String,
    /// Time of the last state change; results of earlier requests are ignored.
    since: Instant,
}

#[derive(Debug)]
enum BreakerPhase {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen { is_probed: bool },
}

/// Permit to send one request. Its result goes to [`Breaker::record`].
#[derive(Debug)]
pub(crate) struct BreakerPermit {
    is_probe: bool,
    at: Instant,
}

/// Result of a request, as the breaker counts it.
#[derive(Debug)]
pub(crate) enum CallResult {
    /// The server responded.
    Alive,
    /// The server failed, for this reason.
    Failed(String),
    /// Unknown: nothing was sent, or the caller left before the end.
    Unknown,
}

/// State of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// All requests are sent.
    Closed,
    /// Nothing is sent until this time.
    Open(Instant),
    /// One probe at a time is sent.
    HalfOpen,
}

impl Breaker {
    pub(crate) fn new(settings: Settings) -> Self {
        let at = BreakerPhase::Closed { failures: 0 };
        let cool_down = Backoff::new(settings.cool_down, settings.max_cool_down);
        let inner = Inner { at, cool_down, reason: String::new(), since: Instant::now() };
        Self {
            settings,
            is_clean: AtomicBool::new(true),
            open_count: AtomicU64::new(0),
            inner: Mutex::new(inner),
        }
    }

    /// Admits a request, or returns the reason for a rejection.
    pub(crate) fn try_acquire(&self, now: Instant) -> Result<BreakerPermit, String> {
        if self.is_clean.load(Ordering::Relaxed) {
            return Ok(BreakerPermit { is_probe: false, at: now });
        }
        let mut inner = self.inner.lock();
        match inner.at {
            BreakerPhase::Closed { .. } => Ok(BreakerPermit { is_probe: false, at: now }),
            BreakerPhase::Open { until } if until > now => Err(inner.rejection()),
            BreakerPhase::HalfOpen { is_probed: true } => Err(inner.rejection()),
            BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } => {
                inner.at = BreakerPhase::HalfOpen { is_probed: true };
                Ok(BreakerPermit { is_probe: true, at: now })
            }
        }
    }

    /// Records the result of a request. Returns details if the breaker has just opened.
    pub(crate) fn record(
        &self,
        permit: BreakerPermit,
        result: CallResult,
        now: Instant,
    ) -> Option<BreakerOpened> {
        match result {
            CallResult::Alive if self.is_clean.load(Ordering::Relaxed) => None,
            CallResult::Alive => {
                self.record_response(&permit, now);
                None
            }
            CallResult::Failed(reason) => self.record_failure(&permit, reason, now),
            CallResult::Unknown => {
                self.release(&permit);
                None
            }
        }
    }

    /// Returns a permit without a result: the next request may be the probe.
    fn release(&self, permit: &BreakerPermit) {
        if permit.is_probe {
            let mut inner = self.inner.lock();
            if inner.is_probed_by(permit) {
                inner.at = BreakerPhase::HalfOpen { is_probed: false };
            }
        }
    }

    /// Closes the breaker for a new server: results of the previous one do not apply.
    pub(crate) fn reset(&self, now: Instant) {
        if !self.is_clean.load(Ordering::Relaxed) {
            self.close(&mut self.inner.lock(), now);
        }
    }

    /// Current state.
    pub(crate) fn state(&self) -> BreakerState {
        if self.is_clean.load(Ordering::Relaxed) {
            return BreakerState::Closed;
        }
        match self.inner.lock().at {
            BreakerPhase::Closed { .. } => BreakerState::Closed,
            BreakerPhase::Open { until } if until > Instant::now() => BreakerState::Open(until),
            BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Time of the last state change, and the last failure.
    pub(crate) fn last_failure(&self) -> (Instant, String) {
        let inner = self.inner.lock();
        (inner.since, inner.rejection())
    }

    /// Number of times that the breaker has opened.
    pub(crate) fn open_count(&self) -> u64 {
        self.open_count.load(Ordering::Relaxed)
    }

    fn record_response(&self, permit: &BreakerPermit, now: Instant) {
        let mut inner = self.inner.lock();
        // A request that was sent before the breaker opened may still succeed, one of many; only
        // the probe decides.
        if matches!(inner.at, BreakerPhase::Closed { .. }) || inner.is_probed_by(permit) {
            self.close(&mut inner, now);
        }
    }

    fn record_failure(
        &self,
        permit: &BreakerPermit,
        reason: String,
        now: Instant,
    ) -> Option<BreakerOpened> {
        let mut inner = self.inner.lock();
        let is_probe = inner.is_probed_by(permit);
        let is_early = permit.at < inner.since;
        let opens = match &mut inner.at {
            BreakerPhase::Closed { .. } if is_early => return None,
            BreakerPhase::Closed { failures } => {
                *failures += 1;
                *failures >= self.settings.failures
            }
            BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } => is_probe,
        };
        self.is_clean.store(false, Ordering::Relaxed);
        inner.reason = reason;
        if !opens {
            return None;
        }
        let pause = inner.cool_down.next_pause();
        inner.at = BreakerPhase::Open { until: now + pause };
        inner.since = now;
        self.open_count.fetch_add(1, Ordering::Relaxed);
        let failures = self.settings.failures;
        Some(BreakerOpened { pause, failures, reason: inner.reason.clone(), again: is_probe })
    }

    fn close(&self, inner: &mut Inner, now: Instant) {
        if !matches!(inner.at, BreakerPhase::Closed { .. }) {
            inner.since = now;
        }
        inner.at = BreakerPhase::Closed { failures: 0 };
        inner.cool_down.reset();
        self.is_clean.store(true, Ordering::Relaxed);
    }
}

/// Details of an opened breaker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BreakerOpened {
    /// Open period.
    pub(crate) pause: Duration,
    /// Threshold of consecutive failures, for a breaker that was closed.
    pub(crate) failures: u32,
    /// Last failure.
    pub(crate) reason: String,
    /// Whether a failed probe opened it again.
    pub(crate) again: bool,
}

impl Inner {
    /// Whether this permit is the current probe: an earlier probe may outlive its server.
    fn is_probed_by(&self, permit: &BreakerPermit) -> bool {
        let is_probed = matches!(self.at, BreakerPhase::HalfOpen { is_probed: true });
        is_probed && permit.is_probe && permit.at >= self.since
    }

    fn rejection(&self) -> String {
        format!("circuit breaker open after too many failures; last: {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::time::advance;

    use crate::health::breaker::*;

    fn failure() -> CallResult {
        CallResult::Failed("why".into())
    }

    fn try_once(breaker: &Breaker, result: CallResult) -> Option<BreakerOpened> {
        let permit = breaker.try_acquire(Instant::now()).expect("it is not open");
        breaker.record(permit, result, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row_and_an_answer_between_them_counts() {
        let breaker = Breaker::new(Settings::default());
        for _ in 0..4 {
            assert_eq!(try_once(&breaker, failure()), None);
        }
        try_once(&breaker, CallResult::Alive);
        for _ in 0..4 {
            assert_eq!(try_once(&breaker, failure()), None);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        try_once(&breaker, CallResult::Unknown);
        let open_count = try_once(&breaker, failure()).expect("the fifth");
        assert_eq!((open_count.pause, open_count.again), (Duration::from_secs(5), false));
        let refused = breaker.try_acquire(Instant::now()).expect_err("open");
        assert!(refused.ends_with("last: why"), "{refused}");
        assert_eq!(breaker.open_count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_that_it_stays_open_doubles_until_a_probe_succeeds() {
        let breaker = Breaker::new(Settings { failures: 1, ..Settings::default() });
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let open_count = try_once(&breaker, failure()).expect("open");
            pauses.push(open_count.pause.as_secs());
            advance(open_count.pause - Duration::from_millis(1)).await;
            assert!(breaker.try_acquire(Instant::now()).is_err());
            advance(Duration::from_millis(1)).await;
            assert_eq!(breaker.state(), BreakerState::HalfOpen);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        try_once(&breaker, CallResult::Alive);
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert_eq!(try_once(&breaker, failure()).expect("open").pause.as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_before_it_closed_says_nothing_of_the_server_now() {
        let breaker = Breaker::new(Settings { failures: 1, ..Settings::default() });
        let early = breaker.try_acquire(Instant::now()).expect("closed");
        let late = breaker.try_acquire(Instant::now()).expect("closed");
        try_once(&breaker, failure()).expect("open");
        // A call sent earlier succeeds, but only the probe decides.
        breaker.record(late, CallResult::Alive, Instant::now());
        assert!(breaker.try_acquire(Instant::now()).is_err());
        advance(Duration::from_secs(5)).await;
        try_once(&breaker, CallResult::Alive);
        assert_eq!(breaker.record(early, failure(), Instant::now()), None);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[derive(Debug, Clone)]
    enum BreakerStep {
        Admit,
        Settle(usize, u8),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<BreakerStep>> {
        let step = prop_oneof![
            3 => Just(BreakerStep::Admit),
            3 => (0..8_usize, 0..3_u8).prop_map(|(which, how)| BreakerStep::Settle(which, how)),
            1 => (0..30_000_u64).prop_map(BreakerStep::Wait),
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
                let mut permits: Vec<BreakerPermit> = Vec::new();
                let (mut open_until, mut expected) = (None::<Instant>, 5);
                for step in steps {
                    let now = Instant::now();
                    match step {
                        BreakerStep::Admit => match breaker.try_acquire(now) {
                            Ok(permit) => {
                                assert!(open_until.is_none_or(|until| until <= now));
                                assert_eq!(permit.is_probe, open_until.is_some());
                                permits.push(permit);
                                let probes = permits.iter().filter(|permit| permit.is_probe).count();
                                assert!(probes <= 1, "{probes} probes");
                            }
                            Err(_) => assert!(open_until.is_some()),
                        },
                        BreakerStep::Settle(which, how) if !permits.is_empty() => {
                            let at = which % permits.len();
                            let permit = permits.swap_remove(at);
                            let is_probe = permit.is_probe;
                            let result = match how {
                                0 => CallResult::Alive,
                                1 => failure(),
                                _ => CallResult::Unknown,
                            };
                            if let Some(open_count) = breaker.record(permit, result, now) {
                                assert_eq!(open_count.again, is_probe);
                                assert_eq!(open_count.pause.as_secs(), expected);
                                expected = (expected * 2).min(60);
                                open_until = Some(now + open_count.pause);
                            } else if is_probe && how == 0 {
                                (open_until, expected) = (None, 5);
                            } else if how == 0 && open_until.is_none() {
                                expected = 5;
                            }
                        }
                        BreakerStep::Settle(..) => {}
                        BreakerStep::Wait(millis) => advance(Duration::from_millis(millis)).await,
                    }
                }
            });
        }
    }
}
