//! No duplicate execution: an upstream that breaks, forgets or comes back never runs a call twice.

use crate::cell::{LEGACY_HTTP, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP, SIDES, Side};
use crate::client::{Reply, named, object};
use crate::upstream::Answer;
use crate::world::{World, everywhere, hub, settle};

#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_down_is_said_to_be_and_comes_back() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        world.upstream("hub").go_down();
        let reply = client.get_prompt("hub__a").await;
        assert_eq!(reply.code(), 5030, "{reply:?}");
        assert!(!reply.error().contains(".test"), "no address: {reply:?}");
        let before = world.upstream("hub").count("prompts/list");
        world.upstream("hub").come_up();
        world.upstream("hub").until_count("prompts/list", before + 1).await;
        settle().await;
        let reply = client.get_prompt("hub__a").await;
        assert!(reply.outcome.is_ok(), "{reply:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_connection_breaks_is_not_sent_again() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        world.upstream("hub").restart();
        drop(call);
        let reply = exchange.reply().await;
        assert_eq!(reply.code(), 5030, "{reply:?}");
        assert_eq!(world.upstream("hub").count("tools/call"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_server_gives_up_is_not_sent_again() {
    for upstream in [MODERN_HTTP, LEGACY_HTTP] {
        for answer in [Answer::HangUp, Answer::Status(500), Answer::Status(503)] {
            let world = World::start(hub(upstream), "").await;
            let client = world.client(MODERN_HTTP).await;
            world.upstream("hub").answer("tools/call", answer.clone());
            let reply = client.call_tool("hub__a").await;
            assert!(reply.outcome.is_err(), "{upstream}: {answer:?}: {reply:?}");
            assert_eq!(world.upstream("hub").count("tools/call"), 1, "{upstream}: {answer:?}");
            drop(client);
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_its_server_has_forgotten_is_opened_again() {
    for side in SIDES {
        let world = World::start(hub(LEGACY_HTTP), "").await;
        let client = world.client(side).await;
        world.upstream("hub").forget_sessions();
        let reply = client.call_tool("hub__a").await;
        assert!(reply.outcome.is_ok(), "{side}: {reply:?}");
        let hub = world.upstream("hub");
        assert_eq!((hub.count("initialize"), hub.count("tools/call")), (2, 1), "{side}");
        let mut changes = client.listen().await;
        hub.add_prompt("new").await;
        changes.next_change().await;
        drop(changes);
        drop(client);
        world.close().await;
    }
}

/// Reply to a call that its upstream answers in this way.
async fn reply_for(upstream: Side, client: Side, answer: Answer) -> Reply {
    let world = World::start(hub(upstream), "").await;
    let client = world.client(client).await;
    world.upstream("hub").answer("tools/call", answer);
    let reply = client.call_tool("hub__a").await;
    assert_eq!(world.upstream("hub").count("tools/call"), 1);
    drop(client);
    world.close().await;
    reply
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_sent_and_refused_is_not_said_to_have_been_left_undone() {
    for upstream in [MODERN_HTTP, LEGACY_HTTP, LEGACY_SSE] {
        for status in [401, 403, 429, 500, 502, 503, 504] {
            for client in [MODERN_HTTP, LEGACY_HTTP] {
                let reply = reply_for(upstream, client, Answer::Status(status)).await;
                let text = reply.error();
                let is_true = text.contains("may have been carried out")
                    && text.contains(&format!("HTTP {status}"));
                assert!(is_true, "{upstream} {status}: {text}");
                assert_eq!((reply.code(), reply.status), (5030, 200), "{upstream} {status}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn when_a_server_wants_to_be_asked_again_is_passed_on_to_the_client_of_the_call() {
    for upstream in [MODERN_HTTP, LEGACY_HTTP, LEGACY_SSE] {
        for (status, code, seconds) in [(429, 4290, 7), (503, 5030, 0), (503, 5030, u64::MAX)] {
            for client in [MODERN_HTTP, LEGACY_HTTP, LEGACY_STDIO] {
                let reply = reply_for(upstream, client, Answer::Later(status, seconds)).await;
                let error = object(reply.error());
                let wait = seconds.min(86_400) * 1_000;
                let data = error.get_object("data").expect("data");
                assert_eq!(data.get("retryAfterMs"), Some(&*wait.to_string()), "{upstream}");
                assert_eq!(reply.code(), code, "{upstream}: {reply:?}");
                let expected = if client.is_http() { status } else { 200 };
                assert_eq!(reply.status, expected, "{upstream}: {reply:?}");
                assert!(reply.error().contains("may have been carried out"), "{reply:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_wants_to_be_asked_again_later_is_left_to_the_other_clients() {
    for upstream in [MODERN_HTTP, LEGACY_HTTP] {
        for (status, seconds) in [(429, 0), (429, 3_600), (503, 0), (503, 1), (503, 3_600)] {
            let world = World::start(hub(upstream), "").await;
            let (ann, bob) = (world.client(MODERN_HTTP).await, world.client(LEGACY_HTTP).await);
            let hub = world.upstream("hub");
            hub.answer("tools/call", Answer::Later(status, seconds));
            assert!(ann.call_tool("hub__a").await.outcome.is_err());
            let reply = bob.get_prompt("hub__a").await;
            assert!(reply.outcome.is_ok(), "{upstream} {status} {seconds}: {reply:?}");
            hub.reset_answer("tools/call");
            let reply = ann.call_tool("hub__b").await;
            assert!(reply.outcome.is_ok(), "{upstream} {status} {seconds}: {reply:?}");
            drop((ann, bob));
            world.close().await;
        }
    }
}
