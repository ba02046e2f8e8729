//! Tests of the modern era over HTTP.

use super::http::*;
use super::*;

#[tokio::test(start_paused = true)]
async fn a_modern_request_must_say_the_same_in_body_and_headers() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let call = modern("tools/call", r#""name":"old__echo""#);
    for (from, to, expected) in [
        ("MCP-Protocol-Version: 2026-07-28\r\n", "", (400, -32020)),
        ("MCP-Protocol-Version: 2026-07-28", "MCP-Protocol-Version: 2025-11-25", (400, -32020)),
        ("Mcp-Method: tools/call\r\n", "", (400, -32020)),
        ("Mcp-Method: tools/call", "mcp-method: Tools/call", (400, -32020)),
        ("Mcp-Name: old__echo\r\n", "", (400, -32020)),
        ("Mcp-Name: old__echo", "Mcp-Name: old__secret", (400, -32020)),
        ("Mcp-Name: old__echo", "Mcp-Name: =?base64?b2xk?=", (400, -32020)),
        (
            "io.modelcontextprotocol/protocolVersion",
            "io.modelcontextprotocol/protocolVersio_",
            (400, -32602),
        ),
        (
            "io.modelcontextprotocol/clientCapabilities",
            "io.modelcontextprotocol/clientCapabilitie_",
            (400, -32602),
        ),
        ("clientCapabilities\":{}", "clientCapabilities\":[]", (400, -32602)),
        ("2026-07-28", "1900-01-01", (400, -32022)),
    ] {
        let changed = call.replace(from, to);
        assert_ne!(changed, call);
        assert_eq!(client.ask(changed).await.refusal(), expected, "{from} -> {to:?}");
    }
    let encoded = call.replace("Mcp-Name: old__echo", "mcp-name: =?base64?b2xkX19lY2hv?=");
    assert_eq!(client.ask(encoded).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn an_unsupported_version_is_told_with_the_list_that_discover_gives() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let discovered = client.ask(modern("server/discover", "")).await.json();
    let refused = client.ask(modern("tools/list", "").replace("2026-07-28", "2025-11-25")).await;
    let data = &refused.json()["error"]["data"];
    assert_eq!(data["requested"], "2025-11-25");
    assert_eq!(data["supported"], discovered["result"]["supportedVersions"]);
    assert_eq!(data["supported"].as_array().map(Vec::len), Some(5));
    let result = &discovered["result"];
    assert_eq!(result["capabilities"]["tools"]["listChanged"], true);
    assert_eq!(result["capabilities"]["completions"], serde_json::json!({}));
    assert_eq!(
        (&result["resultType"], &result["cacheScope"]),
        (&"complete".into(), &"private".into())
    );
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "weir");
}

#[tokio::test(start_paused = true)]
async fn removed_and_unknown_methods_are_not_found() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/get",
        "nonsense",
    ] {
        let response = client.ask(modern(method, "")).await;
        assert_eq!(response.refusal(), (404, -32601), "{method}");
    }
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/anything"}"#;
    let version = "MCP-Protocol-Version: 2026-07-28\r\n";
    assert_eq!(client.ask(post(version, notification)).await.status, 202);
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    assert_eq!(client.ask(post(version, answer)).await.status, 400);
    assert_eq!(client.ask(post(version, &format!("[{notification}]"))).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn a_modern_client_hears_modern_results_of_either_upstream() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let list = client.ask(modern("tools/list", "")).await.json();
    assert_eq!(list["result"]["tools"][0]["name"], "new__ask");
    assert_eq!(list["result"]["resultType"], "complete");
    assert_eq!(list["result"]["cacheScope"], "public");
    assert!(list["result"]["ttlMs"].as_u64().is_some());
    let read = client.ask(modern("resources/read", r#""uri":"file:///a""#)).await.json();
    assert_eq!(read["result"]["resultType"], "complete");
    assert_eq!(
        (&read["result"]["ttlMs"], &read["result"]["cacheScope"]),
        (&0.into(), &"private".into())
    );
    let asked = client.ask(modern("tools/call", r#""name":"new__ask""#)).await.json();
    assert_eq!(asked["result"]["resultType"], "input_required");
    let session = modern("tools/list", "").replacen("\r\n", "\r\nMcp-Session-Id: whatever\r\n", 1);
    let ignored = client.ask(session).await;
    assert_eq!((ignored.status, ignored.header("mcp-session-id")), (200, None));
}

#[tokio::test(start_paused = true)]
async fn denied_and_unknown_are_the_same_answer_in_either_era() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let key =
        |request: String| request.replacen("\r\n", "\r\nAuthorization: Bearer ann-key\r\n", 1);
    let opened = client.ask(key(post("", &OPEN.replace("VERSION", "2025-11-25")))).await;
    let session = session_of(&opened).to_owned();
    for (method, denied, unknown, codes) in [
        ("tools/call", r#""name":"old__secret""#, r#""name":"old__sicret""#, [-32602, -32602]),
        (
            "resources/read",
            r#""uri":"file:///secret""#,
            r#""uri":"file:///sicret""#,
            [-32602, -32002],
        ),
    ] {
        let [new_denied, new_unknown] = [denied, unknown].map(|params| key(modern(method, params)));
        let [old_denied, old_unknown] =
            [denied, unknown].map(|params| key(legacy(&session, method, &format!("{{{params}}}"))));
        let requests = [(new_denied, new_unknown), (old_denied, old_unknown)];
        for ((denied, unknown), code) in requests.into_iter().zip(codes) {
            let denied = client.ask(denied).await;
            let unknown = client.ask(unknown).await;
            assert_eq!(denied.refusal(), (200, code), "{method}");
            assert_eq!(denied.body.replace("secret", "sicret"), unknown.body);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn progress_comes_before_the_answer_under_the_clients_own_token() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let session = open(&mut client, "2025-11-25").await;
    for upstream in ["new", "old"] {
        let params = format!(r#""name":"{upstream}__progress""#);
        let with_token = modern("tools/call", &params)
            .replace("\"_meta\":{", "\"_meta\":{\"progressToken\":\"t\",");
        let with_token = with_length(&with_token);
        let plain = legacy(
            &session,
            "tools/call",
            &format!(r#"{{{params},"_meta":{{"progressToken":7}}}}"#),
        );
        for (request, token) in [(with_token, Value::from("t")), (plain, Value::from(7))] {
            client.write(request).await;
            let head = client.head().await;
            assert_eq!(head.header("content-type"), Some("text/event-stream"));
            assert_eq!(head.header("x-accel-buffering"), Some("no"));
            let mut events = vec![client.event().await];
            world.script.go.send(()).expect("a call waits");
            events.extend([client.event().await, client.event().await]);
            client.read_to("0\r\n\r\n").await;
            assert_eq!(events[0]["params"]["progressToken"], token);
            assert_eq!(events[1]["params"]["progress"], 2);
            assert_eq!(text_of(&events[2]), "went");
        }
        let without = client.ask(modern("tools/call", &params)).await;
        assert_eq!(without.header("content-type"), Some("application/json"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_modern_client_that_leaves_cancels_even_behind_a_pipelined_byte() {
    let world = TestGateway::start().await;
    let mut waiting = world.script.waiting.subscribe();
    let mut cancelled = world.script.cancelled.subscribe();
    for (count, ahead) in [(1, ""), (2, "POST")] {
        let mut client = world.connect();
        client.write(modern("tools/call", r#""name":"old__wait""#) + ahead).await;
        waiting.wait_for(|waiting| *waiting == count).await.expect("open");
        drop(client);
        cancelled.wait_for(|cancelled| *cancelled == count).await.expect("open");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listen_is_acknowledged_hears_what_it_asked_for_and_ends_with_a_result() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let filter = r#""notifications":{"toolsListChanged":true,"resourcesListChanged":false,"resourceSubscriptions":["file:///a"]}"#;
    let mut deaf = world.connect();
    deaf.write(modern("subscriptions/listen", r#""notifications":{"promptsListChanged":true}"#))
        .await;
    deaf.event().await;
    client.write(modern("subscriptions/listen", filter)).await;
    let key = "io.modelcontextprotocol/subscriptionId";
    let acknowledged = client.event().await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(
        acknowledged["params"]["notifications"],
        serde_json::json!({"toolsListChanged": true})
    );
    assert_eq!(acknowledged["params"]["_meta"][key], 1);

    world.script.more_tools.send_modify(|count| *count += 1);
    let changed = client.event().await;
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(changed["params"]["_meta"][key], 1);
    client.read_to(": keep-alive").await;

    world.stop.cancel();
    let ended = client.event().await;
    assert_eq!((&ended["id"], &ended["result"]["resultType"]), (&1.into(), &"complete".into()));
    assert_eq!(ended["result"]["_meta"][key], 1);
    // The other stream received nothing in between.
    assert_eq!(deaf.event().await["id"], 1);
}

#[tokio::test(start_paused = true)]
async fn clients_without_credentials_have_a_bounded_number_of_listens_together() {
    let world = TestGateway::start().await;
    let request = modern("subscriptions/listen", r#""notifications":{}"#);
    let mut open = Vec::new();
    for _ in 0..8 * 16 {
        let mut client = world.connect();
        client.write(&request).await;
        client.event().await;
        open.push(client);
    }
    let refused = world.connect().ask(&request).await;
    assert_eq!((refused.refusal(), refused.header("retry-after")), ((429, 4290), Some("1")));
    assert_eq!(refused.json()["error"]["data"]["retryAfterMs"], 1_000);
    let missing = world.connect().ask(modern("subscriptions/listen", "")).await;
    assert_eq!(missing.refusal(), (200, -32602));
}
