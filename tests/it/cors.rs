//! The CORS protocol: pages of the origins in `server.allowed_origins` can read every response of
//! the endpoint and of the resource metadata, and no other page can.

use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};
use weir::app::ReloadOutcome;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP};
use crate::client::{Client, HttpReply, named, set};
use crate::world::{World, hub, key_of, with_pair};

const APP: &str = "https://app.example.com";
const METADATA: &str = "/.well-known/oauth-protected-resource/mcp";

const CONFIG: &str = r#"
    [server]
    public_url = "http://127.0.0.1:8642"
    allowed_origins = ["https://app.example.com", "http://localhost:3000", "chrome-extension://abc"]
    max_body = 2000
    [auth.oidc.corp]
    issuer = "https://id.test/a"
    audience = ["http://127.0.0.1:8642/mcp"]
    roles = { devs = "guest" }
    [roles.guest]
    tools.allow = ["hub/*"]
    prompts.allow = ["hub/*"]
    [[limits]]
    per = "client"
    match = "hub/b"
    rate = "1/h"
    burst = 1
"#;

async fn world(config: &str) -> World {
    World::start(hub(MODERN_HTTP), &with_pair(config)).await
}

/// Value of a header; `-` if it is missing.
fn value<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map_or("-", |value| value.to_str().expect("visible ASCII"));
    assert!(values.next().is_none(), "{name} is there once");
    value
}

/// All headers of the CORS protocol in a response, with the status.
fn cors_of(reply: &HttpReply) -> String {
    let headers = reply.headers.iter().map(|(name, _)| name.as_str());
    let mut cors: Vec<_> = headers
        .filter(|name| name.starts_with("access-control-"))
        .map(|name| {
            format!("{}: {}", &name["access-control-".len()..], value(&reply.headers, name))
        })
        .collect();
    cors.sort();
    format!("{} vary: {} {}", reply.status, value(&reply.headers, "vary"), cors.join("; "))
}

/// Sends a request without a body and without credentials.
async fn send(client: &Client, method: Method, path: &str, pairs: &[(&str, &str)]) -> HttpReply {
    let mut headers = client.http().plain_headers();
    headers.remove("accept");
    headers.remove("authorization");
    for (name, value) in pairs {
        headers.append(
            name.parse::<hyper::header::HeaderName>().expect("a name"),
            value.parse().expect("a value"),
        );
    }
    client.http().send(method, path, "", &headers).whole().await
}

async fn preflight(client: &Client, path: &str, pairs: &[(&str, &str)]) -> HttpReply {
    let pairs = [&[("access-control-request-method", "POST")], pairs].concat();
    send(client, Method::OPTIONS, path, &pairs).await
}

#[tokio::test(start_paused = true)]
async fn a_preflight_of_a_written_origin_passes_without_credentials() {
    const HEADERS: &str = "allow-headers: Accept, Authorization, Content-Type, Last-Event-ID, \
                           MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id, \
                           traceparent, tracestate, baggage";
    const EXPOSED: &str = "expose-headers: WWW-Authenticate, Retry-After, Mcp-Session-Id";
    let world = world(CONFIG).await;
    let client = world.uninitialized_client(MODERN_HTTP, None);
    let before = world.requests();
    for (path, methods) in [("/mcp", "POST, GET, DELETE"), (METADATA, "GET, HEAD")] {
        for origin in [
            APP,
            "http://localhost:3000",
            "chrome-extension://abc",
            // Other spellings of a written origin are repeated as they are.
            "HTTPS://APP.example.com",
            "https://app.example.com:443",
        ] {
            let reply = preflight(&client, path, &[("origin", origin)]).await;
            let expected = format!(
                "204 vary: Origin {HEADERS}; allow-methods: {methods}; allow-origin: {origin}; \
                 {EXPOSED}; max-age: 600"
            );
            assert_eq!((cors_of(&reply), &*reply.body), (expected, ""), "{path}");
        }
    }
    // A method that is not served is not allowed, whatever the page requests.
    let put = [("origin", APP), ("access-control-request-method", "PUT")];
    let reply = send(&client, Method::OPTIONS, "/mcp", &put).await;
    assert_eq!(value(&reply.headers, "access-control-allow-methods"), "POST, GET, DELETE");
    assert_eq!(world.requests(), before);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_preflight_allows_the_headers_of_tool_arguments_by_their_names_and_no_others() {
    let world = world(CONFIG).await;
    let client = world.uninitialized_client(MODERN_HTTP, None);
    for (requested, added) in [
        (&["authorization,content-type,mcp-param-region"][..], &["mcp-param-region"][..]),
        (&["MCP-Param-Region, Mcp-Param-x_1"], &["mcp-param-region", "mcp-param-x_1"]),
        (&["mcp-param-a", "x-custom, mcp-param-b"], &["mcp-param-a", "mcp-param-b"]),
        (&["cookie, x-mcp-param-a, weir-replica, *"], &[]),
        (&["mcp-param-a b, mcp-param-\"c\", mcp-param-d:e, ,"], &[]),
        (&[""], &[]),
    ] {
        let requested = requested.iter().map(|it| ("access-control-request-headers", *it));
        let pairs: Vec<_> = [("origin", APP)].into_iter().chain(requested).collect();
        let reply = preflight(&client, "/mcp", &pairs).await;
        let allowed = value(&reply.headers, "access-control-allow-headers");
        assert_eq!(allowed.split(", ").skip(11).collect::<Vec<_>>(), added, "{pairs:?}");
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_preflight_of_a_public_page_to_a_private_address_is_granted_to_written_origins() {
    let world = world(CONFIG).await;
    let client = world.uninitialized_client(MODERN_HTTP, None);
    for network in ["private", "local"] {
        let requested = format!("access-control-request-{network}-network");
        let allowed = format!("access-control-allow-{network}-network");
        for (asked, expected) in [("true", "true"), ("false", "-"), ("", "-")] {
            let reply = preflight(&client, "/mcp", &[("origin", APP), (&requested, asked)]).await;
            assert_eq!(value(&reply.headers, &allowed), expected, "{network} {asked}");
        }
        let local = [("origin", "http://localhost:4000"), (&*requested, "true")];
        let reply = preflight(&client, "/mcp", &local).await;
        assert_eq!(cors_of(&reply), "401 vary: Origin ");
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_is_not_written_gets_no_cors_header() {
    let world = world(CONFIG).await;
    let client = world.uninitialized_client(MODERN_HTTP, None);
    let forbidden = "403 vary: Origin ";
    for (origins, at_endpoint, at_metadata) in [
        // Accepted by default, without CORS.
        (&["http://localhost:4000"][..], "401 vary: Origin ", "405 vary: Origin "),
        (&["http://127.0.0.1:3000"], "401 vary: Origin ", "405 vary: Origin "),
        (&["https://localhost:3000"], "401 vary: Origin ", "405 vary: Origin "),
        (&["http://[::1]:3000"], "401 vary: Origin ", "405 vary: Origin "),
        (&["null"], forbidden, forbidden),
        (&["*"], forbidden, forbidden),
        (&[""], forbidden, forbidden),
        (&["http://app.example.com"], forbidden, forbidden),
        (&["https://app.example.com:444"], forbidden, forbidden),
        (&["https://app.example.com/"], forbidden, forbidden),
        (&["https://x.app.example.com"], forbidden, forbidden),
        (&["https://app.example.com.evil.test"], forbidden, forbidden),
        (&["https://app.example.com https://evil.test"], forbidden, forbidden),
        (&[APP, APP], forbidden, forbidden),
        (&[APP, "https://evil.test"], forbidden, forbidden),
        (&["https://evil.test", APP], forbidden, forbidden),
        (&[], "401 vary: Origin ", "405 vary: Origin "),
    ] {
        let pairs: Vec<_> = origins.iter().map(|origin| ("origin", *origin)).collect();
        for (path, expected) in [("/mcp", at_endpoint), (METADATA, at_metadata)] {
            let reply = preflight(&client, path, &pairs).await;
            assert_eq!(cors_of(&reply), expected, "{path}: {origins:?}");
        }
        let actual = send(&client, Method::GET, METADATA, &pairs).await;
        let expected = if at_metadata == forbidden { forbidden } else { "200 vary: Origin " };
        assert_eq!(cors_of(&actual), expected, "{origins:?}");
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn other_routes_have_no_cors_and_without_written_origins_no_route_has() {
    let world = world(CONFIG).await;
    let client = world.uninitialized_client(MODERN_HTTP, None);
    for path in ["/sse", "/messages?sessionId=x", "/", "/mcp/", "/.well-known/other"] {
        let found = cors_of(&preflight(&client, path, &[("origin", APP)]).await);
        assert!(["401 vary: - ", "404 vary: - "].contains(&&*found), "{path}: {found}");
        let found = cors_of(&send(&client, Method::GET, path, &[("origin", APP)]).await);
        assert!(["401 vary: - ", "404 vary: - "].contains(&&*found), "{path}: {found}");
    }
    let without = CONFIG.lines().filter(|line| !line.contains("allowed_origins"));
    let without = with_pair(&without.collect::<Vec<_>>().join("\n"));
    // The next request is served under the new configuration, in both directions.
    for (config, preflighted, served) in [
        (&*without, "403 vary: - ", "200 vary: - "),
        (&*with_pair(CONFIG), "204", "200 vary: Origin "),
    ] {
        assert!(matches!(world.reload(config).await, ReloadOutcome::Applied { .. }));
        let reply = preflight(&client, "/mcp", &[("origin", APP)]).await;
        assert!(cors_of(&reply).starts_with(preflighted), "{reply:?}");
        let local = [("origin", "http://localhost:4000")];
        let reply = send(&client, Method::GET, METADATA, &local).await;
        assert_eq!(cors_of(&reply), served);
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_page_can_read_the_response_of_every_stage() {
    const READABLE: &str = "vary: Origin allow-origin: https://app.example.com; expose-headers: \
                            WWW-Authenticate, Retry-After, Mcp-Session-Id";
    let world = world(CONFIG).await;
    let modern = world.uninitialized_client(MODERN_HTTP, Some(&key_of("guest")));
    let legacy = world.uninitialized_client(LEGACY_HTTP, Some(&key_of("guest")));
    // The status of the response to one request: what differs from a good one, and the body.
    let ask = async |client: &Client, path: &str, pairs: &[(&str, &str)], body: &str| {
        let method = match body.contains("prompts/list") {
            true => "prompts/list",
            false => "tools/call",
        };
        let mut headers = client.http().headers(method, &named("hub__a"));
        set(&mut headers, "origin", APP);
        for (name, value) in pairs {
            match *value {
                "" => drop(headers.remove(*name)),
                value => set(&mut headers, name, value),
            }
        }
        let method = pairs.iter().find(|(name, _)| *name == "x-method");
        let method = method.map_or(Method::POST, |(_, it)| it.parse().expect("a method"));
        let body = match method {
            Method::POST => body.to_owned(),
            _ => String::new(),
        };
        let reply = client.http().send(method, path, body, &headers).whole().await;
        assert_eq!(cors_of(&reply), format!("{} {READABLE}", reply.status), "{path} {pairs:?}");
        reply
    };
    let params = modern.with_request_meta(&named("hub__a"));
    let request = |method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
    };
    let call = request("tools/call", &params);
    let limited = request("tools/call", &modern.with_request_meta(&named("hub__b")));
    let unknown = request("x/unknown", &params);
    let long = "x".repeat(3_000);
    for (client, path, pairs, body, status) in [
        (&modern, "/mcp", &[][..], &*call, 200),
        (&modern, "/mcp?access_token=x", &[], &*call, 400),
        (&modern, "/mcp", &[], "{", 400),
        (&modern, "/mcp", &[("mcp-method", "")], &*call, 400),
        (&modern, "/mcp", &[("authorization", "")], &*call, 401),
        (&modern, "/mcp", &[("authorization", "Bearer wrong")], &*call, 401),
        (&modern, "/mcp", &[("authorization", "Basic x")], &*call, 401),
        (&modern, "/mcp", &[("host", "evil.test")], &*call, 403),
        (&modern, "/mcp", &[("mcp-method", "x/unknown"), ("mcp-name", "")], &*unknown, 404),
        (&modern, "/mcp", &[("x-method", "PUT")], "", 405),
        (&modern, "/mcp", &[("x-method", "OPTIONS")], "", 405),
        (&modern, "/mcp", &[("accept", "text/html")], &*call, 406),
        (&modern, "/mcp", &[], &*long, 413),
        (&modern, "/mcp", &[("content-type", "text/plain")], &*call, 415),
        (&modern, "/mcp", &[("mcp-name", "hub__b")], &*limited, 200),
        (&modern, "/mcp", &[("mcp-name", "hub__b")], &*limited, 429),
        (&legacy, "/mcp", &[("mcp-session-id", "unknown")], &*request("ping", "{}"), 404),
        (&legacy, "/mcp", &[("x-method", "DELETE")], "", 400),
    ] {
        let reply = ask(client, path, pairs, body).await;
        assert_eq!(reply.status, status, "{path} {pairs:?} {reply:?}");
        assert_eq!(reply.headers.contains_key("www-authenticate"), status == 401);
        assert_eq!(reply.headers.contains_key("retry-after"), status == 429);
    }
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(ask(&modern, "/mcp", &[], notification).await.status, 202);
    let opening = format!(
        r#"{{"protocolVersion":"{}","capabilities":{{}},"clientInfo":{{"name":"p","version":"1"}}}}"#,
        LEGACY_HTTP.revision
    );
    let opened = ask(&legacy, "/mcp", &[], &request("initialize", &opening)).await;
    assert_ne!(value(&opened.headers, "mcp-session-id"), "-", "{opened:?}");

    // A stream: its head is there before its end.
    let mut headers = modern.http().headers("subscriptions/listen", "{}");
    set(&mut headers, "origin", APP);
    let topics = modern.with_request_meta(r#"{"notifications":{"toolsListChanged":true}}"#);
    let listen = request("subscriptions/listen", &topics);
    let mut stream = modern.http().post(listen, &headers);
    assert!(stream.next().await.is_some());
    // At shutdown, the preflight passes, and the refusal is readable.
    let idle = world.uninitialized_client(MODERN_HTTP, Some(&key_of("guest")));
    assert_eq!(ask(&idle, "/mcp", &[], notification).await.status, 202);
    let other = world.uninitialized_client(MODERN_HTTP, None);
    assert_eq!(preflight(&other, "/mcp", &[("origin", APP)]).await.status, 204);
    world.stop_downstream();
    let whole = stream.whole().await;
    assert_eq!(cors_of(&whole), format!("200 {READABLE}"));
    assert_eq!(preflight(&other, "/mcp", &[("origin", APP)]).await.status, 204);
    let stopped = ask(&idle, "/mcp", &[], &call).await;
    assert_eq!(stopped.status, StatusCode::SERVICE_UNAVAILABLE.as_u16());
    assert_ne!(value(&stopped.headers, "retry-after"), "-");
    drop((modern, legacy, idle, other));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn preflights_are_not_counted_by_limits_and_not_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("audit.jsonl");
    let config = format!("{CONFIG}[audit]\nenabled = true\npath = {log:?}\n");
    let world = World::start_recorded(hub(MODERN_HTTP), &with_pair(&config)).await;
    let client = world.uninitialized_client(MODERN_HTTP, None);
    for n in 0..1_000 {
        let reply = preflight(&client, "/mcp", &[("origin", APP)]).await;
        assert_eq!(reply.status, 204, "{n}");
    }
    assert_eq!(client.http().connections(), 1);
    drop(client);
    world.close().await;
    let recorded = std::fs::read_to_string(&log).expect("a log");
    assert!(!recorded.contains("OPTIONS"), "{recorded}");
}
