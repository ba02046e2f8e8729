//! Messages as lines: how they are read, one level deep, and how answers are put together.
//!
//! Promises that a page resumes after the last key that was sent, and that a batch is answered by
//! one array.
//! Knows nothing of: methods, notes, revisions.

use std::collections::BTreeMap;
use std::ops::Bound;

use futures::future::ready;
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// One level of a JSON object; the values are the bytes that came.
pub(crate) type Object = BTreeMap<String, Box<RawValue>>;
/// What the server has to say about one incoming line: answers and notifications, in order.
pub(crate) type Lines = BoxStream<'static, String>;

// === What goes out ===

/// Why a request was not served: a JSON-RPC error.
pub(crate) struct Refusal {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) data: Option<Value>,
}

impl Refusal {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub(crate) fn line(&self, id: &Value) -> String {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string()
    }
}

pub(crate) fn answer(id: &Value, result: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string()
}

pub(crate) fn notification(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}

/// A tool's result: one text.
pub(crate) fn said(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// A tool's own failure: a result, so that the model reads it and can do better.
pub(crate) fn failed(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

pub(crate) fn silence() -> Lines {
    stream::empty().boxed()
}

pub(crate) fn one(line: String) -> Lines {
    stream::once(ready(line)).boxed()
}

pub(crate) fn then_changed(line: String, kind: &str) -> Lines {
    let changed =
        json!({ "jsonrpc": "2.0", "method": format!("notifications/{kind}/list_changed") });
    stream::iter([line, changed.to_string()]).boxed()
}

/// Collects the answers of all members into one array; their notifications go out at once.
pub(crate) fn batch(members: Vec<Lines>) -> Lines {
    let mut answers: Vec<String> = Vec::new();
    let collect = move |line: Option<String>| match line {
        // Only what the server says of its own accord has a method.
        Some(line) if line.starts_with(r#"{"jsonrpc":"2.0","method":"#) => Some(line),
        Some(line) => {
            answers.push(line);
            None
        }
        None if answers.is_empty() => None,
        None => Some(format!("[{}]", answers.join(","))),
    };
    let all = stream::select_all(members).map(Some).chain(stream::once(ready(None)));
    all.scan(collect, |collect, line| ready(Some(collect(line)))).filter_map(ready).boxed()
}

/// Cuts one page of three. The cursor is the last key that was sent, so it survives additions.
pub(crate) fn page(
    kind: &str,
    items: &BTreeMap<String, Value>,
    cursor: Option<Value>,
) -> Result<Value, Refusal> {
    let after = match cursor {
        None => Bound::Unbounded,
        Some(cursor) => {
            let key = cursor.as_str().and_then(|cursor| read_cursor(kind, cursor));
            Bound::Excluded(key.ok_or_else(|| Refusal::params("invalid cursor"))?)
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

// === What comes in ===

/// A member as a value; null if it is missing or cannot be held in one.
pub(crate) fn member(object: &Object, name: &str) -> Value {
    object.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

/// A member that is an object; empty if it is missing or something else.
pub(crate) fn object(object: &Object, name: &str) -> Object {
    object.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

pub(crate) fn text(object: &Object, name: &str) -> Result<String, Refusal> {
    match member(object, name) {
        Value::String(text) => Ok(text),
        _ => Err(Refusal::params(format!("`{name}` must be a string"))),
    }
}

const PAGE_ITEMS: usize = 3;

pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
