//! JSON-RPC 2.0: requests, notifications and answers, in no dialect of MCP.
//!
//! A [`Message`] is read from an object one level deep; `params`, `result` and `error` stay raw. Ids keep
//! their bytes, so that a client gets back what it sent (`1` is not `"1"`).
//!
//! Knows nothing of: methods, and which side of a connection it is on.

pub mod pending;

use std::fmt;

use bytes::Bytes;

use crate::json::{self, Malformed, Object};

/// The codes that JSON-RPC itself defines.
pub mod code {
    /// Not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// JSON, but no request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// Nobody here answers to this method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are not what the method takes.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The answering side broke.
    pub const INTERNAL_ERROR: i64 = -32603;
}

/// What is read in the same pass as the message, since it is asked for soon.
const READ_ALONG: &[&[&[u8]]] = &[&[b"\"params\"", b"\"result\""], &[b"\"_meta\""]];

/// The longest id that is accepted from outside, in bytes.
const MAX_ID_BYTES: usize = 1_024;

/// A request's id: a string or an integer, kept as the text that was sent.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Id(Bytes);

impl Id {
    /// Reads an id; `None` for anything that [`Id::read`] refuses.
    pub fn parse(raw: Bytes) -> Option<Self> {
        Self::read(raw).ok()
    }

    /// Reads an id: a string or an integer (spec, base protocol: an id is never null) of at most 1 024 bytes.
    pub fn read(raw: Bytes) -> Result<Self, BadId> {
        let is_integer = || {
            let digits = raw.strip_prefix(b"-").unwrap_or(&raw);
            !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        };
        match raw.starts_with(b"\"") || is_integer() {
            false => Err(BadId::OfAnotherType),
            true if raw.len() > MAX_ID_BYTES => Err(BadId::TooLong),
            true => Ok(Self(raw)),
        }
    }

    /// The id as JSON text.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The same id, which does not keep the message in memory that it came in.
    pub fn apart(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// The number that this id is, if it is one that Weir could have minted.
    pub fn minted(&self) -> Option<u64> {
        std::str::from_utf8(&self.0).ok()?.parse().ok()
    }
}

/// Why a value is no [`Id`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadId {
    /// Neither a string nor an integer.
    OfAnotherType,
    /// Longer than [`MAX_ID_BYTES`].
    TooLong,
}

impl BadId {
    /// What is wrong with the value of `member`, for its sender.
    pub fn in_member(self, member: &str) -> String {
        match self {
            Self::OfAnotherType => format!("`{member}` must be a string or an integer"),
            Self::TooLong => format!("`{member}` must have at most {MAX_ID_BYTES} bytes"),
        }
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        Self(number.to_string().into())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One message of a conversation.
#[derive(Debug, Clone)]
pub enum Message {
    /// Asks for an answer.
    Request(Request),
    /// Tells something; nobody answers.
    Notification(Notification),
    /// Answers a request.
    Answer(Answer),
}

/// A call that wants an answer.
#[derive(Debug, Clone)]
pub struct Request {
    /// What the answer will be recognised by.
    pub id: Id,
    /// The method's name.
    pub method: Box<str>,
    /// The parameters; empty if there were none.
    pub params: Object,
    /// How many bytes the message has.
    pub bytes: usize,
}

/// A message that nobody answers.
#[derive(Debug, Clone)]
pub struct Notification {
    /// The method's name.
    pub method: Box<str>,
    /// The parameters; empty if there were none.
    pub params: Object,
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Whose answer it is; `None` where the other side could not read the request's id.
    pub id: Option<Id>,
    /// How it ended.
    pub outcome: Outcome,
    /// The result, which was read along with the message, if it is an object.
    pub result: Option<Object>,
}

/// How a request ended, as raw text of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The `result` member.
    Result(Bytes),
    /// The `error` member.
    Error(Bytes),
}

/// Why bytes are not a message.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct Invalid {
    /// The id, if that much could be read.
    pub id: Option<Id>,
    /// The code of the error to answer with.
    pub code: i64,
    /// What is wrong, fit for the sender.
    pub reason: String,
    /// What it was meant as.
    pub looks: Looks,
}

/// What bytes that are no message look like, as far as their members tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looks {
    /// They name a method, or cannot be read at all.
    Request,
    /// They hold a result or an error, and no method.
    Answer,
    /// They hold nothing that tells.
    Neither,
}

impl Invalid {
    /// What stands for an answer that cannot be read: whoever waits for it need not wait any longer.
    pub fn as_answer(&self) -> Option<Answer> {
        let id = self.id.clone().filter(|_| self.looks == Looks::Answer)?;
        let error = Error::new(code::INTERNAL_ERROR, "the answer to this cannot be read");
        Some(Answer { id: Some(id), outcome: Outcome::Error(error.to_bytes()), result: None })
    }
}

impl Message {
    /// Reads a message, at most [`json::MAX_DEPTH`] levels deep.
    pub fn parse(text: Bytes) -> Result<Self, Invalid> {
        Self::parse_within(text, json::MAX_DEPTH)
    }

    /// Reads a message, at most `depth` levels deep.
    pub fn parse_within(text: Bytes, depth: usize) -> Result<Self, Invalid> {
        let bytes = text.len();
        let mut object = Object::parse_along(text, depth, READ_ALONG).map_err(|malformed| {
            let code = match malformed {
                Malformed::Syntax(_) => code::PARSE_ERROR,
                _ => code::INVALID_REQUEST,
            };
            Invalid { id: None, code, reason: malformed.to_string(), looks: Looks::Request }
        })?;
        let id = object.get_bytes("id").map(Id::read);
        let bad_id = id.as_ref().and_then(|id| id.as_ref().err().copied());
        let id = id.and_then(Result::ok);
        let looks = match (object.has("method"), object.has("result") || object.has("error")) {
            (true, _) => Looks::Request,
            (false, true) => Looks::Answer,
            (false, false) => Looks::Neither,
        };
        let invalid = |reason: &str| Invalid {
            id: id.clone(),
            code: code::INVALID_REQUEST,
            reason: reason.to_owned(),
            looks,
        };
        if object.get("jsonrpc") != Some("\"2.0\"") {
            return Err(invalid("`jsonrpc` must be \"2.0\""));
        }
        if !object.has("method") {
            return Self::parse_answer(&mut object, id.clone()).ok_or_else(|| {
                invalid(
                    "neither a request (no `method`) nor an answer (one of `result` and `error`)",
                )
            });
        }
        let method =
            object.get_string("method").ok_or_else(|| invalid("`method` must be a string"))?;
        let method = method.into();
        let params = match object.take_object("params") {
            None => Object::new(),
            Some(params) => params.map_err(|malformed| Invalid {
                id: id.clone(),
                code: if malformed == Malformed::NotAnObject {
                    code::INVALID_PARAMS
                } else {
                    code::INVALID_REQUEST
                },
                reason: format!("`params`: {malformed}"),
                looks,
            })?,
        };
        match (id.clone(), bad_id) {
            (Some(id), _) => Ok(Self::Request(Request { id, method, params, bytes })),
            (None, Some(bad)) => Err(invalid(&bad.in_member("id"))),
            (None, None) => Ok(Self::Notification(Notification { method, params })),
        }
    }

    fn parse_answer(object: &mut Object, id: Option<Id>) -> Option<Self> {
        let is_object = |raw: &Bytes| raw.starts_with(b"{");
        let outcome = match (object.get_bytes("result"), object.get_bytes("error")) {
            (Some(result), None) => Outcome::Result(result),
            (None, Some(error)) if is_object(&error) => Outcome::Error(error),
            _ => return None,
        };
        let result = object.take_object("result").and_then(Result::ok);
        Some(Self::Answer(Answer { id, outcome, result }))
    }
}

/// Room for what stands around a payload.
const HEAD_BYTES: usize = 64;

/// Writes a request.
pub fn write_request(id: &Id, method: &str, params: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(params.len() + method.len() + HEAD_BYTES);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"method\":");
    write_call(out, method, params)
}

/// Writes a notification.
pub fn write_notification(method: &str, params: &[u8]) -> Bytes {
    write_call(b"{\"jsonrpc\":\"2.0\",\"method\":".to_vec(), method, params)
}

fn write_call(mut out: Vec<u8>, method: &str, params: &[u8]) -> Bytes {
    out.extend_from_slice(&json::quote(method));
    out.extend_from_slice(b",\"params\":");
    out.extend_from_slice(params);
    out.push(b'}');
    json::on_one_line(out.into())
}

/// What stands before the result in the answer to request `id`; a `}` ends the answer behind it.
pub fn result_head(id: &Id) -> Bytes {
    let mut out = Vec::with_capacity(HEAD_BYTES);
    write_head(id, &mut out);
    out.into()
}

fn write_head(id: &Id, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"result\":");
}

/// Writes the answer to request `id`, on one line.
pub fn write_result(id: &Id, result: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(result.len() + HEAD_BYTES);
    write_head(id, &mut out);
    out.extend_from_slice(result);
    out.push(b'}');
    json::on_one_line(out.into())
}

/// Writes the answer to request `id`, with this object as its result, on one line.
pub fn write_object(id: &Id, result: &Object) -> Bytes {
    let mut out = Vec::with_capacity(result.written_bytes() + HEAD_BYTES);
    write_head(id, &mut out);
    result.write_to(&mut out);
    out.push(b'}');
    json::on_one_line(out.into())
}

/// The same in three parts, of which the middle one is the first of the object's values that was set and has so many bytes:
/// that is not copied, and has to be on one line. `None` if there is no such value.
pub fn write_object_around(id: &Id, result: &Object, bytes: usize) -> Option<[Bytes; 3]> {
    let mut head = Vec::with_capacity(2 * HEAD_BYTES);
    write_head(id, &mut head);
    let (value, mut behind) = result.write_around(bytes, &mut head)?;
    behind.push(b'}');
    Some([json::on_one_line(head.into()), value, json::on_one_line(behind.into())])
}

/// Writes an error as the answer to request `id`, or to one whose id could not be read.
///
/// Without an id the member is left out (spec, transports: an error response that has no `id`). JSON-RPC's own
/// `null` is an id in no revision of the protocol.
pub fn write_error(id: Option<&Id>, error: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(error.len() + HEAD_BYTES);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
    if let Some(id) = id {
        out.extend_from_slice(b",\"id\":");
        out.extend_from_slice(id.as_bytes());
    }
    out.extend_from_slice(b",\"error\":");
    out.extend_from_slice(error);
    out.push(b'}');
    json::on_one_line(out.into())
}

/// An error of Weir's own making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The code.
    pub code: i64,
    /// What happened and whose move it is.
    pub message: String,
    /// More for programs, as JSON text.
    pub data: Option<Bytes>,
}

impl Error {
    /// An error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The error as a JSON object.
    pub fn to_bytes(&self) -> Bytes {
        let mut object = Object::new();
        object.set("code", self.code.to_string());
        object.set("message", json::quote(&self.message));
        if let Some(data) = &self.data {
            object.set("data", data.clone());
        }
        object.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &'static str) -> Result<Message, Invalid> {
        Message::parse(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn the_three_shapes_are_told_apart() {
        let Ok(Message::Request(request)) = parse(r#"{"jsonrpc":"2.0","id":"a","method":"m"}"#)
        else {
            panic!("a request");
        };
        assert_eq!((request.id.to_string().as_str(), &*request.method), ("\"a\"", "m"));
        let notification = parse(r#"{"jsonrpc":"2.0","method":"n","params":{"x":1e400}}"#);
        assert!(
            matches!(notification, Ok(Message::Notification(n)) if n.params.get("x") == Some("1e400"))
        );
        let answer = parse(r#"{"jsonrpc":"2.0","id":7,"result":{"x": 1.0}}"#);
        let Ok(Message::Answer(answer)) = answer else { panic!("an answer") };
        assert_eq!(answer.outcome, Outcome::Result("{\"x\": 1.0}".into()));
        assert_eq!(answer.id.and_then(|id| id.minted()), Some(7));
    }

    #[test]
    fn an_id_keeps_its_type() {
        let id = |text: &'static str| Id::parse(Bytes::from_static(text.as_bytes()));
        assert_ne!(id("1"), id("\"1\""));
        assert_eq!(id("\"1\"").and_then(|id| id.minted()), None);
        for bad in ["null", "1.5", "true", "{}", "[]", "1e3", "-"] {
            assert_eq!(id(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_id_is_a_string_or_an_integer_of_bounded_length() {
        let refused = |id: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            Message::parse(text.into()).err().map(|invalid| invalid.reason)
        };
        let string = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        assert_eq!(refused(&string(MAX_ID_BYTES)), None);
        let too_long = Some("`id` must have at most 1024 bytes".to_owned());
        assert_eq!(refused(&string(MAX_ID_BYTES + 1)), too_long);
        assert_eq!(refused(&"7".repeat(MAX_ID_BYTES + 1)), too_long);
        let no_id = Some("`id` must be a string or an integer".to_owned());
        for other in ["null", "1.5", "{}"] {
            assert_eq!(refused(other), no_id, "{other}");
        }
    }

    #[test]
    fn what_is_no_message_is_told_with_its_id() {
        for (text, code, id) in [
            ("{", code::PARSE_ERROR, None),
            ("[]", code::INVALID_REQUEST, None),
            (r#"{"id":1,"method":"m"}"#, code::INVALID_REQUEST, Some("1")),
            (r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#, code::INVALID_REQUEST, None),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, code::INVALID_REQUEST, Some("1")),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[]}"#,
                code::INVALID_PARAMS,
                Some("1"),
            ),
            (r#"{"jsonrpc":"2.0","id":1}"#, code::INVALID_REQUEST, Some("1")),
            (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, code::INVALID_REQUEST, Some("1")),
            (r#"{"jsonrpc":"2.0","id":1,"error":"x"}"#, code::INVALID_REQUEST, Some("1")),
        ] {
            let invalid = parse(text).expect_err(text);
            let found = invalid.id.map(|id| id.to_string());
            assert_eq!((invalid.code, found.as_deref()), (code, id), "{text}");
        }
    }

    #[test]
    fn what_is_written_stands_on_one_line() {
        let id = Id::from(1);
        let request = write_request(&id, "m", b"{\n}");
        assert_eq!(request, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"params\":{ }}");
        let result = write_result(&id, b"{\"a\":\n1.0}");
        assert_eq!(result, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\": 1.0}}");
        let error = Error { data: Some("{}".into()), ..Error::new(-1, "a\nb") };
        let text = write_error(None, &error.to_bytes());
        assert_eq!(text, r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"a\nb","data":{}}}"#);
    }
}
