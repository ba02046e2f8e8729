//! Simulation of a fleet: several replicas on a paused clock, with a store that fails and lies.
//!
//! A seed determines who does what and when. `WEIR_SEED=n` replays one and prints its history,
//! `WEIR_SEEDS=n` runs so many.
//!
//! What is shown: a replica whose store has been truthful for some time serves no session
//! of another owner, and none that has ended; no limit is exceeded then; it says of no replica that
//! lives and has had no faults that it has ended; when all faults are over, all replicas agree on
//! one owner of each session after a few heartbeats, and the store knows all requests in progress.

use std::collections::{BTreeMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::membership::STEADY;
use crate::records::{Claim, Records};
use crate::replica_client::probes::Probe;
use crate::shared_limits::limit_reports::REMEMBERED;
use crate::store::{
    Beat, BucketReport, Charge, ChargeReply, ClaimReply, ClaimRequest, ClaimStore, HEARTBEAT,
    LeaseReply, LeaseRequest, LeaseStore, LimitStore, MAX_GAP, RECORD_TTL, ReplicaStore, Roster,
    SETTLING, SharedAdmission, SharedLimit, StoreError, StoredEntry,
};
use crate::testing::dice::Dice;
use crate::testing::store_model::StoreModel;
use crate::{Condition, Fleet, FleetSettings, SessionIdentity, SessionOwner, Whereabouts};
use weir_base::ended_sessions::{BlockName, EndedBlock, EndedSessions, SessionNumber};
use weir_base::secrets::sealing::{InstanceId, SealingKeys};
use weir_base::tasks::sync::Mutex;

/// Probe that each replica answers.
pub(crate) fn answered() -> Probe {
    Box::new(|_, _| async { true }.boxed())
}

// === The store ===

/// Store of all replicas, with the faults of all its connections.
#[derive(Default)]
pub(super) struct SimulatedStore {
    pub(super) contents: Mutex<StoreModel>,
    pub(super) is_down: AtomicBool,
    is_full: AtomicBool,
    /// Counts the events after which all connections are closed.
    pub(super) generation: AtomicU64,
}

/// Connection of one replica to the store.
pub(super) struct StoreLink {
    store: Arc<SimulatedStore>,
    dice: Mutex<Dice>,
    pub(super) is_cut: AtomicBool,
    /// Percentage of calls whose reply is late.
    pub(super) late: AtomicU64,
    /// Most milliseconds by which it is late.
    pub(super) latest: AtomicU64,
    /// Percentage of calls that are executed, and whose connection ends then.
    pub(super) lost: AtomicU64,
    /// Current connection: its number, and the generation of the store at which it connected.
    connection: Mutex<Option<(u64, u64)>>,
    /// Generation of the store that has replied last.
    generation: AtomicU64,
    /// Time of the last fault that it had.
    faulty: Mutex<Instant>,
}

impl StoreLink {
    pub(super) fn new(store: &Arc<SimulatedStore>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(store),
            dice: Mutex::new(Dice::new(seed)),
            is_cut: AtomicBool::new(false),
            late: AtomicU64::new(0),
            latest: AtomicU64::new(2_000),
            lost: AtomicU64::new(0),
            connection: Mutex::default(),
            generation: AtomicU64::new(0),
            faulty: Mutex::new(Instant::now()),
        })
    }

    fn fail<T>(&self, error: StoreError) -> Result<T, StoreError> {
        *self.faulty.lock() = Instant::now();
        Err(error)
    }

    /// Gives this connection up; later ones go on.
    fn give_up(&self, connection: u64) {
        self.connection.lock().take_if(|(current, _)| *current == connection);
    }

    fn is_away(&self) -> bool {
        self.store.is_down.load(Ordering::Relaxed) || self.is_cut.load(Ordering::Relaxed)
    }

    /// Executes a call in the store and waits so long for the reply, or until it comes. Calls
    /// overtake each other.
    async fn call<T>(
        self: Arc<Self>,
        wait: Option<Duration>,
        execute: impl FnOnce(&mut StoreModel) -> T,
    ) -> Result<T, StoreError> {
        let Some((connection, generation)) = *self.connection.lock() else {
            return self.fail(StoreError::Away);
        };
        let (there, back, is_lost) = {
            let mut dice = self.dice.lock();
            let latest = self.latest.load(Ordering::Relaxed);
            // A heartbeat whose reply is late has more time, and only two of them count.
            let may_be_late = wait != Some(BEAT_WAIT) || latest > 100;
            let is_late = dice.percent(self.late.load(Ordering::Relaxed)) && may_be_late;
            let late = if is_late { 40 + dice.below(latest) } else { 0 };
            let is_lost = dice.percent(self.lost.load(Ordering::Relaxed));
            (dice.below(20), dice.below(20) + late, is_lost)
        };
        let talk = async {
            sleep(Duration::from_millis(there)).await;
            if self.is_away() {
                *self.faulty.lock() = Instant::now();
                std::future::pending::<()>().await;
            }
            if generation != self.store.generation.load(Ordering::Relaxed) {
                return Err(StoreError::Lost("closed".to_owned()));
            }
            let result = execute(&mut self.store.contents.lock());
            if is_lost {
                return Err(StoreError::Lost("closed".to_owned()));
            }
            if back > 40 {
                *self.faulty.lock() = Instant::now();
            }
            sleep(Duration::from_millis(back)).await;
            while self.is_away() {
                *self.faulty.lock() = Instant::now();
                sleep(Duration::from_millis(100)).await;
            }
            Ok(result)
        };
        let late = async {
            match wait {
                Some(wait) => sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        let reply = tokio::select! {
            biased;
            reply = talk => reply,
            () = late => Err(StoreError::Late),
        };
        match reply {
            Ok(result) => Ok(result),
            Err(error) => {
                if matches!(error, StoreError::Lost(_)) || wait == Some(BEAT_WAIT) {
                    self.give_up(connection);
                }
                self.fail(error)
            }
        }
    }
}

impl ReplicaStore for Arc<StoreLink> {
    fn heartbeat(&self, beat: Beat) -> BoxFuture<'_, Result<Roster, StoreError>> {
        async move {
            let is_new = self.connection.lock().is_none();
            if is_new && self.is_away() {
                sleep(Duration::from_millis(30)).await;
                return self.fail(StoreError::Away);
            }
            let is_new = {
                let generation = self.store.generation.load(Ordering::Relaxed);
                let mut connection = self.connection.lock();
                let is_new = connection.is_none();
                let number = || self.dice.lock().next();
                connection.get_or_insert_with(|| (number(), generation));
                is_new
            };
            let mut beat = beat;
            if is_new {
                (beat.claims, beat.ended) = Default::default();
            }
            let generation = self.store.generation.load(Ordering::Relaxed);
            let is_other = generation != self.generation.load(Ordering::Relaxed);
            let beat = |contents: &mut StoreModel| contents.heartbeat(beat, is_other);
            let roster = Arc::clone(self).call(Some(BEAT_WAIT), beat).await?;
            self.generation.store(generation, Ordering::Relaxed);
            Ok(roster)
        }
        .boxed()
    }

    fn leave(&self, replica: String) -> BoxFuture<'_, Result<(), StoreError>> {
        let leave = move |contents: &mut StoreModel| contents.leave(&replica);
        Arc::clone(self).call(Some(WAIT), leave).boxed()
    }
}

impl ClaimStore for Arc<StoreLink> {
    fn claim(&self, claim: ClaimRequest) -> BoxFuture<'_, Result<ClaimReply, StoreError>> {
        async move {
            if self.store.is_full.load(Ordering::Relaxed) {
                return Err(StoreError::Full);
            }
            Arc::clone(self).call(Some(WAIT), |contents| contents.claim(claim)).await
        }
        .boxed()
    }

    fn end_sessions(
        &self,
        name: String,
        block: EndedBlock,
    ) -> BoxFuture<'_, Result<Option<StoredEntry>, StoreError>> {
        async move {
            if self.store.is_full.load(Ordering::Relaxed) {
                return Err(StoreError::Full);
            }
            let end = |contents: &mut StoreModel| Some(contents.end_sessions(name, block));
            Arc::clone(self).call(Some(WAIT), end).await
        }
        .boxed()
    }

    fn put_settings(
        &self,
        _session: String,
        _settings: String,
        _life: Duration,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        Arc::clone(self).call(Some(WAIT), |_| ()).boxed()
    }

    fn drop_settings(&self, _session: String) -> BoxFuture<'_, Result<(), StoreError>> {
        Arc::clone(self).call(Some(WAIT), |_| ()).boxed()
    }
}

impl LimitStore for Arc<StoreLink> {
    fn charge(&self, charge: Charge) -> BoxFuture<'static, Result<ChargeReply, StoreError>> {
        if self.store.is_full.load(Ordering::Relaxed) {
            return async { Err(StoreError::Full) }.boxed();
        }
        Arc::clone(self).call(None, move |contents| contents.charge(&charge)).boxed()
    }

    fn report(
        &self,
        replica: String,
        reports: Vec<BucketReport>,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        if self.store.is_full.load(Ordering::Relaxed) {
            return async { Err(StoreError::Full) }.boxed();
        }
        let report = move |contents: &mut StoreModel| contents.buckets.report(&replica, &reports);
        Arc::clone(self).call(Some(REPORT_WAIT), report).boxed()
    }
}

impl LeaseStore for Arc<StoreLink> {
    fn lease(&self, request: LeaseRequest) -> BoxFuture<'_, Result<LeaseReply, StoreError>> {
        let process = self.store.generation.load(Ordering::Relaxed);
        let lease = move |contents: &mut StoreModel| contents.lease(request, process);
        Arc::clone(self).call(Some(WAIT), lease).boxed()
    }
}

// === Replicas ===

/// Network between the replicas.
#[derive(Default)]
struct Network {
    /// Names of the replicas that run.
    running: HashSet<String>,
    /// Pairs of replicas that do not reach each other.
    split: HashSet<(String, String)>,
}

impl Network {
    fn pair(one: &str, other: &str) -> (String, String) {
        (one.min(other).to_owned(), one.max(other).to_owned())
    }

    fn reaches(&self, from: &str, to: &str) -> bool {
        self.running.contains(to) && !self.split.contains(&Self::pair(from, to))
    }
}

/// A replica with the sessions in its memory.
struct SimulatedReplica {
    name: String,
    started: Instant,
    fleet: Arc<Fleet>,
    link: Arc<StoreLink>,
    /// Sessions in its memory, without those that it has given up.
    memory: Mutex<BTreeMap<String, SessionIdentity>>,
    /// Sessions whose end it has not written into the store yet.
    unwritten: Mutex<Vec<SessionIdentity>>,
    /// Number of limited requests in progress on it.
    in_progress: AtomicU64,
    stop: CancellationToken,
}

impl SimulatedReplica {
    /// Runs the heartbeats, and writes ends into the store, until it is stopped.
    async fn run(self: Arc<Self>) {
        let moved = || {
            let mut memory = self.memory.lock();
            memory.retain(|_, session| !self.fleet.sessions().has_lost(session));
        };
        let write_ends = async {
            loop {
                sleep(Duration::from_millis(500)).await;
                let unwritten = self.unwritten.lock().clone();
                for session in unwritten {
                    let written = match session.number {
                        None => {
                            self.fleet.sessions().end_unnumbered(&session.key, session.until).await
                        }
                        Some(number) => {
                            let (name, block) = number.ended(session.until);
                            self.fleet.sessions().end(name, &block).await
                        }
                    };
                    if written.is_ok() {
                        self.unwritten.lock().retain(|it| it.key != session.key);
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = self.fleet.run(&self.stop, Condition::default, moved) => {}
            () = write_ends => {}
        }
    }
}

/// Result of a request for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Served {
    By(String),
    Ended,
    Refused,
}

/// World of one seed.
struct Simulation {
    dice: Dice,
    keys: SealingKeys,
    records: Records,
    store: Arc<SimulatedStore>,
    replicas: Vec<(Arc<SimulatedReplica>, JoinHandle<()>)>,
    started: usize,
    /// Processes of all replicas that were ever started.
    processes: Vec<InstanceId>,
    sessions: Vec<SessionIdentity>,
    /// Sessions with numbers that have ended, as long as the store or a replica knows it.
    ended: Vec<SessionIdentity>,
    network: Arc<Mutex<Network>>,
    /// Earlier contents of the store, and their time.
    earlier: Vec<(Instant, StoreModel)>,
    /// True if the store has gone back further than replicas remember requests that have ended.
    went_far_back: bool,
    /// Time of the last lie of the store, or of its last failure.
    lied: Instant,
    history: String,
    begin: Instant,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let keys = SealingKeys::random();
        Self {
            dice: Dice::new(seed),
            records: Records::new(&keys),
            keys,
            store: Arc::default(),
            replicas: Vec::new(),
            started: 0,
            processes: Vec::new(),
            sessions: Vec::new(),
            ended: Vec::new(),
            network: Arc::default(),
            earlier: Vec::new(),
            went_far_back: false,
            lied: Instant::now(),
            history: String::new(),
            begin: Instant::now(),
        }
    }

    fn note(&mut self, event: impl std::fmt::Display) {
        let at = self.begin.elapsed().as_secs_f64();
        self.history.push_str(&format!("{at:8.3} {event}\n"));
    }

    fn start_replica(&mut self) {
        let link = StoreLink::new(&self.store, self.dice.next());
        let name = format!("r{}", self.started);
        self.started += 1;
        let settings = FleetSettings::of_replica(&name);
        let keys = self.keys.of_another_process();
        let (network, from) = (Arc::clone(&self.network), name.clone());
        let probe: Probe = Box::new(move |_, to| {
            let reaches = network.lock().reaches(&from, &to.record.name);
            async move {
                sleep(Duration::from_millis(20)).await;
                reaches
            }
            .boxed()
        });
        self.network.lock().running.insert(name.clone());
        self.processes.push(keys.instance());
        let replica = Arc::new(SimulatedReplica {
            fleet: Fleet::with_store(keys, settings, None, Arc::clone(&link), probe),
            started: Instant::now(),
            link,
            memory: Mutex::default(),
            unwritten: Mutex::default(),
            in_progress: AtomicU64::new(0),
            stop: CancellationToken::new(),
            name,
        });
        self.note(format!("{} starts as {}", replica.name, replica.fleet.instance()));
        let task = tokio::task::spawn_local(Arc::clone(&replica).run());
        self.replicas.push((replica, task));
    }

    fn pick_replica(&mut self) -> Option<Arc<SimulatedReplica>> {
        let at = self.dice.below(self.replicas.len() as u64);
        let at = usize::try_from(at).unwrap_or_default();
        self.replicas.get(at).map(|(replica, _)| Arc::clone(replica))
    }

    fn open_session(&mut self) {
        let Some(replica) = self.pick_replica().filter(|it| !it.fleet.is_draining()) else {
            return;
        };
        let (opened_by, place) = (replica.fleet.instance(), self.sessions.len() as u64);
        let has_number = self.dice.percent(80);
        let session = SessionIdentity {
            key: format!("s{}", self.sessions.len()),
            number: has_number.then_some(SessionNumber { opened_by, place }),
            sealed_by: opened_by,
            until: SystemTime::now() + Duration::from_secs(3_600),
        };
        replica.memory.lock().insert(session.key.clone(), session.clone());
        self.note(format!("{} opens {}", replica.name, session.key));
        self.sessions.push(session);
    }

    fn end_session(&mut self) {
        let (Some(replica), Some(session)) = (self.pick_replica(), self.dice.pick(&self.sessions))
        else {
            return;
        };
        // Only the replica that has it ends it.
        if replica.memory.lock().remove(&session.key).is_some() {
            replica.unwritten.lock().push(session.clone());
            if session.number.is_some() {
                self.ended.push(session.clone());
            }
            self.note(format!("{} ends {}", replica.name, session.key));
        }
    }

    /// Has a replica say where a process is, and compares that with the truth.
    async fn find(&mut self) {
        let (Some(replica), Some(sought)) = (self.pick_replica(), self.dice.pick(&self.processes))
        else {
            return;
        };
        let found = replica.fleet.find(sought).await;
        self.note(format!("{} asked where {sought} is: {found:?}", replica.name));
        let living =
            self.replicas.iter().map(|(it, _)| it).find(|it| it.fleet.instance() == sought);
        let Some(living) = living.filter(|_| matches!(found, Whereabouts::Ended)) else { return };
        // A replica that does not reach the store for long counts as one that has ended.
        let clean = (*living.link.faulty.lock()).max(living.started).max(self.lied);
        let is_known = clean.elapsed() > STEADY + RECORD_TTL;
        assert!(!is_known, "{sought} has not ended\n{}", self.history);
    }

    /// Sends a request for a session to a replica, as a client does through a load balancer.
    async fn request(
        &mut self,
        replica: &Arc<SimulatedReplica>,
        session: &SessionIdentity,
    ) -> Served {
        let served = self.serve(replica, session, false).await;
        let served = served.unwrap_or(Served::Refused);
        self.note(format!("{} asked for {}: {served:?}", replica.name, session.key));
        served
    }

    /// Serves a request as the endpoint of a replica does; `None` if it was forwarded wrongly.
    fn serve<'a>(
        &'a mut self,
        replica: &'a Arc<SimulatedReplica>,
        session: &'a SessionIdentity,
        is_forwarded: bool,
    ) -> LocalBoxFuture<'a, Option<Served>> {
        let serve = async move {
            if replica.unwritten.lock().iter().any(|it| it.key == session.key) {
                return Some(Served::Ended);
            }
            let is_here = replica.memory.lock().contains_key(&session.key);
            if is_here {
                return Some(self.execute(replica, session));
            }
            for _ in 0..3 {
                match replica.fleet.sessions().find(session, || true).await {
                    SessionOwner::ThisReplica(_) => {
                        let (key, session) = (session.key.clone(), session.clone());
                        replica.memory.lock().insert(key, session.clone());
                        return Some(self.execute(replica, &session));
                    }
                    SessionOwner::Ended => return Some(Served::Ended),
                    SessionOwner::Undecided => return Some(Served::Refused),
                    SessionOwner::Other(_) if is_forwarded => return None,
                    SessionOwner::Other(other) => {
                        let to = self.replicas.iter().map(|(it, _)| Arc::clone(it));
                        let to = to.into_iter().find(|it| it.fleet.instance() == other.instance);
                        let reaches = |to: &str| self.network.lock().reaches(&replica.name, to);
                        match to.filter(|to| reaches(&to.name)) {
                            Some(to) => {
                                if let Some(served) = self.serve(&to, session, true).await {
                                    return Some(served);
                                }
                                replica.fleet.refresh().await;
                            }
                            None => {
                                replica.fleet.refresh().await;
                                let membership = &mut replica.fleet.shared.state().membership;
                                membership.set_unreachable(other.instance, Instant::now());
                            }
                        }
                    }
                }
            }
            Some(Served::Refused)
        };
        Box::pin(serve)
    }

    /// Executes a request, after a look at who has the session in truth.
    fn execute(&mut self, replica: &SimulatedReplica, session: &SessionIdentity) -> Served {
        let clean = *replica.link.faulty.lock();
        let clean = clean.max(self.lied);
        // A store that is full decides nothing.
        let is_full = self.store.is_full.load(Ordering::Relaxed);
        if !is_full && clean.elapsed() > STEADY + RECORD_TTL {
            let contents = self.store.contents.lock();
            let entry = contents.claims.entries.get(&session.key);
            let claim = entry.and_then(|it| self.records.open_claim(&session.key, &it.text));
            let end = contents.end_of(session.number).map(|(_, entry)| entry);
            let owner = match claim {
                _ if end.is_some() => None,
                Some(Claim::Ended) => None,
                Some(Claim::Owner(instance)) => Some(instance),
                None => Some(session.sealed_by),
            };
            let is_old = end.or(entry).is_none_or(|it| it.made.elapsed() > AGREED);
            let is_owner = owner == Some(replica.fleet.instance());
            drop(contents);
            if is_old && !is_owner {
                let owner = owner.map(|it| it.to_string());
                panic!("{} serves {} of {owner:?}\n{}", replica.name, session.key, self.history);
            }
        }
        Served::By(replica.name.clone())
    }

    /// Does something at random.
    async fn act(&mut self) {
        match self.dice.below(51) {
            0..=2 => self.open_session(),
            3 => self.end_session(),
            4 if self.replicas.len() > 1 => {
                let at = self.dice.below(self.replicas.len() as u64);
                let (replica, task) = self.replicas.remove(usize::try_from(at).unwrap_or_default());
                self.note(format!("{} is killed", replica.name));
                self.network.lock().running.remove(&replica.name);
                task.abort();
            }
            5 if self.replicas.len() < MAX_REPLICAS => self.start_replica(),
            6 => self.drain(),
            7 => self.finish_drains().await,
            8 => {
                let Some(replica) = self.pick_replica() else { return };
                let was_cut = replica.link.is_cut.fetch_xor(true, Ordering::Relaxed);
                self.note(format!("{} and the store: cut {}", replica.name, !was_cut));
            }
            9 => {
                let Some(replica) = self.pick_replica() else { return };
                let shares = [0, 0, 10, 50];
                let [late, lost] = [0; 2].map(|_| self.dice.pick(&shares).unwrap_or_default());
                replica.link.late.store(late, Ordering::Relaxed);
                replica.link.lost.store(lost, Ordering::Relaxed);
                self.note(format!("{}: {late} % late, {lost} % lost", replica.name));
            }
            10 => {
                let (Some(one), Some(other)) = (self.pick_replica(), self.pick_replica()) else {
                    return;
                };
                let pair = Network::pair(&one.name, &other.name);
                let was_split = self.network.lock().split.remove(&pair);
                if one.name != other.name && !was_split {
                    self.note(format!("{pair:?} split"));
                    self.network.lock().split.insert(pair);
                }
            }
            11 => self.break_store(),
            12..=16 => self.begin_limited().await,
            17 | 18 => self.end_limited(),
            19..=22 => self.find().await,
            _ => {
                let (Some(replica), Some(session)) =
                    (self.pick_replica(), self.dice.pick(&self.sessions))
                else {
                    return;
                };
                self.request(&replica, &session).await;
            }
        }
    }

    /// Drops the ends that only a replica knew that has gone, or a store that has lost them.
    fn drop_unknown_ends(&mut self) {
        let mut stored = EndedSessions::default();
        for (name, entry) in &self.store.contents.lock().ended.entries {
            let block = BlockName::parse(name).zip(EndedBlock::parse(&entry.text));
            let (name, block) = block.expect("a block");
            stored.merge(name, &block);
        }
        let replicas = &self.replicas;
        self.ended.retain(|session| {
            let number = session.number;
            number.is_some_and(|number| stored.contains(number))
                || replicas.iter().any(|(replica, _)| {
                    let mut unwritten = replica.unwritten.lock().clone().into_iter();
                    replica.fleet.shared.state().claims.is_ended(number)
                        || unwritten.any(|it| it.key == session.key)
                })
        });
    }

    /// Begins a request that a limit counts, if it is admitted.
    async fn begin_limited(&mut self) {
        let Some(replica) = self.pick_replica() else { return };
        let in_progress = || {
            let of = |it: &SimulatedReplica| it.in_progress.load(Ordering::Relaxed);
            self.replicas.iter().map(|(it, _)| of(it)).sum::<u64>()
        };
        let before = in_progress();
        let limit = SharedLimit { bucket: "b".to_owned(), rate: None, most: Some(MOST) };
        let names = [limit.bucket.clone()];
        replica.fleet.limits().take_slots(&names, true);
        let admission = replica.fleet.limits().charge(vec![limit]).await;
        self.note(format!("{} begins a request, {before} run: {admission:?}", replica.name));
        if admission != SharedAdmission::Admitted {
            replica.fleet.limits().return_slots(&names);
            return;
        }
        replica.in_progress.fetch_add(1, Ordering::Relaxed);
        // A replica that does not reach the store may have ended, and a store that lies may have
        // forgotten what runs.
        let clean = self.replicas.iter().map(|(it, _)| *it.link.faulty.lock());
        let clean = clean.fold(self.lied, Instant::max);
        let is_full = self.store.is_full.load(Ordering::Relaxed);
        let is_clean = !is_full && clean.elapsed() > RECORD_TTL + SETTLING;
        assert!(!is_clean || before < MOST as u64, "too many run\n{}", self.history);
    }

    fn end_limited(&mut self) {
        let Some(replica) = self.pick_replica() else { return };
        if replica.in_progress.load(Ordering::Relaxed) > 0 {
            replica.in_progress.fetch_sub(1, Ordering::Relaxed);
            replica.fleet.limits().return_slots(&["b".to_owned()]);
            self.note(format!("{} ends a request", replica.name));
        }
    }

    fn drain(&mut self) {
        let Some(replica) = self.pick_replica() else { return };
        if !replica.fleet.is_draining() {
            self.note(format!("{} drains", replica.name));
            replica.fleet.drain();
        }
    }

    /// Stops the replicas that drain.
    async fn finish_drains(&mut self) {
        let all = std::mem::take(&mut self.replicas);
        for (replica, task) in all {
            if replica.fleet.is_draining() {
                self.note(format!("{} stops", replica.name));
                self.network.lock().running.remove(&replica.name);
                replica.stop.cancel();
                task.await.expect("it does not panic");
            } else {
                self.replicas.push((replica, task));
            }
        }
    }

    fn break_store(&mut self) {
        self.lied = Instant::now();
        let what = self.dice.below(7);
        let close = |store: &SimulatedStore| store.generation.fetch_add(1, Ordering::Relaxed);
        match what {
            0 => drop(self.store.is_down.fetch_xor(true, Ordering::Relaxed)),
            1 => drop(self.store.is_full.fetch_xor(true, Ordering::Relaxed)),
            2 => {
                *self.store.contents.lock() = StoreModel::default();
                close(&self.store);
            }
            3 => self.earlier.push((Instant::now(), self.store.contents.lock().clone())),
            // With and without a new connection.
            4 | 5 => {
                let Some((at, earlier)) = self.dice.pick(&self.earlier) else { return };
                *self.store.contents.lock() = earlier;
                self.went_far_back |= at.elapsed() > REMEMBERED;
                if what == 4 {
                    close(&self.store);
                }
            }
            6 => self.store.contents.lock().claims.has_no_sum = true,
            _ => {}
        }
        self.note(format!("the store: {what}"));
    }

    /// Ends all faults, and waits until all replicas have noticed.
    async fn heal(&mut self) {
        self.note("healed");
        self.lied = Instant::now();
        self.store.is_down.store(false, Ordering::Relaxed);
        self.store.is_full.store(false, Ordering::Relaxed);
        self.network.lock().split.clear();
        for (replica, _) in &self.replicas {
            replica.link.is_cut.store(false, Ordering::Relaxed);
            replica.link.late.store(0, Ordering::Relaxed);
            replica.link.lost.store(0, Ordering::Relaxed);
        }
        self.finish_drains().await;
        self.drop_unknown_ends();
        if self.replicas.is_empty() {
            self.start_replica();
        }
        // The records of those that were killed expire, and the store has to be steady.
        sleep(STEADY + RECORD_TTL + AGREED).await;
    }

    /// Checks that all replicas agree on each session.
    async fn check(&mut self) {
        let all: Vec<_> = self.replicas.iter().map(|(replica, _)| Arc::clone(replica)).collect();
        for session in self.sessions.clone() {
            let mut served = Vec::new();
            for replica in &all {
                served.push(self.request(replica, &session).await);
            }
            let first = served[0].clone();
            let is_ended = self.ended.iter().any(|it| it.key == session.key);
            assert!(
                !is_ended || first == Served::Ended,
                "{} is served again: {served:?}\n{}",
                session.key,
                self.history
            );
            let is_agreed = first != Served::Refused && served.iter().all(|it| *it == first);
            assert!(is_agreed, "{}: {served:?}\n{}", session.key, self.history);
            for replica in &all {
                let has_it = replica.memory.lock().contains_key(&session.key);
                let owns_it = first == Served::By(replica.name.clone());
                assert!(
                    !has_it || owns_it,
                    "{} has {}\n{}",
                    replica.name,
                    session.key,
                    self.history
                );
            }
        }
        for replica in &all {
            {
                let state = replica.fleet.shared.state();
                let count = state.membership.replicas().len();
                assert_eq!(count, all.len(), "{}\n{}", replica.name, self.history);
                assert_eq!(state.claims.unclaimed_count(), 0, "{}\n{}", replica.name, self.history);
            }
            let known = self.store.contents.lock().buckets.slots("b", replica.fleet.instance());
            let count = replica.in_progress.load(Ordering::Relaxed);
            let count = usize::try_from(count).expect("few");
            let is_known = known == count || self.went_far_back && known > count;
            assert!(is_known, "{}: {known} of {count}\n{}", replica.name, self.history);
            for process in &self.processes {
                let found = replica.fleet.find(*process).await;
                let lives = all.iter().any(|it| it.fleet.instance() == *process);
                let is_right = match found {
                    Whereabouts::ThisReplica | Whereabouts::Other(_) => lives,
                    Whereabouts::Ended => !lives,
                    Whereabouts::Unreachable => false,
                };
                assert!(is_right, "{}: {found:?}\n{}", replica.name, self.history);
            }
        }
    }
}

/// Runs one seed.
async fn live(seed: u64) -> String {
    let mut world = Simulation::new(seed);
    for _ in 0..1 + world.dice.below(MAX_REPLICAS as u64) {
        world.start_replica();
    }
    for _ in 0..ROUNDS {
        for _ in 0..ACTIONS {
            world.act().await;
            world.drop_unknown_ends();
            let pause = world.dice.pick(&[0, 5, 50, 300, 1_000]).unwrap_or_default();
            sleep(Duration::from_millis(pause)).await;
        }
        world.heal().await;
        world.check().await;
        world.note("agreed");
    }
    for (replica, task) in world.replicas.drain(..) {
        replica.stop.cancel();
        task.await.expect("it does not panic");
    }
    world.history
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_has_many_sessions_to_claim_stays_in_the_fleet() {
    let local = tokio::task::LocalSet::new();
    local.run_until(claim_many()).await;
}

async fn claim_many() {
    let mut world = Simulation::new(1);
    world.start_replica();
    let fleet = Arc::clone(&world.replicas[0].0.fleet);
    let until = SystemTime::now() + Duration::from_secs(3_600);
    let sealed_by = SealingKeys::random().instance();
    for number in 0..1_000 {
        let key = format!("s{number}");
        let session = SessionIdentity { key, number: None, sealed_by, until };
        assert!(fleet.shared.state().claims.take_unclaimed(&session));
    }
    let left = || fleet.shared.state().claims.unclaimed_count();
    sleep(STEADY + HEARTBEAT * 2).await;
    assert!((1..1_000).contains(&left()), "{} are left: the store takes 20 ms for each", left());
    while left() > 0 {
        sleep(Duration::from_millis(100)).await;
        let contents = world.store.contents.lock();
        let (_, last) = contents.steady.expect("a record was written");
        assert!(last.elapsed() < MAX_GAP, "{} are left after {:?}", left(), last.elapsed());
    }
    assert_eq!(world.store.contents.lock().claims.entries.len(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn claims_that_a_store_has_swapped_are_made_anew() {
    let local = tokio::task::LocalSet::new();
    for is_killed in [false, true] {
        local.run_until(swap_claims(is_killed)).await;
    }
}

/// Swaps the claims of two sessions, whose owners are killed then, or not.
async fn swap_claims(is_killed: bool) {
    let mut world = Simulation::new(1);
    (0..3).for_each(|_| world.start_replica());
    sleep(STEADY + HEARTBEAT * 2).await;
    let sealed_by = SealingKeys::random().instance();
    let until = SystemTime::now() + Duration::from_secs(3_600);
    for at in 0..2 {
        let session = SessionIdentity { key: format!("s{at}"), number: None, sealed_by, until };
        let replica = Arc::clone(&world.replicas[at].0);
        assert_eq!(world.request(&replica, &session).await, Served::By(replica.name.clone()));
        world.sessions.push(session);
    }
    {
        let claims = &mut world.store.contents.lock().claims.entries;
        let swapped: Vec<_> = claims.values().rev().map(|claim| claim.text.clone()).collect();
        claims.values_mut().zip(swapped).for_each(|(claim, text)| claim.text = text);
    }
    if is_killed {
        world.replicas.drain(..2).for_each(|(_, task)| task.abort());
    }
    world.heal().await;
    world.check().await;
    let contents = world.store.contents.lock().clone();
    for (session, claim) in &contents.claims.entries {
        let claim = world.records.open_claim(session, &claim.text);
        assert!(matches!(claim, Some(Claim::Owner(_))), "{session}: {claim:?}");
    }
    for (replica, task) in world.replicas.drain(..) {
        replica.stop.cancel();
        task.await.expect("it does not panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_once_for_a_store_that_does_not_reply() {
    let local = tokio::task::LocalSet::new();
    local.run_until(wait_once()).await;
}

async fn wait_once() {
    let mut world = Simulation::new(1);
    world.start_replica();
    let replica = Arc::clone(&world.replicas[0].0);
    let (fleet, timeout) = (&replica.fleet, replica.fleet.shared.settings.store.timeout);
    for turn in 0..200 {
        replica.link.is_cut.store(false, Ordering::Relaxed);
        sleep(Duration::from_secs(3)).await;
        assert!(fleet.shared.state().membership.is_store_up(Instant::now()));
        // At any time of a heartbeat, and between two.
        sleep(Duration::from_millis(turn * 7)).await;
        replica.link.is_cut.store(true, Ordering::Relaxed);
        let session = SessionIdentity {
            key: format!("s{turn}"),
            number: None,
            sealed_by: SealingKeys::random().instance(),
            until: SystemTime::now() + Duration::from_secs(3_600),
        };
        let begin = Instant::now();
        // As a replica that stops, and after a refusal by the one that seemed to have a session.
        fleet.refresh().await;
        fleet.refresh().await;
        fleet.sessions().find(&session, || true).await;
        assert!(begin.elapsed() <= timeout, "{turn}: {:?}", begin.elapsed());
        fleet.sessions().drop_unclaimed(&session.key);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|it| it.parse().expect("a number"))
}

#[test]
fn replicas_agree_whatever_the_store_and_the_network_do() {
    let count = if std::env::var_os("WEIR_NIGHTLY").is_some() { NIGHTLY_SEEDS } else { SEEDS };
    let count = number("WEIR_SEEDS").unwrap_or(count);
    let alone = number("WEIR_SEED");
    let seeds = alone.map_or(0..count, |seed| seed..seed + 1);
    let mut failures = Vec::new();
    for seed in seeds {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        let lived = tokio::task::LocalSet::new()
            .block_on(&runtime, AssertUnwindSafe(live(seed)).catch_unwind());
        match lived {
            Err(_) => failures.push(seed),
            Ok(history) if alone.is_some() => eprintln!("{history}"),
            Ok(_) => {}
        }
        if failures.len() == MAX_FAILURES {
            break;
        }
    }
    assert_eq!(
        failures,
        Vec::<u64>::new(),
        "replay: WEIR_SEED=n cargo test -p weir-fleet --lib -- simulation"
    );
}

/// Longest wait for a reply that a request waits for.
const WAIT: Duration = Duration::from_millis(50);
/// Longest waits for the replies to a heartbeat and a report, as in the real store.
const BEAT_WAIT: Duration = Duration::from_millis(500);
const REPORT_WAIT: Duration = Duration::from_millis(501);
/// Most limited requests in progress.
const MOST: usize = 4;
/// Time after which each replica that has heartbeats knows a claim.
const AGREED: Duration = Duration::from_millis(2_500);
const MAX_REPLICAS: usize = 4;
const ROUNDS: usize = 2;
const ACTIONS: usize = 100;
const SEEDS: u64 = 100;
const NIGHTLY_SEEDS: u64 = 20_000;
/// Failed seeds after which no more are tried.
const MAX_FAILURES: usize = 10;
