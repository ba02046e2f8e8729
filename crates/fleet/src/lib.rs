//! Fleet: several Weir processes (replicas) that serve the same clients, behind any load balancer.
//!
//! Each replica writes a record about itself into a common store, each second, and reads those of
//! the others. A session of a legacy client has one owner. A replica that gets a request for a
//! session of another one sends it on ([`replica_client`]); if the owner has ended, it takes the session over
//! with a claim that the store decides ([`store`]).
//!
//! Invariants: a request waits for the store only when a limit counts it or its session is taken
//! over, and then for a bounded time; without the store, replicas serve what they have, and take
//! over what they get. Texts in the store are sealed ([`records`]).
//!
//! Decision: docs/decisions/0037-several-replicas.md

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

mod claim_table;
mod key_status;
mod known_count;
mod membership;
mod records;
mod replica_client;
mod replica_tls;
mod runner;
mod session_owners;
mod shared_limits;
mod status;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod upstream_leases;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use key_status::KeyStatus;
use known_count::KnownCount;
pub use membership::ListsElsewhere;
pub use membership::Replica;
use membership::{FleetView, addresses, shown_lists};
pub(crate) use records::MemberRecord;
use records::Records;
use replica_client::HopPool;
use replica_client::probes::{self, Probe};
pub use replica_client::{HopBody, MessageReply};
pub use replica_tls::{ACCEPTED, FleetTls, UPSTREAM};
pub use shared_limits::OnStoreDown;
use shared_limits::SharedLimits;
pub use status::FleetStatus;
use status::SettledLists;
pub use status::{Condition, FleetMetrics, FleetReport};
use store::Store;
pub use store::node::{StoreKind, StoreLogin, StoreSettings};
use store::valkey::RedisStore;
pub use store::{SharedAdmission, SharedLimit, StoreAbout, StoreError};
pub use upstream_leases::{HeldLease, Lease};
use weir_base::ended_sessions::SessionNumber;
use weir_base::secrets::sealing::{Instance, SealingKeys};
use weir_base::tasks::sync::{Mutex, MutexGuard};

/// Settings of a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetSettings {
    /// Name of the fleet in the store.
    pub name: String,
    /// Name of this replica, for operators.
    pub member: String,
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
    keys: SealingKeys,
    settings: FleetSettings,
    /// False for a process that serves no clients of the fleet, and only looks.
    is_member: bool,
    /// Seconds since 1970.
    started: u64,
    store: Box<dyn Store>,
    probe: Probe,
    records: Records,
    view: Mutex<FleetView>,
    hops: HopPool,
    tls: FleetTls,
    draining: AtomicBool,
    configuration: Mutex<String>,
    /// Upstreams that run on this replica only, with the numbers of their leases.
    running: Mutex<BTreeMap<String, u64>>,
    lists: Mutex<SettledLists>,
    lists_elsewhere: watch::Sender<ListsElsewhere>,
    /// Settings of sessions that were taken over before they could be read, by sessions.
    late_settings: Mutex<HashMap<String, Vec<u8>>>,
    /// Asks for a heartbeat before its time.
    beat_now: Notify,
    /// Number of beginnings and ends of heartbeats; odd during one.
    beats: watch::Sender<u64>,
    /// Whether the last heartbeat has failed, or one in progress is late.
    is_store_late: AtomicBool,
    /// Time since when a heartbeat waits for the reply of the store.
    asked_at: Mutex<Option<Instant>>,
    /// Whether the log says that another replica has the address of this one.
    is_address_taken: AtomicBool,
    metrics: FleetMetrics,
    limits: SharedLimits,
    known_count: KnownCount,
    /// True if the store does not allow what this replica needs.
    is_forbidden: AtomicBool,
}

/// A session, as far as its place is concerned.
#[derive(Debug, Clone)]
pub struct PlacedSession {
    /// Hash of its id.
    pub key: String,
    /// Its number; `None` in ids that were made up to version 0.1.0.
    pub number: Option<SessionNumber>,
    /// Process that has sealed its id.
    pub sealed_by: Instance,
    /// Time at which its id expires.
    pub until: SystemTime,
}

/// Place of a session.
#[derive(Debug)]
pub enum Place {
    /// On this replica. If it was taken over just now: its settings as they were written, if any.
    Here(Option<Vec<u8>>),
    /// On another replica.
    Member(Arc<Replica>),
    /// Its client has ended it.
    Ended,
    /// It cannot be decided at present.
    Undecided,
}

/// Whereabouts of a process that has something for a client.
#[derive(Debug)]
pub enum Whereabouts {
    /// It is this one.
    Itself,
    /// Another replica.
    Member(Arc<Replica>),
    /// A replica that cannot be reached at present, or one that this replica cannot know of. It has
    /// what it had once it is reached.
    Unreachable,
    /// It has ended, and all that it had.
    Ended,
}

/// Reason why another replica did not respond to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopFailure {
    /// It cannot be reached. The request was not sent.
    Unreachable,
    /// The request was sent, and there is no response: it may have been executed.
    Broken,
}

impl Fleet {
    /// Creates a replica, which knows no other members before its first heartbeat. In the `state`
    /// folder it keeps their number.
    pub fn new(keys: SealingKeys, settings: FleetSettings, state: Option<&Path>) -> Arc<Self> {
        let known_count = KnownCount::read(state, &settings.name, settings.expected_replicas);
        Arc::new(Self { known_count, ..Self::over_network(keys, settings, true) })
    }

    /// Creates a process that knows the members and is none: for upstreams that run on one of them.
    pub fn observer(keys: SealingKeys, settings: FleetSettings) -> Arc<Self> {
        Arc::new(Self::over_network(keys, settings, false))
    }

    fn over_network(keys: SealingKeys, settings: FleetSettings, is_member: bool) -> Self {
        let store = Box::new(open_store(&settings));
        Self::build(keys, settings, store, Box::new(probes::ask), is_member)
    }

    fn build(
        keys: SealingKeys,
        settings: FleetSettings,
        store: Box<dyn Store>,
        probe: Probe,
        is_member: bool,
    ) -> Self {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let (tls, limits) = (FleetTls::new(&keys), SharedLimits::new(&keys));
        Self {
            records: Records::new(&keys),
            view: Mutex::new(FleetView::new(keys.instance())),
            started: started.map_or(0, |since| since.as_secs()),
            hops: HopPool::new(tls.clone()),
            tls,
            keys,
            known_count: KnownCount::read(None, &settings.name, settings.expected_replicas),
            settings,
            is_member,
            store,
            probe,
            draining: AtomicBool::new(false),
            configuration: Mutex::default(),
            running: Mutex::default(),
            lists: Mutex::default(),
            lists_elsewhere: watch::Sender::default(),
            late_settings: Mutex::default(),
            beat_now: Notify::new(),
            beats: watch::Sender::new(0),
            is_store_late: AtomicBool::new(false),
            asked_at: Mutex::default(),
            is_address_taken: AtomicBool::new(false),
            metrics: FleetMetrics::default(),
            limits,
            is_forbidden: AtomicBool::new(false),
        }
    }

    /// Returns the number of this process.
    pub(crate) fn instance(&self) -> Instance {
        self.keys.instance()
    }

    /// Returns whether this process serves clients of the fleet.
    pub fn is_member(&self) -> bool {
        self.is_member
    }

    /// Returns the keys of the fleet.
    pub fn keys(&self) -> &SealingKeys {
        &self.keys
    }

    /// Returns the name of this replica.
    pub fn member_name(&self) -> &str {
        &self.settings.member
    }

    /// Watches the lists of the other replicas.
    pub fn lists_elsewhere(&self) -> watch::Receiver<ListsElsewhere> {
        self.lists_elsewhere.subscribe()
    }

    /// Counters and gauges of the fleet.
    pub fn metrics(&self) -> &FleetMetrics {
        &self.metrics
    }

    /// TLS between replicas.
    pub fn tls(&self) -> &FleetTls {
        &self.tls
    }

    /// Sets the short hash of the configuration that this replica shows the others.
    pub fn set_configuration(&self, hash: String) {
        *self.configuration.lock() = hash;
    }

    /// Announces that this replica is about to stop: the others take over its sessions.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.beat_now.notify_one();
    }

    /// Returns whether this replica is about to stop.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    // === Heartbeat ===

    /// Writes the record of this replica each second, and reads those of the others, until `stop`
    /// fires. `condition` returns what it shows of itself; `moved` is called when a session has got
    /// another owner.
    pub async fn run(
        &self,
        stop: &CancellationToken,
        condition: impl Fn() -> Condition,
        moved: impl Fn(),
    ) {
        let beats = self.beat_until(stop, condition, moved);
        tokio::join!(beats, self.settle_limits(stop), self.probe_until(stop));
        self.hops.close();
        // The record expires by itself if the store is away.
        let _ = self.store.leave(self.instance().to_string()).await;
    }

    async fn beat_until(
        &self,
        stop: &CancellationToken,
        condition: impl Fn() -> Condition,
        moved: impl Fn(),
    ) {
        let mut is_connected = None;
        loop {
            let begin = Instant::now();
            self.beats.send_modify(|number| *number += 1);
            let beat = self.beat(condition(), &moved).await;
            match &beat {
                Ok(_) => self.metrics.heartbeats.observe(begin.elapsed()),
                Err(_) => self.metrics.store_errors.increment(),
            }
            let is_slow = begin.elapsed() > self.settings.store.timeout;
            self.limits.end_beat(beat.is_err(), is_slow);
            let is_forbidden = matches!(beat, Err(StoreError::Forbidden(_)));
            self.is_forbidden.store(is_forbidden, Ordering::Relaxed);
            self.is_store_late.store(beat.is_err(), Ordering::Release);
            self.beats.send_modify(|number| *number += 1);
            self.log_change(&mut is_connected, &beat);
            self.log_address();
            let pause = if beat == Ok(true) { Duration::ZERO } else { HEARTBEAT };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.beat_now.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Returns whether there is more to read, or to write.
    async fn beat(&self, condition: Condition, moved: &impl Fn()) -> Result<bool, StoreError> {
        let name = self.instance().to_string();
        let record = MemberRecord {
            name: self.settings.member.clone(),
            address: self.settings.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            keys: self.keys.ids().map(|id| id.to_string()).collect(),
            configuration: self.configuration.lock().clone(),
            draining: self.is_draining(),
            sessions: condition.sessions,
            running: self.running.lock().clone(),
            lists: Some(shown_lists(condition.lists)),
            has_settled: self.lists.lock().settle(condition.lists),
            reads_numbers: true,
            started: self.started,
        };
        let record = self.records.seal_member(&name, &record);
        let beat = self.view().begin_beat(self.is_member.then_some((name, record)));
        *self.asked_at.lock() = Some(Instant::now());
        let roster = self.store.heartbeat(beat).await;
        *self.asked_at.lock() = None;
        let roster = roster?;
        self.limits.learn_contents(&roster);
        let has_more_to_read = roster.claims.has_more() || roster.ended.has_more();
        let (unclaimed, lost_ends, lists) = {
            let mut view = self.view();
            view.update(roster, &self.records, Instant::now());
            let is_steady = view.is_steady();
            let unclaimed = if is_steady { view.unclaimed(Instant::now()) } else { Vec::new() };
            (unclaimed, view.lost_ends(), view.lists_elsewhere(condition.lists))
        };
        self.lists_elsewhere.send_if_modified(|known| std::mem::replace(known, lists) != lists);
        // Also requests learn of claims.
        if self.view().take_moved() {
            moved();
        }
        let has_more_ends = self.write_lost_ends(lost_ends).await?;
        let has_more_claims = self.claim_unclaimed(unclaimed).await?;
        if self.view().take_moved() || !self.late_settings.lock().is_empty() {
            moved();
        }
        let count = self.view().members().len();
        self.known_count.learn(u32::try_from(count).unwrap_or(u32::MAX)).await;
        let view = self.view();
        self.hops.retain(|instance| view.members().any(|member| member.instance == instance));
        Ok(has_more_to_read || has_more_ends || has_more_claims)
    }

    fn log_change(&self, is_connected: &mut Option<bool>, beat: &Result<bool, StoreError>) {
        let is_now = beat.is_ok();
        if is_connected.replace(is_now) == Some(is_now) {
            return;
        }
        match beat {
            Ok(_) => {
                let (members, unreadable) = {
                    let view = self.view();
                    (view.members().len(), view.unreadable().map(|(_, count)| count).sum::<usize>())
                };
                info!(fleet = self.settings.name, members, "store of the fleet connected");
                if unreadable > 0 {
                    warn!(
                        unreadable,
                        "replicas with other keys are in the fleet: their sessions cannot be \
                         served here; give all replicas the same `keys` under [fleet]"
                    );
                }
            }
            Err(error) => warn!(
                %error,
                "store of the fleet cannot be used, this replica serves what it has: check \
                 `store` under [fleet]"
            ),
        }
    }

    fn log_address(&self) {
        let is_taken = addresses::is_taken(&self.view(), self.instance());
        if !self.is_address_taken.swap(is_taken, Ordering::AcqRel) && is_taken {
            let address = &self.settings.address;
            warn!(address, "{}", addresses::TAKEN);
        }
    }

    /// Makes a heartbeat that begins now, and waits until it has ended, after one that is in
    /// progress: for the time of one reply of the store at most, and not if that is away or late.
    pub async fn refresh(&self) {
        let is_late = || self.is_store_late.load(Ordering::Acquire);
        if is_late() {
            return;
        }
        let mut beats = self.beats.subscribe();
        let before = *beats.borrow();
        self.beat_now.notify_one();
        // One that is in progress may not know of what has just happened.
        let ended = beats.wait_for(|number| *number >= before + before % 2 + 2 || is_late());
        if timeout(self.settings.store.timeout, ended).await.is_err() {
            // Nothing else waits for it.
            self.is_store_late.store(true, Ordering::Release);
            self.metrics.store_errors.increment();
        }
    }

    /// Returns whether a heartbeat waits for the store longer than a request may.
    fn is_store_silent(&self) -> bool {
        let asked_at = *self.asked_at.lock();
        asked_at.is_some_and(|asked_at| asked_at.elapsed() >= self.settings.store.timeout)
    }

    fn view(&self) -> MutexGuard<'_, FleetView> {
        self.view.lock()
    }

    /// Returns whether all replicas read ids of sessions with numbers, as far as this one knows.
    pub fn all_read_numbers(&self) -> bool {
        self.view().all_read_numbers()
    }

    /// Returns whether another replica serves clients.
    pub fn has_others(&self) -> bool {
        let is_other = |it: &Arc<Replica>| it.instance != self.instance() && !it.record.draining;
        self.view().members().any(is_other)
    }

    /// Returns the other members, also those that are about to stop or cannot be reached at
    /// present; `None` before the first reply of the store.
    pub fn others(&self) -> Option<Vec<Arc<Replica>>> {
        let view = self.view();
        let others = view.members().filter(|it| it.instance != self.instance());
        view.replied_at().map(|_| others.map(Arc::clone).collect())
    }

    /// Returns another replica that is this process and can be reached, also one that is about to
    /// stop.
    pub fn member(&self, is_it: impl Fn(Instance) -> bool) -> Option<Arc<Replica>> {
        match self.view().find(is_it, Instant::now()) {
            Whereabouts::Member(member) => Some(member),
            Whereabouts::Itself | Whereabouts::Unreachable | Whereabouts::Ended => None,
        }
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Opens the store, whose calls take no longer than the configuration says: requests wait for some.
fn open_store(settings: &FleetSettings) -> RedisStore {
    RedisStore::new(settings.store.clone(), &settings.name, settings.store.timeout)
}

/// Interval of the heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
