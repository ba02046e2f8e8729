//! Lifetime of connections: start, loss and reconnect.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::testing::{SendCall, TestTransport, World, call, payload, settings};
use crate::{ConnectionStatus, Error};
use weir_mcp::kind::Kind;
use weir_mcp::revision::{Era, Revision};

fn epoch(world: &World) -> u64 {
    match &*world.upstream.status().borrow() {
        ConnectionStatus::Up(about) => about.epoch,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_ends_ends_its_calls_and_comes_again() {
    let (mut world, mut peer) = World::stdio(Era::Modern).await;
    let upstream = world.upstream.clone();
    let calling =
        world.tracker.spawn(async move { upstream.send(call(Revision::V2025_11_25)).await });
    peer.read().await;
    peer.exit("was killed by signal 11");
    let error = calling.await.expect("no panic").expect_err("broken");
    assert!(matches!(&error, Error::ConnectionLost(why) if why.contains("signal 11")), "{error}");
    assert_eq!(world.down().await, "the process was killed by signal 11");
    let error = world.upstream.send(call(Revision::V2025_11_25)).await.expect_err("down");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(world.upstream.list(Kind::Prompt).await.is_err());

    let start = Instant::now();
    world.child().await.open(Era::Modern).await;
    assert_eq!(start.elapsed(), Duration::from_millis(250));
    world.up().await;
    assert_eq!(epoch(&world), 2);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_until_a_connection_was_a_good_one() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut last = None;
    let mut pauses = Vec::new();
    for _ in 0..4 {
        let mut peer = world.child().await;
        pauses.extend(last.map(|last: Instant| last.elapsed().as_millis()));
        peer.open(Era::Modern).await;
        world.up().await;
        peer.exit("exited with code 0");
        world.down().await;
        last = Some(Instant::now());
    }
    assert_eq!(pauses, [250, 500, 1000]);
    let mut peer = world.child().await;
    peer.open(Era::Modern).await;
    world.up().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    peer.exit("exited with code 0");
    world.down().await;
    let start = Instant::now();
    world.child().await;
    assert_eq!(start.elapsed().as_millis(), 250);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finds_no_way_takes_the_upstream_down() {
    let mut world = World::http(Era::Legacy).await;
    world.connector.refuses.store(true, Ordering::Relaxed);
    // The pooled connections of the handshake have been idle for too long.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let error = world.upstream.send(call(Revision::V2025_11_25)).await.expect_err("no way");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(world.down().await, "refused");
    world.connector.refuses.store(false, Ordering::Relaxed);
    // The detected era is reused.
    world.initialize("s2").await;
    world.up().await;
    assert_eq!(epoch(&world), 2);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn connections_are_used_again_while_they_are_fresh() {
    let mut world = World::http(Era::Modern).await;
    let before = world.connector.connections.load(Ordering::Relaxed);
    for (pause, connections) in [(1, before), (3, before), (5, before + 1), (1, before + 1)] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let upstream = world.upstream.clone();
        let calling =
            world.tracker.spawn(async move { upstream.send(call(Revision::V2025_11_25)).await });
        world.post().await.answer(json!({}));
        let reply = calling.await.expect("no panic").expect("a reply");
        assert_eq!(payload(reply).await, "{}");
        assert_eq!(world.connector.connections.load(Ordering::Relaxed), connections, "{pause}");
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_peers_own_idle_time_is_kept_to() {
    let mut world = World::http(Era::Modern).await;
    for (keep_alive, pause, reused) in [("timeout=2", 3, false), ("max=5, timeout=30", 20, true)] {
        let upstream = world.upstream.clone();
        let calling =
            world.tracker.spawn(async move { upstream.send(call(Revision::V2025_11_25)).await });
        let request = world.post().await;
        let body = json!({ "jsonrpc": "2.0", "id": request.id(), "result": {} });
        let response = hyper::Response::builder()
            .header("content-type", "application/json")
            .header("keep-alive", keep_alive);
        request.reply(response, body.to_string());
        calling.await.expect("no panic").expect("a reply");
        let before = world.connector.connections.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let upstream = world.upstream.clone();
        let calling =
            world.tracker.spawn(async move { upstream.send(call(Revision::V2025_11_25)).await });
        world.post().await.answer(json!({}));
        calling.await.expect("no panic").expect("a reply");
        let used = world.connector.connections.load(Ordering::Relaxed);
        assert_eq!(used == before, reused, "{keep_alive}");
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_ended_with_the_upstream() {
    let mut world = World::http(Era::Legacy).await;
    world.stop.cancel();
    let delete = world.post().await;
    assert_eq!(
        (delete.method.as_str(), &delete.headers["mcp-session-id"]),
        ("DELETE", &"s1".parse().expect("a value"))
    );
    delete.status(405);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_leaves_when_its_input_closes_is_not_asked_twice() {
    let (world, mut peer) = World::stdio(Era::Legacy).await;
    let start = Instant::now();
    world.stop.cancel();
    assert_eq!(peer.try_read().await, None);
    peer.exit("exited with code 0");
    let signals = std::sync::Arc::clone(&peer.signals);
    world.finish().await;
    // The last signal is for descendants.
    assert_eq!(*signals.lock(), ["kill"]);
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_child_that_stays_is_asked_and_then_not_asked() {
    let (world, peer) = World::stdio(Era::Legacy).await;
    let start = Instant::now();
    world.finish().await;
    assert_eq!(*peer.signals.lock(), ["terminate", "kill", "kill"]);
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_child_has_as_long_to_leave_as_is_written() {
    let mut settings = settings(TestTransport::Stdio);
    settings.timeouts.stop = Duration::from_secs(20);
    settings.timeouts.terminate = Duration::from_millis(500);
    let (world, peer) = World::opened(settings, Era::Legacy).await;
    let signals = peer.signals.clone();
    let start = Instant::now();
    let yields = async {
        while signals.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        start.elapsed().as_secs()
    };
    let ((), yields) = tokio::join!(world.finish(), yields);
    assert_eq!((yields, start.elapsed()), (20, Duration::from_millis(20_500)));
    assert_eq!(*signals.lock(), ["terminate", "kill", "kill"]);
}

#[tokio::test(start_paused = true)]
async fn stopping_in_the_middle_of_the_opening_leaves_nothing() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut peer = world.child().await;
    peer.read().await;
    world.finish().await;
    assert_eq!(*peer.signals.lock(), ["terminate", "kill", "kill"]);

    let mut world = World::start(settings(TestTransport::Http));
    let _unanswered = world.post().await;
    world.finish().await;
}

#[tokio::test]
async fn the_prompt_library_is_an_upstream() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = "---\ndescription: Greets.\narguments:\n- {name: who, required: true}\n---\nHello {{who}}\n";
    std::fs::write(dir.path().join("hello.md"), file).expect("a file");
    let mut settings = settings(TestTransport::Stdio);
    settings.source = crate::UpstreamSource::Library { dir: dir.path().to_owned() };
    let world = World::start(settings);
    world.up().await;
    let listing = world.upstream.list(Kind::Prompt).await.expect("a list");
    assert_eq!(&*listing.items[0].key, "hello");
    assert!(world.upstream.list(Kind::Tool).await.expect("a list").items.is_empty());
    let get = async |params: &'static str| {
        let mut get = call(Revision::V2026_07_28);
        get.method = weir_mcp::call::Method::GetPrompt;
        get.subject = "hello".into();
        get.params = weir_base::json::Object::parse(params).expect("params");
        payload(world.upstream.send(get).await.expect("a reply")).await
    };
    let greeting = get(r#"{"name":"hello","arguments":{"who":"Ada"}}"#).await;
    assert!(greeting.contains("Hello Ada"), "{greeting}");
    let missing = get(r#"{"name":"hello"}"#).await;
    assert!(missing.starts_with(r#"{"code":-32602,"#), "{missing}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_lacks_a_value_is_down_with_the_reason_and_nothing_is_started() {
    for lazy in [false, true] {
        let reason = "the variable TOKEN is not set: set it where Weir starts (weir.toml:3)";
        let source = crate::UpstreamSource::Unresolved { reason: reason.to_owned() };
        let world =
            World::start(crate::Settings { source, lazy, ..settings(TestTransport::Stdio) });
        assert_eq!(world.down().await, reason);
        let error = world.upstream.send(call(Revision::V2025_11_25)).await.expect_err("down");
        assert_eq!(error.to_string(), format!("not connected: {reason}"));
        assert!(world.upstream.list(Kind::Prompt).await.is_err());
        world.upstream.start_if_idle();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(world.down().await, reason);
        let report = world.upstream.report();
        assert_eq!((report.state.as_str(), report.next_try), ("down", None));
        assert_eq!(report.reason.as_deref(), Some(reason));
        assert_eq!(world.connector.connections.load(Ordering::Relaxed), 0);
        let status = world.upstream.status();
        world.finish().await;
        let ConnectionStatus::Down { reason, .. } = &*status.borrow() else { panic!("it is up") };
        assert_eq!(reason, "the upstream was stopped");
    }
}
