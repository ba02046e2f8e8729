//! The two example servers, driven over real pipes and sockets.
//!
//! Other tests and the demo rely on these servers for the behavior of their eras, so this file
//! tests them on the transport itself, byte for byte where it matters, and with one independent
//! client (rmcp). The gateway takes no part.

#![allow(clippy::disallowed_types, reason = "a test reads what others typed")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "what a test spawns dies with its runtime")]

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
    ErrorData, Implementation, JsonObject, ProtocolVersion, ServerNotification, SubscriptionFilter,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RequestContext, SubscriptionEnd};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Generous, because it only limits how long a broken test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A plain `cargo test` builds the examples first; narrowed to this file it does not.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let example = profile.join("examples").join(name);
    assert!(example.exists(), "missing: cargo build --examples");
    example
}

async fn soon<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(PATIENCE, what).await.expect("the server stays silent")
}

// === The legacy server, line by line ===

struct Pipe {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Pipe {
    fn open() -> Self {
        let mut command = Command::new(example("legacy_stdio"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, stdout }
    }

    async fn initialized(revision: &str) -> Self {
        let mut pipe = Self::open();
        let opened = pipe.round_trip(0, "initialize", initialize(revision)).await;
        assert_eq!(opened["result"]["protocolVersion"], revision);
        pipe.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        pipe
    }

    async fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn line(&mut self) -> String {
        soon(self.stdout.next_line()).await.unwrap().expect("the server closed its output")
    }

    async fn next(&mut self) -> Value {
        serde_json::from_str(&self.line().await).unwrap()
    }

    async fn request(&mut self, id: u64, method: &str, params: Value) {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(&request.to_string()).await;
    }

    async fn round_trip(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.request(id, method, params).await;
        let answer = self.next().await;
        assert_eq!(answer["id"], id);
        answer
    }

    async fn call(&mut self, id: u64, tool: &str, arguments: Value) -> Value {
        let answer = self
            .round_trip(id, "tools/call", json!({ "name": tool, "arguments": arguments }))
            .await;
        answer["result"]["content"][0]["text"].clone()
    }
}

fn initialize(revision: &str) -> Value {
    let client = json!({ "name": "test", "version": "0" });
    json!({ "protocolVersion": revision, "capabilities": {}, "clientInfo": client })
}

#[tokio::test]
async fn a_legacy_server_survives_the_probe_of_the_modern_era() {
    let mut pipe = Pipe::open();
    for id in [1, 2] {
        let probed = pipe.round_trip(id, "server/discover", json!({})).await;
        assert_eq!(probed["error"]["code"], -32601);
    }
    assert_eq!(pipe.round_trip(3, "prompts/list", json!({})).await["error"]["code"], -32600);
    assert_eq!(pipe.round_trip(4, "ping", json!({})).await["result"], json!({}));
    let opened = pipe.round_trip(5, "initialize", initialize("2025-06-18")).await;
    assert_eq!(opened["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(pipe.round_trip(6, "server/discover", json!({})).await["error"]["code"], -32601);
}

#[tokio::test]
async fn a_legacy_server_agrees_on_each_revision_it_knows_and_else_on_its_newest() {
    for (requested, agreed, completions) in [
        ("2024-11-05", "2024-11-05", false),
        ("2025-03-26", "2025-03-26", true),
        ("2025-06-18", "2025-06-18", true),
        ("2025-11-25", "2025-11-25", true),
        ("2026-07-28", "2025-11-25", true),
        ("1999-01-01", "2025-11-25", true),
    ] {
        let opened = Pipe::open().round_trip(1, "initialize", initialize(requested)).await;
        assert_eq!(opened["result"]["protocolVersion"], agreed);
        let capabilities = &opened["result"]["capabilities"];
        assert_eq!(capabilities.get("completions").is_some(), completions, "{requested}");
        assert_eq!(capabilities["prompts"], json!({ "listChanged": true }));
        assert_eq!(capabilities["tools"], json!({}));
    }
}

#[tokio::test]
async fn legacy_lists_come_in_pages_of_three_and_a_foreign_cursor_is_refused() {
    let mut pipe = Pipe::initialized("2025-11-25").await;
    let first = pipe.round_trip(1, "resources/list", json!({})).await["result"].clone();
    let cursor = json!({ "cursor": first["nextCursor"] });
    let second = pipe.round_trip(2, "resources/list", cursor.clone()).await["result"].clone();
    assert_eq!(first["resources"].as_array().unwrap().len(), 3);
    let fourth = json!({ "uri": "note:///4", "name": "note-4", "mimeType": "text/plain" });
    assert_eq!(second, json!({ "resources": [fourth] }));
    for cursor in [json!("nonsense"), json!(""), json!("é"), json!(3), Value::Null] {
        let refused = pipe.round_trip(3, "resources/list", json!({ "cursor": cursor })).await;
        assert_eq!(refused["error"]["code"], -32602, "{cursor}");
    }
    assert_eq!(pipe.round_trip(4, "tools/list", cursor).await["error"]["code"], -32602);
}

#[tokio::test]
async fn what_a_tool_adds_is_listed_and_announced() {
    let mut pipe = Pipe::initialized("2025-11-25").await;
    assert_eq!(pipe.call(1, "add_note", json!({ "text": "Oil the sluice" })).await, "note:///5");
    assert_eq!(pipe.next().await["method"], "notifications/resources/list_changed");
    let read = pipe.round_trip(2, "resources/read", json!({ "uri": "note:///5" })).await;
    assert_eq!(read["result"]["contents"][0]["text"], "Oil the sluice");
    for uri in ["note:///6", "note:///0", "note:///x", "other:///1"] {
        let unknown = pipe.round_trip(3, "resources/read", json!({ "uri": uri })).await;
        assert_eq!(unknown["error"]["code"], -32002);
        assert_eq!(unknown["error"]["data"], json!({ "uri": uri }));
    }
    pipe.call(4, "add_prompt", json!({ "name": "haiku", "text": "Write a haiku" })).await;
    assert_eq!(pipe.next().await["method"], "notifications/prompts/list_changed");
    let got = pipe.round_trip(5, "prompts/get", json!({ "name": "haiku" })).await;
    assert_eq!(got["result"]["messages"][0]["content"]["text"], "Write a haiku");
    let missing = pipe.round_trip(6, "prompts/get", json!({ "name": "summarize-notes" })).await;
    assert_eq!(missing["error"]["code"], -32602);
}

#[tokio::test]
async fn arguments_complete_by_what_was_typed() {
    let mut pipe = Pipe::initialized("2025-11-25").await;
    let prompt = json!({ "type": "ref/prompt", "name": "summarize-notes" });
    let template = json!({ "type": "ref/resource", "uri": "note:///{id}" });
    for (of, argument, typed, values) in [
        (&prompt, "style", "b", json!(["brief", "bullets"])),
        (&prompt, "topic", "", json!([])),
        (&template, "id", "3", json!(["3"])),
    ] {
        let ask = json!({ "ref": of, "argument": { "name": argument, "value": typed } });
        let answer = pipe.round_trip(1, "completion/complete", ask).await;
        assert_eq!(answer["result"]["completion"]["values"], values, "{argument}");
    }
    let unknown = json!({ "type": "ref/prompt", "name": "nope" });
    let ask = json!({ "ref": unknown, "argument": { "name": "a", "value": "" } });
    assert_eq!(pipe.round_trip(2, "completion/complete", ask).await["error"]["code"], -32602);
}

#[tokio::test]
async fn echo_keeps_numbers_as_they_were_written() {
    let mut pipe = Pipe::initialized("2025-11-25").await;
    let odd = r#"{"z":1.10,"a":1e400,"n":123456789012345678901234567890,"m":-0}"#;
    let params = format!(r#"{{"name":"echo","arguments":{odd}}}"#);
    let request = r#"{"jsonrpc":"2.0","id":"e","method":"tools/call","params":"#;
    pipe.send(&format!("{request}{params}}}")).await;
    let line = pipe.line().await;
    assert!(line.contains(&format!(r#""structuredContent":{odd}"#)), "{line}");
    assert!(line.contains(r#""id":"e""#), "{line}");
}

#[tokio::test]
async fn a_legacy_count_reports_each_step_and_a_cancelled_one_is_never_answered() {
    let mut pipe = Pipe::initialized("2025-11-25").await;
    let call = |to: u64, delay_ms: u64| {
        let arguments = json!({ "to": to, "delay_ms": delay_ms });
        json!({ "name": "slow_count", "arguments": arguments, "_meta": { "progressToken": "t" } })
    };
    pipe.request(1, "tools/call", call(2, 0)).await;
    for step in [1, 2] {
        let notification = pipe.next().await;
        assert_eq!(notification["method"], "notifications/progress");
        assert_eq!(
            notification["params"],
            json!({ "progressToken": "t", "progress": step, "total": 2 })
        );
    }
    assert_eq!(pipe.next().await["result"]["content"][0]["text"], "counted to 2");

    pipe.request(2, "tools/call", call(1000, 60_000)).await;
    let cancelled = json!({ "requestId": 2, "reason": "bored" });
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled });
    pipe.send(&cancel.to_string()).await;
    let log = pipe.next().await;
    assert_eq!(log["params"]["data"], json!({ "cancelled": 2, "reason": "bored" }));
    assert_eq!(pipe.call(3, "cancelled_count", json!({})).await, "1");
}

#[tokio::test]
async fn batches_belong_to_one_revision() {
    let batch = json!([
        { "jsonrpc": "2.0", "id": 1, "method": "ping" },
        { "jsonrpc": "2.0", "method": "notifications/whatever" },
        { "jsonrpc": "2.0", "id": 2, "method": "initialize", "params": initialize("2025-03-26") },
    ])
    .to_string();
    let mut pipe = Pipe::initialized("2025-03-26").await;
    pipe.send(&batch).await;
    let mut answers = pipe.next().await.as_array().unwrap().clone();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0]["result"], json!({}));
    assert_eq!(answers[1]["error"]["code"], -32600);

    let mut pipe = Pipe::initialized("2025-06-18").await;
    pipe.send(&batch).await;
    assert_eq!(pipe.next().await["error"]["code"], -32600);
    pipe.send("{nonsense").await;
    assert_eq!(pipe.next().await["error"]["code"], -32700);
}

#[tokio::test]
async fn end_of_input_ends_the_legacy_server_with_success_and_one_line_on_stderr() {
    let mut pipe = Pipe::initialized("2025-11-25").await;
    let endless = json!({ "name": "slow_count", "arguments": { "to": 9, "delay_ms": 60_000 } });
    pipe.request(1, "tools/call", endless).await;
    pipe.request(2, "ping", json!({})).await;
    drop(pipe.stdin.take());
    assert_eq!(pipe.next().await, json!({ "jsonrpc": "2.0", "id": 2, "result": {} }));
    assert!(soon(pipe.child.wait()).await.unwrap().success());
    let mut output = String::new();
    pipe.child.stderr.take().unwrap().read_to_string(&mut output).await.unwrap();
    assert_eq!(output.lines().count(), 1);
}

// === The modern server, request by request ===

struct Shop {
    child: Child,
    address: String,
}

impl Shop {
    async fn open() -> Self {
        let mut command = Command::new(example("modern_http"));
        command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = soon(lines.next_line()).await.unwrap().unwrap();
        let url = line.strip_prefix("listening on http://").unwrap();
        let address = url.strip_suffix("/mcp").unwrap().to_owned();
        Self { child, address }
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Sends on a connection of its own; dropping the response closes it.
    async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        soon(sender.send_request(request)).await.unwrap()
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> (u16, Value) {
        let response = self.send(request).await;
        let status = response.status().as_u16();
        let body = soon(response.into_body().collect()).await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn round_trip(&self, message: &Value) -> (u16, Value) {
        self.exchange(post(message)).await
    }

    async fn result(&self, method: &str, params: Value) -> Value {
        let (status, answer) = self.round_trip(&request(method, params)).await;
        assert_eq!((status, answer.get("error")), (200, None));
        answer["result"].clone()
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let call = json!({ "name": tool, "arguments": arguments });
        self.result("tools/call", call).await["content"][0]["text"].clone()
    }

    async fn events(&self, message: &Value) -> Events {
        let response = self.send(post(message)).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Events { body: response.into_body(), text: String::new() }
    }

    fn terminate(&self) {
        let id = rustix::process::Pid::from_raw(self.child.id().unwrap() as i32).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    }
}

/// Messages of an event stream.
struct Events {
    body: Incoming,
    text: String,
}

impl Events {
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.strip_prefix("data: ").map(str::to_owned);
                self.text = rest.to_owned();
                match data {
                    Some(data) => return Some(serde_json::from_str(&data).unwrap()),
                    None => continue,
                }
            }
            let frame = soon(self.body.frame()).await?.unwrap();
            self.text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    }
}

fn request(method: &str, mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params })
}

fn post(message: &Value) -> Request<Full<Bytes>> {
    let params = &message["params"];
    let version = params["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str();
    let mut request = Request::post("/mcp")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", version.unwrap_or("2026-07-28"))
        .header("mcp-method", message["method"].as_str().unwrap_or_default());
    if let Some(name) = params["name"].as_str().or(params["uri"].as_str()) {
        request = request.header("mcp-name", name);
    }
    request.body(Full::from(message.to_string())).unwrap()
}

/// Like `post`, with one header changed or removed.
fn post_with(message: &Value, header: &str, value: Option<&str>) -> Request<Full<Bytes>> {
    let mut request = post(message);
    request.headers_mut().remove(header);
    if let Some(value) = value {
        let name: hyper::header::HeaderName = header.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn a_modern_server_tells_what_it_is() {
    let result = Shop::open().await.result("server/discover", json!({})).await;
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "modern-catalog");
    assert_eq!((&result["ttlMs"], &result["cacheScope"]), (&json!(60_000), &json!("public")));
    assert_eq!(result["capabilities"]["prompts"], json!({ "listChanged": true }));
    assert_eq!(result["capabilities"]["tools"], json!({}));
}

#[tokio::test]
async fn headers_must_agree_with_the_body() {
    let shop = Shop::open().await;
    let products = json!({ "first": "gauge", "second": "sluice" });
    let get = request("prompts/get", json!({ "name": "compare-products", "arguments": products }));
    for (header, value) in [
        ("mcp-protocol-version", None),
        ("mcp-protocol-version", Some("2025-11-25")),
        ("mcp-method", None),
        ("mcp-method", Some("prompts/list")),
        ("mcp-name", None),
        ("mcp-name", Some("Compare-Products")),
        ("mcp-name", Some("=?base64?Y29tcGFyZS1wcm9kdWN0cw=?=")),
    ] {
        let (status, answer) = shop.exchange(post_with(&get, header, value)).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32020)), "{header} {value:?}");
        assert_eq!(answer["id"], 7);
    }
    let encoded = "=?base64?Y29tcGFyZS1wcm9kdWN0cw==?=";
    let (status, answer) = shop.exchange(post_with(&get, "mcp-name", Some(encoded))).await;
    assert_eq!((status, answer["result"]["messages"].as_array().unwrap().len()), (200, 3));
}

#[tokio::test]
async fn what_a_modern_server_cannot_serve_it_refuses_by_the_book() {
    let shop = Shop::open().await;
    let list = request("prompts/list", json!({}));
    let mut old = list.clone();
    old["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("1900-01-01");
    let (status, answer) = shop.round_trip(&old).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32022)));
    let versions = json!({ "supported": ["2026-07-28"], "requested": "1900-01-01" });
    assert_eq!(answer["error"]["data"], versions);

    for field in ["protocolVersion", "clientCapabilities"] {
        let mut bare = list.clone();
        let meta = bare["params"]["_meta"].as_object_mut().unwrap();
        meta.remove(&format!("io.modelcontextprotocol/{field}"));
        let (status, answer) = shop.round_trip(&bare).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32602)), "{field}");
    }
    let (status, answer) = shop.round_trip(&request("ping", json!({}))).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!(-32601)));
    let (status, answer) = shop.round_trip(&json!([list])).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32600)));
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/whatever" });
    assert_eq!(shop.round_trip(&note).await, (202, Value::Null));

    for method in ["GET", "DELETE"] {
        let mut request = post(&list);
        *request.method_mut() = method.parse().unwrap();
        assert_eq!(shop.exchange(request).await, (405, Value::Null));
    }
}

#[tokio::test]
async fn a_legacy_opening_is_told_which_revision_would_do() {
    let params = initialize("2025-11-25");
    let open = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let bare = post_with(&open, "mcp-protocol-version", None);
    let (status, answer) = Shop::open().await.exchange(bare).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32020)));
    assert!(answer["error"]["message"].as_str().unwrap().contains("2026-07-28"));
}

#[tokio::test]
async fn pages_from_elsewhere_do_not_reach_a_local_server() {
    let shop = Shop::open().await;
    let list = request("prompts/list", json!({}));
    for (origin, status) in [
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://localhost:80.evil.example", 403),
        ("null", 403),
        ("http://localhost:6274", 200),
        ("http://[::1]", 200),
    ] {
        let request = post_with(&list, "origin", Some(origin));
        assert_eq!(shop.exchange(request).await.0, status, "{origin}");
    }
}

#[tokio::test]
async fn modern_pages_resume_after_a_prompt_that_has_since_vanished() {
    let shop = Shop::open().await;
    for name in ["x", "y"] {
        shop.call("add_prompt", json!({ "name": name, "text": "…" })).await;
    }
    let first = shop.result("prompts/list", json!({})).await;
    assert_eq!(first["prompts"][2]["name"], "x");
    shop.call("remove_prompt", json!({ "name": "x" })).await;
    let cursor = json!({ "cursor": first["nextCursor"] });
    let second = shop.result("prompts/list", cursor.clone()).await;
    assert_eq!(second["prompts"], json!([{ "name": "y" }]));
    assert_eq!(second.get("nextCursor"), None);
    let (_, foreign) = shop.round_trip(&request("tools/list", cursor)).await;
    assert_eq!(foreign["error"]["code"], -32602);
}

#[tokio::test]
async fn a_subscription_is_acknowledged_tells_what_was_asked_and_ends_with_a_result() {
    let mut shop = Shop::open().await;
    let subscription = |id: Value| {
        let wanted = json!({ "promptsListChanged": true, "toolsListChanged": true });
        let mut listen = request("subscriptions/listen", json!({ "notifications": wanted }));
        listen["id"] = id;
        listen
    };
    let subscription_id =
        |message: &Value| message["_meta"]["io.modelcontextprotocol/subscriptionId"].clone();
    for id in [json!("nine"), json!(9)] {
        let mut events = shop.events(&subscription(id.clone())).await;
        let first = events.next().await.unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(first["params"]["notifications"], json!({ "promptsListChanged": true }));
        assert_eq!(subscription_id(&first["params"]), id);
    }
    let mut events = shop.events(&subscription(json!(7))).await;
    events.next().await.unwrap();
    shop.call("add_product", json!({ "id": "paddle", "description": "Made of ash." })).await;
    shop.call("add_prompt", json!({ "name": "x", "text": "…" })).await;
    let changed = events.next().await.unwrap();
    assert_eq!(changed["method"], "notifications/prompts/list_changed");
    assert_eq!(subscription_id(&changed["params"]), 7);

    shop.terminate();
    let last = events.next().await.unwrap();
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!(7), &json!("complete")));
    assert_eq!(subscription_id(&last["result"]), 7);
    assert_eq!(events.next().await, None);
    assert!(soon(shop.child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn a_modern_count_streams_its_steps_and_stops_when_its_client_has_gone() {
    let shop = Shop::open().await;
    let count = |to: u64, delay_ms: u64| {
        let arguments = json!({ "to": to, "delay_ms": delay_ms });
        json!({ "name": "slow_count", "arguments": arguments, "_meta": { "progressToken": "t" } })
    };
    let mut events = shop.events(&request("tools/call", count(2, 0))).await;
    for step in [1, 2] {
        let progress = json!({ "progressToken": "t", "progress": step, "total": 2 });
        assert_eq!(events.next().await.unwrap()["params"], progress);
    }
    assert_eq!(events.next().await.unwrap()["result"]["content"][0]["text"], "counted to 2");
    assert_eq!(events.next().await, None);
    assert_eq!(shop.call("slow_count", json!({ "to": 2, "delay_ms": 0 })).await, "counted to 2");
    assert_eq!(shop.call("cancelled_count", json!({})).await, "0");

    let mut abandoned = shop.events(&request("tools/call", count(2, 60_000))).await;
    // A step would take a minute: only the closed connection can end this one in time.
    let quiet = tokio::time::timeout(Duration::ZERO, abandoned.next()).await;
    assert!(quiet.is_err());
    drop(abandoned);
    soon(async { while shop.call("cancelled_count", json!({})).await != "1" {} }).await;
}

#[tokio::test]
async fn a_name_is_asked_for_once_and_only_of_clients_that_can_ask() {
    let shop = Shop::open().await;
    let ask = |capabilities: Value, mut params: Value| {
        params["name"] = "ask_name".into();
        let mut ask = request("tools/call", params);
        ask["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        ask
    };
    for capabilities in [json!({}), json!({ "elicitation": { "url": {} } })] {
        let (status, answer) = shop.round_trip(&ask(capabilities, json!({}))).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32021)));
        let required = json!({ "requiredCapabilities": { "elicitation": { "form": {} } } });
        assert_eq!(answer["error"]["data"], required);
    }
    let able = json!({ "elicitation": {} });
    let requested = shop.round_trip(&ask(able.clone(), json!({}))).await.1["result"].clone();
    assert_eq!(requested["resultType"], "input_required");
    assert_eq!(requested["inputRequests"]["name"]["method"], "elicitation/create");
    assert_eq!(requested.get("ttlMs"), None);

    let state = &requested["requestState"];
    let answers = json!({ "name": { "action": "accept", "content": { "name": "Ada" } } });
    let retry = json!({ "requestState": state, "inputResponses": answers });
    let greeted = shop.round_trip(&ask(able.clone(), retry)).await.1["result"].clone();
    assert_eq!(greeted["resultType"], "complete");
    assert_eq!(greeted["content"][0]["text"], "Hello, Ada!");
    let (_, again) = shop.round_trip(&ask(able.clone(), json!({ "requestState": state }))).await;
    assert_eq!(again["result"]["resultType"], "input_required");
    let (_, forged) = shop.round_trip(&ask(able, json!({ "requestState": "forged" }))).await;
    assert_eq!(forged["error"]["code"], -32602);
}

#[tokio::test]
async fn a_large_result_comes_whole() {
    let large = Shop::open().await.call("large", json!({ "bytes": 3_000_000 })).await;
    assert_eq!(large.as_str().unwrap().len(), 3_000_000);
}

// === An independent client ===

/// Fills in every form with the name Ada.
struct Ada;

impl ClientHandler for Ada {
    async fn create_elicitation(
        &self,
        _question: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let accepted = ElicitResult::new(ElicitationAction::Accept);
        Ok(accepted.with_content(json!({ "name": "Ada" })))
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = json!({ "elicitation": { "form": {} } });
        let capabilities = serde_json::from_value(capabilities).unwrap();
        ClientConfig::new(capabilities, Implementation::new("test", "0"))
    }
}

fn http(shop: &Shop) -> impl rmcp::transport::Transport<RoleClient> + use<> {
    // rmcp's client requires a TLS provider even for plain HTTP; an error means that one is
    // installed.
    let _ = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider().install_default();
    StreamableHttpClientTransport::from_uri(shop.url())
}

fn call(tool: &'static str, arguments: Value) -> CallToolRequestParams {
    let arguments: JsonObject = arguments.as_object().unwrap().clone();
    CallToolRequestParams::new(tool).with_arguments(arguments)
}

#[tokio::test]
async fn rmcp_walks_the_legacy_server_whether_it_probes_or_not() {
    let auto = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: None,
    };
    for lifecycle in [ClientLifecycleMode::Initialize, auto] {
        let server = TokioChildProcess::new(Command::new(example("legacy_stdio"))).unwrap();
        let client = soon(Ada.serve_with_lifecycle(server, lifecycle)).await.unwrap();
        let version = client.peer_info().unwrap().protocol_version.clone();
        assert_eq!(version, ProtocolVersion::V_2025_11_25);
        assert_eq!(soon(client.list_all_tools()).await.unwrap().len(), 5);
        assert_eq!(soon(client.list_all_prompts()).await.unwrap().len(), 2);
        assert_eq!(soon(client.list_all_resources()).await.unwrap().len(), 4);
        let echoed = soon(client.call_tool(call("echo", json!({ "a": 1 })))).await.unwrap();
        assert_eq!(echoed.structured_content, Some(json!({ "a": 1 })));
        soon(client.cancel()).await.unwrap();
    }
}

#[tokio::test]
async fn rmcp_walks_the_modern_server_once_told_to_discover() {
    let mut shop = Shop::open().await;
    let server = http(&shop);
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let discover = ClientLifecycleMode::Discover { preferred_versions };
    let client = soon(Ada.serve_with_lifecycle(server, discover)).await.unwrap();
    assert_eq!(soon(client.list_all_tools()).await.unwrap().len(), 8);
    assert_eq!(soon(client.list_all_prompts()).await.unwrap().len(), 2);
    let greeted = soon(client.call_tool(call("ask_name", json!({})))).await.unwrap();
    let greeting = serde_json::to_value(&greeted.content[0]).unwrap();
    assert_eq!(greeting["text"], "Hello, Ada!");

    let filter = SubscriptionFilter::builder().resources_list_changed().build();
    let mut changes = soon(client.listen(filter)).await.unwrap();
    let paddle = json!({ "id": "paddle", "description": "Made of ash." });
    soon(client.call_tool(call("add_product", paddle))).await.unwrap();
    let change = soon(changes.next()).await.unwrap();
    assert!(matches!(change, Some(ServerNotification::ResourceListChangedNotification(_))));
    assert_eq!(soon(client.list_all_resources()).await.unwrap().len(), 5);

    shop.terminate();
    assert!(soon(changes.next()).await.unwrap().is_none());
    assert!(matches!(changes.end(), Some(SubscriptionEnd::Graceful(_))));
    assert!(soon(shop.child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn rmcp_initializes_by_default_and_a_modern_server_turns_it_away() {
    let shop = Shop::open().await;
    let server = http(&shop);
    let refused = soon(Ada.serve(server)).await.err().expect("there is no handshake to be had");
    assert!(format!("{refused:?}").contains("2026-07-28"), "{refused:?}");
}
