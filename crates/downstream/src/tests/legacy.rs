//! Tests of the legacy era over HTTP.

use std::time::Duration;

use super::http::*;
use super::*;

#[tokio::test(start_paused = true)]
async fn the_version_is_negotiated() {
    let world = TestGateway::start().await;
    for (requested, expected) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1900-01-01", "2025-11-25"),
    ] {
        // The version header of a client that prefers a newer revision decides nothing here.
        let request =
            post("MCP-Protocol-Version: 2026-07-28\r\n", &OPEN.replace("VERSION", requested));
        let response = world.connect().ask(request).await;
        let result = &response.json()["result"];
        assert_eq!(result["protocolVersion"], expected);
        assert_eq!(result["serverInfo"]["name"], "weir");
        assert_eq!(result["capabilities"]["prompts"]["listChanged"], true);
        assert_eq!(result["capabilities"].get("completions").is_some(), expected >= "2025-03-26");
        assert!((43..400).contains(&session_of(&response).len()), "256 bits and more");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_client_says_of_itself_has_a_bound_since_it_is_kept() {
    let world = TestGateway::start().await;
    for (bytes, status) in [(60 << 10, 200), (70 << 10, 400)] {
        let name = format!("\"name\":\"{}", "x".repeat(bytes));
        let request = OPEN.replace("VERSION", "2025-11-25").replacen("\"name\":\"", &name, 1);
        let response = world.connect().ask(post("", &request)).await;
        let said = response.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            said.contains("`clientInfo` may have at most 65536 bytes"),
            status != 200,
            "{said}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_is_needed_and_good_for_its_owner_until_its_end() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let session = open(&mut client, "2025-11-25").await;
    let ping = legacy(&session, "ping", "{}");
    assert_eq!(client.ask(&ping).await.json()["result"], serde_json::json!({}));
    let foreign = ping.replacen("\r\n", "\r\nAuthorization: Bearer ann-key\r\n", 1);
    assert_eq!(client.ask(foreign).await.status, 404);
    assert_eq!(client.ask(legacy("unknown", "ping", "{}")).await.status, 404);
    let delete =
        format!("DELETE /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\n\r\n");
    assert_eq!(client.ask(delete).await.status, 204);
    assert_eq!(client.ask(&ping).await.status, 404);
    assert_eq!(world.state_cell.now().sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_and_the_oldest_of_too_many_leave_the_table_and_are_rebuilt() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let first = open(&mut client, "2025-11-25").await;
    tokio::time::advance(Duration::from_secs(29 * 60)).await;
    let mut client = world.connect();
    assert_eq!(client.ask(legacy(&first, "ping", "{}")).await.status, 200);
    tokio::time::advance(Duration::from_secs(30 * 60)).await;
    let mut client = world.connect();
    assert_eq!(client.ask(legacy(&first, "ping", "{}")).await.status, 200);
    assert_eq!(world.state_cell.now().sessions(), 1);

    let oldest = open(&mut client, "2025-11-25").await;
    // Without credentials, sixteen clients may share the principal.
    for _ in 0..16 * 32 {
        tokio::time::advance(Duration::from_millis(1)).await;
        open(&mut client, "2025-11-25").await;
    }
    assert_eq!(world.state_cell.now().sessions(), 16 * 32);
    assert_eq!(client.ask(legacy(&oldest, "ping", "{}")).await.status, 200);
    assert_eq!(world.state_cell.now().sessions(), 16 * 32);
}

#[tokio::test(start_paused = true)]
async fn the_version_header_is_checked_in_the_revisions_that_have_it() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    for (version, expected) in
        [("2024-11-05", 200), ("2025-03-26", 200), ("2025-06-18", 400), ("2025-11-25", 400)]
    {
        let session = open(&mut client, version).await;
        let ping = legacy(&session, "ping", "{}");
        let with = |value: &str| {
            ping.replacen("\r\n", &format!("\r\nMCP-Protocol-Version: {value}\r\n"), 1)
        };
        assert_eq!(client.ask(with("nonsense")).await.status, expected, "{version}");
        assert_eq!(client.ask(with(version)).await.status, 200, "{version}");
        assert_eq!(client.ask(ping).await.status, 200, "{version}");
    }
}

#[tokio::test(start_paused = true)]
async fn legacy_answers_are_plain_and_their_errors_are_no_http_errors() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = open(&mut client, version).await;
        let list = client.ask(legacy(&session, "tools/list", "{}")).await.json();
        assert_eq!(list["result"].as_object().map(|result| result.len()), Some(1), "{list}");
        for method in ["logging/setLevel", "resources/subscribe", "tasks/list", "nonsense"] {
            let response = client.ask(legacy(&session, method, "{}")).await;
            assert_eq!(response.refusal(), (200, -32601), "{method}");
        }
        let bad = client.ask(legacy(&session, "prompts/list", r#"{"cursor":"x"}"#)).await;
        assert_eq!(bad.refusal(), (200, -32602));
        let asked = client.ask(legacy(&session, "tools/call", r#"{"name":"new__ask"}"#)).await;
        assert_eq!(asked.refusal(), (200, -32603));
        let got = client.ask(legacy(&session, "prompts/get", r#"{"name":"new__hello"}"#)).await;
        assert_eq!(got.json()["result"]["messages"], serde_json::json!([]));
        let reference = r#"{"ref":{"type":"ref/prompt","name":"new__hello"},"argument":{}}"#;
        let completed = client.ask(legacy(&session, "completion/complete", reference)).await;
        assert_eq!(completed.json()["result"]["completion"]["values"], serde_json::json!([]));
    }
}

#[tokio::test(start_paused = true)]
async fn batches_are_served_in_the_revisions_that_have_them() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let note = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let batch = format!(
        r#"[{{"jsonrpc":"2.0","id":1,"method":"ping"}},{note},7,{{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{{"name":"old__echo"}}}}]"#
    );
    for (version, has_batches) in
        [("2024-11-05", true), ("2025-03-26", true), ("2025-06-18", false), ("2025-11-25", false)]
    {
        let session = open(&mut client, version).await;
        let header = format!("Mcp-Session-Id: {session}\r\n");
        let response = client.ask(post(&header, &batch)).await;
        if !has_batches {
            assert_eq!(response.refusal(), (400, -32600), "{version}");
            continue;
        }
        let answers = response.json();
        let answers = answers.as_array().expect("an array");
        let ids: Vec<_> = answers.iter().map(|answer| &answer["id"]).collect();
        assert_eq!(answers.len(), 3);
        for id in [Value::from(1), Value::from("x"), Value::Null] {
            assert!(ids.contains(&&id), "{answers:?}");
        }
        let notified = client.ask(post(&header, &format!("[{note}]"))).await;
        assert_eq!((notified.status, notified.body.as_str()), (202, ""));
        assert_eq!(client.ask(post(&header, "[]")).await.refusal(), (400, -32600));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_detaches_and_a_cancel_or_the_sessions_end_cancels() {
    let world = TestGateway::start().await;
    let mut waiting = world.script.waiting.subscribe();
    let mut cancelled = world.script.cancelled.subscribe();
    let mut other = world.connect();
    let session = open(&mut other, "2025-11-25").await;
    let wait = legacy(&session, "tools/call", r#"{"name":"old__wait"}"#);

    let mut lost = world.connect();
    lost.write(&wait).await;
    waiting.wait_for(|waiting| *waiting == 1).await.expect("open");
    drop(lost);
    // The id is in use as long as the call runs, so a conflict shows that it runs.
    assert_eq!(other.ask(legacy(&session, "ping", "{}")).await.refusal(), (200, -32600));
    assert_eq!(*cancelled.borrow(), 0);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    let header = format!("Mcp-Session-Id: {session}\r\n");
    assert_eq!(other.ask(post(&header, cancel)).await.status, 202);
    cancelled.wait_for(|cancelled| *cancelled == 1).await.expect("open");

    let mut waits = world.connect();
    waits.write(&wait).await;
    waiting.wait_for(|waiting| *waiting == 2).await.expect("open");
    assert_eq!(other.ask(post(&header, cancel)).await.status, 202);
    let ended = waits.response().await;
    assert_eq!((ended.status, ended.body.as_str()), (200, ""), "a cancelled request has no answer");

    waits.write(&wait).await;
    waiting.wait_for(|waiting| *waiting == 3).await.expect("open");
    let delete = format!("DELETE /mcp HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
    assert_eq!(other.ask(delete).await.status, 204);
    cancelled.wait_for(|cancelled| *cancelled == 3).await.expect("open");
}

#[tokio::test(start_paused = true)]
async fn changes_go_out_once_on_the_newest_stream_of_a_session() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let session = open(&mut client, "2025-11-25").await;
    // A change between two streams is sent on the next one.
    world.script.more_tools.send_modify(|count| *count += 1);
    let get = format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: {session}\r\n\r\n"
    );
    let mut older = world.connect();
    older.write(&get).await;
    assert_eq!(older.head().await.header("content-type"), Some("text/event-stream"));
    assert_eq!(older.event().await["method"], "notifications/tools/list_changed");

    let mut newer = world.connect();
    newer.write(&get).await;
    newer.head().await;
    older.read_to("0\r\n\r\n").await;
    world.script.more_tools.send_modify(|count| *count += 1);
    let notified = newer.event().await;
    assert_eq!(notified["method"], "notifications/tools/list_changed");
    world.stop.cancel();
    let rest = newer.read_to("0\r\n\r\n").await;
    assert!(!rest.contains("list_changed"), "{rest}");
}
