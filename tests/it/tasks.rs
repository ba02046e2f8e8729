//! Calls that become tasks, in either era: a client names a task by a handle, which belongs to its
//! principal (rows N-65, S-53).

mod related;
mod scope;
mod told;

use crate::cell::{Cell, LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, Side};
use crate::client::{Client, Reply, object};
use crate::upstream::Script;
use crate::world::{Scripts, World, everywhere, hub, pass};

/// Capabilities of a server with both kinds of tasks.
pub(crate) const BOTH: &str = r#"{"prompts":{"listChanged":true},"tools":{"listChanged":true},"resources":{"listChanged":true},"completions":{},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
/// Capabilities of a client with the tasks extension.
pub(crate) const EXTENSION: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
/// Members of a task beside its id.
const STATE: &str = r#""status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z""#;
const ROLES: &str =
    "[roles.full]\ntools.allow = [\"hub/*\"]\n[roles.narrow]\ntools.allow = [\"other/*\"]\n";

fn working(side: Side) -> Scripts {
    vec![
        ("hub", Script::full(side).capabilities(BOTH)),
        ("other", Script::full(side).capabilities(BOTH)),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_task_of_a_modern_server_keeps_its_handle_in_the_next_process() {
    let mut world = World::start(working(MODERN_HTTP), "").await;
    let client = world.client_declaring(MODERN_HTTP, EXTENSION).await;
    begin_tasks(&world, "hub", "own.1");
    let handle = begun(&client, "hub__a").await;
    world.restart().await;
    let about_task = task(MODERN_HTTP, r#""resultType":"complete","#, "own.1");
    world.upstream("hub").result("tasks/get", &about_task);
    let found = object(about(&client, "tasks/get", &handle).await.result());
    assert_eq!(found.get_string("taskId").as_deref(), Some(&*handle));
    assert_eq!(begun(&client, "hub__a").await, handle, "one text for one task");
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_in_a_child_of_a_process_that_has_ended_may_have_been_lost() {
    for (side, upstream) in [(MODERN_HTTP, MODERN_STDIO), (LEGACY_HTTP, LEGACY_STDIO)] {
        let mut world = World::start(working(upstream), "").await;
        let client = world.client_declaring(side, EXTENSION).await;
        begin_tasks(&world, "hub", "own.1");
        let handle = begun(&client, "hub__a").await;
        world.restart().await;
        let reply = about(&client, "tasks/get", &handle).await;
        assert_eq!(reply.code(), -32602, "{reply:?}");
        let text = object(reply.error()).get_string("message").expect("a message").into_owned();
        assert!(text.contains("may have been lost"), "{text}");
        assert_eq!(world.upstream("hub").count("tasks/get"), 0);
        drop(client);
        world.close().await;
    }
}

/// Whether both sides have the same kind of tasks.
fn has_tasks(cell: Cell) -> bool {
    cell.client.revision == cell.upstream.revision
}

/// A task in the form of this side, after these members.
fn task(side: Side, before: &str, own: &str) -> String {
    let ttl = if side.is_modern() { "ttlMs" } else { "ttl" };
    format!(r#"{{{before}"taskId":"{own}",{STATE},"{ttl}":60000}}"#)
}

/// Members of a task beside its id, in the form of this side.
fn state_of(side: Side, status: &str) -> String {
    let ttl = if side.is_modern() { "ttlMs" } else { "ttl" };
    let state = STATE.replace("working", status);
    format!(r#"{state},"{ttl}":60000,"x":1.0"#)
}

/// Lets this upstream's tools answer with a task of this id.
pub(crate) fn begin_tasks(world: &World, upstream: &str, own: &str) {
    let upstream = world.upstream(upstream);
    let side = upstream.side();
    match side.is_modern() {
        true => upstream.result("tools/call", &task(side, r#""resultType":"task","#, own)),
        false => upstream.result("tools/call", &format!(r#"{{"task":{}}}"#, task(side, "", own))),
    }
}

/// Begins a task and returns its handle.
pub(crate) async fn begun(client: &Client, tool: &str) -> String {
    let reply = client
        .request("tools/call", &format!(r#"{{"name":"{tool}","task":{{"ttl":60000}}}}"#))
        .await;
    let result = object(reply.result());
    let task = result.get_object("task").unwrap_or(result);
    assert_eq!(task.get("status"), Some("\"working\""), "{reply:?}");
    task.get_string("taskId").expect("a handle").into_owned()
}

async fn about(client: &Client, method: &str, handle: &str) -> Reply {
    client.request(method, &format!(r#"{{"taskId":"{handle}"}}"#)).await
}

fn is_unknown(reply: &Reply) {
    assert_eq!(reply.code(), -32602, "{reply:?}");
    let message = object(reply.error()).get_string("message").map(|text| text.into_owned());
    assert_eq!(message.as_deref(), Some("Task not found"));
}

#[tokio::test(start_paused = true)]
async fn whatever_is_asked_about_a_task_goes_to_its_owner_under_its_own_id() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let client = world.client_declaring(cell.client, EXTENSION).await;
        for name in ["hub", "other"] {
            begin_tasks(world, name, "own.1");
        }
        // The same id on two servers means two tasks.
        let handles = [begun(&client, "hub__a").await, begun(&client, "other__a").await];
        // A handle has no dot, so it contains the id only if the id is not sealed.
        let hides_id = |handle: &String| !handle.contains("own.1");
        assert!(handles.iter().all(hides_id) && handles[0] != handles[1]);
        let complete = if cell.client.is_modern() { r#""resultType":"complete","# } else { "" };
        let related = r#"{"io.modelcontextprotocol/related-task":{"taskId":"own.1"}}"#;
        let methods: &[(&str, String)] = match cell.client.is_modern() {
            true => &[
                ("tasks/get", task(cell.upstream, complete, "own.1")),
                ("tasks/update", r#"{"resultType":"complete"}"#.into()),
                ("tasks/cancel", r#"{"resultType":"complete"}"#.into()),
            ],
            false => &[
                ("tasks/get", task(cell.upstream, complete, "own.1")),
                ("tasks/result", format!(r#"{{"content":[],"_meta":{related}}}"#)),
                ("tasks/cancel", task(cell.upstream, complete, "own.1")),
            ],
        };
        for (handle, name) in handles.iter().zip(["hub", "other"]) {
            for (method, result) in methods {
                let upstream = world.upstream(name);
                upstream.result(method, result);
                let before = world.requests();
                let reply = about(&client, method, handle).await;
                assert_eq!(world.requests(), before + 1, "{method}");
                let seen = upstream.last(method);
                let params = object(std::str::from_utf8(&seen.params).expect("text"));
                assert_eq!(params.get("taskId"), Some("\"own.1\""), "{method}");
                if cell.upstream == MODERN_HTTP {
                    assert_eq!(seen.headers["mcp-name"], "own.1", "{method}");
                }
                assert!(!reply.result().contains("own.1"), "{method}: {reply:?}");
                let result = object(reply.result());
                let meta = result.get_object("_meta").unwrap_or_default();
                let related = meta.get_object("io.modelcontextprotocol/related-task");
                let named = related.unwrap_or(result);
                if let Some(named) = named.get_string("taskId") {
                    // A new handle leads to the same task.
                    about(&client, "tasks/get", &named).await.result();
                }
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_the_guard_rewrites_names_its_task_by_the_handle_too() {
    let config = "[guard]\nredact = { key = \"AKIA[A-Z]{4}\" }\n";
    everywhere(config, working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let client = world.client_declaring(cell.client, EXTENSION).await;
        begin_tasks(world, "hub", "AKIAABCD and t");
        let handle = begun(&client, "hub__a").await;
        assert!(!handle.contains(" and t"), "{cell}: {handle}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n_65_a_handle_that_is_not_good_is_unknown_and_nothing_is_sent() {
    everywhere("", working, async |world, cell| {
        if !has_tasks(cell) {
            return;
        }
        let client = world.client_declaring(cell.client, EXTENSION).await;
        begin_tasks(world, "hub", "own.1");
        let handle = begun(&client, "hub__a").await;
        let before = world.requests();
        let mut turned = handle.clone().into_bytes();
        turned[20] = if turned[20] == b'A' { b'B' } else { b'A' };
        let turned = String::from_utf8(turned).expect("text");
        for bad in ["own.1", "", "x", &handle[1..], &handle[..handle.len() - 2], &turned] {
            is_unknown(&about(&client, "tasks/get", bad).await);
            is_unknown(&about(&client, "tasks/cancel", bad).await);
        }
        assert_eq!(world.requests(), before);
        // A client that may not call the tool any more does not have the task either.
        let hub = world.upstream("hub");
        hub.remove(weir_mcp::kind::Kind::Tool, "a").await;
        pass(std::time::Duration::from_secs(2)).await;
        let before = world.requests();
        is_unknown(&about(&client, "tasks/get", &handle).await);
        assert_eq!(world.requests(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn s_53_the_handle_of_another_principal_role_or_era_is_unknown() {
    for side in [MODERN_HTTP, LEGACY_HTTP, MODERN_STDIO, LEGACY_STDIO] {
        let world = World::start(working(side), ROLES).await;
        begin_tasks(&world, "hub", "own.1");
        let owner = world.client_as_declaring("full", side, EXTENSION).await;
        let handle = begun(&owner, "hub__a").await;
        let narrow = world.client_as_declaring("narrow", side, EXTENSION).await;
        let before = world.requests();
        for method in ["tasks/get", "tasks/cancel"] {
            // Over HTTP it is another principal; over stdio the same one, under rules that hide the
            // tool.
            let reply = about(&narrow, method, &handle).await;
            if side.is_http()
                || !matches!(reply.outcome, Err(ref error) if error.contains("-32601"))
            {
                is_unknown(&reply);
            }
        }
        let other = match side {
            MODERN_HTTP => LEGACY_HTTP,
            LEGACY_HTTP => MODERN_HTTP,
            MODERN_STDIO => LEGACY_STDIO,
            _ => MODERN_STDIO,
        };
        let other = world.client_as_declaring("full", other, EXTENSION).await;
        let reply = about(&other, "tasks/get", &handle).await;
        match side.is_modern() {
            true => is_unknown(&reply),
            // Weir declares no tasks of a legacy upstream to modern clients.
            false => assert_eq!(reply.code(), -32601, "{reply:?}"),
        }
        assert_eq!(world.requests(), before, "{side}");
        drop((owner, narrow, other));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_declared_is_not_there() {
    everywhere("", hub, async |world, cell| {
        let client = world.client_declaring(cell.client, EXTENSION).await;
        let before = world.requests();
        for method in ["tasks/get", "tasks/result", "tasks/update", "tasks/cancel", "tasks/list"] {
            assert_eq!(about(&client, method, "x").await.code(), -32601, "{method}");
        }
        assert_eq!(world.requests(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_era_has_its_own_methods() {
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let world = World::start(working(side), "").await;
        let client = world.client_declaring(side, EXTENSION).await;
        let foreign = if side.is_modern() { "tasks/result" } else { "tasks/update" };
        for method in [foreign, "tasks/list"] {
            assert_eq!(about(&client, method, "x").await.code(), -32601, "{method}");
        }
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_declared_no_extension_is_not_told_of_a_task() {
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(working(side), "").await;
        begin_tasks(&world, "hub", "own.1");
        let client = world.client(side).await;
        let reply = client.call_tool("hub__a").await;
        assert_eq!(reply.code(), -32603, "{reply:?}");
        assert!(!reply.error().contains("own.1"));
        drop(client);
        world.close().await;
    }
}
