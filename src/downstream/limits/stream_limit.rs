//! Limiter for the open notification streams of each client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::metrics::{Gauge, GaugeGuard};
use crate::policy::Principal;
use crate::quota::{PerPrincipal, QuotaPermit};

/// Number of open streams per principal, with a limit.
pub(crate) struct StreamLimiter {
    open: PerPrincipal<Principal>,
    limit: AtomicUsize,
    gauge: Arc<Gauge>,
}

/// Permit for one open stream. Released on drop.
pub(crate) struct StreamPermit {
    _quota: QuotaPermit<Principal>,
    _open: GaugeGuard,
}

impl StreamLimiter {
    pub(crate) fn new(limit: usize) -> Self {
        Self { open: PerPrincipal::default(), limit: limit.into(), gauge: Arc::default() }
    }

    /// Counts the open streams in this gauge.
    pub(crate) fn with_gauge(self, gauge: &Arc<Gauge>) -> Self {
        Self { gauge: Arc::clone(gauge), ..self }
    }

    /// Sets the limit. A client that exceeds it already keeps its streams.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Takes a permit; `None` if the principal has reached its limit.
    pub(crate) fn acquire(&self, principal: &Principal) -> Option<StreamPermit> {
        let limit = principal.share(self.limit.load(Ordering::Relaxed));
        let _quota = self.open.acquire(principal, limit)?;
        Some(StreamPermit { _quota, _open: Gauge::enter(&self.gauge) })
    }
}

#[cfg(test)]
mod tests {
    use crate::downstream::limits::stream_limit::*;
    use crate::policy::ANONYMOUS_CLIENTS;

    #[test]
    fn each_principal_has_slots_of_its_own_and_they_return() {
        let principal = |name: &str| Principal::new(name, "r");
        let streams = StreamLimiter::new(1);
        let permit = streams.acquire(&principal("a"));
        assert!(permit.is_some() && streams.acquire(&principal("a")).is_none());
        assert!(streams.acquire(&principal("b")).is_some());
        drop(permit);
        assert!(streams.acquire(&principal("a")).is_some() && streams.open.is_empty());
        let anonymous: Vec<_> =
            (0..20).filter_map(|_| streams.acquire(&principal("anonymous"))).collect();
        assert_eq!(anonymous.len(), ANONYMOUS_CLIENTS);
    }
}
