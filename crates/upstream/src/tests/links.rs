//! Choice of the session for a call: the main connection, a session shared by clients with the same
//! capabilities, or the client's own.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::testing::{
    Exchange, Peer, SendCall, TestTransport, World, call, initialized, payload, settings,
};
use crate::tests::sign_in::with_account;
use crate::{Error, Settings, Sharing};
use weir_mcp::call::CallOutcome;
use weir_mcp::call::{CallContext, ClientHandle, QuotaOwner, UpstreamRequest};
use weir_mcp::input_request::{ClientFeatures, InputResponse};
use weir_mcp::kind::ListTopic;
use weir_mcp::revision::{Era, Revision};

type Going = JoinHandle<Result<String, Error>>;

/// Client that declares roots only.
pub(super) fn roots() -> CallContext {
    CallContext {
        features: ClientFeatures { roots: true, ..ClientFeatures::default() },
        capabilities: r#"{"roots":{}}"#.into(),
        ..CallContext::without_features(Revision::NEWEST_LEGACY)
    }
}

/// Client that declares nothing.
fn plain() -> CallContext {
    CallContext::without_features(Revision::NEWEST_LEGACY)
}

/// Client with its own identity.
fn client(id: &str, caller: CallContext) -> CallContext {
    CallContext { client: ClientHandle::new(id, CancellationToken::new()), ..caller }
}

fn call_of(caller: CallContext) -> Box<UpstreamRequest> {
    Box::new(UpstreamRequest { caller: Box::new(caller), ..*call(Revision::NEWEST_LEGACY) })
}

/// Starts a call.
fn start(world: &World, caller: CallContext) -> Going {
    let upstream = world.upstream.clone();
    tokio::spawn(async move { Ok(payload(upstream.send(call_of(caller)).await?).await) })
}

async fn end(going: Going) -> Result<String, Error> {
    going.await.expect("no panic")
}

async fn wait_until_settled() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

fn per_client(over: TestTransport) -> Settings {
    Settings { sharing: Sharing::Client, ..settings(over) }
}

// === Shared, over Streamable HTTP ===

/// Accepts the handshake of another session and returns its declared capabilities.
async fn accept_session(world: &mut World, session: &str) -> Value {
    let initialize = world.post().await;
    assert_eq!(initialize.body["method"], "initialize", "{}", initialize.body);
    let declared = initialize.body["params"]["capabilities"].clone();
    let id = initialize.id();
    let body = json!({ "jsonrpc": "2.0", "id": id, "result": initialized("2025-11-25") });
    let response = hyper::Response::builder()
        .header("content-type", "application/json")
        .header("mcp-session-id", session);
    initialize.reply(response, body.to_string());
    let done = world.post().await;
    assert_eq!(done.headers["mcp-session-id"], session);
    done.status(202);
    declared
}

/// Expects the next call, with this `Mcp-Session-Id`.
async fn expect_call(world: &mut World, session: &str) -> Exchange {
    let request = world.post().await;
    assert_eq!(request.body["method"], "tools/call", "{}", request.body);
    assert_eq!(request.headers["mcp-session-id"], session);
    request
}

async fn respond_to_call(world: &mut World, session: &str) {
    expect_call(world, session).await.answer(json!({ "in": session }));
}

/// Expects a DELETE of this `Mcp-Session-Id`.
async fn expect_delete(world: &mut World, session: &str) {
    let request = world.post().await;
    assert_eq!(request.method, hyper::Method::DELETE);
    assert_eq!(request.headers["mcp-session-id"], session);
    request.status(200);
}

#[tokio::test(start_paused = true)]
async fn clients_that_declared_the_same_share_a_session_and_others_have_another() {
    let mut world = World::http(Era::Legacy).await;
    let going = start(&world, roots());
    assert_eq!(accept_session(&mut world, "s2").await, json!({ "roots": {} }));
    respond_to_call(&mut world, "s2").await;
    assert_eq!(end(going).await.expect("a reply"), r#"{"in":"s2"}"#);
    let going = start(&world, client("another", roots()));
    respond_to_call(&mut world, "s2").await;
    end(going).await.expect("a reply");
    let going = start(&world, plain());
    assert_eq!(accept_session(&mut world, "s3").await, json!({}));
    respond_to_call(&mut world, "s3").await;
    end(going).await.expect("a reply");
    // Capabilities of the main session need no additional session.
    let going = start(&world, *call(Revision::NEWEST).caller);
    respond_to_call(&mut world, "s1").await;
    end(going).await.expect("a reply");
    assert!(world.is_quiet().await);
    let stopping = tokio::spawn(world.stop.clone().cancelled_owned());
    world.stop.cancel();
    stopping.await.expect("no panic");
    let mut ended = Vec::new();
    for _ in 0..3 {
        let request = world.post().await;
        assert_eq!(request.method, hyper::Method::DELETE);
        ended.push(request.headers["mcp-session-id"].to_str().expect("text").to_owned());
        request.status(200);
    }
    ended.sort();
    assert_eq!(ended, ["s1", "s2", "s3"]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn two_calls_at_once_open_one_session() {
    let mut world = World::http(Era::Legacy).await;
    let both = [start(&world, roots()), start(&world, roots())];
    wait_until_settled().await;
    accept_session(&mut world, "s2").await;
    respond_to_call(&mut world, "s2").await;
    respond_to_call(&mut world, "s2").await;
    for going in both {
        assert_eq!(end(going).await.expect("a reply"), r#"{"in":"s2"}"#);
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_of_one_session_is_called_over_the_kept_one_and_asked_again_after_a_minute() {
    let mut world = World::http(Era::Legacy).await;
    for _ in 0..2 {
        let going = start(&world, roots());
        let refused = world.post().await;
        assert_eq!(refused.body["method"], "initialize");
        refused.status(400);
        respond_to_call(&mut world, "s1").await;
        end(going).await.expect("a reply");
        let going = start(&world, roots());
        respond_to_call(&mut world, "s1").await;
        end(going).await.expect("a reply");
        tokio::time::sleep(Duration::from_secs(61)).await;
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_with_an_account_never_goes_over_another_connection() {
    let mut world = World::opened_http(with_account(None), Era::Legacy).await;
    let going = start(&world, roots());
    let refused = world.post().await;
    assert_eq!(refused.body["method"], "initialize");
    refused.status(400);
    assert!(matches!(end(going).await, Err(Error::Unavailable(_))));
    // In the pause after that nothing is sent.
    assert!(matches!(end(start(&world, roots())).await, Err(Error::Unavailable(_))));
    assert!(world.is_quiet().await);
    tokio::time::sleep(Duration::from_secs(61)).await;
    let going = start(&world, roots());
    accept_session(&mut world, "s2").await;
    respond_to_call(&mut world, "s2").await;
    end(going).await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_over_is_opened_again_and_the_call_sent_once_more_once() {
    let mut world = World::http(Era::Legacy).await;
    let going = start(&world, roots());
    accept_session(&mut world, "s2").await;
    respond_to_call(&mut world, "s2").await;
    end(going).await.expect("a reply");
    let going = start(&world, roots());
    expect_call(&mut world, "s2").await.status(404);
    world.check().await.status(404);
    accept_session(&mut world, "s3").await;
    respond_to_call(&mut world, "s3").await;
    assert_eq!(end(going).await.expect("a reply"), r#"{"in":"s3"}"#);
    let going = start(&world, roots());
    // The back-off after the first one that was given up.
    tokio::time::sleep(Duration::from_secs(1)).await;
    expect_call(&mut world, "s3").await.status(404);
    world.check().await.status(404);
    accept_session(&mut world, "s4").await;
    expect_call(&mut world, "s4").await.status(404);
    end(going).await.expect_err("it was sent twice");
    assert!(world.is_quiet().await, "no fault of the main session is reported");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_closed_when_nobody_used_it_for_a_while_and_not_before() {
    let mut world = World::http(Era::Legacy).await;
    let going = start(&world, roots());
    accept_session(&mut world, "s2").await;
    let long = expect_call(&mut world, "s2").await;
    let events = long.events();
    // The session is in use: time advances only as far as a call may last.
    tokio::time::sleep(Duration::from_secs(50)).await;
    drop(events);
    let _ = end(going).await;
    tokio::time::sleep(Duration::from_mins(14)).await;
    assert!(world.is_quiet().await);
    tokio::time::sleep(Duration::from_mins(2)).await;
    expect_delete(&mut world, "s2").await;
    let going = start(&world, roots());
    accept_session(&mut world, "s3").await;
    respond_to_call(&mut world, "s3").await;
    end(going).await.expect("a reply");
    world.finish().await;
}

/// One of the clients that declare something different each.
fn different(number: usize) -> CallContext {
    CallContext {
        capabilities: format!(r#"{{"extensions":{{"x/{number}":{{}}}}}}"#).into(),
        ..client(&number.to_string(), plain())
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_with_an_account_waits_for_no_session_and_goes_over_no_other() {
    let mut settings = with_account(None);
    settings.limits.concurrency = 65;
    let mut world = World::opened_http(settings, Era::Legacy).await;
    let mut calls = Vec::new();
    for number in 0..64 {
        let going = start(&world, different(number));
        let session = format!("x{number}");
        accept_session(&mut world, &session).await;
        calls.push((going, expect_call(&mut world, &session).await));
    }
    let refused = end(start(&world, different(64))).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    assert!(world.is_quiet().await);
    for (going, request) in calls {
        request.answer(json!({}));
        end(going).await.expect("a reply");
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_sixty_fifth_set_of_capabilities_takes_the_place_of_the_longest_idle() {
    let mut world = World::http(Era::Legacy).await;
    for number in 0..64 {
        let going = start(&world, different(number));
        let session = format!("x{number}");
        accept_session(&mut world, &session).await;
        respond_to_call(&mut world, &session).await;
        end(going).await.expect("a reply");
        wait_until_settled().await;
    }
    // The first is in use, so the second one is closed.
    let busy = start(&world, different(0));
    let first_call = expect_call(&mut world, "x0").await;
    let going = start(&world, different(64));
    let mut calls = 0;
    let mut ended = Vec::new();
    while calls < 1 || ended.is_empty() {
        let request = world.post().await;
        if request.method == hyper::Method::DELETE {
            ended.push(request.headers["mcp-session-id"].clone());
            request.status(200);
        } else if request.body["method"] == "initialize" {
            let id = request.id();
            let body = json!({ "jsonrpc": "2.0", "id": id, "result": initialized("2025-11-25") });
            let response = hyper::Response::builder()
                .header("content-type", "application/json")
                .header("mcp-session-id", "x64");
            request.reply(response, body.to_string());
        } else if request.body["method"] == "tools/call" {
            calls += 1;
            request.answer(json!({}));
        } else {
            request.status(202);
        }
    }
    end(going).await.expect("a reply");
    assert_eq!(ended, ["x1"]);
    first_call.answer(json!({ "held": 1 }));
    assert_eq!(end(busy).await.expect("a reply"), r#"{"held":1}"#);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn news_of_changes_are_heard_on_a_calls_own_stream_in_a_further_session() {
    let mut world = World::http(Era::Legacy).await;
    let changes = world.upstream.changes();
    let before = changes.borrow().0;
    let going = start(&world, roots());
    accept_session(&mut world, "s2").await;
    let request = expect_call(&mut world, "s2").await;
    let id = request.id();
    let events = request.events();
    let method = "notifications/tools/list_changed";
    events.send(json!({ "jsonrpc": "2.0", "method": method }));
    events.send(json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
    end(going).await.expect("a reply");
    let after = changes.borrow().0;
    assert_eq!(after[ListTopic::Tools.index()], before[ListTopic::Tools.index()] + 1);
    world.finish().await;
}

// === A connection for each client ===

/// Expects the child process of a client.
async fn accept_child(world: &mut World) -> (Peer, Value) {
    let mut child = world.child().await;
    let initialize = child.read().await;
    assert_eq!(initialize["method"], "initialize");
    child.answer(&initialize, initialized("2025-11-25")).await;
    assert_eq!(child.read().await["method"], "notifications/initialized");
    (child, initialize["params"]["capabilities"].clone())
}

async fn respond_from(child: &mut Peer, by: &str) {
    let request = child.read().await;
    assert_eq!(request["method"], "tools/call");
    child.answer(&request, json!({ "by": by })).await;
}

#[tokio::test(start_paused = true)]
async fn each_client_has_a_child_that_ends_with_it() {
    let (mut world, _main) = World::opened(per_client(TestTransport::Stdio), Era::Legacy).await;
    let (ann, bob) = (client("ann", roots()), client("bob", roots()));
    let going = start(&world, ann.clone());
    let (mut anns, declared) = accept_child(&mut world).await;
    assert_eq!(declared, json!({ "roots": {} }));
    respond_from(&mut anns, "ann's").await;
    assert_eq!(end(going).await.expect("a reply"), r#"{"by":"ann's"}"#);
    let going = start(&world, bob.clone());
    let (mut bobs, _) = accept_child(&mut world).await;
    respond_from(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    // A second attempt starts nothing either.
    let going = start(&world, ann.clone());
    respond_from(&mut anns, "ann's").await;
    end(going).await.expect("a reply");
    ann.client.gone.cancel();
    assert_eq!(anns.try_read().await, None, "its input ends");
    anns.exit("is done");
    let going = start(&world, bob);
    respond_from(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_died_is_started_again_by_a_call_after_a_pause() {
    let (mut world, _main) = World::opened(per_client(TestTransport::Stdio), Era::Legacy).await;
    let ann = client("ann", plain());
    let going = start(&world, ann.clone());
    let (mut child, _) = accept_child(&mut world).await;
    assert_eq!(child.read().await["method"], "tools/call");
    child.exit("crashed");
    let error = end(going).await.expect_err("it may have run");
    assert!(matches!(error, Error::ConnectionLost(_)), "{error:?}");
    wait_until_settled().await;
    let error = end(start(&world, ann.clone())).await.expect_err("it rests");
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("crashed")), "{error:?}");
    // Another client's child lives.
    let going = start(&world, client("bob", plain()));
    let (mut bobs, _) = accept_child(&mut world).await;
    respond_from(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    tokio::time::sleep(Duration::from_millis(250)).await;
    let going = start(&world, ann);
    let (mut child, _) = accept_child(&mut world).await;
    respond_from(&mut child, "the next").await;
    assert_eq!(end(going).await.expect("a reply"), r#"{"by":"the next"}"#);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_started_is_tried_after_growing_pauses() {
    let (mut world, _main) = World::opened(per_client(TestTransport::Stdio), Era::Legacy).await;
    for pause in [250, 500] {
        let going = start(&world, client("ann", plain()));
        let mut child = world.child().await;
        assert_eq!(child.read().await["method"], "initialize");
        child.exit("is broken");
        let error = end(going).await.expect_err("it is broken");
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        // Neither for this client nor for another.
        tokio::time::sleep(Duration::from_millis(pause - 10)).await;
        for id in ["ann", "bob"] {
            let again = end(start(&world, client(id, plain()))).await.expect_err("it rests");
            assert_eq!(again.to_string(), error.to_string());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let going = start(&world, client("bob", plain()));
    let (mut child, _) = accept_child(&mut world).await;
    respond_from(&mut child, "bob's").await;
    end(going).await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn one_principal_cannot_take_the_places_of_all() {
    let (mut world, _main) = World::opened(per_client(TestTransport::Stdio), Era::Legacy).await;
    let call_from = |owner: &str, clients: usize, number: usize| {
        let caller = client(&format!("{owner}-{number}"), plain());
        let owner = QuotaOwner { name: owner.into(), clients };
        CallContext { client: caller.client.clone().owned_by(owner), ..caller }
    };
    let mut children = Vec::new();
    for number in 0..16 {
        eprintln!("n {number}");
        let going = start(&world, call_from("ann", 1, number));
        let (mut child, _) = accept_child(&mut world).await;
        respond_from(&mut child, "ann's").await;
        end(going).await.expect("a reply");
        children.push(child);
        wait_until_settled().await;
    }
    // One more replaces this client's own session that was idle for longest.
    let going = start(&world, call_from("bob", 1, 0));
    let (mut bobs, _) = accept_child(&mut world).await;
    respond_from(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    let going = start(&world, call_from("ann", 1, 16));
    let (mut child, _) = accept_child(&mut world).await;
    respond_from(&mut child, "ann's").await;
    end(going).await.expect("a reply");
    assert_eq!(children[0].try_read().await, None, "its input ends");
    children[0].exit("is done");
    let going = start(&world, call_from("bob", 1, 0));
    respond_from(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    // An owner of several clients has a proportionally larger quota.
    let going = start(&world, call_from("ann", 2, 17));
    let (mut child, _) = accept_child(&mut world).await;
    respond_from(&mut child, "ann's").await;
    end(going).await.expect("a reply");
    assert!(world.is_quiet().await);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_while_it_is_opened_leaves_nothing_behind() {
    let (mut world, _main) = World::opened(per_client(TestTransport::Stdio), Era::Legacy).await;
    let ann = client("ann", plain());
    let going = start(&world, ann.clone());
    let mut child = world.child().await;
    assert_eq!(child.read().await["method"], "initialize");
    going.abort();
    assert_eq!(child.try_read().await, None, "its input ends");
    child.exit("is done");
    let going = start(&world, ann);
    let (mut child, _) = accept_child(&mut world).await;
    respond_from(&mut child, "the next").await;
    end(going).await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_child_is_its_clients_own_whatever_each_request_declares() {
    let (mut world, _main) = World::opened(per_client(TestTransport::Stdio), Era::Modern).await;
    let modern =
        |caller: CallContext| CallContext { revision: Revision::NEWEST, ..client("ann", caller) };
    let going = start(&world, modern(roots()));
    let mut child = world.child().await;
    child.open(Era::Modern).await;
    let result = json!({ "resultType": "complete" });
    let request = child.read().await;
    child.answer(&request, result.clone()).await;
    end(going).await.expect("a reply");
    let going = start(&world, modern(plain()));
    let request = child.read().await;
    assert_eq!(request["method"], "tools/call");
    child.answer(&request, result).await;
    end(going).await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_kept_connection_there_are_no_calls() {
    let (mut world, mut main) = World::opened(per_client(TestTransport::Stdio), Era::Legacy).await;
    let ann = client("ann", plain());
    let going = start(&world, ann.clone());
    let (mut child, _) = accept_child(&mut world).await;
    respond_from(&mut child, "ann's").await;
    end(going).await.expect("a reply");
    world.connector.refuses.store(true, Ordering::Relaxed);
    main.exit("crashed");
    world.down().await;
    let error = end(start(&world, ann)).await.expect_err("it is down");
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let closing = tokio::spawn(async move {
        assert_eq!(child.try_read().await, None, "its input ends with the gateway");
        child.exit("is done");
    });
    world.finish().await;
    closing.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_client_keeps_the_connection_in_use() {
    let mut settings = settings(TestTransport::Http);
    settings.timeouts.call_max = Duration::from_hours(1);
    let mut world = World::opened_http(settings, Era::Legacy).await;
    let upstream = world.upstream.clone();
    let going = tokio::spawn(async move { upstream.send(call_of(roots())).await });
    accept_session(&mut world, "s2").await;
    let request = expect_call(&mut world, "s2").await;
    let id = request.id();
    let events = request.events();
    events.send(json!({ "jsonrpc": "2.0", "id": "q", "method": "roots/list" }));
    let CallOutcome::InputRequired(suspended) = going.await.expect("no panic").expect("a question")
    else {
        panic!("it replied")
    };
    tokio::time::sleep(Duration::from_mins(40)).await;
    assert!(world.is_quiet().await, "the session lives");
    let key = suspended.input_requests()[0].key.clone();
    let outcome = weir_mcp::jsonrpc::ResponsePayload::Result(r#"{"roots":[]}"#.into());
    let answering = tokio::spawn(suspended.resume(vec![InputResponse { key, outcome }], roots()));
    let answer = world.post().await;
    assert_eq!(answer.body, json!({ "jsonrpc": "2.0", "id": "q", "result": { "roots": [] } }));
    assert_eq!(answer.headers["mcp-session-id"], "s2");
    answer.status(202);
    events.send(json!({ "jsonrpc": "2.0", "id": id, "result": { "done": 1 } }));
    let reply = answering.await.expect("no panic").expect("a reply");
    assert_eq!(payload(reply).await, r#"{"done":1}"#);
    world.finish().await;
}
