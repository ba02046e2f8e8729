//! The stream: its beginning, its messages, and that its era is legacy.

use std::time::Duration;

use hyper::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::revision::Revision;

use super::{LIST, Stream, code, plain, post, start};
use crate::cell::{Side, Transport};
use crate::client::{AUTHORITY, object, string};
use crate::world::pass;

#[tokio::test(start_paused = true)]
async fn a_stream_begins_with_the_address_and_is_kept_alive_by_comments() {
    let world = start("[server]\npublic_url = \"http://localhost/weir/mcp\"").await;
    let client = plain(&world, None);
    let http = client.http();
    let mut events = http.send(Method::GET, "/sse", "", &http.plain_headers());
    let first = string(events.piece().await.expect("a piece"));
    let id = first.strip_prefix("event: endpoint\ndata: /weir/messages?sessionId=");
    let id = id.and_then(|rest| rest.strip_suffix("\n\n")).unwrap_or_else(|| panic!("{first:?}"));
    let begin = Instant::now();
    for _ in 0..4 {
        assert!(events.piece().await.expect("a piece").starts_with(b":"));
    }
    assert_eq!(begin.elapsed().as_secs(), 60);
    // The time of silence begins with the last message.
    pass(Duration::from_secs(10)).await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    assert_eq!(post(http, &format!("/messages?sessionId={id}"), ping).await.status, 202);
    let sent = string(events.piece().await.expect("a piece"));
    assert_eq!(sent, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n");
    let begin = Instant::now();
    assert!(events.piece().await.expect("a piece").starts_with(b":"));
    assert_eq!(begin.elapsed().as_secs(), 15);
    drop(events);

    let mut raw = world.connect();
    let request = format!("GET /sse HTTP/1.1\r\nHost: {AUTHORITY}\r\n\r\n");
    raw.write_all(request.as_bytes()).await.expect("the gateway reads");
    let mut head = vec![0; 300];
    let count = raw.read(&mut head).await.expect("a head");
    let head = String::from_utf8_lossy(&head[..count]).to_lowercase();
    for header in
        ["content-type: text/event-stream", "cache-control: no-cache", "x-accel-buffering: no"]
    {
        assert!(head.contains(header), "{head}");
    }
    drop(raw);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn every_legacy_revision_is_spoken_and_any_other_settles_on_the_newest() {
    for revision in Revision::ALL.into_iter().filter(|one| *one < Revision::NEWEST) {
        let world = start("").await;
        let client = world.client(Side::new(revision, Transport::Sse)).await;
        let mut changes = client.listen().await;
        for kind in Kind::ALL {
            assert_eq!(client.list_all(kind).await.len(), 2, "{revision}");
        }
        assert!(client.call_tool("hub__a").await.outcome.is_ok());
        world.upstream("hub").add_prompt("new").await;
        assert_eq!(changes.next_change().await, ListTopic::Prompts);
        drop(changes);
        drop(client);
        world.close().await;
    }
    let world = start("").await;
    let client = plain(&world, None);
    for other in ["2026-07-28", "2099-01-01", "nonsense"] {
        let answer = Stream::open(client.http()).await.initialize(other).await;
        let result = object(&answer).get_object("result").expect("a result");
        assert_eq!(result.get("protocolVersion"), Some("\"2025-11-25\""), "{other}");
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_comes_before_initialize_is_told_what_to_do_and_a_probe_falls_back() {
    let world = start("").await;
    let client = plain(&world, None);
    let mut stream = Stream::open(client.http()).await;
    assert_eq!(object(&stream.ask("ping", "{}").await).get("result"), Some("{}"));
    let modern = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#;
    for (method, expected) in [
        ("server/discover", -32601),
        ("subscriptions/listen", -32601),
        ("prompts/list", -32600),
        ("tools/call", -32600),
    ] {
        for params in ["{}", modern] {
            assert_eq!(code(&stream.ask(method, params).await), expected, "{method}");
        }
    }
    assert_eq!(stream.post(format!("[{LIST}]")).await.status, 400);
    stream.initialize("2025-06-18").await;
    assert_eq!(code(&stream.ask("server/discover", modern).await), -32601);
    // A request with modern members is served as a legacy one.
    let listed = stream.ask("prompts/list", modern).await;
    let result = object(&listed).get_object("result").expect("a result");
    assert!(result.has("prompts") && !result.has("resultType"), "{listed}");
    drop(stream);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_initialized_once() {
    let world = start("").await;
    let client = plain(&world, None);
    let mut stream = Stream::open(client.http()).await;
    assert_eq!(code(&stream.ask("initialize", "{}").await), -32602, "this opens nothing");
    assert!(stream.initialize("2025-03-26").await.contains("2025-03-26"));
    assert_eq!(code(&stream.initialize("2025-11-25").await), -32600);
    // The session is unchanged: this revision has batches.
    assert_eq!(stream.post(format!("[{LIST}]")).await.status, 202);
    assert!(stream.next().await.starts_with('['));
    drop(stream);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn batches_are_served_in_the_revisions_that_have_them() {
    let world = start("").await;
    let client = plain(&world, None);
    let note = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
    for (version, has_batches) in
        [("2024-11-05", true), ("2025-03-26", true), ("2025-06-18", false), ("2025-11-25", false)]
    {
        let mut stream = Stream::open(client.http()).await;
        stream.initialize(version).await;
        let reply = stream.post(format!("[{LIST},{note},7]")).await;
        if !has_batches {
            assert_eq!((reply.status, reply.code()), (400, -32600), "{version}");
            continue;
        }
        assert_eq!((reply.status, &*reply.body), (202, ""), "{version}");
        let answers = weir_base::json::elements(&stream.next().await.into()).expect("an array");
        assert_eq!(answers.count(), 2, "{version}");
        assert_eq!(stream.post(format!("[{note}]")).await.status, 202);
        let bad = stream.post("[").await;
        assert_eq!((bad.status, bad.code()), (400, -32700), "{version}");
        // No other message has come.
        assert_eq!(object(&stream.ask("ping", "{}").await).get("id"), Some("7"));
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_once_the_client_is_initialized() {
    let world = start("").await;
    let client = plain(&world, None);
    let mut stream = Stream::open(client.http()).await;
    stream.initialize("2025-11-25").await;
    world.upstream("hub").add_prompt("new").await;
    pass(Duration::from_secs(2)).await;
    assert_eq!(object(&stream.ask("ping", "{}").await).get("id"), Some("7"), "not before");
    stream.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    let announced = object(&stream.next().await);
    assert_eq!(announced.get("method"), Some("\"notifications/prompts/list_changed\""));
    drop(stream);
    drop(client);
    world.close().await;
}
