//! Changes: who sees a list change hears of it, in its era's way, and nobody else does.

use std::time::Duration;

use weir::mcp::kind::{Kind, Topic};

use crate::cell::{MODERN_HTTP, SIDES, UPSTREAMS};
use crate::client::{Ears, SILENCE};
use crate::upstream::{Script, definition};
use crate::world::{World, everywhere, hub, pass};

/// The topics of all changes until it is silent.
async fn until_silence(ears: &mut Ears<'_>) -> Vec<Topic> {
    let mut topics = Vec::new();
    while let Ok(topic) = tokio::time::timeout(SILENCE, ears.next_change()).await {
        topics.push(topic);
    }
    topics
}

#[tokio::test(start_paused = true)]
async fn a_change_of_each_kind_is_told_once() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut ears = client.listen().await;
        for kind in Kind::ALL {
            world.upstream("hub").add(kind, "new").await;
            assert_eq!(until_silence(&mut ears).await, [kind.topic()]);
            let keys = client.list_all(kind).await;
            assert_eq!(keys.len(), 3, "{keys:?}");
            world.upstream("hub").remove(kind, "new").await;
            assert_eq!(until_silence(&mut ears).await, [kind.topic()]);
            assert_eq!(client.list_all(kind).await.len(), 2);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_both_kinds_of_a_topic_is_told_once() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut ears = client.listen().await;
        let upstream = world.upstream("hub");
        upstream.until_heard(Topic::Resources).await;
        for kind in [Kind::Resource, Kind::Template] {
            upstream.change_quietly(kind, |list| list.push(definition(kind, "new")));
        }
        upstream.announce(Topic::Resources);
        assert_eq!(until_silence(&mut ears).await, [Topic::Resources]);
        for kind in [Kind::Resource, Kind::Template] {
            assert_eq!(client.list_all(kind).await.len(), 3);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_told_as_one_and_its_end_is_not_missed() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut ears = client.listen().await;
        for number in 0..50 {
            world.upstream("hub").add_prompt(&format!("n{number}")).await;
        }
        let told = until_silence(&mut ears).await;
        // The first change of a burst may be read at once; what follows comes together.
        assert!(
            matches!(told[..], [Topic::Prompts] | [Topic::Prompts, Topic::Prompts]),
            "{told:?}"
        );
        assert_eq!(client.prompts().await.len(), 52);
        let lists = world.upstream("hub").count("prompts/list");
        assert!(lists <= 3, "{lists} lists");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_steady_stream_of_changes_is_told_at_most_once_a_second() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut ears = client.listen().await;
        for number in 0..100 {
            world.upstream("hub").add_prompt(&format!("n{number}")).await;
            pass(Duration::from_millis(100)).await;
        }
        let told = until_silence(&mut ears).await;
        assert!((5..=12).contains(&told.len()), "{} in ten seconds", told.len());
        assert_eq!(client.prompts().await.len(), 102);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_announcement_without_a_change_is_not_told() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut ears = client.listen().await;
        for topic in Topic::ALL {
            world.upstream("hub").until_heard(topic).await;
            world.upstream("hub").announce(topic);
        }
        world.upstream("hub").until_count("prompts/list", 2).await;
        ears.stays_silent().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_hears_only_of_what_it_may_see() {
    let config = r#"
        [roles.guest]
        prompts.allow = ["hub/public_*"]
        [roles.staff]
        prompts.allow = ["hub/*"]
    "#;
    everywhere(config, hub, async |world, cell| {
        let guest = world.client_as("guest", cell.client).await;
        let staff = world.client_as("staff", cell.client).await;
        let (mut guest_ears, mut staff_ears) = (guest.listen().await, staff.listen().await);

        world.upstream("hub").add_prompt("secret_plan").await;
        assert_eq!(staff_ears.next_change().await, Topic::Prompts);
        guest_ears.stays_silent().await;
        world.upstream("hub").add(Kind::Tool, "public_tool").await;
        guest_ears.stays_silent().await;
        staff_ears.stays_silent().await;

        world.upstream("hub").add_prompt("public_plan").await;
        assert_eq!(staff_ears.next_change().await, Topic::Prompts);
        assert_eq!(guest_ears.next_change().await, Topic::Prompts);
        assert_eq!(guest.prompts().await, ["hub__public_plan"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n60_a_modern_client_hears_of_the_topics_that_it_asked_for() {
    for side in SIDES.into_iter().filter(|side| side.is_modern()) {
        let world = World::start(hub(MODERN_HTTP), "").await;
        let client = world.client(side).await;
        let mut tools = client.listen_for(&[Topic::Tools]).await;
        let mut both = client.listen_for(&[Topic::Tools, Topic::Prompts]).await;
        world.upstream("hub").add_prompt("new").await;
        assert_eq!(both.next_change().await, Topic::Prompts);
        tools.stays_silent().await;
        world.upstream("hub").add(Kind::Tool, "new").await;
        assert_eq!(tools.next_change().await, Topic::Tools);
        assert_eq!(both.next_change().await, Topic::Tools);
        tools.cancel().await;
        world.upstream("hub").add(Kind::Tool, "newer").await;
        assert_eq!(both.next_change().await, Topic::Tools);
        drop(both);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_changed_while_an_upstream_was_away_is_told_when_it_is_back() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut ears = client.listen().await;
        world.upstream("hub").go_down();
        ears.stays_silent().await;
        world.upstream("hub").change_quietly(Kind::Prompt, |list| {
            list.push(definition(Kind::Prompt, "new"));
        });
        world.upstream("hub").come_up();
        assert_eq!(until_silence(&mut ears).await, [Topic::Prompts]);
        assert_eq!(client.prompts().await, ["hub__a", "hub__b", "hub__new"]);
        // And the ear towards the upstream is open again.
        world.upstream("hub").add(Kind::Tool, "new").await;
        assert_eq!(until_silence(&mut ears).await, [Topic::Tools]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_one_upstream_leaves_the_others_alone() {
    let scripts = |side| vec![("hub", Script::full(side)), ("zoo", Script::full(side))];
    everywhere("", scripts, async |world, cell| {
        let client = world.client(cell.client).await;
        let before = world.upstream("zoo").requests();
        let mut ears = client.listen().await;
        world.upstream("hub").add_prompt("new").await;
        assert_eq!(until_silence(&mut ears).await, [Topic::Prompts]);
        let keys = client.prompts().await;
        assert_eq!(keys, ["hub__a", "hub__b", "hub__new", "zoo__a", "zoo__b"]);
        assert_eq!(world.upstream("zoo").requests(), before);
    })
    .await;
}

/// An upstream tells of changes for a minute, whether there are any or not; the last one there is.
async fn tell_for_a_minute(is_changing: bool) {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), "").await;
        let client = world.client(MODERN_HTTP).await;
        let hub = world.upstream("hub");
        hub.until_heard(Topic::Prompts).await;
        let before = hub.count("prompts/list");
        let change = |name: &str| {
            hub.change_quietly(Kind::Prompt, |list| list[0] = definition(Kind::Prompt, name));
        };
        for number in 0..1_500 {
            if is_changing {
                change(&format!("n{number:04}"));
            }
            hub.announce(Topic::Prompts);
            pass(Duration::from_millis(40)).await;
        }
        let lists = hub.count("prompts/list") - before;
        assert!(lists <= 62, "{upstream}: {lists} lists in a minute");
        change("new");
        hub.announce(Topic::Prompts);
        pass(Duration::from_millis(1_500)).await;
        assert_eq!(client.prompts().await, ["hub__b", "hub__new"], "{upstream}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_changes_is_read_once_a_second_and_its_end_is_seen_soon() {
    tell_for_a_minute(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_behind_a_storm_of_false_alarms_is_seen_as_soon() {
    tell_for_a_minute(false).await;
}
