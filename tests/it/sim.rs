//! A simulation of a whole gateway: a seed determines the servers, the clients, their actions and
//! all faults, on one thread and a paused clock.
//!
//! Servers crash, restart, stay away, change their lists, answer late, in pieces, twice, with
//! unknown ids or never, send input requests during calls or begin a task; every connection is cut
//! into odd chunks, is slow, or breaks; clients of both eras call, read, list, listen, answer, ask
//! about tasks, cancel and leave; the configuration changes again and again, and in some histories
//! the gateway stops in between. A [`Ledger`] records both ends' view of each request, and every
//! violation. The same seed gives the same history, or one of a few.
//!
//! `WEIR_SEED=n` replays one seed and prints its history (with `RUST_LOG=weir=debug` also Weir's
//! log), `WEIR_SEEDS=n` runs this many.

mod client;
mod dice;
mod fact;
mod ledger;
mod rules;
mod server;
mod weather;

use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use weir::app::ReloadOutcome;
use weir_mcp::kind::Kind;
use weir_mcp::revision::Revision;

use crate::by_night;
use crate::cell::{CLIENTS, UPSTREAMS};
use crate::tasks::BOTH;
use crate::upstream::{Cursors, Replies, Script};
use crate::world::{World, pass};
use client::{ClientAbilities, SimulatedClient};
pub(crate) use dice::{Dice, first_seed};
use ledger::Ledger;
use rules::{Edit, Rules};
use server::Server;
use weather::FaultyNetwork;

/// Number of seeds by day; nightly as many as fit into this time, up to a maximum.
const SEEDS: u64 = 100;
const NIGHTLY_SEEDS: u64 = 100_000;
const NIGHT: Duration = Duration::from_secs(30 * 60);

/// Number of seeds that run twice to compare every word, beside one in this many of all.
const TWICE: u64 = 8;
const AGAIN: u64 = 20;

/// One in this many repeats must have the same history. Mostly the first has: tokio wakes the
/// waiters of one `watch` channel in a random order, which only its unstable interface can seed,
/// and few histories show the difference.
const REPEATS: u64 = 64;

/// Number of threads; each runs its seeds on a runtime of one thread.
const THREADS: u64 = 2;

/// Number of seeds that may fail on a thread before it ends.
const FAILURES: usize = 4;

const NAMES: [&str; 3] = ["ash", "bay", "cay"];

/// Greatest number of edits of the configuration.
const EDITS: u64 = 5;

/// Time that a call waits for a modern client's answers, and a little more.
const SUSPENDED: Duration = Duration::from_secs(620);

/// Longer than everything that Weir does by itself: pauses, spaced notifications, lists read again.
const QUIET: Duration = Duration::from_secs(150);

/// Events that must happen somewhere in a run of all seeds, or the run shows nothing.
const EVENTS: [&str; 14] = [
    "reloads",
    "bad files",
    "servers gone",
    "servers come",
    "servers opened anew",
    "questions",
    "answers",
    "tasks",
    "own tasks",
    "shared tasks",
    "tasks of others",
    "news of tasks",
    "storms of cancels",
    "stops",
];

#[test]
fn what_is_promised_holds_in_every_history() {
    let (from, to, until) = seeds();
    let (next, begin) = (AtomicU64::new(from), Instant::now());
    let counts = Mutex::new(BTreeMap::<&str, u64>::new());
    let failures = std::thread::scope(|scope| {
        let run = || {
            let mut failures = Vec::new();
            while begin.elapsed() < until && failures.len() < FAILURES {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= to {
                    break;
                }
                let failure = run_seed(seed, &counts);
                // The failure is printed at once, since a nightly run is long.
                failure.iter().for_each(|it| eprintln!("{it}"));
                failures.extend(failure);
            }
            failures
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
        let failures = threads.into_iter().map(|thread| thread.join().expect("it catches all"));
        failures.flatten().collect::<Vec<_>>()
    });
    let (done, seconds) = (next.into_inner().min(to) - from, begin.elapsed().as_secs_f64());
    eprintln!("{done} seeds from {from} in {seconds:.1} s, {:.1}/s", done as f64 / seconds);
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
    let counts = counts.into_inner().expect("nobody panics here");
    eprintln!("{counts:?}");
    if done >= SEEDS {
        assert_eq!(EVENTS.iter().find(|it| !counts.contains_key(*it)), None, "{counts:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let mut reloads = 0;
    for seed in 0..TWICE {
        let report = |_| {
            let ledger = Ledger::new(seed);
            live(seed, &ledger);
            (ledger.history(), ledger.counts())
        };
        let [(one, counts), (other, _)] = [(); 2].map(report);
        reloads += counts.get("reloads").copied().unwrap_or_default();
        let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.lines().count(), other.lines().count(), "seed {seed}");
    }
    assert!(reloads > 0);
}

/// The first seed, the end of their range, and the time for them.
fn seeds() -> (u64, u64, Duration) {
    let number = |name: &str| std::env::var(name).ok().map(|it| it.parse().expect("a number"));
    if let Some(seed) = number("WEIR_SEED") {
        return (seed, seed + 1, Duration::MAX);
    }
    let first = first_seed();
    let (count, time) = match number("WEIR_SEEDS") {
        Some(count) => (count, Duration::MAX),
        None if by_night() => (NIGHTLY_SEEDS, NIGHT),
        None => (SEEDS, Duration::MAX),
    };
    (first, first + count, time)
}

/// Runs a seed, and some seeds twice. Returns the violations, with the command that replays them.
fn run_seed(seed: u64, counts: &Mutex<BTreeMap<&'static str, u64>>) -> Option<String> {
    let is_alone = std::env::var_os("WEIR_SEED").is_some();
    if is_alone {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).without_time().try_init();
    }
    let ledger = Ledger::new(seed);
    let lived = catch_unwind(AssertUnwindSafe(|| live(seed, &ledger)));
    if is_alone {
        eprintln!("{}", ledger.history());
    }
    let report = |what: String| {
        format!("seed {seed}: {what}\nreplay: WEIR_SEED={seed} cargo test --test it -- sim")
    };
    if let Err(panic) = lived {
        return Some(report(text_of(&*panic)));
    }
    for (what, count) in ledger.counts() {
        *counts.lock().expect("nobody panics here").entry(what).or_default() += count;
    }
    let wrong = ledger.wrong();
    if !wrong.is_empty() {
        return Some(report(wrong.join("\n")));
    }
    if is_alone || seed.is_multiple_of(AGAIN) {
        let mut differs = None;
        for _ in 0..REPEATS {
            let again = Ledger::new(seed);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| live(seed, &again))) {
                return Some(report(format!("once more: {}", text_of(&*panic))));
            }
            if ledger.hash() == again.hash() {
                return None;
            }
            differs.get_or_insert_with(|| difference(&ledger.history(), &again.history()));
        }
        return differs.map(report);
    }
    None
}

/// First difference of two histories.
fn difference(one: &str, other: &str) -> String {
    let at = one.lines().zip(other.lines()).position(|(one, other)| one != other);
    let at = at.unwrap_or(one.lines().count().min(other.lines().count()));
    let part =
        |text: &str| text.lines().skip(at.saturating_sub(3)).take(6).collect::<Vec<_>>().join("\n");
    format!("{REPEATS} histories, each another:\n{}\n --- and\n{}", part(one), part(other))
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic".into())
}

/// Runs the history of a seed.
fn live(seed: u64, ledger: &Arc<Ledger>) {
    weir_base::time::jitter::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        // `World::reload_at_once` needs blocking tasks to run one after the other.
        .max_blocking_threads(1)
        .build()
        .expect("a runtime");
    runtime.block_on(history(seed, ledger));
}

async fn history(seed: u64, ledger: &Arc<Ledger>) {
    let mut dice = Dice::new(seed);
    let tasks = TaskTracker::new();
    let count = 1 + dice.below(NAMES.len() as u64) as usize;
    let scripts: Vec<_> =
        NAMES[..count].iter().map(|name| (*name, script(name, &mut dice))).collect();
    let weather = FaultyNetwork::new(dice.fork(), tasks.clone());
    ledger.write(Rules::new(&NAMES[..count]));
    ledger.mark_applied();
    let text = ledger.rules().text();
    let world = World::open_wrapped(scripts, &text, tasks.clone(), weather.wrapper());
    let server = |name: &&'static str| Server::new(name, world.upstream(name), ledger, &tasks);
    let servers: Vec<_> = NAMES[..count].iter().map(server).collect();
    let mut serving = Vec::new();
    for server in &servers {
        for work in server.serve() {
            serving.push(AbortOnDropHandle::new(tasks.spawn(work)));
        }
    }
    world.listed().await;

    let mut people = Vec::new();
    for number in 0..2 + dice.below(3) {
        let side = CLIENTS[dice.below(CLIENTS.len() as u64) as usize];
        let role = if dice.one_in(2) { "guest" } else { "staff" };
        let can = ClientAbilities::random(&mut dice);
        let client = world.client_as_declaring(role, side, &can.declared(side)).await;
        people.push(SimulatedClient::new(number, role, client, can, &servers, ledger, dice.fork()));
    }
    if dice.one_in(2) {
        weather.storm();
        ledger.storms();
    }
    let stops_after = dice.one_in(3).then(|| Duration::from_millis(500 + dice.below(8_000)));
    let over = CancellationToken::new();
    let attending = join_all(people.iter().map(|person| person.attend(&over)));
    let working = async {
        let stop = async {
            if let Some(after) = stops_after {
                pass(after).await;
                ledger.record("gateway", "stops");
                ledger.count("stops");
                ledger.stops();
                world.stop_downstream();
            }
        };
        let lives = join_all(people.iter().map(SimulatedClient::live));
        let fates = join_all(servers.iter().map(|server| server.run_faults(dice.fork())));
        tokio::join!(lives, fates, edit(&world, ledger, dice.fork()), stop);
        weather.calm();
        if stops_after.is_none() {
            pass(QUIET).await;
            join_all(people.iter().map(SimulatedClient::look_around)).await;
        }
        over.cancel();
    };
    tokio::join!(attending, working);
    for person in &people {
        person.check();
    }
    drop(people);
    world.stop_downstream();
    world.drained().await;
    // The server notices an abandoned request at the latest with the end of its connection, and
    // calls that wait for answers expire.
    pass(if ledger.has_waiting_calls() { SUSPENDED } else { Duration::from_secs(20) }).await;
    for server in &servers {
        server.check();
    }
    drop((servers, serving));
    world.close().await;
}

/// Edits the configuration repeatedly, now and then with a mistake.
async fn edit(world: &World, ledger: &Ledger, mut dice: Dice) {
    for _ in 0..dice.below(EDITS) {
        pass(Duration::from_millis(200 + dice.below(2_000))).await;
        if ledger.has_stopped() {
            return;
        }
        let (edit, before) = (Edit::random(&mut dice), ledger.rules());
        let next = before.edited(edit, &mut dice);
        let text = if edit == Edit::Bad { next.with_mistake() } else { next.text() };
        ledger.record("gateway", format!("reads {next:?}, {edit:?}"));
        ledger.write(next.clone());
        let replaced = || ledger.mark_applied();
        let outcome = world.reload_at_once(&next.names(), &text, replaced).await;
        let expected = match &outcome {
            ReloadOutcome::Refused(_) => edit == Edit::Bad,
            ReloadOutcome::Unchanged => next == before && edit != Edit::Bad,
            ReloadOutcome::Applied { .. } => next != before,
            ReloadOutcome::Failed(_) => ledger.has_stopped(),
        };
        if !expected {
            ledger.object(format!("{edit:?} of {before:?} to {next:?}: {outcome:?}"));
        }
        ledger.count(match (&outcome, next.names().len().cmp(&before.names().len())) {
            (ReloadOutcome::Refused(_), _) => "bad files",
            (ReloadOutcome::Applied { .. }, Less) => "servers gone",
            (ReloadOutcome::Applied { .. }, Greater) => "servers come",
            (ReloadOutcome::Applied { .. }, Equal) if edit == Edit::Settings => {
                "servers opened anew"
            }
            _ => "reloads",
        });
    }
}

fn script(name: &str, dice: &mut Dice) -> Script {
    let side = UPSTREAMS[dice.below(UPSTREAMS.len() as u64) as usize];
    let replies = if dice.one_in(2) { Replies::Events } else { Replies::Json };
    let cursors = if dice.one_in(2) { Cursors::Offsets } else { Cursors::Odd("") };
    let script = Script::new(side).replies(replies).cursors(cursors);
    let script = script.paged(1 + dice.below(5) as usize);
    // The oldest revision has no tasks.
    let has_tasks = side.revision >= Revision::NEWEST_LEGACY;
    let script = if has_tasks { script.capabilities(BOTH) } else { script };
    Kind::ALL.into_iter().fold(script, |script, kind| {
        let names = server::first_names(kind, name);
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        script.items(kind, &names)
    })
}
