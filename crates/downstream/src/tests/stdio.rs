//! Tests over standard input and output.

use super::*;

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

fn modern(id: &str, method: &str, params: &str) -> String {
    let comma = if params.is_empty() { "" } else { "," };
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}{comma}{META}}}}}"#
    ) + "\n"
}

fn legacy(id: &str, method: &str, params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n")
}

fn notification(method: &str, params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{params}}}\n")
}

async fn open(client: &mut TestClient, version: &str) {
    let params = format!(r#"{{"protocolVersion":"{version}","capabilities":{{}}}}"#);
    let opened = client.say(&legacy("0", "initialize", &params)).await;
    assert_eq!(opened["result"]["protocolVersion"], version);
    client.write(notification("notifications/initialized", "{}")).await;
}

#[tokio::test(start_paused = true)]
async fn both_eras_are_served_on_one_stream() {
    let world = TestGateway::start().await;
    let mut client = world.pipe();
    let discovered = client.say(&modern("\"d\"", "server/discover", "")).await;
    assert_eq!(discovered["id"], "d");
    open(&mut client, "2025-11-25").await;
    let listed = client.say(&modern("1", "tools/list", "")).await;
    assert_eq!(listed["result"]["resultType"], "complete");
    let listed = client.say(&legacy("\"1\"", "tools/list", "{}")).await;
    assert_eq!((&listed["id"], listed["result"].get("resultType")), (&"1".into(), None));
}

#[tokio::test(start_paused = true)]
async fn after_a_bad_line_the_next_is_served() {
    let world = TestGateway::with(Settings { max_body: 1_000, ..Settings::default() }).await;
    let mut client = world.pipe();
    let long = " ".repeat(2_000) + "\n";
    let old = modern("1", "tools/list", "").replace("2026-07-28", "2025-11-25");
    for (line, code) in [
        ("{\n", -32700),
        ("7\n", -32600),
        ("[]\n", -32600),
        (&long, 5130),
        (&legacy("1", "tools/list", "{}"), -32600),
        (&legacy("1", "server/discover", "{}"), -32602),
        (&old, -32022),
        (&modern("1", "ping", ""), -32601),
        (&modern("1", "initialize", ""), -32601),
        (&modern("1", "nonsense", ""), -32601),
    ] {
        assert_eq!(client.say(line).await["error"]["code"], code, "{line}");
    }
    let pong = client.say(&legacy("7", "ping", "{}")).await;
    assert_eq!(pong, serde_json::json!({"jsonrpc":"2.0","id":7,"result":{}}));
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_refusals_is_read_by_a_client_that_reads() {
    let world = TestGateway::start().await;
    let mut client = world.pipe();
    client.write(legacy("1", "ping", "{}").repeat(1_000)).await;
    for _ in 0..1_000 {
        assert_eq!(client.line().await["id"], 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asks_on_and_reads_nothing_is_hung_up_on() {
    let world = TestGateway::start().await;
    for opened in [false, true] {
        let mut client = world.pipe();
        if opened {
            open(&mut client, "2025-11-25").await;
        }
        // No faster than the gateway responds, or the test would not be about its responses.
        let burst: String = (0..500).map(|id| legacy(&id.to_string(), "ping", "{}")).collect();
        let mut bursts = 0;
        while client.io.write_all(burst.as_bytes()).await.is_ok() {
            tokio::time::advance(Duration::from_millis(1)).await;
            bursts += 1;
            assert!(bursts < 1_000, "what is not read is not bounded");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_by_id_ends_a_request_of_either_era_without_an_answer() {
    let world = TestGateway::start().await;
    let mut waiting = world.script.waiting.subscribe();
    let mut cancelled = world.script.cancelled.subscribe();
    let mut client = world.pipe();
    open(&mut client, "2025-11-25").await;
    let requests = [
        modern("1", "tools/call", r#""name":"old__wait""#),
        legacy("1", "tools/call", r#"{"name":"old__wait"}"#),
    ];
    for (count, request) in (1..).zip(requests) {
        client.write(request).await;
        waiting.wait_for(|waiting| *waiting == count).await.expect("open");
        let taken = client.say(&legacy("1", "ping", "{}")).await;
        assert_eq!(taken["error"]["code"], -32600, "the id is in use");
        client.write(notification("notifications/cancelled", r#"{"requestId":1}"#)).await;
        cancelled.wait_for(|cancelled| *cancelled == count).await.expect("open");
        let next = client.say(&legacy("2", "ping", "{}")).await;
        assert_eq!(next["id"], 2, "nothing was said of the cancelled one");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_input_cancels_what_is_open_and_closes_the_output() {
    let world = TestGateway::start().await;
    let mut waiting = world.script.waiting.subscribe();
    let mut cancelled = world.script.cancelled.subscribe();
    let mut client = world.pipe();
    client.write(modern("1", "tools/call", r#""name":"old__wait""#)).await;
    waiting.wait_for(|waiting| *waiting == 1).await.expect("open");
    client.write(modern("2", "tools/list", "")).await;
    client.io.shutdown().await.expect("open");
    assert_eq!(client.line().await["id"], 2, "what needs no waiting is still answered");
    assert!(client.is_closed().await);
    cancelled.wait_for(|cancelled| *cancelled == 1).await.expect("open");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_soon_after_the_end_of_the_input_is_answered() {
    let world = TestGateway::start().await;
    let mut waiting = world.script.waiting.subscribe();
    for (count, is_legacy) in [(1, false), (2, true)] {
        let mut client = world.pipe();
        let call = match is_legacy {
            false => modern("1", "tools/call", r#""name":"old__wait""#),
            true => {
                open(&mut client, "2025-11-25").await;
                legacy("1", "tools/call", r#"{"name":"old__wait"}"#)
            }
        };
        client.write(call).await;
        waiting.wait_for(|waiting| *waiting == count).await.expect("open");
        client.io.shutdown().await.expect("open");
        tokio::time::advance(Duration::from_secs(1)).await;
        let _ = world.script.go.send(());
        assert_eq!(client.line().await["id"], 1);
        assert!(client.is_closed().await);
    }
}

#[tokio::test(start_paused = true)]
async fn changes_are_told_to_an_initialized_client_and_to_each_listen() {
    let world = TestGateway::start().await;
    let mut client = world.pipe();
    let filter = r#""notifications":{"toolsListChanged":true}"#;
    let acknowledged = client.say(&modern("\"l\"", "subscriptions/listen", filter)).await;
    let key = "io.modelcontextprotocol/subscriptionId";
    assert_eq!(acknowledged["params"]["_meta"][key], "l");
    world.script.more_tools.send_modify(|count| *count += 1);
    let changed = client.line().await;
    assert_eq!(changed["params"]["_meta"][key], "l");

    client.write(notification("notifications/cancelled", r#"{"requestId":"l"}"#)).await;
    open(&mut client, "2025-06-18").await;
    world.script.more_tools.send_modify(|count| *count += 1);
    let changed = client.line().await;
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(changed["params"], serde_json::json!({}));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_cancels_the_listens_of_a_shared_stream() {
    let world = TestGateway::start().await;
    let mut client = world.pipe();
    client.say(&modern("5", "subscriptions/listen", r#""notifications":{}"#)).await;
    world.stop.cancel();
    let ended = client.line().await;
    assert_eq!(ended["method"], "notifications/cancelled");
    assert_eq!(ended["params"], serde_json::json!({"requestId": 5}));
    assert!(client.is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn progress_and_batches_come_on_lines() {
    let world = TestGateway::start().await;
    let mut client = world.pipe();
    open(&mut client, "2025-03-26").await;
    let params = r#"{"name":"new__progress","_meta":{"progressToken":"t"}}"#;
    client.write(legacy("3", "tools/call", params)).await;
    for progress in [1, 2] {
        let note = client.line().await;
        let _ = world.script.go.send(());
        assert_eq!(
            (&note["params"]["progressToken"], &note["params"]["progress"]),
            (&"t".into(), &progress.into())
        );
    }
    assert_eq!(client.line().await["id"], 3);
    let batch =
        format!("[{},{}]\n", legacy("4", "ping", "{}").trim(), legacy("5", "ping", "{}").trim());
    assert_eq!(client.say(&batch).await.as_array().map(Vec::len), Some(2));
}
