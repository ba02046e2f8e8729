//! Concurrency limit per client: one rule on every transport.

use std::time::Duration;

use tokio::time::Instant;
use weir_mcp::jsonrpc::{Id, write_request};

use crate::cell::{
    CLIENTS, LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, Side,
};
use crate::client::{Exchange, named};
use crate::world::{World, hub, pass, settle, with_pair};

/// Two requests at a time and one that waits; the upstream takes any number.
const FEW: &str = r#"
    [server]
    per_client = { calls = 2, waiting = 1, wait = "1s" }
    [upstreams.hub]
    limits = { concurrency = 1000 }
    [roles.ann]
    tools.allow = ["*"]
    [roles.bob]
    tools.allow = ["*"]
"#;

const DONE: &str = r#"{"resultType":"complete","content":[]}"#;

async fn start() -> World {
    World::start(hub(MODERN_HTTP), &with_pair(FEW)).await
}

fn call(client: &crate::client::Client) -> Exchange<'_> {
    client.start("tools/call", &named("hub__a"))
}

async fn code(client: &crate::client::Client) -> i64 {
    client.call_tool("hub__a").await.code()
}

#[tokio::test(start_paused = true)]
async fn a_client_has_so_many_requests_under_way_whatever_it_speaks_over() {
    assert_eq!(CLIENTS.len(), 5);
    for side in [MODERN_HTTP, LEGACY_HTTP, LEGACY_SSE, MODERN_STDIO, LEGACY_STDIO] {
        let world = start().await;
        let client = world.client_as("ann", side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let one = (call(&client), intercepted.next().await);
        let two = (call(&client), intercepted.next().await);
        let begin = Instant::now();
        let took = || begin.elapsed().as_millis();
        let waiting = call(&client);
        settle().await;
        assert_eq!(code(&client).await, 4290, "{side}");
        assert!(took() < 10, "{side}: no place to wait is left, {} ms", took());
        assert_eq!(waiting.reply().await.code(), 4290, "{side}");
        assert!((990..1_010).contains(&took()), "{side}: after {} ms", took());

        let waiting = call(&client);
        pass(Duration::from_millis(900)).await;
        one.1.result(DONE);
        assert!(one.0.reply().await.outcome.is_ok(), "{side}");
        let third = intercepted.next().await;
        for (exchange, call) in [two, (waiting, third)] {
            call.result(DONE);
            assert!(exchange.reply().await.outcome.is_ok(), "{side}");
        }
        drop((intercepted, client));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_client_has_under_way_on_one_wire_counts_on_another_and_is_nobody_elses() {
    let world = start().await;
    let stream = world.client_as("ann", LEGACY_SSE).await;
    let http = world.client_as("ann", MODERN_HTTP).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let mut under_way = Vec::new();
    for client in [&stream, &http] {
        under_way.push((call(client), intercepted.next().await));
    }
    for client in [&stream, &http] {
        assert_eq!(code(client).await, 4290);
    }
    for side in [LEGACY_SSE, LEGACY_HTTP, MODERN_HTTP] {
        let other = world.client_as("bob", side).await;
        let exchange = call(&other);
        intercepted.next().await.result(DONE);
        assert!(exchange.reply().await.outcome.is_ok(), "{side}");
        drop(other);
    }
    for (exchange, call) in under_way {
        call.result(DONE);
        assert!(exchange.reply().await.outcome.is_ok());
    }
    drop((intercepted, stream, http));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn who_has_no_turn_left_is_still_answered_a_ping_and_may_cancel() {
    for side in [LEGACY_SSE, LEGACY_STDIO] {
        let world = start().await;
        let client = world.client_as("ann", side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let (one, first) = (call(&client), intercepted.next().await);
        let (two, second) = (call(&client), intercepted.next().await);
        let waiting = call(&client);
        settle().await;
        assert!(client.request("ping", "{}").await.outcome.is_ok(), "{side}");
        one.cancel().await;
        let third = intercepted.next().await;
        for (exchange, call) in [(two, second), (waiting, third)] {
            call.result(DONE);
            assert!(exchange.reply().await.outcome.is_ok(), "{side}");
        }
        drop((first, intercepted, client));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_cancelled_while_it_waits_for_its_turn_is_never_sent() {
    let sides: [Side; 3] = [LEGACY_SSE, LEGACY_STDIO, MODERN_STDIO];
    for side in sides {
        let world = start().await;
        let client = world.client_as("ann", side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let (one, first) = (call(&client), intercepted.next().await);
        let (two, second) = (call(&client), intercepted.next().await);
        let waiting = call(&client);
        settle().await;
        waiting.cancel().await;
        settle().await;
        for (exchange, call) in [(one, first), (two, second)] {
            call.result(DONE);
            assert!(exchange.reply().await.outcome.is_ok(), "{side}");
        }
        settle().await;
        let (exchange, last) = (call(&client), intercepted.next().await);
        last.result(DONE);
        assert!(exchange.reply().await.outcome.is_ok(), "{side}: the cancelled one was not sent");
        drop((intercepted, client));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn over_http_who_has_too_much_under_way_gets_status_429_with_a_time_to_wait() {
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let world = start().await;
        let client = world.client_as("ann", side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let mut under_way = Vec::new();
        for _ in 0..2 {
            under_way.push((call(&client), intercepted.next().await));
        }
        let post = || {
            let params = client.with_request_meta(&named("hub__a"));
            let headers = client.http().headers("tools/call", &params);
            let message = write_request(&Id::from(77), "tools/call", params.as_bytes());
            client.http().post(message, &headers).whole()
        };
        // One request waits for a second, and the next one finds the queue full.
        let begin = Instant::now();
        let (late, at_once) = tokio::join!(post(), async {
            settle().await;
            let reply = post().await;
            assert!(begin.elapsed() < Duration::from_millis(10), "{side}");
            reply
        });
        assert!(begin.elapsed() >= Duration::from_millis(990), "{side}");
        for reply in [at_once, late] {
            assert_eq!((reply.status, reply.code()), (429, 4290), "{side}");
            let seconds = reply.headers["retry-after"].to_str().ok().and_then(|it| it.parse().ok());
            assert!(seconds.is_some_and(|seconds: u32| seconds > 0), "{side}: {reply:?}");
        }
        for (exchange, call) in under_way {
            call.result(DONE);
            assert!(exchange.reply().await.outcome.is_ok(), "{side}");
        }
        drop((intercepted, client));
        world.close().await;
    }
}
