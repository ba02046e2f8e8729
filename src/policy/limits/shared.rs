//! Limits that all replicas of a fleet count together.

use smallvec::SmallVec;

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
        let in_flight = |counted: &Counted<'_>| {
            counted.limit.concurrency.map(|max| (max, counted.bucket.lock().in_flight))
        };
        let charges: Vec<_> = applicable
            .iter()
            .filter_map(|counted| {
                let (bucket, slots) = (counted.shared.clone()?, in_flight(counted));
                Some((counted.number, SharedCharge { bucket, rate: counted.limit.rate, slots }))
            })
            .collect();
        if charges.is_empty() {
            return Ok(self.permit(applicable));
        }
        let numbers: SmallVec<[usize; 4]> = charges.iter().map(|(number, _)| *number).collect();
        let again = applicable.clone();
        // From here on a dropped request returns its slots.
        let permit = self.permit(applicable);
        let charged = fleet.charge(charges.into_iter().map(|(_, charge)| charge).collect()).await;
        match charged {
            Ok(SharedAdmission::Admitted) => Ok(permit),
            Ok(SharedAdmission::Refused(at, retry_after)) => {
                self.refund(&again);
                self.count_refusal(charge.principal, charge.from, self.now());
                Err(RateLimited { retry_after, limit: numbers[at] })
            }
            Err(_) => {
                self.refund(&again);
                drop(permit);
                let handling = fleet.on_store_down();
                self.acquire_without_store(charge, again, (handling, share))
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
                Ok(self.permit(applicable))
            }
        }
    }

    /// Takes the charges of the rates back.
    fn refund(&self, applicable: &Counting<'_>) {
        for counted in applicable {
            if let Some(rate) = counted.limit.rate {
                counted.bucket.lock().gcra.refund(rate);
            }
        }
    }
}
