//! Delay of cancellations to the upstream, in real time, with 200 calls in flight.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::by_night;
use crate::cell::{Cell, SIDES};
use crate::client::{Client, Exchange};
use crate::night::bound;
use crate::upstream::{InterceptedCalls, Script};
use crate::world::World;

/// Clients, and the calls in flight of each.
const CLIENTS: u64 = 10;
const UNDER_WAY: u64 = 20;
/// Clients that cancel at the same time.
const AT_ONCE: usize = 2;
/// Calls that are cancelled in each cell, by day and nightly.
const CANCELS: u64 = 50;
const NIGHTLY_CANCELS: u64 = 1_000;

/// The longest time: nightly at the 99th percentile on an idle machine, by day at the median on any
/// machine, where a call that is not cancelled would last until its time limit.
fn soon() -> Duration {
    bound(5_000, 100)
}

/// Nightly all pairs; by day each side once as the client's and once as the upstream's.
fn cells() -> Vec<Cell> {
    let pairs =
        SIDES.into_iter().flat_map(|client| SIDES.map(|upstream| Cell { client, upstream }));
    match by_night() {
        true => pairs.collect(),
        false => pairs.step_by(SIDES.len() + 1).collect(),
    }
}

const CONFIG: &str =
    "[server]\nper_client = { calls = 256 }\n[defaults]\nlimits.concurrency = 256\n";

/// Senders for each call's number: the call has arrived, and it is cancelled.
type Waiting = Arc<Mutex<HashMap<u64, (oneshot::Sender<()>, oneshot::Sender<Instant>)>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_is_soon_upstream_under_load() {
    let _turn = super::ONE_AT_A_TIME.lock().await;
    for cell in cells() {
        let mut times = cancel_many(cell).await;
        times.sort();
        let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
        let (half, most, all) = (at(50), at(99), at(100));
        eprintln!("{cell}: {} cancels, p50 {half:?}, p99 {most:?}, max {all:?}", times.len());
        let delay = if by_night() { most } else { half };
        assert!(delay < soon(), "{cell}: {delay:?}");
    }
}

async fn cancel_many(cell: Cell) -> Vec<Duration> {
    let world = World::start(vec![("hub", Script::full(cell.upstream))], CONFIG).await;
    let (waiting, tasks) = (Waiting::default(), TaskTracker::new());
    let routing =
        route(world.upstream("hub").intercept("tools/call"), waiting.clone(), tasks.clone());
    let routing = tokio_util::task::AbortOnDropHandle::new(tasks.spawn(routing));
    let each = if by_night() { NIGHTLY_CANCELS } else { CANCELS } / CLIENTS;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(world.client(cell.client).await);
    }
    let fill = clients.iter().zip(0..).map(|(client, who)| fill(client, who, &waiting));
    let turns = futures::future::join_all(fill).await.into_iter();
    let turns = futures::stream::iter(turns.map(|filled| cancel_in_turn(filled, each, &waiting)));
    let all: Vec<_> = turns.buffer_unordered(AT_ONCE).collect().await;
    // The calls are dropped only now, so that all others were in flight during the whole
    // measurement.
    let (times, left): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    for (exchange, cancelled) in left.into_iter().flatten() {
        exchange.cancel().await;
        cancelled.await.expect("a call");
    }
    let times = times.concat();
    drop((clients, routing));
    tasks.close();
    tasks.wait().await;
    world.close().await;
    times
}

/// Reports when the upstream receives a call, and when it learns of its cancellation.
async fn route(mut intercepted: InterceptedCalls, waiting: Waiting, tasks: TaskTracker) {
    loop {
        let call = intercepted.next().await;
        let arguments = call.params.get_object("arguments").expect("arguments");
        let number: u64 = arguments.get("number").expect("a number").parse().expect("a number");
        let found = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        let (came, cancelled) = found.expect("each call comes once");
        tasks.spawn(async move {
            // At the end both receivers are gone.
            let _ = came.send(());
            call.cancelled().await;
            let _ = cancelled.send(Instant::now());
        });
    }
}

/// A client with its calls in flight.
struct Filled<'a> {
    client: &'a Client,
    /// Number of the latest call.
    number: u64,
    under_way: Vec<UnderWay<'a>>,
}

/// A call, and the receiver of the time at which the upstream learns of its cancellation.
type UnderWay<'a> = (Exchange<'a>, oneshot::Receiver<Instant>);

async fn fill<'a>(client: &'a Client, who: u64, waiting: &Waiting) -> Filled<'a> {
    let mut number = who << 32;
    let mut under_way = Vec::new();
    for _ in 0..UNDER_WAY {
        under_way.push(start(client, &mut number, waiting).await);
    }
    Filled { client, number, under_way }
}

/// Cancels one call after the other, in changing order, and replaces each, so that their number
/// stays.
async fn cancel_in_turn<'a>(
    mut filled: Filled<'a>,
    each: u64,
    waiting: &Waiting,
) -> (Vec<Duration>, Vec<UnderWay<'a>>) {
    let mut times = Vec::new();
    for turn in 0..each {
        let place = (turn * 7 % UNDER_WAY) as usize;
        let (exchange, cancelled) = filled.under_way.swap_remove(place);
        let begin = Instant::now();
        exchange.cancel().await;
        let end = tokio::time::timeout(Duration::from_secs(30), cancelled).await;
        times.push(end.expect("a cancel in time").expect("a call").duration_since(begin));
        filled.under_way.push(start(filled.client, &mut filled.number, waiting).await);
    }
    (times, filled.under_way)
}

/// Starts a call and waits until the upstream has it.
async fn start<'a>(client: &'a Client, number: &mut u64, waiting: &Waiting) -> UnderWay<'a> {
    *number += 1;
    let ((came, coming), (cancelled, cancelling)) = (oneshot::channel(), oneshot::channel());
    waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(*number, (came, cancelled));
    let params = format!(r#"{{"name":"hub__a","arguments":{{"number":{number}}}}}"#);
    let exchange = client.start("tools/call", &params);
    let came = tokio::time::timeout(Duration::from_secs(30), coming).await;
    came.expect("a call in time").expect("a route");
    (exchange, cancelling)
}
