//! Health of one upstream, recorded by its tasks and read by status reports.
//!
//! Invariants: per-message events are counted without a lock, unless they are mistakes of the
//! server; the rest changes rarely and is behind one lock. Nothing here waits.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::health::author_notes::AuthorNotes;
use crate::health::breaker::{self, Breaker, BreakerPermit, BreakerState, CallResult};
use crate::health::status_report::{State, UpstreamCounts, UpstreamReport};
use crate::health::upstream_log::UpstreamLog;
use crate::message::TransportError;
use crate::{ConnectionStatus, Error};
use weir_base::metrics::Counter;
use weir_base::tasks::sync::Mutex;
use weir_mcp::name::UpstreamName;

/// Health of one upstream.
#[derive(Debug)]
pub(crate) struct UpstreamHealth {
    name: UpstreamName,
    breaker: Breaker,
    restarts: Counter,
    /// Messages without a receiver, or that exceeded a bound.
    pub(crate) dropped: Counter,
    /// Lines of the process that are not JSON-RPC messages.
    pub(crate) junk: Counter,
    /// Mistakes of the server that its author can correct.
    pub(crate) notes: AuthorNotes,
    /// Standard error of its processes, and events, for operators.
    pub(crate) log: UpstreamLog,
    state: Mutex<HealthState>,
}

#[derive(Debug)]
struct HealthState {
    /// Time of the last status change.
    since: Instant,
    failures: u32,
    next_try: Option<Instant>,
}

impl UpstreamHealth {
    pub(crate) fn new(
        name: UpstreamName,
        breaker: breaker::Settings,
        log: UpstreamLog,
    ) -> Arc<Self> {
        let state = HealthState { since: Instant::now(), failures: 0, next_try: None };
        Arc::new(Self {
            name,
            breaker: Breaker::new(breaker),
            restarts: Counter::default(),
            dropped: Counter::default(),
            junk: Counter::default(),
            notes: AuthorNotes::default(),
            log,
            state: Mutex::new(state),
        })
    }

    // === Recording ===

    /// Asks the circuit breaker for a permit to send a request.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<BreakerGuard, Error> {
        let permit = self.breaker.try_acquire(Instant::now()).map_err(Error::Unavailable)?;
        Ok(BreakerGuard { health: Arc::clone(self), permit: Some(permit) })
    }

    /// Records a connection. `is_new_server`: to another process than before, of which nothing is
    /// known.
    pub(crate) fn connected(&self, is_new_server: bool) {
        let now = Instant::now();
        if is_new_server {
            self.breaker.reset(now);
        }
        let mut state = self.state.lock();
        state.since = now;
        state.failures = 0;
        state.next_try = None;
    }

    /// Records a lost or failed connection. `is_change` restarts the time of the current status.
    pub(crate) fn disconnected(&self, is_change: bool) {
        let mut state = self.state.lock();
        state.failures += 1;
        if is_change {
            state.since = Instant::now();
        }
    }

    /// Records the beginning of an idle stop or of an on-demand start.
    pub(crate) fn status_changed(&self) {
        self.state.lock().since = Instant::now();
    }

    /// Records the pause before the next attempt.
    pub(crate) fn retry_scheduled(&self, pause: Duration) {
        self.state.lock().next_try = Some(Instant::now() + pause);
    }

    /// Records the beginning of another attempt.
    pub(crate) fn retry_started(&self) {
        self.restarts.increment();
        self.state.lock().next_try = None;
    }

    // === Reading ===

    /// End of the circuit breaker's open period, if it is open.
    pub(crate) fn breaker_open_until(&self) -> Option<Instant> {
        match self.breaker.state() {
            BreakerState::Open(until) => Some(until),
            BreakerState::Closed | BreakerState::HalfOpen => None,
        }
    }

    pub(crate) fn report(
        &self,
        status: &ConnectionStatus,
        in_flight: usize,
        waiting: usize,
    ) -> UpstreamReport {
        let (mut since, failures, next_try) = {
            let state = self.state.lock();
            (state.since, state.failures, state.next_try)
        };
        let (mut about, mut reason) = (None, None);
        let mut until = next_try;
        let state = match status {
            ConnectionStatus::Starting => State::Starting,
            ConnectionStatus::Asleep => State::Asleep,
            ConnectionStatus::Down { reason: why, crash_loop } => {
                reason = Some(why.clone());
                if *crash_loop { State::CrashLoop } else { State::Down }
            }
            ConnectionStatus::Up(it) => {
                about = Some(Arc::clone(it));
                let breaker_state = self.breaker.state();
                if breaker_state != BreakerState::Closed {
                    let (changed_at, failure) = self.breaker.last_failure();
                    (since, reason) = (changed_at, Some(failure));
                }
                match breaker_state {
                    BreakerState::Closed => State::Up,
                    BreakerState::HalfOpen => State::BreakerHalfOpen,
                    BreakerState::Open(due) => {
                        until = Some(due);
                        State::BreakerOpen
                    }
                }
            }
        };
        UpstreamReport {
            name: self.name.clone(),
            state,
            since,
            reason,
            about,
            failures,
            next_try: until,
            in_flight,
            waiting,
            counts: UpstreamCounts {
                restarts: self.restarts.read(),
                breaker_opens: self.breaker.open_count(),
                dropped: self.dropped.read(),
                junk: self.junk.read(),
            },
        }
    }
}

// === BreakerGuard ===

/// Request that the circuit breaker has admitted. Its result is recorded once; dropped before that,
/// the result is unknown.
#[derive(Debug)]
pub(crate) struct BreakerGuard {
    health: Arc<UpstreamHealth>,
    permit: Option<BreakerPermit>,
}

impl BreakerGuard {
    /// Records a response.
    pub(crate) fn responded(&mut self) {
        self.record(CallResult::Alive);
    }

    /// Records a failure.
    pub(crate) fn failed(&mut self, failed: &CallFailure) {
        let result = match &failed.error {
            Error::ConnectionLost(reason) if failed.is_server_fault => {
                CallResult::Failed(reason.clone())
            }
            error if failed.is_server_fault => CallResult::Failed(error.to_string()),
            // The server responded, even if the response cannot be used.
            Error::TooLarge(_)
            | Error::MemoryExhausted
            | Error::UndeclaredFeature(_)
            | Error::TooManyInputRequests
            | Error::HttpStatus { .. }
            | Error::Protocol(_) => CallResult::Alive,
            _ => CallResult::Unknown,
        };
        self.record(result);
    }

    fn record(&mut self, result: CallResult) {
        let Some(permit) = self.permit.take() else { return };
        let (breaker, upstream) = (&self.health.breaker, &self.health.name);
        let Some(opened) = breaker.record(permit, result, Instant::now()) else { return };
        let (pause, reason) = (opened.pause, opened.reason);
        if opened.again {
            let text = "circuit breaker opened again, probe failed";
            tracing::debug!(%upstream, reason, ?pause, "{text}");
        } else {
            let text = "circuit breaker opened, too many failures in a row";
            tracing::warn!(%upstream, reason, ?pause, failures = opened.failures, "{text}");
        }
    }
}

impl Drop for BreakerGuard {
    fn drop(&mut self) {
        self.record(CallResult::Unknown);
    }
}

// === CallFailure ===

/// Reason why a call has no response.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub(crate) error: Error,
    /// Whether the circuit breaker counts it.
    is_server_fault: bool,
}

impl CallFailure {
    /// Classifies a failure over this transport. The end of a child process, or of a stream that
    /// all requests share, is not counted once per request: the supervisor handles it.
    pub(crate) fn of(failure: TransportError, transport: &str) -> Self {
        let is_server_fault = match &failure {
            TransportError::Http(failure) => matches!(failure.status.as_u16(), 429 | 500..),
            TransportError::ConnectionLost(_) => transport == "http",
            TransportError::Other(error) => matches!(error, Error::TimedOut(_)),
            _ => false,
        };
        Self { error: failure.into(), is_server_fault }
    }
}

impl From<Error> for CallFailure {
    /// Of the errors without a transport error, only a timeout counts as the server's fault.
    fn from(error: Error) -> Self {
        Self { is_server_fault: matches!(error, Error::TimedOut(_)), error }
    }
}
