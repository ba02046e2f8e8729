//! Life of an upstream call: start on demand, circuit breaker, concurrency permit, sending; then
//! `active_call`: time limits, suspension for client input, resumption, streamed body.
//!
//! Invariants: a caller waits no longer than a stop, a start and the queue's time limit together.
//! An upstream whose circuit breaker is open is not started, and a call to one that is down fails
//! at once instead of waiting for a permit.

pub(crate) mod active_call;
pub(crate) mod body_stream;
pub(crate) mod route;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::handle::Upstream;
use super::input_requests::InputRequests;
use super::message::SentCount;
use super::{ConnectionStatus, Error, UpstreamLimits};
use crate::SuspendedCall;
use crate::call::active_call::{ActiveCall, SentResponse};
use crate::call::route::CallRoute;
use crate::call_metrics::CallDurations;
use crate::health::health_state::{BreakerGuard, CallFailure};
use crate::health::on_demand::UsageGuard;
use weir_base::metrics::Gauge;
use weir_mcp::call::{CallOutcome, UpstreamRequest};
use weir_mcp::revision::Era;

/// Time that a caller waits for an upstream that is being stopped: a child process has 5 s until
/// SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Guard that keeps an upstream from being stopped for idleness.
#[derive(Debug)]
pub struct KeepAliveGuard {
    _usage: Option<UsageGuard>,
}

/// Resources of a call that may be sent.
pub(crate) struct CallSlot {
    /// Keeps an on-demand upstream from being stopped.
    pub(crate) usage: Option<UsageGuard>,
    /// Takes what the call shows about the server's health, once.
    pub(crate) breaker: BreakerGuard,
    /// Concurrency permit; `None` while the call is suspended.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

impl Upstream {
    /// Sends a call once, and records it in the upstream's metrics and in those of `all` upstreams.
    /// Dropping the future cancels the call.
    pub async fn call_recorded(
        &self,
        call: Box<UpstreamRequest>,
        all: &CallDurations,
    ) -> Result<CallOutcome<SuspendedCall>, Error> {
        let recorder = self.shared.calls.begin(all, call.method);
        let outcome = match self.acquire_call_slot().await {
            Ok(slot) => ActiveCall::begin(self, slot, call).drive().await,
            Err(error) => Err(error),
        };
        recorder.end(&outcome);
        outcome
    }

    /// Acquires the right to send a call now.
    async fn acquire_call_slot(&self) -> Result<CallSlot, Error> {
        // An open circuit breaker also prevents an on-demand start.
        let probe = match self.breaker_open_until() {
            Some(_) => Some(self.shared.health.begin()?),
            None => None,
        };
        let usage = self.acquire_usage().await;
        self.shared.connection()?;
        // A call that is already the probe of a half-open breaker must not block itself.
        let breaker = probe.map_or_else(|| self.shared.health.begin(), Ok)?;
        Ok(CallSlot { usage, breaker, permit: Some(self.acquire_permit().await?) })
    }

    /// Acquires a concurrency permit, or waits for one if the queue is not full.
    async fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        let UpstreamLimits { waiting, wait, .. } = self.shared.settings.limits;
        let busy = || Error::Busy { retry_after: wait };
        let permits = &self.shared.permits;
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Ok(permit);
        }
        let waiting = Gauge::enter_below(&self.shared.waiting, waiting).ok_or_else(busy)?;
        let permit = timeout(wait, Arc::clone(permits).acquire_owned()).await;
        drop(waiting);
        permit.map_err(|_| busy())?.map_err(|_| busy())
    }
}

// === Start on demand ===

impl Upstream {
    /// Requests a start of a stopped on-demand upstream, so that it is listed.
    pub fn start_if_idle(&self) {
        if self.shared.on_demand.is_lazy {
            self.shared.on_demand.request_start();
        }
    }

    /// Starts a stopped on-demand upstream and waits for that for a bounded time. The upstream is
    /// not stopped for idleness until the guard is dropped.
    pub async fn start_and_keep_alive(&self) -> KeepAliveGuard {
        KeepAliveGuard { _usage: self.acquire_usage().await }
    }

    /// Returns the era of the server; a stopped on-demand upstream is started for that. Waits while
    /// the upstream is starting; `None` if it is not connected then.
    pub async fn era(&self) -> Option<Era> {
        let _usage = self.acquire_usage().await;
        Some(self.shared.connection().ok()?.about().era())
    }

    /// Keeps a running upstream from being stopped for idleness until the guard is dropped. A
    /// stopped one is not started.
    pub fn keep_alive(&self) -> KeepAliveGuard {
        KeepAliveGuard { _usage: self.shared.on_demand.begin_passive() }
    }

    /// Registers a use. A stopped on-demand upstream is started, unless its circuit breaker is
    /// open. Waits while the upstream is starting: items that it listed before (or that its
    /// predecessor listed) may be called before it is connected.
    pub(super) async fn acquire_usage(&self) -> Option<UsageGuard> {
        let shared = &*self.shared;
        let usage = match self.breaker_open_until() {
            None => shared.on_demand.begin(),
            Some(_) => shared.on_demand.begin_passive(),
        };
        // If the breaker opens only after this check, the later admission gives the reason.
        if self.breaker_open_until().is_none() {
            // The upstream may just be stopping.
            let is_asleep = |status: &_| matches!(status, ConnectionStatus::Asleep);
            self.wait_while_status(is_asleep, STOP_TIMEOUT).await;
        }
        let is_starting = |status: &_| matches!(status, ConnectionStatus::Starting);
        self.wait_while_status(is_starting, shared.settings.timeouts.startup).await;
        usage
    }

    /// Waits until the status no longer matches, at most for `at_most`.
    async fn wait_while_status(&self, matches: fn(&ConnectionStatus) -> bool, at_most: Duration) {
        if matches(&self.shared.status.borrow()) {
            let mut status = self.shared.status.clone();
            let _ = timeout(at_most, status.wait_for(|status| !matches(status))).await;
        }
    }
}

// === Sending ===

impl Upstream {
    /// Sends the request and waits for its response.
    async fn send(
        self,
        call: Box<UpstreamRequest>,
        input_requests: InputRequests,
        sent: SentCount,
    ) -> Result<SentResponse, CallFailure> {
        let settings = &self.shared.settings;
        let (call, input_requests, sent) = (&*call, &input_requests, &sent);
        CallRoute::send(&self.shared, Some(&call.caller), |connection| async move {
            connection.call(call, input_requests, sent, settings).await
        })
        .await
    }
}
