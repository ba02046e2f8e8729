//! What goes out: results, refusals and events, as the modern era wants them.
//!
//! Promises that every result names its type and its server, and every refusal the HTTP status
//! that the specification gives it.
//! Knows nothing of: methods, the shop.

use std::convert::Infallible;

use futures::stream::{Stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::INVALID_PARAMS;

pub(crate) type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Why a request was not served: a JSON-RPC error and the HTTP status beside it.
pub(crate) struct Refusal {
    status: StatusCode,
    code: i32,
    message: String,
    data: Option<Value>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: i32, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), data: None }
    }

    /// The request is malformed; the specification names the status.
    pub(crate) fn bad(code: i32, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// The request is well-formed and asks for what is not there.
    pub(crate) fn params(message: impl Into<String>) -> Self {
        Self::new(StatusCode::OK, INVALID_PARAMS, message)
    }

    pub(crate) fn with(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    pub(crate) fn reply(self, id: Option<&Value>) -> Reply {
        let mut message = json!({ "jsonrpc": "2.0" });
        if let Some(id) = id {
            message["id"] = id.clone();
        }
        message["error"] = json!({ "code": self.code, "message": self.message });
        if let Some(data) = self.data {
            message["error"]["data"] = data;
        }
        json_reply(self.status, &message)
    }
}

/// The answer around a result, with what the modern era wants in each.
pub(crate) fn dressed(id: &Value, mut result: Value) -> Value {
    if result.get("resultType").is_none() {
        result["resultType"] = "complete".into();
    }
    let server = json!({ "name": "modern-catalog", "version": env!("CARGO_PKG_VERSION") });
    result["_meta"]["io.modelcontextprotocol/serverInfo"] = server;
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// Adds caching hints: the same for everybody, and good for a minute unless a notification says otherwise.
pub(crate) fn cacheable(mut result: Value) -> Value {
    result["ttlMs"] = 60_000.into();
    result["cacheScope"] = "public".into();
    result
}

pub(crate) fn complete(id: &Value, result: Value) -> Reply {
    json_reply(StatusCode::OK, &dressed(id, result))
}

pub(crate) fn json_reply(status: StatusCode, message: &Value) -> Reply {
    let body = Full::from(message.to_string()).boxed_unsync();
    let reply = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    reply.body(body).expect("the headers are constants")
}

pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Full::default().boxed_unsync());
    *reply.status_mut() = status;
    reply
}

pub(crate) fn event(message: &Value) -> Bytes {
    format!("data: {message}\n\n").into()
}

pub(crate) fn event_stream(events: impl Stream<Item = Bytes> + Send + 'static) -> Reply {
    let frames = events.map(|event| Ok(Frame::data(event)));
    let reply = Response::builder()
        .header(CONTENT_TYPE, "text/event-stream")
        .header(CACHE_CONTROL, "no-cache");
    let reply = reply.header("x-accel-buffering", "no");
    reply.body(StreamBody::new(frames).boxed_unsync()).expect("the headers are constants")
}
