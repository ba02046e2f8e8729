//! Limits of several replicas over a store whose replies are late, lost, or overtake each other,
//! and that loses what it had.
//!
//! What is shown: each request that is admitted is charged once; a limit is not exceeded; and the
//! store knows the requests in progress as soon as it is back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::simulation::{SimulatedStore, StoreLink, answered};
use crate::shared_limits::MAX_LATE;
use crate::shared_limits::limit_reports::LimitReports;
use crate::store::{Charge, HEARTBEAT, RECORD_TTL, SharedAdmission, SharedLimit};
use crate::testing::dice::Dice;
use crate::testing::store_model::StoreModel;
use crate::{Condition, Fleet, FleetSettings, OnStoreDown};
use weir_base::secrets::sealing::SealingKeys;
use weir_base::time::rate_limit::RequestRate;

const HOUR: Duration = Duration::from_secs(3_600);

/// Limit of one request per hour, with so many at once.
fn rate(burst: u32) -> SharedLimit {
    let rate = Some(RequestRate::new(1, HOUR, burst));
    SharedLimit { bucket: "rate".to_owned(), rate, most: None }
}

/// Limit of so many requests in progress.
fn slots(most: usize) -> SharedLimit {
    SharedLimit { bucket: "slots".to_owned(), rate: None, most: Some(most) }
}

/// Names of the buckets that count requests in progress.
fn names(limits: &[SharedLimit]) -> Vec<String> {
    let limits = limits.iter().filter(|limit| limit.most.is_some());
    limits.map(|limit| limit.bucket.clone()).collect()
}

/// Replicas with their links to the store.
struct World {
    store: Arc<SimulatedStore>,
    replicas: Vec<(Arc<Fleet>, Arc<StoreLink>)>,
    stop: CancellationToken,
}

impl World {
    fn new(handling: OnStoreDown, seed: u64) -> Self {
        let store: Arc<SimulatedStore> = Arc::default();
        let keys = SealingKeys::random();
        let replicas = (0..3).map(|at| {
            let link = StoreLink::new(&store, seed * 10 + at);
            let mut settings = FleetSettings::of_replica(&format!("r{at}"));
            settings.on_store_down = handling;
            let keys = keys.of_another_process();
            let store = Arc::clone(&link);
            (Fleet::with_store(keys, settings, None, store, answered()), link)
        });
        Self { replicas: replicas.collect(), store, stop: CancellationToken::new() }
    }

    /// Starts the heartbeats, and waits until the replicas know each other.
    async fn start(handling: OnStoreDown, seed: u64) -> Self {
        let world = Self::new(handling, seed);
        world.run();
        sleep(HEARTBEAT * 3).await;
        world
    }

    /// Runs the replicas, until the world stops.
    fn run(&self) {
        for (fleet, _) in &self.replicas {
            let (fleet, stop) = (Arc::clone(fleet), self.stop.clone());
            tokio::task::spawn_local(async move {
                fleet.run(&stop, Condition::default, || {}).await;
            });
        }
    }

    /// Begins a request on a replica; true if it is admitted.
    async fn begin(&self, at: usize, limits: &[SharedLimit]) -> bool {
        let (limiter, names) = (self.replicas[at].0.limits(), names(limits));
        limiter.take_slots(&names, true);
        let is_admitted = limiter.charge(limits.to_vec()).await == SharedAdmission::Admitted;
        if !is_admitted {
            limiter.return_slots(&names);
        }
        is_admitted
    }

    /// Begins this number of requests on each replica, and returns how many are admitted.
    async fn begin_on_all(&self, count: usize, limits: &[SharedLimit]) -> usize {
        let mut admitted = 0;
        for number in 0..3 * count {
            admitted += usize::from(self.begin(number % 3, limits).await);
        }
        admitted
    }

    /// Number of requests that the store has charged.
    fn charged(&self) -> u64 {
        let taken = self.store.contents.lock().buckets.taken("rate");
        // No history takes half an hour.
        (taken + HOUR / 2).as_secs() / HOUR.as_secs()
    }

    /// Number of requests in progress on the replicas, as the store knows it.
    fn known_slots(&self) -> usize {
        let contents = self.store.contents.lock();
        self.replicas
            .iter()
            .map(|(fleet, _)| contents.buckets.slots("slots", fleet.instance()))
            .sum()
    }

    /// Replaces what the store has, and ends all connections.
    fn replace(&self, contents: StoreModel) {
        *self.store.contents.lock() = contents;
        self.store.generation.fetch_add(1, Ordering::Relaxed);
    }

    fn set_faults(&self, late: u64, lost: u64) {
        for (_, link) in &self.replicas {
            link.late.store(late, Ordering::Relaxed);
            link.lost.store(lost, Ordering::Relaxed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_earlier_count_of_requests_in_progress_never_replaces_a_later_one() {
    // A call ends and another one begins at once; their messages arrive in any order.
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (mut reports, mut contents) = (LimitReports::default(), StoreModel::default());
        let (limits, now) = ([slots(9)], Instant::now());
        let charge = |reports: &LimitReports| Charge {
            replica: "a".to_owned(),
            share: 1,
            age: Duration::ZERO,
            restores: false,
            buckets: reports.charges(&limits, now),
        };
        reports.take_slots(&names(&limits), false);
        let first = charge(&reports);
        reports.return_slots(&names(&limits));
        let ended = reports.take_reports(now);
        reports.take_slots(&names(&limits), false);
        let second = charge(&reports);
        for message in order {
            let buckets = &mut contents.buckets;
            match message {
                0 => drop(buckets.charge(&first, false, |_| true)),
                1 => buckets.report("a", &ended),
                _ => drop(buckets.charge(&second, false, |_| true)),
            }
        }
        assert_eq!(contents.buckets.count("slots"), 1, "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_decides_for_its_own_request_only_and_is_read_when_it_comes() {
    let test = async {
        for handling in [OnStoreDown::Refuse, OnStoreDown::Share] {
            let world = World::start(handling, 1).await;
            let (_, link) = &world.replicas[0];
            link.late.store(100, Ordering::Relaxed);
            let limit = [rate(9)];
            let late = world.begin(0, &limit);
            let others = async {
                sleep(Duration::from_millis(1)).await;
                link.late.store(0, Ordering::Relaxed);
                let mut admitted = 0;
                for _ in 0..5 {
                    admitted += usize::from(world.begin(0, &limit).await);
                    sleep(Duration::from_millis(20)).await;
                }
                admitted
            };
            let (is_admitted, others) = tokio::join!(late, others);
            assert_eq!((is_admitted, others), (handling == OnStoreDown::Share, 5));
            // Nothing is charged twice, and what was refused is given back.
            sleep(HEARTBEAT * 3).await;
            assert_eq!(world.charged(), 5 + u64::from(is_admitted), "{handling:?}");
            world.stop.cancel();
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn requests_in_progress_are_reported_as_soon_as_replica_and_store_are_back() {
    let test = async {
        for what in ["away", "empty", "cut", "forgotten"] {
            let world = World::start(OnStoreDown::Refuse, 1).await;
            let limit = [slots(4)];
            for _ in 0..3 {
                assert!(world.begin(0, &limit).await);
            }
            assert!(world.begin(1, &limit).await && !world.begin(2, &limit).await);
            let (fleet, link) = &world.replicas[0];
            match what {
                "away" => {
                    world.store.is_down.store(true, Ordering::Relaxed);
                    sleep(RECORD_TTL + HEARTBEAT * 2).await;
                    world.store.is_down.store(false, Ordering::Relaxed);
                }
                "empty" => world.replace(StoreModel::default()),
                "cut" => {
                    link.is_cut.store(true, Ordering::Relaxed);
                    sleep(RECORD_TTL + HEARTBEAT * 2).await;
                    // It may have ended, and its requests with it.
                    assert!(world.begin(2, &limit).await);
                    world.replicas[2].0.limits().return_slots(&names(&limit));
                    link.is_cut.store(false, Ordering::Relaxed);
                }
                _ => world.store.contents.lock().buckets.forget("slots", fleet.instance()),
            }
            // In the first moment a store that is empty knows of no requests of others.
            let pause = if what == "away" { 10 } else { 2_500 };
            for _ in 0..40 {
                sleep(Duration::from_millis(pause)).await;
                assert!(!world.begin(2, &limit).await, "{what}");
            }
            sleep(HEARTBEAT * 3).await;
            assert_eq!(world.known_slots(), 4, "{what}");
            world.stop.cancel();
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_lost_the_last_charges_gets_them_again() {
    let test = async {
        for (handling, is_empty) in [
            (OnStoreDown::Share, true),
            (OnStoreDown::Share, false),
            (OnStoreDown::Refuse, true),
            (OnStoreDown::Refuse, false),
        ] {
            let world = World::start(handling, 1).await;
            let limit = [rate(30)];
            assert_eq!(world.begin_on_all(2, &limit).await, 6);
            let earlier = world.store.contents.lock().clone();
            assert_eq!(world.begin_on_all(30, &limit).await, 24);
            world.replace(if is_empty { StoreModel::default() } else { earlier });
            for _ in 0..20 {
                let more = world.begin_on_all(5, &limit).await;
                assert_eq!(more, 0, "{handling:?}, {is_empty}");
                sleep(Duration::from_millis(200)).await;
            }
            assert_eq!(world.charged(), 30);
            world.stop.cancel();
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_admitted_without_the_store_is_charged_when_it_is_back() {
    let test = async {
        let world = World::start(OnStoreDown::Share, 1).await;
        let limit = [rate(30)];
        assert_eq!(world.begin_on_all(4, &limit).await, 12);
        world.store.is_down.store(true, Ordering::Relaxed);
        sleep(HEARTBEAT * 5).await;
        // Each knows of the charges before its own last one.
        let alone = world.begin_on_all(30, &limit).await;
        assert!((16..=20).contains(&alone), "its share of 18: {alone}");
        world.store.is_down.store(false, Ordering::Relaxed);
        sleep(HEARTBEAT * 5).await;
        assert_eq!(world.charged(), 12 + alone as u64);
        world.stop.cancel();
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_has_never_known_the_others_admits_its_share() {
    let world = World::new(OnStoreDown::Share, 1);
    for (burst, admitted) in [(90, 90), (91, 90), (1, 3)] {
        let limit = SharedLimit { bucket: burst.to_string(), ..rate(burst) };
        assert_eq!(world.begin_on_all(100, &[limit]).await, admitted, "{burst}");
    }
    let limit = SharedLimit { bucket: "one".to_owned(), ..slots(7) };
    assert_eq!(world.begin_on_all(9, &[limit]).await, 6);
}

#[tokio::test(start_paused = true)]
async fn requests_that_have_ended_count_no_more_in_a_store_with_older_contents() {
    let test = async {
        let world = World::start(OnStoreDown::Refuse, 1).await;
        let limit = [slots(1)];
        assert!(world.begin(0, &limit).await);
        let earlier = world.store.contents.lock().clone();
        world.replicas[0].0.limits().return_slots(&names(&limit));
        sleep(HEARTBEAT * 3).await;
        assert_eq!(world.known_slots(), 0);
        world.replace(earlier);
        sleep(HEARTBEAT * 3).await;
        assert_eq!(world.known_slots(), 0);
        assert!(world.begin(1, &limit).await);
        world.stop.cancel();
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_bounded_number_of_late_replies_is_waited_for_and_the_rest_may_be_charged_twice() {
    let test = async {
        let world = World::start(OnStoreDown::Share, 1).await;
        let link = &world.replicas[0].1;
        link.late.store(100, Ordering::Relaxed);
        let (count, limit) = (3 * MAX_LATE, [rate(1_000_000)]);
        let requests = join_all((0..count).map(|_| world.begin(0, &limit)));
        let recovery = async {
            sleep(Duration::from_millis(1)).await;
            link.late.store(0, Ordering::Relaxed);
        };
        let (admitted, ()) = tokio::join!(requests, recovery);
        assert!(admitted.into_iter().all(|is_admitted| is_admitted));
        sleep(HEARTBEAT * 6).await;
        let charged_twice = world.charged() as usize - count;
        assert!((1..=2 * MAX_LATE).contains(&charged_twice), "{charged_twice}");
        world.stop.cancel();
    };
    LocalSet::new().run_until(test).await;
}

/// Requests of one history, as they were in truth.
#[derive(Default)]
struct Truth {
    admitted: Cell<usize>,
    in_progress: Cell<usize>,
    /// Most requests that were in progress at a time.
    most: Cell<usize>,
    dice: RefCell<Option<Dice>>,
}

impl Truth {
    fn below(&self, end: u64) -> u64 {
        self.dice.borrow_mut().as_mut().expect("it was set").below(end)
    }
}

/// Makes requests on a replica, one after the other.
async fn make_requests(world: &World, at: usize, limits: &[SharedLimit], truth: &Truth) {
    for _ in 0..REQUESTS {
        sleep(Duration::from_millis(truth.below(150))).await;
        if world.begin(at, limits).await {
            truth.admitted.set(truth.admitted.get() + 1);
            truth.in_progress.set(truth.in_progress.get() + 1);
            truth.most.set(truth.most.get().max(truth.in_progress.get()));
            sleep(Duration::from_millis(truth.below(100))).await;
            truth.in_progress.set(truth.in_progress.get() - 1);
            world.replicas[at].0.limits().return_slots(&names(limits));
        }
    }
}

/// Runs one history.
async fn live(seed: u64) {
    let handling = if seed.is_multiple_of(2) { OnStoreDown::Refuse } else { OnStoreDown::Share };
    let world = World::start(handling, seed).await;
    let truth = Rc::new(Truth::default());
    let mut dice = Dice::new(seed);
    let late = dice.pick(&[1, 5, 20, 60]).expect("some");
    let lost = dice.pick(&[0, 0, 2, 10]).expect("some");
    let [is_short, has_slots] = [0; 2].map(|_| dice.percent(50));
    if is_short {
        for (_, link) in &world.replicas {
            link.latest.store(100, Ordering::Relaxed);
        }
    }
    *truth.dice.borrow_mut() = Some(dice);
    world.set_faults(late, lost);
    let limits = [rate(BURST), slots(MOST)];
    let limits = if has_slots { &limits[..] } else { &limits[..1] };
    join_all((0..9).map(|number| make_requests(&world, number % 3, limits, &truth))).await;
    world.set_faults(0, 0);
    sleep(HEARTBEAT * 6).await;
    let what = format!("seed {seed}: {handling:?}, {late} % late, {lost} % lost, {is_short}");
    let (admitted, charged) = (truth.admitted.get(), world.charged());
    let failed: u64 = world.replicas.iter().map(|(fleet, _)| fleet.status().store_errors).sum();
    // A request whose reply is lost with its connection may be charged twice.
    match lost {
        0 => assert_eq!(charged, admitted as u64, "{what}"),
        _ => assert!((0..=failed).contains(&(charged - admitted as u64)), "{what}: {charged}"),
    }
    assert_eq!(world.known_slots(), 0, "{what}");
    if handling == OnStoreDown::Refuse || is_short && lost == 0 {
        assert!(admitted <= BURST as usize, "{what}: {admitted}");
        let most = if has_slots { MOST } else { usize::MAX };
        assert!(truth.most.get() <= most, "{what}: {} at once", truth.most.get());
    }
    if handling == OnStoreDown::Refuse {
        // Nothing is left charged for a request that was refused.
        let rest = world.begin_on_all(BURST as usize, &limits[..1]).await;
        assert!(lost > 0 || admitted + rest == BURST as usize, "{what}: {admitted} and {rest}");
    } else {
        // Others may have gone on with the store while a replica was without it.
        let most = BURST as usize + usize::try_from(failed).expect("few");
        assert!(admitted <= most, "{what}: {admitted}");
    }
    world.stop.cancel();
}

/// Runs one history of replicas that start without the store, and reach it one after the other.
async fn start_alone(seed: u64) {
    let world = World::new(OnStoreDown::Share, seed);
    world.replicas.iter().for_each(|(_, link)| link.is_cut.store(true, Ordering::Relaxed));
    world.run();
    let truth = Rc::new(Truth::default());
    let mut dice = Dice::new(seed);
    let times = [0; 3].map(|_| Duration::from_millis(dice.below(8_000)));
    *truth.dice.borrow_mut() = Some(dice);
    let limits = [rate(BURST)];
    let joining = join_all(world.replicas.iter().zip(times).map(|((_, link), time)| async move {
        sleep(time).await;
        link.is_cut.store(false, Ordering::Relaxed);
    }));
    let requests =
        join_all((0..9).map(|number| make_requests(&world, number % 3, &limits, &truth)));
    tokio::join!(joining, requests);
    sleep(HEARTBEAT * 8).await;
    let (admitted, charged) = (truth.admitted.get(), world.charged());
    assert_eq!(charged, admitted as u64, "seed {seed}, after {times:?}");
    // One that is still alone admits its share, of which those with the store do not know.
    let most = (BURST + 2 * (BURST / 3)) as usize;
    assert!(admitted <= most, "seed {seed}, after {times:?}: {admitted} of {most}");
    world.stop.cancel();
}

#[test]
fn replicas_that_start_without_the_store_admit_no_more_than_their_shares_until_they_reach_it() {
    run_histories(start_alone);
}

#[test]
fn limits_hold_however_late_the_store_replies() {
    run_histories(live);
}

fn run_histories<F: Future<Output = ()>>(history: impl Fn(u64) -> F) {
    let count = if std::env::var_os("WEIR_NIGHTLY").is_some() { NIGHTLY_SEEDS } else { SEEDS };
    let number = |name| std::env::var(name).ok().map(|it| it.parse().expect("a number"));
    let alone: Option<u64> = number("WEIR_SEED");
    let seeds = alone.map_or(0..number("WEIR_SEEDS").unwrap_or(count), |seed| seed..seed + 1);
    for seed in seeds {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        LocalSet::new().block_on(&runtime, history(seed));
    }
}

/// Most requests at once.
const BURST: u32 = 40;
/// Most requests in progress.
const MOST: usize = 3;
/// Requests of one client.
const REQUESTS: usize = 15;
const SEEDS: u64 = 100;
const NIGHTLY_SEEDS: u64 = 20_000;
