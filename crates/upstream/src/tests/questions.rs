//! Input requests of an upstream in mid-call, and how the call continues.

use std::time::Duration;

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::calls::Server;
use super::pair;
use crate::input_requests::MAX_SUSPENDED;
use crate::testing::{
    Exchange, Peer, SendCall, TestTransport, World, call, payload, settings, sole_client_settings,
};
use crate::{Error, SuspendedCall};
use weir_mcp::call::CallOutcome;
use weir_mcp::call::{CallContext, Method, UpstreamRequest};
use weir_mcp::call_notifications::NotificationSink;
use weir_mcp::input_request::{ClientFeatures, InputKind, InputResponse};
use weir_mcp::jsonrpc;
use weir_mcp::revision::{Era, Revision};

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::V2026_07_28;
const TRANSPORTS: [TestTransport; 3] =
    [TestTransport::Stdio, TestTransport::Http, TestTransport::Sse];

/// Legacy server that attributes its requests, and a call that it executes.
struct LegacyServer {
    world: World,
    server: Server,
    running: PendingCall,
}

struct PendingCall(JoinHandle<Result<CallOutcome<SuspendedCall>, Error>>);

impl PendingCall {
    fn start(world: &World, call: Box<UpstreamRequest>) -> Self {
        let upstream = world.upstream.clone();
        Self(world.tracker.spawn(async move { upstream.send(call).await }))
    }

    async fn end(self) -> Result<CallOutcome<SuspendedCall>, Error> {
        self.0.await.expect("the call was not aborted")
    }

    async fn suspended(self) -> SuspendedCall {
        match self.end().await {
            Ok(CallOutcome::InputRequired(suspended)) => suspended,
            other => panic!("{other:?}"),
        }
    }
}

/// Caller with all client features.
fn full_caller(revision: Revision) -> CallContext {
    *call(revision).caller
}

fn call_by(caller: CallContext) -> Box<UpstreamRequest> {
    Box::new(UpstreamRequest { caller: Box::new(caller), ..*call(LEGACY) })
}

fn question(id: &str, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn elicit(id: &str) -> Value {
    question(id, "elicitation/create", &json!({ "message": id }))
}

fn result(key: &str, text: &'static str) -> InputResponse {
    InputResponse { key: key.into(), outcome: jsonrpc::ResponsePayload::Result(text.into()) }
}

fn error(key: &str, text: &'static str) -> InputResponse {
    InputResponse { key: key.into(), outcome: jsonrpc::ResponsePayload::Error(text.into()) }
}

fn keys(suspended: &SuspendedCall) -> Vec<String> {
    suspended.input_requests().iter().map(|question| question.key.to_string()).collect()
}

fn expect_suspended(outcome: Result<CallOutcome<SuspendedCall>, Error>) -> SuspendedCall {
    match outcome {
        Ok(CallOutcome::InputRequired(suspended)) => suspended,
        other => panic!("{other:?}"),
    }
}

impl LegacyServer {
    async fn open(over: TestTransport, call: Box<UpstreamRequest>) -> Self {
        let (world, server, running) = match over {
            TestTransport::Stdio => {
                let (world, mut peer) =
                    World::opened(sole_client_settings(over, &call.caller), Era::Legacy).await;
                let running = PendingCall::start(&world, call);
                let request = peer.read().await;
                (world, Server::Stdio(Box::new(peer), request), running)
            }
            TestTransport::Http => {
                let settings = sole_client_settings(over, &call.caller);
                let mut world = World::opened_http(settings, Era::Legacy).await;
                let running = PendingCall::start(&world, call);
                let request = world.post().await;
                let body = request.body.clone();
                (world, Server::Http(request.events(), body), running)
            }
            TestTransport::Sse => {
                let (mut world, pair) =
                    pair::opened(sole_client_settings(over, &call.caller)).await;
                let running = PendingCall::start(&world, call);
                let request = pair.read(&mut world).await;
                (world, Server::Sse(pair, request), running)
            }
        };
        Self { world, server, running }
    }

    /// Reads the next message from Weir.
    async fn read(&mut self) -> Value {
        self.server.read(&mut self.world).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_goes_to_the_client_of_its_call_and_the_answer_back() {
    for over in TRANSPORTS {
        for revision in [LEGACY, MODERN] {
            let LegacyServer { mut world, mut server, running } =
                LegacyServer::open(over, call_by(full_caller(revision))).await;
            let params = json!({ "message": "m", "n": 1.5 });
            server.send(question("e-1", "elicitation/create", &params)).await;
            let suspended = running.suspended().await;
            let [request] = suspended.input_requests() else { panic!("{suspended:?}") };
            assert_eq!(request.kind, InputKind::Elicitation);
            assert_eq!(request.params.to_bytes(), params.to_string());

            let key = request.key.clone();
            let caller = full_caller(revision);
            let going = world.tracker.spawn(
                suspended.resume(vec![result(&key, r#"{"action":"accept"}"#)], caller.clone()),
            );
            let answer = server.read(&mut world).await;
            let expected = json!({ "jsonrpc": "2.0", "id": "e-1", "result": {"action": "accept"} });
            assert_eq!(answer, expected, "{over:?}");

            // One after the other, this time with an error.
            server.send(question("s-2", "sampling/createMessage", &json!({}))).await;
            let suspended = expect_suspended(going.await.expect("no panic"));
            let key = suspended.input_requests()[0].key.clone();
            let no = error(&key, r#"{"code":-1,"message":"no"}"#);
            let going = world.tracker.spawn(suspended.resume(vec![no], caller));
            let answer = server.read(&mut world).await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&"s-2".into(), &(-1).into()));

            server.answer(json!({ "ok": 1 })).await;
            let outcome = going.await.expect("no panic").expect("a reply");
            assert_eq!(payload(outcome).await, r#"{"ok":1}"#);
            world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn questions_that_come_together_go_out_together() {
    for over in TRANSPORTS {
        let LegacyServer { mut world, mut server, running } =
            LegacyServer::open(over, call_by(full_caller(LEGACY))).await;
        server.send(elicit("a")).await;
        tokio::time::sleep(Duration::from_millis(4)).await;
        server.send(question("b", "roots/list", &json!({}))).await;
        let suspended = running.suspended().await;
        let subjects: Vec<_> = suspended.input_requests().iter().map(|it| it.kind).collect();
        assert_eq!(subjects, [InputKind::Elicitation, InputKind::Roots]);

        // A later input request is sent later, and so is one without a response.
        server.send(elicit("c")).await;
        let [first, left] = keys(&suspended).try_into().expect("two");
        let answers = vec![result(&first, "{}"), result("unknown", "{}"), result(&first, "{}")];
        let going = world.tracker.spawn(suspended.resume(answers, full_caller(LEGACY)));
        assert_eq!(server.read(&mut world).await["id"], "a");
        let suspended = expect_suspended(going.await.expect("no panic"));
        assert_eq!(keys(&suspended)[0], left, "{over:?}");
        assert_eq!(suspended.input_requests()[1].params.to_bytes(), r#"{"message":"c"}"#);
        drop(suspended);
        server.expect_cancelled(&mut world, Era::Legacy).await;
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_legacy_client_did_not_declare_is_refused_and_the_call_goes_on() {
    let all = ClientFeatures::ALL;
    let none = ClientFeatures::default();
    let url = json!({ "mode": "url", "url": "https://x.test", "message": "m" });
    for over in TRANSPORTS {
        for (features, method, params, code) in [
            (none, "elicitation/create", json!({}), -32601),
            (none, "sampling/createMessage", json!({}), -32601),
            (none, "roots/list", json!({}), -32601),
            (ClientFeatures { url: false, ..all }, "elicitation/create", url.clone(), -32602),
            (ClientFeatures { form: false, ..all }, "elicitation/create", json!({}), -32602),
            (
                ClientFeatures { sampling_tools: false, ..all },
                "sampling/createMessage",
                json!({ "tools": [] }),
                -32602,
            ),
            (all, "tools/list", json!({}), -32601),
        ] {
            let caller = CallContext { features, ..CallContext::without_features(LEGACY) };
            let mut cell = LegacyServer::open(over, call_by(caller)).await;
            cell.server.send(question("q", method, &params)).await;
            let refused = cell.read().await;
            assert_eq!((&refused["id"], &refused["error"]["code"]), (&"q".into(), &code.into()));
            let text = refused["error"]["message"].as_str().expect("a text");
            assert!(text.contains("does not support"), "{text}");
            cell.server.answer(json!({ "ok": 1 })).await;
            let outcome = cell.running.end().await.expect("a reply");
            assert_eq!(payload(outcome).await, r#"{"ok":1}"#, "{over:?}");
            cell.world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_modern_client_did_not_declare_ends_the_call_and_is_told() {
    for over in TRANSPORTS {
        let caller = CallContext {
            features: ClientFeatures { form: true, ..ClientFeatures::default() },
            ..CallContext::without_features(MODERN)
        };
        let LegacyServer { mut world, mut server, running } =
            LegacyServer::open(over, call_by(caller)).await;
        server.send(elicit("fine")).await;
        server.send(question("q", "sampling/createMessage", &json!({}))).await;
        let lacking = ClientFeatures { sampling: true, ..ClientFeatures::default() };
        match running.end().await {
            Err(Error::UndeclaredFeature(found)) => assert_eq!(found, lacking),
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

// === Attribution ===

/// Sends `message` on the shared stream, or over HTTP on the session's own stream, with a call in
/// flight that it could belong to, and returns Weir's response.
async fn refused(over: TestTransport, message: Value) -> Value {
    let call = call_by(full_caller(LEGACY));
    let (world, running, answer) = match over {
        TestTransport::Stdio => {
            let (world, mut peer) = World::stdio(Era::Legacy).await;
            let running = PendingCall::start(&world, call);
            peer.read().await;
            peer.send(message).await;
            let answer = peer.read().await;
            (world, running, answer)
        }
        TestTransport::Sse => {
            let (mut world, pair) = pair::pair().await;
            let running = PendingCall::start(&world, call);
            pair.read(&mut world).await;
            pair.events.send(message);
            let answer = pair.read(&mut world).await;
            (world, running, answer)
        }
        TestTransport::Http => {
            let mut world = World::start(settings(TestTransport::Http));
            world.open_http(Era::Legacy).await;
            let get = world.request().await;
            assert_eq!(get.method, "GET");
            let own = get.events();
            world.up().await;
            let running = PendingCall::start(&world, call);
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
    for over in TRANSPORTS {
        for subject in InputKind::ALL {
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
    let settings = sole_client_settings(TestTransport::Stdio, &full_caller(LEGACY));
    let (world, mut peer) = World::opened(settings, Era::Legacy).await;
    peer.send(elicit("early")).await;
    assert_eq!(peer.read().await["error"]["code"], -32601);
    let older = PendingCall::start(&world, call_by(full_caller(LEGACY)));
    let first = peer.read().await;
    let newer = PendingCall::start(&world, call_by(full_caller(LEGACY)));
    let second = peer.read().await;
    peer.send(elicit("q")).await;
    let suspended = newer.suspended().await;
    peer.answer(&first, json!({ "n": 1 })).await;
    assert_eq!(payload(older.end().await.expect("a reply")).await, r#"{"n":1}"#);
    peer.answer(&second, json!({ "n": 2 })).await;
    assert_eq!(peer.read().await["error"]["message"], "the call has ended");
    peer.send(elicit("late")).await;
    assert_eq!(peer.read().await["error"]["code"], -32601);
    // A client's response to an ended call is dropped.
    let key = suspended.input_requests()[0].key.clone();
    let outcome =
        suspended.resume(vec![result(&key, "{}")], full_caller(LEGACY)).await.expect("a reply");
    assert_eq!(payload(outcome).await, r#"{"n":2}"#);
    peer.send(question("p", "ping", &json!({}))).await;
    assert_eq!(peer.read().await["id"], "p");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn on_the_sessions_own_stream_one_clients_server_asks_the_call_that_is_under_way() {
    for revision in [LEGACY, MODERN] {
        let mut world =
            World::start(sole_client_settings(TestTransport::Http, &full_caller(revision)));
        world.open_http(Era::Legacy).await;
        let get = world.request().await;
        assert_eq!(get.method, "GET");
        let own = get.events();
        world.up().await;
        let running = PendingCall::start(&world, call_by(full_caller(revision)));
        let request = world.post().await;
        own.send(elicit("q"));
        let suspended = running.suspended().await;
        let key = suspended.input_requests()[0].key.clone();
        let ended = async {
            let outcome = suspended
                .resume(vec![result(&key, r#"{"action":"accept"}"#)], full_caller(revision));
            payload(outcome.await.expect("a reply")).await
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
    for over in TRANSPORTS {
        let LegacyServer { mut world, mut server, running } =
            LegacyServer::open(over, call_by(full_caller(LEGACY))).await;
        for message in ["first", "second"] {
            let params = json!({ "message": message });
            server.send(question("q", "elicitation/create", &params)).await;
        }
        let suspended = running.suspended().await;
        let [only] = suspended.input_requests() else { panic!("{suspended:?}") };
        assert_eq!(only.params.to_bytes(), r#"{"message":"first"}"#);
        let key = only.key.clone();
        let going =
            world.tracker.spawn(suspended.resume(vec![result(&key, "{}")], full_caller(LEGACY)));
        assert_eq!(server.read(&mut world).await["id"], "q");
        // After the response the id is free: some servers use only one.
        server.send(elicit("q")).await;
        let suspended = expect_suspended(going.await.expect("no panic"));
        let again = &suspended.input_requests()[0];
        assert_eq!(again.params.to_bytes(), r#"{"message":"q"}"#, "{over:?}");
        assert_ne!(again.key, key, "an old answer is none to the new question");
        server.answer(json!({})).await;
        suspended.resume(Vec::new(), full_caller(LEGACY)).await.expect("a reply");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_open_on_one_call_is_no_question_on_another() {
    let mut world = World::http(Era::Legacy).await;
    let one = PendingCall::start(&world, call_by(full_caller(LEGACY)));
    let (post, running) =
        (world.post().await, PendingCall::start(&world, call_by(full_caller(LEGACY))));
    let one_stream = post.events();
    let post = world.post().await;
    let id = post.id();
    let other_stream = post.events();
    one_stream.send(elicit("q"));
    let suspended = one.suspended().await;
    other_stream.send(elicit("q"));
    other_stream.send(json!({ "jsonrpc": "2.0", "id": id, "result": {"n": 2} }));
    assert_eq!(payload(running.end().await.expect("a reply")).await, r#"{"n":2}"#);
    assert!(world.is_quiet().await, "no client responds for another");
    drop(suspended);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn among_many_calls_on_one_session_each_question_finds_its_own_client() {
    const CALLS: usize = 40;
    let mut world = World::http(Era::Legacy).await;
    let (mut running, mut streams) = (Vec::new(), Vec::new());
    for number in 0..CALLS {
        let mut call = call_by(full_caller(if number % 2 == 0 { LEGACY } else { MODERN }));
        call.params.set("arguments", format!("{{\"n\":{number}}}"));
        let waiting = PendingCall::start(&world, call);
        let post = world.post().await;
        assert_eq!(post.body["params"]["arguments"]["n"], number);
        let id = post.id();
        let stream = post.events();
        stream.send(elicit(&format!("q{number}")));
        running.push(waiting.suspended().await);
        streams.push((id, stream));
    }
    // The responses come in another order than the requests.
    for (number, suspended) in running.into_iter().enumerate().rev() {
        let [request] = suspended.input_requests() else { panic!("{suspended:?}") };
        assert_eq!(request.params.to_bytes(), format!("{{\"message\":\"q{number}\"}}"));
        let outcome = jsonrpc::ResponsePayload::Result(format!("{{\"n\":{number}}}").into());
        let answers = vec![InputResponse { key: request.key.clone(), outcome }];
        let going =
            PendingCall(world.tracker.spawn(suspended.resume(answers, full_caller(LEGACY))));
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
    for over in TRANSPORTS {
        let LegacyServer { mut world, mut server, running } =
            LegacyServer::open(over, call_by(full_caller(LEGACY))).await;
        for number in 0..20 {
            server.send(elicit(&number.to_string())).await;
        }
        let mut refused = Vec::new();
        let suspended = running.suspended().await;
        for _ in 0..4 {
            let answer = server.read(&mut world).await;
            assert_eq!(answer["error"]["code"], -32603);
            refused.push(answer["id"].as_str().expect("an id").to_owned());
        }
        refused.sort();
        assert_eq!(refused, ["16", "17", "18", "19"], "{over:?}");
        assert_eq!(suspended.input_requests().len(), 16);
        server.answer(json!({})).await;
        suspended.resume(Vec::new(), full_caller(LEGACY)).await.expect("a reply");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f_37h_a_request_on_a_modern_stream_is_not_answered() {
    let mut requests: Vec<Value> =
        InputKind::ALL.iter().map(|it| question("q", it.method(), &json!({}))).collect();
    requests.push(question("p", "ping", &json!({})));
    requests.push(question("u", "no/such", &json!({})));
    let complete = json!({ "resultType": "complete" });
    for revision in [LEGACY, MODERN] {
        let settings = sole_client_settings(TestTransport::Stdio, &full_caller(revision));
        let (world, mut peer) = World::opened(settings, Era::Modern).await;
        let running = PendingCall::start(&world, call_by(full_caller(revision)));
        let request = peer.read().await;
        for request in &requests {
            peer.send(request.clone()).await;
        }
        peer.answer(&request, complete.clone()).await;
        running.end().await.expect("a reply");
        // The next message from Weir is the next call.
        let running = PendingCall::start(&world, call_by(full_caller(revision)));
        let request = peer.read().await;
        assert_eq!(request["method"], "tools/call");
        peer.answer(&request, complete.clone()).await;
        running.end().await.expect("a reply");
        world.finish().await;

        let mut world = World::http(Era::Modern).await;
        let running = PendingCall::start(&world, call_by(full_caller(revision)));
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
        let mut world =
            World::start(sole_client_settings(TestTransport::Stdio, &full_caller(LEGACY)));
        let mut peer = world.child().await;
        let discover = peer.read().await;
        peer.refuse(&discover, -32601).await;
        peer.initialize(revision).await;
        world.up().await;
        let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
        let request = peer.read().await;
        peer.send(question("q", method, &params)).await;
        match code {
            Some(code) => {
                assert_eq!(peer.read().await["error"]["code"], code, "{revision}: {method}");
                peer.answer(&request, json!({})).await;
                running.end().await.expect("a reply");
            }
            None => drop(running.suspended().await),
        }
        world.finish().await;
    }
}

// === Suspension ===

#[tokio::test(start_paused = true)]
async fn a_question_that_is_withdrawn_needs_no_answer() {
    for over in TRANSPORTS {
        let LegacyServer { mut world, mut server, running } =
            LegacyServer::open(over, call_by(full_caller(LEGACY))).await;
        server.send(elicit("q")).await;
        let mut suspended = running.suspended().await;
        let withdraw = json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "q"},
        });
        server.send(withdraw).await;
        assert!(suspended.next_input_requests().await.is_none());
        server.send(elicit("r")).await;
        let key = suspended.input_requests()[0].key.clone();
        let suspended =
            expect_suspended(suspended.resume(vec![result(&key, "{}")], full_caller(LEGACY)).await);
        let key = suspended.input_requests()[0].key.clone();
        let going =
            world.tracker.spawn(suspended.resume(vec![result(&key, "{}")], full_caller(LEGACY)));
        let answer = server.read(&mut world).await;
        assert_eq!(answer["id"], "r", "{over:?}: the other is not answered");
        server.answer(json!({})).await;
        going.await.expect("no panic").expect("a reply");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_may_reply_without_waiting_for_answers() {
    for over in TRANSPORTS {
        let LegacyServer { mut world, mut server, running } =
            LegacyServer::open(over, call_by(full_caller(LEGACY))).await;
        server.send(elicit("q")).await;
        let mut suspended = running.suspended().await;
        server.answer(json!({ "ok": 1 })).await;
        assert!(suspended.next_input_requests().await.is_none());
        let outcome = suspended.resume(Vec::new(), full_caller(LEGACY)).await.expect("a reply");
        assert_eq!(payload(outcome).await, r#"{"ok":1}"#, "{over:?}");
        let refused = server.read(&mut world).await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("q"), &json!(-32603)));
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_while_its_question_is_open_ends_the_call() {
    for over in TRANSPORTS {
        let LegacyServer { world, mut server, running } =
            LegacyServer::open(over, call_by(full_caller(LEGACY))).await;
        server.send(elicit("q")).await;
        let mut suspended = running.suspended().await;
        match server {
            Server::Stdio(mut peer, _) => peer.exit("exit status: 1"),
            Server::Http(events, _) => events.cut(),
            Server::Sse(pair, _) => pair.events.cut(),
        }
        assert!(suspended.next_input_requests().await.is_none());
        let key = suspended.input_requests()[0].key.clone();
        let ended = suspended.resume(vec![result(&key, "{}")], full_caller(LEGACY)).await;
        assert!(matches!(ended, Err(Error::ConnectionLost(_))), "{over:?}: {ended:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_waits_is_cancelled_and_its_questions_refused() {
    for over in TRANSPORTS {
        let LegacyServer { mut world, mut server, running } =
            LegacyServer::open(over, call_by(full_caller(LEGACY))).await;
        server.send(elicit("q")).await;
        drop(running.suspended().await);
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
    let LegacyServer { mut world, server, running } =
        LegacyServer::open(TestTransport::Http, call_by(full_caller(LEGACY))).await;
    let Server::Http(events, _) = &server else { panic!("over HTTP") };
    events.send(elicit("q"));
    let suspended = running.suspended().await;
    let key = suspended.input_requests()[0].key.clone();
    let going =
        world.tracker.spawn(suspended.resume(vec![result(&key, "{}")], full_caller(LEGACY)));
    world.post().await.status(404);
    let ended = going.await.expect("no panic");
    assert!(matches!(ended, Err(Error::ConnectionLost(_))), "{ended:?}");
    server.expect_cancelled(&mut world, Era::Legacy).await;
    assert!(world.is_quiet().await, "it is not called again");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn while_a_call_waits_its_idle_time_stands_still_and_its_longest_does_not() {
    let second = Duration::from_secs(1);
    for over in TRANSPORTS {
        for (waits, ends_after) in [
            // 60 s of idle time, without the suspension; progress resets it, so the client's
            // response does, too.
            (300, 300 + 60),
            // 600 s in total.
            (590, 600),
            (700, 700),
        ] {
            let start = Instant::now();
            let LegacyServer { world, mut server, running } =
                LegacyServer::open(over, call_by(full_caller(LEGACY))).await;
            let begun = start.elapsed();
            server.send(elicit("q")).await;
            let suspended = running.suspended().await;
            tokio::time::sleep(waits * second).await;
            let key = suspended.input_requests()[0].key.clone();
            let ended = suspended.resume(vec![result(&key, "{}")], full_caller(LEGACY)).await;
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
    let mut settings = sole_client_settings(TestTransport::Stdio, &full_caller(LEGACY));
    settings.timeouts.reset_on_progress = false;
    let mut world = World::start(settings);
    let mut peer = world.child().await;
    peer.open(Era::Legacy).await;
    world.up().await;
    let start = Instant::now();
    let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
    peer.read().await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    peer.send(elicit("q")).await;
    let suspended = running.suspended().await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let ended = suspended.resume(Vec::new(), full_caller(LEGACY)).await;
    // It had no response, so it is sent again at once; then the last 20 s run out.
    let suspended = expect_suspended(ended);
    let key = suspended.input_requests()[0].key.clone();
    let ended = suspended.resume(vec![result(&key, "{}")], full_caller(LEGACY)).await;
    assert!(matches!(ended, Err(Error::TimedOut(_))), "{ended:?}");
    assert_eq!(start.elapsed().as_secs(), 160);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_the_turn_of_a_call_that_waits() {
    let mut settings = sole_client_settings(TestTransport::Stdio, &full_caller(LEGACY));
    settings.limits.concurrency = 1;
    let mut world = World::start(settings);
    let mut peer = world.child().await;
    peer.open(Era::Legacy).await;
    world.up().await;
    let first = PendingCall::start(&world, call_by(full_caller(LEGACY)));
    let first_request = peer.read().await;
    peer.send(elicit("q")).await;
    let suspended = first.suspended().await;

    let second = PendingCall::start(&world, call_by(full_caller(LEGACY)));
    let second_request = peer.read().await;
    let key = suspended.input_requests()[0].key.clone();
    let going =
        world.tracker.spawn(suspended.resume(vec![result(&key, "{}")], full_caller(LEGACY)));
    // The first call continues once the second has ended.
    tokio::time::sleep(Duration::from_secs(5)).await;
    peer.answer(&second_request, json!({ "n": 2 })).await;
    assert_eq!(payload(second.end().await.expect("a reply")).await, r#"{"n":2}"#);
    assert_eq!(peer.read().await["id"], "q");
    peer.answer(&first_request, json!({ "n": 1 })).await;
    let outcome = going.await.expect("no panic").expect("a reply");
    assert_eq!(payload(outcome).await, r#"{"n":1}"#);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_are_bounded_and_block_nobody() {
    let settings = sole_client_settings(TestTransport::Stdio, &full_caller(LEGACY));
    let (world, mut peer) = World::opened(settings, Era::Legacy).await;
    let mut waiting = Vec::new();
    for number in 0..MAX_SUSPENDED {
        let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
        peer.read().await;
        peer.send(elicit(&number.to_string())).await;
        waiting.push(running.suspended().await);
    }
    // One more input request is rejected, and its call goes on, since it has begun.
    let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
    let request = peer.read().await;
    peer.send(elicit("more")).await;
    let refused = peer.read().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("more"), &json!(-32603)));
    peer.answer(&request, json!({})).await;
    running.end().await.expect("a reply");

    let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
    let request = peer.read().await;
    peer.answer(&request, json!({})).await;
    running.end().await.expect("a reply");
    drop(waiting);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_server_says_while_a_call_waits_is_heard() {
    for over in TRANSPORTS {
        let (notes, mut stream) = NotificationSink::channel();
        let caller = CallContext { notifications: notes, ..full_caller(MODERN) };
        let LegacyServer { mut world, mut server, running } =
            LegacyServer::open(over, call_by(caller)).await;
        server.send(elicit("q")).await;
        let suspended = running.suspended().await;
        server.send(question("p", "ping", &json!({}))).await;
        assert_eq!(server.read(&mut world).await["id"], "p", "{over:?}");
        server.progress(1).await;
        assert_eq!(stream.next().await.expect_progress().get("progress"), Some("1"));
        // The client does not return: the call ends at its hard deadline.
        tokio::time::sleep(Duration::from_secs(600)).await;
        let ended = suspended.resume(Vec::new(), full_caller(MODERN)).await;
        assert!(matches!(ended, Err(Error::TimedOut(_))), "{over:?}: {ended:?}");
        server.expect_cancelled(&mut world, Era::Legacy).await;
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn notes_go_to_whoever_answered_last() {
    for over in TRANSPORTS {
        let (notes, first) = NotificationSink::channel();
        let caller = CallContext { notifications: notes, ..full_caller(MODERN) };
        let LegacyServer { mut world, mut server, running } =
            LegacyServer::open(over, call_by(caller)).await;
        server.progress(1).await;
        server.send(elicit("q")).await;
        let suspended = running.suspended().await;
        let (notes, second) = NotificationSink::channel();
        let caller = CallContext { notifications: notes, ..full_caller(MODERN) };
        let key = suspended.input_requests()[0].key.clone();
        let going = world.tracker.spawn(suspended.resume(vec![result(&key, "{}")], caller));
        server.read(&mut world).await;
        server.progress(2).await;
        server.answer(json!({})).await;
        going.await.expect("no panic").expect("a reply");
        for (stream, progress) in [(first, "1"), (second, "2")] {
            let notes = stream.drain();
            let values: Vec<_> =
                notes.iter().map(|note| note.expect_progress().get("progress")).collect();
            assert_eq!(values, [Some(progress)], "{over:?}");
        }
        world.finish().await;
    }
}

// === Modern servers, legacy clients ===

/// Modern server over one of its two transports.
enum ModernServer {
    Stdio(Box<Peer>),
    Http,
}

/// Request to it without a response so far.
struct ModernRequest {
    body: Value,
    exchange: Option<Exchange>,
}

impl ModernServer {
    async fn open(over: TestTransport) -> (World, Self) {
        match over {
            TestTransport::Stdio => {
                let (world, peer) = World::stdio(Era::Modern).await;
                (world, Self::Stdio(Box::new(peer)))
            }
            _ => (World::http(Era::Modern).await, Self::Http),
        }
    }

    async fn read(&mut self, world: &mut World) -> ModernRequest {
        match self {
            Self::Stdio(peer) => ModernRequest { body: peer.read().await, exchange: None },
            Self::Http => {
                let exchange = world.post().await;
                assert_eq!(exchange.headers["mcp-name"], "t");
                ModernRequest { body: exchange.body.clone(), exchange: Some(exchange) }
            }
        }
    }

    async fn answer(&mut self, round: ModernRequest, result: &Value) {
        match (self, round.exchange) {
            (Self::Stdio(peer), _) => peer.answer(&round.body, result.clone()).await,
            (Self::Http, exchange) => exchange.expect("over HTTP").answer(result.clone()),
        }
    }

    /// Responds to every request with `result` until the call has ended.
    async fn always(&mut self, world: &mut World, running: PendingCall, result: &Value) -> Ended {
        let mut ended = running.end().boxed();
        let (mut requests, mut suspended) = (0, 0);
        loop {
            let round = tokio::select! {
                biased;
                round = self.read(world) => round,
                outcome = &mut ended => match outcome {
                    Ok(CallOutcome::InputRequired(waits)) => {
                        suspended += 1;
                        let answers = keys(&waits).iter().map(|key| self::result(key, "{}")).collect();
                        ended = waits.resume(answers, full_caller(LEGACY)).boxed();
                        continue;
                    }
                    outcome => return Ended { outcome, requests, suspended },
                },
            };
            requests += 1;
            self.answer(round, result).await;
        }
    }
}

struct Ended {
    outcome: Result<CallOutcome<SuspendedCall>, Error>,
    requests: usize,
    suspended: usize,
}

fn input_required(requests: &Value) -> Value {
    json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "s/\u{e9}" })
}

const MODERN_TRANSPORTS: [TestTransport; 2] = [TestTransport::Stdio, TestTransport::Http];

#[tokio::test(start_paused = true)]
async fn a_legacy_client_is_asked_and_the_call_sent_again_with_its_answers() {
    for over in MODERN_TRANSPORTS {
        let (mut world, mut server) = ModernServer::open(over).await;
        let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
        let first = server.read(&mut world).await;
        let (first_id, first_params) = (first.body["id"].clone(), first.body["params"].clone());
        let requests = json!({
            "who \u{1F600}": { "method": "elicitation/create", "params": {"message": "m"} },
            "b": { "method": "roots/list" },
        });
        server.answer(first, &input_required(&requests)).await;
        let suspended = running.suspended().await;
        let seen: Vec<_> = suspended
            .input_requests()
            .iter()
            .map(|it| (&*it.key, it.kind, it.params.to_bytes()))
            .collect();
        let expected = [
            ("who \u{1F600}", InputKind::Elicitation, r#"{"message":"m"}"#.into()),
            ("b", InputKind::Roots, "{}".into()),
        ];
        assert_eq!(seen, expected);
        let answers = vec![
            result("b", r#"{"roots":[]}"#),
            error("who \u{1F600}", r#"{"code":-32601,"message":"no"}"#),
        ];
        let going = world.tracker.spawn(suspended.resume(answers, full_caller(LEGACY)));
        let second = server.read(&mut world).await;
        assert_ne!(second.body["id"], first_id);
        let mut params = second.body["params"].clone();
        let members = params.as_object_mut().expect("an object");
        assert_eq!(members.remove("requestState"), Some("s/\u{e9}".into()));
        let responses = json!({ "b": {"roots": []}, "who \u{1F600}": {"action": "cancel"} });
        assert_eq!(members.remove("inputResponses"), Some(responses));
        assert_eq!(params, first_params, "all else is as it was");
        server.answer(second, &json!({ "resultType": "complete", "ok": 1 })).await;
        let outcome = going.await.expect("no panic").expect("a reply");
        assert_eq!(payload(outcome).await, r#"{"resultType":"complete","ok":1}"#);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn between_two_rounds_there_is_nothing_to_cancel() {
    for over in MODERN_TRANSPORTS {
        let (mut world, mut server) = ModernServer::open(over).await;
        let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
        let round = server.read(&mut world).await;
        let requests = json!({ "q": {"method": "roots/list"} });
        server.answer(round, &input_required(&requests)).await;
        drop(running.suspended().await);
        // The next message is the next call, which is cancelled in mid-round.
        let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
        let round = server.read(&mut world).await;
        assert_eq!(round.body["method"], "tools/call", "{over:?}");
        server.answer(round, &input_required(&requests)).await;
        let suspended = running.suspended().await;
        let going =
            world.tracker.spawn(suspended.resume(vec![result("q", "{}")], full_caller(LEGACY)));
        let mut round = server.read(&mut world).await;
        going.abort();
        match (&mut server, &mut round.exchange) {
            (ModernServer::Stdio(peer), _) => {
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
    for over in TRANSPORTS {
        let LegacyServer { world, mut server, running } =
            LegacyServer::open(over, call_by(full_caller(MODERN))).await;
        server.send(elicit("q")).await;
        let suspended = running.suspended().await;
        world.finish().await;
        let ended = suspended.resume(Vec::new(), full_caller(MODERN)).await;
        assert!(matches!(ended, Err(Error::ConnectionLost(_))), "{over:?}: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_out_is_asked_again_before_the_call_is_sent_again() {
    for over in MODERN_TRANSPORTS {
        let (mut world, mut server) = ModernServer::open(over).await;
        let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
        let round = server.read(&mut world).await;
        let requests = json!({ "a": {"method": "roots/list"}, "b": {"method": "roots/list"} });
        server.answer(round, &input_required(&requests)).await;
        let suspended = running.suspended().await;
        let answers = vec![result("b", r#"{"n":1}"#), result("b", r#"{"n":2}"#), result("c", "{}")];
        let suspended = expect_suspended(suspended.resume(answers, full_caller(LEGACY)).await);
        assert_eq!(keys(&suspended), ["a"], "{over:?}");
        let answers = vec![result("a", r#"{"n":3}"#), result("b", r#"{"n":4}"#)];
        let going =
            PendingCall(world.tracker.spawn(suspended.resume(answers, full_caller(LEGACY))));
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
    for over in MODERN_TRANSPORTS {
        for (waits, ends_after, requests) in [(300, 360, 2), (590, 600, 2), (700, 700, 1)] {
            let (mut world, mut server) = ModernServer::open(over).await;
            let start = Instant::now();
            let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
            let round = server.read(&mut world).await;
            let question = json!({ "q": {"method": "roots/list"} });
            server.answer(round, &input_required(&question)).await;
            let suspended = running.suspended().await;
            tokio::time::sleep(Duration::from_secs(waits)).await;
            let going = PendingCall(
                world.tracker.spawn(suspended.resume(vec![result("q", "{}")], full_caller(LEGACY))),
            );
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
    let mut running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
    let mut id = peer.read().await["id"].clone();
    for state in [Some(r#""\u0041\/ \ud83d\ude00""#), None] {
        let state = state.map(|state| format!(r#","requestState":{state}"#)).unwrap_or_default();
        let requests = r#"{"q":{"method":"roots/list"}}"#;
        let result =
            format!(r#"{{"resultType":"input_required","inputRequests":{requests}{state}}}"#);
        peer.write(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await;
        let suspended = running.suspended().await;
        let answers = vec![self::result("q", "{}")];
        running = PendingCall(world.tracker.spawn(suspended.resume(answers, full_caller(LEGACY))));
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
    for over in MODERN_TRANSPORTS {
        for (result, input_count, least) in [
            (input_required(&json!({ "q": {"method": "roots/list"} })), 8, 0),
            // Retried without input: after 0.1, 0.2, 0.4, 0.8, 1.6, 2, 2 and 2 s.
            (json!({ "resultType": "input_required", "requestState": "s" }), 0, 9_100),
            (
                json!({ "resultType": "input_required", "requestState": "s", "inputRequests": {} }),
                0,
                9_100,
            ),
        ] {
            let (mut world, mut server) = ModernServer::open(over).await;
            let start = Instant::now();
            let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
            let ended = server.always(&mut world, running, &result).await;
            assert!(
                matches!(&ended.outcome, Err(Error::Protocol(text)) if text.contains("after 8 retries"))
            );
            assert_eq!((ended.requests, ended.suspended), (9, input_count), "{over:?}");
            assert!(start.elapsed() >= Duration::from_millis(least), "{:?}", start.elapsed());
            world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f_37_what_a_modern_server_may_not_ask_ends_the_call_at_once() {
    let many: serde_json::Map<_, _> =
        (0..17).map(|key| (key.to_string(), json!({ "method": "roots/list" }))).collect();
    let no_sampling = ClientFeatures { sampling: false, ..ClientFeatures::ALL };
    for over in MODERN_TRANSPORTS {
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
            let (mut world, mut server) = ModernServer::open(over).await;
            let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
            let ended = server.always(&mut world, running, &result).await;
            assert!(
                matches!(ended.outcome, Err(Error::Protocol(_))),
                "{what}: {:?}",
                ended.outcome
            );
            assert_eq!((ended.requests, ended.suspended), (1, 0), "{over:?}: {what}");
            // The next call is not affected.
            let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
            let complete = json!({ "resultType": "complete" });
            server.always(&mut world, running, &complete).await.outcome.expect("a reply");
            world.finish().await;
        }
        let (mut world, mut server) = ModernServer::open(over).await;
        let caller = CallContext { features: no_sampling, ..CallContext::without_features(LEGACY) };
        let running = PendingCall::start(&world, call_by(caller));
        let sampling =
            json!({ "a": {"method": "roots/list"}, "b": {"method": "sampling/createMessage"} });
        let ended = server.always(&mut world, running, &input_required(&sampling)).await;
        let lacking = ClientFeatures { sampling: true, ..ClientFeatures::default() };
        assert!(matches!(ended.outcome, Err(Error::UndeclaredFeature(found)) if found == lacking));
        assert_eq!((ended.requests, ended.suspended), (1, 0), "{over:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_cannot_ask_anybody() {
    for revision in [LEGACY, MODERN] {
        let (world, mut peer) = World::stdio(Era::Modern).await;
        let complete = Box::new(UpstreamRequest {
            method: Method::Complete,
            ..*call_by(full_caller(revision))
        });
        let running = PendingCall::start(&world, complete);
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
    for over in MODERN_TRANSPORTS {
        let (mut world, mut server) = ModernServer::open(over).await;
        let running = PendingCall::start(&world, call_by(full_caller(LEGACY)));
        let round = server.read(&mut world).await;
        let requests = json!({ "q": {"method": "sampling/createMessage", "params": {}} });
        server.answer(round, &input_required(&requests)).await;
        let suspended = running.suspended().await;
        let no = r#"{"code":-1,"message":"User rejected sampling request"}"#;
        let outcome =
            suspended.resume(vec![error("q", no)], full_caller(LEGACY)).await.expect("a reply");
        assert_eq!(payload(outcome).await, no, "{over:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_modern_client_gets_a_modern_servers_questions_as_they_are() {
    let result =
        r#"{"inputRequests":{"q":{"method":"tools/list"}}, "resultType":"input_required"}"#;
    let (world, mut peer) = World::stdio(Era::Modern).await;
    let mut call = call_by(CallContext::without_features(MODERN));
    call.params.set("requestState", r#""s""#);
    call.params.set("inputResponses", r#"{"q":{"n":1.0}}"#);
    let running = PendingCall::start(&world, call);
    let line = peer.read_line().await.expect("a line");
    assert!(line.contains(r#""requestState":"s","inputResponses":{"q":{"n":1.0}}"#), "{line}");
    let id = serde_json::from_str::<Value>(&line).expect("JSON")["id"].clone();
    peer.write(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await;
    assert_eq!(payload(running.end().await.expect("a reply")).await, result);
    world.finish().await;
}

// === Declared features ===

#[tokio::test(start_paused = true)]
async fn members_of_a_retry_never_reach_a_server_that_knows_none() {
    for (era, revision) in [(Era::Legacy, MODERN), (Era::Legacy, LEGACY), (Era::Modern, LEGACY)] {
        let (world, mut peer) = World::stdio(era).await;
        let mut call = call_by(full_caller(revision));
        call.params.set("requestState", r#""s""#);
        call.params.set("inputResponses", "{}");
        let running = PendingCall::start(&world, call);
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
    let caller = CallContext {
        features: ClientFeatures { sampling: true, form: true, ..ClientFeatures::default() },
        capabilities: concat!(
            r#"{"sampling":{},"elicitation":{},"roots":7,"experimental":{"x":{}},"#,
            r#""extensions":{"a/b":{"n":1.0},"io.modelcontextprotocol/tasks":{}}}"#
        )
        .into(),
        ..CallContext::without_features(Revision::V2025_06_18)
    };
    let (world, mut peer) = World::stdio(Era::Modern).await;
    let running = PendingCall::start(&world, call_by(caller));
    let request = peer.read().await;
    let capabilities = &request["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    let expected = json!({
        "sampling": {}, "elicitation": {"form": {}}, "extensions": {"a/b": {"n": 1.0}},
    });
    assert_eq!(capabilities, &expected);
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
    let mut world = World::start(settings(TestTransport::Http));
    world.post().await.status(400);
    let initialize = world.post().await;
    assert_eq!(initialize.body["params"]["capabilities"], all);
    assert_eq!(initialize.body["params"]["protocolVersion"], "2025-11-25");
    drop(initialize);
    world.finish().await;

    let mut world = World::start(settings(TestTransport::Stdio));
    let mut peer = world.child().await;
    let discover = peer.read().await;
    peer.refuse(&discover, -32601).await;
    let extensions = json!({ "extensions": all["extensions"] });
    assert_eq!(peer.read().await["params"]["capabilities"], extensions);
    drop(peer);
    world.finish().await;

    let mut world = World::start(settings(TestTransport::Sse));
    let get = world.request().await;
    let events = get.events();
    events.raw("event: endpoint\ndata: /message\n\n");
    let initialize = world.request().await;
    assert_eq!(initialize.body["params"]["capabilities"], extensions);
    drop((initialize, events));
    world.finish().await;
}
