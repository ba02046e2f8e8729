//! Admission of calls: on-demand start of an upstream, and concurrency permits.
//!
//! Invariants: a caller waits no longer than a stop, a start and the queue's time limit together.
//! An upstream whose circuit breaker is open is not started.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::{CallHealthGuard, ConnectionStatus, Error, Upstream, UsageGuard};
use crate::upstream::UpstreamLimits;

/// Time that a caller waits for an upstream that is being stopped: a child process has 5 s until
/// SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Guard that keeps an upstream from being stopped for idleness.
#[derive(Debug)]
pub struct KeepAliveGuard {
    _usage: Option<UsageGuard>,
}

impl Upstream {
    /// Requests a start of a stopped on-demand upstream, so that it is listed.
    pub fn start_if_idle(&self) {
        if self.shared.on_demand.is_lazy() {
            self.shared.on_demand.request_start();
        }
    }

    /// Starts a stopped on-demand upstream and waits for that for a bounded time. The upstream is
    /// not stopped for idleness until the guard is dropped.
    pub async fn start_and_keep_alive(&self) -> KeepAliveGuard {
        KeepAliveGuard { _usage: self.acquire_usage().await }
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
            self.wait_while_status(ConnectionStatus::is_asleep, STOP_TIMEOUT).await;
        }
        self.wait_while_status(ConnectionStatus::is_starting, shared.settings.timeouts.startup)
            .await;
        usage
    }

    /// Waits until the status no longer matches, at most for `at_most`.
    async fn wait_while_status(&self, matches: fn(&ConnectionStatus) -> bool, at_most: Duration) {
        if matches(&self.shared.status.borrow()) {
            let mut status = self.shared.status.clone();
            let _ = timeout(at_most, status.wait_for(|status| !matches(status))).await;
        }
    }

    /// Acquires the right to send a call now. A call to an upstream that is down, or whose circuit
    /// breaker is open, fails at once instead of waiting for a permit.
    pub(super) async fn acquire_call_slot(
        &self,
        call_health: &mut CallHealthGuard,
    ) -> Result<(Option<UsageGuard>, OwnedSemaphorePermit), Error> {
        // An open circuit breaker also prevents an on-demand start.
        if self.breaker_open_until().is_some() {
            call_health.begin()?;
        }
        let usage = self.acquire_usage().await;
        self.connection()?;
        call_health.begin()?;
        Ok((usage, self.acquire_permit().await?))
    }

    /// Acquires a concurrency permit, or waits for one if the queue is not full.
    async fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        let UpstreamLimits { waiting, wait, .. } = self.shared.settings.limits;
        let busy = || Error::Busy { retry_after: wait };
        let permits = &self.shared.permits;
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Ok(permit);
        }
        let waiting = QueueSlot::begin(&self.shared.waiting, waiting).ok_or_else(busy)?;
        let permit = timeout(wait, Arc::clone(permits).acquire_owned()).await;
        drop(waiting);
        permit.map_err(|_| busy())?.map_err(|_| busy())
    }
}

/// Slot in the queue of waiting calls.
struct QueueSlot<'a>(&'a AtomicUsize);

impl<'a> QueueSlot<'a> {
    fn begin(count: &'a AtomicUsize, most: usize) -> Option<Self> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        let slot = Self(count);
        (before < most).then_some(slot)
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
