//! Every revision on either side: one test for each cell of the protocol's table.

use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::revision::Revision;

use crate::cell::{
    LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, SIDES, Side, Transport, UPSTREAMS,
};
use crate::client::{Client, object, set, string};
use crate::upstream::{Probe, Replies, Script};
use crate::world::{World, hub};

const LEGACY: [Revision; 4] =
    [Revision::V2024_11_05, Revision::V2025_03_26, Revision::V2025_06_18, Revision::V2025_11_25];

fn every_side() -> impl Iterator<Item = Side> {
    let sides = |revision| {
        [Transport::Http, Transport::Stdio].map(|transport| Side::new(revision, transport))
    };
    Revision::ALL.into_iter().flat_map(sides)
}

/// Uses every feature that all revisions have.
async fn use_all(world: &World, client: &Client) {
    let mut changes = client.listen().await;
    for kind in Kind::ALL {
        assert_eq!(client.list_all(kind).await.len(), 2);
    }
    for reply in [
        client.get_prompt("hub__a").await,
        client.call_tool("hub__a").await,
        client.read("file:///a").await,
        client.complete("hub__a").await,
    ] {
        assert!(reply.outcome.is_ok(), "{reply:?}");
    }
    world.upstream("hub").add_prompt("new").await;
    assert_eq!(changes.next_change().await, ListTopic::Prompts);
    assert_eq!(client.prompts().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_client_of_any_revision_is_served() {
    for side in every_side() {
        let world = World::start(hub(MODERN_HTTP), "").await;
        let client = world.client(side).await;
        use_all(&world, &client).await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_of_any_revision_is_used() {
    let pairs = LEGACY.map(|revision| Side::new(revision, Transport::Sse));
    for side in every_side().chain(pairs) {
        for replies in [Replies::Json, Replies::Events] {
            let script = Script::full(side).replies(replies);
            let world = World::start(vec![("hub", script)], "").await;
            let client = world.client(MODERN_HTTP).await;
            use_all(&world, &client).await;
            drop(client);
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_shows_its_era_in_many_ways() {
    let over_stdio = [Probe::Silent, Probe::Exit, Probe::Error(-32601), Probe::Error(-32602)];
    let over_http =
        [Probe::Status(400), Probe::Status(404), Probe::Status(405), Probe::Error(-32601)];
    let stdio = over_stdio.map(|probe| (LEGACY_STDIO, probe));
    let http = over_http.map(|probe| (LEGACY_HTTP, probe));
    for (side, probe) in stdio.into_iter().chain(http) {
        let world = World::start(vec![("hub", Script::full(side).probe(probe))], "").await;
        let client = world.client(MODERN_HTTP).await;
        assert_eq!(client.prompts().await, ["hub__a", "hub__b"], "{side}: {probe:?}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_whose_era_is_known_is_not_probed() {
    for (side, era) in [(LEGACY_HTTP, "legacy"), (LEGACY_STDIO, "legacy"), (MODERN_STDIO, "modern")]
    {
        let config = format!("[upstreams.hub]\nera = \"{era}\"");
        let world = World::start(hub(side), &config).await;
        let client = world.client(MODERN_HTTP).await;
        assert_eq!(client.prompts().await.len(), 2, "{side}");
        let hub = world.upstream("hub");
        if era == "legacy" {
            assert_eq!(hub.count("server/discover"), 0, "{side}");
        } else {
            assert_eq!(hub.count("initialize"), 0, "{side}");
        }
        drop(client);
        world.close().await;
    }
}

// === Opening ===

/// Revision that `initialize` with this version negotiates, or the error's code.
async fn negotiated(world: &World, transport: Transport, requested: &str) -> Result<String, i64> {
    let client = world.uninitialized_client(Side::new(Revision::NEWEST_LEGACY, transport), None);
    let params = format!(
        r#"{{"protocolVersion":"{requested}","capabilities":{{}},"clientInfo":{{"name":"x","version":"1"}}}}"#
    );
    let reply = client.request("initialize", &params).await;
    match &reply.outcome {
        Ok(result) => Ok(object(result).get_string("protocolVersion").expect("a version").into()),
        Err(_) => Err(reply.code()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_handshake_settles_on_what_was_asked_for_or_on_the_newest() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for transport in [Transport::Http, Transport::Stdio] {
        for revision in LEGACY {
            let version = negotiated(&world, transport, revision.as_str()).await;
            assert_eq!(version.as_deref(), Ok(revision.as_str()), "{transport:?}");
        }
        for unknown in ["2026-07-28", "2099-01-01", "2020-01-01", "nonsense", ""] {
            let version = negotiated(&world, transport, unknown).await;
            assert_eq!(version.as_deref(), Ok("2025-11-25"), "{transport:?}: {unknown}");
        }
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_switched_off_is_not_settled_on() {
    let config = "[protocol]\nversions = [\"2026-07-28\", \"2025-06-18\", \"2025-03-26\"]";
    let world = World::start(hub(MODERN_HTTP), config).await;
    for transport in [Transport::Http, Transport::Stdio] {
        for off in ["2025-11-25", "2024-11-05"] {
            assert_eq!(negotiated(&world, transport, off).await.as_deref(), Ok("2025-06-18"));
        }
        assert_eq!(negotiated(&world, transport, "2025-03-26").await.as_deref(), Ok("2025-03-26"));
        let client = world.client(Side::new(Revision::NEWEST, transport)).await;
        let discovered = object(client.request("server/discover", "{}").await.result());
        let versions = discovered.get("supportedVersions").expect("versions");
        assert_eq!(versions, r#"["2026-07-28","2025-06-18","2025-03-26"]"#);
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_era_that_is_switched_off_is_not_served() {
    let config = "[protocol]\nversions = [\"2025-11-25\"]";
    let world = World::start(hub(MODERN_HTTP), config).await;
    for side in [LEGACY_HTTP, LEGACY_STDIO] {
        let client = world.client(side).await;
        assert_eq!(client.prompts().await.len(), 2);
        assert_eq!(client.request("server/discover", "{}").await.code(), -32601, "{side}");
    }
    world.close().await;

    let config = "[protocol]\nversions = [\"2026-07-28\"]";
    let world = World::start(hub(MODERN_HTTP), config).await;
    for transport in [Transport::Http, Transport::Stdio] {
        assert!(negotiated(&world, transport, "2025-11-25").await.is_err(), "{transport:?}");
        let client = world.client(Side::new(Revision::NEWEST, transport)).await;
        assert_eq!(client.prompts().await.len(), 2);
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn discovering_is_optional_and_always_served() {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), "").await;
        for side in [MODERN_HTTP, MODERN_STDIO] {
            let client = world.client(side).await;
            let result = object(client.request("server/discover", "{}").await.result());
            assert_eq!(result.get("resultType"), Some("\"complete\""));
            let capabilities = result.get_object("capabilities").expect("capabilities");
            for topic in ListTopic::ALL {
                let expected = Some(r#"{"listChanged":true}"#);
                assert_eq!(capabilities.get(topic.capability()), expected, "{topic:?}");
            }
            assert!(capabilities.has("completions"));
            let info = result.get_object("_meta").expect("_meta");
            assert!(info.has("io.modelcontextprotocol/serverInfo"));
            assert!(result.has("ttlMs") && result.has("cacheScope"));
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_those_of_the_upstreams_and_of_the_revision() {
    let script = Script::new(MODERN_HTTP).prompts(&["a"]).capabilities(r#"{"prompts":{}}"#);
    let world = World::start(vec![("hub", script)], "").await;
    for side in SIDES {
        let client = world.client(side).await;
        assert_eq!(client.complete("hub__a").await.code(), -32601, "{side}: nobody completes");
        assert_eq!(client.list_all(Kind::Tool).await, Vec::<String>::new(), "{side}");
    }
    assert_eq!(world.upstream("hub").count("tools/list"), 0, "what is not declared is not asked");
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn both_eras_are_served_on_one_endpoint_and_one_stdio() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for transport in [Transport::Http, Transport::Stdio] {
        let client = world.client(Side::new(Revision::NEWEST_LEGACY, transport)).await;
        let modern = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#;
        let result = match transport {
            Transport::Stdio | Transport::Sse => {
                client.request("prompts/list", modern).await.result().to_owned()
            }
            Transport::Http => {
                let http = client.http();
                let mut headers = http.headers("prompts/list", modern);
                set(&mut headers, "mcp-protocol-version", "2026-07-28");
                set(&mut headers, "mcp-method", "prompts/list");
                let message =
                    weir_mcp::jsonrpc::write_request(&9.into(), "prompts/list", modern.as_bytes());
                let reply = http.post(message, &headers).whole().await;
                string(object(&reply.body).get_bytes("result").expect("a result"))
            }
        };
        assert!(object(&result).has("resultType"), "{transport:?}");
        assert!(!client.page(Kind::Prompt, None).await.has("resultType"), "{transport:?}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_client_can_ping() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for revision in LEGACY {
        for transport in [Transport::Http, Transport::Stdio] {
            let client = world.client(Side::new(revision, transport)).await;
            assert_eq!(client.request("ping", "{}").await.result(), "{}", "{revision}");
        }
    }
    world.close().await;
}

// === Batches ===

const BATCH: &str = r#"[{"jsonrpc":"2.0","id":1,"method":"prompts/list"},{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":"b","method":"ping"},{"jsonrpc":"2.0","id":3,"method":"nonsense"}]"#;

/// Responses of a batch, by id.
fn by_id(batch: String) -> Vec<(String, bool)> {
    let answers = weir_base::json::elements(&batch.into()).expect("an array");
    let mut answers: Vec<_> = answers
        .map(|answer| {
            let answer = object(&string(answer));
            (answer.get("id").expect("an id").to_owned(), answer.has("result"))
        })
        .collect();
    answers.sort();
    answers
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_answered_where_revisions_have_batches() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let expected = [("\"b\"", true), ("1", true), ("3", false)];
    let expected = expected.map(|(id, good)| (id.to_owned(), good));
    for revision in [Revision::V2024_11_05, Revision::V2025_03_26] {
        let client = world.client(Side::new(revision, Transport::Http)).await;
        let http = client.http();
        let headers = http.headers("", "{}");
        let reply = http.post(BATCH, &headers).whole().await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let body = match reply.body.strip_prefix('[') {
            Some(_) => reply.body.clone(),
            None => events(&reply.body),
        };
        assert_eq!(by_id(body), expected, "{revision}");
        let notifications = r#"[{"jsonrpc":"2.0","method":"notifications/x"}]"#;
        let reply = http.post(notifications, &headers).whole().await;
        assert_eq!((reply.status, &*reply.body), (202, ""), "{revision}");
        let reply = http.post("[]", &headers).whole().await;
        assert_eq!((reply.status, reply.code()), (400, -32600), "{revision}");

        let client = world.client(Side::new(revision, Transport::Stdio)).await;
        client.stdio().send(BATCH.as_bytes());
        let mut answers = Vec::new();
        while answers.len() < 3 {
            let line = string(client.stdio().next_unrouted().await.expect("a line"));
            match line.starts_with('[') {
                true => answers.extend(by_id(line)),
                false => answers.extend(by_id(format!("[{line}]"))),
            }
        }
        answers.sort();
        assert_eq!(answers, expected, "{revision}");
    }
    world.close().await;
}

/// The messages of an event stream as an array.
fn events(body: &str) -> String {
    let data: Vec<_> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    match &data[..] {
        [one] if one.starts_with('[') => (*one).to_owned(),
        many => format!("[{}]", many.join(",")),
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_never_opens_a_conversation() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(Side::new(Revision::V2025_03_26, Transport::Http)).await;
    let http = client.http();
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}]"#;
    let mut headers = http.headers("", "{}");
    let reply = http.post(batch, &headers).whole().await;
    assert!(!reply.headers.contains_key("mcp-session-id"), "{reply:?}");
    assert!(!reply.body.contains("\"result\""), "{reply:?}");
    headers.remove("mcp-session-id");
    let reply = http.post(batch, &headers).whole().await;
    assert_eq!(reply.status, 400, "{reply:?}");
    drop(client);
    world.close().await;
}
