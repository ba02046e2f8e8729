//! Fleet: several Weir processes (replicas) that serve the same clients, behind any load balancer.
//!
//! Each replica writes a record about itself into a common store, each second, and reads those of
//! the others. A session of a legacy client has one owner. A replica that gets a request for a
//! session of another one sends it on ([`hop`]); if the owner has ended, it takes the session over
//! with a claim that the store decides ([`store`]).
//!
//! Invariants: a request waits for the store only when a limit counts it or its session is taken
//! over, and then for a bounded time; without the store, replicas serve what they have, and take
//! over what they get. Texts in the store are sealed ([`records`]).
//!
//! Decision: docs/decisions/0037-several-replicas.md

mod certificate;
mod claims;
mod hop;
mod key_status;
mod known_count;
mod leases;
mod limit_reports;
mod records;
mod redis_store;
mod runner;
mod shared_limits;
mod status;
mod store;
mod store_node;
mod table_reading;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ended_sessions::SessionNumber;
use crate::sealing::{Instance, SealingKeys};
use crate::sync::{Mutex, MutexGuard};
pub(crate) use certificate::{ACCEPTED, FleetTls, UPSTREAM};
use hop::HopPool;
pub(crate) use hop::{HopBody, MessageReply};
pub(crate) use key_status::KeyStatus;
use known_count::KnownCount;
pub(crate) use leases::{HeldLease, Lease};
pub(crate) use records::MemberRecord;
use records::Records;
use redis_store::RedisStore;
pub(crate) use runner::TaskPlace;
pub use shared_limits::OnStoreDown;
use shared_limits::SharedLimits;
pub use status::FleetStatus;
use status::SettledLists;
pub(crate) use status::{Condition, FleetMetrics, FleetReport};
use store::Store;
pub(crate) use store::{SharedAdmission, SharedLimit, StoreAbout, StoreError};
pub use store_node::{StoreKind, StoreLogin, StoreSettings};
pub use view::ListsElsewhere;
pub(crate) use view::Replica;
use view::{FleetView, shown_lists};

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

#[cfg(test)]
impl FleetSettings {
    /// Creates the settings of a replica in tests, whose store is away.
    pub(crate) fn of_member(member: &str) -> Self {
        Self {
            name: "weir".to_owned(),
            member: member.to_owned(),
            address: "127.0.0.1:1".to_owned(),
            store: StoreSettings {
                urls: Vec::new(),
                kind: StoreKind::Server,
                login: StoreLogin::default(),
                ca: None,
                timeout: Duration::from_millis(50),
            },
            on_store_down: OnStoreDown::Share,
            expected_replicas: 3,
        }
    }
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
    metrics: FleetMetrics,
    limits: SharedLimits,
    known_count: KnownCount,
    /// True if the store does not allow what this replica needs.
    is_forbidden: AtomicBool,
}

/// A session, as far as its place is concerned.
#[derive(Debug, Clone)]
pub(crate) struct PlacedSession {
    /// Hash of its id.
    pub(crate) key: String,
    /// Its number; `None` in ids that were made up to version 0.1.0.
    pub(crate) number: Option<SessionNumber>,
    /// Process that has sealed its id.
    pub(crate) sealed_by: Instance,
    /// Time at which its id expires.
    pub(crate) until: SystemTime,
}

/// Place of a session.
#[derive(Debug)]
pub(crate) enum Place {
    /// On this replica. If it was taken over just now: its settings as they were written, if any.
    Here(Option<Vec<u8>>),
    /// On another replica.
    Member(Arc<Replica>),
    /// Its client has ended it.
    Ended,
    /// It cannot be decided at present.
    Undecided,
}

/// Process of a fleet, as a replica knows it.
#[derive(Debug)]
pub(crate) enum Found {
    Itself,
    Member(Arc<Replica>),
    Ended,
}

/// Reason why another replica did not respond to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HopFailure {
    /// It cannot be reached. The request was not sent.
    Unreachable,
    /// The request was sent, and there is no response: it may have been executed.
    Broken,
}

impl Fleet {
    /// Creates a replica, which knows no other members before its first heartbeat. In the `state`
    /// folder it keeps their number.
    pub fn new(keys: SealingKeys, settings: FleetSettings, state: Option<&Path>) -> Arc<Self> {
        let store = Box::new(open_store(&settings));
        let known_count = KnownCount::read(state, &settings.name, settings.expected_replicas);
        Arc::new(Self { known_count, ..Self::build(keys, settings, store, true) })
    }

    /// Creates a process that knows the members and is none: for upstreams that run on one of them.
    pub(crate) fn observer(keys: SealingKeys, settings: FleetSettings) -> Arc<Self> {
        let store = open_store(&settings);
        Self::with_store(keys, settings, Box::new(store), false)
    }

    fn with_store(
        keys: SealingKeys,
        settings: FleetSettings,
        store: Box<dyn Store>,
        is_member: bool,
    ) -> Arc<Self> {
        Arc::new(Self::build(keys, settings, store, is_member))
    }

    fn build(
        keys: SealingKeys,
        settings: FleetSettings,
        store: Box<dyn Store>,
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
            draining: AtomicBool::new(false),
            configuration: Mutex::default(),
            running: Mutex::default(),
            lists: Mutex::default(),
            lists_elsewhere: watch::Sender::default(),
            late_settings: Mutex::default(),
            beat_now: Notify::new(),
            beats: watch::Sender::new(0),
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
    pub(crate) fn is_member(&self) -> bool {
        self.is_member
    }

    /// Returns the keys of the fleet.
    pub(crate) fn keys(&self) -> &SealingKeys {
        &self.keys
    }

    /// Returns the name of this replica.
    pub(crate) fn member_name(&self) -> &str {
        &self.settings.member
    }

    /// Watches the lists of the other replicas.
    pub(crate) fn lists_elsewhere(&self) -> watch::Receiver<ListsElsewhere> {
        self.lists_elsewhere.subscribe()
    }

    pub(crate) fn metrics(&self) -> &FleetMetrics {
        &self.metrics
    }

    pub(crate) fn tls(&self) -> &FleetTls {
        &self.tls
    }

    /// Sets the short hash of the configuration that this replica shows the others.
    pub(crate) fn set_configuration(&self, hash: String) {
        *self.configuration.lock() = hash;
    }

    /// Announces that this replica is about to stop: the others take over its sessions.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.beat_now.notify_one();
    }

    /// Returns whether this replica is about to stop.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    // === Heartbeat ===

    /// Writes the record of this replica each second, and reads those of the others, until `stop`
    /// fires. `condition` returns what it shows of itself; `moved` is called when a session has got
    /// another owner.
    pub(crate) async fn run(
        &self,
        stop: &CancellationToken,
        condition: impl Fn() -> Condition,
        moved: impl Fn(),
    ) {
        tokio::join!(self.beat_until(stop, condition, moved), self.settle_limits(stop));
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
            self.beats.send_modify(|number| *number += 1);
            self.log_change(&mut is_connected, &beat);
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
        let roster = self.store.heartbeat(beat).await?;
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

    /// Makes a heartbeat that begins now, and waits until it has ended: for two replies of the
    /// store, because one that is in progress ends first.
    pub(crate) async fn refresh(&self) {
        let mut beats = self.beats.subscribe();
        let before = *beats.borrow();
        self.beat_now.notify_one();
        // One that is in progress may not know of what has just happened.
        let ended = beats.wait_for(|number| *number >= before + before % 2 + 2);
        if timeout(2 * self.settings.store.timeout, ended).await.is_err() {
            self.metrics.store_errors.increment();
        }
    }

    fn view(&self) -> MutexGuard<'_, FleetView> {
        self.view.lock()
    }

    /// Returns whether all replicas read ids of sessions with numbers, as far as this one knows.
    pub(crate) fn all_read_numbers(&self) -> bool {
        self.view().all_read_numbers()
    }

    /// Returns whether another replica serves clients.
    pub(crate) fn has_others(&self) -> bool {
        let is_other = |it: &Arc<Replica>| it.instance != self.instance() && !it.record.draining;
        self.view().members().any(is_other)
    }

    /// Returns the other members, also those that are about to stop or cannot be reached at
    /// present; `None` before the first reply of the store.
    pub(crate) fn others(&self) -> Option<Vec<Arc<Replica>>> {
        let view = self.view();
        let others = view.members().filter(|it| it.instance != self.instance());
        view.replied_at().map(|_| others.map(Arc::clone).collect())
    }

    /// Returns another process of the fleet; `None` if it may live, and this replica does not know
    /// it.
    pub(crate) fn find(&self, instance: Instance) -> Option<Found> {
        let view = self.view();
        let member = view.members().find(|member| member.instance == instance);
        match member {
            _ if instance == self.instance() => Some(Found::Itself),
            Some(member) => Some(Found::Member(Arc::clone(member))),
            None => view.is_steady().then_some(Found::Ended),
        }
    }

    /// Returns a member that is there, also one that is about to stop, except this replica.
    pub(crate) fn member(&self, instance: Instance) -> Option<Arc<Replica>> {
        let other = instance != self.instance();
        other.then(|| self.view().reachable(instance, Instant::now())).flatten()
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
