//! Buckets of limits in a simulated store, which decides as the scripts of the real one do.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{BucketReport, Charge, ChargeReply, ReplicaSlots, SharedAdmission};
use weir_base::secrets::sealing::InstanceId;

/// Buckets by their names.
#[derive(Clone, Default)]
pub(crate) struct BucketModel {
    /// Times at which the rates are paid for.
    rates: BTreeMap<String, Instant>,
    /// Requests in progress by bucket and replica.
    slots: BTreeMap<(String, String), ReplicaSlots>,
    /// Orders of the last settlements by bucket and replica.
    settled: BTreeMap<(String, String), u64>,
}

impl BucketModel {
    pub(crate) fn charge(
        &mut self,
        charge: &Charge,
        is_lost: bool,
        lives: impl Fn(&str) -> bool,
    ) -> ChargeReply {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let (mut paid, mut longest) = (Vec::new(), (0, Duration::ZERO));
        for (at, limit) in charge.buckets.iter().enumerate() {
            let mut wait = Duration::ZERO;
            let stored = self.rates.get(&limit.bucket).copied().unwrap_or(now).max(now);
            let known = if is_lost || charge.restores { limit.known } else { Duration::ZERO };
            let before = stored.max(now + known);
            paid.push(before);
            if let Some(rate) = limit.rate {
                let (interval, burst) = rate.to_micros();
                let needed =
                    if is_lost { burst.min(interval * u64::from(charge.share)) } else { interval };
                let until = before + Duration::from_micros(needed);
                wait = until.saturating_duration_since(now + Duration::from_micros(burst));
            }
            if let Some(most) = limit.most {
                self.slots.retain(|(bucket, replica), _| {
                    *bucket != limit.bucket || *replica == charge.replica || lives(replica)
                });
                let others = self.slots.iter().filter(|((bucket, replica), _)| {
                    *bucket == limit.bucket && *replica != charge.replica
                });
                let others: usize = others.map(|(_, slots)| slots.count).sum();
                let here = self.newest(&limit.bucket, &charge.replica, limit.slots).count;
                let share = (most / charge.share as usize).max(1);
                if others + here > most || is_lost && here > share {
                    wait = wait.max(second);
                }
            }
            if wait > longest.1 {
                longest = (at + 1, wait);
            }
        }
        let is_admitted = longest.0 == 0;
        let mut taken = Vec::new();
        for (limit, before) in charge.buckets.iter().zip(paid) {
            let interval = limit.rate.map(|rate| Duration::from_micros(rate.to_micros().0));
            let at = before + interval.filter(|_| is_admitted).unwrap_or_default();
            taken.push(at - now);
            if limit.rate.is_some() {
                self.rates.insert(limit.bucket.clone(), at);
            }
            if is_admitted && limit.most.is_some() {
                let newest = self.newest(&limit.bucket, &charge.replica, limit.slots);
                self.slots.insert((limit.bucket.clone(), charge.replica.clone()), newest);
            }
        }
        let admission = match longest {
            (0, _) => SharedAdmission::Admitted,
            (at, wait) => SharedAdmission::Refused(at - 1, wait),
        };
        ChargeReply { admission, taken }
    }

    pub(crate) fn report(&mut self, replica: &str, reports: &[BucketReport]) {
        let now = Instant::now();
        for report in reports {
            if report.slots.order > 0 {
                let newest = self.newest(&report.bucket, replica, report.slots);
                self.slots.insert((report.bucket.clone(), replica.to_owned()), newest);
            }
            let key = (report.bucket.clone(), replica.to_owned());
            let settled = self.settled.entry(key).or_default();
            let owed = if report.owed.order > *settled { report.owed.count } else { 0 };
            *settled = report.owed.order.max(*settled);
            if report.known.is_none() && owed == 0 {
                continue;
            }
            let Some(rate) = report.rate else { continue };
            let mut at = self.rates.get(&report.bucket).copied().unwrap_or(now);
            at = at.max(now + report.known.unwrap_or_default());
            let time = Duration::from_micros(rate.to_micros().0 * owed.unsigned_abs());
            at = if owed > 0 { at.max(now) + time } else { at.checked_sub(time).unwrap_or(now) };
            self.rates.insert(report.bucket.clone(), at);
        }
    }

    /// Returns the later one of the known count and this one.
    fn newest(&self, bucket: &str, replica: &str, slots: ReplicaSlots) -> ReplicaSlots {
        let known = self.slots.get(&(bucket.to_owned(), replica.to_owned()));
        known.copied().filter(|known| known.order > slots.order).unwrap_or(slots)
    }

    /// Number of requests in progress on a replica.
    pub(crate) fn slots(&self, bucket: &str, replica: InstanceId) -> usize {
        let key = (bucket.to_owned(), replica.to_string());
        self.slots.get(&key).map_or(0, |slots| slots.count)
    }

    /// Number of requests in progress on all replicas.
    pub(crate) fn count(&self, bucket: &str) -> usize {
        let slots = self.slots.iter().filter(|((name, _), _)| name == bucket);
        slots.map(|(_, slots)| slots.count).sum()
    }

    /// Forgets the requests in progress on a replica, as if it had ended.
    pub(crate) fn forget(&mut self, bucket: &str, replica: InstanceId) {
        self.slots.remove(&(bucket.to_owned(), replica.to_string()));
    }

    /// Time until a rate is paid for.
    pub(crate) fn taken(&self, bucket: &str) -> Duration {
        let at = self.rates.get(bucket);
        at.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }
}
