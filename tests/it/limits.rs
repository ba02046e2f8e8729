//! Limits on calls, on streams, and on the time that a client may take.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::Instant;

use crate::cell::{MODERN_HTTP, MODERN_STDIO, SIDES};
use crate::client::{AUTHORITY, ChangeStream, named, object};
use crate::upstream::{InterceptedCalls, PATIENCE};
use crate::world::{World, everywhere, hub, settle};

const TWO_AT_A_TIME: &str = "[upstreams.hub]\nlimits = { concurrency = 2 }";

#[tokio::test(start_paused = true)]
async fn a_call_too_many_waits_a_moment_and_is_then_refused() {
    everywhere(TWO_AT_A_TIME, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted: InterceptedCalls = world.upstream("hub").intercept("tools/call");
        let start = || client.start("tools/call", &named("hub__a"));
        let under_way = [(start(), intercepted.next().await), (start(), intercepted.next().await)];
        let began = Instant::now();
        let reply = start().reply().await;
        assert_eq!(reply.code(), 4290, "{reply:?}");
        assert_eq!(began.elapsed().as_secs(), 1);
        let data = object(reply.error()).get_object("data").expect("data");
        assert!(data.get("retryAfterMs").expect("a time").parse::<u64>().is_ok());
        let expected = if cell.client.is_http() { 429 } else { 200 };
        assert_eq!(reply.status, expected, "{reply:?}");

        let waiting = start();
        settle().await;
        for (exchange, call) in under_way {
            call.result(r#"{"resultType":"complete","content":[]}"#);
            assert!(exchange.reply().await.outcome.is_ok());
        }
        intercepted.next().await.result(r#"{"resultType":"complete","content":[]}"#);
        assert!(waiting.reply().await.outcome.is_ok());
        assert_eq!(world.upstream("hub").count("tools/call"), 3);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_an_upstream_are_as_many_and_wait_as_long_as_they_may() {
    let config = "[upstreams.hub]\nlimits = { concurrency = 1, waiting = 2, wait = \"7s\" }";
    let world = World::start(hub(MODERN_HTTP), config).await;
    let client = world.client(MODERN_HTTP).await;
    let mut intercepted: InterceptedCalls = world.upstream("hub").intercept("tools/call");
    let start = || client.start("tools/call", &named("hub__a"));
    let (exchange, call) = (start(), intercepted.next().await);
    let waiting = [start(), start()];
    settle().await;
    let began = Instant::now();
    let took = || began.elapsed().as_millis();
    assert_eq!(start().reply().await.code(), 4290);
    assert!(took() < 10, "no place to wait is left: {} ms", took());
    for waits in waiting {
        assert_eq!(waits.reply().await.code(), 4290);
        assert!((6_990..7_010).contains(&took()), "after {} ms", took());
    }
    call.result(r#"{"resultType":"complete","content":[]}"#);
    assert!(exchange.reply().await.outcome.is_ok());
    drop((intercepted, client));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_makes_room() {
    everywhere(TWO_AT_A_TIME, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        for _ in 0..5 {
            let exchange = client.start("tools/call", &named("hub__a"));
            let call = intercepted.next().await;
            exchange.cancel().await;
            call.cancelled().await;
        }
        world.upstream("hub").reset_answer("tools/call");
        assert!(client.call_tool("hub__a").await.outcome.is_ok());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_has_eight_streams_of_changes() {
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(hub(MODERN_HTTP), "[roles.guest]\nprompts.allow = [\"*\"]").await;
        let client = world.client_as("guest", side).await;
        let mut streams: Vec<ChangeStream<'_>> = Vec::new();
        for _ in 0..8 {
            streams.push(client.listen().await);
        }
        let one_more = r#"{"notifications":{"promptsListChanged":true}}"#;
        let reply = client.request("subscriptions/listen", one_more).await;
        assert_eq!(reply.code(), 4290, "{side}: {reply:?}");
        streams.pop().expect("a stream").cancel().await;
        settle().await;
        streams.push(client.listen().await);
        drop(streams);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_kept_alive_by_comments() {
    for side in SIDES.into_iter().filter(|side| side.is_http()) {
        let world = World::start(hub(MODERN_HTTP), "").await;
        let client = world.client(side).await;
        let mut changes = client.listen().await;
        // The first event opens a legacy stream and comes at once.
        changes.piece().await.expect("a piece");
        let start = Instant::now();
        for _ in 0..4 {
            let piece = changes.piece().await.expect("a piece");
            assert!(piece.starts_with(b":"), "{side}: {piece:?}");
        }
        assert_eq!(start.elapsed().as_secs(), 60, "{side}");
        drop(changes);
        drop(client);
        world.close().await;
    }
}

// === Slow clients ===

/// Response to these bytes, and the time after which the gateway closes the connection.
async fn read_until_closed(stream: &mut DuplexStream, bytes: &str) -> (String, Duration) {
    stream.write_all(bytes.as_bytes()).await.expect("the gateway reads");
    let start = Instant::now();
    let mut sent = Vec::new();
    let reading = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut sent)).await;
    reading.expect("the gateway hangs up in time").expect("the gateway hangs up");
    (String::from_utf8(sent).expect("UTF-8"), start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_or_half_a_head_is_closed() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for half in ["", "P", "POST /mcp HTTP/1.1\r\nHost: x\r\nX: "] {
        let (sent, after) = read_until_closed(&mut world.connect(), half).await;
        assert!(sent.is_empty() || sent.starts_with("HTTP/1.1 408"), "{half:?}: {sent}");
        assert!(after <= Duration::from_secs(11), "{half:?}: {after:?}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {AUTHORITY}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: 100\r\n\r\n{{"
    );
    let (sent, after) = read_until_closed(&mut world.connect(), &head).await;
    assert!(sent.starts_with("HTTP/1.1 408"), "{sent}");
    assert!(after <= Duration::from_secs(31), "{after:?}");
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_a_request_is_refused_unread_goes_on_or_is_said_to_end() {
    let world = World::start(hub(MODERN_HTTP), "[auth]\nmode = \"required\"").await;
    let head = |bytes: usize, more: &str| {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: {AUTHORITY}\r\nContent-Type: application/json\r\n{more}\
             Content-Length: {bytes}\r\n\r\n"
        )
    };
    // Many clients send head and body one after the other.
    let mut stream = world.connect();
    for _ in 0..3 {
        stream.write_all(head(100, "").as_bytes()).await.expect("the gateway reads");
        settle().await;
        stream.write_all(&[b' '; 100]).await.expect("the gateway reads");
        let mut sent = Vec::new();
        while !sent.ends_with(b"}}") {
            assert_ne!(stream.read_buf(&mut sent).await.expect("the gateway answers"), 0);
        }
        let sent = String::from_utf8(sent).expect("UTF-8");
        assert!(sent.starts_with("HTTP/1.1 401") && !sent.contains("connection:"), "{sent}");
    }
    drop(stream);
    for (bytes, more, seconds) in
        [(100, "", 1), (100_000, "", 0), (100, "Expect: 100-continue\r\n", 0)]
    {
        let (sent, after) = read_until_closed(&mut world.connect(), &head(bytes, more)).await;
        assert!(sent.starts_with("HTTP/1.1 401"), "{sent}");
        assert!(sent.contains("connection: close\r\n"), "{sent}");
        // The lingering close may take as long again.
        assert!((seconds..=seconds + 2).contains(&after.as_secs()), "{bytes} {more}: {after:?}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_was_asked_for_and_read_does_not_end_its_connection() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let mut stream = world.connect();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {AUTHORITY}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nExpect: 100-continue\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("the gateway reads");
    let mut sent = Vec::new();
    while !sent.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut sent).await.expect("the gateway asks for it"), 0);
    }
    assert!(sent.starts_with(b"HTTP/1.1 100"), "{sent:?}");
    stream.write_all(b"1\r\n{\r\n0\r\n\r\n").await.expect("the gateway reads");
    sent.clear();
    while !sent.ends_with(b"}}") {
        assert_ne!(stream.read_buf(&mut sent).await.expect("the gateway answers"), 0);
    }
    let sent = String::from_utf8(sent).expect("UTF-8");
    assert!(sent.starts_with("HTTP/1.1 400") && !sent.contains("connection:"), "{sent}");
    drop(stream);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub__a","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let call = format!(
        "POST /mcp HTTP/1.1\r\nHost: {AUTHORITY}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: tools/call\r\nMcp-Name: hub__a\r\nContent-Length: {}\r\n\r\n{call}",
        call.len()
    );
    let stray = format!("GET /elsewhere HTTP/1.1\r\nHost: {AUTHORITY}\r\n\r\n");
    for (request, status) in [(call, 200), (stray, 404)] {
        let (sent, after) = read_until_closed(&mut world.connect(), &request).await;
        assert!(sent.starts_with(&format!("HTTP/1.1 {status}")), "{sent}");
        assert_eq!(after.as_secs(), 75, "behind {status}");
    }
    world.close().await;
}
