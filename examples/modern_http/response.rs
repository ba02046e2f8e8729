//! HTTP responses of the modern era: results, errors and events.
//!
//! Invariants: every result contains its type and the server's name; every error has the HTTP
//! status that the specification demands.

use std::convert::Infallible;

use futures::stream::{Stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::INVALID_PARAMS;

pub(crate) type HttpResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// JSON-RPC error with its HTTP status.
pub(crate) struct RpcError {
    status: StatusCode,
    code: i32,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    pub(crate) fn new(status: StatusCode, code: i32, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), data: None }
    }

    /// A malformed request; the specification demands the status.
    pub(crate) fn bad_request(code: i32, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A well-formed request with invalid parameters, for example an unknown name.
    pub(crate) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(StatusCode::OK, INVALID_PARAMS, message)
    }

    pub(crate) fn with_data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    pub(crate) fn into_response(self, id: Option<&Value>) -> HttpResponse {
        let mut message = json!({ "jsonrpc": "2.0" });
        if let Some(id) = id {
            message["id"] = id.clone();
        }
        message["error"] = json!({ "code": self.code, "message": self.message });
        if let Some(data) = self.data {
            message["error"]["data"] = data;
        }
        json_response(self.status, &message)
    }
}

/// Response message for a result, with the members that the modern era requires in each result.
pub(crate) fn result_message(id: &Value, mut result: Value) -> Value {
    if result.get("resultType").is_none() {
        result["resultType"] = "complete".into();
    }
    let server = json!({ "name": "modern-catalog", "version": env!("CARGO_PKG_VERSION") });
    result["_meta"]["io.modelcontextprotocol/serverInfo"] = server;
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// Adds caching hints: public, and valid for a minute unless a notification announces a change.
pub(crate) fn cacheable(mut result: Value) -> Value {
    result["ttlMs"] = 60_000.into();
    result["cacheScope"] = "public".into();
    result
}

pub(crate) fn result_response(id: &Value, result: Value) -> HttpResponse {
    json_response(StatusCode::OK, &result_message(id, result))
}

pub(crate) fn json_response(status: StatusCode, message: &Value) -> HttpResponse {
    let body = Full::from(message.to_string()).boxed_unsync();
    let reply = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    reply.body(body).expect("the headers are constants")
}

pub(crate) fn empty(status: StatusCode) -> HttpResponse {
    let mut reply = Response::new(Full::default().boxed_unsync());
    *reply.status_mut() = status;
    reply
}

pub(crate) fn event(message: &Value) -> Bytes {
    format!("data: {message}\n\n").into()
}

pub(crate) fn event_stream(events: impl Stream<Item = Bytes> + Send + 'static) -> HttpResponse {
    let frames = events.map(|event| Ok(Frame::data(event)));
    let reply = Response::builder()
        .header(CONTENT_TYPE, "text/event-stream")
        .header(CACHE_CONTROL, "no-cache");
    let reply = reply.header("x-accel-buffering", "no");
    reply.body(StreamBody::new(frames).boxed_unsync()).expect("the headers are constants")
}
