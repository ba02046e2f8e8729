//! Resource subscriptions: one per URI towards the server, made again on every connection.

use futures::FutureExt;
use futures::future::join_all;
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::subscriptions::{ACCEPT_TIMEOUT, LINGER, MAX_URIS, URIS_PER_CLIENT};
use crate::testing::settings;
use crate::testing::{Events, Exchange, Peer, TestTransport, World, discovered, initialized};
use crate::{Error, Subscribed, Subscription};
use weir_mcp::call::QuotaOwner;
use weir_mcp::resource_updates::{PendingResourceUpdates, SPACING};
use weir_mcp::revision::Era;

const A: &str = "file:///a";
const B: &str = "file:///b";

type Joining = tokio::task::JoinHandle<Result<Subscribed, Error>>;

fn with_subscribe(mut result: Value) -> Value {
    result["capabilities"]["resources"] = json!({ "subscribe": true });
    result
}

async fn open(peer: &mut Peer, era: Era) {
    let discover = peer.read().await;
    match era {
        Era::Modern => peer.answer(&discover, with_subscribe(discovered())).await,
        Era::Legacy => {
            peer.refuse(&discover, -32601).await;
            let initialize = peer.read().await;
            peer.answer(&initialize, with_subscribe(initialized("2025-11-25"))).await;
            assert_eq!(peer.read().await["method"], "notifications/initialized");
        }
    }
}

async fn stdio(era: Era) -> (World, Peer) {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut peer = world.child().await;
    open(&mut peer, era).await;
    world.up().await;
    (world, peer)
}

/// Starts a world whose modern HTTP server has connected.
async fn modern_http() -> World {
    let mut world = World::start(settings(TestTransport::Http));
    world.post().await.answer(with_subscribe(discovered()));
    world.up().await;
    world
}

fn join(world: &World, uri: &'static str, updates: &PendingResourceUpdates) -> Joining {
    join_as(world, ("all", 16), uri, updates)
}

/// Subscribes a client of a quota owner with this many clients.
fn join_as(
    world: &World,
    (name, clients): (&str, usize),
    uri: &'static str,
    updates: &PendingResourceUpdates,
) -> Joining {
    let (upstream, updates) = (world.upstream.clone(), updates.clone());
    let owner = QuotaOwner { name: name.into(), clients };
    world.tracker.spawn(async move { upstream.subscribe(uri, &updates, &owner).await })
}

async fn expect_accepted(joining: Joining) -> Subscription {
    match joining.await.expect("no panic").expect("an answer") {
        Subscribed::Accepted(subscription) => subscription,
        Subscribed::Refused(error) => panic!("refused: {error:?}"),
    }
}

/// Error code of the server's refusal, if there was one.
async fn expect_refused(joining: Joining) -> Option<i64> {
    match joining.await.expect("no panic").expect("an answer") {
        Subscribed::Accepted(_) => panic!("the subscription is accepted"),
        Subscribed::Refused(error) => error.map(|error| {
            let error: Value = serde_json::from_slice(&error).expect("JSON");
            error["code"].as_i64().expect("a code")
        }),
    }
}

/// Whether no message arrives until everything has settled.
async fn is_quiet(peer: &mut Peer) -> bool {
    tokio::time::timeout(std::time::Duration::from_millis(1), peer.read()).await.is_err()
}

async fn marked_updates(updates: &PendingResourceUpdates) -> String {
    updates.next().await.uri.to_string()
}

fn updated(uri: &str) -> Value {
    let params = json!({ "uri": uri });
    json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params })
}

/// URIs of a `subscriptions/listen` request, in order.
fn listened_uris(listen: &Value) -> Vec<&str> {
    assert_eq!(listen["method"], "subscriptions/listen");
    let filter = listen["params"]["notifications"].as_object().expect("a filter");
    assert_eq!(filter.keys().collect::<Vec<_>>(), ["resourceSubscriptions"]);
    let names = filter["resourceSubscriptions"].as_array().expect("names");
    let mut names: Vec<_> = names.iter().map(|name| name.as_str().expect("a URI")).collect();
    names.sort_unstable();
    names
}

fn acknowledged(listen: &Value, uris: &[&str]) -> Value {
    json!({
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": {
            "_meta": { "io.modelcontextprotocol/subscriptionId": listen["id"] },
            "notifications": { "resourceSubscriptions": uris },
        },
    })
}

// === Legacy ===

#[tokio::test(start_paused = true)]
async fn clients_share_one_request_and_the_last_one_ends_it() {
    let (world, mut peer) = stdio(Era::Legacy).await;
    let (one, other) = (PendingResourceUpdates::default(), PendingResourceUpdates::default());
    let (first, second) = (join(&world, A, &one), join(&world, A, &other));
    let request = peer.read().await;
    assert_eq!(
        (&request["method"], &request["params"]),
        (&json!("resources/subscribe"), &json!({ "uri": A }))
    );
    assert!(is_quiet(&mut peer).await && !first.is_finished() && !second.is_finished());
    peer.answer(&request, json!({})).await;
    let (first, second) = (expect_accepted(first).await, expect_accepted(second).await);
    // A later subscriber is accepted at once.
    drop(expect_accepted(join(&world, A, &one)).await);
    peer.send(updated(A)).await;
    assert_eq!(
        (marked_updates(&one).await.as_str(), marked_updates(&other).await.as_str()),
        (A, A)
    );

    drop(first);
    peer.send(updated(A)).await;
    assert_eq!(marked_updates(&other).await, A);
    assert!(one.next().now_or_never().is_none());
    drop(second);
    let left = Instant::now();
    let request = peer.read().await;
    assert_eq!(
        (&request["method"], &request["params"]),
        (&json!("resources/unsubscribe"), &json!({ "uri": A }))
    );
    assert!(left.elapsed() >= LINGER);
    // A client that subscribes during the unsubscription waits for its end.
    let third = join(&world, A, &one);
    assert!(is_quiet(&mut peer).await);
    peer.answer(&request, json!({})).await;
    let request = peer.read().await;
    assert_eq!(request["method"], "resources/subscribe");
    peer.answer(&request, json!({})).await;
    drop(expect_accepted(third).await);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn each_connection_is_subscribed_anew_and_what_was_held_counts_as_updated() {
    let (mut world, mut peer) = stdio(Era::Legacy).await;
    let updates = PendingResourceUpdates::default();
    let joining = join(&world, A, &updates);
    let request = peer.read().await;
    peer.answer(&request, json!({})).await;
    let subscription = expect_accepted(joining).await;
    assert!(updates.next().now_or_never().is_none());

    peer.exit("crashed");
    let mut peer = world.child().await;
    open(&mut peer, Era::Legacy).await;
    let request = peer.read().await;
    assert_eq!(request["method"], "resources/subscribe");
    peer.answer(&request, json!({})).await;
    assert_eq!(marked_updates(&updates).await, A);

    // A refused subscription may be accepted later.
    peer.exit("crashed");
    let mut peer = world.child().await;
    open(&mut peer, Era::Legacy).await;
    let request = peer.read().await;
    peer.refuse(&request, -32603).await;
    world.up().await;
    assert!(is_quiet(&mut peer).await);
    let again = join(&world, A, &updates);
    let request = peer.read().await;
    assert_eq!(request["method"], "resources/subscribe");
    peer.answer(&request, json!({})).await;
    drop(expect_accepted(again).await);
    assert_eq!(marked_updates(&updates).await, A);
    drop(subscription);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_passed_on_and_leaves_nothing_behind() {
    let (world, mut peer) = stdio(Era::Legacy).await;
    let updates = PendingResourceUpdates::default();
    let joining = join(&world, A, &updates);
    let request = peer.read().await;
    peer.refuse(&request, -32002).await;
    assert_eq!(expect_refused(joining).await, Some(-32002));
    // Updates without a subscriber are dropped.
    peer.send(updated(A)).await;
    assert!(is_quiet(&mut peer).await && updates.next().now_or_never().is_none());
    // The next subscription is a new request; without a response it fails in time and is cancelled.
    let (joining, began) = (join(&world, A, &updates), Instant::now());
    assert_eq!(peer.read().await["method"], "resources/subscribe");
    let failed = joining.await.expect("no panic").expect_err("no answer");
    assert!(
        matches!(failed, Error::TimedOut(ACCEPT_TIMEOUT) | Error::ConnectionLost(_)),
        "{failed:?}"
    );
    assert_eq!(began.elapsed(), ACCEPT_TIMEOUT);
    assert_eq!(peer.read().await["method"], "notifications/cancelled");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_declares_nothing_is_not_asked() {
    for era in [Era::Legacy, Era::Modern] {
        let (world, mut peer) = World::stdio(era).await;
        assert_eq!(expect_refused(join(&world, A, &PendingResourceUpdates::default())).await, None);
        assert!(is_quiet(&mut peer).await);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_server_that_is_down() {
    let (world, mut peer) = stdio(Era::Legacy).await;
    peer.exit("crashed");
    world.down().await;
    let failed = join(&world, A, &PendingResourceUpdates::default())
        .await
        .expect("no panic")
        .expect_err("down");
    assert!(matches!(failed, Error::Unavailable(_)), "{failed:?}");
    world.finish().await;
}

/// Connects a legacy server over HTTP with this `Mcp-Session-Id`; returns its stream.
async fn legacy_http(world: &mut World, session: &str) -> Events {
    let (mut stream, mut is_open) = (None, false);
    while stream.is_none() || !is_open {
        let request = world.request().await;
        if request.method == Method::GET {
            stream = Some(request.events());
            continue;
        }
        match request.body["method"].as_str() {
            Some("server/discover") => request.status(400),
            Some("initialize") => {
                let mut result = with_subscribe(initialized("2025-11-25"));
                result["capabilities"]["tools"] = json!({ "listChanged": true });
                let body = json!({ "jsonrpc": "2.0", "id": request.id(), "result": result });
                let response = hyper::Response::builder()
                    .header("content-type", "application/json")
                    .header("mcp-session-id", session);
                request.reply(response, body.to_string());
            }
            Some("notifications/initialized") => {
                request.status(202);
                is_open = true;
            }
            other => panic!("{other:?}"),
        }
    }
    stream.expect("a stream")
}

async fn subscribe_request(world: &mut World) -> Exchange {
    let request = world.request().await;
    assert_eq!(request.body["method"], "resources/subscribe");
    request
}

#[tokio::test(start_paused = true)]
async fn subscription_is_accepted_with_an_empty_array_as_its_result() {
    let (world, mut peer) = stdio(Era::Legacy).await;
    let updates = PendingResourceUpdates::default();
    let joining = join(&world, A, &updates);
    let request = peer.read().await;
    assert_eq!(request["method"], "resources/subscribe");
    peer.answer(&request, json!([])).await;
    let _subscription = expect_accepted(joining).await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_unheard_while_the_stream_was_lost_counts_as_updated() {
    let mut world = World::start(settings(TestTransport::Http));
    let stream = legacy_http(&mut world, "s1").await;
    world.up().await;
    let updates = PendingResourceUpdates::default();
    let joining = join(&world, A, &updates);
    subscribe_request(&mut world).await.answer(json!({}));
    let _subscription = expect_accepted(joining).await;
    stream.send(updated(A));
    assert_eq!(marked_updates(&updates).await, A);
    drop(stream);
    let get = world.request().await;
    assert_eq!(get.method, Method::GET);
    let _stream = get.events();
    assert_eq!(marked_updates(&updates).await, A);
    tokio::time::advance(2 * SPACING).await;
    assert!(updates.next().now_or_never().is_none());
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_over_is_opened_again_with_what_was_subscribed_to() {
    let mut world = World::start(settings(TestTransport::Http));
    let _stream = legacy_http(&mut world, "s1").await;
    world.up().await;
    let updates = PendingResourceUpdates::default();
    let joining = join(&world, A, &updates);
    subscribe_request(&mut world).await.answer(json!({}));
    let _first = expect_accepted(joining).await;
    let joining = join(&world, B, &updates);
    subscribe_request(&mut world).await.status(404);
    world.check().await.status(404);
    let _stream = legacy_http(&mut world, "s2").await;
    for _ in 0..2 {
        let request = subscribe_request(&mut world).await;
        assert_eq!(request.headers["mcp-session-id"], "s2");
        request.answer(json!({}));
    }
    let _second = expect_accepted(joining).await;
    assert_eq!(marked_updates(&updates).await, A);
    assert!(updates.next().now_or_never().is_none());
    world.finish().await;
}

// === Modern ===

#[tokio::test(start_paused = true)]
async fn a_wider_listen_is_acknowledged_before_the_old_one_closes() {
    let (world, mut peer) = stdio(Era::Modern).await;
    let updates = PendingResourceUpdates::default();
    let joining = join(&world, A, &updates);
    let first = peer.read().await;
    assert_eq!(listened_uris(&first), [A]);
    peer.send(acknowledged(&first, &[A])).await;
    let a = expect_accepted(joining).await;

    let joining = join(&world, B, &updates);
    let second = peer.read().await;
    assert_eq!(listened_uris(&second), [A, B]);
    assert!(is_quiet(&mut peer).await && !joining.is_finished());
    // Until then the old stream is read.
    peer.send(updated(A)).await;
    assert_eq!(marked_updates(&updates).await, A);
    peer.send(acknowledged(&second, &[A, B])).await;
    let b = expect_accepted(joining).await;
    let cancelled = peer.read().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], first["id"]);

    drop(a);
    let third = peer.read().await;
    assert_eq!(listened_uris(&third), [B]);
    assert!(is_quiet(&mut peer).await);
    peer.send(acknowledged(&third, &[B])).await;
    assert_eq!(peer.read().await["params"]["requestId"], second["id"]);
    drop(b);
    let cancelled = peer.read().await;
    assert_eq!(cancelled["params"]["requestId"], third["id"]);
    // A replaced listen request leaves no gap, so nothing counts as updated.
    assert!(updates.next().now_or_never().is_none());
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn over_http_the_old_stream_is_read_until_the_new_one_is_acknowledged() {
    let mut world = modern_http().await;
    let updates = PendingResourceUpdates::default();
    let joining = join(&world, A, &updates);
    let listen = world.post().await;
    let (body, first) = (listen.body.clone(), listen.events());
    first.send(acknowledged(&body, &[A]));
    let _a = expect_accepted(joining).await;
    let joining = join(&world, B, &updates);
    let listen = world.post().await;
    assert_eq!(listened_uris(&listen.body), [A, B]);
    let (body, second) = (listen.body.clone(), listen.events());
    first.send(updated(A));
    assert_eq!(marked_updates(&updates).await, A);
    // Notifications without the subscription's id are attributed by their stream.
    let mut plain = acknowledged(&body, &[A, B]);
    plain["params"]["_meta"] = json!({});
    second.send(plain);
    let _b = expect_accepted(joining).await;
    first.closed().await;
    second.send(updated(B));
    assert_eq!(marked_updates(&updates).await, B);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_acknowledged_is_not_honored() {
    let (world, mut peer) = stdio(Era::Modern).await;
    let updates = PendingResourceUpdates::default();
    let (good, bad) = (join(&world, A, &updates), join(&world, B, &updates));
    // The first may be sent ahead of the second.
    let mut listen = peer.read().await;
    while listened_uris(&listen) != [A, B] {
        peer.send(acknowledged(&listen, &[A])).await;
        listen = peer.read().await;
    }
    peer.send(acknowledged(&listen, &[A])).await;
    assert_eq!(expect_refused(bad).await, None);
    let a = expect_accepted(good).await;
    while !is_quiet(&mut peer).await {}
    // It is requested again when a client subscribes again, and only then.
    let bad = join(&world, B, &updates);
    let listen = peer.read().await;
    assert_eq!(listened_uris(&listen), [A, B]);
    peer.refuse(&listen, -32601).await;
    assert_eq!(expect_refused(bad).await, None);
    let bad = join(&world, B, &updates);
    let listen = peer.read().await;
    peer.refuse(&listen, -32602).await;
    assert_eq!(expect_refused(bad).await, Some(-32602));
    // The old stream has stayed open all the time.
    peer.send(updated(A)).await;
    assert_eq!(marked_updates(&updates).await, A);
    assert!(is_quiet(&mut peer).await);
    drop(a);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn of_names_that_are_refused_together_the_good_ones_are_found() {
    let (mut world, mut peer) = stdio(Era::Modern).await;
    let uris = ["x:0", "x:1", "x:2", "x:3", "x:4", "x:5", "x:6", "x:7"];
    let updates = PendingResourceUpdates::default();
    let mut joining: Vec<_> = uris.iter().map(|uri| join(&world, uri, &updates)).collect();
    serve(&mut peer, &mut joining, None).await;
    let mut held_ones = Vec::new();
    for joining in joining {
        held_ones.push(expect_accepted(joining).await);
    }
    // On the next connection the server does not know one of them any more.
    peer.exit("crashed");
    let mut peer = world.child().await;
    open(&mut peer, Era::Modern).await;
    let mut told_of = Vec::new();
    let telling = async {
        while told_of.len() < uris.len() - 1 {
            told_of.push(marked_updates(&updates).await);
        }
    };
    let mut never = vec![world.tracker.spawn(std::future::pending())];
    tokio::select! {
        () = serve(&mut peer, &mut never, Some("x:3")) => unreachable!(),
        () = telling => {}
    }
    never[0].abort();
    told_of.sort();
    assert_eq!(told_of, uris.into_iter().filter(|uri| *uri != "x:3").collect::<Vec<_>>());
    drop(held_ones);
    world.finish().await;
}

/// Plays a server that refuses every listen request with an unknown name, until all clients have
/// subscribed.
async fn serve(peer: &mut Peer, joining: &mut [Joining], unknown: Option<&str>) {
    loop {
        let message = tokio::select! {
            biased;
            message = peer.read() => message,
            () = async {
                while !joining.iter().all(Joining::is_finished) {
                    tokio::task::yield_now().await;
                }
            } => return,
        };
        if message["method"] != "subscriptions/listen" {
            continue;
        }
        let names = listened_uris(&message);
        if names.iter().any(|name| Some(*name) == unknown) {
            peer.refuse(&message, -32602).await;
        } else {
            peer.send(acknowledged(&message, &names)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_listen_that_the_server_ends_is_opened_again_after_a_pause() {
    for over in [TestTransport::Stdio, TestTransport::Http] {
        let updates = PendingResourceUpdates::default();
        let (world, since) = match over {
            TestTransport::Stdio => {
                let (world, mut peer) = stdio(Era::Modern).await;
                let joining = join(&world, A, &updates);
                let listen = peer.read().await;
                peer.send(acknowledged(&listen, &[A])).await;
                let subscription = expect_accepted(joining).await;
                let params = json!({ "requestId": listen["id"] });
                let end = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
                peer.send(end).await;
                let since = Instant::now();
                let listen = peer.read().await;
                assert_eq!(listened_uris(&listen), [A]);
                peer.send(acknowledged(&listen, &[A])).await;
                assert_eq!(marked_updates(&updates).await, A);
                drop(subscription);
                (world, since)
            }
            _ => {
                let mut world = modern_http().await;
                let joining = join(&world, A, &updates);
                let listen = world.post().await;
                let (body, events) = (listen.body.clone(), listen.events());
                events.send(acknowledged(&body, &[A]));
                let subscription = expect_accepted(joining).await;
                let meta = json!({ "io.modelcontextprotocol/subscriptionId": body["id"] });
                let result = json!({ "resultType": "complete", "_meta": meta });
                events.send(json!({ "jsonrpc": "2.0", "id": body["id"], "result": result }));
                let since = Instant::now();
                let listen = world.post().await;
                assert_eq!(listened_uris(&listen.body), [A]);
                let (body, events) = (listen.body.clone(), listen.events());
                events.send(acknowledged(&body, &[A]));
                assert_eq!(marked_updates(&updates).await, A);
                drop(subscription);
                (world, since)
            }
        };
        assert!(since.elapsed() >= std::time::Duration::from_secs(1), "{over:?}");
        world.finish().await;
    }
}

// === Both ===

#[tokio::test(start_paused = true)]
async fn one_principal_cannot_subscribe_to_all_that_an_upstream_may_be() {
    let (world, mut peer) = stdio(Era::Legacy).await;
    let updates = PendingResourceUpdates::default();
    let uri = |number: usize| &*format!("x:{number}").leak();
    let mut all = Vec::new();
    for number in 0..URIS_PER_CLIENT {
        let joining = join_as(&world, ("ann", 1), uri(number), &updates);
        let request = peer.read().await;
        peer.answer(&request, json!({})).await;
        all.push(expect_accepted(joining).await);
    }
    let full = join_as(&world, ("ann", 1), A, &updates).await.expect("no panic");
    assert!(matches!(full, Err(Error::Busy { .. })), "{full:?}");
    // An existing subscription needs no further entry, and other clients have their own quota.
    all.push(expect_accepted(join_as(&world, ("ann", 1), uri(7), &updates)).await);
    let joining = join_as(&world, ("bob", 1), A, &updates);
    let request = peer.read().await;
    peer.answer(&request, json!({})).await;
    all.push(expect_accepted(joining).await);
    all.push(expect_accepted(join_as(&world, ("ann", 1), A, &updates)).await);
    drop(all);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_has_a_bounded_number_of_subscriptions_and_those_that_linger_make_room() {
    let (world, mut peer) = stdio(Era::Legacy).await;
    let updates = PendingResourceUpdates::default();
    let uris = (0..MAX_URIS).map(|number| &*format!("x:{number}").leak());
    let joining: Vec<_> = uris.map(|uri| join(&world, uri, &updates)).collect();
    let mut all = Vec::new();
    for joining in joining {
        // In any order: each response lets one of them through.
        let request = peer.read().await;
        peer.answer(&request, json!({})).await;
        all.push(joining);
    }
    let mut all: Vec<_> = join_all(all.into_iter().map(expect_accepted)).await;
    let full = join(&world, A, &updates).await.expect("no panic").expect_err("full");
    assert!(matches!(full, Error::Busy { .. }), "{full:?}");
    all.pop();
    let joining = join(&world, A, &updates);
    let mut methods = [peer.read().await, peer.read().await];
    methods.sort_by_key(|request| request["method"].to_string());
    assert_eq!(methods[0]["method"], "resources/subscribe");
    assert_eq!(methods[1]["method"], "resources/unsubscribe");
    peer.answer(&methods[0], json!({})).await;
    drop(expect_accepted(joining).await);
    drop(all);
    world.finish().await;
}
