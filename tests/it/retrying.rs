//! Called once: an upstream that breaks, forgets or comes back never runs a call twice.

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, SIDES};
use crate::client::named;
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
        let mut held = world.upstream("hub").hold("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = held.next().await;
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
        let mut ears = client.listen().await;
        hub.add_prompt("new").await;
        ears.next_change().await;
        drop(ears);
        drop(client);
        world.close().await;
    }
}
