//! Admission of an upstream call: start on demand, circuit breaker, concurrency permit. Then
//! `active_call` sends the call and has its time limits, suspension for client input and streamed
//! body; `route` chooses the connection.
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

use crate::health::health_state::BreakerGuard;
use crate::health::on_demand::UsageGuard;
use crate::shared::Shared;
use crate::{ConnectionStatus, Error, UpstreamLimits};
use weir_base::metrics::Gauge;

/// Resources of a call that may be sent.
pub(crate) struct CallSlot {
    /// Keeps an on-demand upstream from being stopped.
    pub(crate) usage: Option<UsageGuard>,
    /// Takes what the call shows about the server's health, once.
    pub(crate) breaker: BreakerGuard,
    /// Concurrency permit; `None` while the call is suspended.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

impl CallSlot {
    /// Acquires the right to send a call now.
    pub(crate) async fn acquire(shared: &Shared) -> Result<Self, Error> {
        // An open circuit breaker also prevents an on-demand start.
        let probe = match shared.health.breaker_open_until() {
            Some(_) => Some(shared.health.begin()?),
            None => None,
        };
        let usage = begin_use(shared).await;
        shared.connection()?;
        // A call that is already the probe of a half-open breaker must not block itself.
        let breaker = probe.map_or_else(|| shared.health.begin(), Ok)?;
        Ok(Self { usage, breaker, permit: Some(acquire_permit(shared).await?) })
    }
}

/// Registers a use. A stopped on-demand upstream is started, unless its circuit breaker is open.
/// Waits while the upstream is starting: items that it listed before (or that its predecessor
/// listed) may be called before it is connected.
pub(crate) async fn begin_use(shared: &Shared) -> Option<UsageGuard> {
    let usage = match shared.health.breaker_open_until() {
        None => shared.on_demand.begin(),
        Some(_) => shared.on_demand.begin_passive(),
    };
    // If the breaker opens only after this check, the later admission gives the reason.
    if shared.health.breaker_open_until().is_none() {
        // The upstream may just be stopping.
        let is_asleep = |status: &_| matches!(status, ConnectionStatus::Asleep);
        wait_while_status(shared, is_asleep, STOP_TIMEOUT).await;
    }
    let is_starting = |status: &_| matches!(status, ConnectionStatus::Starting);
    wait_while_status(shared, is_starting, shared.settings.timeouts.startup).await;
    usage
}

/// Waits until the status no longer matches, at most for `at_most`.
async fn wait_while_status(
    shared: &Shared,
    matches: fn(&ConnectionStatus) -> bool,
    at_most: Duration,
) {
    if matches(&shared.status.borrow()) {
        let mut status = shared.status.clone();
        let _ = timeout(at_most, status.wait_for(|status| !matches(status))).await;
    }
}

/// Acquires a concurrency permit, or waits for one if the queue is not full.
async fn acquire_permit(shared: &Shared) -> Result<OwnedSemaphorePermit, Error> {
    let UpstreamLimits { waiting, wait, .. } = shared.settings.limits;
    let busy = || Error::Busy { retry_after: wait };
    let permits = &shared.permits;
    if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
        return Ok(permit);
    }
    let waiting = Gauge::enter_below(&shared.waiting, waiting).ok_or_else(busy)?;
    let permit = timeout(wait, Arc::clone(permits).acquire_owned()).await;
    drop(waiting);
    permit.map_err(|_| busy())?.map_err(|_| busy())
}

/// Time that a caller waits for an upstream that is being stopped: a child process has 5 s until
/// SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
