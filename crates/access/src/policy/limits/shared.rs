//! Limits that all replicas of a fleet count together.

use super::{Counted, Counting, LimitRequest, Limits, Permit, RateLimited};
use weir_fleet::{SharedAdmission, SharedLimit, SharedLimits};

impl Limits {
    /// Admits a request for all replicas together. Its buckets in this process are charged, too:
    /// what exceeds a limit here exceeds it everywhere. Those of addresses are not in the store,
    /// which a flood would fill.
    pub(super) async fn acquire_in_fleet(
        &self,
        fleet: &SharedLimits,
        charge: &LimitRequest<'_>,
    ) -> Result<Permit, RateLimited> {
        let applicable = self.applicable(charge, self.now());
        let share = fleet.share();
        let divide = |counted: &Counted<'_>| if counted.shared.is_some() { 1 } else { share };
        self.charge_all(charge, &applicable, divide)?;
        // From here on a dropped request returns its slots.
        let permit = self.permit(&applicable, true);
        let shared = || applicable.iter().filter(|counted| counted.shared.is_some());
        let limits: Vec<_> = shared().filter_map(Counted::shared_limit).collect();
        if limits.is_empty() {
            return Ok(permit);
        }
        match fleet.charge(limits).await {
            SharedAdmission::Admitted => Ok(permit),
            SharedAdmission::Refused(at, retry_after) => {
                Self::refund(&applicable, divide);
                self.count_refusal(charge.principal, charge.from, self.now());
                let limit = shared().nth(at).map_or(0, |counted| counted.number);
                Err(RateLimited { retry_after, limit })
            }
        }
    }

    /// Takes back what [`Limits::charge_all`] has charged to the rates.
    fn refund(applicable: &Counting<'_>, share: impl Fn(&Counted<'_>) -> u32) {
        for counted in applicable {
            if let Some(rate) = counted.limit.rate {
                counted.bucket.lock().gcra.refund(rate.share(share(counted)));
            }
        }
    }
}

impl Counted<'_> {
    /// Returns what is charged for all replicas.
    fn shared_limit(&self) -> Option<SharedLimit> {
        let (rate, most) = (self.limit.rate, self.limit.concurrency);
        Some(SharedLimit { bucket: self.shared.clone()?, rate, most })
    }
}
