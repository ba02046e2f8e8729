//! Calls that end without an answer: cancelled, abandoned by the client, or timed out.

use std::time::Duration;

use tokio::time::Instant;
use weir_mcp::jsonrpc::Id;

use crate::cell::{
    LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, Side, UPSTREAMS,
};
use crate::client::named;
use crate::upstream::Cancelled;
use crate::world::{World, everywhere, hub, pass, settle, with_pair};

/// Signal by which an upstream of this side learns that a call is cancelled.
fn expected_signal(upstream: Side) -> Cancelled {
    if upstream == MODERN_HTTP { Cancelled::Closed } else { Cancelled::Notified }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_cancelled_at_its_upstream() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let other = client.start("tools/call", &named("hub__b"));
        let (call, other_call) = (intercepted.next().await, intercepted.next().await);
        exchange.cancel().await;
        assert_eq!(call.cancelled().await, expected_signal(cell.upstream));
        settle().await;
        assert!(other_call.is_wanted(), "only the one that was meant");
        other_call.result(r#"{"content":[]}"#);
        assert!(other.reply().await.outcome.is_ok());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_answer_is_arriving_on_a_shared_stream_is_cancelled() {
    for (client_side, upstream) in
        [(LEGACY_SSE, LEGACY_HTTP), (LEGACY_STDIO, LEGACY_HTTP), (MODERN_STDIO, MODERN_HTTP)]
    {
        let world = World::start(hub(upstream), &with_pair("")).await;
        let client = world.client(client_side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        let half = "x".repeat(512 * 1024);
        call.piece(&format!(
            r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"content":[],"text":"{half}"#
        ));
        settle().await;
        let begin = Instant::now();
        exchange.cancel().await;
        call.cancelled().await;
        assert!(begin.elapsed() < Duration::from_secs(1), "{client_side}: {:?}", begin.elapsed());
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn reason_of_a_cancellation_reaches_the_upstream_bounded() {
    let long = "\u{e4}".repeat(1_000);
    for (given, expected) in [
        (r#""the user pressed \"stop\"\nagain""#.to_owned(), "the user pressed \"stop\"\nagain"),
        (format!("\"{long}\""), &*"\u{e4}".repeat(512)),
        ("7".into(), "the response is no longer needed"),
        ("null".into(), "the response is no longer needed"),
    ] {
        for upstream in UPSTREAMS.into_iter().filter(|side| *side != MODERN_HTTP) {
            let world = World::start(hub(upstream), &with_pair("")).await;
            for side in [MODERN_STDIO, LEGACY_STDIO, LEGACY_HTTP, LEGACY_SSE] {
                let client = world.client(side).await;
                let mut intercepted = world.upstream("hub").intercept("tools/call");
                let exchange = client.start_as(Id::from(70), "tools/call", &named("hub__a"));
                let call = intercepted.next().await;
                let params = format!(r#"{{"requestId":70,"reason":{given}}}"#);
                client.notify("notifications/cancelled", &params).await;
                call.cancelled().await;
                settle().await;
                let reasons = world.upstream("hub").cancel_reasons();
                assert_eq!(reasons.last().map(String::as_str), Some(expected), "{side} {upstream}");
                drop(exchange);
            }
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f37g_a_late_answer_to_a_cancelled_call_reaches_nobody() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        exchange.cancel().await;
        call.cancelled().await;
        call.result(r#"{"content":["late"]}"#);
        world.upstream("hub").reset_answer("tools/call");
        let reply = client.call_tool("hub__a").await;
        assert!(!reply.result().contains("late") && reply.notifications.is_empty(), "{reply:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_when_its_modern_client_leaves() {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), "").await;
        let client = world.client(MODERN_HTTP).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        drop(exchange);
        assert_eq!(call.cancelled().await, expected_signal(upstream), "{upstream}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_legacy_client_that_loses_its_stream_only_detaches() {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), "").await;
        let client = world.client(LEGACY_HTTP).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        drop(exchange);
        pass(Duration::from_secs(30)).await;
        assert!(call.is_wanted(), "{upstream}");
        // The call runs up to its time limit.
        assert_eq!(call.cancelled().await, expected_signal(upstream), "{upstream}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_cancels_its_calls() {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), "").await;
        let client = world.client(LEGACY_HTTP).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let _exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        let http = client.http();
        let headers = http.plain_headers();
        let reply = http.send(hyper::Method::DELETE, "/mcp", "", &headers).whole().await;
        assert!((200..300).contains(&reply.status), "{reply:?}");
        assert_eq!(call.cancelled().await, expected_signal(upstream), "{upstream}");
        drop(_exchange);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_standard_input_cancels_every_call() {
    for client_side in [MODERN_STDIO, LEGACY_STDIO] {
        for upstream in UPSTREAMS {
            let world = World::start(hub(upstream), "").await;
            let client = world.client(client_side).await;
            let mut intercepted = world.upstream("hub").intercept("tools/call");
            let exchange = client.start("tools/call", &named("hub__a"));
            let call = intercepted.next().await;
            drop(exchange);
            drop(client);
            assert_eq!(
                call.cancelled().await,
                expected_signal(upstream),
                "{client_side}, {upstream}"
            );
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn n110_cancelling_what_is_over_or_was_never_asked_does_nothing() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        client.start_as(Id::from(50), "tools/call", &named("hub__a")).reply().await;
        for id in ["50", "51", "\"50\"", "null"] {
            client.notify("notifications/cancelled", &format!(r#"{{"requestId":{id}}}"#)).await;
        }
        client.notify("notifications/cancelled", "{}").await;
        assert!(client.call_tool("hub__a").await.outcome.is_ok());
    })
    .await;
}

const SHORT: &str = r#"
    [defaults]
    timeouts = { call = "5s", call_max = "20s" }
"#;

/// Parameters of a call that asks for progress.
const WITH_PROGRESS: &str = r#"{"name":"hub__a","_meta":{"progressToken":70}}"#;

#[tokio::test(start_paused = true)]
async fn n64_a_silent_call_times_out_and_its_upstream_is_told() {
    everywhere(SHORT, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let start = Instant::now();
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        let reply = exchange.reply().await;
        assert_eq!(reply.code(), 5040, "{reply:?}");
        assert_eq!(start.elapsed().as_secs(), 5);
        assert_eq!(call.cancelled().await, expected_signal(cell.upstream));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n64_progress_keeps_a_call_alive_but_not_for_ever() {
    everywhere(SHORT, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let start = Instant::now();
        let exchange = client.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        let progress = async {
            for number in 1.. {
                pass(Duration::from_secs(4)).await;
                call.progress(&format!(r#""progress":{number}"#));
            }
        };
        let reply = tokio::select! {
            reply = exchange.reply() => reply,
            () = progress => unreachable!("progress goes on"),
        };
        assert_eq!(reply.code(), 5040, "{reply:?}");
        assert_eq!(start.elapsed().as_secs(), 20);
        assert_eq!(call.cancelled().await, expected_signal(cell.upstream));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_setting_lets_progress_count_for_nothing() {
    let config = r#"
        [defaults]
        timeouts = { call = "5s", call_max = "20s", reset_on_progress = false }
    "#;
    everywhere(config, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let start = Instant::now();
        let exchange = client.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        pass(Duration::from_secs(4)).await;
        call.progress(r#""progress":1"#);
        assert_eq!(exchange.reply().await.code(), 5040);
        assert_eq!(start.elapsed().as_secs(), 5);
    })
    .await;
}
