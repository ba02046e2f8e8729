//! Upstreams that are unavailable: the lists that clients get meanwhile, and after a start.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_mcp::kind::{Kind, ListTopic};

use crate::cell::{MODERN_HTTP, UPSTREAMS};
use crate::client::{ChangeStream, SILENCE, keys_of};
use crate::upstream::{Script, definition};
use crate::world::{World, everywhere, hub, pass};

/// Topics of the changes that are announced until the stream is silent.
async fn announced_topics(changes: &mut ChangeStream<'_>) -> BTreeSet<&'static str> {
    let mut topics = BTreeSet::new();
    while let Ok(topic) = tokio::time::timeout(SILENCE, changes.next_change()).await {
        topics.insert(topic.capability());
    }
    topics
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_stays_away_is_hidden_after_its_grace_and_back_at_once() {
    let config =
        "[defaults]\non_down = \"hide\"\non_down_grace = \"30s\"\nretry.max_backoff = \"1s\"\n";
    everywhere(config, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let before = client.list_all(Kind::Tool).await;
        let mut changes = client.listen().await;
        world.upstream("hub").go_down();
        pass(Duration::from_secs(1)).await;
        assert_eq!(client.call_tool("hub__a").await.code(), 5030);
        // For some upstreams only this call finds out that they are unavailable.
        pass(Duration::from_secs(22)).await;
        assert_eq!(client.list_all(Kind::Tool).await, before);
        changes.stays_silent().await;
        assert_eq!(announced_topics(&mut changes).await.len(), ListTopic::ALL.len());
        let page = client.page(Kind::Tool, None).await;
        assert!(keys_of(Kind::Tool, &page).is_empty());
        let meta = page.get_object("_meta").expect("_meta");
        assert_eq!(meta.get("weir/partial"), Some(r#"["hub"]"#));
        assert_eq!(client.call_tool("hub__a").await.code(), -32602);

        world.upstream("hub").come_up();
        assert_eq!(announced_topics(&mut changes).await.len(), ListTopic::ALL.len());
        assert_eq!(client.list_all(Kind::Tool).await, before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f09_an_upstream_that_comes_and_goes_changes_no_list() {
    for upstream in UPSTREAMS {
        let config = "[defaults]\non_down = \"hide\"\nretry.max_backoff = \"1s\"\n";
        let world = World::start(hub(upstream), config).await;
        let client = world.client(MODERN_HTTP).await;
        let mut changes = client.listen().await;
        for _ in 0..60 {
            world.upstream("hub").go_down();
            pass(Duration::from_secs(1)).await;
            world.upstream("hub").come_up();
            pass(Duration::from_secs(1)).await;
        }
        changes.stays_silent().await;
        drop(changes);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_listed_before_a_start_is_shown_until_the_upstream_is_there() {
    for upstream in UPSTREAMS {
        let folder = tempfile::tempdir().expect("a folder");
        let config =
            format!("[state]\ndir = {:?}\n[defaults]\nretry.max_backoff = \"1s\"\n", folder.path());
        let script = || Script::full(upstream).instructions("Ask nicely.");
        let world = World::start(vec![("hub", script())], &config).await;
        let client = world.client(MODERN_HTTP).await;
        let keys = client.list_all(Kind::Resource).await;
        drop(client);
        // The cache file is written after the list.
        pass(Duration::from_secs(1)).await;
        world.close().await;

        let world = World::open(vec![("hub", script().down())], &config);
        let client = world.client(MODERN_HTTP).await;
        assert_eq!(client.prompts().await, ["hub__a", "hub__b"], "{upstream}");
        assert_eq!(client.list_all(Kind::Resource).await, keys);
        let page = client.page(Kind::Prompt, None).await;
        assert!(page.get_object("_meta").is_none_or(|meta| !meta.has("weir/partial")));
        assert_eq!(client.call_tool("hub__a").await.code(), 5030);
        world.upstream("hub").change_quietly(Kind::Prompt, |list| {
            list.push(definition(Kind::Prompt, "new"));
        });
        let mut changes = client.listen().await;
        world.upstream("hub").come_up();
        assert_eq!(announced_topics(&mut changes).await, BTreeSet::from(["prompts"]), "{upstream}");
        assert_eq!(client.prompts().await, ["hub__a", "hub__b", "hub__new"]);
        drop(changes);
        drop(client);
        world.close().await;

        let off = config.replace("[defaults]", "catalog = false\n[defaults]");
        let world = World::open(vec![("hub", script().down())], &off);
        let client = world.client(MODERN_HTTP).await;
        assert!(client.prompts().await.is_empty());
        drop(client);
        world.close().await;
    }
}
