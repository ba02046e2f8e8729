//! A simulation of the whole house: a seed makes the servers, the clients, what they do and what befalls
//! them, on one thread and a paused clock.
//!
//! Servers crash, restart, stay away, change their lists, answer late, in pieces, twice, to nobody or
//! never, ask for something in mid-call or begin a task; every connection is cut into odd chunks, is slow, or
//! breaks; clients of both eras call, read, list, listen, answer, ask about tasks, cancel and leave; the
//! configuration changes again and again, and in some histories the doors close in the middle of it. A
//! [`Ledger`] keeps of each request what both its ends saw, and what must not be. The same seed gives the same
//! history, or one of a few.
//!
//! `WEIR_SEED=n` replays one seed and prints its history (and with `RUST_LOG=weir=debug` what Weir says to it),
//! `WEIR_SEEDS=n` runs so many.

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
use weir::app::Outcome;
use weir::mcp::kind::Kind;
use weir::mcp::revision::Revision;

use crate::cell::{CLIENTS, UPSTREAMS};
use crate::tasks::BOTH;
use crate::upstream::{Cursors, Replies, Script};
use crate::world::{World, pass};
use client::{Can, Person};
pub(crate) use dice::Dice;
use ledger::Ledger;
use rules::{Edit, Rules};
use server::Server;
use weather::Weather;

/// Seeds by day, and by night as many as fit into this time, at most so many.
const SEEDS: u64 = 200;
const NIGHTLY_SEEDS: u64 = 100_000;
const NIGHT: Duration = Duration::from_secs(30 * 60);

/// So many seeds are run twice to compare every word, beside one in so many of all.
const TWICE: u64 = 8;
const AGAIN: u64 = 20;

/// In one of so many repeats a history has to be the same. Mostly the first is: those who wait for the same `watch` channel
/// are woken by tokio in an order of chance, which only its unstable interface can seed, and few histories show it.
const REPEATS: u64 = 16;

/// Seeds run on so many threads, each on one.
const THREADS: u64 = 2;

/// So many seeds may fail on a thread before it ends.
const FAILURES: usize = 4;

const NAMES: [&str; 3] = ["ash", "bay", "cay"];

/// How many times the configuration is edited at the most.
const EDITS: u64 = 5;

/// How long a call waits for the answers of a modern client, and a while.
const PARKED: Duration = Duration::from_secs(620);

/// Long enough for everything that Weir does by itself: pauses, spaced notices, lists read again.
const QUIET: Duration = Duration::from_secs(150);

/// What has to have happened somewhere in a run of all seeds, so that they show something.
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
                let failure = visit(seed, &counts);
                // At once: a night is long.
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
    eprintln!("{done} seeds in {seconds:.1} s, {:.1}/s", done as f64 / seconds);
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
        let told = |_| {
            let ledger = Ledger::new(seed);
            live(seed, &ledger);
            (ledger.history(), ledger.counts())
        };
        let [(one, counts), (other, _)] = [(); 2].map(told);
        reloads += counts.get("reloads").copied().unwrap_or_default();
        let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.lines().count(), other.lines().count(), "seed {seed}");
    }
    assert!(reloads > 0);
}

/// The first seed, the one behind the last, and how long there is time for them.
fn seeds() -> (u64, u64, Duration) {
    let number = |name: &str| std::env::var(name).ok().map(|it| it.parse().expect("a number"));
    if let Some(seed) = number("WEIR_SEED") {
        return (seed, seed + 1, Duration::MAX);
    }
    let is_night = std::env::var_os("WEIR_NIGHTLY").is_some() && cfg!(not(debug_assertions));
    match number("WEIR_SEEDS") {
        Some(count) => (0, count, Duration::MAX),
        None if is_night => (0, NIGHTLY_SEEDS, NIGHT),
        None => (0, SEEDS, Duration::MAX),
    }
}

/// Runs a seed, some of them twice. What was wrong, with how to see it again.
fn visit(seed: u64, counts: &Mutex<BTreeMap<&'static str, u64>>) -> Option<String> {
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
    let told = |what: String| {
        format!("seed {seed}: {what}\nreplay: WEIR_SEED={seed} cargo test --test it -- sim")
    };
    if let Err(panic) = lived {
        return Some(told(text_of(&*panic)));
    }
    for (what, count) in ledger.counts() {
        *counts.lock().expect("nobody panics here").entry(what).or_default() += count;
    }
    let wrong = ledger.wrong();
    if !wrong.is_empty() {
        return Some(told(wrong.join("\n")));
    }
    if is_alone || seed.is_multiple_of(AGAIN) {
        let mut differs = None;
        for _ in 0..REPEATS {
            let again = Ledger::new(seed);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| live(seed, &again))) {
                return Some(told(format!("once more: {}", text_of(&*panic))));
            }
            if ledger.hash() == again.hash() {
                return None;
            }
            differs.get_or_insert_with(|| difference(&ledger.history(), &again.history()));
        }
        return differs.map(told);
    }
    None
}

/// Where two histories part.
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

/// What a seed makes.
fn live(seed: u64, ledger: &Arc<Ledger>) {
    weir::jitter::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        // Behind one another, as `World::reload_at_once` wants it.
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
    let weather = Weather::new(dice.fork(), tasks.clone());
    ledger.write(Rules::new(&NAMES[..count]));
    ledger.take_up();
    let text = ledger.rules().text();
    let world = World::open_between(scripts, &text, tasks.clone(), weather.between());
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
        let can = Can::throw(&mut dice);
        let client = world.client_as_declaring(role, side, &can.declared(side)).await;
        people.push(Person::new(number, role, client, can, &servers, ledger, dice.fork()));
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
                ledger.tell("house", "stops");
                ledger.count("stops");
                ledger.stops();
                world.stop_doors();
            }
        };
        let lives = join_all(people.iter().map(Person::live));
        let fates = join_all(servers.iter().map(|server| server.suffer(dice.fork())));
        tokio::join!(lives, fates, edit(&world, ledger, dice.fork()), stop);
        weather.calm();
        if stops_after.is_none() {
            pass(QUIET).await;
            join_all(people.iter().map(Person::look_around)).await;
        }
        over.cancel();
    };
    tokio::join!(attending, working);
    for person in &people {
        person.check();
    }
    drop(people);
    world.stop_doors();
    world.drained().await;
    // What a client has left is noticed, at the latest, when its connection is; what waits for answers, when it has
    // waited for long enough.
    pass(if ledger.is_awaited() { PARKED } else { Duration::from_secs(20) }).await;
    for server in &servers {
        server.check();
    }
    drop((servers, serving));
    world.close().await;
}

/// Somebody edits the configuration, now and then with a mistake.
async fn edit(world: &World, ledger: &Ledger, mut dice: Dice) {
    for _ in 0..dice.below(EDITS) {
        pass(Duration::from_millis(200 + dice.below(2_000))).await;
        if ledger.has_stopped() {
            return;
        }
        let (edit, before) = (Edit::throw(&mut dice), ledger.rules());
        let next = before.edited(edit, &mut dice);
        let text = if edit == Edit::Bad { next.spoilt() } else { next.text() };
        ledger.tell("house", format!("reads {next:?}, {edit:?}"));
        ledger.write(next.clone());
        let replaced = || ledger.take_up();
        let outcome = world.reload_at_once(&next.names(), &text, replaced).await;
        let expected = match &outcome {
            Outcome::Refused(_) => edit == Edit::Bad,
            Outcome::Unchanged => next == before && edit != Edit::Bad,
            Outcome::Applied { .. } => next != before,
            Outcome::Failed(_) => ledger.has_stopped(),
        };
        if !expected {
            ledger.object(format!("{edit:?} of {before:?} to {next:?}: {outcome:?}"));
        }
        ledger.count(match (&outcome, next.names().len().cmp(&before.names().len())) {
            (Outcome::Refused(_), _) => "bad files",
            (Outcome::Applied { .. }, Less) => "servers gone",
            (Outcome::Applied { .. }, Greater) => "servers come",
            (Outcome::Applied { .. }, Equal) if edit == Edit::Settings => "servers opened anew",
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
    // The oldest revision has none.
    let has_tasks = side.revision >= Revision::NEWEST_LEGACY;
    let script = if has_tasks { script.capabilities(BOTH) } else { script };
    Kind::ALL.into_iter().fold(script, |script, kind| {
        let names = server::first_names(kind, name);
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        script.items(kind, &names)
    })
}
