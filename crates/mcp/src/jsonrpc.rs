//! JSON-RPC 2.0: requests, notifications and responses, common to all revisions of MCP.
//!
//! A [`Message`] is parsed from an object one level deep. In the same pass the members of `params`,
//! `result` and their `_meta` are found; what they contain stays raw, and so does `error`.
//! Ids keep their bytes, so that a client gets back what it sent (`1` is not `"1"`).

mod partial;
pub mod pending;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

pub use partial::PartialMessage;
use weir_base::json::{self, Object, ParseError};

/// Error codes that JSON-RPC defines.
pub mod code {
    /// The text is not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// The text is JSON, but not a request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// The method is unknown.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are invalid for the method.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The receiver failed internally.
    pub const INTERNAL_ERROR: i64 = -32603;
}

/// Members that are parsed in the same pass as the message, because they are needed soon.
const NESTED_MEMBERS: &[&[&[u8]]] = &[&[b"\"params\"", b"\"result\""], &[b"\"_meta\""]];

/// Longest accepted id, in bytes.
const MAX_ID_BYTES: usize = 1_024;

/// Id of a request: a string or an integer, kept as the text that was sent.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Id(Bytes);

impl Id {
    /// Parses an id; `None` for anything that [`Id::read`] refuses.
    pub fn parse(raw: Bytes) -> Option<Self> {
        Self::read(raw).ok()
    }

    /// Parses an id: a string or an integer (spec, base protocol: an id is never null) of at most
    /// 1,024 bytes. An integer may be written with a fraction of zeros.
    pub fn read(raw: Bytes) -> Result<Self, BadId> {
        let is_integer = || {
            let digits = raw.strip_prefix(b"-").unwrap_or(&raw);
            let digits = without_zeros(digits);
            !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        };
        match raw.starts_with(b"\"") || is_integer() {
            false => Err(BadId::OfAnotherType),
            true if raw.len() > MAX_ID_BYTES => Err(BadId::TooLong),
            true => Ok(Self(raw)),
        }
    }

    /// Returns the id as JSON text.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Creates an id from a text.
    pub fn from_text(text: &str) -> Self {
        Self(json::quote(text))
    }

    /// Returns the text of an id that is a string.
    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        json::decode_string(std::str::from_utf8(&self.0).ok()?)
    }

    /// Returns a copy that does not keep the memory of its message alive.
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// Returns the number of this id, if it could be one of Weir's own ids.
    pub fn as_local(&self) -> Option<u64> {
        std::str::from_utf8(&self.0).ok()?.parse().ok()
    }

    /// Returns the number that this id shows in another form than Weir's own ids: `"7"` or `7.0`.
    pub fn disguised_local(&self) -> Option<u64> {
        let quoted = self.0.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
        let digits = quoted.unwrap_or_else(|| without_zeros(&self.0));
        let is_other = digits.len() < self.0.len();
        std::str::from_utf8(digits).ok().filter(|_| is_other)?.parse().ok()
    }
}

/// Returns a number without its fraction, if that consists of zeros.
fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().rev().take_while(|byte| **byte == b'0').count();
    match number[..number.len() - zeros].strip_suffix(b".") {
        Some(whole) if zeros > 0 => whole,
        _ => number,
    }
}

/// Reason why a value is not an [`Id`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadId {
    /// The value is neither a string nor an integer.
    OfAnotherType,
    /// The value is longer than [`MAX_ID_BYTES`].
    TooLong,
}

impl BadId {
    /// Describes the error in the value of `member`, for its sender.
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

/// JSON-RPC message.
#[derive(Debug, Clone)]
pub enum Message {
    /// Request, which expects a response.
    Request(Request),
    /// Notification, which expects no response.
    Notification(Notification),
    /// Response to a request.
    Response(Response),
}

/// Request with its raw parameters.
#[derive(Debug, Clone)]
pub struct Request {
    /// Id that the response will repeat.
    pub id: Id,
    /// The method's name.
    pub method: Box<str>,
    /// The parameters; empty if there were none.
    pub params: Object,
    /// Size of the message in bytes.
    pub bytes: usize,
}

/// Notification with its raw parameters.
#[derive(Debug, Clone)]
pub struct Notification {
    /// The method's name.
    pub method: Box<str>,
    /// The parameters; empty if there were none.
    pub params: Object,
}

/// Response to a request.
#[derive(Debug, Clone)]
pub struct Response {
    /// Id of the request; `None` if the peer could not read it.
    pub id: Option<Id>,
    /// Result or error.
    pub outcome: ResponsePayload,
    /// The result, parsed in the same pass as the message, if it is an object.
    pub result: Option<Object>,
}

/// Result or error of a response, as raw text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponsePayload {
    /// The `result` member.
    Result(Bytes),
    /// The `error` member.
    Error(Bytes),
}

/// Reason why bytes are not a message.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct InvalidMessage {
    /// Id, if it could be read.
    pub id: Option<Id>,
    /// Code for the error response.
    pub code: i64,
    /// Description of the error, for the sender.
    pub reason: String,
    /// Kind of message that the bytes resemble.
    pub shape: MessageShape,
}

/// Kind of message that invalid bytes resemble, judged by their members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageShape {
    /// The bytes have a method, or show none of the members of a message.
    Request,
    /// The bytes have a result or an error, and no method.
    Response,
    /// The bytes have none of these members.
    Neither,
}

impl InvalidMessage {
    /// Describes a message of which only this text can be used, because it is malformed or was not
    /// read to its end.
    pub fn of_part(text: &[u8], code: i64, reason: String) -> Self {
        let PartialMessage { id, shape } = PartialMessage::read(text);
        Self { id, code, reason, shape }
    }

    /// Returns an error response in place of a response that cannot be read, so that its request
    /// does not wait any longer.
    pub fn as_error_response(&self) -> Option<Response> {
        let id = self.id.clone().filter(|_| self.shape == MessageShape::Response)?;
        let error = Error::new(code::INTERNAL_ERROR, "the response to this request cannot be read");
        Some(Response {
            id: Some(id),
            outcome: ResponsePayload::Error(error.to_bytes()),
            result: None,
        })
    }
}

impl Message {
    /// Parses a message, at most [`json::MAX_DEPTH`] levels deep.
    pub fn parse(text: Bytes) -> Result<Self, InvalidMessage> {
        Self::parse_within(text, json::MAX_DEPTH)
    }

    /// Parses a message, at most `depth` levels deep.
    pub fn parse_within(text: Bytes, depth: usize) -> Result<Self, InvalidMessage> {
        let bytes = text.len();
        let mut object = Object::parse_with_nested(text.clone(), depth, NESTED_MEMBERS).map_err(
            |malformed| {
                let code = match malformed {
                    ParseError::Syntax(_) => code::PARSE_ERROR,
                    _ => code::INVALID_REQUEST,
                };
                InvalidMessage::of_part(&text, code, malformed.to_string())
            },
        )?;
        let id = object.get_bytes("id").map(Id::read);
        let bad_id = id.as_ref().and_then(|id| id.as_ref().err().copied());
        let id = id.and_then(Result::ok);
        let shape = if object.has("method") {
            MessageShape::Request
        } else if object.has("result") || object.has("error") {
            MessageShape::Response
        } else {
            MessageShape::Neither
        };
        let invalid = |reason: &str| InvalidMessage {
            id: id.clone(),
            code: code::INVALID_REQUEST,
            reason: reason.to_owned(),
            shape,
        };
        if !object.is("jsonrpc", "\"2.0\"") {
            return Err(invalid("`jsonrpc` must be \"2.0\""));
        }
        if shape != MessageShape::Request {
            return Self::parse_response(&mut object, id.clone()).ok_or_else(|| {
                invalid(
                    "neither a request (no `method`) nor a response (one of `result` and `error`)",
                )
            });
        }
        let method =
            object.get_string("method").ok_or_else(|| invalid("`method` must be a string"))?;
        let method = method.into();
        let params = match object.take_object("params") {
            None => Object::new(),
            // PHP writes parameters without members as `[]`, and some libraries write `null`.
            Some(Err(_))
                if object
                    .get("params")
                    .is_some_and(|it| it == "null" || json::is_empty_array(it.as_bytes())) =>
            {
                Object::new()
            }
            Some(params) => params.map_err(|malformed| InvalidMessage {
                id: id.clone(),
                code: if malformed == ParseError::NotAnObject {
                    code::INVALID_PARAMS
                } else {
                    code::INVALID_REQUEST
                },
                reason: format!("`params`: {malformed}"),
                shape,
            })?,
        };
        match (id.clone(), bad_id) {
            (Some(id), _) => Ok(Self::Request(Request { id, method, params, bytes })),
            (None, Some(bad)) => Err(invalid(&bad.in_member("id"))),
            (None, None) => Ok(Self::Notification(Notification { method, params })),
        }
    }

    fn parse_response(object: &mut Object, id: Option<Id>) -> Option<Self> {
        let is_object = |raw: &Bytes| raw.starts_with(b"{");
        let outcome = match (object.get_bytes("result"), object.get_bytes("error")) {
            (Some(result), None) => ResponsePayload::Result(result),
            (None, Some(error)) if is_object(&error) => ResponsePayload::Error(error),
            _ => return None,
        };
        let result = object.take_object("result").and_then(Result::ok);
        Some(Self::Response(Response { id, outcome, result }))
    }
}

/// Returns whether a text is a batch: an array, and not an object.
pub fn is_batch(text: &[u8]) -> bool {
    text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

/// Capacity for the members around a payload.
const ENVELOPE_BYTES: usize = 64;

/// Writes a request.
pub fn write_request(id: &Id, method: &str, params: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(params.len() + method.len() + ENVELOPE_BYTES);
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

/// Returns the text before the result in the response to request `id`; a `}` ends the response
/// after the result.
pub fn response_prefix(id: &Id) -> Bytes {
    let mut out = Vec::with_capacity(ENVELOPE_BYTES);
    write_result_prefix(id, &mut out);
    out.into()
}

fn write_result_prefix(id: &Id, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"result\":");
}

/// Writes the response to request `id`, on one line.
pub fn write_result(id: &Id, result: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(result.len() + ENVELOPE_BYTES);
    write_result_prefix(id, &mut out);
    out.extend_from_slice(result);
    out.push(b'}');
    json::on_one_line(out.into())
}

/// Writes the response to request `id`, with this object as its result, on one line.
pub fn write_object(id: &Id, result: &Object) -> Bytes {
    let mut out = Vec::with_capacity(result.written_len() + ENVELOPE_BYTES);
    write_result_prefix(id, &mut out);
    result.write_to(&mut out);
    out.push(b'}');
    json::on_one_line(out.into())
}

/// Like [`write_object`] in three parts. The middle part is the first value that was set and has at
/// least `bytes` bytes: it is not copied, and must be on one line. `None` if there is no such
/// value.
pub fn write_object_around(id: &Id, result: &Object, bytes: usize) -> Option<[Bytes; 3]> {
    let mut head = Vec::with_capacity(2 * ENVELOPE_BYTES);
    write_result_prefix(id, &mut head);
    let (value, mut behind) = result.write_around(bytes, &mut head)?;
    behind.push(b'}');
    Some([json::on_one_line(head.into()), value, json::on_one_line(behind.into())])
}

/// Writes an error response to request `id`, or to a request with an unreadable id.
///
/// Without an id the member is omitted (spec, transports: an error response that has no `id`).
/// JSON-RPC's own `null` is not an id in any revision of the protocol.
pub fn write_error(id: Option<&Id>, error: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(error.len() + ENVELOPE_BYTES);
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

/// JSON-RPC error created by Weir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Error code.
    pub code: i64,
    /// Description: what happened and who has to act.
    pub message: String,
    /// Data for programs, as JSON text.
    pub data: Option<Bytes>,
}

impl Error {
    /// Creates an error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Returns the error as a JSON object.
    pub fn to_bytes(&self) -> Bytes {
        let mut object = Object::new()
            .with("code", self.code.to_string())
            .with("message", json::quote(&self.message));
        if let Some(data) = &self.data {
            object.set("data", data.clone());
        }
        object.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &'static str) -> Result<Message, InvalidMessage> {
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
        let Ok(Message::Response(answer)) = answer else { panic!("an answer") };
        assert_eq!(answer.outcome, ResponsePayload::Result("{\"x\": 1.0}".into()));
        assert_eq!(answer.id.and_then(|id| id.as_local()), Some(7));
    }

    #[test]
    fn an_array_is_a_batch_whatever_is_in_it() {
        for (text, expected) in [
            (" [[], 7, {}] ", true),
            ("\r\n\t[", true),
            (" {}", false),
            ("{\"a\":[]}", false),
            ("7", false),
            (" ", false),
            ("", false),
        ] {
            assert_eq!(is_batch(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn an_id_keeps_its_type() {
        let id = |text: &'static str| Id::parse(Bytes::from_static(text.as_bytes()));
        assert_ne!(id("1"), id("\"1\""));
        assert_eq!(id("\"1\"").and_then(|id| id.as_local()), None);
        for bad in
            ["null", "1.5", "1.", ".0", "-.0", "1.0.0", "true", "{}", "[]", "1e3", "-", "1.0e1"]
        {
            assert_eq!(id(bad), None, "{bad}");
        }
        assert_eq!(id("-7.00").map(|id| id.to_string()).as_deref(), Some("-7.00"));
    }

    #[test]
    fn number_as_text_or_with_a_fraction_is_another_id_and_recognized_as_such() {
        let id =
            |text: &'static str| Id::parse(Bytes::from_static(text.as_bytes())).expect("an id");
        for disguised in ["\"7\"", "7.0", "7.00"] {
            let id = id(disguised);
            assert_eq!((id.as_local(), id.disguised_local()), (None, Some(7)), "{disguised}");
        }
        assert_eq!((id("7").as_local(), id("7").disguised_local()), (Some(7), None));
        for other in ["-7", "-7.0", "\"7.0\"", "\"-7\"", "\" 7\"", "\"\"", "\"\\u0037\""] {
            let id = id(other);
            assert_eq!((id.as_local(), id.disguised_local()), (None, None), "{other}");
        }
    }

    #[test]
    fn null_parameters_are_no_parameters() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":null}"#,
            r#"{"jsonrpc":"2.0","method":"m","params": null }"#,
        ] {
            let params = match parse(text) {
                Ok(Message::Request(Request { params, .. })) => params,
                Ok(Message::Notification(Notification { params, .. })) => params,
                other => panic!("{other:?}"),
            };
            assert!(params.is_empty(), "{text}");
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
    fn empty_array_of_parameters_is_no_parameters() {
        for params in ["[]", "[ ]", "[\n]"] {
            let of = |id: &str| {
                Message::parse(
                    format!(r#"{{"jsonrpc":"2.0",{id}"method":"m","params":{params}}}"#).into(),
                )
            };
            let found = match (of("").expect("a message"), of(r#""id":1,"#).expect("a message")) {
                (Message::Notification(notification), Message::Request(request)) => {
                    [notification.params, request.params]
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(found.map(|params| params.to_bytes()), ["{}", "{}"], "{params:?}");
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
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[[]]}"#,
                code::INVALID_PARAMS,
                Some("1"),
            ),
            (r#"{"jsonrpc":"2.0","method":"m","params":"[]"}"#, code::INVALID_PARAMS, None),
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
