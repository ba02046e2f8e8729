//! Limits on streams, sessions, requests, replies, and on the time that a client may take.

use std::collections::BTreeSet;
use std::time::Duration;

use hyper::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::Instant;

use super::{LIST, ROLES, Stream, plain, post, start, status_of};
use crate::cell::{LEGACY_HTTP, LEGACY_SSE, MODERN_HTTP};
use crate::client::{AUTHORITY, named, object};
use crate::world::{World, hub, pass, settle, with_pair};

#[tokio::test(start_paused = true)]
async fn a_client_has_eight_streams_and_listens_count_among_them() {
    let world = start(ROLES).await;
    let client = plain(&world, Some("key-of-ann"));
    let modern = world.client_as("ann", MODERN_HTTP).await;
    let http = client.http();
    let mut streams = Vec::new();
    for _ in 0..7 {
        streams.push(Stream::open(http).await);
    }
    let changes = modern.listen().await;
    let refused = http.send(Method::GET, "/sse", "", &http.plain_headers()).whole().await;
    assert_eq!((refused.status, refused.code()), (429, 4290));
    assert!(refused.headers.contains_key("retry-after"));
    drop(Stream::open(plain(&world, Some("key-of-bob")).http()).await);
    drop(changes);
    settle().await;
    streams.push(Stream::open(http).await);
    drop(streams.pop());
    settle().await;
    streams.push(Stream::open(http).await);
    drop(streams);
    drop((client, modern));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn the_sessions_of_both_transports_are_counted_together() {
    let world = start(ROLES).await;
    let mut streamable = Vec::new();
    for _ in 0..26 {
        streamable.push(world.client_as("bob", LEGACY_HTTP).await);
        pass(Duration::from_secs(1)).await;
    }
    let client = plain(&world, Some("key-of-bob"));
    let http = client.http();
    let mut streams = Vec::new();
    for _ in 0..7 {
        streams.push(Stream::open(http).await);
    }
    assert_eq!(world.sessions(), 32, "the longest idle one has made room");
    let first = async || {
        let headers = streamable[0].http().headers("", "{}");
        streamable[0].http().post(LIST, &headers).whole().await.status
    };
    assert_eq!(first().await, 200, "it is rebuilt");
    let mut in_use = Vec::new();
    for client in &streamable[1..] {
        in_use.push(client.listen().await);
    }
    let refused = http.send(Method::GET, "/sse", "", &http.plain_headers()).whole().await;
    assert_eq!((refused.status, refused.code()), (429, 4290), "what is in use is never idle");
    assert_eq!(first().await, 429);
    drop(streams.pop());
    settle().await;
    assert_eq!(world.sessions(), 31);
    let one_more = world.client_as("bob", LEGACY_HTTP).await;
    assert_eq!(one_more.prompts().await.len(), 2);
    drop((in_use, streams));
    drop((one_more, streamable));
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_too_many_is_refused_on_the_stream() {
    // Clients without credentials share sixteen times the limits of one client.
    let world = start("[server]\nper_client = { calls = 4, waiting = 1, wait = \"1s\" }\n[upstreams.hub]\nlimits = { concurrency = 100 }").await;
    let client = world.client(LEGACY_SSE).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let mut under_way = Vec::new();
    for _ in 0..64 {
        under_way.push((client.start("tools/call", &named("hub__a")), intercepted.next().await));
    }
    let waiting: Vec<_> = (0..16).map(|_| client.start("tools/call", &named("hub__a"))).collect();
    settle().await;
    let begin = Instant::now();
    let reply = client.call_tool("hub__a").await;
    assert_eq!((reply.status, reply.code()), (200, 4290), "{reply:?}");
    let took = || begin.elapsed().as_millis();
    assert!(took() < 10, "no place to wait is left: {} ms", took());
    for exchange in waiting {
        assert_eq!(exchange.reply().await.code(), 4290);
    }
    assert!((990..1_010).contains(&took()), "after {} ms", took());
    for (exchange, call) in under_way {
        call.result(r#"{"resultType":"complete","content":[]}"#);
        assert!(exchange.reply().await.outcome.is_ok());
    }
    world.upstream("hub").reset_answer("tools/call");
    assert!(client.call_tool("hub__a").await.outcome.is_ok());
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_large_reply_is_one_message_and_one_that_is_too_large_or_breaks_off_is_an_error() {
    for upstream in [MODERN_HTTP, LEGACY_HTTP] {
        let world = World::start(hub(upstream), &with_pair("")).await;
        let client = world.client(LEGACY_SSE).await;
        for (length, breaks_off) in [(1 << 20, false), (9 << 20, false), (1 << 20, true)] {
            let mut intercepted = world.upstream("hub").intercept("tools/call");
            let exchange = client.start("tools/call", &named("hub__a"));
            let call = intercepted.next().await;
            let text = "x".repeat(length);
            call.piece(&format!(
                r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"resultType":"complete","content":[],"text":"{text}"#
            ));
            if breaks_off {
                world.upstream("hub").restart();
            } else {
                call.piece(r#""}}"#);
            }
            drop(call);
            let reply = exchange.reply().await;
            if length == 1 << 20 && !breaks_off {
                let text = object(reply.result()).get("text").map(str::len);
                assert_eq!(text, Some(length + 2), "{upstream}");
            } else {
                assert!(reply.outcome.is_err(), "{upstream}: {length}");
            }
            world.upstream("hub").reset_answer("tools/call");
            pass(Duration::from_secs(2)).await;
            assert!(client.call_tool("hub__a").await.outcome.is_ok(), "{upstream}: {length}");
        }
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_over_the_limit_of_time_is_not_waited_for() {
    let world = start("").await;
    let client = plain(&world, None);
    let stream = Stream::open(client.http()).await;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {AUTHORITY}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{",
        stream.address
    );
    let mut raw = world.connect();
    raw.write_all(head.as_bytes()).await.expect("the gateway reads");
    let begin = Instant::now();
    assert_eq!((&*status_of(&mut raw).await, begin.elapsed().as_secs()), ("408", 30));
    drop(raw);
    drop(stream);
    drop(client);
    world.close().await;
}

/// Opens a stream and reads only its address; returns both.
pub(crate) async fn unread(world: &World) -> (DuplexStream, String) {
    unread_with(world, "").await
}

/// Opens a stream with this line in the request's head and reads only its address.
async fn unread_with(world: &World, line: &str) -> (DuplexStream, String) {
    let mut raw = world.connect();
    let request = format!("GET /sse HTTP/1.1\r\nHost: {AUTHORITY}\r\n{line}\r\n");
    raw.write_all(request.as_bytes()).await.expect("the gateway reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\n\n\r\n") {
        head.push(raw.read_u8().await.expect("a byte"));
    }
    let head = String::from_utf8(head).expect("UTF-8");
    let address = head.split("data: ").nth(1).and_then(|rest| rest.split('\n').next());
    let address = address.expect("an address").to_owned();
    (raw, address)
}

#[tokio::test(start_paused = true)]
async fn large_answers_that_nobody_reads_are_not_all_held() {
    let world = start("").await;
    let client = plain(&world, None);
    let (mut raw, address) = unread(&world).await;
    let send = async |id: u64, method: &str, params: &str| {
        let message = weir_mcp::jsonrpc::write_request(&id.into(), method, params.as_bytes());
        post(client.http(), &address, message).await.status
    };
    let open = r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#;
    assert_eq!(send(0, "initialize", open).await, 202);
    let large =
        format!(r#"{{"resultType":"complete","messages":[],"text":"{}"}}"#, "x".repeat(4 << 20));
    world.upstream("hub").result("prompts/get", &large);
    for id in 1..=20 {
        assert_eq!(send(id, "prompts/get", &named("hub__a")).await, 202);
    }
    settle().await;
    let (mut text, mut piece) = (Vec::new(), vec![0; 1 << 20]);
    let ids = |text: &[u8]| String::from_utf8_lossy(text).matches("\"id\":").count();
    while ids(&text) < 21 {
        let read = raw.read(&mut piece).await.expect("the stream lives");
        // The filler is dropped, so that the counted text is short.
        text.extend(piece[..read].iter().filter(|byte| **byte != b'x'));
    }
    let text = String::from_utf8_lossy(&text);
    let refused = text.matches("too many large responses are unread").count();
    // Two of the largest replies fit, besides those that were already being sent.
    assert!((14..=17).contains(&refused), "{refused}");
    drop((raw, client));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_given_up_and_holds_nobody_up() {
    let few = "[server]\nper_client = { calls = 2, waiting = 1 }\n";
    let world = start(&format!("{few}{ROLES}")).await;
    let stalled = plain(&world, Some("key-of-ann"));
    let client = world.client_as("bob", LEGACY_SSE).await;
    let (raw, address) = unread_with(&world, "Authorization: Bearer key-of-ann\r\n").await;
    let send = async |id: u64, method: &str, params: &str| {
        let message = weir_mcp::jsonrpc::write_request(&id.into(), method, params.as_bytes());
        post(stalled.http(), &address, message).await
    };
    let open = r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#;
    assert_eq!(send(0, "initialize", open).await.status, 202);
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    assert_eq!(send(1, "tools/call", &named("hub__a")).await.status, 202);
    let call = intercepted.next().await;

    let large =
        format!(r#"{{"resultType":"complete","messages":[],"text":"{}"}}"#, "x".repeat(40_000));
    world.upstream("hub").result("prompts/get", &large);
    let begin = Instant::now();
    // More than fits into the pipe, the queue, and a task for each waiting message. Each POST is
    // accepted or refused at once all the same.
    let mut statuses = BTreeSet::new();
    for id in 2..120 {
        statuses.insert(send(id, "prompts/get", &named("hub__a")).await.status);
    }
    assert_eq!(statuses, [202, 429].into(), "what does not fit is refused");
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert!(client.get_prompt("hub__a").await.outcome.is_ok(), "the others do not wait");
    call.cancelled().await;
    let after = begin.elapsed().as_secs();
    assert!((29..=31).contains(&after), "after {after} s");
    settle().await;
    assert_eq!((send(1, "ping", "{}").await.status, world.sessions()), (404, 1));
    drop((raw, stalled, client));
    world.close().await;
}
