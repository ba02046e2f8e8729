//! Legacy sessions over HTTP: their principal and their end, and the modern era without sessions.

use std::time::Duration;

use hyper::Method;
use weir_mcp::kind::ListTopic;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP};
use crate::client::{Client, HttpReply, SILENCE, set};
use crate::world::{World, hub, pass, settle};

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#;

/// Sends a request in the client's session with these headers changed.
async fn send(client: &Client, method: Method, changed: &[(&str, &str)]) -> HttpReply {
    let http = client.http();
    let mut headers = http.headers("prompts/list", "{}");
    for (name, value) in changed {
        if value.is_empty() {
            headers.remove(*name);
        } else {
            set(&mut headers, name, value);
        }
    }
    let body = if method == Method::POST { LIST } else { "" };
    http.send(method, "/mcp", body, &headers).whole().await
}

async fn start() -> (World, Client) {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(LEGACY_HTTP).await;
    (world, client)
}

async fn end(world: World, client: Client) {
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_session_is_refused() {
    let (world, client) = start().await;
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let reply = send(&client, method.clone(), &[("mcp-session-id", "")]).await;
        assert_eq!(reply.status, 400, "{method}: {reply:?}");
    }
    assert_eq!(send(&client, Method::POST, &[]).await.status, 200);
    end(world, client).await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_session_is_not_found() {
    let (world, client) = start().await;
    let own = client.http().session().expect("a session");
    let cut = &own[..own.len() - 1];
    let long = "x".repeat(5_000);
    for session in ["nonsense", cut, &format!("{own}x"), &long] {
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let reply = send(&client, method.clone(), &[("mcp-session-id", session)]).await;
            assert_eq!(reply.status, 404, "{method}: {reply:?}");
        }
    }
    assert_eq!(send(&client, Method::POST, &[]).await.status, 200);
    end(world, client).await;
}

#[tokio::test(start_paused = true)]
async fn s18_a_session_of_another_principal_is_not_found() {
    let config = r#"
        [roles.ann]
        prompts.allow = ["*"]
        [roles.bob]
        prompts.allow = ["*"]
    "#;
    let world = World::start(hub(MODERN_HTTP), config).await;
    let ann = world.client_as("ann", LEGACY_HTTP).await;
    let bob = world.client_as("bob", LEGACY_HTTP).await;
    let anns = ann.http().session().expect("a session");
    let unknown = send(&bob, Method::POST, &[("mcp-session-id", "nonsense")]).await;
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let reply = send(&bob, method.clone(), &[("mcp-session-id", &anns)]).await;
        assert_eq!(reply.status, 404, "{method}");
        if method == Method::POST {
            assert_eq!(reply.body, unknown.body);
        }
    }
    assert_eq!(send(&ann, Method::POST, &[]).await.status, 200);
    drop(ann);
    end(world, bob).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_its_client_ends_is_over() {
    let (world, client) = start().await;
    let ended = send(&client, Method::DELETE, &[]).await;
    assert!((200..300).contains(&ended.status), "{ended:?}");
    for method in [Method::POST, Method::GET, Method::DELETE] {
        assert_eq!(send(&client, method.clone(), &[]).await.status, 404, "{method}");
    }
    end(world, client).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_ends_its_stream() {
    let (world, client) = start().await;
    let mut changes = client.listen().await;
    send(&client, Method::DELETE, &[]).await;
    assert_eq!(changes.next().await, None);
    drop(changes);
    end(world, client).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_takes_no_memory_and_goes_on_with_the_next_request() {
    let (world, client) = start().await;
    let swept = || pass(Duration::from_secs(2 * 60));
    for _ in 0..3 {
        pass(Duration::from_secs(20 * 60)).await;
        assert_eq!(send(&client, Method::POST, &[]).await.status, 200);
    }
    let changes = client.listen().await;
    pass(Duration::from_secs(60 * 60)).await;
    assert_eq!((world.sessions(), send(&client, Method::POST, &[]).await.status), (1, 200));
    drop(changes);
    pass(Duration::from_secs(31 * 60)).await;
    swept().await;
    assert_eq!(world.sessions(), 0, "nothing is open in it");
    assert_eq!((send(&client, Method::POST, &[]).await.status, world.sessions()), (200, 1));
    end(world, client).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_at_its_maximum_age() {
    let config = "[server]\nsession_max_age = \"1ms\"\n";
    let world = World::start(hub(MODERN_HTTP), config).await;
    let client = world.uninitialized_client(LEGACY_HTTP, None);
    let info = r#""clientInfo":{"name":"c","version":"1"}"#;
    let params = format!(r#"{{"protocolVersion":"2025-11-25","capabilities":{{}},{info}}}"#);
    client.request("initialize", &params).await.result();
    // Its age is counted from the last whole second before its beginning.
    while subsecond_millis() == 0 {
        std::hint::spin_loop();
    }
    assert_eq!(send(&client, Method::POST, &[]).await.status, 404);
    end(world, client).await;
}

fn subsecond_millis() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("it is later").subsec_millis()
}

#[tokio::test(start_paused = true)]
async fn s54_the_longest_idle_session_is_dropped_for_the_thirty_third() {
    let world = World::start(hub(MODERN_HTTP), "[roles.ann]\nprompts.allow = [\"*\"]\n").await;
    let mut clients = Vec::new();
    for _ in 0..32 {
        clients.push(world.client_as("ann", LEGACY_HTTP).await);
        pass(Duration::from_secs(1)).await;
    }
    assert_eq!(send(&clients[0], Method::POST, &[]).await.status, 200);
    clients.push(world.client_as("ann", LEGACY_HTTP).await);
    for (at, client) in clients.iter().enumerate() {
        assert_eq!(send(client, Method::POST, &[]).await.status, 200, "{at}");
        assert_eq!(world.sessions(), 32, "{at}");
    }
    drop(clients);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s54_clients_without_credentials_have_the_sessions_of_sixteen() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let mut clients = Vec::new();
    for number in 1..=16 * 32 {
        clients.push(world.client(LEGACY_HTTP).await);
        assert_eq!(world.sessions(), number);
    }
    clients.push(world.client(LEGACY_HTTP).await);
    assert_eq!(world.sessions(), 16 * 32);
    drop(clients);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn session_ids_are_long_and_never_the_same() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let client = world.client(LEGACY_HTTP).await;
        let id = client.http().session().expect("a session");
        // Spec 2025-11-25, transports: globally unique, secure, visible ASCII only.
        assert!(id.len() >= 22 && id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
        ids.insert(id);
    }
    assert_eq!(ids.len(), 20);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_speaks_its_own_revision() {
    let (world, client) = start().await;
    let version = |value| [("mcp-protocol-version", value)];
    assert_eq!(send(&client, Method::POST, &version("")).await.status, 200);
    for wrong in ["2099-01-01", "nonsense"] {
        let reply = send(&client, Method::POST, &version(wrong)).await;
        assert_eq!(reply.status, 400, "{wrong}: {reply:?}");
    }
    end(world, client).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_goes_out_on_one_stream_of_a_session() {
    let (world, client) = start().await;
    let mut first = client.listen().await;
    let mut second = client.listen().await;
    world.upstream("hub").add_prompt("new").await;
    let mut received = 0;
    for changes in [&mut first, &mut second] {
        while let Ok(Some(_)) = tokio::time::timeout(SILENCE, changes.next()).await {
            received += 1;
        }
    }
    assert_eq!(received, 1);
    drop((first, second));
    end(world, client).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_between_two_streams_of_a_session_is_not_lost() {
    let (world, client) = start().await;
    let changes = client.listen().await;
    drop(changes);
    settle().await;
    world.upstream("hub").add_prompt("new").await;
    pass(Duration::from_secs(2)).await;
    let mut changes = client.listen().await;
    assert_eq!(changes.next_change().await, ListTopic::Prompts);
    drop(changes);
    end(world, client).await;
}

#[tokio::test(start_paused = true)]
async fn the_modern_era_has_no_sessions() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(MODERN_HTTP).await;
    let http = client.http();
    let mut headers = http.headers("prompts/list", "{}");
    set(&mut headers, "mcp-session-id", "nonsense");
    set(&mut headers, "last-event-id", "7");
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{}}}"#,
        client.with_request_meta("{}")
    );
    let reply = http.post(body, &headers).whole().await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(!reply.headers.contains_key("mcp-session-id"));
    for method in [Method::GET, Method::DELETE] {
        let reply = http.send(method.clone(), "/mcp", "", &headers).whole().await;
        assert_eq!(reply.status, 405, "{method}: {reply:?}");
        assert!(reply.headers.contains_key("allow"), "{reply:?}");
    }
    end(world, client).await;
}
