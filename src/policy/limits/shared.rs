//! Limits that all replicas of a fleet count together.

use super::{Counted, Counting, FULL_RETRY, LimitRequest, Limits, Permit, RateLimited};
use crate::fleet::{Fleet, OnStoreDown, SharedAdmission, SharedCharge};

impl Limits {
    /// Admits a request for all replicas together. Its buckets in this process are charged, too:
    /// what exceeds a limit here exceeds it everywhere. Those of addresses are not in the store,
    /// which a flood would fill.
    pub(super) async fn acquire_in_fleet(
        &self,
        fleet: &Fleet,
        charge: &LimitRequest<'_>,
    ) -> Result<Permit, RateLimited> {
        let applicable = self.applicable(charge, self.now());
        let share = fleet.share();
        if let Some(handling) = fleet.limits_without_store() {
            return self.acquire_without_store(charge, applicable, (handling, share));
        }
        let divide = |counted: &Counted<'_>| if counted.shared.is_some() { 1 } else { share };
        self.charge_all(charge, &applicable, divide)?;
        // From here on a dropped request returns its slots.
        let permit = self.permit(&applicable);
        let shared = || applicable.iter().filter(|counted| counted.shared.is_some());
        let charges: Vec<_> = shared().filter_map(Counted::shared_charge).collect();
        if charges.is_empty() {
            return Ok(permit);
        }
        match fleet.charge(charges).await {
            Ok(SharedAdmission::Admitted) => Ok(permit),
            Ok(SharedAdmission::Refused(at, retry_after)) => {
                Self::refund(&applicable, divide);
                self.count_refusal(charge.principal, charge.from, self.now());
                let limit = shared().nth(at).map_or(0, |counted| counted.number);
                Err(RateLimited { retry_after, limit })
            }
            Err(_) => {
                Self::refund(&applicable, divide);
                drop(permit);
                self.acquire_without_store(charge, applicable, (fleet.on_store_down(), share))
            }
        }
    }

    /// Admits a request while the store of the fleet is away.
    fn acquire_without_store(
        &self,
        charge: &LimitRequest<'_>,
        applicable: Counting<'_>,
        (handling, share): (OnStoreDown, u32),
    ) -> Result<Permit, RateLimited> {
        match (handling, applicable.first()) {
            (OnStoreDown::Refuse, Some(first)) => {
                Err(RateLimited { retry_after: FULL_RETRY, limit: first.number })
            }
            _ => {
                self.charge_all(charge, &applicable, |_| share)?;
                Ok(self.permit(&applicable))
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
    /// Returns what is charged in the store, with this request among those in progress.
    fn shared_charge(&self) -> Option<SharedCharge> {
        let in_flight = || self.bucket.lock().in_flight;
        let slots = self.limit.concurrency.map(|max| (max, in_flight()));
        Some(SharedCharge { bucket: self.shared.clone()?, rate: self.limit.rate, slots })
    }
}
