//! Requests over HTTP, as bytes.

use super::*;

pub(super) const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
pub(super) const OPEN: &str = r#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"VERSION","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

/// A POST with these headers beside the usual ones.
pub(super) fn post(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

/// A request of the legacy era.
pub(super) fn legacy(session: &str, method: &str, params: &str) -> String {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    post(&format!("Mcp-Session-Id: {session}\r\n"), &body)
}

/// A request of the modern era; `params` are its members besides `_meta`.
pub(super) fn modern(method: &str, params: &str) -> String {
    let comma = if params.is_empty() { "" } else { "," };
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}{comma}{META}}}}}"#
    );
    let parsed: Value = serde_json::from_str(&body).expect("JSON");
    let name = parsed["params"]["name"].as_str().or(parsed["params"]["uri"].as_str());
    let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
    post(&format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}"), &body)
}

pub(super) async fn open(client: &mut Client, version: &str) -> String {
    let response = client.ask(post("", &OPEN.replace("VERSION", version))).await;
    assert_eq!(response.status, 200, "{response:?}");
    session_of(&response).to_owned()
}

pub(super) fn session_of(response: &Response) -> &str {
    response.header("mcp-session-id").expect("a session")
}

pub(super) fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().expect("a text")
}

/// A request whose body was changed.
pub(super) fn with_length(request: &str) -> String {
    let (head, body) = request.split_once("\r\n\r\n").expect("a head");
    let lines: Vec<String> = head
        .split("\r\n")
        .map(|line| match line.split_once(": ") {
            Some(("Content-Length", _)) => format!("Content-Length: {}", body.len()),
            _ => line.to_owned(),
        })
        .collect();
    format!("{}\r\n\r\n{body}", lines.join("\r\n"))
}
