//! Invalid input from clients: a clear error, and the next request on the same connection works.

use hyper::{HeaderMap, Method};
use weir_mcp::kind::Kind;
use weir_mcp::revision::Revision;

use crate::cell::{LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO, SIDES, Side, Transport};
use crate::client::{Client, Http, named, object, set, string};
use crate::world::{World, everywhere, hub};

/// Bodies that are not a message, and the expected error code.
fn no_messages() -> Vec<(Vec<u8>, i64)> {
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"x":{}{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let texts = [
        ("{", -32700),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping""#, -32700),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"} x"#, -32700),
        ("nonsense", -32700),
        ("7", -32600),
        (r#""text""#, -32600),
        ("null", -32600),
        ("{}", -32600),
        (&deep, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32600),
        (r#"{"id":1,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#, -32600),
    ];
    let texts = texts.into_iter().map(|(text, code)| (text.as_bytes().to_vec(), code));
    let bytes = (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}".to_vec(), -32700);
    texts.chain([bytes]).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_is_refused_and_the_connection_lives_on() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let client = world.client(side).await;
        let http = client.http();
        for (body, code) in no_messages() {
            let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
            let reply = http.post(body, &http.headers("ping", "{}")).whole().await;
            assert_eq!((reply.status, reply.code()), (400, code), "{side}: {shown}");
            assert_eq!(client.prompts().await.len(), 2, "{side}: after {shown}");
        }
        assert_eq!(http.connections(), 1, "{side}");
    }
    for side in [MODERN_STDIO, LEGACY_STDIO] {
        let client = world.client(side).await;
        for (line, code) in no_messages() {
            let shown = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
            client.stdio().send(&line);
            let answer = object(&string(client.stdio().next_unrouted().await.expect("an answer")));
            let error = answer.get_object("error").expect("an error");
            assert_eq!(error.get("code"), Some(&*code.to_string()), "{side}: {shown}");
            assert_eq!(client.prompts().await.len(), 2, "{side}: after {shown}");
        }
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_method_is_not_found() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let before = world.requests();
        let mut methods = vec!["nonsense", "", "prompts/delete", "tasks/get"];
        if cell.client.is_modern() {
            methods.extend(["ping", "logging/setLevel", "resources/subscribe", "initialize"]);
        }
        for method in methods {
            let reply = client.request(method, "{}").await;
            assert_eq!(reply.code(), -32601, "{method}: {reply:?}");
            let expected = if cell.client == MODERN_HTTP { 404 } else { 200 };
            assert_eq!(reply.status, expected, "{method}: {reply:?}");
        }
        assert_eq!(world.requests(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn parameters_that_are_none_are_refused() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let before = world.requests();
        for (method, params) in [
            ("prompts/get", "{}"),
            ("prompts/get", r#"{"name":7}"#),
            ("prompts/get", r#"{"name":null}"#),
            ("tools/call", r#"{"uri":"x"}"#),
            ("resources/read", r#"{"name":"x"}"#),
            ("completion/complete", r#"{"argument":{}}"#),
            ("completion/complete", r#"{"ref":{"type":"ref/tool","name":"hub__a"}}"#),
            ("prompts/list", r#"{"cursor":7}"#),
        ] {
            let reply = client.request(method, params).await;
            assert_eq!(reply.code(), -32602, "{method} {params}: {reply:?}");
        }
        assert_eq!(world.requests(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_is_unknown_in_each_eras_words() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let reply = client.get_prompt("x").await;
        assert_eq!(reply.code(), -32602);
        assert!(reply.error().contains("Unknown prompt: x"), "{reply:?}");
        assert!(client.call_tool("x").await.error().contains("Unknown tool: x"));
        let reply = client.read("nowhere:x").await;
        let expected = if cell.client.is_modern() { -32602 } else { -32002 };
        assert_eq!(reply.code(), expected, "{reply:?}");
        // Neither the upstream's own name nor another kind's list reaches the item.
        assert_eq!(client.get_prompt("a").await.code(), -32602);
        assert_eq!(client.read("hub__a").await.code(), expected);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn s20_a_cursor_that_was_not_handed_out_is_refused() {
    everywhere("[protocol]\npage_size = 1", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let page = client.page(Kind::Prompt, None).await;
        let good = page.get_string("nextCursor").expect("a second page").into_owned();
        let long = "A".repeat(5_000);
        let cut = &good[..good.len() - 1];
        for bad in ["", "nonsense", cut, &format!("{good}A"), "\u{0}", "é", &long, "1", "e30"] {
            let params = format!(r#"{{"cursor":{}}}"#, string(weir_base::json::quote(bad)));
            let reply = client.request("prompts/list", &params).await;
            assert_eq!(reply.code(), -32602, "{bad:?}: {reply:?}");
        }
        let params = format!(r#"{{"cursor":"{good}"}}"#);
        let reply = client.request("tools/list", &params).await;
        assert_eq!(reply.code(), -32602, "another kind's: {reply:?}");
        assert!(client.request("prompts/list", &params).await.outcome.is_ok());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn batches_are_refused_where_they_were_removed() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let one = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#;
    let batches = ["[]".to_owned(), format!("[{one}]"), format!("[{one},{one}]")];
    let sides = [
        MODERN_HTTP,
        LEGACY_HTTP,
        Side::new(Revision::V2025_06_18, Transport::Http),
        MODERN_STDIO,
        LEGACY_STDIO,
        Side::new(Revision::V2025_06_18, Transport::Stdio),
    ];
    for side in sides {
        let client = world.client(side).await;
        for batch in &batches {
            let code = if side.is_http() {
                let http = client.http();
                let headers = http.headers("prompts/list", "{}");
                let reply = http.post(batch.clone(), &headers).whole().await;
                assert_eq!(reply.status, 400, "{side}: {reply:?}");
                reply.code().to_string()
            } else {
                client.stdio().send(batch.as_bytes());
                let answer =
                    object(&string(client.stdio().next_unrouted().await.expect("an answer")));
                let error = answer.get_object("error").expect("an error");
                error.get("code").expect("a code").to_owned()
            };
            assert_eq!(code, "-32600", "{side}: {batch}");
            assert_eq!(client.prompts().await.len(), 2, "{side}");
        }
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_over_the_limit_is_refused() {
    let config = "[server]\nmax_body = \"64KiB\"";
    let world = World::start(hub(MODERN_HTTP), config).await;
    let before = world.requests();
    for side in SIDES {
        let client = world.client(side).await;
        let params = format!(r#"{{"name":"hub__a","arguments":{{"x":"{}"}}}}"#, "x".repeat(70_000));
        if side.is_http() {
            let http = client.http();
            let message =
                weir_mcp::jsonrpc::write_request(&7.into(), "tools/call", params.as_bytes());
            let reply = http.post(message, &http.headers("tools/call", &params)).whole().await;
            assert_eq!(reply.status, 413, "{side}: {reply:?}");
        } else {
            let message =
                weir_mcp::jsonrpc::write_request(&7.into(), "tools/call", params.as_bytes());
            client.stdio().send(&message);
            let answer = object(&string(client.stdio().next_unrouted().await.expect("an answer")));
            assert!(answer.has("error"), "{side}: {answer:?}");
        }
        assert_eq!(client.prompts().await.len(), 2, "{side}");
    }
    assert_eq!(world.requests(), before);
    world.close().await;
}

// === The head of an HTTP request ===

async fn status(http: &Http, method: Method, path: &str, body: &str, headers: &HeaderMap) -> u16 {
    http.send(method, path, body.to_owned(), headers).whole().await.status
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_for_the_endpoint_is_told_so() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let client = world.client(side).await;
        let http = client.http();
        let headers = http.headers("prompts/list", "{}");
        for path in ["/", "/mcp/", "/mcp2", "/other", "//mcp"] {
            assert_eq!(status(http, Method::POST, path, "{}", &headers).await, 404, "{path}");
        }
        for method in [Method::PUT, Method::PATCH, Method::HEAD] {
            assert_eq!(status(http, method.clone(), "/mcp", "", &headers).await, 405, "{method}");
        }
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_of_the_wrong_type_is_refused() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let client = world.client(side).await;
        let http = client.http();
        let params = client.with_request_meta("{}");
        let body =
            string(weir_mcp::jsonrpc::write_request(&7.into(), "prompts/list", params.as_bytes()));
        let changed = |name: &str, value: Option<&str>| {
            let mut headers = http.headers("prompts/list", "{}");
            match value {
                Some(value) => set(&mut headers, name, value),
                None => drop(headers.remove(name)),
            }
            headers
        };
        for wrong in [Some("text/plain"), Some("application/xml"), None] {
            let headers = changed("content-type", wrong);
            let found = status(http, Method::POST, "/mcp", &body, &headers).await;
            assert_eq!(found, 415, "{side}: {wrong:?}");
        }
        for wrong in ["text/html", "image/*"] {
            let headers = changed("accept", Some(wrong));
            let found = status(http, Method::POST, "/mcp", &body, &headers).await;
            assert_eq!(found, 406, "{side}: {wrong}");
        }
        for good in ["application/json; charset=utf-8", "Application/JSON"] {
            let headers = changed("content-type", Some(good));
            let found = status(http, Method::POST, "/mcp", &body, &headers).await;
            assert_eq!(found, 200, "{side}: {good}");
        }
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_head_over_the_limit_is_refused() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(MODERN_HTTP).await;
    let http = client.http();
    let mut headers = http.headers("prompts/list", "{}");
    set(&mut headers, "x-large", &"x".repeat(17 * 1024));
    assert_eq!(status(http, Method::POST, "/mcp", "{}", &headers).await, 431);
    let mut headers = http.headers("prompts/list", "{}");
    for number in 0..120 {
        set(&mut headers, &format!("x-many-{number}"), "x");
    }
    assert_eq!(status(http, Method::POST, "/mcp", "{}", &headers).await, 431);
    assert_eq!(client.prompts().await.len(), 2);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_head_of_8_kib_is_taken_however_small_the_limit() {
    let world = World::start(hub(MODERN_HTTP), "[server]\nmax_head = 1024").await;
    let client = world.client(MODERN_HTTP).await;
    let http = client.http();
    // A head within the limit gets through; the body is then not a message.
    for (bytes, expected) in [(7 * 1024, 400), (9 * 1024, 431)] {
        let mut headers = http.headers("prompts/list", "{}");
        set(&mut headers, "x-large", &"x".repeat(bytes));
        assert_eq!(status(http, Method::POST, "/mcp", "{}", &headers).await, expected);
    }
    drop(client);
    world.close().await;
}

// === The context of a modern request ===

/// Posts a `prompts/get` of `hub__a` with these `_meta` members and headers.
async fn post(client: &Client, inner: &str, changed: &[(&str, Option<&str>)]) -> (u16, i64) {
    let params = format!(r#"{{"name":"hub__a","_meta":{{{inner}}}}}"#);
    let message = weir_mcp::jsonrpc::write_request(&7.into(), "prompts/get", params.as_bytes());
    let mut headers = client.http().headers("prompts/get", &params);
    for (name, value) in changed {
        match value {
            Some(value) => set(&mut headers, name, value),
            None => drop(headers.remove(*name)),
        }
    }
    let reply = client.http().post(message, &headers).whole().await;
    let code = if reply.body.contains("\"error\"") { reply.code() } else { 0 };
    (reply.status, code)
}

const VERSION: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#;
const CAPABILITIES: &str = r#""io.modelcontextprotocol/clientCapabilities":{}"#;

#[tokio::test(start_paused = true)]
async fn a_modern_request_without_its_context_is_refused() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(MODERN_HTTP).await;
    for inner in [
        "",
        VERSION,
        CAPABILITIES,
        &format!(r#"{VERSION},"io.modelcontextprotocol/clientCapabilities":7"#),
        &format!(r#"{CAPABILITIES},"io.modelcontextprotocol/protocolVersion":7"#),
    ] {
        assert_eq!(post(&client, inner, &[]).await, (400, -32602), "{inner}");
    }
    assert_eq!(post(&client, &format!("{VERSION},{CAPABILITIES}"), &[]).await, (200, 0));
    let with_info = format!(r#"{VERSION},{CAPABILITIES},"io.modelcontextprotocol/clientInfo":7"#);
    assert_eq!(
        post(&client, &with_info, &[]).await.0,
        200,
        "nothing depends on who says it is who"
    );
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s14_n15_a_header_that_does_not_say_what_the_body_says_is_refused() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(MODERN_HTTP).await;
    let inner = format!("{VERSION},{CAPABILITIES}");
    let before = world.requests();
    for changed in [
        ("mcp-protocol-version", None),
        ("mcp-protocol-version", Some("2025-11-25")),
        ("mcp-method", None),
        ("mcp-method", Some("prompts/list")),
        ("mcp-method", Some("Prompts/Get")),
        ("mcp-name", None),
        ("mcp-name", Some("hub__b")),
        ("mcp-name", Some("HUB__A")),
        ("mcp-name", Some("=?base64?aHViX19i?=")),
        ("mcp-name", Some("=?base64?aHViX19h")),
        ("mcp-name", Some("=?base64?!!!?=")),
    ] {
        assert_eq!(post(&client, &inner, &[changed]).await, (400, -32020), "{changed:?}");
    }
    assert_eq!(world.requests(), before);
    let encoded = [("mcp-name", Some("=?base64?aHViX19h?="))];
    assert_eq!(post(&client, &inner, &encoded).await, (200, 0));
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_not_served_is_told_which_are() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let client = world.client(side).await;
        let discovered = object(client.request("server/discover", "{}").await.result());
        let supported = discovered.get("supportedVersions").expect("versions").to_owned();
        for requested in ["2099-01-01", "2025-11-25", "nonsense"] {
            let inner = format!(
                r#""io.modelcontextprotocol/protocolVersion":"{requested}",{CAPABILITIES}"#
            );
            let params = format!(r#"{{"_meta":{{{inner}}}}}"#);
            let error = if side.is_http() {
                let http = client.http();
                let message =
                    weir_mcp::jsonrpc::write_request(&7.into(), "prompts/list", params.as_bytes());
                let mut headers = http.headers("prompts/list", "{}");
                set(&mut headers, "mcp-protocol-version", requested);
                let reply = http.post(message, &headers).whole().await;
                assert_eq!(reply.status, 400, "{reply:?}");
                object(&reply.body).get_object("error").expect("an error")
            } else {
                object(client.request("prompts/list", &params).await.error())
            };
            assert_eq!(error.get("code"), Some("-32022"), "{side}: {requested}");
            let data = error.get_object("data").expect("data");
            assert_eq!(data.get("supported"), Some(&*supported), "{side}");
            assert_eq!(data.get_string("requested").as_deref(), Some(requested), "{side}");
        }
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_in_use_is_refused() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    for side in [MODERN_STDIO, LEGACY_STDIO, LEGACY_HTTP] {
        let client = world.client(side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let first = client.start_as(70.into(), "tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        let second = client.start_as(70.into(), "prompts/list", "{}");
        assert_eq!(second.reply().await.code(), -32600, "{side}");
        call.result(r#"{"resultType":"complete","content":[]}"#);
        drop(first);
    }
    world.close().await;
}
