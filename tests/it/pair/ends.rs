//! The end of a stream ends its session and the session's requests.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::{LIST, Stream, plain, start, status_of};
use crate::cell::{LEGACY_HTTP, LEGACY_SSE, MODERN_HTTP, SIDES};
use crate::client::{AUTHORITY, named};
use crate::upstream::Cancelled;
use crate::world::{World, hub, pass, settle, with_pair};

#[tokio::test(start_paused = true)]
async fn closing_the_stream_cancels_its_calls_and_ends_the_session() {
    for upstream in SIDES {
        let world = World::start(hub(upstream), &with_pair("")).await;
        let client = world.client(LEGACY_SSE).await;
        let other = world.client(LEGACY_SSE).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        let others = other.start("tools/call", &named("hub__b"));
        let others_call = intercepted.next().await;
        assert_eq!(world.sessions(), 2);
        let begin = Instant::now();
        drop(exchange);
        drop(client);
        let how = if upstream == MODERN_HTTP { Cancelled::Closed } else { Cancelled::Notified };
        assert_eq!(call.cancelled().await, how, "{upstream}");
        assert!(begin.elapsed() < Duration::from_secs(1), "{upstream}: {:?}", begin.elapsed());
        settle().await;
        assert_eq!(world.sessions(), 1, "{upstream}");
        assert!(others_call.is_wanted(), "{upstream}");
        others_call.result(r#"{"resultType":"complete","content":[]}"#);
        assert!(others.reply().await.outcome.is_ok(), "{upstream}");
        drop(other);
        settle().await;
        assert_eq!(world.sessions(), 0, "{upstream}");
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn closing_the_stream_cancels_a_call_whose_answer_is_arriving() {
    let world = World::start(hub(LEGACY_HTTP), &with_pair("")).await;
    let client = world.client(LEGACY_SSE).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let exchange = client.start("tools/call", &named("hub__a"));
    let call = intercepted.next().await;
    let half = "x".repeat(512 * 1024);
    call.piece(&format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"content":[],"text":"{half}"#));
    settle().await;
    let begin = Instant::now();
    drop(exchange);
    drop(client);
    call.cancelled().await;
    assert!(begin.elapsed() < Duration::from_secs(1), "not by its limit: {:?}", begin.elapsed());
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_answers_running_calls_and_ends_the_stream() {
    let world = start("").await;
    let client = plain(&world, None);
    let http = client.http();
    let (mut stream, mut idle) = (Stream::open(http).await, Stream::open(http).await);
    stream.initialize("2025-11-25").await;
    stream.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let message =
        weir_mcp::jsonrpc::write_request(&7.into(), "tools/call", named("hub__a").as_bytes());
    stream.post(message).await;
    let call = intercepted.next().await;
    // Requests with incomplete heads when the gateway stops, and a message that is only admitted.
    let message = format!(
        "POST {} HTTP/1.1\r\nHost: {AUTHORITY}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{LIST}",
        stream.address,
        LIST.len()
    );
    let opening = format!("GET /sse HTTP/1.1\r\nHost: {AUTHORITY}\r\n\r\n");
    let body_at = message.len() - 5;
    let mut late = Vec::new();
    for (text, at) in [(&message, 5), (&opening, 5), (&message, body_at)] {
        let mut raw = world.connect();
        raw.write_all(&text.as_bytes()[..at]).await.expect("the gateway reads");
        late.push((raw, &text[at..]));
    }
    settle().await;
    world.stop_downstream();
    assert_eq!(idle.events.next().await, None, "nothing is under way here");
    pass(Duration::from_secs(1)).await;
    assert!(call.is_wanted());
    for (mut raw, rest) in late {
        raw.write_all(rest.as_bytes()).await.expect("the gateway reads");
        assert_eq!(status_of(&mut raw).await, "503", "{rest:?}");
    }
    call.result(r#"{"resultType":"complete","content":[{"type":"text","text":"at last"}]}"#);
    assert!(stream.next().await.contains("at last"));
    assert_eq!(stream.events.next().await, None);
    assert_eq!(world.sessions(), 0);
    drop((stream, idle));
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_at_any_moment_leaves_nothing_behind() {
    for upstream in SIDES {
        let world = World::start(hub(upstream), &with_pair("")).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        for turn in 0..20 {
            let client = world.client(LEGACY_SSE).await;
            let exchange = client.start("tools/call", &named("hub__a"));
            let call = if turn % 2 == 0 { Some(intercepted.next().await) } else { None };
            drop(exchange);
            drop(client);
            if let Some(call) = call {
                call.cancelled().await;
            }
        }
        pass(Duration::from_secs(1)).await;
        assert_eq!(world.sessions(), 0, "{upstream}");
        world.close().await;
    }
}
