//! How many requests of each client are worked on at a time.
//!
//! Promises: who has as many under way as it may waits for a bounded time, with a bounded number of others, and is then
//! refused; what one client has under way takes no turn of another's.
//!
//! Knows nothing of: what is asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::downstream::limits::client_limits::PerClient;
use crate::policy::Principal;

/// The turns of all clients.
pub(crate) struct Turns {
    clients: DashMap<Principal, Arc<Own>>,
    bounds: RwLock<PerClient>,
}

/// What one client has.
struct Own {
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// The right to have one request worked on, or a place among those who wait for it. It returns when dropped.
pub(crate) struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    place: Option<Place>,
    wait: Duration,
    /// Keeps the client from being forgotten.
    own: Arc<Own>,
}

/// Not now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Busy {
    /// When to try again.
    pub(crate) retry_after: Duration,
}

impl Turns {
    pub(crate) fn new(bounds: PerClient) -> Self {
        Self { clients: DashMap::new(), bounds: RwLock::new(bounds) }
    }

    /// What a client may have from now on. Where that is another number than before, what it has under way is not
    /// counted any more.
    pub(crate) fn limit(&self, bounds: PerClient) {
        let mut former = self.bounds.write().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *former, bounds).calls != bounds.calls {
            self.clients.clear();
        }
    }

    /// Waits for a turn, if not too many others do already.
    pub(crate) async fn take(&self, principal: &Principal) -> Result<Turn, Busy> {
        let mut turn = self.begin(principal)?;
        turn.come().await?;
        Ok(turn)
    }

    /// Takes a turn, or a place among those who wait for one.
    pub(crate) fn begin(&self, principal: &Principal) -> Result<Turn, Busy> {
        let own = self.own(principal);
        if let Ok(permit) = Arc::clone(&own.turns).try_acquire_owned() {
            return Ok(Turn { permit: Some(permit), place: None, wait: Duration::ZERO, own });
        }
        let PerClient { waiting, wait, .. } = *self.bounds();
        let place = Place::take(&own, principal.share(waiting));
        let place = Some(place.ok_or(Busy { retry_after: wait })?);
        Ok(Turn { permit: None, place, wait, own })
    }

    fn own(&self, principal: &Principal) -> Arc<Own> {
        if let Some(own) = self.clients.get(principal) {
            return Arc::clone(&own);
        }
        if self.clients.len() >= MAX_IDLE {
            self.clients.retain(|_, own| Arc::strong_count(own) > 1);
        }
        // Held until it is in: who comes under other bounds must not find it.
        let bounds = self.bounds();
        let turns = Arc::new(Semaphore::new(principal.share(bounds.calls)));
        let new = || Arc::new(Own { turns, waiting: AtomicUsize::new(0) });
        Arc::clone(&self.clients.entry(principal.clone()).or_insert_with(new))
    }

    fn bounds(&self) -> RwLockReadGuard<'_, PerClient> {
        self.bounds.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Waits until it has come. For whom it does not come in time, the place is kept until this is dropped: who has to
    /// be told so is waited for, too.
    pub(crate) async fn come(&mut self) -> Result<(), Busy> {
        if self.permit.is_some() {
            return Ok(());
        }
        let busy = Busy { retry_after: self.wait };
        let permit = timeout(self.wait, Arc::clone(&self.own.turns).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return Err(busy) };
        (self.permit, self.place) = (Some(permit), None);
        Ok(())
    }
}

/// A place among those who wait.
struct Place(Arc<Own>);

impl Place {
    fn take(own: &Arc<Own>, most: usize) -> Option<Self> {
        let before = own.waiting.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(own));
        (before < most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many clients are remembered that have nothing under way: an identity provider may have any number.
const MAX_IDLE: usize = 10_000;

#[cfg(test)]
mod tests {
    use crate::downstream::limits::concurrency::*;
    use futures::FutureExt;
    use tokio::time::Instant;

    const FEW: PerClient =
        PerClient { calls: 2, waiting: 1, wait: Duration::from_secs(1), streams: 1, sessions: 1 };

    #[tokio::test(start_paused = true)]
    async fn who_has_too_many_under_way_waits_a_moment_and_nobody_else_does() {
        let turns = Turns::new(FEW);
        let (a, b) = (Principal::new("a", "r"), Principal::new("b", "r"));
        let one = turns.take(&a).await;
        let _two = turns.take(&a).await;
        assert!(turns.take(&b).now_or_never().is_some_and(|turn| turn.is_ok()));

        let begin = Instant::now();
        let mut waiting = Box::pin(turns.take(&a));
        assert!((&mut waiting).now_or_never().is_none());
        let busy = Busy { retry_after: FEW.wait };
        assert_eq!(turns.take(&a).now_or_never().expect("at once").err().as_ref(), Some(&busy));
        assert_eq!(waiting.await.err(), Some(busy));
        assert_eq!(begin.elapsed(), FEW.wait);

        let mut waiting = Box::pin(turns.take(&a));
        assert!((&mut waiting).now_or_never().is_none());
        drop(one);
        assert!(waiting.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_in_vain_keeps_the_place_until_that_has_been_told() {
        let turns = Turns::new(FEW);
        let a = Principal::new("a", "r");
        let (one, _two) = (turns.take(&a).await, turns.take(&a).await);
        let mut third = turns.begin(&a).expect("a place");
        assert!(third.come().await.is_err());
        assert!(turns.begin(&a).is_err(), "one place there is");
        drop(third);
        let mut fourth = turns.begin(&a).expect("a place");
        drop(one);
        assert_eq!(fourth.come().await, Ok(()));
        assert!(turns.begin(&a).is_ok(), "who has a turn does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn other_bounds_hold_for_whoever_comes_behind_them() {
        let turns = Turns::new(FEW);
        let a = Principal::new("a", "r");
        let (_one, _two) = (turns.take(&a).await, turns.take(&a).await);
        turns.limit(PerClient { waiting: 0, ..FEW });
        assert!(turns.take(&a).now_or_never().expect("at once").is_err());
        turns.limit(PerClient { calls: 1, waiting: 0, ..FEW });
        let three = turns.take(&a).await;
        assert!(three.is_ok() && turns.take(&a).await.is_err());
        drop(three);
        assert!(turns.take(&a).await.is_ok());
    }
}
