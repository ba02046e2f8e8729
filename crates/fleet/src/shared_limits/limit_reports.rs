//! Buckets of limits, as this replica knows them: its requests in progress, what the store has said
//! last, and what has to be reported.
//!
//! Invariants: a count of requests in progress that was made later has a higher number (`order`),
//! and counts every request that the store has admitted for this replica and that has not ended.
//! A bucket that says nothing has no entry, so that there are no more entries than buckets in use.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{
    BucketCharge, BucketReport, ChargeReply, ReplicaSlots, Settlement, SharedAdmission, SharedLimit,
};
use weir_base::time::rate_limit::RequestRate;

/// Buckets that say something, by their names in the store.
#[derive(Debug, Default)]
pub(crate) struct LimitReports {
    buckets: HashMap<String, SharedBucket>,
    /// Buckets of which something has to be reported; true if also what is paid for.
    pending: HashMap<String, bool>,
    /// Number of the last change of a count.
    order: u64,
}

/// One bucket, as this replica knows it.
#[derive(Debug, Default)]
struct SharedBucket {
    slots: ReplicaSlots,
    /// Time of the last change of this count.
    changed_at: Option<Instant>,
    rate: Option<RequestRate>,
    /// Time at which all requests are paid for that the store has admitted, as it has said last.
    paid_at: Option<Instant>,
    /// Time at which all requests are paid for, for a replica without the store, which pays for
    /// each one with the share of all replicas. The next reply of the store replaces it.
    paid_alone_at: Option<Instant>,
    /// Requests that were admitted and not charged, beside those that are settled; if negative,
    /// charged and not admitted.
    owed: i64,
    /// Settlement that is reported at present. The store may have made it already.
    settled: Option<Settlement>,
}

impl LimitReports {
    /// Counts one request more in each of these buckets.
    pub(crate) fn take_slots(&mut self, names: &[String], is_reported: bool) {
        for name in names {
            self.order += 1;
            let bucket = self.buckets.entry(name.clone()).or_default();
            bucket.set_slots(ReplicaSlots { count: bucket.slots.count + 1, order: self.order });
            if is_reported {
                self.pending.entry(name.clone()).or_default();
            }
        }
    }

    /// Counts one request less in each of these buckets.
    pub(crate) fn return_slots(&mut self, names: &[String]) {
        for name in names {
            self.order += 1;
            let bucket = self.buckets.entry(name.clone()).or_default();
            let count = bucket.slots.count.saturating_sub(1);
            bucket.set_slots(ReplicaSlots { count, order: self.order });
            self.pending.entry(name.clone()).or_default();
        }
    }

    /// Returns what is charged for a request with these limits, whose slots were taken.
    pub(crate) fn charges(&self, limits: &[SharedLimit], now: Instant) -> Vec<BucketCharge> {
        let charge = |limit: &SharedLimit| {
            let SharedLimit { bucket, rate, most } = limit.clone();
            let known = self.buckets.get(&bucket);
            let paid_at = known.and_then(|known| known.paid_at);
            BucketCharge {
                rate,
                most,
                slots: known.map(|known| known.slots).unwrap_or_default(),
                known: paid_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)),
                bucket,
            }
        };
        limits.iter().map(charge).collect()
    }

    /// Takes over what the store has said about these limits.
    pub(crate) fn learn(&mut self, limits: &[SharedLimit], reply: &ChargeReply, now: Instant) {
        for (limit, taken) in limits.iter().zip(&reply.taken) {
            if limit.rate.is_none() || taken.is_zero() && !self.buckets.contains_key(&limit.bucket)
            {
                continue;
            }
            let bucket = self.buckets.entry(limit.bucket.clone()).or_default();
            bucket.rate = limit.rate;
            bucket.paid_at = Some(now + *taken);
            bucket.paid_alone_at = None;
        }
    }

    /// Decides without the store: of what is left of each limit, as far as it is known, this
    /// replica admits its share. Unless the store `is_away`, the other replicas go on with it: then
    /// only so much is admitted that they cannot have taken meanwhile.
    pub(crate) fn admit_share(
        &mut self,
        limits: &[SharedLimit],
        share: u32,
        now: Instant,
        is_away: bool,
    ) -> SharedAdmission {
        let waits = limits.iter().enumerate().map(|(at, limit)| {
            let known = self.buckets.get(&limit.bucket);
            let taken = known.map(|known| known.taken_alone(now)).unwrap_or_default();
            let rate =
                limit.rate.map_or(Duration::ZERO, |rate| rate.share(share).wait_after(taken));
            let count = known.map_or(0, |known| known.slots.count);
            let most = limit.most.map(|most| (most / share as usize).max(1));
            let is_full = match is_away {
                true => most.is_some_and(|most| count > most),
                false => most.is_some() || limit.rate.is_some_and(|it| !it.is_ample(share, taken)),
            };
            (at, if is_full { rate.max(FULL_RETRY) } else { rate })
        });
        let longest = waits.max_by_key(|(_, wait)| *wait).filter(|(_, wait)| !wait.is_zero());
        if let Some((at, wait)) = longest {
            return SharedAdmission::Refused(at, wait);
        }
        for limit in limits {
            let Some(rate) = limit.rate else { continue };
            let bucket = self.buckets.entry(limit.bucket.clone()).or_default();
            let taken = bucket.taken_alone(now) + rate.share(share).interval();
            bucket.paid_alone_at = Some(now + taken);
        }
        SharedAdmission::Admitted
    }

    /// Settles requests that were admitted and not charged, or, if negative, the other way round.
    pub(crate) fn owe(&mut self, limits: &[SharedLimit], count: i64) {
        for limit in limits {
            let bucket = self.buckets.entry(limit.bucket.clone()).or_default();
            if limit.rate.is_some() {
                bucket.rate = limit.rate;
                bucket.owed += count;
            }
            // The number of requests in progress may be missing in the store, too.
            self.pending.entry(limit.bucket.clone()).or_default();
        }
    }

    /// Has all requests in progress be reported, which the store or another replica may have
    /// forgotten; also what is paid for, if the store `may_have_lost` it.
    pub(crate) fn report_all(&mut self, may_have_lost: bool, now: Instant) {
        self.buckets.retain(|name, bucket| {
            let is_lost = may_have_lost && bucket.paid_at.is_some_and(|at| at > now);
            // A store with older contents also counts requests that have ended since.
            let may_count = may_have_lost && bucket.changed_at.is_some();
            if is_lost || may_count || bucket.slots.count > 0 {
                *self.pending.entry(name.clone()).or_default() |= is_lost;
            }
            bucket.says_something(now) || self.pending.contains_key(name)
        });
    }

    /// Takes what has to be reported.
    pub(crate) fn take_reports(&mut self, now: Instant) -> Vec<BucketReport> {
        let pending = std::mem::take(&mut self.pending).into_iter();
        let report = |(name, is_lost)| {
            let bucket = self.buckets.get_mut(&name)?;
            let known = bucket.paid_at.filter(|_| is_lost);
            Some(BucketReport {
                bucket: name,
                slots: bucket.slots,
                known: known.map(|at| at.saturating_duration_since(now)),
                owed: bucket.settlement(&mut self.order),
                rate: bucket.rate,
            })
        };
        pending.filter_map(report).collect()
    }

    /// Takes note that these reports were delivered, or may not have been: then they come again.
    pub(crate) fn reported(&mut self, reports: Vec<BucketReport>, is_delivered: bool) {
        for report in reports {
            if !is_delivered {
                *self.pending.entry(report.bucket.clone()).or_default() |= report.known.is_some();
            }
            let bucket = self.buckets.entry(report.bucket.clone()).or_default();
            if bucket.slots.order < report.slots.order {
                bucket.set_slots(report.slots);
            }
            if is_delivered {
                bucket.settled = None;
                if bucket.owed != 0 {
                    self.pending.entry(report.bucket).or_default();
                }
            }
        }
    }

    /// Returns whether something has to be reported.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

impl SharedBucket {
    /// Returns the time until everything is paid for that counts without the store.
    fn taken_alone(&self, now: Instant) -> Duration {
        let paid_at = self.paid_at.max(self.paid_alone_at);
        paid_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Returns what is settled now: one settlement after the other.
    fn settlement(&mut self, order: &mut u64) -> Settlement {
        if self.settled.is_none() && self.owed != 0 {
            *order += 1;
            let count = std::mem::take(&mut self.owed);
            self.settled = Some(Settlement { order: *order, count });
        }
        self.settled.unwrap_or_default()
    }

    fn set_slots(&mut self, slots: ReplicaSlots) {
        self.slots = slots;
        self.changed_at = Some(Instant::now());
    }

    fn says_something(&self, now: Instant) -> bool {
        self.slots.count > 0
            || self.changed_at.is_some_and(|at| now - at < REMEMBERED)
            || self.owed != 0
            || self.settled.is_some()
            || self.paid_at.max(self.paid_alone_at).is_some_and(|at| at > now)
    }
}

/// Time for which it is remembered that the requests of a bucket have ended: longer than the
/// contents are old of a store that has failed over.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(60);
/// Retry time at a concurrency limit: the end of the running requests is unknown.
const FULL_RETRY: Duration = Duration::from_secs(1);
