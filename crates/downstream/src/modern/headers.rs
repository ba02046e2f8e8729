//! Headers that repeat the body of a modern HTTP request, and their validation.
//!
//! Invariant: the body decides, always; headers are compared with it and never trusted (spec
//! 2026-07-28, Streamable HTTP, server validation).

use std::borrow::Cow;

use hyper::header::HeaderName;
use hyper::{HeaderMap, StatusCode};

use crate::response::ErrorResponse;
use weir_base::json::Object;
use weir_mcp::code::HEADER_MISMATCH;
use weir_mcp::definition::param_headers::{self, ParamHeader, ParamHeaders};

/// Header with the protocol version, in every era that has it.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Refuses a version header that is missing or not the body's.
pub(crate) fn check_version(headers: &HeaderMap, body: &str) -> Result<(), ErrorResponse> {
    require_equal("MCP-Protocol-Version", single_value(headers, VERSION.as_str(), &VERSION)?, body)
}

/// Refuses a method header that is missing or not the body's.
pub(crate) fn check_method(headers: &HeaderMap, body: &str) -> Result<(), ErrorResponse> {
    require_equal("Mcp-Method", single_value(headers, METHOD.as_str(), &METHOD)?, body)
}

/// Refuses a name header that is missing or, decoded, not the body's.
pub(crate) fn check_name(headers: &HeaderMap, body: &str) -> Result<(), ErrorResponse> {
    require_equal("Mcp-Name", decoded_value(headers, "Mcp-Name", &NAME)?.as_deref(), body)
}

/// Returns all headers that repeat tool arguments.
pub(crate) fn params(headers: &HeaderMap) -> HeaderMap {
    let ours = headers.iter().filter(|(name, _)| name.as_str().starts_with(param_headers::PREFIX));
    let mut params = HeaderMap::new();
    for (name, value) in ours {
        params.append(name, value.clone());
    }
    params
}

/// Refuses headers that do not repeat a tool's arguments as its definition requires, and removes
/// the ones that do: Weir consumes these, the others are forwarded.
pub(crate) fn check_params(
    headers: &mut HeaderMap,
    declared: &ParamHeaders,
    params: &Object,
) -> Result<(), ErrorResponse> {
    for (name, value) in declared.values(params) {
        let header = decoded_value(headers, name.as_str(), name)?;
        match (header.as_deref(), value) {
            // No header can repeat an object or an array; the tool validates these.
            (None, None | Some(ParamHeader::Other)) => {}
            (None, Some(_)) => return Err(missing(name.as_str())),
            (Some(header), Some(value)) if value.matches_header(header) => {}
            (Some(_), _) => return Err(different(name.as_str())),
        }
        headers.remove(name);
    }
    Ok(())
}

/// Returns the single value of a header, decoded. An error calls it `label`.
fn decoded_value<'a>(
    headers: &'a HeaderMap,
    label: &str,
    name: &HeaderName,
) -> Result<Option<Cow<'a, str>>, ErrorResponse> {
    let raw = single_value(headers, label, name)?;
    let decoded = raw.map(|raw| {
        param_headers::decode(raw).ok_or_else(|| mismatch(&format!("{label} cannot be decoded")))
    });
    decoded.transpose()
}

/// Returns the single value of a header, in visible ASCII. An error calls it `label`.
fn single_value<'a>(
    headers: &'a HeaderMap,
    label: &str,
    name: &HeaderName,
) -> Result<Option<&'a str>, ErrorResponse> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(mismatch(&format!("{label} occurs more than once")));
    }
    let text = value.to_str().map_err(|_| mismatch(&format!("{label} has invalid characters")))?;
    Ok(Some(text))
}

fn require_equal(name: &str, header: Option<&str>, body: &str) -> Result<(), ErrorResponse> {
    match header {
        Some(header) if header == body => Ok(()),
        Some(_) => Err(different(name)),
        None => Err(missing(name)),
    }
}

fn different(name: &str) -> ErrorResponse {
    mismatch(&format!("{name} does not match the body"))
}

fn missing(name: &str) -> ErrorResponse {
    mismatch(&format!("{name} is missing"))
}

fn mismatch(text: &str) -> ErrorResponse {
    ErrorResponse::new(StatusCode::BAD_REQUEST, HEADER_MISMATCH, format!("Header mismatch: {text}"))
}

#[cfg(test)]
mod tests {
    use crate::modern::headers::*;
    use hyper::header::HeaderValue;

    fn name_is_good(values: &[&str], body: &str) -> bool {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("mcp-name", HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        match check_name(&headers, body) {
            Ok(()) => true,
            Err(refused) => {
                assert_eq!((refused.error.code, refused.status), (-32020, StatusCode::BAD_REQUEST));
                false
            }
        }
    }

    #[test]
    fn a_name_is_compared_after_decoding() {
        for (header, body, expected) in [
            ("us-west1", "us-west1", true),
            ("us-west1", "US-west1", false),
            ("us-west1", "us-west", false),
            ("=?base64?SGVsbG8sIOS4lueVjA==?=", "Hello, 世界", true),
            ("=?base64?IHBhZGRlZCA=?=", " padded ", true),
            ("=?base64?bGluZTEKbGluZTI=?=", "line1\nline2", true),
            ("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", "=?base64?literal?=", true),
            ("=?base64?literal?=", "=?base64?literal?=", false),
            ("=?base64?SGVsbG8?=", "Hello", false),
            ("=?base64?SGVs bG8=?=", "Hello", false),
            ("=?base64?SGVsbG8=", "Hello", false),
            ("=?BASE64?SGVsbG8=?=", "Hello", false),
            ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?=", true),
            ("=?base64?_-8=?=", "\u{ff}", false),
            ("=?base64?/w==?=", "\u{fffd}", false),
            ("=?base64??=", "", true),
            ("w\u{f6}rld", "w\u{f6}rld", false),
        ] {
            assert_eq!(name_is_good(&[header], body), expected, "{header:?} for {body:?}");
        }
        assert!(!name_is_good(&[], "x") && !name_is_good(&["x", "x"], "x"));
    }

    /// Checks `Mcp-Param-A` headers against the argument `a` of a tool that requires them; returns
    /// the number of remaining headers.
    fn params_are_good(type_: &str, argument: &str, values: &[&str]) -> Result<usize, ()> {
        let definition = format!(
            r#"{{"inputSchema":{{"properties":{{"a":{{"type":"{type_}","x-mcp-header":"A"}}}}}}}}"#
        );
        let definition = Object::parse(definition).expect("a definition");
        let declared = ParamHeaders::read(&definition).expect("a good mark").expect("a mark");
        let params = Object::parse(format!(r#"{{"arguments":{argument}}}"#)).expect("params");
        let mut headers = HeaderMap::new();
        for value in values {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            headers.append(HeaderName::from_bytes(b"MCP-Param-A").expect("a name"), value);
        }
        headers.insert("mcp-param-b", HeaderValue::from_static("?"));
        headers.insert("authorization", HeaderValue::from_static("?"));
        let mut headers = super::params(&headers);
        match check_params(&mut headers, &declared, &params) {
            Ok(()) => Ok(headers.len()),
            Err(refused) => {
                assert_eq!((refused.error.code, refused.status), (-32020, StatusCode::BAD_REQUEST));
                Err(())
            }
        }
    }

    #[test]
    fn arguments_are_compared_with_their_headers() {
        for (type_, argument, values, is_good) in [
            ("string", r#"{"a":"us-west1"}"#, &["us-west1"][..], true),
            ("string", r#"{"a":"us-west1"}"#, &["US-west1"], false),
            ("string", r#"{"a":"us-west1"}"#, &[], false),
            ("string", r#"{"a":"us-west1"}"#, &["us-west1", "us-west1"], false),
            ("string", r#"{"a":"Hello"}"#, &["=?base64?SGVsbG8=?="], true),
            ("string", r#"{"a":"Hello"}"#, &["=?base64?SGVsbG8?="], false),
            ("string", r#"{"a":"Hello"}"#, &["=?base64?SGVs!!!bG8=?="], false),
            ("string", r#"{"a":"SGVsbG8="}"#, &["SGVsbG8="], true),
            ("string", r#"{"a":"=?base64?SGVsbG8="}"#, &["=?base64?SGVsbG8="], true),
            ("string", r#"{"a":"Z\u00fcrich"}"#, &["=?base64?WsO8cmljaA==?="], true),
            ("string", r#"{"a":"Zürich"}"#, &["Zürich"], false),
            ("string", r#"{"a":""}"#, &[""], true),
            ("string", r#"{"a":null}"#, &[], true),
            ("string", r#"{"a":null}"#, &["null"], false),
            ("string", r#"{"a":null}"#, &[""], false),
            ("string", "{}", &[], true),
            ("string", "{}", &["x"], false),
            ("string", "null", &[], true),
            ("string", "null", &["x"], false),
            ("string", r#"{"a":[]}"#, &[], true),
            ("string", r#"{"a":[]}"#, &["[]"], false),
            ("boolean", r#"{"a":true}"#, &["true"], true),
            ("boolean", r#"{"a":true}"#, &["True"], false),
            ("boolean", r#"{"a":false}"#, &["true"], false),
            ("integer", r#"{"a":42}"#, &["42"], true),
            ("integer", r#"{"a":42}"#, &["42.0"], true),
            ("integer", r#"{"a":42.0}"#, &["42"], true),
            ("integer", r#"{"a":4.2e1}"#, &["42"], true),
            ("integer", r#"{"a":-7}"#, &["-7"], true),
            ("integer", r#"{"a":-7}"#, &["7"], false),
            ("integer", r#"{"a":42}"#, &["43"], false),
            ("integer", r#"{"a":42}"#, &["42x"], false),
            ("integer", r#"{"a":42}"#, &["NaN"], false),
            ("integer", r#"{"a":1e999}"#, &["inf"], false),
            ("integer", r#"{"a":9007199254740993}"#, &["9007199254740993"], true),
            ("integer", r#"{"a":9007199254740993}"#, &["9007199254740992"], false),
            ("integer", r#"{"a":1.5}"#, &["1.5"], true),
            ("integer", r#"{"a":1.5}"#, &["1"], false),
            ("integer", r#"{"a":"42"}"#, &["42"], true),
        ] {
            let expected = if is_good { Ok(1) } else { Err(()) };
            let found = params_are_good(type_, argument, values);
            assert_eq!(found, expected, "{argument} and {values:?}");
        }
    }
}
