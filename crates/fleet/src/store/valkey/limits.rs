//! Limits of all replicas in the store.
//!
//! A bucket has up to three keys: the time at which its rate is paid for, the requests in progress
//! of each replica, and for each replica the number of the change that led to this count.
//!
//! Versions of Weir without the third key charge and report the first two in the same way.

use std::sync::LazyLock;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::Script;

use super::{ValkeyStore, millis};
use crate::store::{
    BucketReport, Charge, ChargeReply, LimitStore, SETTLING, Settlement, SharedAdmission,
    StoreError,
};
use weir_base::time::rate_limit::RequestRate;

impl LimitStore for ValkeyStore {
    fn charge(&self, charge: Charge) -> BoxFuture<'static, Result<ChargeReply, StoreError>> {
        let mut call = CHARGE.prepare_invoke();
        for name in ["members-until", "steady", "keys"] {
            call.key(self.key(name));
        }
        call.arg(charge.replica).arg(millis(SLOTS_LIFE)).arg(charge.share.max(1));
        call.arg(millis(charge.age)).arg(i32::from(charge.restores)).arg(millis(SETTLING));
        for limit in &charge.buckets {
            call.key(&keys_of(self, &limit.bucket)[..]);
            let (interval, burst) = limit.rate.map_or((0, 0), RequestRate::to_micros);
            call.arg(interval).arg(burst).arg(limit.most.unwrap_or(0));
            call.arg(limit.slots.count).arg(limit.slots.order).arg(micros(limit.known));
        }
        let reply = self.unbounded::<(usize, u64, Vec<u64>)>(call);
        Box::pin(async move {
            let (index, wait, taken) = reply.await?;
            let admission = match index.checked_sub(1) {
                None => SharedAdmission::Admitted,
                Some(index) => SharedAdmission::Refused(index, Duration::from_micros(wait)),
            };
            let taken = taken.into_iter().map(Duration::from_micros).collect();
            Ok(ChargeReply { admission, taken })
        })
    }

    fn report(
        &self,
        replica: String,
        reports: Vec<BucketReport>,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            for some in reports.chunks(MAX_REPORTS_AT_ONCE) {
                let mut call = REPORT.prepare_invoke();
                call.arg(&replica).arg(millis(SLOTS_LIFE)).arg(millis(ENDED_LIFE));
                for report in some {
                    call.key(&keys_of(self, &report.bucket)[..]);
                    let (interval, _) = report.rate.map_or((0, 0), RequestRate::to_micros);
                    let interval = i64::try_from(interval).unwrap_or(i64::MAX);
                    let Settlement { order, count } = report.owed;
                    call.arg(report.slots.count).arg(report.slots.order);
                    call.arg(report.known.map_or(0, micros));
                    call.arg(interval.saturating_mul(count)).arg(order);
                }
                let connection = self.current.lock().clone().ok_or(StoreError::Away)?;
                let reply = self.run_on::<()>(&connection, call);
                self.in_time(self.beat_timeout(), reply).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

/// Returns the keys of a bucket.
fn keys_of(store: &ValkeyStore, bucket: &str) -> [String; 3] {
    ["rate", "slots", "order"].map(|kind| store.key(&format!("{kind}:{bucket}")))
}

/// Microseconds of a time in which numbers in Lua are exact.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(1 << 52)
}

static CHARGE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../charge.lua")));

static REPORT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../report.lua")));

/// Time after which the slots of a bucket are forgotten if no replica reports any.
const SLOTS_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// Life of the slots of a bucket without any: longer than a message to the store is under way.
const ENDED_LIFE: Duration = Duration::from_secs(60);
/// Most buckets that one call reports.
const MAX_REPORTS_AT_ONCE: usize = 1_000;
