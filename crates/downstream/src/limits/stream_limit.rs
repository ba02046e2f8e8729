//! Limiter for the open notification streams of each client.

use std::sync::Arc;

use weir_access::policy::Principal;
use weir_base::memory::quota::{PerPrincipal, QuotaPermit};
use weir_base::metrics::{Gauge, GaugeGuard};

/// Number of open streams per principal, with a limit.
pub(crate) struct StreamLimiter {
    open: PerPrincipal<Principal>,
    gauge: Arc<Gauge>,
}

/// Permit for one open stream. Released on drop.
pub(crate) struct StreamPermit {
    _quota: QuotaPermit<Principal>,
    _open: GaugeGuard,
}

impl StreamLimiter {
    /// Creates a limiter that counts the open streams in this gauge.
    pub(crate) fn new(gauge: &Arc<Gauge>) -> Self {
        Self { open: PerPrincipal::default(), gauge: Arc::clone(gauge) }
    }

    /// Takes a permit; `None` if the principal has reached the `limit` per client.
    pub(crate) fn acquire(&self, principal: &Principal, limit: usize) -> Option<StreamPermit> {
        let _quota = self.open.acquire(principal, principal.share(limit))?;
        Some(StreamPermit { _quota, _open: Gauge::enter(&self.gauge) })
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::stream_limit::*;
    use weir_access::policy::ANONYMOUS_CLIENTS;

    #[test]
    fn each_principal_has_slots_of_its_own_and_they_return() {
        let principal = |name: &str| Principal::new(name, "r");
        let streams = StreamLimiter::new(&Arc::default());
        let permit = streams.acquire(&principal("a"), 1);
        assert!(permit.is_some() && streams.acquire(&principal("a"), 1).is_none());
        assert!(streams.acquire(&principal("b"), 1).is_some());
        drop(permit);
        assert!(streams.acquire(&principal("a"), 1).is_some() && streams.open.is_empty());
        let anonymous: Vec<_> =
            (0..20).filter_map(|_| streams.acquire(&principal("anonymous"), 1)).collect();
        assert_eq!(anonymous.len(), ANONYMOUS_CLIENTS);
    }
}
