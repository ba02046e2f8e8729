//! Concurrency limiter per client, with a bounded wait queue.
//!
//! Invariants: a client that has reached its limit waits for a bounded time, in a queue of bounded
//! length, and is refused then; requests of one client take no permit of another.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::limits::client_limits::ClientQuota;
use weir_access::policy::Principal;
use weir_base::metrics::{Gauge, GaugeGuard};
use weir_base::tasks::sync::RwLock;

/// Limiter for the concurrent requests of all clients.
pub(crate) struct ConcurrencyLimiter {
    clients: DashMap<Principal, Arc<ClientSlots>>,
    quota: RwLock<ClientQuota>,
}

/// Permits and wait queue of one client.
struct ClientSlots {
    running: Arc<Semaphore>,
    waiting: Arc<Gauge>,
}

/// Permit for one request in progress, or a slot in the wait queue for one. Released on drop.
pub(crate) struct ConcurrencyPermit {
    permit: Option<OwnedSemaphorePermit>,
    wait_slot: Option<GaugeGuard>,
    wait: Duration,
    /// Keeps the client's entry from being removed.
    slots: Arc<ClientSlots>,
}

/// Concurrency limit and wait queue of the client are full.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overloaded {
    /// Delay after which the client may retry.
    pub(crate) retry_after: Duration,
}

impl ConcurrencyLimiter {
    pub(crate) fn new(quota: ClientQuota) -> Self {
        Self { clients: DashMap::new(), quota: RwLock::new(quota) }
    }

    /// Sets the quota. If the number of concurrent requests changes, the requests in progress are
    /// not counted any more.
    pub(crate) fn set_quota(&self, quota: ClientQuota) {
        let mut former = self.quota.write();
        if std::mem::replace(&mut *former, quota).calls != quota.calls {
            self.clients.clear();
        }
    }

    /// Waits for a permit, if the wait queue has a free slot.
    pub(crate) async fn acquire(
        &self,
        principal: &Principal,
    ) -> Result<ConcurrencyPermit, Overloaded> {
        let mut permit = self.enqueue(principal)?;
        permit.acquire().await?;
        Ok(permit)
    }

    /// Takes a permit, or a slot in the wait queue.
    pub(crate) fn enqueue(&self, principal: &Principal) -> Result<ConcurrencyPermit, Overloaded> {
        let slots = self.slots(principal);
        if let Ok(permit) = Arc::clone(&slots.running).try_acquire_owned() {
            return Ok(ConcurrencyPermit {
                permit: Some(permit),
                wait_slot: None,
                wait: Duration::ZERO,
                slots,
            });
        }
        let ClientQuota { waiting, wait, .. } = *self.quota.read();
        let wait_slot = Gauge::enter_below(&slots.waiting, principal.share(waiting));
        let wait_slot = Some(wait_slot.ok_or(Overloaded { retry_after: wait })?);
        Ok(ConcurrencyPermit { permit: None, wait_slot, wait, slots })
    }

    fn slots(&self, principal: &Principal) -> Arc<ClientSlots> {
        if let Some(slots) = self.clients.get(principal) {
            return Arc::clone(&slots);
        }
        if self.clients.len() >= MAX_IDLE {
            self.clients.retain(|_, slots| Arc::strong_count(slots) > 1);
        }
        // The quota stays locked until the entry is inserted: `set_quota` must not clear the table
        // in between.
        let quota = self.quota.read();
        let running = Arc::new(Semaphore::new(principal.share(quota.calls)));
        let new = || Arc::new(ClientSlots { running, waiting: Arc::default() });
        Arc::clone(&self.clients.entry(principal.clone()).or_insert_with(new))
    }
}

impl ConcurrencyPermit {
    /// Waits for the permit. After a timeout the wait slot is occupied until `self` is dropped:
    /// sending the refusal can wait for the client, too.
    pub(crate) async fn acquire(&mut self) -> Result<(), Overloaded> {
        if self.permit.is_some() {
            return Ok(());
        }
        let busy = Overloaded { retry_after: self.wait };
        let permit = timeout(self.wait, Arc::clone(&self.slots.running).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return Err(busy) };
        (self.permit, self.wait_slot) = (Some(permit), None);
        Ok(())
    }
}

/// Largest number of entries of clients without requests: an identity provider may issue any number
/// of principals.
const MAX_IDLE: usize = 10_000;

#[cfg(test)]
mod tests {
    use crate::limits::concurrency::*;
    use futures::FutureExt;
    use tokio::time::Instant;

    const FEW: ClientQuota =
        ClientQuota { calls: 2, waiting: 1, wait: Duration::from_secs(1), streams: 1, sessions: 1 };

    #[tokio::test(start_paused = true)]
    async fn who_has_too_many_under_way_waits_a_moment_and_nobody_else_does() {
        let limiter = ConcurrencyLimiter::new(FEW);
        let (a, b) = (Principal::new("a", "r"), Principal::new("b", "r"));
        let one = limiter.acquire(&a).await;
        let _two = limiter.acquire(&a).await;
        assert!(limiter.acquire(&b).now_or_never().is_some_and(|permit| permit.is_ok()));

        let begin = Instant::now();
        let mut waiting = Box::pin(limiter.acquire(&a));
        assert!((&mut waiting).now_or_never().is_none());
        let busy = Overloaded { retry_after: FEW.wait };
        assert_eq!(
            limiter.acquire(&a).now_or_never().expect("at once").err().as_ref(),
            Some(&busy)
        );
        assert_eq!(waiting.await.err(), Some(busy));
        assert_eq!(begin.elapsed(), FEW.wait);

        let mut waiting = Box::pin(limiter.acquire(&a));
        assert!((&mut waiting).now_or_never().is_none());
        drop(one);
        assert!(waiting.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_in_vain_keeps_the_place_until_that_has_been_told() {
        let limiter = ConcurrencyLimiter::new(FEW);
        let a = Principal::new("a", "r");
        let (one, _two) = (limiter.acquire(&a).await, limiter.acquire(&a).await);
        let mut third = limiter.enqueue(&a).expect("a place");
        assert!(third.acquire().await.is_err());
        assert!(limiter.enqueue(&a).is_err(), "one place there is");
        drop(third);
        let mut fourth = limiter.enqueue(&a).expect("a place");
        drop(one);
        assert_eq!(fourth.acquire().await, Ok(()));
        assert!(limiter.enqueue(&a).is_ok(), "a running request occupies no wait slot");
    }

    #[tokio::test(start_paused = true)]
    async fn other_bounds_hold_for_whoever_comes_behind_them() {
        let limiter = ConcurrencyLimiter::new(FEW);
        let a = Principal::new("a", "r");
        let (_one, _two) = (limiter.acquire(&a).await, limiter.acquire(&a).await);
        limiter.set_quota(ClientQuota { waiting: 0, ..FEW });
        assert!(limiter.acquire(&a).now_or_never().expect("at once").is_err());
        limiter.set_quota(ClientQuota { calls: 1, waiting: 0, ..FEW });
        let three = limiter.acquire(&a).await;
        assert!(three.is_ok() && limiter.acquire(&a).await.is_err());
        drop(three);
        assert!(limiter.acquire(&a).await.is_ok());
    }
}
