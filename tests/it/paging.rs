//! Paging of an upstream: its cursors are opaque, and Weir limits how long it follows them.

use std::time::Duration;

use weir_mcp::kind::{Kind, ListTopic};

use crate::cell::{MODERN_HTTP, SIDES};
use crate::upstream::{Cursors, Script, definition};
use crate::world::{World, pass};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Prompts that a client sees of an upstream with five prompts on five pages, and the number of
/// requests to that upstream.
async fn listed(script: Script, config: &str) -> (Vec<String>, usize) {
    let world = World::start(vec![("hub", script.paged(1))], config).await;
    let client = world.client(MODERN_HTTP).await;
    let keys = client.prompts().await;
    let requests = world.upstream("hub").count("prompts/list");
    drop(client);
    world.close().await;
    (keys, requests)
}

#[tokio::test(start_paused = true)]
async fn a_cursor_goes_back_as_it_came() {
    let long: &'static str = Box::leak("x".repeat(4_096).into_boxed_str());
    for side in SIDES {
        for text in ["", "\u{0}", "\"\\ {}", "é😀", "%00", "null", long] {
            let script = Script::new(side).prompts(&NAMES).cursors(Cursors::Odd(text));
            let expected = NAMES.map(|name| format!("hub__{name}"));
            assert_eq!(listed(script, "").await, (expected.into(), 5), "{side}: {text:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_stays_the_same_is_followed_while_it_brings_something_new() {
    for side in SIDES {
        for text in ["", "next", "0"] {
            let script = Script::new(side).prompts(&NAMES).cursors(Cursors::Same(text));
            let expected = NAMES.map(|name| format!("hub__{name}"));
            assert_eq!(listed(script, "").await, (expected.into(), 5), "{side}: {text:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_goes_round_in_circles_ends() {
    for side in SIDES {
        let script = Script::new(side).prompts(&NAMES).cursors(Cursors::Circle);
        let (keys, requests) = listed(script, "").await;
        assert_eq!(keys, ["hub__a"], "{side}");
        assert!(requests <= 4, "{side}: asked {requests} times");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_without_an_end_ends_by_its_budget() {
    for side in SIDES {
        let script = || Script::new(side).cursors(Cursors::Endless);
        let (keys, requests) = listed(script(), "").await;
        assert_eq!((keys.len(), requests), (100, 100), "{side}: by pages");
        let config = "[defaults]\nlimits = { max_items = 20 }";
        let (keys, requests) = listed(script(), config).await;
        assert_eq!((keys.len(), requests), (20, 20), "{side}: by items");
    }
}

#[tokio::test(start_paused = true)]
async fn a_walk_whose_cursor_is_refused_begins_again() {
    for side in SIDES {
        let script = Script::new(side).prompts(&NAMES).cursors(Cursors::Refused);
        let expected = NAMES.map(|name| format!("hub__{name}"));
        assert_eq!(listed(script, "").await, (expected.into(), 7), "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_list_that_changes_between_its_pages_leaves_out_is_not_gone() {
    for side in SIDES {
        let script = Script::new(side).prompts(&["a", "b", "c", "d"]).paged(2);
        let world = World::start(vec![("hub", script)], "").await;
        let hub = world.upstream("hub");
        let client = world.client(side).await;
        let mut changes = client.listen().await;
        let mut intercepted = hub.intercept("prompts/list");
        hub.announce(ListTopic::Prompts);
        // `a` is removed after the first page, so the items of the second page move up.
        let pages =
            [("ab", true), ("d", false), ("bc", true), ("d", false), ("bc", true), ("d", false)];
        for (names, goes_on) in pages {
            let items: Vec<_> =
                names.chars().map(|it| definition(Kind::Prompt, &it.to_string())).collect();
            let next = if goes_on { r#","nextCursor":"2""# } else { "" };
            let era = r#""resultType":"complete","ttlMs":0,"cacheScope":"public","#;
            let era = if side.is_modern() { era } else { "" };
            let page = format!(r#"{{{era}"prompts":[{}]{next}}}"#, items.join(","));
            intercepted.next().await.result(&page);
        }
        assert_eq!(changes.next_change().await, ListTopic::Prompts);
        assert_eq!(client.prompts().await, ["hub__b", "hub__c", "hub__d"], "{side}");
        changes.stays_silent().await;
        drop(changes);
        drop((intercepted, client));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_announces_every_list_is_not_listed_for_ever() {
    for side in SIDES {
        let world = World::start(vec![("hub", Script::full(side))], "").await;
        let hub = world.upstream("hub");
        hub.announce_after_lists();
        hub.until_listener(ListTopic::Prompts).await;
        hub.announce(ListTopic::Prompts);
        pass(Duration::from_secs(600)).await;
        let lists = hub.count(Kind::Prompt.list_method());
        assert!(lists <= 20, "{side}: {lists} lists in ten minutes");
        world.close().await;
    }
}
