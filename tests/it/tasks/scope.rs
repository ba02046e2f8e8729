//! Scope of a handle: one process, one session, or one server behind a URL. No other id becomes a
//! handle, whatever an upstream's reply contains.

use std::time::Duration;

use super::{EXTENSION, about, begin_tasks, begun, has_tasks, is_unknown, state_of, task, working};
use crate::cell::{LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO};
use crate::client::object;
use crate::world::{World, everywhere, pass};

/// Longer than an upstream takes to come back.
const LONG: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn a_handle_ends_with_the_process_or_session_in_which_its_task_began() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let ann = world.client_declaring(cell.client, EXTENSION).await;
        let bob = world.client_declaring(cell.client, EXTENSION).await;
        let hub = world.upstream("hub");
        begin_tasks(world, "hub", "1");
        let anns = begun(&ann, "hub__a").await;
        hub.restart();
        hub.forget_sessions();
        pass(LONG).await;
        // The new process or session counts from one again.
        let bobs = begun(&bob, "hub__a").await;
        let before = (hub.count("tasks/get"), hub.count("tasks/cancel"));
        if cell.upstream == MODERN_HTTP {
            // Without sessions the tasks belong to the server behind the URL.
            assert_eq!(anns, bobs);
        } else {
            assert_ne!(anns, bobs);
            is_unknown(&about(&ann, "tasks/get", &anns).await);
            is_unknown(&about(&ann, "tasks/cancel", &anns).await);
            assert_eq!((hub.count("tasks/get"), hub.count("tasks/cancel")), before);
        }
        let complete = if cell.client.is_modern() { r#""resultType":"complete","# } else { "" };
        hub.result("tasks/get", &task(cell.upstream, complete, "1"));
        about(&bob, "tasks/get", &bobs).await.result();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_hears_nothing_of_a_task_of_the_next_process() {
    let world = World::start(working(MODERN_STDIO), "").await;
    let client = world.client_declaring(MODERN_STDIO, EXTENSION).await;
    begin_tasks(&world, "hub", "1");
    let first = begun(&client, "hub__a").await;
    let (mut changes, honored) = client.follow_tasks(&[&first]).await;
    assert_eq!(honored, [&*first]);
    let hub = world.upstream("hub");
    hub.restart();
    pass(LONG).await;
    let second = begun(&client, "hub__a").await;
    let (mut later, honored) = client.follow_tasks(&[&first, &second]).await;
    assert_eq!(honored, [&*second], "the first is of a process that has ended");
    hub.announce_task("1", &state_of(MODERN_STDIO, "completed"));
    let task = later.next_task().await;
    assert_eq!(task.get_string("taskId").as_deref(), Some(&*second));
    changes.stays_silent().await;
    drop((changes, later));
    drop(client);
    world.close().await;
}

/// All strings that are the value of a member `taskId`, at any depth.
fn task_ids(value: &serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::Object(members) => members
            .iter()
            .flat_map(|(name, value)| match value.as_str() {
                Some(id) if name == "taskId" => vec![id.to_owned()],
                _ => task_ids(value),
            })
            .collect(),
        serde_json::Value::Array(elements) => elements.iter().flat_map(task_ids).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_a_tool_repeats_never_becomes_a_handle_of_another_clients_task() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let bob = world.client_declaring(cell.client, EXTENSION).await;
        begin_tasks(world, "hub", "bobs");
        let bobs = begun(&bob, "hub__a").await;
        let ann = world.client_declaring(cell.client, EXTENSION).await;
        let hub = world.upstream("hub");
        let related = r#""_meta":{"io.modelcontextprotocol/related-task":{"taskId":"bobs"}}"#;
        let complete = if cell.upstream.is_modern() { r#""resultType":"complete","# } else { "" };
        // These members may stand in the result of a call that begins no task.
        for echo in
            [related, r#""taskId":"bobs""#, r#""task":{"taskId":"bobs","status":"working"}"#]
        {
            hub.result("tools/call", &format!(r#"{{{complete}"content":[],{echo}}}"#));
            let reply = ann.request("tools/call", r#"{"name":"hub__b"}"#).await;
            let ids = task_ids(&serde_json::from_str(reply.result()).expect("JSON"));
            for id in ids {
                assert_ne!(id, bobs, "{echo}");
                is_unknown(&about(&ann, "tasks/get", &id).await);
            }
        }
        // They may also stand beside a task of the call.
        let own = task(cell.upstream, "", "anns");
        let own = match cell.upstream.is_modern() {
            true => format!(r#"{},"resultType":"task",{related}}}"#, own.trim_end_matches('}')),
            false => format!(r#"{{"task":{own},{related}}}"#),
        };
        hub.result("tools/call", &own);
        let anns = begun(&ann, "hub__a").await;
        // The response to a request about one task names another one.
        let state = task(cell.upstream, complete, "bobs");
        hub.result("tasks/get", &format!("{},{related}}}", state.trim_end_matches('}')));
        let reply = about(&ann, "tasks/get", &anns).await;
        for id in task_ids(&serde_json::from_str(reply.result()).expect("JSON")) {
            assert!(id == anns || id == "bobs", "{reply:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_id_is_too_long_for_a_handle_fails_its_call_in_words() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let client = world.client_declaring(cell.client, EXTENSION).await;
        let longest = "x".repeat(1_024);
        begin_tasks(world, "hub", &longest);
        let handle = begun(&client, "hub__a").await;
        let complete = if cell.client.is_modern() { r#""resultType":"complete","# } else { "" };
        world.upstream("hub").result("tasks/get", &task(cell.upstream, complete, &longest));
        about(&client, "tasks/get", &handle).await.result();

        begin_tasks(world, "hub", &"x".repeat(1_025));
        let params = r#"{"name":"hub__a","task":{"ttl":60000}}"#;
        let reply = client.request("tools/call", params).await;
        assert_eq!(reply.code(), -32603, "{reply:?}");
        let text = object(reply.error()).get_string("message").expect("a message").into_owned();
        assert!(text.contains("1024 bytes") && text.contains("hub"), "{text}");
    })
    .await;
}

/// Larger than the part that Weir buffers of a result before it forwards the beginning.
const LARGE: usize = 70_000;

#[tokio::test(start_paused = true)]
async fn a_task_that_begins_in_a_large_result_has_a_handle_like_any_other() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let client = world.client_declaring(cell.client, EXTENSION).await;
        let hub = world.upstream("hub");
        let large = format!(r#""statusMessage":"{}""#, "x".repeat(LARGE));
        let small = task(cell.upstream, "", "1").replace(['{', '}'], "");
        let complete = if cell.client.is_modern() { r#""resultType":"complete","# } else { "" };
        hub.result("tasks/get", &format!("{{{complete}{small}}}"));
        let results = match cell.upstream.is_modern() {
            true => vec![
                format!(r#"{{{small},{large},"resultType":"task"}}"#),
                format!(r#"{{"resultType":"task",{large},{small}}}"#),
            ],
            false => vec![format!(r#"{{"task":{{{small},{large}}}}}"#)],
        };
        for result in results {
            hub.result("tools/call", &result);
            let handle = begun(&client, "hub__a").await;
            assert_ne!(handle, "1");
            about(&client, "tasks/get", &handle).await.result();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_result_breaks_off_before_a_task_that_begins_behind_a_large_beginning() {
    let world = World::start(working(MODERN_HTTP), "").await;
    let client = world.client_declaring(MODERN_HTTP, EXTENSION).await;
    let begun = task(MODERN_HTTP, r#""resultType":"task","#, "upstreams-own").replace('{', "");
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let mut exchange = client.start("tools/call", r#"{"name":"hub__a"}"#);
    let call = intercepted.next().await;
    let large = "x".repeat(LARGE);
    call.piece(&format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"statusMessage":"{large}"#));
    let mut came = exchange.piece().await.expect("a piece").to_vec();
    call.piece(&format!(r#"",{begun}}}"#));
    drop(call);
    while let Some(piece) = exchange.piece().await {
        came.extend(piece);
    }
    assert!(!String::from_utf8_lossy(&came).contains("upstreams-own"));
    drop(exchange);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_clients_own_process_ends_with_its_handles() {
    let config = "[upstreams.hub]\nsharing = \"client\"\n";
    let world = World::start(working(LEGACY_STDIO), config).await;
    let client = world.client_declaring(crate::cell::LEGACY_HTTP, EXTENSION).await;
    begin_tasks(&world, "hub", "1");
    let first = begun(&client, "hub__a").await;
    world.upstream("hub").result("tasks/get", &task(LEGACY_STDIO, "", "1"));
    about(&client, "tasks/get", &first).await.result();
    world.upstream("hub").restart();
    pass(LONG).await;
    let second = begun(&client, "hub__a").await;
    let before = world.upstream("hub").count("tasks/get");
    is_unknown(&about(&client, "tasks/get", &first).await);
    assert_eq!(world.upstream("hub").count("tasks/get"), before);
    about(&client, "tasks/get", &second).await.result();
    drop(client);
    world.close().await;
}
