//! Ends of requests: a server's broken request gets an error with its id, and a response on another
//! stream of the session ends its request.

use serde_json::{Value, json};

use super::calls::{RunningCall, Server, in_all_cells};
use super::pair::pair;
use crate::Error;
use crate::testing::{TestTransport, World, call, settings};
use weir_mcp::call::CancelReason;
use weir_mcp::revision::{Era, Revision};

const LEGACY: Revision = Revision::V2025_11_25;

fn valid_result() -> Value {
    json!({ "right": 1 })
}

async fn write(server: &mut Server, text: &str) {
    match server {
        Server::Stdio(peer, _) => peer.write(text).await,
        Server::Http(events, _) => events.raw(format!("data: {text}\n\n")),
        Server::Sse(pair, _) => pair.events.raw(format!("data: {text}\n\n")),
    }
}

/// Broken requests with the id that can be read in them, and the code of their error.
fn broken_requests() -> Vec<(String, Value, i64)> {
    let deep = format!("{}{}", "[".repeat(600), "]".repeat(600));
    let members: String = (0..1_100).map(|number| format!(r#""m{number}":1,"#)).collect();
    let texts = [
        (r#"{"id":"q","method":"roots/list"}"#.to_owned(), -32600),
        (r#"{"jsonrpc":"1.0","id":"q","method":"roots/list"}"#.into(), -32600),
        (r#"{"jsonrpc":2.0,"id":"q","method":"ping"}"#.into(), -32600),
        (r#"{"jsonrpc":"2.0","id":"q","method":7}"#.into(), -32600),
        (r#"{"jsonrpc":"2.0","id":"q","method":null}"#.into(), -32600),
        (r#"{"jsonrpc":"2.0","id":"q","method":"ping","params":[1]}"#.into(), -32602),
        (r#"{"jsonrpc":"2.0","id":"q","method":"ping","params":7}"#.into(), -32602),
        (r#"{"jsonrpc":"2.0","id":"q","method":"ping","params":"x"}"#.into(), -32602),
        (r#"{"jsonrpc":"2.0","id":"q","method":"ping","method":"ping"}"#.into(), -32600),
        (r#"{"jsonrpc":"2.0","id":"q","method":"ping""#.into(), -32700),
        (r#"{"jsonrpc":"2.0","id":"q","method":"ping","params":{"x":01}}"#.into(), -32700),
        (r#"{"jsonrpc":"2.0","id":"q","method":"ping"} x"#.into(), -32700),
        (
            format!(r#"{{"jsonrpc":"2.0","method":"ping","params":{{"x":{deep}}},"id":"q"}}"#),
            -32600,
        ),
        (format!(r#"{{{members}"jsonrpc":"2.0","method":"ping","id":"q"}}"#), -32600),
        (r#"{"jsonrpc":"2.0","id":"q","method":"tools/list"}"#.into(), -32601),
        (r#"{"jsonrpc":"2.0","id":"q","method":"nonsense","params":null}"#.into(), -32601),
        (r#"{"jsonrpc":"2.0","id":"q","method":"nonsense","result":{}}"#.into(), -32601),
        (r#"{"jsonrpc":"2.0","id":"q","method":"","x":1e999}"#.into(), -32601),
    ];
    let named = texts.into_iter().map(|(text, code)| (text, json!("q"), code));
    let odd = [("7.0", json!(7.0)), ("-7", json!(-7)), ("\"\"", json!("")), ("0", json!(0))];
    let odd = odd.map(|(text, id)| {
        (format!(r#"{{"jsonrpc":"2.0","id":{text},"method":"nonsense"}}"#), id, -32601)
    });
    named.chain(odd).collect()
}

#[tokio::test(start_paused = true)]
async fn broken_request_of_a_server_gets_an_error_with_its_id_over_any_transport() {
    in_all_cells(false, async |world, mut server, running, _, era| {
        for (text, id, code) in broken_requests() {
            write(&mut server, &text).await;
            if era == Era::Modern {
                // A client of this revision must not send responses.
                continue;
            }
            let response = server.read(world).await;
            let shown = &text[..text.len().min(100)];
            assert_eq!(response["id"], id, "{shown}: {response}");
            assert_eq!(response["error"]["code"], code, "{shown}: {response}");
        }
        server.answer(valid_result()).await;
        assert_eq!(running.end().await.expect("a reply"), r#"{"right":1}"#, "{era}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn requests_in_an_array_that_the_revision_does_not_know_get_an_error_each() {
    in_all_cells(false, async |world, mut server, running, _, era| {
        let array = r#"[{"jsonrpc":"2.0","id":"a","method":"ping"},{"id":"b","method":"x"},7]"#;
        write(&mut server, array).await;
        if era == Era::Legacy {
            let mut ids = [server.read(world).await, server.read(world).await]
                .map(|response| response["id"].as_str().expect("a text").to_owned());
            ids.sort();
            assert_eq!(ids, ["a", "b"]);
        }
        server.answer(valid_result()).await;
        running.end().await.expect("a reply");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn request_over_the_limit_gets_an_error_if_its_beginning_shows_the_id() {
    let large = "x".repeat(2 << 20);
    let request = format!(
        r#"{{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{{"x":"{large}"}}}}"#
    );
    let (mut world, mut peer) = World::stdio(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let asked = peer.read().await;
    peer.write(&request).await;
    let response = peer.read().await;
    assert_eq!((&response["id"], &response["error"]["code"]), (&json!("q"), &json!(-32600)));
    peer.answer(&asked, valid_result()).await;
    running.end().await.expect("a reply");
    assert!(world.is_quiet().await);
    world.finish().await;

    let (mut world, pair) = pair().await;
    let running = RunningCall::start(&world, call(LEGACY));
    let asked = pair.read(&mut world).await;
    // The end of an event shows an id, too, where the TypeScript SDK writes it.
    let at_end =
        format!(r#"{{"method":"roots/list","params":{{"x":"{large}"}},"jsonrpc":"2.0","id":7}}"#);
    for (text, id) in [(&request, json!("q")), (&at_end, json!(7))] {
        pair.events.raw(format!("data: {text}\n\n"));
        assert_eq!(pair.read(&mut world).await["id"], id);
    }
    pair.answer(&asked, valid_result());
    running.end().await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn open_request_of_a_server_that_has_responded_gets_an_error() {
    in_all_cells(false, async |world, mut server, running, _, era| {
        if era == Era::Modern || matches!(server, Server::Sse(..)) {
            return;
        }
        let params = json!({ "messages": [], "maxTokens": 1 });
        let method = "sampling/createMessage";
        let mut question = json!({ "jsonrpc": "2.0", "id": "q", "method": method });
        question["params"] = params;
        server.send(question).await;
        server.answer(valid_result()).await;
        let response = server.read(world).await;
        assert_eq!(response["id"], "q", "{response}");
        assert!(response.get("error").is_some(), "{response}");
        running.end().await.expect("a reply");
    })
    .await;
}

// === Responses on other streams ===

fn response_to(id: u64, result: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// Starts a world with a legacy HTTP server whose standalone stream is open.
async fn with_standalone() -> (World, crate::testing::Events) {
    let mut world = World::start(settings(TestTransport::Http));
    world.open_http(Era::Legacy).await;
    world.up().await;
    let get = loop {
        let request = world.request().await;
        match request.method.as_str() {
            "GET" => break request,
            _ => request.answer(json!({})),
        }
    };
    (world, get.events())
}

#[tokio::test(start_paused = true)]
async fn response_on_the_standalone_stream_ends_its_request_and_the_stream_of_that() {
    // How far the server has come with the HTTP response of the request itself.
    for begun in ["nothing", "stream", "202"] {
        let (mut world, standalone) = with_standalone().await;
        let running = RunningCall::start(&world, call(LEGACY));
        let mut post = world.post().await;
        let id = post.id();
        match begun {
            "nothing" => {
                standalone.send(response_to(id, &valid_result()));
                post.abandoned().await;
            }
            "stream" => {
                let own = post.events();
                standalone.send(response_to(id, &valid_result()));
                own.closed().await;
                // Too late: it reaches no request.
                own.send(response_to(id, &json!({ "wrong": 1 })));
            }
            _ => {
                post.status(202);
                tokio::time::sleep(std::time::Duration::from_secs(5)).await;
                standalone.send(response_to(id, &valid_result()));
            }
        }
        assert_eq!(running.end().await.expect(begun), r#"{"right":1}"#);
        standalone.send(response_to(id, &json!({ "wrong": 2 })));
        assert!(world.is_quiet().await, "{begun}: no cancellation");
        let running = RunningCall::start(&world, call(LEGACY));
        world.post().await.answer(valid_result());
        assert_eq!(running.end().await.expect("the next call"), r#"{"right":1}"#);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn accepted_request_without_a_stream_for_its_response_ends_with_an_error() {
    let (mut world, standalone) = with_standalone().await;
    let running = RunningCall::start(&world, call(LEGACY));
    world.post().await.status(202);
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    drop(standalone);
    let ended = running.end().await;
    assert!(matches!(&ended, Err(Error::Protocol(reason)) if reason.contains("202")), "{ended:?}");
    world.finish().await;
    for era in [Era::Legacy, Era::Modern] {
        let mut world = World::http(era).await;
        let running = RunningCall::start(&world, call(LEGACY));
        world.post().await.status(202);
        assert!(matches!(running.end().await, Err(Error::Protocol(_))), "{era:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn response_on_the_stream_of_another_request_ends_its_own_request_only() {
    for (era, as_json) in [(Era::Legacy, false), (Era::Legacy, true), (Era::Modern, false)] {
        let mut world = World::http(era).await;
        let [first, second] = [(); 2].map(|()| RunningCall::start(&world, call(LEGACY)));
        let (one, mut other) = (world.post().await, world.post().await);
        let (id, other_id) = (one.id(), other.id());
        let (first, second) = match one.body["id"].as_u64() < other.body["id"].as_u64() {
            true => (first, second),
            false => (second, first),
        };
        let misplaced = response_to(other_id, &json!({ "other": 1 }));
        if as_json {
            one.json(200, misplaced);
            let ended = first.end().await;
            assert!(matches!(ended, Err(Error::Protocol(_))), "{ended:?}");
        } else {
            let stream = one.events();
            stream.send(misplaced);
            match era {
                Era::Legacy => other.abandoned().await,
                // Without a session two requests have nothing in common.
                Era::Modern => other.answer(json!({ "other": 1 })),
            }
            stream.send(response_to(id, &valid_result()));
            assert_eq!(first.end().await.expect("its own"), r#"{"right":1}"#);
        }
        assert_eq!(second.end().await.expect("the other's"), r#"{"other":1}"#, "{era:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn response_in_the_body_of_a_post_to_an_http_sse_server_ends_its_request() {
    let (mut world, pair) = pair().await;
    let running = RunningCall::start(&world, call(LEGACY));
    let post = world.request().await;
    post.answer(valid_result());
    assert_eq!(running.end().await.expect("a reply"), r#"{"right":1}"#);
    // Any other body has no meaning, and the first of two responses counts.
    for status in [200, 201, 202, 204] {
        let running = RunningCall::start(&world, call(LEGACY));
        let post = world.request().await;
        let asked = post.body.clone();
        match status {
            200 => post.json(200, json!({ "status": "accepted" })),
            201 => {
                pair.answer(&asked, valid_result());
                post.json(201, response_to(asked["id"].as_u64().expect("a number"), &json!({})));
            }
            status => post.status(status),
        }
        if status != 201 {
            pair.answer(&asked, valid_result());
        }
        assert_eq!(running.end().await.expect("a reply"), r#"{"right":1}"#, "{status}");
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn reason_of_a_cancellation_is_passed_on() {
    for (era, reason) in [(Era::Legacy, "enough"), (Era::Modern, "\u{1b} \"x\"\n")] {
        let (world, mut peer) = World::stdio(era).await;
        let mut sent = call(LEGACY);
        sent.caller.cancel_reason = CancelReason::unset();
        sent.caller.cancel_reason.set(reason);
        let running = RunningCall::start(&world, sent);
        peer.read().await;
        running.0.abort();
        let cancelled = peer.read().await;
        assert_eq!(cancelled["params"]["reason"], reason);
        world.finish().await;
    }
}
