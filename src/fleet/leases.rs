//! Leases: the right to run an upstream that may run on one replica at a time.
//!
//! The store gives a lease to one holder for [`LEASE`], by its own clock. The holder renews it, and
//! uses it for [`USABLE`] after it sent the last successful request for it, by a clock that runs in
//! suspend: so it has stopped before the store gives the lease to another one. A store that was
//! restarted, or failed over, may have forgotten a lease that is still used. Therefore a new holder
//! waits for [`LEASE`] before it begins, unless the last one has released the lease: meanwhile the
//! other one learns at its next renewal that it has lost it.
//!
//! Invariant: two holders never use a lease at the same time, whatever the store forgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::store::{LeaseReply, LeaseRequest, StoreError};
use super::{Fleet, HEARTBEAT};
use crate::boot_clock;

/// Lease of an upstream, held by this replica or not.
pub(crate) struct Lease {
    fleet: Arc<Fleet>,
    upstream: String,
    /// Name in the store.
    bucket: String,
    /// Name of this holder: several of one process are different holders.
    holder: String,
}

/// A lease that this replica has got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldLease {
    /// Number of the lease; later ones have higher numbers.
    pub(crate) number: u64,
    /// Time until which it can be used, by the boot clock.
    pub(crate) until: Duration,
    /// Time to wait before it is used.
    pub(crate) wait: Duration,
}

impl Fleet {
    /// Returns the lease of an upstream, for a holder of its own.
    pub(crate) fn lease(self: &Arc<Self>, upstream: &str) -> Lease {
        static HOLDERS: AtomicU64 = AtomicU64::new(0);
        let number = HOLDERS.fetch_add(1, Ordering::Relaxed);
        Lease {
            fleet: Arc::clone(self),
            upstream: upstream.to_owned(),
            bucket: self.bucket(&[0; 32], upstream),
            holder: format!("{}.{number}", self.instance()),
        }
    }
}

impl Lease {
    /// Waits until the lease is free, and takes it.
    pub(crate) async fn acquire(&self) -> HeldLease {
        loop {
            if self.fleet.runner_of(&self.upstream).is_none()
                && let Ok(Some(held)) = self.request().await
            {
                return held;
            }
            self.fleet.next_heartbeat().await;
        }
    }

    /// Renews the lease until it is lost: another holder has it, or the store has not replied for
    /// too long. `renewed` is called with the time until which it can be used.
    pub(crate) async fn keep(&self, held: HeldLease, renewed: impl Fn(Duration)) {
        let (number, mut until) = (held.number, held.until);
        let mut pause = RENEWAL;
        while boot_clock::now() < until {
            sleep(pause.min(until.saturating_sub(boot_clock::now()))).await;
            match self.request().await {
                Ok(Some(again)) if again.number == number => {
                    (until, pause) = (again.until, RENEWAL);
                    renewed(until);
                }
                Ok(_) => return,
                Err(_) => pause = HEARTBEAT / 2,
            }
        }
    }

    /// Gives the lease back, after the last use.
    pub(crate) async fn release(&self) {
        // Without the store it expires by itself.
        let _ = self.fleet.store.lease(self.with_life(Duration::ZERO)).await;
    }

    /// Asks the store for the lease, or for more time; `None` if another holder has it.
    async fn request(&self) -> Result<Option<HeldLease>, StoreError> {
        let sent = boot_clock::now();
        let reply = self.fleet.store.lease(self.with_life(LEASE)).await;
        let reply = reply.inspect_err(|_| self.fleet.metrics.store_errors.increment())?;
        Ok(match reply {
            LeaseReply::Held { number, was_released } => {
                let wait = if was_released { Duration::ZERO } else { LEASE };
                Some(HeldLease { number, until: sent + USABLE, wait })
            }
            LeaseReply::Taken => None,
        })
    }

    fn with_life(&self, life: Duration) -> LeaseRequest {
        LeaseRequest { lease: self.bucket.clone(), holder: self.holder.clone(), life }
    }
}

/// Time after which the store gives a lease to another holder.
const LEASE: Duration = Duration::from_secs(6);
/// Time for which a lease is used after the request for it was sent.
const USABLE: Duration = Duration::from_secs(4);
/// Interval of the renewals.
const RENEWAL: Duration = Duration::from_secs(2);
