//! Access tokens: authentication, discovery of the authorization server, and no forwarding of
//! tokens.

use hyper::Method;
use weir_mcp::revision::Revision;

use crate::cell::{LEGACY_HTTP, LEGACY_SSE, MODERN_HTTP, Side, Transport};
use crate::client::{Client, HttpReply, set};
use crate::identity::{TOKEN_OF_WEIR, now, token, token_until};
use crate::world::{World, hub, key_of, with_pair};

const CONFIG: &str = r#"
    [server]
    public_url = "http://127.0.0.1:8642"
    [auth.oidc.corp]
    issuer = "https://id.test/a"
    audience = ["http://127.0.0.1:8642/mcp"]
    roles = { devs = "guest", ops = "ops" }
    [roles.guest]
    prompts.allow = ["hub/a"]
    [roles.ops]
    prompts.allow = ["hub/*"]
    tools.allow = ["hub/a"]
"#;

const METADATA: &str = r#""http://127.0.0.1:8642/.well-known/oauth-protected-resource/mcp""#;

/// All revisions over HTTP, and the HTTP+SSE pair.
fn sides() -> [Side; 6] {
    let over_http = |revision| Side::new(revision, Transport::Http);
    [
        over_http(Revision::V2024_11_05),
        over_http(Revision::V2025_03_26),
        over_http(Revision::V2025_06_18),
        LEGACY_HTTP,
        MODERN_HTTP,
        LEGACY_SSE,
    ]
}

async fn world(config: &str) -> World {
    World::start(hub(MODERN_HTTP), &with_pair(config)).await
}

/// Reply to a list request with this `Authorization`.
async fn ask(world: &World, side: Side, shown: Option<&str>) -> HttpReply {
    let client = world.uninitialized_client(side, None);
    let http = client.http();
    let mut headers = http.headers("prompts/list", "{}");
    if let Some(shown) = shown {
        set(&mut headers, "authorization", shown);
    }
    http.post("{}", &headers).whole().await
}

fn challenge(reply: &HttpReply) -> &str {
    reply.headers.get("www-authenticate").and_then(|it| it.to_str().ok()).unwrap_or("none")
}

#[tokio::test(start_paused = true)]
async fn a_token_lets_in_as_what_its_groups_may_use() {
    let world = world(CONFIG).await;
    for side in sides() {
        for (groups, expected) in [
            (r#""roles":["devs"]"#, &["hub__a"][..]),
            (r#""roles":["ops","devs"]"#, &["hub__a", "hub__b"]),
            (r#""roles":["others"]"#, &[]),
        ] {
            let client = world.client_with(side, &token("ann", groups), "guest").await;
            assert_eq!(client.prompts().await, expected, "{side}: {groups}");
        }
        // Client keys remain valid.
        let client = world.client_as("guest", side).await;
        assert_eq!(client.prompts().await, ["hub__a"], "{side}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_where_to_get_a_token_and_not_what_was_wrong() {
    let world = world(CONFIG).await;
    let missing = format!("Bearer resource_metadata={METADATA}");
    let invalid = format!("Bearer error=\"invalid_token\", resource_metadata={METADATA}");
    let old = token_until("ann", r#""roles":["devs"]"#, now() - 61);
    let other = token("ann", r#""roles":["devs"]"#).replace('.', "x.");
    let mut texts = Vec::new();
    let before = world.requests();
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let reply = ask(&world, side, None).await;
        assert_eq!((reply.status, challenge(&reply)), (401, &*missing), "{side}");
        for shown in [&old, &other, "a.b.c", "..", "a.b.c.d.e", "wrong-key"] {
            let reply = ask(&world, side, Some(&format!("Bearer {shown}"))).await;
            assert_eq!((reply.status, challenge(&reply)), (401, &*invalid), "{side}: {shown}");
            texts.push(reply.body);
        }
    }
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert_eq!(world.requests(), before);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn metadata_are_for_everybody_at_each_well_known_place() {
    let scopes = CONFIG.replace(
        "    [roles.guest]",
        "    scopes_supported = [\"mcp:use\", \"mcp:write\"]\n    [roles.guest]",
    );
    let world = world(&scopes).await;
    let expected = r#"{"resource":"http://127.0.0.1:8642/mcp","authorization_servers":["https://id.test/a"],"scopes_supported":["mcp:use","mcp:write"],"bearer_methods_supported":["header"]}"#;
    let client = world.uninitialized_client(MODERN_HTTP, None);
    let http = client.http();
    let ask = async |method: Method, path: &str, origin: Option<&str>| {
        let mut headers = http.plain_headers();
        if let Some(origin) = origin {
            set(&mut headers, "origin", origin);
        }
        http.send(method, path, "", &headers).whole().await
    };
    let [root, at_path] =
        ["", "/mcp"].map(|path| format!("/.well-known/oauth-protected-resource{path}"));
    for path in [&root, &at_path] {
        let reply = ask(Method::GET, path, None).await;
        assert_eq!((reply.status, &*reply.body), (200, expected), "{path}");
        assert_eq!(reply.headers["content-type"], "application/json");
        let head = ask(Method::HEAD, path, None).await;
        assert_eq!((head.status, &*head.body), (200, ""), "{path}");
        let reply = ask(Method::POST, path, None).await;
        assert_eq!(
            (reply.status, &reply.headers["allow"]),
            (405, &"GET, HEAD".parse().expect("text"))
        );
        let reply = ask(Method::GET, path, Some("https://evil.test")).await;
        assert_eq!(reply.status, 403, "{path}");
    }
    for path in ["/other", "/mcp/", "x", "/"].map(|path| format!("{root}{path}")) {
        assert_eq!(ask(Method::GET, &path, None).await.status, 404, "{path}");
    }
    drop(client);
    world.close().await;

    let closed = World::start(hub(MODERN_HTTP), "").await;
    let client = closed.uninitialized_client(MODERN_HTTP, None);
    let headers = client.http().plain_headers();
    assert_eq!(client.http().send(Method::GET, &root, "", &headers).whole().await.status, 404);
    drop(client);
    closed.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_without_the_scopes_is_told_which() {
    let required = CONFIG
        .replace("    [roles.guest]", "    scopes_required = [\"a\", \"b\"]\n    [roles.guest]");
    let world = world(&required).await;
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let reply = ask(&world, side, None).await;
        let expected = format!("Bearer scope=\"a b\", resource_metadata={METADATA}");
        assert_eq!((reply.status, challenge(&reply)), (401, &*expected), "{side}");
        let token = token("ann", r#""roles":["devs"],"scope":"a""#);
        let reply = ask(&world, side, Some(&format!("Bearer {token}"))).await;
        let expected = format!(
            "Bearer error=\"insufficient_scope\", scope=\"a b\", resource_metadata={METADATA}"
        );
        assert_eq!((reply.status, challenge(&reply)), (403, &*expected), "{side}");
    }
    let enough = token("ann", r#""roles":["devs"],"scope":"b x a""#);
    let client = world.client_with(MODERN_HTTP, &enough, "guest").await;
    assert_eq!(client.prompts().await, ["hub__a"]);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_in_the_url_is_refused_on_every_route() {
    let world = world(CONFIG).await;
    let good = token("ann", r#""roles":["devs"]"#);
    let client = world.uninitialized_client(MODERN_HTTP, Some(&good));
    let http = client.http();
    for name in ["access_token", "Access_Token", "access%5Ftoken", "%61ccess_token"] {
        for (method, path) in [
            (Method::POST, "/mcp"),
            (Method::GET, "/mcp"),
            (Method::GET, "/sse"),
            (Method::POST, "/messages"),
            (Method::GET, "/.well-known/oauth-protected-resource"),
        ] {
            let path = format!("{path}?a=b&{name}={good}");
            let headers = http.headers("prompts/list", "{}");
            let reply = http.send(method.clone(), &path, "", &headers).whole().await;
            assert_eq!(reply.status, 400, "{method} {path}");
            assert!(!reply.body.contains(&good[..20]), "{}", reply.body);
        }
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn while_nobody_can_verify_a_token_its_client_is_asked_to_come_back() {
    let away = CONFIG.replace("https://id.test/a", "https://away.test/a");
    let world = world(&away).await;
    // A token of another issuer is refused; a token of the unavailable issuer cannot be verified.
    let reply = ask(&world, MODERN_HTTP, Some(&format!("Bearer {}", token("ann", "")))).await;
    assert_eq!(reply.status, 401);
    let made_up = format!(
        "Bearer {}",
        ["eyJhbGciOiJFUzI1NiJ9", "eyJpc3MiOiJodHRwczovL2F3YXkudGVzdC9hIn0", "AA"].join(".")
    );
    let reply = ask(&world, MODERN_HTTP, Some(&made_up)).await;
    assert_eq!((reply.status, challenge(&reply)), (503, "none"), "{reply:?}");
    assert_eq!(reply.headers["retry-after"], "30");
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_its_users_and_outlives_a_token() {
    let world = world(CONFIG).await;
    let groups = r#""roles":["devs"]"#;
    let ann = world.client_with(LEGACY_HTTP, &token("ann", groups), "guest").await;
    assert_eq!(ann.prompts().await, ["hub__a"]);
    let session = ann.http().session().expect("a session");
    let list = async |shown: &str| {
        let mut headers = ann.http().headers("prompts/list", "{}");
        set(&mut headers, "authorization", &format!("Bearer {shown}"));
        set(&mut headers, "mcp-session-id", &session);
        let body = r#"{"jsonrpc":"2.0","id":99,"method":"prompts/list"}"#;
        ann.http().post(body, &headers).whole().await.status
    };
    // The session accepts another token of the same user, whose new role then applies. It refuses
    // another user with the same groups, and the same name at another issuer.
    assert_eq!(list(&token_until("ann", groups, now() + 1_200)).await, 200);
    assert_eq!(list(&token("bob", groups)).await, 404);
    assert_eq!(list(&key_of("guest")).await, 404);
    assert_eq!(list(&token("ann", r#""roles":["ops"]"#)).await, 200);
    drop(ann);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_client_shows_goes_to_no_upstream() {
    let canary = |client: &Client, method: &str, params: &str| {
        let mut headers = client.http().headers(method, params);
        for name in ["cookie", "proxy-authorization", "proxy-authenticate", "x-api-key"] {
            set(&mut headers, name, "canary");
        }
        headers
    };
    let account = r#"
        [upstreams.hub.auth]
        type = "oauth"
        grant = "client_credentials"
        client_id = "weir"
        client_secret = "hunter2"
        token_url = "https://id.test/token"
        allow_http = true
    "#;
    let own = format!("Bearer {TOKEN_OF_WEIR}");
    let accounts = [("", None), (account, Some(&*own))];
    let cases = [MODERN_HTTP, LEGACY_HTTP].into_iter().flat_map(|it| accounts.map(|of| (it, of)));
    for (upstream, (account, own)) in cases {
        let scripts = hub(upstream);
        let world = World::start(scripts, &with_pair(&format!("{CONFIG}{account}"))).await;
        let secrets = [token("ann", r#""roles":["ops"]"#), key_of("ops")];
        for side in sides().into_iter().filter(|side| side.transport == Transport::Http) {
            for secret in &secrets {
                let client = world.client_with(side, secret, "ops").await;
                let params = client.with_request_meta(r#"{"name":"hub__a"}"#);
                let body = format!(
                    r#"{{"jsonrpc":"2.0","id":7,"method":"prompts/get","params":{params}}}"#
                );
                let headers = canary(&client, "prompts/get", &params);
                let reply = client.http().post(body, &headers).whole().await;
                assert_eq!(reply.status, 200, "{side}: {reply:?}");
                assert!(client.call_tool("hub__a").await.outcome.is_ok(), "{side}");
            }
        }
        let hub = world.upstream("hub");
        assert!(hub.count("prompts/get") == 10 && hub.count("tools/call") == 10);
        for head in hub.request_headers() {
            // Weir's own token, once.
            let shown = head.get("authorization").map(|it| it.to_str().expect("text"));
            assert_eq!(shown, own, "{head:?}");
            let text = format!("{head:?}").replacen(own.unwrap_or_default(), "", 1);
            for secret in secrets.iter().map(String::as_str).chain(["canary", "Bearer"]) {
                assert!(!text.contains(secret), "{text}");
            }
            for name in ["cookie", "proxy-authorization", "x-api-key"] {
                assert!(!head.contains_key(name), "{name}: {text}");
            }
        }
        for parameters in hub.parameters() {
            let text = String::from_utf8_lossy(&parameters).into_owned();
            assert!(!secrets.iter().any(|secret| text.contains(secret)), "{text}");
        }
        world.close().await;
    }
}
