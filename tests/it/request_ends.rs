//! Every request of a client gets an end with its id, if that can be read, whatever is wrong with
//! the rest.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use weir_base::json::{Object, elements};
use weir_mcp::revision::Revision;

use crate::cell::{
    LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, Side, Transport,
};
use crate::client::{Client, string};
use crate::world::{World, hub, with_pair};

const SIDES: [Side; 5] = [MODERN_HTTP, LEGACY_HTTP, MODERN_STDIO, LEGACY_STDIO, LEGACY_SSE];

/// Sends a text and returns the response to it.
async fn response_to(client: &Client, text: &[u8]) -> String {
    if client.side.is_http() {
        let http = client.http();
        return http.post(text.to_vec(), &http.headers("ping", "{}")).whole().await.body;
    }
    client.stdio().send(text);
    string(client.stdio().next_unrouted().await.expect("a response"))
}

fn id_and_code(response: &str) -> (Option<String>, String) {
    let response = Object::parse(response.to_owned()).unwrap_or_else(|_| panic!("{response}"));
    let error = response.get_object("error").unwrap_or_else(|| panic!("no error: {response:?}"));
    let id = response.get("id").map(str::to_owned);
    (id, error.get("code").expect("a code").to_owned())
}

/// Broken requests, each with the id that can be read.
fn broken() -> Vec<(Vec<u8>, Option<&'static str>)> {
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let texts = [
        (r#"{"jsonrpc":"1.0","id":"x","method":"ping"}"#.to_owned(), Some(r#""x""#)),
        (r#"{"id":"x","method":"ping"}"#.into(), Some(r#""x""#)),
        (r#"{"jsonrpc":"2.0","id":"x"}"#.into(), Some(r#""x""#)),
        (r#"{"jsonrpc":"2.0","id":"x","method":[]}"#.into(), Some(r#""x""#)),
        (r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":7}"#.into(), Some(r#""x""#)),
        (r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":["a"]}"#.into(), Some(r#""x""#)),
        (r#"{"jsonrpc":"2.0","id":"x","method":"ping","method":"ping"}"#.into(), Some(r#""x""#)),
        (r#"{"jsonrpc":"2.0","id":"x","method":"ping","params":{"a":1,}}"#.into(), Some(r#""x""#)),
        (r#"{"jsonrpc":"2.0","id":"x","method":"ping""#.into(), Some(r#""x""#)),
        (r#"{"jsonrpc":"2.0","id":"x","method":"ping"}}"#.into(), Some(r#""x""#)),
        (
            format!(r#"{{"jsonrpc":"2.0","method":"ping","params":{{"a":{deep}}},"id":"x"}}"#),
            Some(r#""x""#),
        ),
        (r#"{"jsonrpc":"2.0","id":"","method":7}"#.into(), Some(r#""""#)),
        (
            r#"{"jsonrpc":"2.0","id":-12345678901234567890123,"method":7}"#.into(),
            Some("-12345678901234567890123"),
        ),
        (r#"{"jsonrpc":"2.0","id":7.0,"method":7}"#.into(), Some("7.0")),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#.into(), None),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.into(), None),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#.into(), None),
    ];
    let utf8 = (
        b"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"ping\",\"params\":{\"a\":\"\xff\"}}"
            .to_vec(),
        Some(r#""x""#),
    );
    texts.into_iter().map(|(text, id)| (text.into_bytes(), id)).chain([utf8]).collect()
}

#[tokio::test(start_paused = true)]
async fn broken_request_gets_an_error_with_its_id_over_every_transport() {
    let world = World::start(hub(MODERN_HTTP), &with_pair("")).await;
    for side in SIDES {
        let client = world.client(side).await;
        for (text, id) in broken() {
            let (found, _) = id_and_code(&response_to(&client, &text).await);
            let shown = String::from_utf8_lossy(&text[..text.len().min(120)]).into_owned();
            assert_eq!(found.as_deref(), id, "{side}: {shown}");
        }
        assert_eq!(client.prompts().await.len(), 2, "{side}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn request_over_the_limit_gets_an_error_with_the_id_at_its_beginning() {
    let world = World::start(hub(MODERN_HTTP), "[server]\nmax_body = \"64KiB\"").await;
    let large = "x".repeat(200_000);
    for side in [MODERN_STDIO, LEGACY_STDIO] {
        let client = world.client(side).await;
        for (text, id) in [
            (
                format!(r#"{{"jsonrpc":"2.0","id":"x","method":"m","params":"{large}"}}"#),
                Some(r#""x""#),
            ),
            (format!(r#"{{"method":"m","params":"{large}","id":"x"}}"#), None),
        ] {
            let (found, code) = id_and_code(&response_to(&client, text.as_bytes()).await);
            assert_eq!((found.as_deref(), &*code), (id, "5130"), "{side}");
        }
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn request_with_null_parameters_is_served() {
    let world = World::start(hub(MODERN_HTTP), &with_pair("")).await;
    for side in [LEGACY_HTTP, LEGACY_STDIO, LEGACY_SSE] {
        let client = world.client(side).await;
        let text = br#"{"jsonrpc":"2.0","id":"x","method":"ping","params":null}"#;
        let response = response_to(&client, text).await;
        assert_eq!(response, r#"{"jsonrpc":"2.0","id":"x","result":{}}"#, "{side}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn request_that_http_refuses_after_reading_it_gets_an_error_with_its_id() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(LEGACY_HTTP).await;
    let http = client.http();
    let text = r#"{"jsonrpc":"2.0","id":"x","method":"tools/list"}"#;
    for (name, value, status) in [
        ("mcp-session-id", Some("nonsense"), 404),
        ("mcp-session-id", None, 400),
        ("mcp-protocol-version", Some("1999-01-01"), 400),
    ] {
        let mut headers = http.headers("tools/list", "{}");
        match value {
            Some(value) => crate::client::set(&mut headers, name, value),
            None => drop(headers.remove(name)),
        }
        let reply = http.post(text, &headers).whole().await;
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(id_and_code(&reply.body).0.as_deref(), Some(r#""x""#), "{name}: {reply:?}");
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn each_request_of_a_refused_batch_gets_an_error_with_its_id() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let batch = concat!(
        r#"[{"jsonrpc":"2.0","id":1000,"method":"ping"},{"jsonrpc":"2.0","method":"n"},"#,
        r#"{"jsonrpc":"2.0","id":"b","method":"initialize"},7]"#
    );
    // Where there are batches, one with `initialize` is refused as a whole.
    for transport in [Transport::Http, Transport::Stdio] {
        let client = world.client(Side::new(Revision::V2025_03_26, transport)).await;
        let response = response_to(&client, batch.as_bytes()).await;
        let all = elements(&response.into()).expect("an array");
        let ids: Vec<_> = all.map(|one| id_and_code(&string(one)).0.expect("an id")).collect();
        assert_eq!(ids, ["1000", r#""b""#]);
    }
    let client = world.client(LEGACY_STDIO).await;
    let first = response_to(&client, batch.as_bytes()).await;
    let second = string(client.stdio().next_unrouted().await.expect("a second"));
    assert_eq!(id_and_code(&first).0.as_deref(), Some("1000"));
    assert_eq!(id_and_code(&second).0.as_deref(), Some(r#""b""#));
    drop(client);
    world.close().await;
}

#[test]
fn requests_with_anything_around_their_id_get_one_response_each() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let config = Config { cases: 64, rng_seed: RngSeed::Fixed(9), ..Config::default() };
    let parts = prop::collection::vec(
        prop_oneof![
            Just(r#""method":"ping""#),
            Just(r#""method":7"#),
            Just(r#""params":null"#),
            Just(r#""params":[1]"#),
            Just(r#""params":{"a":[[{}]]}"#),
            Just(r#""x":"\u0000""#),
            Just(r#""x":1e99"#),
            Just(r#""jsonrpc":"1.0""#),
            Just(r#""x":"}{\"id\":5""#),
        ],
        0..5,
    );
    let (world, client) = runtime.block_on(async {
        let world = World::start(hub(MODERN_HTTP), "").await;
        let client = world.client(LEGACY_STDIO).await;
        (world, client)
    });
    let numbers = std::cell::Cell::new(1_000_u64);
    TestRunner::new(config)
        .run(&(parts, 0..2_usize), |(parts, at)| {
            let number = numbers.replace(numbers.get() + 1);
            let mut parts: Vec<_> = parts.into_iter().map(str::to_owned).collect();
            parts.insert(at.min(parts.len()), format!(r#""id":{number}"#));
            let text = format!(r#"{{"jsonrpc":"2.0",{}}}"#, parts.join(","));
            let response = runtime.block_on(response_to(&client, text.as_bytes()));
            let response = Object::parse(response).expect("an object");
            prop_assert_eq!(response.get("id"), Some(&*number.to_string()), "{}", text);
            Ok(())
        })
        .expect("each has its response");
    runtime.block_on(async {
        drop(client);
        world.close().await;
    });
}
