//! Status notifications of a task: to its owner, under the owner's handle, and to no other client.

use std::time::Duration;

use weir_mcp::kind::Kind;

use super::{
    BOTH, EXTENSION, ROLES, about, begin_tasks, begun, has_tasks, is_unknown, state_of as state,
    task, working,
};
use crate::cell::{LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, Side};
use crate::client::{Client, object};
use crate::upstream::{Script, Upstream};
use crate::world::{World, everywhere, pass};

/// Longer than any notification is delayed.
const LONG: Duration = Duration::from_secs(10);

async fn announce(upstream: &Upstream, own: &str, status: &str) {
    upstream.until_task_listener(own).await;
    assert!(upstream.announce_task(own, &state(upstream.side(), status)) > 0);
}

async fn two_owners(world: &World, side: Side) -> [(Client, String); 2] {
    let mut owners = Vec::new();
    for own in ["own-1", "own-2"] {
        let client = world.client_declaring(side, EXTENSION).await;
        begin_tasks(world, "hub", own);
        let handle = begun(&client, "hub__a").await;
        owners.push((client, handle));
    }
    owners.try_into().ok().expect("two of them")
}

#[tokio::test(start_paused = true)]
async fn a_task_is_told_to_its_owner_under_its_handle_and_to_nobody_else() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let [(ann, anns), (bob, bobs)] = two_owners(world, cell.client).await;
        let (mut ann_changes, honored) = ann.follow_tasks(&[&anns]).await;
        assert_eq!(honored, [&*anns]);
        let (mut bob_changes, honored) = bob.follow_tasks(&[&bobs]).await;
        assert_eq!(honored, [&*bobs]);
        pass(LONG).await;
        let hub = world.upstream("hub");
        for status in ["working", "input_required", "completed"] {
            announce(hub, "own-1", status).await;
            let task = ann_changes.next_task().await;
            assert_eq!(task.get_string("taskId").as_deref(), Some(&*anns));
            assert_eq!(task.get_string("status").as_deref(), Some(status));
            assert_eq!((task.get("x"), task.get("createdAt").is_some()), (Some("1.0"), true));
            pass(LONG).await;
        }
        bob_changes.stays_silent().await;
        announce(hub, "own-2", "failed").await;
        assert_eq!(bob_changes.next_task().await.get_string("taskId").as_deref(), Some(&*bobs));
        // A task without a handle, and a notification without a task.
        world.upstream("other").announce_task("own-1", &state(cell.upstream, "working"));
        hub.announce_task("own-3", &state(cell.upstream, "working"));
        ann_changes.stays_silent().await;
        bob_changes.stays_silent().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_began_in_a_large_result_is_told_to_its_owner() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let client = world.client_declaring(cell.client, EXTENSION).await;
        let hub = world.upstream("hub");
        let large = format!(r#""statusMessage":"{}","#, "x".repeat(70_000));
        match cell.upstream.is_modern() {
            true => {
                let large = format!(r#""resultType":"task",{large}"#);
                hub.result("tools/call", &task(cell.upstream, &large, "own-1"));
            }
            false => {
                let task = task(cell.upstream, &large, "own-1");
                hub.result("tools/call", &format!(r#"{{"task":{task}}}"#));
            }
        }
        let handle = begun(&client, "hub__a").await;
        let (mut changes, honored) = client.follow_tasks(&[&handle]).await;
        assert_eq!(honored, [&*handle]);
        pass(LONG).await;
        announce(hub, "own-1", "completed").await;
        assert_eq!(changes.next_task().await.get_string("taskId").as_deref(), Some(&*handle));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_may_not_ask_about_a_task_any_more_hears_no_more_of_it() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let client = world.client_declaring(cell.client, EXTENSION).await;
        begin_tasks(world, "hub", "own-1");
        let handle = begun(&client, "hub__a").await;
        let (mut changes, _) = client.follow_tasks(&[&handle]).await;
        pass(LONG).await;
        let hub = world.upstream("hub");
        hub.remove(Kind::Tool, "a").await;
        pass(LONG).await;
        is_unknown(&about(&client, "tasks/get", &handle).await);
        announce(hub, "own-1", "working").await;
        let announced = tokio::time::timeout(LONG, async {
            loop {
                let message = changes.next().await.expect("the stream is open");
                assert!(message.contains("list_changed"), "{message}");
            }
        });
        assert!(announced.await.is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_listen_names_its_tasks_to_the_upstream_and_goes_on_after_a_gap() {
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(working(side), "").await;
        let [(ann, anns), (bob, bobs)] = two_owners(&world, side).await;
        let hub = world.upstream("hub");
        let before = hub.count("subscriptions/listen");
        let (mut changes, _) = ann.follow_tasks(&[&anns, &anns]).await;
        let (second, _) = ann.follow_tasks(&[&anns]).await;
        assert_eq!(hub.count("subscriptions/listen"), before + 1, "one for all who want the same");
        drop(second);
        let (bobs_ears, _) = bob.follow_tasks(&[&bobs]).await;
        let params = hub.last("subscriptions/listen").params;
        let params = object(std::str::from_utf8(&params).expect("text"));
        let filter = params.get_object("notifications").expect("a filter");
        let named = filter.get("taskIds").expect("tasks");
        assert!(named.contains("\"own-1\"") && named.contains("\"own-2\""), "{named}");
        assert_eq!(filter.keys().count(), 1);
        let meta = params.get_object("_meta").expect("a context");
        let declared = meta.get("io.modelcontextprotocol/clientCapabilities");
        assert_eq!(declared, Some(EXTENSION));

        hub.restart();
        pass(LONG).await;
        announce(hub, "own-1", "completed").await;
        if side.is_http() {
            let task = changes.next_task().await;
            assert_eq!(task.get_string("taskId").as_deref(), Some(&*anns));
        } else {
            // In the new process this id means another task.
            changes.stays_silent().await;
        }
        drop((changes, bobs_ears));
        drop((ann, bob));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_is_not_good_is_not_honored_and_nothing_is_asked_for() {
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(working(side), ROLES).await;
        let owner = world.client_as_declaring("full", side, EXTENSION).await;
        begin_tasks(&world, "hub", "own-1");
        let handle = begun(&owner, "hub__a").await;
        let narrow = world.client_as_declaring("narrow", side, EXTENSION).await;
        let before = world.requests();
        let (changes, honored) = narrow.follow_tasks(&[&handle, "own-1", "", "x"]).await;
        assert_eq!(honored, [""; 0], "{side}");
        drop(changes);
        let (changes, honored) = owner.follow_tasks(&[&handle[1..], &handle[..30], "own-1"]).await;
        assert_eq!(honored, [""; 0], "{side}");
        assert_eq!(world.requests(), before);
        drop(changes);
        drop((owner, narrow));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_not_declared_the_extension_is_told_that_it_has_to() {
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(working(side), "").await;
        let client = world.client(side).await;
        let listen = r#"{"notifications":{"taskIds":["x"]}}"#;
        let before = world.requests();
        for reply in [
            client.request("subscriptions/listen", listen).await,
            about(&client, "tasks/get", "x").await,
            about(&client, "tasks/update", "x").await,
            about(&client, "tasks/cancel", "x").await,
        ] {
            assert_eq!(reply.code(), -32021, "{reply:?}");
            let data = object(reply.error()).get_object("data").expect("data");
            assert_eq!(data.get("requiredCapabilities"), Some(EXTENSION));
            assert_eq!(reply.status, if side.is_http() { 400 } else { 200 });
        }
        let odd = r#"{"notifications":{"taskIds":"x"}}"#;
        assert_eq!(client.request("subscriptions/listen", odd).await.code(), -32602);
        assert_eq!(world.requests(), before);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_asks_for_what_its_listener_did_not_declare_is_not_told() {
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(working(side), "").await;
        begin_tasks(&world, "hub", "own-1");
        let hub = world.upstream("hub");
        let form = r#""inputRequests":{"a":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{}}}}}"#;
        let state = format!("{},{form}", state(side, "input_required"));
        for (capabilities, is_told) in [
            (EXTENSION.to_owned(), false),
            (EXTENSION.replace(r#"{"extensions""#, r#"{"elicitation":{},"extensions""#), true),
        ] {
            let client = world.client_declaring(side, &capabilities).await;
            let handle = begun(&client, "hub__a").await;
            let (mut changes, _) = client.follow_tasks(&[&handle]).await;
            hub.announce_task("own-1", &state);
            if is_told {
                assert!(changes.next_task().await.has("inputRequests"));
            } else {
                changes.stays_silent().await;
            }
            drop(changes);
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_clients_own_process_tells_of_its_own_tasks_only() {
    let scripts = || vec![("hub", Script::full(LEGACY_STDIO).capabilities(BOTH))];
    let world = World::start(scripts(), "[upstreams.hub]\nsharing = \"client\"\n").await;
    // Two processes count from one: the same id means two tasks.
    begin_tasks(&world, "hub", "1");
    let (ann, bob) = (world.client(LEGACY_HTTP).await, world.client(LEGACY_HTTP).await);
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let (mut anns, mut bobs) = (ann.listen().await, bob.listen().await);
    let params = r#"{"name":"hub__a","task":{}}"#;
    let working = format!(r#"{{"taskId":"1",{}}}"#, state(LEGACY_STDIO, "working"));
    let mut calls = Vec::new();
    for client in [&ann, &bob] {
        let exchange = client.start("tools/call", params);
        calls.push(intercepted.next().await);
        calls.last().expect("a call").notify("notifications/tasks/status", &working);
        drop(exchange);
    }
    anns.stays_silent().await;
    bobs.stays_silent().await;
    let first = calls.remove(0);
    first.result(&format!(r#"{{"task":{working}}}"#));
    pass(LONG).await;
    // From bob's process, which has begun no task.
    calls[0].notify("notifications/tasks/status", &working);
    anns.stays_silent().await;
    // Both processes send it; ann gets the notification of her task once.
    assert_eq!(world.upstream("hub").announce_task("1", &state(LEGACY_STDIO, "completed")), 3);
    assert_eq!(anns.next_task().await.get_string("status").as_deref(), Some("completed"));
    anns.stays_silent().await;
    bobs.stays_silent().await;
    drop(calls);
    drop((anns, bobs));
    drop((ann, bob));
    world.close().await;
}
