//! A small MCP server of the modern era: a shop's catalog, over Streamable HTTP.
//!
//! It speaks revision 2026-07-28 alone: there is no session and no `initialize`; every POST carries
//! its version and the client's capabilities, and repeats in headers what proxies want to see. It
//! promises to check those headers against the body, to stop working for a client that has gone,
//! and to end every subscription with a result when it is stopped (SIGTERM or ctrl-c).
//!
//! The products and the prompts each live in a `watch`: reading one is listing, waiting on one is
//! `list_changed`. A streamed answer is its own work: dropping the body is cancelling the call.
//!
//! This file is the protocol: one POST, its headers, its method. `catalog` and `tools` are what the
//! server is about.
//!
//! Knows nothing of: stdio, the legacy era, authentication (it listens on loopback only), Weir.

#![allow(clippy::disallowed_types, reason = "a server reads its own arguments as values")]

mod catalog;
mod reply;
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
use reply::{Refusal, Reply, cacheable, complete, empty};
use subscriptions::{listen, reached};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(address()?).await?;
    // Caught before anybody can know that we are here, so that no early signal kills us.
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
    // What is still being answered may finish, but does not hold us for ever.
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
    // An error here is a client that went away; there is nobody to tell.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = reached(&mut stopped) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

// === HTTP: one POST, one message ===

async fn serve(shop: Arc<Shop>, request: Request<Incoming>) -> Result<Reply, Infallible> {
    // spec, Security & Endpoint: Origin is checked on all incoming connections, against DNS rebinding.
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
        Err(error) => return Ok(Refusal::bad(PARSE_ERROR, error.to_string()).reply(None)),
    };
    let (id, method) = (&message["id"], message["method"].as_str());
    let method = method.filter(|_| message["jsonrpc"] == "2.0");
    Ok(match (message.get("id"), method) {
        // The core protocol defines no notification for this direction; extensions may.
        (None, Some(_)) => empty(StatusCode::ACCEPTED),
        (Some(_), Some(method)) if id.is_string() || id.is_i64() || id.is_u64() => {
            match answer(&shop, &head.headers, id, method, &message["params"]).await {
                Ok(reply) => reply,
                Err(refusal) => refusal.reply(Some(id)),
            }
        }
        // Batches went with 2025-06-18, and clients have nothing to answer any more.
        _ => Refusal::bad(INVALID_REQUEST, "neither request nor notification").reply(None),
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

/// Checks what the request says of itself, in the headers and in the body.
fn check(headers: &HeaderMap, method: &str, params: &Value) -> Result<(), Refusal> {
    // A header that comes twice says nothing: a proxy may have read the other one.
    let header = |name: &str| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())?.to_str().ok()
    };
    let meta = &params["_meta"];
    let version = meta["io.modelcontextprotocol/protocolVersion"].as_str();

    let Some(declared) = header("mcp-protocol-version") else {
        // spec, Versioning: name the versions, a legacy `initialize` ends here and may show it.
        let text =
            format!("the MCP-Protocol-Version header is missing; this server speaks {REVISION}");
        return Err(Refusal::bad(HEADER_MISMATCH, text));
    };
    if version.is_some_and(|version| version != declared) {
        return Err(Refusal::bad(HEADER_MISMATCH, "MCP-Protocol-Version differs from the body"));
    }
    if declared != REVISION {
        let data = json!({ "supported": [REVISION], "requested": declared });
        return Err(Refusal::bad(UNSUPPORTED_VERSION, "Unsupported protocol version").with(data));
    }
    // spec, `_meta`: a request that misses a required field is malformed.
    if version.is_none() || !meta["io.modelcontextprotocol/clientCapabilities"].is_object() {
        let text = "`_meta` must hold protocolVersion and clientCapabilities";
        return Err(Refusal::bad(INVALID_PARAMS, text));
    }
    if header("mcp-method") != Some(method) {
        return Err(Refusal::bad(
            HEADER_MISMATCH,
            "Mcp-Method is missing or differs from the body",
        ));
    }
    let named = match method {
        "tools/call" | "prompts/get" => text(params, "name")?,
        "resources/read" => text(params, "uri")?,
        _ => return Ok(()),
    };
    match header("mcp-name").and_then(plain) {
        Some(name) if name == named => Ok(()),
        _ => Err(Refusal::bad(HEADER_MISMATCH, "Mcp-Name is missing or differs from the body")),
    }
}

/// A header's value, decoded if it is in the base64 sentinel that carries what ASCII cannot.
fn plain(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|value| value.strip_suffix("?=")) {
        None => Some(value.to_owned()),
        Some(encoded) => String::from_utf8(base64(encoded)?).ok(),
    }
}

fn base64(encoded: &str) -> Option<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = encoded.trim_end_matches('=');
    let padded = encoded.len() == digits.len().div_ceil(4) * 4;
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for digit in digits.bytes() {
        let digit = ALPHABET.iter().position(|known| *known == digit)?;
        (bits, held) = ((bits << 6) | digit as u32, held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    // A lone digit is no byte, and what is left over must be zero, or two texts would mean one name.
    (held < 6 && bits == 0 && padded).then_some(bytes)
}

// === Methods ===

async fn answer(
    shop: &Arc<Shop>,
    headers: &HeaderMap,
    id: &Value,
    method: &str,
    params: &Value,
) -> Result<Reply, Refusal> {
    check(headers, method, params)?;
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
            return Err(Refusal::new(StatusCode::NOT_FOUND, METHOD_NOT_FOUND, text));
        }
    };
    Ok(complete(id, result))
}

/// A parameter that must be a string.
fn text<'a>(object: &'a Value, name: &str) -> Result<&'a str, Refusal> {
    let text = object[name].as_str();
    text.ok_or_else(|| Refusal::params(format!("`{name}` must be a string")))
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
