//! Leases: the right to run an upstream that may run on one replica at a time.
//!
//! The store gives a lease to one holder for [`LEASE`], by its own clock. The holder renews it, and
//! uses it for [`USABLE`] after it sent the last successful request for it, by a clock that runs in
//! suspend: so it has stopped before the store gives the lease to another one. A store that was
//! restarted, or failed over, may have forgotten a lease that is still used. Therefore a new holder
//! waits for [`LEASE`] before it begins, unless the last one has given the lease back to the same
//! process of the store: meanwhile the other one learns at its next renewal that it has lost it.
//!
//! Invariant: two holders never use a lease at the same time, whatever the store forgets.

pub(crate) mod lease_clock;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::own_record::OwnRecord;
use crate::shared::Shared;
use crate::store::{HEARTBEAT, LeaseReply, LeaseRequest, LeaseStore, StoreError};

/// Lease of an upstream, for this replica.
pub struct UpstreamLease {
    shared: Arc<Shared>,
    store: Arc<dyn LeaseStore>,
    own: Arc<OwnRecord>,
    upstream: String,
    /// Name in the store.
    name: String,
}

/// A lease that this replica has got.
#[derive(Debug, Clone)]
pub struct HeldLease {
    /// Name of the holder, a new one each time: who has lost a lease is not its holder any more,
    /// even if the store says so.
    holder: String,
    /// Number of the lease; later ones have higher numbers.
    pub number: u64,
    /// Time until which it can be used, by the boot clock.
    pub until: Duration,
    /// Time to wait before it is used.
    pub wait: Duration,
}

impl UpstreamLease {
    /// Creates the lease of an upstream, which has this name in the store.
    pub(crate) fn new(
        shared: Arc<Shared>,
        store: Arc<dyn LeaseStore>,
        own: Arc<OwnRecord>,
        upstream: &str,
        name: String,
    ) -> Self {
        Self { shared, store, own, upstream: upstream.to_owned(), name }
    }

    /// Waits until the lease is free, and takes it.
    pub async fn acquire(&self) -> HeldLease {
        loop {
            let runner = self.shared.state().membership.runner_of(&self.upstream);
            if runner.is_none()
                && let Ok(Some(held)) = self.request(&self.new_holder()).await
            {
                return held;
            }
            self.shared.beats.next().await;
        }
    }

    /// Renews the lease until it is lost: another holder has it, or the store has not replied for
    /// too long. `renewed` is called with the time until which it can be used.
    pub async fn keep(&self, held: &HeldLease, renewed: impl Fn(Duration)) {
        let (number, mut until) = (held.number, held.until);
        let mut pause = RENEWAL;
        while lease_clock::now() < until {
            sleep(pause.min(until.saturating_sub(lease_clock::now()))).await;
            // A store that may reply late holds up nothing beyond the end.
            let left = until.saturating_sub(lease_clock::now());
            match timeout(left, self.request(&held.holder)).await {
                Ok(Ok(Some(again))) if again.number == number => {
                    (until, pause) = (again.until, RENEWAL);
                    renewed(until);
                }
                Ok(Ok(_)) => return,
                Ok(Err(_)) | Err(_) => pause = HEARTBEAT / 2,
            }
        }
    }

    /// Gives the lease back, after the last use. Only for a holder that was allowed to use it to
    /// the end: one that still waited, or has lost the lease, does not know whether another one
    /// uses it.
    pub async fn release(&self, held: &HeldLease) {
        // Without the store it expires by itself.
        let _ = self.store.lease(self.with_life(&held.holder, Duration::ZERO)).await;
    }

    /// Tells the other replicas that this one runs the upstream under the lease of this number, or
    /// that it runs it no more.
    pub fn set_running(&self, number: Option<u64>) {
        self.own.set_running(&self.upstream, number);
        self.shared.beats.request();
    }

    /// Waits until another replica is there that can run the upstream.
    pub async fn wait_for_others(&self) {
        while !self.shared.has_others() {
            self.shared.beats.next().await;
        }
    }

    /// Asks the store for the lease, or for more time; `None` if another holder has it.
    async fn request(&self, holder: &str) -> Result<Option<HeldLease>, StoreError> {
        let sent = lease_clock::now();
        let reply = self.store.lease(self.with_life(holder, LEASE)).await;
        Ok(match self.shared.count_failure(reply)? {
            LeaseReply::Held { number, was_released } => {
                let wait = if was_released { Duration::ZERO } else { LEASE };
                Some(HeldLease { holder: holder.to_owned(), number, until: sent + USABLE, wait })
            }
            LeaseReply::Taken => None,
        })
    }

    fn with_life(&self, holder: &str, life: Duration) -> LeaseRequest {
        LeaseRequest { lease: self.name.clone(), holder: holder.to_owned(), life }
    }

    fn new_holder(&self) -> String {
        static HOLDERS: AtomicU64 = AtomicU64::new(0);
        format!("{}.{}", self.shared.instance(), HOLDERS.fetch_add(1, Ordering::Relaxed))
    }
}

/// Time after which the store gives a lease to another holder.
const LEASE: Duration = Duration::from_secs(6);
/// Time for which a lease is used after the request for it was sent.
const USABLE: Duration = Duration::from_secs(4);
/// Interval of the renewals.
const RENEWAL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use futures::FutureExt;
    use futures::future::{BoxFuture, join_all};
    use tokio::time::Instant;

    use super::*;
    use crate::FleetSettings;
    use crate::known_count::KnownCount;
    use crate::testing::dice::Dice;
    use crate::testing::store_model::StoreModel;
    use weir_base::secrets::sealing::SealingKeys;
    use weir_base::tasks::sync::Mutex;

    /// Store that is slow, does not reply, forgets, and is replaced by one that has missed what was
    /// written last.
    struct LyingStore {
        contents: Mutex<StoreModel>,
        /// Earlier contents, with their times.
        earlier: Mutex<Vec<(Instant, StoreModel)>>,
        /// Number of its process.
        process: AtomicU64,
        /// Further milliseconds until each reply.
        delay: AtomicU64,
        dice: Mutex<Dice>,
    }

    impl LyingStore {
        fn new(seed: u64) -> Arc<Self> {
            Arc::new(Self {
                contents: Mutex::default(),
                earlier: Mutex::default(),
                process: AtomicU64::new(1),
                delay: AtomicU64::default(),
                dice: Mutex::new(Dice::new(seed)),
            })
        }

        /// Forgets everything, or what was written in the last three seconds.
        fn lie(&self) {
            self.process.fetch_add(1, Ordering::Relaxed);
            let since = Instant::now() - Duration::from_millis(self.dice.lock().below(3_000));
            let earlier = self.earlier.lock();
            let missed = earlier.iter().rev().find(|(at, _)| *at <= since);
            let lost = self.dice.lock().percent(30);
            let kept = missed.filter(|_| !lost).map(|(_, contents)| contents.clone());
            *self.contents.lock() = kept.unwrap_or_default();
        }
    }

    impl LeaseStore for LyingStore {
        fn lease(&self, request: LeaseRequest) -> BoxFuture<'_, Result<LeaseReply, StoreError>> {
            async move {
                let [there, back, fault] = [0; 3].map(|_| self.dice.lock().below(60));
                sleep(Duration::from_millis(there)).await;
                if fault < 6 {
                    return Err(StoreError::Late);
                }
                let reply = {
                    let mut contents = self.contents.lock();
                    let reply = contents.lease(request, self.process.load(Ordering::Relaxed));
                    self.earlier.lock().push((Instant::now(), contents.clone()));
                    reply
                };
                sleep(Duration::from_millis(back + self.delay.load(Ordering::Relaxed))).await;
                if fault < 12 { Err(StoreError::Late) } else { Ok(reply) }
            }
            .boxed()
        }
    }

    /// Lease of a replica that knows no others.
    fn lease_in(store: &Arc<LyingStore>) -> UpstreamLease {
        let (keys, settings) = (SealingKeys::random(), FleetSettings::of_replica("r"));
        let own = Arc::new(OwnRecord::new(&keys, &settings));
        let shared = Shared::new(keys, settings, KnownCount::read(None, "weir", 1));
        UpstreamLease::new(shared, Arc::clone(store) as _, own, "hub", "hub".to_owned())
    }

    /// Users of the lease at a time, and uses in all.
    #[derive(Default)]
    struct Uses {
        now: Cell<usize>,
        all: Cell<usize>,
    }

    /// Uses the lease again and again, in the way of the real one.
    async fn hold(lease: UpstreamLease, mut dice: Dice, uses: Rc<Uses>, seed: u64) {
        let mut pause = move |most| sleep(Duration::from_millis(dice.below(most)));
        let rest = |until: Duration| sleep(until.saturating_sub(lease_clock::now()));
        loop {
            let held = lease.acquire().await;
            let until = Cell::new(held.until);
            let mut kept = std::pin::pin!(lease.keep(&held, |later| until.set(later)).fuse());
            let mut leave = std::pin::pin!(pause(20_000));
            tokio::select! {
                () = &mut kept => continue,
                () = &mut leave => { pause(9_000).await; continue }
                () = sleep(held.wait) => {}
            }
            uses.now.set(uses.now.get() + 1);
            uses.all.set(uses.all.get() + 1);
            assert_eq!(uses.now.get(), 1, "seed {seed}");
            let is_lost = tokio::select! {
                () = &mut kept => true,
                () = &mut leave => tokio::select! {
                    () = &mut kept => true,
                    () = pause(2_000) => false,
                },
            };
            if is_lost {
                // Its server ends at the deadline, if not before.
                rest(until.get()).await;
            }
            uses.now.set(uses.now.get() - 1);
            if !is_lost {
                lease.release(&held).await;
            }
            pause(9_000).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_reply_keeps_no_lease_beyond_its_end() {
        let store = LyingStore::new(1);
        let lease = lease_in(&store);
        let held = lease.acquire().await;
        store.delay.store(5_000, Ordering::Relaxed);
        lease.keep(&held, |_| panic!("no reply is in time")).await;
        let end = lease_clock::now();
        assert!(end < held.until + Duration::from_millis(10), "{end:?}, {:?}", held.until);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_has_one_user_whatever_the_store_forgets() {
        let mut all = 0;
        for seed in 0..300 {
            let store = LyingStore::new(seed);
            let uses = Rc::new(Uses::default());
            let holders = (0..4).map(|number| {
                let dice = Dice::new(seed * 10 + number);
                hold(lease_in(&store), dice, Rc::clone(&uses), seed)
            });
            let lies = async {
                for _ in 0..20 {
                    let pause = store.dice.lock().below(12_000);
                    sleep(Duration::from_millis(pause)).await;
                    store.lie();
                }
            };
            tokio::select! {
                _ = join_all(holders) => {}
                () = lies => {}
            }
            all += uses.all.get();
        }
        assert!(all > 300, "{all} uses");
    }
}
