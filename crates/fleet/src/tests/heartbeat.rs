//! Heartbeats over a store that can be cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::simulation::{SimulatedStore, StoreLink, answered};
use crate::session_owners::SessionOwner;
use crate::testing::sealed_world::SealedWorld;
use crate::{Condition, Fleet, FleetSettings};
use weir_base::secrets::sealing::SealingKeys;

/// Starts a replica with this link to the store. Returns it, and how often `moved` was called.
fn start(name: &str, keys: &SealingKeys, link: &Arc<StoreLink>) -> (Arc<Fleet>, Arc<AtomicUsize>) {
    let (settings, keys) = (FleetSettings::of_replica(name), keys.of_another_process());
    let fleet = Fleet::with_store(keys, settings, None, Arc::clone(link), answered());
    let moved = Arc::new(AtomicUsize::new(0));
    let (running, counted) = (Arc::clone(&fleet), Arc::clone(&moved));
    tokio::task::spawn_local(async move {
        let count = || _ = counted.fetch_add(1, Ordering::Relaxed);
        running.run(&CancellationToken::new(), Condition::default, count).await;
    });
    (fleet, moved)
}

#[tokio::test(start_paused = true)]
async fn a_session_that_moved_is_named_also_after_a_heartbeat_that_failed() {
    let test = async {
        let (store, keys) = (Arc::<SimulatedStore>::default(), SealingKeys::random());
        let links = [1, 2].map(|seed| StoreLink::new(&store, seed));
        let (here, moved) = start("here", &keys, &links[0]);
        let (elsewhere, _) = start("elsewhere", &keys, &links[1]);
        sleep(LONG).await;
        // The replica that opened it has never been there.
        let session = SealedWorld::new().session("s");
        let taken = elsewhere.sessions().find(&session, || true).await;
        assert!(matches!(taken, SessionOwner::ThisReplica(_)), "{taken:?}");
        assert_eq!(moved.load(Ordering::Relaxed), 0);
        // The reply of the store is how this replica learns of the claim.
        let owner = here.sessions().find(&session, || true).await;
        assert!(matches!(owner, SessionOwner::Other(_)), "{owner:?}");
        links[0].is_cut.store(true, Ordering::Relaxed);
        sleep(LONG).await;
        assert_eq!(moved.load(Ordering::Relaxed), 1, "no heartbeat succeeds");
    };
    LocalSet::new().run_until(test).await;
}

/// Time after which a store is steady, and heartbeats that wait for it have failed.
const LONG: Duration = Duration::from_secs(15);
