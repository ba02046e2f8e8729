//! List changes: clients that see a change are notified in their era's way, and no others.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use weir_fleet::ListsElsewhere;
use weir_gateway::{ClientNotification, ClientNotifications, Subscriptions};
use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::revision::Revision;

use crate::cell::{MODERN_HTTP, SIDES, UPSTREAMS};
use crate::client::{ChangeStream, SILENCE};
use crate::upstream::{Script, definition};
use crate::world::{World, everywhere, hub, pass};

/// Topics of all changes until the stream is silent.
async fn until_silence(changes: &mut ChangeStream<'_>) -> Vec<ListTopic> {
    let mut topics = Vec::new();
    while let Ok(topic) = tokio::time::timeout(SILENCE, changes.next_change()).await {
        topics.push(topic);
    }
    topics
}

#[tokio::test(start_paused = true)]
async fn a_change_of_each_kind_is_told_once() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut changes = client.listen().await;
        for kind in Kind::ALL {
            world.upstream("hub").add(kind, "new").await;
            assert_eq!(until_silence(&mut changes).await, [kind.topic()]);
            let keys = client.list_all(kind).await;
            assert_eq!(keys.len(), 3, "{keys:?}");
            world.upstream("hub").remove(kind, "new").await;
            assert_eq!(until_silence(&mut changes).await, [kind.topic()]);
            assert_eq!(client.list_all(kind).await.len(), 2);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_both_kinds_of_a_topic_is_told_once() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut changes = client.listen().await;
        let upstream = world.upstream("hub");
        upstream.until_listener(ListTopic::Resources).await;
        for kind in [Kind::Resource, Kind::Template] {
            upstream.change_quietly(kind, |list| list.push(definition(kind, "new")));
        }
        upstream.announce(ListTopic::Resources);
        assert_eq!(until_silence(&mut changes).await, [ListTopic::Resources]);
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
        let mut changes = client.listen().await;
        for number in 0..50 {
            world.upstream("hub").add_prompt(&format!("n{number}")).await;
        }
        let announced = until_silence(&mut changes).await;
        // The first change of a burst may be read at once; the ones that follow are combined.
        assert!(
            matches!(
                announced[..],
                [ListTopic::Prompts] | [ListTopic::Prompts, ListTopic::Prompts]
            ),
            "{announced:?}"
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
        let mut changes = client.listen().await;
        for number in 0..100 {
            world.upstream("hub").add_prompt(&format!("n{number}")).await;
            pass(Duration::from_millis(100)).await;
        }
        let announced = until_silence(&mut changes).await;
        assert!((5..=12).contains(&announced.len()), "{} in ten seconds", announced.len());
        assert_eq!(client.prompts().await.len(), 102);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_once_more_when_other_processes_have_followed_it_within_ten_seconds() {
    let key = "1".repeat(64);
    let role = "[roles.all]\nprompts.allow = [\"*\"]\n[clients.ann]\nrole = \"all\"\n";
    let config = format!("{role}key_sha256 = [\"{key}\"]\n");
    let world = World::start(hub(MODERN_HTTP), &config).await;
    let client = world.client_context("ann");
    let (elsewhere, lists) = watch::channel(ListsElsewhere::default());
    let follow = |digest, are_same| _ = elsewhere.send_replace(ListsElsewhere { digest, are_same });
    let subscriptions = Subscriptions::new(&client, client.client_handle());
    let notifications = ClientNotifications::new(&client, &subscriptions, Revision::NEWEST);
    let mut notifications = notifications.with_lists_elsewhere(lists);
    let mut next = async || tokio::time::timeout(SILENCE, notifications.next()).await;
    follow(1, false);
    assert!(next().await.is_err(), "nothing has changed here");
    let changed = Ok(Some(ClientNotification::Lists(ListTopic::Prompts)));
    // One follows, then the other one.
    world.upstream("hub").add_prompt("new").await;
    assert_eq!(next().await, changed);
    follow(2, false);
    assert!(next().await.is_err(), "the other one has not followed yet");
    follow(3, true);
    assert_eq!(next().await, changed);
    follow(4, true);
    assert!(next().await.is_err(), "twice for one change");
    // One does not follow, because its server is down.
    world.upstream("hub").add_prompt("newer").await;
    assert_eq!(next().await, changed);
    let began = Instant::now();
    follow(5, false);
    while next().await != changed {
        assert!(began.elapsed() < Duration::from_secs(11), "not notified again");
    }
    follow(6, true);
    assert!(next().await.is_err(), "twice for one change");
    // The others have seen the change before this one.
    follow(7, false);
    world.upstream("hub").add_prompt("newest").await;
    assert_eq!(next().await, changed);
    follow(7, true);
    assert!(next().await.is_err(), "the client has listed from none that had not");
    drop((client, subscriptions));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_announcement_without_a_change_is_not_told() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut changes = client.listen().await;
        for topic in ListTopic::ALL {
            world.upstream("hub").until_listener(topic).await;
            world.upstream("hub").announce(topic);
        }
        world.upstream("hub").until_count("prompts/list", 2).await;
        changes.stays_silent().await;
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
        let (mut guest_changes, mut staff_changes) = (guest.listen().await, staff.listen().await);

        world.upstream("hub").add_prompt("secret_plan").await;
        assert_eq!(staff_changes.next_change().await, ListTopic::Prompts);
        guest_changes.stays_silent().await;
        world.upstream("hub").add(Kind::Tool, "public_tool").await;
        guest_changes.stays_silent().await;
        staff_changes.stays_silent().await;

        world.upstream("hub").add_prompt("public_plan").await;
        assert_eq!(staff_changes.next_change().await, ListTopic::Prompts);
        assert_eq!(guest_changes.next_change().await, ListTopic::Prompts);
        assert_eq!(guest.prompts().await, ["hub__public_plan"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n60_a_modern_client_hears_of_the_topics_that_it_asked_for() {
    for side in SIDES.into_iter().filter(|side| side.is_modern()) {
        let world = World::start(hub(MODERN_HTTP), "").await;
        let client = world.client(side).await;
        let mut tools = client.listen_for(&[ListTopic::Tools]).await;
        let mut both = client.listen_for(&[ListTopic::Tools, ListTopic::Prompts]).await;
        world.upstream("hub").add_prompt("new").await;
        assert_eq!(both.next_change().await, ListTopic::Prompts);
        tools.stays_silent().await;
        world.upstream("hub").add(Kind::Tool, "new").await;
        assert_eq!(tools.next_change().await, ListTopic::Tools);
        assert_eq!(both.next_change().await, ListTopic::Tools);
        tools.cancel().await;
        world.upstream("hub").add(Kind::Tool, "newer").await;
        assert_eq!(both.next_change().await, ListTopic::Tools);
        drop(both);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_changed_while_an_upstream_was_away_is_told_when_it_is_back() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut changes = client.listen().await;
        world.upstream("hub").go_down();
        changes.stays_silent().await;
        world.upstream("hub").change_quietly(Kind::Prompt, |list| {
            list.push(definition(Kind::Prompt, "new"));
        });
        world.upstream("hub").come_up();
        assert_eq!(until_silence(&mut changes).await, [ListTopic::Prompts]);
        assert_eq!(client.prompts().await, ["hub__a", "hub__b", "hub__new"]);
        // The notification stream of the upstream is open again.
        world.upstream("hub").add(Kind::Tool, "new").await;
        assert_eq!(until_silence(&mut changes).await, [ListTopic::Tools]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_one_upstream_leaves_the_others_alone() {
    let scripts = |side| vec![("hub", Script::full(side)), ("zoo", Script::full(side))];
    everywhere("", scripts, async |world, cell| {
        let client = world.client(cell.client).await;
        let before = world.upstream("zoo").requests();
        let mut changes = client.listen().await;
        world.upstream("hub").add_prompt("new").await;
        assert_eq!(until_silence(&mut changes).await, [ListTopic::Prompts]);
        let keys = client.prompts().await;
        assert_eq!(keys, ["hub__a", "hub__b", "hub__new", "zoo__a", "zoo__b"]);
        assert_eq!(world.upstream("zoo").requests(), before);
    })
    .await;
}

/// Announces changes for a minute, whether or not the list changes; the last announcement is real.
async fn announce_for_a_minute(is_changing: bool) {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), "").await;
        let client = world.client(MODERN_HTTP).await;
        let hub = world.upstream("hub");
        hub.until_listener(ListTopic::Prompts).await;
        let before = hub.count("prompts/list");
        let change = |name: &str| {
            hub.change_quietly(Kind::Prompt, |list| list[0] = definition(Kind::Prompt, name));
        };
        for number in 0..1_500 {
            if is_changing {
                change(&format!("n{number:04}"));
            }
            hub.announce(ListTopic::Prompts);
            pass(Duration::from_millis(40)).await;
        }
        let lists = hub.count("prompts/list") - before;
        assert!(lists <= 62, "{upstream}: {lists} lists in a minute");
        change("new");
        hub.announce(ListTopic::Prompts);
        pass(Duration::from_millis(1_500)).await;
        assert_eq!(client.prompts().await, ["hub__b", "hub__new"], "{upstream}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_changes_is_read_once_a_second_and_its_end_is_seen_soon() {
    announce_for_a_minute(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_behind_a_storm_of_false_alarms_is_seen_as_soon() {
    announce_for_a_minute(false).await;
}
