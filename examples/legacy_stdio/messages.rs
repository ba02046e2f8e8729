//! JSON-RPC messages as lines: parsing of one level, responses, batches and pages.
//!
//! Invariants: a page resumes after the last key that was sent; the responses of a batch are one
//! array.

use std::collections::BTreeMap;
use std::ops::Bound;

use futures::future::ready;
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// JSON object that is parsed one level deep; the values are raw JSON.
pub(crate) type Object = BTreeMap<String, Box<RawValue>>;
/// Output lines for one incoming line: responses and notifications, in order.
pub(crate) type Lines = BoxStream<'static, String>;

// === Output ===

/// JSON-RPC error.
pub(crate) struct RpcError {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) data: Option<Value>,
}

impl RpcError {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub(crate) fn to_line(&self, id: &Value) -> String {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string()
    }
}

pub(crate) fn response(id: &Value, result: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string()
}

pub(crate) fn notification(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}

/// Tool result with one text.
pub(crate) fn text_result(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// Tool execution error: a result, so that the model can read it and correct the call.
pub(crate) fn tool_error(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

pub(crate) fn no_lines() -> Lines {
    stream::empty().boxed()
}

pub(crate) fn single_line(line: String) -> Lines {
    stream::once(ready(line)).boxed()
}

pub(crate) fn with_list_changed(line: String, kind: &str) -> Lines {
    let changed =
        json!({ "jsonrpc": "2.0", "method": format!("notifications/{kind}/list_changed") });
    stream::iter([line, changed.to_string()]).boxed()
}

/// Collects the responses of all members into one array; notifications are sent immediately.
pub(crate) fn batch(members: Vec<Lines>) -> Lines {
    let mut responses: Vec<String> = Vec::new();
    let collect = move |line: Option<String>| match line {
        // Only notifications have a method.
        Some(line) if line.starts_with(r#"{"jsonrpc":"2.0","method":"#) => Some(line),
        Some(line) => {
            responses.push(line);
            None
        }
        None if responses.is_empty() => None,
        None => Some(format!("[{}]", responses.join(","))),
    };
    let all = stream::select_all(members).map(Some).chain(stream::once(ready(None)));
    all.scan(collect, |collect, line| ready(Some(collect(line)))).filter_map(ready).boxed()
}

/// Returns one page of [`PAGE_ITEMS`] items. The cursor contains the last key that was sent, so it
/// stays valid if items are added.
pub(crate) fn page(
    kind: &str,
    items: &BTreeMap<String, Value>,
    cursor: Option<Value>,
) -> Result<Value, RpcError> {
    let after = match cursor {
        None => Bound::Unbounded,
        Some(cursor) => {
            let key = cursor.as_str().and_then(|cursor| read_cursor(kind, cursor));
            Bound::Excluded(key.ok_or_else(|| RpcError::invalid_params("invalid cursor"))?)
        }
    };
    let mut rest = items.range((after, Bound::Unbounded));
    let (keys, shown): (Vec<_>, Vec<_>) = rest.by_ref().take(PAGE_ITEMS).unzip();
    let mut page = json!({ kind: shown });
    if let (Some(_), Some(last)) = (rest.next(), keys.last()) {
        page["nextCursor"] = write_cursor(kind, last).into();
    }
    Ok(page)
}

fn write_cursor(kind: &str, key: &str) -> String {
    format!("{kind}:{key}").bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn read_cursor(kind: &str, cursor: &str) -> Option<String> {
    let pairs = cursor.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    let text = String::from_utf8(bytes?).ok()?;
    Some(text.strip_prefix(kind)?.strip_prefix(':')?.to_owned())
}

// === Input ===

/// Returns a member as a value; null if it is missing or not representable.
pub(crate) fn member(object: &Object, name: &str) -> Value {
    object.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

/// Returns a member that is an object; an empty one if it is missing or has another type.
pub(crate) fn object(object: &Object, name: &str) -> Object {
    object.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

pub(crate) fn text(object: &Object, name: &str) -> Result<String, RpcError> {
    match member(object, name) {
        Value::String(text) => Ok(text),
        _ => Err(RpcError::invalid_params(format!("`{name}` must be a string"))),
    }
}

const PAGE_ITEMS: usize = 3;

pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
