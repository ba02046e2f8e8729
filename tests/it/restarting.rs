//! Legacy sessions that outlive the process. Task handles and streams that do: `tasks.rs` and
//! `resuming.rs`.

use std::time::Duration;

use hyper::Method;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, Side, UPSTREAMS};
use crate::client::{Client, HttpReply, set};
use crate::upstream::Script;
use crate::world::{Scripts, World, hub, pass};

const RESOURCE: &str = "file:///a";

/// A configuration whose state folder is this one.
fn with_state(folder: &tempfile::TempDir, config: &str) -> String {
    format!("[state]\ndir = \"{}\"\n{config}", folder.path().display())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Sends a request of the client's session without a body.
async fn bare(client: &Client, method: Method) -> HttpReply {
    let http = client.http();
    http.send(method, "/mcp", "", &http.headers("ping", "{}")).whole().await
}

fn subscribable(side: Side) -> Scripts {
    vec![("hub", Script::full(side).subscribable())]
}

#[tokio::test(start_paused = true)]
async fn a_legacy_session_goes_on_in_the_next_process_without_a_handshake() {
    for upstream in UPSTREAMS {
        let state = folder();
        let mut world = World::start(hub(upstream), &with_state(&state, "")).await;
        let client = world.client(LEGACY_HTTP).await;
        let before = client.prompts().await;
        for _ in 0..2 {
            world.restart().await;
            assert_eq!(world.sessions(), 0);
            assert_eq!(client.prompts().await, before, "{upstream:?}");
            client.get_prompt("hub__a").await.result();
            assert_eq!(world.sessions(), 1);
        }
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_its_client_has_ended_stays_ended() {
    let state = folder();
    let mut world = World::start(hub(MODERN_HTTP), &with_state(&state, "")).await;
    let (ended, other) = (world.client(LEGACY_HTTP).await, world.client(LEGACY_HTTP).await);
    assert_eq!(bare(&ended, Method::DELETE).await.status, 204);
    for _ in 0..2 {
        for method in [Method::GET, Method::DELETE] {
            assert_eq!(bare(&ended, method.clone()).await.status, 404, "{method}");
        }
        other.prompts().await;
        world.restart().await;
    }
    drop((ended, other));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_belongs_to_its_principal_in_the_next_process_too() {
    let config = "[roles.ann]\nprompts.allow = [\"*\"]\n[roles.bob]\nprompts.allow = [\"*\"]\n";
    let state = folder();
    let mut world = World::start(hub(MODERN_HTTP), &with_state(&state, config)).await;
    let ann = world.client_as("ann", LEGACY_HTTP).await;
    let bob = world.client_as("bob", LEGACY_HTTP).await;
    world.restart().await;
    let (http, anns) = (bob.http(), ann.http().session().expect("a session"));
    let mut headers = http.headers("ping", "{}");
    set(&mut headers, "mcp-session-id", &anns);
    let unknown = http.send(Method::GET, "/mcp", "", &headers).whole().await;
    assert_eq!((unknown.status, world.sessions()), (404, 0));
    ann.prompts().await;
    drop((ann, bob));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_client_has_set_goes_on_and_it_hears_once_of_all_that_it_may_have_missed() {
    for upstream in UPSTREAMS {
        let state = folder();
        let mut world = World::start(subscribable(upstream), &with_state(&state, "")).await;
        let client = world.client(LEGACY_HTTP).await;
        assert_eq!(client.subscribe(RESOURCE).await.result(), "{}");
        // Settings are written once a second.
        pass(Duration::from_secs(2)).await;
        world.restart().await;
        let mut changes = client.listen().await;
        world.upstream("hub").until_subscribed(&[RESOURCE]).await;
        let mut heard = Vec::new();
        for _ in 0..4 {
            let message = changes.next().await.expect("a notification");
            heard.push(message.contains("resources/updated"));
        }
        heard.sort_unstable();
        assert_eq!(heard, [false, false, false, true], "{upstream:?}: three lists, one resource");
        changes.stays_silent().await;
        world.upstream("hub").update(RESOURCE);
        assert_eq!(changes.next_update().await, RESOURCE);
        drop(changes);
        drop(client);
        world.close().await;
    }
}
