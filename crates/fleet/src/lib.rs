//! Fleet: several Weir processes (replicas) that serve the same clients, behind any load balancer.
//!
//! Each replica writes a record about itself into a common store, each second, and reads those of
//! the others ([`heartbeat`], [`membership`]). A session of a legacy client has one owner. A
//! replica that gets a request for a session of another one forwards it ([`replica_client`]); if
//! the owner has ended or cannot be reached, it takes the session over with a claim that the store
//! decides ([`session_owners`]).
//!
//! Invariants: a request waits for the store only when a limit counts it, when its session is taken
//! over, and when the owner is not known or does not have the session; and then for a bounded time.
//! Without the store, replicas serve what they have, and take over what they get. Texts in the
//! store are sealed ([`records`]).
//!
//! Decisions: docs/decisions/0037-several-replicas.md, docs/decisions/0045-fleet-pure-state.md

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

mod beats;
mod claim_table;
mod heartbeat;
mod key_status;
mod known_count;
mod membership;
mod metrics;
mod own_record;
mod records;
mod replica_client;
mod replica_tls;
mod session_owners;
mod shared;
mod shared_limits;
mod status;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod upstream_leases;

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use claim_table::SessionIdentity;
use heartbeat::{Callbacks, Heartbeat};
pub use key_status::KeyStatus;
use known_count::KnownCount;
use membership::addresses;
pub use membership::{ListsElsewhere, Replica, Whereabouts};
pub use metrics::FleetMetrics;
pub use own_record::Condition;
use own_record::OwnRecord;
pub use records::ReplicaRecord;
use replica_client::probes::{self, Probe};
pub use replica_client::{
    ForwardError, MessageReply, ReplicaBody, ReplicaClient, RunnerStream, UnsentRequest,
};
pub use replica_tls::{ACCEPTED, ReplicaTls, UPSTREAM};
pub use session_owners::{SessionOwner, SessionOwners};
use shared::Shared;
pub use shared_limits::{OnStoreDown, SharedLimits};
pub use status::{FleetReport, FleetStatus};
pub use store::node::{StoreKind, StoreLogin, StoreSettings};
pub use store::valkey::StoreAbout;
use store::valkey::ValkeyStore;
use store::{ClaimStore, LeaseStore, LimitStore, ReplicaStore};
pub use store::{SharedAdmission, SharedLimit, StoreError};
pub use upstream_leases::{HeldLease, UpstreamLease};
use weir_base::secrets::sealing::{InstanceId, SealingKeys};

/// Settings of a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetSettings {
    /// Name of the fleet in the store.
    pub name: String,
    /// Name of this replica, for operators.
    pub replica: String,
    /// Host and port at which the other replicas reach this one.
    pub address: String,
    /// Store of the fleet.
    pub store: StoreSettings,
    /// Handling of limits while the store is away.
    pub on_store_down: OnStoreDown,
    /// Number of replicas, for one that has never known it.
    pub expected_replicas: u32,
}

/// This replica, and what it knows of the others.
pub struct Fleet {
    shared: Arc<Shared>,
    /// `None` for a process that serves no clients of the fleet, and only looks.
    own: Option<Arc<OwnRecord>>,
    sessions: Arc<SessionOwners>,
    client: ReplicaClient,
    limits: Arc<SharedLimits>,
    records: Arc<dyn ReplicaStore>,
    leases: Arc<dyn LeaseStore>,
    lists_elsewhere: watch::Sender<ListsElsewhere>,
}

impl Fleet {
    /// Creates a replica, which knows no others before its first heartbeat. In the `state` folder
    /// it keeps their number.
    pub fn new(keys: SealingKeys, settings: FleetSettings, state: Option<&Path>) -> Arc<Self> {
        let store = ValkeyStore::of(&settings);
        Self::with_store(keys, settings, state, store, Box::new(probes::ask))
    }

    /// Creates a process that only looks: for upstreams that run on one of the replicas.
    pub fn observer(keys: SealingKeys, settings: FleetSettings) -> Arc<Self> {
        let store = ValkeyStore::of(&settings);
        let known_count = KnownCount::read(None, &settings.name, settings.expected_replicas);
        let shared = Shared::new(keys, settings, known_count);
        Arc::new(Self::over(shared, None, store, Box::new(probes::ask)))
    }

    /// Creates a replica with this store, which asks others whether they live by this probe.
    fn with_store(
        keys: SealingKeys,
        settings: FleetSettings,
        state: Option<&Path>,
        store: impl ReplicaStore + ClaimStore + LimitStore + LeaseStore + 'static,
        probe: Probe,
    ) -> Arc<Self> {
        let known_count = KnownCount::read(state, &settings.name, settings.expected_replicas);
        let own = OwnRecord::new(&keys, &settings);
        let shared = Shared::new(keys, settings, known_count);
        Arc::new(Self::over(shared, Some(Arc::new(own)), store, probe))
    }

    fn over(
        shared: Arc<Shared>,
        own: Option<Arc<OwnRecord>>,
        store: impl ReplicaStore + ClaimStore + LimitStore + LeaseStore + 'static,
        probe: Probe,
    ) -> Self {
        let store = Arc::new(store);
        let share = || Arc::clone(&shared);
        Self {
            own,
            sessions: Arc::new(SessionOwners::new(share(), Arc::clone(&store) as _)),
            client: ReplicaClient::new(share(), probe),
            limits: Arc::new(SharedLimits::new(share(), Arc::clone(&store) as _)),
            records: Arc::clone(&store) as _,
            leases: store,
            lists_elsewhere: watch::Sender::default(),
            shared,
        }
    }

    // === Parts ===

    /// Owners of the sessions of legacy clients.
    pub fn sessions(&self) -> &SessionOwners {
        &self.sessions
    }

    /// Client of the other replicas.
    pub fn client(&self) -> &ReplicaClient {
        &self.client
    }

    /// Limits that all replicas count together.
    pub fn limits(&self) -> &Arc<SharedLimits> {
        &self.limits
    }

    /// Returns the lease of an upstream, for a holder of its own; `None` in a process that only
    /// looks.
    pub fn lease(&self, upstream: &str) -> Option<UpstreamLease> {
        let (shared, store) = (Arc::clone(&self.shared), Arc::clone(&self.leases));
        let name = self.limits.bucket(&[0; 32], upstream);
        Some(UpstreamLease::new(shared, store, Arc::clone(self.own.as_ref()?), upstream, name))
    }

    /// Returns the keys of the fleet.
    pub fn keys(&self) -> &SealingKeys {
        &self.shared.keys
    }

    // === This replica ===

    /// Returns the name of this replica.
    pub fn replica_name(&self) -> &str {
        &self.shared.settings.replica
    }

    /// Sets the short hash of the configuration that this replica shows the others.
    pub fn set_configuration(&self, hash: String) {
        if let Some(own) = &self.own {
            own.set_configuration(hash);
        }
    }

    /// Announces that this replica is about to stop: the others take over its sessions.
    pub fn drain(&self) {
        if let Some(own) = &self.own {
            own.drain();
        }
        self.shared.beats.request();
    }

    /// Returns whether this replica is about to stop.
    pub fn is_draining(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.is_draining())
    }

    /// Writes the record of this replica each second, and reads those of the others, until `stop`
    /// fires. `condition` returns what it shows of itself; `moved` is called when a session has got
    /// another owner.
    pub async fn run(
        &self,
        stop: &CancellationToken,
        condition: impl Fn() -> Condition,
        moved: impl Fn(),
    ) {
        let heartbeat = Heartbeat {
            shared: Arc::clone(&self.shared),
            own: self.own.clone(),
            store: Arc::clone(&self.records),
            sessions: Arc::clone(&self.sessions),
            limits: Arc::clone(&self.limits),
            lists_elsewhere: self.lists_elsewhere.clone(),
            process: Callbacks { condition, moved },
        };
        tokio::join!(heartbeat.run(stop), self.limits.run(stop), self.client.run(stop));
        self.client.close();
        // The record expires by itself if the store is away.
        let _ = self.records.leave(self.instance().to_string()).await;
    }

    /// Returns why this replica cannot work with the others, if it cannot.
    pub fn problem(&self) -> Option<&'static str> {
        if self.shared.beats.is_store_forbidden() {
            return Some("the store of the fleet does not allow commands that Weir needs");
        }
        let state = self.shared.state();
        let membership = &state.membership;
        if membership.has_foreign_key() {
            return Some("the other replicas of the fleet have other keys");
        }
        addresses::is_taken(membership, self.instance()).then_some(addresses::TAKEN)
    }

    /// Returns the status of this replica.
    pub fn status(&self) -> FleetStatus {
        FleetStatus::of(&self.shared)
    }

    /// Counters of this replica.
    pub fn metrics(&self) -> &FleetMetrics {
        &self.shared.metrics
    }

    /// Returns the number of this process.
    fn instance(&self) -> InstanceId {
        self.shared.instance()
    }

    // === Other replicas ===

    /// Makes a heartbeat that begins now, and waits until it has ended, after one that is in
    /// progress: for the time of one reply of the store at most, and not if that is away or late.
    pub async fn refresh(&self) {
        self.shared.refresh().await;
    }

    /// Waits for the next heartbeat, whether it succeeds or not, or for the time of one.
    pub async fn next_heartbeat(&self) {
        self.shared.beats.next().await;
    }

    /// Finds a process that has something for a client, such as a call that waits for it. One that
    /// is not known may have started since the last heartbeat, and is looked for in the store.
    pub async fn find(&self, instance: InstanceId) -> Whereabouts {
        self.find_by(|it| it == instance).await
    }

    /// Like [`Self::find`], for a process of which something else is known than its number.
    pub async fn find_by(&self, is_it: impl Fn(InstanceId) -> bool) -> Whereabouts {
        let find = || self.shared.state().membership.find(&is_it, Instant::now());
        let is_replica = || self.shared.state().membership.replicas().any(|it| is_it(it.instance));
        match find() {
            Whereabouts::Unreachable if !is_replica() => {
                self.refresh().await;
                find()
            }
            found => found,
        }
    }

    /// Returns another replica that is this process and can be reached, also one that is about to
    /// stop.
    pub fn reachable(&self, is_it: impl Fn(InstanceId) -> bool) -> Option<Arc<Replica>> {
        match self.shared.state().membership.find(is_it, Instant::now()) {
            Whereabouts::Other(replica) => Some(replica),
            Whereabouts::ThisReplica | Whereabouts::Unreachable | Whereabouts::Ended => None,
        }
    }

    /// Returns whether there is such a replica, as far as this one knows.
    pub fn has_replica(&self, instance: InstanceId) -> bool {
        self.shared.state().membership.has(instance)
    }

    /// Returns whether another replica serves clients.
    pub fn has_others(&self) -> bool {
        self.shared.has_others()
    }

    /// Returns the other replicas, also those that are about to stop or cannot be reached at
    /// present; `None` before the first reply of the store.
    pub fn others(&self) -> Option<Vec<Arc<Replica>>> {
        let state = self.shared.state();
        let membership = &state.membership;
        membership.is_known().then(|| membership.others().map(Arc::clone).collect())
    }

    /// Returns the replica that runs an upstream, except this one.
    pub fn runner_of(&self, upstream: &str) -> Option<Arc<Replica>> {
        self.shared.state().membership.runner_of(upstream)
    }

    /// Returns the owner of the connection of a client to an upstream; `None` if it is this
    /// replica. All replicas that know the same of each other return the same one.
    pub fn owner_of_connection(&self, client: &str, upstream: &str) -> Option<InstanceId> {
        self.shared.state().membership.owner_of_connection(client, upstream, Instant::now())
    }

    /// Watches the lists of the other replicas.
    pub fn lists_elsewhere(&self) -> watch::Receiver<ListsElsewhere> {
        self.lists_elsewhere.subscribe()
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}
