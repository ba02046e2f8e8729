//! The headers in which a modern HTTP request repeats its body, and whether they do.
//!
//! Promise: the body decides, always; headers are compared with it and never believed (spec
//! 2026-07-28, Streamable HTTP, server validation).

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::{HeaderMap, StatusCode};

use super::answer::Refused;
use crate::mcp::code::HEADER_MISMATCH;

/// The header that names the protocol's version, in every era that has it.
pub(super) const VERSION: &str = "mcp-protocol-version";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";

/// Refuses a version header that is missing or not the body's.
pub(super) fn check_version(headers: &HeaderMap, body: &str) -> Result<(), Refused> {
    compare("MCP-Protocol-Version", plain(headers, VERSION)?, body)
}

/// Refuses a method header that is missing or not the body's.
pub(super) fn check_method(headers: &HeaderMap, body: &str) -> Result<(), Refused> {
    compare("Mcp-Method", plain(headers, METHOD)?, body)
}

/// Refuses a name header that is missing or, decoded, not the body's.
pub(super) fn check_name(headers: &HeaderMap, body: &str) -> Result<(), Refused> {
    let raw = plain(headers, NAME)?;
    let decoded = raw.map(|raw| decode(raw).ok_or_else(|| mismatch("Mcp-Name is not readable")));
    compare("Mcp-Name", decoded.transpose()?.as_deref(), body)
}

/// Reads a value that may be written as `=?base64?…?=`; `None` if the mark is there and the rest is
/// no base64 of a text.
fn decode(raw: &str) -> Option<Cow<'_, str>> {
    let Some(encoded) = raw.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="))
    else {
        return Some(Cow::Borrowed(raw));
    };
    let bytes = STANDARD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// The only value of a header, in characters that a header may have.
fn plain<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refused> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(mismatch(&format!("{name} stands more than once")));
    }
    let text = value.to_str().map_err(|_| mismatch(&format!("{name} has invalid characters")))?;
    Ok(Some(text))
}

fn compare(name: &str, header: Option<&str>, body: &str) -> Result<(), Refused> {
    match header {
        Some(header) if header == body => Ok(()),
        Some(_) => Err(mismatch(&format!("{name} does not say what the body says"))),
        None => Err(mismatch(&format!("{name} is missing"))),
    }
}

fn mismatch(text: &str) -> Refused {
    Refused::new(StatusCode::BAD_REQUEST, HEADER_MISMATCH, format!("Header mismatch: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn name_is_good(values: &[&str], body: &str) -> bool {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(NAME, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
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
}
