//! Which connection a call goes over: the kept one, one that clients with the same capabilities share, or its client's own.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::mcp::call::{Call, Caller, Client, Owner};
use crate::mcp::input_request::{Abilities, Answered};
use crate::mcp::kind::Topic;
use crate::mcp::revision::{Era, Revision};
use crate::upstream::testing::{Exchange, Over, Peer, World, call, initialized, payload, settings};
use crate::upstream::{Called, Error, Settings, Sharing};

type Going = JoinHandle<Result<String, Error>>;

/// A client that declares roots, and nothing else that can be asked.
fn roots() -> Caller {
    Caller {
        abilities: Abilities { roots: true, ..Abilities::default() },
        capabilities: r#"{"roots":{}}"#.into(),
        ..Caller::plain(Revision::NEWEST_LEGACY)
    }
}

/// A client that declares nothing.
fn plain() -> Caller {
    Caller::plain(Revision::NEWEST_LEGACY)
}

/// A client of its own.
fn known(id: &str, caller: Caller) -> Caller {
    Caller { client: Client::new(id, CancellationToken::new()), ..caller }
}

fn of(caller: Caller) -> Box<Call> {
    Box::new(Call { caller, ..*call(Revision::NEWEST_LEGACY) })
}

/// Begins a call.
fn start(world: &World, caller: Caller) -> Going {
    let upstream = world.upstream.clone();
    tokio::spawn(async move { Ok(payload(upstream.call(of(caller)).await?).await) })
}

async fn end(going: Going) -> Result<String, Error> {
    going.await.expect("no panic")
}

async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

fn per_client(over: Over) -> Settings {
    Settings { sharing: Sharing::Client, ..settings(over) }
}

// === Shared, over Streamable HTTP ===

/// Takes the handshake of a further session and returns what it declares.
async fn opens(world: &mut World, session: &str) -> Value {
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

/// The next call, which must come under this `Mcp-Session-Id`.
async fn called(world: &mut World, session: &str) -> Exchange {
    let request = world.post().await;
    assert_eq!(request.body["method"], "tools/call", "{}", request.body);
    assert_eq!(request.headers["mcp-session-id"], session);
    request
}

async fn answered(world: &mut World, session: &str) {
    called(world, session).await.answer(json!({ "in": session }));
}

/// That the next request is a DELETE of this `Mcp-Session-Id`.
async fn ends(world: &mut World, session: &str) {
    let request = world.post().await;
    assert_eq!(request.method, hyper::Method::DELETE);
    assert_eq!(request.headers["mcp-session-id"], session);
    request.status(200);
}

#[tokio::test(start_paused = true)]
async fn clients_that_declared_the_same_share_a_session_and_others_have_another() {
    let mut world = World::http(Era::Legacy).await;
    let going = start(&world, roots());
    assert_eq!(opens(&mut world, "s2").await, json!({ "roots": {} }));
    answered(&mut world, "s2").await;
    assert_eq!(end(going).await.expect("a reply"), r#"{"in":"s2"}"#);
    let going = start(&world, known("another", roots()));
    answered(&mut world, "s2").await;
    end(going).await.expect("a reply");
    let going = start(&world, plain());
    assert_eq!(opens(&mut world, "s3").await, json!({}));
    answered(&mut world, "s3").await;
    end(going).await.expect("a reply");
    // What the kept session declares is not declared again.
    let going = start(&world, call(Revision::NEWEST).caller);
    answered(&mut world, "s1").await;
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
    settle().await;
    opens(&mut world, "s2").await;
    answered(&mut world, "s2").await;
    answered(&mut world, "s2").await;
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
        answered(&mut world, "s1").await;
        end(going).await.expect("a reply");
        let going = start(&world, roots());
        answered(&mut world, "s1").await;
        end(going).await.expect("a reply");
        tokio::time::sleep(Duration::from_secs(61)).await;
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_over_is_opened_again_and_the_call_sent_once_more_once() {
    let mut world = World::http(Era::Legacy).await;
    let going = start(&world, roots());
    opens(&mut world, "s2").await;
    answered(&mut world, "s2").await;
    end(going).await.expect("a reply");
    let going = start(&world, roots());
    called(&mut world, "s2").await.status(404);
    opens(&mut world, "s3").await;
    answered(&mut world, "s3").await;
    assert_eq!(end(going).await.expect("a reply"), r#"{"in":"s3"}"#);
    let going = start(&world, roots());
    called(&mut world, "s3").await.status(404);
    opens(&mut world, "s4").await;
    called(&mut world, "s4").await.status(404);
    end(going).await.expect_err("it was sent twice");
    assert!(world.is_quiet().await, "the kept session is not blamed");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_closed_when_nobody_used_it_for_a_while_and_not_before() {
    let mut world = World::http(Era::Legacy).await;
    let going = start(&world, roots());
    opens(&mut world, "s2").await;
    let long = called(&mut world, "s2").await;
    let events = long.events();
    // In use: time passes only as far as a call may last.
    tokio::time::sleep(Duration::from_secs(50)).await;
    drop(events);
    let _ = end(going).await;
    tokio::time::sleep(Duration::from_mins(14)).await;
    assert!(world.is_quiet().await);
    tokio::time::sleep(Duration::from_mins(2)).await;
    ends(&mut world, "s2").await;
    let going = start(&world, roots());
    opens(&mut world, "s3").await;
    answered(&mut world, "s3").await;
    end(going).await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_sixty_fifth_set_of_capabilities_takes_the_place_of_the_longest_idle() {
    let mut world = World::http(Era::Legacy).await;
    let set = |number: usize| Caller {
        capabilities: format!(r#"{{"extensions":{{"x/{number}":{{}}}}}}"#).into(),
        ..known(&number.to_string(), plain())
    };
    for number in 0..64 {
        let going = start(&world, set(number));
        let session = format!("x{number}");
        opens(&mut world, &session).await;
        answered(&mut world, &session).await;
        end(going).await.expect("a reply");
        settle().await;
    }
    // The first is in use, so it is the second that goes.
    let busy = start(&world, set(0));
    let held = called(&mut world, "x0").await;
    let going = start(&world, set(64));
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
    held.answer(json!({ "held": 1 }));
    assert_eq!(end(busy).await.expect("a reply"), r#"{"held":1}"#);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn news_of_changes_are_heard_on_a_calls_own_stream_in_a_further_session() {
    let mut world = World::http(Era::Legacy).await;
    let changes = world.upstream.changes();
    let before = changes.borrow().0;
    let going = start(&world, roots());
    opens(&mut world, "s2").await;
    let request = called(&mut world, "s2").await;
    let id = request.id();
    let events = request.events();
    let method = "notifications/tools/list_changed";
    events.send(json!({ "jsonrpc": "2.0", "method": method }));
    events.send(json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
    end(going).await.expect("a reply");
    let after = changes.borrow().0;
    assert_eq!(after[Topic::Tools.index()], before[Topic::Tools.index()] + 1);
    world.finish().await;
}

// === A connection for each client ===

/// The child that is started for a client.
async fn own_child(world: &mut World) -> (Peer, Value) {
    let mut child = world.child().await;
    let initialize = child.read().await;
    assert_eq!(initialize["method"], "initialize");
    child.answer(&initialize, initialized("2025-11-25")).await;
    assert_eq!(child.read().await["method"], "notifications/initialized");
    (child, initialize["params"]["capabilities"].clone())
}

async fn answered_by(child: &mut Peer, by: &str) {
    let request = child.read().await;
    assert_eq!(request["method"], "tools/call");
    child.answer(&request, json!({ "by": by })).await;
}

#[tokio::test(start_paused = true)]
async fn each_client_has_a_child_that_ends_with_it() {
    let (mut world, _main) = World::opened(per_client(Over::Stdio), Era::Legacy).await;
    let (ann, bob) = (known("ann", roots()), known("bob", roots()));
    let going = start(&world, ann.clone());
    let (mut anns, declared) = own_child(&mut world).await;
    assert_eq!(declared, json!({ "roots": {} }));
    answered_by(&mut anns, "ann's").await;
    assert_eq!(end(going).await.expect("a reply"), r#"{"by":"ann's"}"#);
    let going = start(&world, bob.clone());
    let (mut bobs, _) = own_child(&mut world).await;
    answered_by(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    // And again: nothing is started.
    let going = start(&world, ann.clone());
    answered_by(&mut anns, "ann's").await;
    end(going).await.expect("a reply");
    ann.client.gone.cancel();
    assert_eq!(anns.try_read().await, None, "its input ends");
    anns.exit("is done");
    let going = start(&world, bob);
    answered_by(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_died_is_started_again_by_a_call_after_a_pause() {
    let (mut world, _main) = World::opened(per_client(Over::Stdio), Era::Legacy).await;
    let ann = known("ann", plain());
    let going = start(&world, ann.clone());
    let (mut child, _) = own_child(&mut world).await;
    assert_eq!(child.read().await["method"], "tools/call");
    child.exit("crashed");
    let error = end(going).await.expect_err("it may have run");
    assert!(matches!(error, Error::Broke(_)), "{error:?}");
    settle().await;
    let error = end(start(&world, ann.clone())).await.expect_err("it rests");
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("crashed")), "{error:?}");
    // Another client's lives.
    let going = start(&world, known("bob", plain()));
    let (mut bobs, _) = own_child(&mut world).await;
    answered_by(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    tokio::time::sleep(Duration::from_millis(250)).await;
    let going = start(&world, ann);
    let (mut child, _) = own_child(&mut world).await;
    answered_by(&mut child, "the next").await;
    assert_eq!(end(going).await.expect("a reply"), r#"{"by":"the next"}"#);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_started_is_tried_after_growing_pauses() {
    let (mut world, _main) = World::opened(per_client(Over::Stdio), Era::Legacy).await;
    for pause in [250, 500] {
        let going = start(&world, known("ann", plain()));
        let mut child = world.child().await;
        assert_eq!(child.read().await["method"], "initialize");
        child.exit("is broken");
        let error = end(going).await.expect_err("it is broken");
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        // Neither for this client nor for another.
        tokio::time::sleep(Duration::from_millis(pause - 10)).await;
        for client in ["ann", "bob"] {
            let again = end(start(&world, known(client, plain()))).await.expect_err("it rests");
            assert_eq!(again.to_string(), error.to_string());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let going = start(&world, known("bob", plain()));
    let (mut child, _) = own_child(&mut world).await;
    answered_by(&mut child, "bob's").await;
    end(going).await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn one_principal_cannot_take_the_places_of_all() {
    let (mut world, _main) = World::opened(per_client(Over::Stdio), Era::Legacy).await;
    let of = |owner: &str, clients: usize, number: usize| {
        let caller = known(&format!("{owner}-{number}"), plain());
        let owner = Owner { name: owner.into(), clients };
        Caller { client: caller.client.clone().owned_by(owner), ..caller }
    };
    let mut children = Vec::new();
    for number in 0..16 {
        let going = start(&world, of("ann", 1, number));
        let (mut child, _) = own_child(&mut world).await;
        answered_by(&mut child, "ann's").await;
        end(going).await.expect("a reply");
        children.push(child);
        settle().await;
    }
    // One more takes the place of her own that was idle for longest.
    let going = start(&world, of("bob", 1, 0));
    let (mut bobs, _) = own_child(&mut world).await;
    answered_by(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    let going = start(&world, of("ann", 1, 16));
    let (mut child, _) = own_child(&mut world).await;
    answered_by(&mut child, "ann's").await;
    end(going).await.expect("a reply");
    assert_eq!(children[0].try_read().await, None, "its input ends");
    children[0].exit("is done");
    let going = start(&world, of("bob", 1, 0));
    answered_by(&mut bobs, "bob's").await;
    end(going).await.expect("a reply");
    // Who stands for several has as many times as much.
    let going = start(&world, of("ann", 2, 17));
    let (mut child, _) = own_child(&mut world).await;
    answered_by(&mut child, "ann's").await;
    end(going).await.expect("a reply");
    assert!(world.is_quiet().await);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_while_it_is_opened_leaves_nothing_behind() {
    let (mut world, _main) = World::opened(per_client(Over::Stdio), Era::Legacy).await;
    let ann = known("ann", plain());
    let going = start(&world, ann.clone());
    let mut child = world.child().await;
    assert_eq!(child.read().await["method"], "initialize");
    going.abort();
    assert_eq!(child.try_read().await, None, "its input ends");
    child.exit("is done");
    let going = start(&world, ann);
    let (mut child, _) = own_child(&mut world).await;
    answered_by(&mut child, "the next").await;
    end(going).await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_child_is_its_clients_own_whatever_each_request_declares() {
    let (mut world, _main) = World::opened(per_client(Over::Stdio), Era::Modern).await;
    let modern = |caller: Caller| Caller { revision: Revision::NEWEST, ..known("ann", caller) };
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
    let (mut world, mut main) = World::opened(per_client(Over::Stdio), Era::Legacy).await;
    let ann = known("ann", plain());
    let going = start(&world, ann.clone());
    let (mut child, _) = own_child(&mut world).await;
    answered_by(&mut child, "ann's").await;
    end(going).await.expect("a reply");
    world.dial.refuses.store(true, Ordering::Relaxed);
    main.exit("crashed");
    world.down().await;
    let error = end(start(&world, ann)).await.expect_err("it is down");
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let closing = tokio::spawn(async move {
        assert_eq!(child.try_read().await, None, "its input ends with the house");
        child.exit("is done");
    });
    world.finish().await;
    closing.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_client_keeps_the_connection_in_use() {
    let mut settings = settings(Over::Http);
    settings.timeouts.call_max = Duration::from_hours(1);
    let mut world = World::opened_http(settings, Era::Legacy).await;
    let upstream = world.upstream.clone();
    let going = tokio::spawn(async move { upstream.call(of(roots())).await });
    opens(&mut world, "s2").await;
    let request = called(&mut world, "s2").await;
    let id = request.id();
    let events = request.events();
    events.send(json!({ "jsonrpc": "2.0", "id": "q", "method": "roots/list" }));
    let Called::Asks(asks) = going.await.expect("no panic").expect("a question") else {
        panic!("it replied")
    };
    tokio::time::sleep(Duration::from_mins(40)).await;
    assert!(world.is_quiet().await, "the session lives");
    let key = asks.questions()[0].key.clone();
    let outcome = crate::jsonrpc::Outcome::Result(r#"{"roots":[]}"#.into());
    let answering = tokio::spawn(asks.answer(vec![Answered { key, outcome }], roots()));
    let answer = world.post().await;
    assert_eq!(answer.body, json!({ "jsonrpc": "2.0", "id": "q", "result": { "roots": [] } }));
    assert_eq!(answer.headers["mcp-session-id"], "s2");
    answer.status(202);
    events.send(json!({ "jsonrpc": "2.0", "id": id, "result": { "done": 1 } }));
    let reply = answering.await.expect("no panic").expect("a reply");
    assert_eq!(payload(reply).await, r#"{"done":1}"#);
    world.finish().await;
}
