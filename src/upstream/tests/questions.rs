//! Questions: what an upstream asks in the middle of a call, and how the call goes on.

use std::time::Duration;

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::calls::Server;
use super::pair;
use crate::jsonrpc;
use crate::mcp::call::{Call, Caller, Method};
use crate::mcp::call_notifications::Notes;
use crate::mcp::input_request::{Abilities, Answered, Subject};
use crate::mcp::revision::{Era, Revision};
use crate::upstream::call::active_call::MAX_ASKING;
use crate::upstream::testing::{Exchange, Over, Peer, World, alone, call, payload, settings};
use crate::upstream::{Asks, Called, Error};

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::V2026_07_28;
const WIRES: [Over; 3] = [Over::Stdio, Over::Http, Over::Sse];

/// A legacy server that knows for whom it asks, and a call that it is at work on.
struct Cell {
    world: World,
    server: Server,
    running: Running,
}

struct Running(JoinHandle<Result<Called, Error>>);

impl Running {
    fn start(world: &World, call: Box<Call>) -> Self {
        let upstream = world.upstream.clone();
        Self(world.tasks.spawn(async move { upstream.call(call).await }))
    }

    async fn end(self) -> Result<Called, Error> {
        self.0.await.expect("the call was not aborted")
    }

    async fn asks(self) -> Asks {
        match self.end().await {
            Ok(Called::Asks(asks)) => asks,
            other => panic!("{other:?}"),
        }
    }
}

/// A caller that can be asked everything.
fn able(revision: Revision) -> Caller {
    call(revision).caller
}

fn by(caller: Caller) -> Box<Call> {
    Box::new(Call { caller, ..*call(LEGACY) })
}

fn question(id: &str, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn elicit(id: &str) -> Value {
    question(id, "elicitation/create", &json!({ "message": id }))
}

fn result(key: &str, text: &'static str) -> Answered {
    Answered { key: key.into(), outcome: jsonrpc::Outcome::Result(text.into()) }
}

fn error(key: &str, text: &'static str) -> Answered {
    Answered { key: key.into(), outcome: jsonrpc::Outcome::Error(text.into()) }
}

fn keys(asks: &Asks) -> Vec<String> {
    asks.questions().iter().map(|question| question.key.to_string()).collect()
}

fn asked(called: Result<Called, Error>) -> Asks {
    match called {
        Ok(Called::Asks(asks)) => asks,
        other => panic!("{other:?}"),
    }
}

impl Cell {
    async fn open(over: Over, call: Box<Call>) -> Self {
        let (world, server, running) = match over {
            Over::Stdio => {
                let (world, mut peer) = World::opened(alone(over, &call.caller), Era::Legacy).await;
                let running = Running::start(&world, call);
                let request = peer.read().await;
                (world, Server::Stdio(Box::new(peer), request), running)
            }
            Over::Http => {
                let settings = alone(over, &call.caller);
                let mut world = World::opened_http(settings, Era::Legacy).await;
                let running = Running::start(&world, call);
                let request = world.post().await;
                let body = request.body.clone();
                (world, Server::Http(request.events(), body), running)
            }
            Over::Sse => {
                let (mut world, pair) = pair::opened(alone(over, &call.caller)).await;
                let running = Running::start(&world, call);
                let request = pair.read(&mut world).await;
                (world, Server::Sse(pair, request), running)
            }
        };
        Self { world, server, running }
    }

    /// The next message from Weir.
    async fn read(&mut self) -> Value {
        self.server.read(&mut self.world).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_goes_to_the_client_of_its_call_and_the_answer_back() {
    for over in WIRES {
        for revision in [LEGACY, MODERN] {
            let Cell { mut world, mut server, running } =
                Cell::open(over, by(able(revision))).await;
            let params = json!({ "message": "m", "n": 1.5 });
            server.send(question("e-1", "elicitation/create", &params)).await;
            let asks = running.asks().await;
            let [asked_for] = asks.questions() else { panic!("{asks:?}") };
            assert_eq!(asked_for.subject, Subject::Elicitation);
            assert_eq!(asked_for.params.to_bytes(), params.to_string());

            let key = asked_for.key.clone();
            let caller = able(revision);
            let going = world
                .tasks
                .spawn(asks.answer(vec![result(&key, r#"{"action":"accept"}"#)], caller.clone()));
            let answer = server.read(&mut world).await;
            let expected = json!({ "jsonrpc": "2.0", "id": "e-1", "result": {"action": "accept"} });
            assert_eq!(answer, expected, "{over:?}");

            // One after the other, and an error this time.
            server.send(question("s-2", "sampling/createMessage", &json!({}))).await;
            let asks = asked(going.await.expect("no panic"));
            let key = asks.questions()[0].key.clone();
            let no = error(&key, r#"{"code":-1,"message":"no"}"#);
            let going = world.tasks.spawn(asks.answer(vec![no], caller));
            let answer = server.read(&mut world).await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&"s-2".into(), &(-1).into()));

            server.answer(json!({ "ok": 1 })).await;
            let called = going.await.expect("no panic").expect("a reply");
            assert_eq!(payload(called).await, r#"{"ok":1}"#);
            world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn questions_that_come_together_go_out_together() {
    for over in WIRES {
        let Cell { mut world, mut server, running } = Cell::open(over, by(able(LEGACY))).await;
        server.send(elicit("a")).await;
        tokio::time::sleep(Duration::from_millis(4)).await;
        server.send(question("b", "roots/list", &json!({}))).await;
        let asks = running.asks().await;
        let subjects: Vec<_> = asks.questions().iter().map(|it| it.subject).collect();
        assert_eq!(subjects, [Subject::Elicitation, Subject::Roots]);

        // One that comes later is asked later, and so is one that was left without an answer.
        server.send(elicit("c")).await;
        let [first, left] = keys(&asks).try_into().expect("two");
        let answers = vec![result(&first, "{}"), result("nobody", "{}"), result(&first, "{}")];
        let going = world.tasks.spawn(asks.answer(answers, able(LEGACY)));
        assert_eq!(server.read(&mut world).await["id"], "a");
        let asks = asked(going.await.expect("no panic"));
        assert_eq!(keys(&asks)[0], left, "{over:?}");
        assert_eq!(asks.questions()[1].params.to_bytes(), r#"{"message":"c"}"#);
        drop(asks);
        server.expect_cancelled(&mut world, Era::Legacy).await;
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_legacy_client_did_not_declare_is_refused_and_the_call_goes_on() {
    let all = Abilities::ALL;
    let none = Abilities::default();
    let url = json!({ "mode": "url", "url": "https://x.test", "message": "m" });
    for over in WIRES {
        for (abilities, method, params, code) in [
            (none, "elicitation/create", json!({}), -32601),
            (none, "sampling/createMessage", json!({}), -32601),
            (none, "roots/list", json!({}), -32601),
            (Abilities { url: false, ..all }, "elicitation/create", url.clone(), -32602),
            (Abilities { form: false, ..all }, "elicitation/create", json!({}), -32602),
            (
                Abilities { sampling_tools: false, ..all },
                "sampling/createMessage",
                json!({ "tools": [] }),
                -32602,
            ),
            (all, "tools/list", json!({}), -32601),
        ] {
            let caller = Caller { abilities, ..Caller::plain(LEGACY) };
            let mut cell = Cell::open(over, by(caller)).await;
            cell.server.send(question("q", method, &params)).await;
            let refused = cell.read().await;
            assert_eq!((&refused["id"], &refused["error"]["code"]), (&"q".into(), &code.into()));
            let text = refused["error"]["message"].as_str().expect("a text");
            assert!(text.contains("does not support"), "{text}");
            cell.server.answer(json!({ "ok": 1 })).await;
            let called = cell.running.end().await.expect("a reply");
            assert_eq!(payload(called).await, r#"{"ok":1}"#, "{over:?}");
            cell.world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_modern_client_did_not_declare_ends_the_call_and_is_told() {
    for over in WIRES {
        let caller = Caller {
            abilities: Abilities { form: true, ..Abilities::default() },
            ..Caller::plain(MODERN)
        };
        let Cell { mut world, mut server, running } = Cell::open(over, by(caller)).await;
        server.send(elicit("fine")).await;
        server.send(question("q", "sampling/createMessage", &json!({}))).await;
        let lacking = Abilities { sampling: true, ..Abilities::default() };
        match running.end().await {
            Err(Error::Undeclared(found)) => assert_eq!(found, lacking),
            other => panic!("{other:?}"),
        }
        let mut messages = Vec::new();
        for _ in 0..3 {
            let message = server.read(&mut world).await;
            let method = message["method"].as_str().map(str::to_owned);
            messages.push(
                method.unwrap_or_else(|| format!("{} {}", message["id"], message["error"]["code"])),
            );
        }
        messages.sort();
        let expected = ["\"fine\" -32603", "\"q\" -32601", "notifications/cancelled"];
        assert_eq!(messages, expected, "{over:?}");
        world.finish().await;
    }
}

// === Whose question it is ===

/// Has `message` sent where all share one stream, or on the session's own over HTTP, with a call under way that
/// could be asked, and returns what comes back.
async fn refused(over: Over, message: Value) -> Value {
    let call = by(able(LEGACY));
    let (world, running, answer) = match over {
        Over::Stdio => {
            let (world, mut peer) = World::stdio(Era::Legacy).await;
            let running = Running::start(&world, call);
            peer.read().await;
            peer.send(message).await;
            let answer = peer.read().await;
            (world, running, answer)
        }
        Over::Sse => {
            let (mut world, pair) = pair::pair().await;
            let running = Running::start(&world, call);
            pair.read(&mut world).await;
            pair.events.send(message);
            let answer = pair.read(&mut world).await;
            (world, running, answer)
        }
        Over::Http => {
            let mut world = World::start(settings(Over::Http));
            world.open_http(Era::Legacy).await;
            let get = world.request().await;
            assert_eq!(get.method, "GET");
            let own = get.events();
            world.up().await;
            let running = Running::start(&world, call);
            let call = world.post().await;
            let _events = call.events();
            own.send(message);
            let post = world.post().await;
            let body = post.body.clone();
            post.status(202);
            (world, running, body)
        }
    };
    running.0.abort();
    world.finish().await;
    answer
}

#[tokio::test(start_paused = true)]
async fn a_question_that_may_be_anybodys_is_refused() {
    for over in WIRES {
        for subject in Subject::ALL {
            let answer = refused(over, question("q", subject.method(), &json!({}))).await;
            let seen = (&answer["id"], &answer["error"]["code"]);
            assert_eq!(seen, (&"q".into(), &(-32601).into()), "{over:?}");
        }
        let answer = refused(over, question("p", "ping", &json!({}))).await;
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": "p", "result": {} }), "{over:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_clients_server_asks_the_newest_call_and_none_that_is_over() {
    let settings = alone(Over::Stdio, &able(LEGACY));
    let (world, mut peer) = World::opened(settings, Era::Legacy).await;
    peer.send(elicit("early")).await;
    assert_eq!(peer.read().await["error"]["code"], -32601);
    let older = Running::start(&world, by(able(LEGACY)));
    let first = peer.read().await;
    let newer = Running::start(&world, by(able(LEGACY)));
    let second = peer.read().await;
    peer.send(elicit("q")).await;
    let asks = newer.asks().await;
    peer.answer(&first, json!({ "n": 1 })).await;
    assert_eq!(payload(older.end().await.expect("a reply")).await, r#"{"n":1}"#);
    peer.answer(&second, json!({ "n": 2 })).await;
    peer.send(elicit("late")).await;
    assert_eq!(peer.read().await["error"]["code"], -32601);
    // The answer of a client to a call that is over goes nowhere.
    let key = asks.questions()[0].key.clone();
    let called = asks.answer(vec![result(&key, "{}")], able(LEGACY)).await.expect("a reply");
    assert_eq!(payload(called).await, r#"{"n":2}"#);
    peer.send(question("p", "ping", &json!({}))).await;
    assert_eq!(peer.read().await["id"], "p");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn on_the_sessions_own_stream_one_clients_server_asks_the_call_that_is_under_way() {
    for revision in [LEGACY, MODERN] {
        let mut world = World::start(alone(Over::Http, &able(revision)));
        world.open_http(Era::Legacy).await;
        let get = world.request().await;
        assert_eq!(get.method, "GET");
        let own = get.events();
        world.up().await;
        let running = Running::start(&world, by(able(revision)));
        let request = world.post().await;
        own.send(elicit("q"));
        let asks = running.asks().await;
        let key = asks.questions()[0].key.clone();
        let ended = async {
            let called = asks.answer(vec![result(&key, r#"{"action":"accept"}"#)], able(revision));
            payload(called.await.expect("a reply")).await
        };
        let served = async {
            let post = world.post().await;
            let expected = json!({ "jsonrpc": "2.0", "id": "q", "result": { "action": "accept" } });
            assert_eq!(post.body, expected, "{revision}");
            post.status(202);
            request.answer(json!({ "n": 1 }));
        };
        let (payload, ()) = tokio::join!(ended, served);
        assert_eq!(payload, r#"{"n":1}"#, "{revision}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f_37b_the_first_of_two_questions_with_one_id_is_asked() {
    for over in WIRES {
        let Cell { mut world, mut server, running } = Cell::open(over, by(able(LEGACY))).await;
        for message in ["first", "second"] {
            let params = json!({ "message": message });
            server.send(question("q", "elicitation/create", &params)).await;
        }
        let asks = running.asks().await;
        let [only] = asks.questions() else { panic!("{asks:?}") };
        assert_eq!(only.params.to_bytes(), r#"{"message":"first"}"#);
        let key = only.key.clone();
        let going = world.tasks.spawn(asks.answer(vec![result(&key, "{}")], able(LEGACY)));
        assert_eq!(server.read(&mut world).await["id"], "q");
        // Once it is answered the id is free: some servers know no other.
        server.send(elicit("q")).await;
        let asks = asked(going.await.expect("no panic"));
        let again = &asks.questions()[0];
        assert_eq!(again.params.to_bytes(), r#"{"message":"q"}"#, "{over:?}");
        assert_ne!(again.key, key, "an old answer is none to the new question");
        server.answer(json!({})).await;
        asks.answer(Vec::new(), able(LEGACY)).await.expect("a reply");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_open_on_one_call_is_no_question_on_another() {
    let mut world = World::http(Era::Legacy).await;
    let one = Running::start(&world, by(able(LEGACY)));
    let (post, running) = (world.post().await, Running::start(&world, by(able(LEGACY))));
    let one_stream = post.events();
    let post = world.post().await;
    let id = post.id();
    let other_stream = post.events();
    one_stream.send(elicit("q"));
    let asks = one.asks().await;
    other_stream.send(elicit("q"));
    other_stream.send(json!({ "jsonrpc": "2.0", "id": id, "result": {"n": 2} }));
    assert_eq!(payload(running.end().await.expect("a reply")).await, r#"{"n":2}"#);
    assert!(world.is_quiet().await, "nobody answers for another");
    drop(asks);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn among_many_calls_on_one_session_each_question_finds_its_own_client() {
    const CALLS: usize = 40;
    let mut world = World::http(Era::Legacy).await;
    let (mut running, mut streams) = (Vec::new(), Vec::new());
    for number in 0..CALLS {
        let mut call = by(able(if number % 2 == 0 { LEGACY } else { MODERN }));
        call.params.set("arguments", format!("{{\"n\":{number}}}"));
        let waiting = Running::start(&world, call);
        let post = world.post().await;
        assert_eq!(post.body["params"]["arguments"]["n"], number);
        let id = post.id();
        let stream = post.events();
        stream.send(elicit(&format!("q{number}")));
        running.push(waiting.asks().await);
        streams.push((id, stream));
    }
    // Answered in another order than they came.
    for (number, asks) in running.into_iter().enumerate().rev() {
        let [asked_for] = asks.questions() else { panic!("{asks:?}") };
        assert_eq!(asked_for.params.to_bytes(), format!("{{\"message\":\"q{number}\"}}"));
        let outcome = jsonrpc::Outcome::Result(format!("{{\"n\":{number}}}").into());
        let answers = vec![Answered { key: asked_for.key.clone(), outcome }];
        let going = Running(world.tasks.spawn(asks.answer(answers, able(LEGACY))));
        let post = world.post().await;
        let expected =
            json!({ "jsonrpc": "2.0", "id": format!("q{number}"), "result": {"n": number} });
        assert_eq!(post.body, expected);
        post.status(202);
        let (id, stream) = &streams[number];
        stream.send(json!({ "jsonrpc": "2.0", "id": id, "result": {"n": number} }));
        let reply = payload(going.end().await.expect("a reply")).await;
        assert_eq!(reply, format!("{{\"n\":{number}}}"));
    }
    assert!(world.is_quiet().await);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_questions_is_refused_beyond_its_bound() {
    for over in WIRES {
        let Cell { mut world, mut server, running } = Cell::open(over, by(able(LEGACY))).await;
        for number in 0..20 {
            server.send(elicit(&number.to_string())).await;
        }
        let mut refused = Vec::new();
        let asks = running.asks().await;
        for _ in 0..4 {
            let answer = server.read(&mut world).await;
            assert_eq!(answer["error"]["code"], -32603);
            refused.push(answer["id"].as_str().expect("an id").to_owned());
        }
        refused.sort();
        assert_eq!(refused, ["16", "17", "18", "19"], "{over:?}");
        assert_eq!(asks.questions().len(), 16);
        server.answer(json!({})).await;
        asks.answer(Vec::new(), able(LEGACY)).await.expect("a reply");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f_37h_a_request_on_a_modern_stream_is_not_answered() {
    let mut requests: Vec<Value> =
        Subject::ALL.iter().map(|it| question("q", it.method(), &json!({}))).collect();
    requests.push(question("p", "ping", &json!({})));
    requests.push(question("u", "no/such", &json!({})));
    let complete = json!({ "resultType": "complete" });
    for revision in [LEGACY, MODERN] {
        let settings = alone(Over::Stdio, &able(revision));
        let (world, mut peer) = World::opened(settings, Era::Modern).await;
        let running = Running::start(&world, by(able(revision)));
        let request = peer.read().await;
        for request in &requests {
            peer.send(request.clone()).await;
        }
        peer.answer(&request, complete.clone()).await;
        running.end().await.expect("a reply");
        // What comes next from Weir is the next call, and nothing before it.
        let running = Running::start(&world, by(able(revision)));
        let request = peer.read().await;
        assert_eq!(request["method"], "tools/call");
        peer.answer(&request, complete.clone()).await;
        running.end().await.expect("a reply");
        world.finish().await;

        let mut world = World::http(Era::Modern).await;
        let running = Running::start(&world, by(able(revision)));
        let post = world.post().await;
        let id = post.id();
        let events = post.events();
        requests.iter().for_each(|request| events.send(request.clone()));
        events.send(json!({ "jsonrpc": "2.0", "id": id, "result": complete }));
        running.end().await.expect("a reply");
        assert!(world.is_quiet().await);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_the_negotiated_revision_does_not_know_is_refused() {
    let url = json!({ "mode": "url" });
    for (revision, method, params, code) in [
        ("2025-03-26", "elicitation/create", json!({}), Some(-32601)),
        ("2025-06-18", "elicitation/create", json!({}), None),
        ("2025-06-18", "elicitation/create", url.clone(), Some(-32602)),
        ("2025-11-25", "elicitation/create", url, None),
        ("2025-06-18", "sampling/createMessage", json!({ "tools": [] }), Some(-32602)),
        ("2024-11-05", "sampling/createMessage", json!({}), None),
        ("2024-11-05", "roots/list", json!({}), None),
    ] {
        let mut world = World::start(alone(Over::Stdio, &able(LEGACY)));
        let mut peer = world.child().await;
        let discover = peer.read().await;
        peer.refuse(&discover, -32601).await;
        peer.initialize(revision).await;
        world.up().await;
        let running = Running::start(&world, by(able(LEGACY)));
        let request = peer.read().await;
        peer.send(question("q", method, &params)).await;
        match code {
            Some(code) => {
                assert_eq!(peer.read().await["error"]["code"], code, "{revision}: {method}");
                peer.answer(&request, json!({})).await;
                running.end().await.expect("a reply");
            }
            None => drop(running.asks().await),
        }
        world.finish().await;
    }
}

// === While it waits ===

#[tokio::test(start_paused = true)]
async fn a_question_that_is_withdrawn_needs_no_answer() {
    for over in WIRES {
        let Cell { mut world, mut server, running } = Cell::open(over, by(able(LEGACY))).await;
        server.send(elicit("q")).await;
        let mut asks = running.asks().await;
        let withdraw = json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "q"},
        });
        server.send(withdraw).await;
        assert!(asks.more().await.is_none());
        server.send(elicit("r")).await;
        let key = asks.questions()[0].key.clone();
        let asks = asked(asks.answer(vec![result(&key, "{}")], able(LEGACY)).await);
        let key = asks.questions()[0].key.clone();
        let going = world.tasks.spawn(asks.answer(vec![result(&key, "{}")], able(LEGACY)));
        let answer = server.read(&mut world).await;
        assert_eq!(answer["id"], "r", "{over:?}: the other is not answered");
        server.answer(json!({})).await;
        going.await.expect("no panic").expect("a reply");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_may_reply_without_waiting_for_answers() {
    for over in WIRES {
        let Cell { mut world, mut server, running } = Cell::open(over, by(able(LEGACY))).await;
        server.send(elicit("q")).await;
        let mut asks = running.asks().await;
        server.answer(json!({ "ok": 1 })).await;
        assert!(asks.more().await.is_none());
        let called = asks.answer(Vec::new(), able(LEGACY)).await.expect("a reply");
        assert_eq!(payload(called).await, r#"{"ok":1}"#, "{over:?}");
        if let Server::Http(..) = server {
            assert!(world.is_quiet().await, "nobody answers what nobody asks any more");
        }
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_while_its_question_is_open_ends_the_call() {
    for over in WIRES {
        let Cell { world, mut server, running } = Cell::open(over, by(able(LEGACY))).await;
        server.send(elicit("q")).await;
        let mut asks = running.asks().await;
        match server {
            Server::Stdio(mut peer, _) => peer.exit("exit status: 1"),
            Server::Http(events, _) => events.cut(),
            Server::Sse(pair, _) => pair.events.cut(),
        }
        assert!(asks.more().await.is_none());
        let key = asks.questions()[0].key.clone();
        let ended = asks.answer(vec![result(&key, "{}")], able(LEGACY)).await;
        assert!(matches!(ended, Err(Error::Broke(_))), "{over:?}: {ended:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_waits_is_cancelled_and_its_questions_refused() {
    for over in WIRES {
        let Cell { mut world, mut server, running } = Cell::open(over, by(able(LEGACY))).await;
        server.send(elicit("q")).await;
        drop(running.asks().await);
        let mut seen = Vec::new();
        for _ in 0..2 {
            let message = server.read(&mut world).await;
            seen.push((message["method"].clone(), message["id"].clone()));
        }
        assert!(seen.contains(&("notifications/cancelled".into(), Value::Null)), "{seen:?}");
        assert!(seen.contains(&(Value::Null, "q".into())), "{seen:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_delivered_ends_the_call() {
    let Cell { mut world, server, running } = Cell::open(Over::Http, by(able(LEGACY))).await;
    let Server::Http(events, _) = &server else { panic!("over HTTP") };
    events.send(elicit("q"));
    let asks = running.asks().await;
    let key = asks.questions()[0].key.clone();
    let going = world.tasks.spawn(asks.answer(vec![result(&key, "{}")], able(LEGACY)));
    world.post().await.status(404);
    let ended = going.await.expect("no panic");
    assert!(matches!(ended, Err(Error::Broke(_))), "{ended:?}");
    server.expect_cancelled(&mut world, Era::Legacy).await;
    assert!(world.is_quiet().await, "it is not called again");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn while_a_call_waits_its_idle_time_stands_still_and_its_longest_does_not() {
    let second = Duration::from_secs(1);
    for over in WIRES {
        for (waits, ends_after) in [
            // 60 s of silence, of which the wait is none; progress counts, so the answer does, too.
            (300, 300 + 60),
            // 600 s in all.
            (590, 600),
            (700, 700),
        ] {
            let start = Instant::now();
            let Cell { world, mut server, running } = Cell::open(over, by(able(LEGACY))).await;
            let begun = start.elapsed();
            server.send(elicit("q")).await;
            let asks = running.asks().await;
            tokio::time::sleep(waits * second).await;
            let key = asks.questions()[0].key.clone();
            let ended = asks.answer(vec![result(&key, "{}")], able(LEGACY)).await;
            assert!(matches!(ended, Err(Error::TimedOut(_))), "{ended:?}");
            let took = start.elapsed() - begun;
            let late = took.abs_diff(ends_after * second);
            assert!(late < second, "{over:?}: {waits} → {took:?}");
            drop(server);
            world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_progress_does_not_count_the_idle_time_goes_on_where_it_stood() {
    let mut settings = alone(Over::Stdio, &able(LEGACY));
    settings.timeouts.reset_on_progress = false;
    let mut world = World::start(settings);
    let mut peer = world.child().await;
    peer.open(Era::Legacy).await;
    world.up().await;
    let start = Instant::now();
    let running = Running::start(&world, by(able(LEGACY)));
    peer.read().await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    peer.send(elicit("q")).await;
    let asks = running.asks().await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let ended = asks.answer(Vec::new(), able(LEGACY)).await;
    // It was left without an answer, so it is asked again at once; then the last 20 s run out.
    let asks = asked(ended);
    let key = asks.questions()[0].key.clone();
    let ended = asks.answer(vec![result(&key, "{}")], able(LEGACY)).await;
    assert!(matches!(ended, Err(Error::TimedOut(_))), "{ended:?}");
    assert_eq!(start.elapsed().as_secs(), 160);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_the_turn_of_a_call_that_waits() {
    let mut settings = alone(Over::Stdio, &able(LEGACY));
    settings.limits.concurrency = 1;
    let mut world = World::start(settings);
    let mut peer = world.child().await;
    peer.open(Era::Legacy).await;
    world.up().await;
    let first = Running::start(&world, by(able(LEGACY)));
    let first_request = peer.read().await;
    peer.send(elicit("q")).await;
    let asks = first.asks().await;

    let second = Running::start(&world, by(able(LEGACY)));
    let second_request = peer.read().await;
    let key = asks.questions()[0].key.clone();
    let going = world.tasks.spawn(asks.answer(vec![result(&key, "{}")], able(LEGACY)));
    // The first goes on once the second is done.
    tokio::time::sleep(Duration::from_secs(5)).await;
    peer.answer(&second_request, json!({ "n": 2 })).await;
    assert_eq!(payload(second.end().await.expect("a reply")).await, r#"{"n":2}"#);
    assert_eq!(peer.read().await["id"], "q");
    peer.answer(&first_request, json!({ "n": 1 })).await;
    let called = going.await.expect("no panic").expect("a reply");
    assert_eq!(payload(called).await, r#"{"n":1}"#);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_are_bounded_and_block_nobody() {
    let settings = alone(Over::Stdio, &able(LEGACY));
    let (world, mut peer) = World::opened(settings, Era::Legacy).await;
    let mut waiting = Vec::new();
    for number in 0..MAX_ASKING {
        let running = Running::start(&world, by(able(LEGACY)));
        peer.read().await;
        peer.send(elicit(&number.to_string())).await;
        waiting.push(running.asks().await);
    }
    // One more is told that it cannot ask now, and goes on: it has begun.
    let running = Running::start(&world, by(able(LEGACY)));
    let request = peer.read().await;
    peer.send(elicit("more")).await;
    let refused = peer.read().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("more"), &json!(-32603)));
    peer.answer(&request, json!({})).await;
    running.end().await.expect("a reply");

    let running = Running::start(&world, by(able(LEGACY)));
    let request = peer.read().await;
    peer.answer(&request, json!({})).await;
    running.end().await.expect("a reply");
    drop(waiting);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_server_says_while_a_call_waits_is_heard() {
    for over in WIRES {
        let (notes, mut stream) = Notes::channel();
        let caller = Caller { notes, ..able(MODERN) };
        let Cell { mut world, mut server, running } = Cell::open(over, by(caller)).await;
        server.send(elicit("q")).await;
        let asks = running.asks().await;
        server.send(question("p", "ping", &json!({}))).await;
        assert_eq!(server.read(&mut world).await["id"], "p", "{over:?}");
        server.progress(1).await;
        assert_eq!(stream.next().await.expect_progress().get("progress"), Some("1"));
        // Nobody comes back: the upstream is not held beyond the call's longest time.
        tokio::time::sleep(Duration::from_secs(600)).await;
        let ended = asks.answer(Vec::new(), able(MODERN)).await;
        assert!(matches!(ended, Err(Error::TimedOut(_))), "{over:?}: {ended:?}");
        server.expect_cancelled(&mut world, Era::Legacy).await;
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn notes_go_to_whoever_answered_last() {
    for over in WIRES {
        let (notes, first) = Notes::channel();
        let caller = Caller { notes, ..able(MODERN) };
        let Cell { mut world, mut server, running } = Cell::open(over, by(caller)).await;
        server.progress(1).await;
        server.send(elicit("q")).await;
        let asks = running.asks().await;
        let (notes, second) = Notes::channel();
        let caller = Caller { notes, ..able(MODERN) };
        let key = asks.questions()[0].key.clone();
        let going = world.tasks.spawn(asks.answer(vec![result(&key, "{}")], caller));
        server.read(&mut world).await;
        server.progress(2).await;
        server.answer(json!({})).await;
        going.await.expect("no panic").expect("a reply");
        for (stream, progress) in [(first, "1"), (second, "2")] {
            let notes = stream.rest();
            let values: Vec<_> =
                notes.iter().map(|note| note.expect_progress().get("progress")).collect();
            assert_eq!(values, [Some(progress)], "{over:?}");
        }
        world.finish().await;
    }
}

// === Modern servers, legacy clients ===

/// A modern server in one of its two wires.
enum Modern {
    Stdio(Box<Peer>),
    Http,
}

/// A request to it that is not answered yet.
struct Round {
    body: Value,
    exchange: Option<Exchange>,
}

impl Modern {
    async fn open(over: Over) -> (World, Self) {
        match over {
            Over::Stdio => {
                let (world, peer) = World::stdio(Era::Modern).await;
                (world, Self::Stdio(Box::new(peer)))
            }
            _ => (World::http(Era::Modern).await, Self::Http),
        }
    }

    async fn read(&mut self, world: &mut World) -> Round {
        match self {
            Self::Stdio(peer) => Round { body: peer.read().await, exchange: None },
            Self::Http => {
                let exchange = world.post().await;
                assert_eq!(exchange.headers["mcp-name"], "t");
                Round { body: exchange.body.clone(), exchange: Some(exchange) }
            }
        }
    }

    async fn answer(&mut self, round: Round, result: &Value) {
        match (self, round.exchange) {
            (Self::Stdio(peer), _) => peer.answer(&round.body, result.clone()).await,
            (Self::Http, exchange) => exchange.expect("over HTTP").answer(result.clone()),
        }
    }

    /// Answers every request with `result` until the call has ended.
    async fn always(&mut self, world: &mut World, running: Running, result: &Value) -> Ended {
        let mut ended = running.end().boxed();
        let (mut requests, mut asks) = (0, 0);
        loop {
            let round = tokio::select! {
                biased;
                round = self.read(world) => round,
                called = &mut ended => match called {
                    Ok(Called::Asks(waits)) => {
                        asks += 1;
                        let answers = keys(&waits).iter().map(|key| self::result(key, "{}")).collect();
                        ended = waits.answer(answers, able(LEGACY)).boxed();
                        continue;
                    }
                    called => return Ended { called, requests, asks },
                },
            };
            requests += 1;
            self.answer(round, result).await;
        }
    }
}

struct Ended {
    called: Result<Called, Error>,
    requests: usize,
    asks: usize,
}

fn input_required(requests: &Value) -> Value {
    json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "s/\u{e9}" })
}

const MODERN_WIRES: [Over; 2] = [Over::Stdio, Over::Http];

#[tokio::test(start_paused = true)]
async fn a_legacy_client_is_asked_and_the_call_sent_again_with_its_answers() {
    for over in MODERN_WIRES {
        let (mut world, mut server) = Modern::open(over).await;
        let running = Running::start(&world, by(able(LEGACY)));
        let first = server.read(&mut world).await;
        let (first_id, first_params) = (first.body["id"].clone(), first.body["params"].clone());
        let requests = json!({
            "who \u{1F600}": { "method": "elicitation/create", "params": {"message": "m"} },
            "b": { "method": "roots/list" },
        });
        server.answer(first, &input_required(&requests)).await;
        let asks = running.asks().await;
        let seen: Vec<_> = asks
            .questions()
            .iter()
            .map(|it| (&*it.key, it.subject, it.params.to_bytes()))
            .collect();
        let expected = [
            ("who \u{1F600}", Subject::Elicitation, r#"{"message":"m"}"#.into()),
            ("b", Subject::Roots, "{}".into()),
        ];
        assert_eq!(seen, expected);
        let answers = vec![
            result("b", r#"{"roots":[]}"#),
            error("who \u{1F600}", r#"{"code":-32601,"message":"no"}"#),
        ];
        let going = world.tasks.spawn(asks.answer(answers, able(LEGACY)));
        let second = server.read(&mut world).await;
        assert_ne!(second.body["id"], first_id);
        let mut params = second.body["params"].clone();
        let members = params.as_object_mut().expect("an object");
        assert_eq!(members.remove("requestState"), Some("s/\u{e9}".into()));
        let responses = json!({ "b": {"roots": []}, "who \u{1F600}": {"action": "cancel"} });
        assert_eq!(members.remove("inputResponses"), Some(responses));
        assert_eq!(params, first_params, "all else is as it was");
        server.answer(second, &json!({ "resultType": "complete", "ok": 1 })).await;
        let called = going.await.expect("no panic").expect("a reply");
        assert_eq!(payload(called).await, r#"{"resultType":"complete","ok":1}"#);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn between_two_rounds_there_is_nothing_to_cancel() {
    for over in MODERN_WIRES {
        let (mut world, mut server) = Modern::open(over).await;
        let running = Running::start(&world, by(able(LEGACY)));
        let round = server.read(&mut world).await;
        let requests = json!({ "q": {"method": "roots/list"} });
        server.answer(round, &input_required(&requests)).await;
        drop(running.asks().await);
        // What comes next is the next call, which is cancelled in mid-round.
        let running = Running::start(&world, by(able(LEGACY)));
        let round = server.read(&mut world).await;
        assert_eq!(round.body["method"], "tools/call", "{over:?}");
        server.answer(round, &input_required(&requests)).await;
        let asks = running.asks().await;
        let going = world.tasks.spawn(asks.answer(vec![result("q", "{}")], able(LEGACY)));
        let mut round = server.read(&mut world).await;
        going.abort();
        match (&mut server, &mut round.exchange) {
            (Modern::Stdio(peer), _) => {
                let cancelled = peer.read().await;
                assert_eq!(cancelled["method"], "notifications/cancelled");
                assert_eq!(cancelled["params"]["requestId"], round.body["id"]);
            }
            (_, exchange) => exchange.as_mut().expect("over HTTP").abandoned().await,
        }
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_stopped_ends_the_calls_that_wait() {
    for over in WIRES {
        let Cell { world, mut server, running } = Cell::open(over, by(able(MODERN))).await;
        server.send(elicit("q")).await;
        let asks = running.asks().await;
        world.finish().await;
        let ended = asks.answer(Vec::new(), able(MODERN)).await;
        assert!(matches!(ended, Err(Error::Broke(_))), "{over:?}: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_out_is_asked_again_before_the_call_is_sent_again() {
    for over in MODERN_WIRES {
        let (mut world, mut server) = Modern::open(over).await;
        let running = Running::start(&world, by(able(LEGACY)));
        let round = server.read(&mut world).await;
        let requests = json!({ "a": {"method": "roots/list"}, "b": {"method": "roots/list"} });
        server.answer(round, &input_required(&requests)).await;
        let asks = running.asks().await;
        let answers = vec![result("b", r#"{"n":1}"#), result("b", r#"{"n":2}"#), result("c", "{}")];
        let asks = asked(asks.answer(answers, able(LEGACY)).await);
        assert_eq!(keys(&asks), ["a"], "{over:?}");
        let answers = vec![result("a", r#"{"n":3}"#), result("b", r#"{"n":4}"#)];
        let going = Running(world.tasks.spawn(asks.answer(answers, able(LEGACY))));
        let round = server.read(&mut world).await;
        let responses = json!({ "b": {"n": 1}, "a": {"n": 3} });
        assert_eq!(round.body["params"]["inputResponses"], responses);
        server.answer(round, &json!({ "resultType": "complete" })).await;
        going.end().await.expect("a reply");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn rounds_have_the_time_limits_of_one_call() {
    for over in MODERN_WIRES {
        for (waits, ends_after, requests) in [(300, 360, 2), (590, 600, 2), (700, 700, 1)] {
            let (mut world, mut server) = Modern::open(over).await;
            let start = Instant::now();
            let running = Running::start(&world, by(able(LEGACY)));
            let round = server.read(&mut world).await;
            let question = json!({ "q": {"method": "roots/list"} });
            server.answer(round, &input_required(&question)).await;
            let asks = running.asks().await;
            tokio::time::sleep(Duration::from_secs(waits)).await;
            let going =
                Running(world.tasks.spawn(asks.answer(vec![result("q", "{}")], able(LEGACY))));
            let open = match requests {
                2 => Some(server.read(&mut world).await),
                _ => None,
            };
            let ended = going.end().await;
            assert!(matches!(ended, Err(Error::TimedOut(_))), "{over:?}: {ended:?}");
            assert_eq!(start.elapsed().as_secs(), ends_after, "{over:?}");
            drop((open, server));
            world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_goes_back_byte_for_byte_and_none_where_none_came() {
    let (world, mut peer) = World::stdio(Era::Modern).await;
    let mut running = Running::start(&world, by(able(LEGACY)));
    let mut id = peer.read().await["id"].clone();
    for state in [Some(r#""\u0041\/ \ud83d\ude00""#), None] {
        let state = state.map(|state| format!(r#","requestState":{state}"#)).unwrap_or_default();
        let requests = r#"{"q":{"method":"roots/list"}}"#;
        let result =
            format!(r#"{{"resultType":"input_required","inputRequests":{requests}{state}}}"#);
        peer.write(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await;
        let asks = running.asks().await;
        let answers = vec![self::result("q", "{}")];
        running = Running(world.tasks.spawn(asks.answer(answers, able(LEGACY))));
        let line = peer.read_line().await.expect("a line");
        assert_eq!(line.contains("requestState"), !state.is_empty(), "{line}");
        assert!(line.contains(&state), "{line}");
        id = serde_json::from_str::<Value>(&line).expect("JSON")["id"].clone();
    }
    peer.write(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)).await;
    running.end().await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f_37_input_that_is_wanted_for_ever_ends_after_eight_rounds() {
    for over in MODERN_WIRES {
        for (result, asked, least) in [
            (input_required(&json!({ "q": {"method": "roots/list"} })), 8, 0),
            // Only to be sent again: after 0.1, 0.2, 0.4, 0.8, 1.6, 2, 2 and 2 s.
            (json!({ "resultType": "input_required", "requestState": "s" }), 0, 9_100),
            (
                json!({ "resultType": "input_required", "requestState": "s", "inputRequests": {} }),
                0,
                9_100,
            ),
        ] {
            let (mut world, mut server) = Modern::open(over).await;
            let start = Instant::now();
            let running = Running::start(&world, by(able(LEGACY)));
            let ended = server.always(&mut world, running, &result).await;
            assert!(
                matches!(&ended.called, Err(Error::Protocol(text)) if text.contains("8 rounds"))
            );
            assert_eq!((ended.requests, ended.asks), (9, asked), "{over:?}");
            assert!(start.elapsed() >= Duration::from_millis(least), "{:?}", start.elapsed());
            world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f_37_what_a_modern_server_may_not_ask_ends_the_call_at_once() {
    let many: serde_json::Map<_, _> =
        (0..17).map(|key| (key.to_string(), json!({ "method": "roots/list" }))).collect();
    let no_sampling = Abilities { sampling: false, ..Abilities::ALL };
    for over in MODERN_WIRES {
        for (what, result) in [
            ("an unknown method", input_required(&json!({ "q": {"method": "tools/list"} }))),
            ("no method", input_required(&json!({ "q": {} }))),
            ("no request", input_required(&json!({ "q": 7 }))),
            ("params that are none", {
                input_required(&json!({ "q": {"method": "roots/list", "params": 7} }))
            }),
            ("an array", input_required(&json!([]))),
            ("too many", input_required(&many.clone().into())),
            ("nothing", json!({ "resultType": "input_required" })),
            ("a state that is no string", {
                json!({ "resultType": "input_required", "requestState": null })
            }),
        ] {
            let (mut world, mut server) = Modern::open(over).await;
            let running = Running::start(&world, by(able(LEGACY)));
            let ended = server.always(&mut world, running, &result).await;
            assert!(matches!(ended.called, Err(Error::Protocol(_))), "{what}: {:?}", ended.called);
            assert_eq!((ended.requests, ended.asks), (1, 0), "{over:?}: {what}");
            // The next call is none the worse for it.
            let running = Running::start(&world, by(able(LEGACY)));
            let complete = json!({ "resultType": "complete" });
            server.always(&mut world, running, &complete).await.called.expect("a reply");
            world.finish().await;
        }
        let (mut world, mut server) = Modern::open(over).await;
        let caller = Caller { abilities: no_sampling, ..Caller::plain(LEGACY) };
        let running = Running::start(&world, by(caller));
        let sampling =
            json!({ "a": {"method": "roots/list"}, "b": {"method": "sampling/createMessage"} });
        let ended = server.always(&mut world, running, &input_required(&sampling)).await;
        let lacking = Abilities { sampling: true, ..Abilities::default() };
        assert!(matches!(ended.called, Err(Error::Undeclared(found)) if found == lacking));
        assert_eq!((ended.requests, ended.asks), (1, 0), "{over:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_cannot_ask_anybody() {
    for revision in [LEGACY, MODERN] {
        let (world, mut peer) = World::stdio(Era::Modern).await;
        let complete = Box::new(Call { method: Method::Complete, ..*by(able(revision)) });
        let running = Running::start(&world, complete);
        let request = peer.read().await;
        let requests = json!({ "q": {"method": "roots/list"} });
        peer.answer(&request, input_required(&requests)).await;
        let ended = running.end().await;
        assert!(matches!(ended, Err(Error::Protocol(_))), "{revision}: {ended:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_has_no_form_in_a_retry_ends_the_call() {
    for over in MODERN_WIRES {
        let (mut world, mut server) = Modern::open(over).await;
        let running = Running::start(&world, by(able(LEGACY)));
        let round = server.read(&mut world).await;
        let requests = json!({ "q": {"method": "sampling/createMessage", "params": {}} });
        server.answer(round, &input_required(&requests)).await;
        let asks = running.asks().await;
        let no = r#"{"code":-1,"message":"User rejected sampling request"}"#;
        let called = asks.answer(vec![error("q", no)], able(LEGACY)).await.expect("a reply");
        assert_eq!(payload(called).await, no, "{over:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_modern_client_gets_a_modern_servers_questions_as_they_are() {
    let result =
        r#"{"inputRequests":{"q":{"method":"tools/list"}}, "resultType":"input_required"}"#;
    let (world, mut peer) = World::stdio(Era::Modern).await;
    let mut call = by(Caller::plain(MODERN));
    call.params.set("requestState", r#""s""#);
    call.params.set("inputResponses", r#"{"q":{"n":1.0}}"#);
    let running = Running::start(&world, call);
    let line = peer.read_line().await.expect("a line");
    assert!(line.contains(r#""requestState":"s","inputResponses":{"q":{"n":1.0}}"#), "{line}");
    let id = serde_json::from_str::<Value>(&line).expect("JSON")["id"].clone();
    peer.write(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await;
    assert_eq!(payload(running.end().await.expect("a reply")).await, result);
    world.finish().await;
}

// === What is offered ===

#[tokio::test(start_paused = true)]
async fn members_of_a_retry_never_reach_a_server_that_knows_none() {
    for (era, revision) in [(Era::Legacy, MODERN), (Era::Legacy, LEGACY), (Era::Modern, LEGACY)] {
        let (world, mut peer) = World::stdio(era).await;
        let mut call = by(able(revision));
        call.params.set("requestState", r#""s""#);
        call.params.set("inputResponses", "{}");
        let running = Running::start(&world, call);
        let request = peer.read().await;
        let params = request["params"].as_object().expect("an object");
        let mut members: Vec<_> = params.keys().collect();
        members.sort();
        assert_eq!(members, ["_meta", "arguments", "name"], "{era} {revision}");
        peer.answer(&request, json!({})).await;
        running.end().await.expect("a reply");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_legacy_clients_session_is_told_to_a_modern_server_in_its_words() {
    let caller = Caller {
        abilities: Abilities { sampling: true, form: true, ..Abilities::default() },
        capabilities: concat!(
            r#"{"sampling":{},"elicitation":{},"roots":7,"experimental":{"x":{}},"#,
            r#""extensions":{"a/b":{"n":1.0},"io.modelcontextprotocol/tasks":{}}}"#
        )
        .into(),
        ..Caller::plain(Revision::V2025_06_18)
    };
    let (world, mut peer) = World::stdio(Era::Modern).await;
    let running = Running::start(&world, by(caller));
    let request = peer.read().await;
    let told = &request["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    let expected = json!({
        "sampling": {}, "elicitation": {"form": {}}, "extensions": {"a/b": {"n": 1.0}},
    });
    assert_eq!(told, &expected);
    peer.answer(&request, json!({})).await;
    running.end().await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_handshake_offers_questions_where_one_says_whose_it_is() {
    let all = json!({
        "sampling": {"tools": {}, "context": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {},
        "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}},
    });
    let mut world = World::start(settings(Over::Http));
    world.post().await.status(400);
    let initialize = world.post().await;
    assert_eq!(initialize.body["params"]["capabilities"], all);
    assert_eq!(initialize.body["params"]["protocolVersion"], "2025-11-25");
    drop(initialize);
    world.finish().await;

    let mut world = World::start(settings(Over::Stdio));
    let mut peer = world.child().await;
    let discover = peer.read().await;
    peer.refuse(&discover, -32601).await;
    let extensions = json!({ "extensions": all["extensions"] });
    assert_eq!(peer.read().await["params"]["capabilities"], extensions);
    drop(peer);
    world.finish().await;

    let mut world = World::start(settings(Over::Sse));
    let get = world.request().await;
    let events = get.events();
    events.raw("event: endpoint\ndata: /message\n\n");
    let initialize = world.request().await;
    assert_eq!(initialize.body["params"]["capabilities"], extensions);
    drop((initialize, events));
    world.finish().await;
}
