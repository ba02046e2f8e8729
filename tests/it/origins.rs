//! Host and Origin: checked on every route, in every revision, before any other check.

use hyper::Method;
use hyper::header::{HOST, HeaderValue, ORIGIN};

use crate::cell::{LEGACY_HTTP, MODERN_HTTP};
use crate::client::{AUTHORITY, Client};
use crate::world::{World, hub, with_pair};

const STRANGE_HOSTS: [&str; 14] = [
    "evil.test",
    "localhost.evil.test",
    "evil.test:8642",
    "127.0.0.1.evil.test",
    "127.0.0.1@evil.test",
    "evil.test#127.0.0.1",
    "evil.test/127.0.0.1",
    "evil.test?localhost",
    "[::2]:8642",
    "127.0.0.1:8642:1",
    "127.0.0.1:port",
    "2130706433",
    "localhost,evil.test",
    "",
];

const STRANGE_ORIGINS: [&str; 10] = [
    "null",
    "http://evil.test",
    "https://localhost.evil.test",
    "http://127.0.0.1.evil.test:8642",
    "http://localhost@evil.test",
    "http://evil.test#localhost",
    "file://",
    "localhost",
    "http://localhost/path",
    "",
];

/// Status of a request with these values of one header, on each route.
async fn statuses(client: &Client, name: hyper::header::HeaderName, values: &[&str]) -> Vec<u16> {
    let http = client.http();
    let mut headers = http.headers("prompts/list", "{}");
    headers.remove(&name);
    for value in values {
        headers.append(name.clone(), HeaderValue::from_str(value).expect("a header value"));
    }
    let routes = [
        (Method::POST, "/mcp"),
        (Method::GET, "/mcp"),
        (Method::DELETE, "/mcp"),
        (Method::OPTIONS, "/mcp"),
        (Method::GET, "/sse"),
        (Method::POST, "/messages?sessionId=x"),
        (Method::GET, "/elsewhere"),
        (Method::GET, "/.well-known/oauth-protected-resource"),
    ];
    let mut statuses = Vec::new();
    for (method, path) in routes {
        let mut exchange = http.send(method, path, "", &headers);
        // Only the head is read: an admitted stream of the pair has no end.
        exchange.opened().await;
        statuses.push(exchange.status());
    }
    statuses
}

#[tokio::test(start_paused = true)]
async fn s11_a_request_for_another_host_is_forbidden_on_every_route() {
    let world = World::start(hub(MODERN_HTTP), &with_pair("")).await;
    let before = world.requests();
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let client = world.client(side).await;
        for host in STRANGE_HOSTS {
            assert_eq!(statuses(&client, HOST, &[host]).await, [403; 8], "{side}: {host}");
        }
        let twice = statuses(&client, HOST, &[AUTHORITY, "evil.test"]).await;
        assert!(twice.iter().all(|status| [400, 403].contains(status)), "{side}: {twice:?}");
        assert_eq!(client.prompts().await.len(), 2);
    }
    assert_eq!(world.requests(), before);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s12_a_host_decides_whether_and_never_what() {
    let world = World::start(hub(MODERN_HTTP), &with_pair("")).await;
    let before = world.requests();
    let client = world.client(MODERN_HTTP).await;
    let plain = statuses(&client, HOST, &[AUTHORITY]).await;
    // Concatenated into a URL, each of them would lead elsewhere.
    let ends = [
        "/mcp",
        "/sse",
        "/x?y#",
        "/../elsewhere",
        "?",
        "?/sse",
        "#",
        "#/mcp",
        "@evil.test",
        ":80/x",
        "\\sse",
        "%2fsse",
        "%00",
        "%23",
        ",evil.test",
        ";x",
        "'",
        "\"",
        "[",
        "{",
        "|",
    ];
    let mut tried = 0;
    for base in [AUTHORITY, "localhost"] {
        for end in ends {
            let host = format!("{base}{end}");
            assert_eq!(statuses(&client, HOST, &[&host]).await, [403; 8], "{host}");
            tried += 1;
        }
        // Other spellings of the host are equal.
        let host = base.to_uppercase();
        assert_eq!(statuses(&client, HOST, &[&host]).await, plain, "{host}");
    }
    assert!(tried >= 40);
    assert_eq!(world.requests(), before);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s11_a_request_from_another_origin_is_forbidden_on_every_route() {
    let world = World::start(hub(MODERN_HTTP), &with_pair("")).await;
    let before = world.requests();
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let client = world.client(side).await;
        for origin in STRANGE_ORIGINS {
            assert_eq!(statuses(&client, ORIGIN, &[origin]).await, [403; 8], "{side}: {origin}");
        }
        let twice = ["http://localhost:8642", "http://evil.test"];
        assert_eq!(statuses(&client, ORIGIN, &twice).await, [403; 8], "{side}");
        assert_eq!(client.prompts().await.len(), 2);
    }
    assert_eq!(world.requests(), before);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn loopback_names_are_good_on_a_loopback_address() {
    let world = World::start(hub(MODERN_HTTP), &with_pair("")).await;
    let client = world.client(MODERN_HTTP).await;
    for host in ["127.0.0.1:8642", "localhost:8642", "LOCALHOST", "[::1]:8642", "localhost"] {
        let found = statuses(&client, HOST, &[host]).await;
        assert!(!found.contains(&403), "{host}: {found:?}");
    }
    for origin in ["http://localhost:8642", "http://127.0.0.1:8642", "http://[::1]:8642"] {
        let found = statuses(&client, ORIGIN, &[origin]).await;
        assert!(!found.contains(&403), "{origin}: {found:?}");
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn further_hosts_and_origins_are_good_where_they_are_named() {
    let config = r#"
        [server]
        allowed_hosts = ["mcp.example.com"]
        allowed_origins = ["https://app.example.com"]
    "#;
    let world = World::start(hub(MODERN_HTTP), &with_pair(config)).await;
    let client = world.client(MODERN_HTTP).await;
    assert!(!statuses(&client, HOST, &["mcp.example.com"]).await.contains(&403));
    assert!(!statuses(&client, ORIGIN, &["https://app.example.com"]).await.contains(&403));
    for origin in ["http://app.example.com", "https://app.example.com:444", "https://example.com"] {
        assert_eq!(statuses(&client, ORIGIN, &[origin]).await, [403; 8], "{origin}");
    }
    drop(client);
    world.close().await;
}
