//! HTTP requests of tests without a runtime, each on a connection of its own.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::PATIENCE;

/// Sends a request and returns the whole response. `target` is method and path; `headers` are lines
/// that each end with a line break.
pub(crate) fn exchange(address: &str, target: &str, headers: &str, body: &str) -> String {
    response(send(address, target, headers, body))
}

/// Sends a request without waiting for the response.
pub(crate) fn send(address: &str, target: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let host = if headers.contains("Host:") { "" } else { &format!("Host: {address}\r\n") };
    let length = body.len();
    let request = format!(
        "{target} HTTP/1.1\r\n{host}{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("written");
    stream
}

/// Reads a response up to the end of its connection.
pub(crate) fn response(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut response = Vec::new();
    // The connection may be reset behind a refusal.
    let end = stream.read_to_end(&mut response);
    let text = String::from_utf8_lossy(&response).into_owned();
    assert!(end.is_ok() || !text.is_empty(), "no response: {end:?}");
    text
}

/// Posts a request of the newest revision and returns the whole response.
pub(crate) fn post(address: &str, key: Option<&str>, method: &str, params: Value) -> String {
    response(send_post(address, key, method, params))
}

/// Posts a request of the newest revision without waiting for the response.
pub(crate) fn send_post(
    address: &str,
    key: Option<&str>,
    method: &str,
    mut params: Value,
) -> TcpStream {
    let name = ["name", "uri"].iter().find_map(|member| params[*member].as_str());
    let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let headers = format!(
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}{key}"
    );
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    send(address, "POST /mcp", &headers, &body.to_string())
}
