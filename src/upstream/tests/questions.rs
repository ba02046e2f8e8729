//! Questions: what an upstream asks in the middle of a call, and how the call goes on.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::calls::Server;
use super::pair::pair;
use crate::mcp::call::{Call, Caller};
use crate::mcp::question::{Abilities, Answered, Subject};
use crate::mcp::revision::{Era, Revision};
use crate::rpc;
use crate::upstream::testing::{Over, World, call, payload};
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
    fn start(world: &World, call: Call) -> Self {
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
    Caller { abilities: Abilities::ALL, ..Caller::plain(revision) }
}

fn by(caller: Caller) -> Call {
    Call { caller, ..call(LEGACY) }
}

fn question(id: &str, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn elicit(id: &str) -> Value {
    question(id, "elicitation/create", &json!({ "message": id }))
}

fn result(key: &str, text: &'static str) -> Answered {
    Answered { key: key.into(), outcome: rpc::Outcome::Result(text.into()) }
}

fn error(key: &str, text: &'static str) -> Answered {
    Answered { key: key.into(), outcome: rpc::Outcome::Error(text.into()) }
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
    async fn open(over: Over, call: Call) -> Self {
        let (world, server, running) = match over {
            Over::Stdio => {
                let (world, mut peer) = World::stdio(Era::Legacy).await;
                world.upstream.serve_one_client();
                let running = Running::start(&world, call);
                let request = peer.read().await;
                (world, Server::Stdio(Box::new(peer), request), running)
            }
            Over::Http => {
                let mut world = World::http(Era::Legacy).await;
                let running = Running::start(&world, call);
                let request = world.post().await;
                let body = request.body.clone();
                (world, Server::Http(request.events(), body), running)
            }
            Over::Sse => {
                let (mut world, pair) = pair().await;
                world.upstream.serve_one_client();
                let running = Running::start(&world, call);
                let request = pair.read(&mut world).await;
                (world, Server::Sse(pair, request), running)
            }
        };
        Self { world, server, running }
    }

    /// The next message from Weir.
    async fn read(&mut self) -> Value {
        read(&mut self.world, &mut self.server).await
    }
}

async fn read(world: &mut World, server: &mut Server) -> Value {
    match server {
        Server::Stdio(peer, _) => peer.read().await,
        Server::Sse(pair, _) => pair.read(world).await,
        Server::Http(..) => {
            let post = world.post().await;
            assert_eq!(post.headers["mcp-session-id"], "s1");
            let body = post.body.clone();
            post.status(202);
            body
        }
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
            let answer = read(&mut world, &mut server).await;
            let expected = json!({ "jsonrpc": "2.0", "id": "e-1", "result": {"action": "accept"} });
            assert_eq!(answer, expected, "{over:?}");

            // One after the other, and an error this time.
            server.send(question("s-2", "sampling/createMessage", &json!({}))).await;
            let asks = asked(going.await.expect("no panic"));
            let key = asks.questions()[0].key.clone();
            let no = error(&key, r#"{"code":-1,"message":"no"}"#);
            let going = world.tasks.spawn(asks.answer(vec![no], caller));
            let answer = read(&mut world, &mut server).await;
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
        assert_eq!(read(&mut world, &mut server).await["id"], "a");
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
            let message = read(&mut world, &mut server).await;
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
