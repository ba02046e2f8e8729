//! Upstreams that are started on demand and stopped when idle.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::SuspendedCall;
use crate::health::status_report::State;
use crate::testing::{Peer, SendCall, TestTransport, World, call, discovered, payload, settings};
use crate::{ConnectionStatus, Error, Settings, Subscribed};
use weir_mcp::call::CallOutcome;
use weir_mcp::call::QuotaOwner;
use weir_mcp::kind::Kind;
use weir_mcp::resource_updates::PendingResourceUpdates;
use weir_mcp::revision::{Era, Revision};

const IDLE: Duration = Duration::from_secs(60);

fn on_demand_settings(over: TestTransport) -> Settings {
    let mut settings = Settings { lazy: true, era: Some(Era::Modern), ..settings(over) };
    settings.timeouts.idle = Some(IDLE);
    settings
}

fn start_call(world: &World) -> JoinHandle<Result<CallOutcome<SuspendedCall>, Error>> {
    let upstream = world.upstream.clone();
    world.tracker.spawn(async move { upstream.send(call(Revision::V2025_11_25)).await })
}

async fn response_of(calling: JoinHandle<Result<CallOutcome<SuspendedCall>, Error>>) -> String {
    payload(calling.await.expect("no panic").expect("a reply")).await
}

fn state(world: &World) -> State {
    world.upstream.report().state
}

async fn wait_until_idle(world: &World) {
    let mut status = world.upstream.status();
    status.wait_for(|status| matches!(status, ConnectionStatus::Asleep)).await.expect("it lives");
}

/// Completes the handshake of a server with subscriptions.
async fn open(peer: &mut Peer) {
    let discover = peer.read().await;
    let mut result = discovered();
    result["capabilities"]["resources"] = json!({ "subscribe": true });
    peer.answer(&discover, result).await;
}

/// Starts a world whose child was started by a call, which has its response.
async fn started_by_call() -> (World, Peer) {
    started_by_call_with(on_demand_settings(TestTransport::Stdio)).await
}

async fn started_by_call_with(settings: Settings) -> (World, Peer) {
    let mut world = World::start(settings);
    let first = start_call(&world);
    let mut peer = world.child().await;
    open(&mut peer).await;
    let request = peer.read().await;
    peer.answer(&request, json!({})).await;
    assert_eq!(response_of(first).await, "{}");
    (world, peer)
}

/// Whether no child was started.
async fn is_no_child_started(world: &mut World) -> bool {
    sleep(Duration::from_millis(1)).await;
    world.child().now_or_never().is_none()
}

#[tokio::test(start_paused = true)]
async fn the_first_of_many_calls_starts_it_once() {
    let mut settings = on_demand_settings(TestTransport::Stdio);
    settings.limits.concurrency = 64;
    let mut world = World::start(settings);
    sleep(Duration::from_secs(3_600)).await;
    assert!(is_no_child_started(&mut world).await);
    assert_eq!(state(&world), State::Asleep);
    // A list does not start the upstream.
    assert!(matches!(world.upstream.list(Kind::Tool).await, Err(Error::Unavailable(_))));
    assert!(is_no_child_started(&mut world).await);

    let calls: Vec<_> = (0..64).map(|_| start_call(&world)).collect();
    let mut peer = world.child().await;
    assert_eq!(state(&world), State::Starting);
    open(&mut peer).await;
    for _ in 0..64 {
        let request = peer.read().await;
        assert_eq!(request["method"], "tools/call");
        peer.answer(&request, json!({})).await;
    }
    for reply in join_all(calls).await {
        reply.expect("no panic").expect("a reply");
    }
    assert!(is_no_child_started(&mut world).await);
    assert_eq!(world.upstream.report().counts.restarts, 0);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn it_is_stopped_once_nobody_has_used_it_for_a_while_and_wakes_again() {
    let (mut world, mut peer) = started_by_call().await;
    let start = Instant::now();
    // Each use restarts the idle time; a list does not.
    sleep(IDLE - Duration::from_secs(1)).await;
    let again = start_call(&world);
    let request = peer.read().await;
    sleep(IDLE - Duration::from_secs(1)).await;
    assert_eq!(state(&world), State::Up);
    peer.answer(&request, json!({})).await;
    response_of(again).await;
    let last = Instant::now();
    sleep(IDLE / 2).await;
    let upstream = world.upstream.clone();
    let listing = world.tracker.spawn(async move { upstream.list(Kind::Tool).await });
    let list = peer.read().await;
    peer.answer(&list, json!({ "resultType": "complete", "tools": [], "ttlMs": 1 })).await;
    listing.await.expect("no panic").expect("a list");
    wait_until_idle(&world).await;
    assert_eq!(last.elapsed(), IDLE);
    assert!(start.elapsed() > IDLE * 2);
    assert_eq!(peer.try_read().await, None);
    peer.exit("exited with code 0");
    sleep(Duration::from_secs(1)).await;
    let report = world.upstream.report();
    assert_eq!((report.state, report.failures), (State::Asleep, 0));
    assert!(report.state.takes_calls() && report.reason.is_none());

    let waking = start_call(&world);
    let mut peer = world.child().await;
    open(&mut peer).await;
    let request = peer.read().await;
    peer.answer(&request, json!({ "n": 2 })).await;
    assert_eq!(response_of(waking).await, r#"{"n":2}"#);
    // The connection is a new one, so that the upstream is listed again.
    let ConnectionStatus::Up(about) = world.upstream.status().borrow().clone() else {
        panic!("up")
    };
    assert_eq!((about.epoch, world.upstream.report().counts.restarts), (2, 1));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn without_an_idle_time_it_stays_up() {
    let mut settings = on_demand_settings(TestTransport::Stdio);
    settings.timeouts.idle = None;
    let (world, peer) = started_by_call_with(settings).await;
    sleep(IDLE * 100).await;
    assert_eq!(state(&world), State::Up);
    drop(peer);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_while_it_is_stopped_waits_for_the_next_connection() {
    let (mut world, mut peer) = started_by_call().await;
    wait_until_idle(&world).await;
    // The old child ends slowly: closed input, SIGTERM, then SIGKILL.
    let waiting = start_call(&world);
    let start = Instant::now();
    assert_eq!(peer.try_read().await, None);
    let mut next = world.child().await;
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert_eq!(*peer.signals.lock(), ["terminate", "kill", "kill"]);
    open(&mut next).await;
    let request = next.read().await;
    assert_eq!(request["method"], "tools/call");
    next.answer(&request, json!({})).await;
    response_of(waiting).await;
    assert!(next.read().now_or_never().is_none());
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn calls_at_every_moment_around_the_end_are_answered_once_each() {
    for early in 0..20_u64 {
        let (mut world, mut peer) = started_by_call().await;
        sleep(IDLE - Duration::from_millis(10) + Duration::from_millis(early)).await;
        let late = start_call(&world);
        sleep(Duration::from_millis(1)).await;
        if state(&world) != State::Up {
            peer = world.child().await;
            open(&mut peer).await;
        }
        let request = peer.read().await;
        assert_eq!(request["method"], "tools/call", "{early}");
        peer.answer(&request, json!({})).await;
        response_of(late).await;
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_keeps_it_awake_and_starts_it() {
    let mut world = World::start(on_demand_settings(TestTransport::Stdio));
    let (upstream, updates) = (world.upstream.clone(), PendingResourceUpdates::default());
    let joining = world.tracker.spawn(async move {
        let owner = QuotaOwner { name: Arc::from("all"), clients: 1 };
        upstream.subscribe("file:///a", &updates, &owner).await
    });
    let mut peer = world.child().await;
    open(&mut peer).await;
    let listen = peer.read().await;
    assert_eq!(listen["method"], "subscriptions/listen");
    let acknowledged = json!({
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": {
            "notifications": { "resourceSubscriptions": ["file:///a"] },
            "_meta": { "io.modelcontextprotocol/subscriptionId": listen["id"] },
        },
    });
    peer.send(acknowledged).await;
    let Ok(Subscribed::Accepted(subscription)) = joining.await.expect("no panic") else {
        panic!("it agrees")
    };
    sleep(IDLE * 10).await;
    assert_eq!(state(&world), State::Up);
    drop(subscription);
    let left = Instant::now();
    wait_until_idle(&world).await;
    assert_eq!(left.elapsed(), IDLE);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_ends_while_it_wakes_is_told_to_those_who_wait_and_tried_again_with_pauses() {
    let mut world = World::start(on_demand_settings(TestTransport::Stdio));
    let waiting = start_call(&world);
    world.child().await.exit("exited with code 127");
    let error = waiting.await.expect("no panic").expect_err("it has ended");
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("127")), "{error}");
    assert_eq!(state(&world), State::Down);
    let start = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..4 {
        // Calls in between neither wait nor shorten the pause.
        assert!(world.upstream.send(call(Revision::V2025_11_25)).await.is_err());
        world.child().await.exit("exited with code 127");
        world.down().await;
        pauses.push(start.elapsed().as_millis());
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(state(&world), State::CrashLoop);
    assert!(pauses[3] > 3_000, "{pauses:?}");
    // The upstream is connected again, and no client uses it.
    open(&mut world.child().await).await;
    world.up().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_left_alone_is_not_started() {
    let mut settings = on_demand_settings(TestTransport::Http);
    settings.breaker.cool_down = IDLE * 2;
    settings.breaker.max_cool_down = IDLE * 2;
    let mut world = World::start(settings);
    world.upstream.start_if_idle();
    world.post().await.answer(discovered());
    world.up().await;
    for count in 0..5 {
        let failing = start_call(&world);
        world.post().await.status(503);
        failing.await.expect("no panic").expect_err("it fails");
        if count == 0 {
            world.check().await.answer(discovered());
        }
    }
    assert_eq!(state(&world), State::BreakerOpen);
    wait_until_idle(&world).await;
    let start = Instant::now();
    let error = start_call(&world).await.expect("no panic").expect_err("left alone");
    assert!(error.to_string().contains("circuit breaker open"), "{error}");
    assert_eq!((start.elapsed(), state(&world)), (Duration::ZERO, State::Asleep));
    sleep(IDLE * 2).await;
    let probe = start_call(&world);
    world.post().await.answer(discovered());
    world.post().await.answer(json!({}));
    response_of(probe).await;
    assert_eq!(state(&world), State::Up);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_it_waits_no_longer_than_a_start_may_take() {
    let mut world = World::start(on_demand_settings(TestTransport::Stdio));
    let waiting = start_call(&world);
    let _silent = world.child().await;
    let start = Instant::now();
    let error = waiting.await.expect("no panic").expect_err("it does not start");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(start.elapsed() <= Duration::from_secs(60), "{:?}", start.elapsed());
    world.finish().await;
}
