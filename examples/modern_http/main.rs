//! A small MCP server of the modern era: a shop's catalog, over Streamable HTTP.
//!
//! It supports only revision 2026-07-28, without sessions and `initialize`: every POST contains its
//! revision and the capabilities of the client, and repeats some members of the body in headers.
//! There is no authentication, so the server listens on loopback only.
//!
//! Invariants: the headers are checked against the body; a call ends when its client disconnects;
//! every subscription ends with a result at shutdown (SIGTERM or ctrl-c).
//!
//! Products and prompts are each in a `watch` channel: a list request reads the value, and a change
//! causes `list_changed`. The body of a streamed response drives its call, so dropping the body
//! cancels the call.
//!
//! This file handles the protocol: the POST request, its headers and its method. `catalog` contains
//! the data and `tools` the tools.

#![allow(clippy::disallowed_types, reason = "a server reads its own arguments as values")]

mod catalog;
mod response;
mod subscriptions;
mod tools;

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderMap, HeaderValue, ORIGIN};
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use catalog::{Shop, page, templates};
use response::{HttpResponse, RpcError, cacheable, empty, result_response};
use subscriptions::{listen, until_stopped};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(address()?).await?;
    // Installed before the address is printed, so that no early signal kills the process.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    println!("listening on http://{}{ENDPOINT}", listener.local_addr()?);

    let (stop, stopped) = watch::channel(false);
    let shop = Arc::new(Shop::new(stopped));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => { connections.spawn(connection(stream, shop.clone())); }
            Some(_) = connections.join_next() => {}
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    stop.send_replace(true);
    // Requests in flight may finish, within a time limit.
    let _ = timeout(DRAIN, connections.join_all()).await;
    Ok(())
}

fn address() -> Result<SocketAddr, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address: SocketAddr = match arguments.as_slice() {
        [] => "127.0.0.1:0".parse()?,
        [flag, address] if flag == "--listen" => address.parse()?,
        _ => return Err("usage: modern_http [--listen 127.0.0.1:PORT]".into()),
    };
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err("this server has no authentication: it listens on loopback only".into()),
    }
}

async fn connection(stream: TcpStream, shop: Arc<Shop>) {
    let mut stopped = shop.stopped.clone();
    let service = service_fn(|request| serve(shop.clone(), request));
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // An error means that the client disconnected, so no response is possible.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = until_stopped(&mut stopped) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

// === HTTP: one POST, one message ===

async fn serve(shop: Arc<Shop>, request: Request<Incoming>) -> Result<HttpResponse, Infallible> {
    // spec, Security & Endpoint: Origin is checked on all incoming connections, against DNS
    // rebinding.
    let origin = request.headers().get(ORIGIN);
    if origin.is_some_and(|origin| !origin.to_str().is_ok_and(is_loopback)) {
        return Ok(empty(StatusCode::FORBIDDEN));
    }
    if request.uri().path() != ENDPOINT {
        return Ok(empty(StatusCode::NOT_FOUND));
    }
    if request.method() != Method::POST {
        let mut reply = empty(StatusCode::METHOD_NOT_ALLOWED);
        reply.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Ok(reply);
    }
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY_BYTES).collect().await else {
        return Ok(empty(StatusCode::PAYLOAD_TOO_LARGE));
    };
    let message: Value = match serde_json::from_slice(&body.to_bytes()) {
        Ok(message) => message,
        Err(error) => {
            return Ok(RpcError::bad_request(PARSE_ERROR, error.to_string()).into_response(None));
        }
    };
    let (id, method) = (&message["id"], message["method"].as_str());
    let method = method.filter(|_| message["jsonrpc"] == "2.0");
    Ok(match (message.get("id"), method) {
        // The core protocol defines no notification for this direction; extensions may.
        (None, Some(_)) => empty(StatusCode::ACCEPTED),
        (Some(_), Some(method)) if id.is_string() || id.is_i64() || id.is_u64() => {
            match handle(&shop, &head.headers, id, method, &message["params"]).await {
                Ok(reply) => reply,
                Err(refusal) => refusal.into_response(Some(id)),
            }
        }
        // Revision 2025-06-18 removed batches, and clients send no responses in 2026-07-28.
        _ => RpcError::bad_request(INVALID_REQUEST, "neither request nor notification")
            .into_response(None),
    })
}

fn is_loopback(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
    let name = host.map(|host| match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    });
    matches!(name, Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// Checks the protocol headers of a request against its body.
fn check_headers(headers: &HeaderMap, method: &str, params: &Value) -> Result<(), RpcError> {
    // A duplicate header is ambiguous, because a proxy may have read the other value.
    let header = |name: &str| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())?.to_str().ok()
    };
    let meta = &params["_meta"];
    let version = meta["io.modelcontextprotocol/protocolVersion"].as_str();

    let Some(declared) = header("mcp-protocol-version") else {
        // spec, Versioning: the error names the versions, because a legacy `initialize` gets it.
        let text =
            format!("the MCP-Protocol-Version header is missing; this server speaks {REVISION}");
        return Err(RpcError::bad_request(HEADER_MISMATCH, text));
    };
    if version.is_some_and(|version| version != declared) {
        return Err(RpcError::bad_request(
            HEADER_MISMATCH,
            "MCP-Protocol-Version differs from the body",
        ));
    }
    if declared != REVISION {
        let data = json!({ "supported": [REVISION], "requested": declared });
        return Err(RpcError::bad_request(UNSUPPORTED_VERSION, "Unsupported protocol version")
            .with_data(data));
    }
    // spec, `_meta`: a request that misses a required field is malformed.
    if version.is_none() || !meta["io.modelcontextprotocol/clientCapabilities"].is_object() {
        let text = "`_meta` must hold protocolVersion and clientCapabilities";
        return Err(RpcError::bad_request(INVALID_PARAMS, text));
    }
    if header("mcp-method") != Some(method) {
        return Err(RpcError::bad_request(
            HEADER_MISMATCH,
            "Mcp-Method is missing or differs from the body",
        ));
    }
    let expected_name = match method {
        "tools/call" | "prompts/get" => text(params, "name")?,
        "resources/read" => text(params, "uri")?,
        _ => return Ok(()),
    };
    match header("mcp-name").and_then(decode_header) {
        Some(name) if name == expected_name => Ok(()),
        _ => Err(RpcError::bad_request(
            HEADER_MISMATCH,
            "Mcp-Name is missing or differs from the body",
        )),
    }
}

/// Decodes a header value; non-ASCII values are in the base64 form `=?base64?…?=`.
fn decode_header(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|value| value.strip_suffix("?=")) {
        None => Some(value.to_owned()),
        Some(encoded) => String::from_utf8(base64(encoded)?).ok(),
    }
}

fn base64(encoded: &str) -> Option<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = encoded.trim_end_matches('=');
    let padded = encoded.len() == digits.len().div_ceil(4) * 4;
    let (mut bytes, mut bits, mut bit_count) = (Vec::new(), 0u32, 0);
    for digit in digits.bytes() {
        let digit = ALPHABET.iter().position(|known| *known == digit)?;
        (bits, bit_count) = ((bits << 6) | digit as u32, bit_count + 6);
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
            bits &= (1 << bit_count) - 1;
        }
    }
    // A single remaining digit is not a byte, and remaining bits must be zero, because otherwise
    // two encodings would decode to the same name.
    (bit_count < 6 && bits == 0 && padded).then_some(bytes)
}

// === Methods ===

async fn handle(
    shop: &Arc<Shop>,
    headers: &HeaderMap,
    id: &Value,
    method: &str,
    params: &Value,
) -> Result<HttpResponse, RpcError> {
    check_headers(headers, method, params)?;
    let cursor = params.get("cursor");
    let result = match method {
        "server/discover" => cacheable(json!({
            "supportedVersions": [REVISION],
            "capabilities": {
                "completions": {},
                "prompts": { "listChanged": true },
                "resources": { "listChanged": true },
                "tools": {},
            },
            "instructions": "A small catalog: search it, add to it, describe what is in it.",
        })),
        "prompts/list" => cacheable(page("prompts", &shop.prompts(), cursor)?),
        "prompts/get" => shop.prompt(params)?,
        "resources/list" => cacheable(page("resources", &shop.resources(), cursor)?),
        "resources/templates/list" => cacheable(page("resourceTemplates", &templates(), cursor)?),
        "resources/read" => cacheable(json!({ "contents": [shop.read(text(params, "uri")?)?] })),
        "completion/complete" => shop.complete(params)?,
        "tools/list" => cacheable(page("tools", &tools::tools(), cursor)?),
        "tools/call" => return tools::call(shop, id, params).await,
        "subscriptions/listen" => return listen(shop, id, params),
        _ => {
            let text = format!("unknown method: {method} (this server speaks {REVISION})");
            return Err(RpcError::new(StatusCode::NOT_FOUND, METHOD_NOT_FOUND, text));
        }
    };
    Ok(result_response(id, result))
}

/// Returns a required string parameter.
fn text<'a>(object: &'a Value, name: &str) -> Result<&'a str, RpcError> {
    let text = object[name].as_str();
    text.ok_or_else(|| RpcError::invalid_params(format!("`{name}` must be a string")))
}

const ENDPOINT: &str = "/mcp";
const REVISION: &str = "2026-07-28";
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
const DRAIN: Duration = Duration::from_secs(5);

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const HEADER_MISMATCH: i32 = -32020;
const MISSING_CAPABILITY: i32 = -32021;
const UNSUPPORTED_VERSION: i32 = -32022;
