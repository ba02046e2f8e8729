//! Limits that all replicas of a fleet count together.

use std::sync::Arc;

use super::{Counted, Counting, LimitRequest, Limits, Permit, RateLimited};
use weir_fleet::{SharedAdmission, SharedLimit, SharedLimits};

/// Admits a request for all replicas together. Its buckets in this process are charged, too: what
/// exceeds a limit here exceeds it everywhere. Those of addresses are not in the store, which a
/// flood would fill.
pub(super) async fn acquire(
    limits: &Limits,
    fleet: &Arc<SharedLimits>,
    charge: &LimitRequest<'_>,
) -> Result<Permit, RateLimited> {
    let applicable = limits.applicable(charge, limits.now());
    let share = fleet.share();
    let divide = |counted: &Counted<'_>| if counted.shared.is_some() { 1 } else { share };
    limits.charge_all(charge, &applicable, divide)?;
    // From here on a dropped request returns its slots.
    let permit = Permit::new(Some(fleet), &applicable, true);
    let shared = || applicable.iter().filter(|counted| counted.shared.is_some());
    let charges: Vec<_> = shared().filter_map(shared_limit).collect();
    if charges.is_empty() {
        return Ok(permit);
    }
    match fleet.charge(charges).await {
        SharedAdmission::Admitted => Ok(permit),
        SharedAdmission::Refused(at, retry_after) => {
            refund(&applicable, divide);
            limits.count_refusal(charge.principal, charge.from, limits.now());
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

/// Returns what is charged for all replicas.
fn shared_limit(counted: &Counted<'_>) -> Option<SharedLimit> {
    let (rate, most) = (counted.limit.rate, counted.limit.concurrency);
    Some(SharedLimit { bucket: counted.shared.clone()?, rate, most })
}
