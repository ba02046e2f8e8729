//! Access control: denied and unknown items are indistinguishable, on every revision and transport.

use std::sync::Arc;

use weir_access::catalog::RoleView;
use weir_mcp::kind::Kind;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, MODERN_STDIO, SIDES};
use crate::client::{Client, Reply, set};
use crate::upstream::own_key;
use crate::world::{World, everywhere, hub, key_of, sha256};

const GUEST: &str = r#"
    [roles.guest]
    prompts = { allow = ["hub/*"], deny = ["hub/b"] }
    tools.allow = ["hub/a", "hub/b"]
    tools.deny = ["*/b"]
    resources.allow = ["hub/file:///a", "hub/a:*"]
"#;

/// Sends each kind of request for an item of this name.
async fn ask(client: &Client, name: &str) -> Vec<(String, Reply)> {
    let public = format!("hub__{name}");
    let template = own_key(Kind::Template, name);
    let template = format!(
        r#"{{"ref":{{"type":"ref/resource","uri":"{template}"}},"argument":{{"name":"path","value":""}}}}"#
    );
    let replies = [
        ("get", client.get_prompt(&public).await),
        ("call", client.call_tool(&public).await),
        ("read", client.read(&own_key(Kind::Resource, name)).await),
        ("read by template", client.read(&format!("{name}:///x")).await),
        ("complete", client.complete(&public).await),
        ("complete a template", client.request("completion/complete", &template).await),
    ];
    replies.map(|(what, reply)| (what.to_owned(), reply)).into()
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_is_not_listed() {
    everywhere(GUEST, hub, async |world, cell| {
        let client = world.client_as("guest", cell.client).await;
        for kind in Kind::ALL {
            let name = if kind.has_name() { "hub__a".into() } else { own_key(kind, "a") };
            assert_eq!(client.list_all(kind).await, [name]);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn s37_what_is_denied_is_answered_like_what_is_unknown_and_asked_of_nobody() {
    everywhere(GUEST, hub, async |world, cell| {
        let client = world.client_as("guest", cell.client).await;
        for (what, reply) in ask(&client, "a").await {
            assert!(reply.outcome.is_ok(), "{what}: {reply:?}");
        }
        let before = world.requests();
        let (denied, unknown) = (ask(&client, "b").await, ask(&client, "q").await);
        for ((what, denied), (_, unknown)) in denied.into_iter().zip(unknown) {
            let shown = |reply: &Reply, name: &str| {
                let text = reply.error().to_owned();
                let text = text.replace(&format!("hub__{name}"), "hub__?");
                text.replace(&format!("/{name}"), "/?").replace(&format!("{name}:"), "?:")
            };
            assert_eq!(shown(&denied, "b"), shown(&unknown, "q"), "{what}");
            assert_eq!(denied.status, unknown.status, "{what}");
        }
        assert_eq!(world.requests(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_roles_see_two_lists_at_the_same_time() {
    let config = r#"
        [roles.guest]
        prompts.allow = ["hub/a"]
        [roles.staff]
        prompts.allow = ["*"]
        [roles.nobody]
    "#;
    everywhere(config, hub, async |world, cell| {
        let guest = world.client_as("guest", cell.client).await;
        let staff = world.client_as("staff", cell.client).await;
        let nobody = world.client_as("nobody", cell.client).await;
        assert_eq!(guest.prompts().await, ["hub__a"]);
        assert_eq!(staff.prompts().await, ["hub__a", "hub__b"]);
        for kind in Kind::ALL {
            assert_eq!(nobody.list_all(kind).await, Vec::<String>::new());
        }
        assert_eq!(staff.list_all(Kind::Tool).await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_leave_an_upstream_exists_for_nobody() {
    let config = r#"
        [upstreams.hub]
        prompts = { allow = ["*"], deny = ["b"] }
        tools.allow = ["b"]
    "#;
    everywhere(config, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        assert_eq!(client.prompts().await, ["hub__a"]);
        assert_eq!(client.list_all(Kind::Tool).await, ["hub__b"]);
        let before = world.requests();
        assert_eq!(client.get_prompt("hub__b").await.code(), -32602);
        assert_eq!(client.call_tool("hub__a").await.code(), -32602);
        assert_eq!(world.requests(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_filtered_list_is_private() {
    let world = World::start(hub(MODERN_HTTP), GUEST).await;
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let client = world.client_as("guest", side).await;
        let page = client.page(Kind::Prompt, None).await;
        assert_eq!(page.get("cacheScope"), Some("\"private\""), "{side}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_roles_with_the_same_rules_share_one_view() {
    // The order of the rules does not matter.
    let rules = [r#"["hub/*", "*/x"]"#, r#"["*/x", "hub/*"]"#];
    let role = |n: usize| {
        let allow = rules[n % 2];
        format!("[roles.r{n}]\nprompts.allow = {allow}\nprompts.deny = [\"hub/b\"]\n")
    };
    let config = (0..1_000).map(role).collect::<String>();
    let config = config + "[roles.other]\nprompts.allow = [\"hub/*\", \"*/x\"]\n";
    let world = World::start(hub(MODERN_HTTP), &config).await;
    let prompts = |view: &RoleView| -> Vec<_> {
        view.items(Kind::Prompt).iter().map(|target| target.key.to_string()).collect()
    };
    let first = world.client_context("r0").view();
    assert_eq!(prompts(&first), ["hub__a"]);
    for n in 0..1_000 {
        assert!(Arc::ptr_eq(&world.client_context(&format!("r{n}")).view(), &first), "r{n}");
    }
    assert_eq!(prompts(&world.client_context("other").view()), ["hub__a", "hub__b"]);
    world.close().await;
}

// === Keys ===

fn keys() -> String {
    let [old, new, staff] = ["old", "new", "expired"].map(sha256);
    format!(
        r#"
        [roles.staff]
        prompts.allow = ["*"]
        [clients.two-keys]
        role = "staff"
        key_sha256 = ["{old}", "{new}"]
        [clients.late]
        role = "staff"
        key_sha256 = ["{staff}"]
        expires = 2020-01-01T00:00:00Z
        "#
    )
}

#[tokio::test(start_paused = true)]
async fn who_shows_no_good_key_gets_401_on_every_method() {
    let world = World::start(hub(MODERN_HTTP), &keys()).await;
    let before = world.requests();
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        for key in [None, Some("wrong"), Some("expired"), Some("")] {
            let client = world.uninitialized_client(side, key);
            let http = client.http();
            for method in [hyper::Method::POST, hyper::Method::GET, hyper::Method::DELETE] {
                let headers = http.headers("prompts/list", "{}");
                let reply = http.send(method.clone(), "/mcp", "{}", &headers).whole().await;
                assert_eq!(reply.status, 401, "{method} with {key:?}: {reply:?}");
                let challenge = reply.headers.get("www-authenticate").expect("www-authenticate");
                assert!(challenge.as_bytes().starts_with(b"Bearer"), "{challenge:?}");
                assert!(!reply.body.contains("expired"), "{reply:?}");
            }
        }
    }
    assert_eq!(world.requests(), before);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn either_of_two_keys_opens_while_they_are_changed() {
    let world = World::start(hub(MODERN_HTTP), &keys()).await;
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        for key in ["old", "new"] {
            let client = world.client_with(side, key, "staff").await;
            assert_eq!(client.prompts().await, ["hub__a", "hub__b"], "{side}");
        }
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_no_bearer_token_are_refused() {
    let world = World::start(hub(MODERN_HTTP), &keys()).await;
    let client = world.uninitialized_client(MODERN_HTTP, None);
    let http = client.http();
    for shown in ["Basic b2xkOm9sZA==", "old", "Bearer", "Bearer ", "Bearer old new"] {
        let mut headers = http.headers("prompts/list", "{}");
        set(&mut headers, "authorization", shown);
        let reply = http.post("{}", &headers).whole().await;
        assert_eq!(reply.status, 401, "{shown}");
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_key_is_refused_even_where_none_is_needed() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.uninitialized_client(MODERN_HTTP, Some(&key_of("nobody")));
    let http = client.http();
    let reply = http.post("{}", &http.headers("prompts/list", "{}")).whole().await;
    assert_eq!(reply.status, 401);
    drop(client);
    for side in SIDES {
        assert_eq!(world.client(side).await.prompts().await.len(), 2);
    }
    world.close().await;
}
