//! Trace context: the members of `_meta` that say to which trace a request belongs.
//!
//! A client may send anything under these names, and servers pass them to libraries that expect
//! the formats of W3C Trace Context (`traceparent`, `tracestate`) and W3C Baggage (`baggage`).
//! Malformed members are removed; well-formed ones pass byte for byte.
//!
//! Invariant: a `tracestate` passes only beside a well-formed `traceparent` (W3C Trace Context,
//! section 3.3).

use std::collections::HashSet;

use bytes::Bytes;

use weir_base::json::Object;

/// The member that names the trace and the caller's own span.
pub const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const BAGGAGE: &str = "baggage";

/// The longest `traceparent`, in bytes. Version 00 has 55; a later version may be longer.
const MAX_TRACEPARENT_BYTES: usize = 256;
/// The longest `tracestate` and the longest `baggage`, in bytes (W3C Baggage, section 3.3.2).
const MAX_LIST_BYTES: usize = 8_192;
/// Maximum number of members of a `tracestate` (W3C Trace Context, section 3.3.1).
const MAX_TRACESTATE_MEMBERS: usize = 32;
/// Maximum number of members of a `baggage`.
const MAX_BAGGAGE_MEMBERS: usize = 180;

/// Removes malformed trace context from a request's `_meta`. Returns whether there was any.
pub fn take_malformed(meta: &mut Object) -> bool {
    let is_good =
        |name, is_good: fn(&str) -> bool| meta.get_string(name).is_some_and(|text| is_good(&text));
    let has_parent = is_good(TRACEPARENT, |text| trace_id(text).is_some());
    let bad = [
        (TRACEPARENT, !has_parent),
        (TRACESTATE, !has_parent || !is_good(TRACESTATE, is_tracestate)),
        (BAGGAGE, !is_good(BAGGAGE, is_baggage)),
    ];
    bad.into_iter().filter(|(name, is_bad)| *is_bad && meta.take(name).is_some()).count() > 0
}

/// The result of a request without malformed trace context in its `_meta`; unchanged if there is
/// none.
pub fn without_malformed(result: Bytes) -> Bytes {
    let cleaned = || {
        let mut result = Object::parse_trusted(result.clone()).ok()?;
        let mut meta = result.get_object("_meta")?;
        take_malformed(&mut meta).then(|| {
            result.set("_meta", meta.to_bytes());
            result.to_bytes()
        })
    };
    cleaned().unwrap_or(result)
}

/// The trace id of a `traceparent`: version, trace, parent and flags in lower-case hexadecimal
/// digits, where the ids are not all zeros and the version is not `ff`.
pub fn trace_id(traceparent: &str) -> Option<Box<str>> {
    let is_hex = |text: &str, length: usize| {
        text.len() == length
            && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let is_id = |text: &str, length| is_hex(text, length) && text.bytes().any(|byte| byte != b'0');
    if traceparent.len() > MAX_TRACEPARENT_BYTES {
        return None;
    }
    let mut parts = traceparent.splitn(5, '-');
    let (version, trace, parent, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_good = is_hex(version, 2) && version != "ff" && is_id(trace, 32) && is_id(parent, 16);
    // Later versions may append fields to the flags; nothing is known about them except that they
    // are text.
    let is_whole = match parts.next() {
        None => true,
        Some(more) => version != "00" && more.bytes().all(|byte| byte.is_ascii_graphic()),
    };
    (is_good && is_hex(flags, 2) && is_whole).then(|| trace.into())
}

/// Whether the text is a `tracestate`: a list of `key=value`, each key once (W3C Trace Context,
/// section 3.3.1).
fn is_tracestate(text: &str) -> bool {
    let mut keys = HashSet::new();
    let is_member = |member: &str| {
        let Some((key, value)) = member.split_once('=') else { return false };
        is_tracestate_key(key) && is_tracestate_value(value)
    };
    let is_new =
        |member: &str| keys.insert(member.split('=').next().unwrap_or_default().to_owned());
    is_list(text, MAX_TRACESTATE_MEMBERS, is_member, is_new)
}

/// Lower-case letters and digits, and `_-*/@`; begins with a letter or digit.
fn is_tracestate_key(key: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_good = |byte: u8| is_letter(byte) || b"_-*/@".contains(&byte);
    key.len() <= 256 && key.bytes().all(is_good) && key.bytes().next().is_some_and(is_letter)
}

/// Printable ASCII except `,` and `=`.
fn is_tracestate_value(value: &str) -> bool {
    let is_good = |byte: u8| (b' '..=b'~').contains(&byte) && !b",=".contains(&byte);
    (1..=256).contains(&value.len()) && value.bytes().all(is_good)
}

/// Whether the text is a `baggage`: a list of `key=value`, each with properties after `;` (W3C
/// Baggage, section 3.3.1).
fn is_baggage(text: &str) -> bool {
    let is_pair = |pair: &str, needs_value: bool| match pair.split_once('=') {
        Some((key, value)) => is_token(trim(key)) && is_baggage_value(trim(value)),
        None => !needs_value && is_token(trim(pair)),
    };
    let is_member = |member: &str| {
        let mut parts = member.split(';');
        let is_good = parts.next().is_some_and(|pair| is_pair(pair, true));
        is_good && parts.all(|property| is_pair(property, false))
    };
    is_list(text, MAX_BAGGAGE_MEMBERS, is_member, |_| true)
}

/// Whether the text is a token (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_good)
}

/// Printable ASCII except space, `"`, `,`, `;` and `\`.
fn is_baggage_value(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte))
}

/// Whether the text is a list of members with commas and optional spaces between them. Empty
/// members of a `tracestate` are allowed and ignored.
fn is_list(
    text: &str,
    max_members: usize,
    is_member: impl Fn(&str) -> bool,
    mut is_new: impl FnMut(&str) -> bool,
) -> bool {
    if text.len() > MAX_LIST_BYTES {
        return false;
    }
    let members = text.split(',').map(trim).filter(|member| !member.is_empty());
    let mut count = 0;
    for member in members {
        count += 1;
        if count > max_members || !is_member(member) || !is_new(member) {
            return false;
        }
    }
    count > 0
}

/// The text without the optional whitespace around it.
fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_trace_is_told_if_its_parent_is_well_formed() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let long = format!("01-{}-{}", &PARENT[3..], "x".repeat(MAX_TRACEPARENT_BYTES));
        for (text, expected) in [
            (PARENT, Some(trace)),
            ("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more-of-it", Some(trace)),
            ("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-m\u{0}re", None),
            (&long, None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", None),
            ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
            ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", None),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n", None),
            ("", None),
            ("x\r\ny", None),
        ] {
            assert_eq!(trace_id(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_list_is_taken_as_its_specification_writes_it() {
        let many =
            |count: usize| (0..count).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
        let long = |bytes: usize| format!("k={}", "v".repeat(bytes - 2));
        for (text, is_state, is_bag) in [
            ("a=1", true, true),
            ("rojo=00f067aa0ba902b7, congo=t61rcWkgMzE", true, true),
            ("fw529a3039@dt=FfD5,a_-*/=~", true, false),
            ("a=b c", true, false),
            ("a=1,,b=2", true, true),
            ("a=1,a=2", false, true),
            ("A=1", false, true),
            ("a", false, false),
            ("=1", false, false),
            ("a=", false, true),
            ("", false, false),
            ("a=1\u{0}", false, false),
            ("a=1\n", false, false),
            ("a=\u{e4}", false, false),
            ("a = 1 ; p = 2 ; q, b=%20", false, true),
            ("a=1;p=\"2\"", false, false),
            ("a=1;", true, false),
            (&many(MAX_TRACESTATE_MEMBERS), true, true),
            (&many(MAX_TRACESTATE_MEMBERS + 1), false, true),
            (&many(MAX_BAGGAGE_MEMBERS + 1), false, false),
            (&long(MAX_LIST_BYTES), false, true),
            (&long(MAX_LIST_BYTES + 1), false, false),
        ] {
            assert_eq!((is_tracestate(text), is_baggage(text)), (is_state, is_bag), "{text}");
        }
    }

    #[test]
    fn what_is_malformed_is_taken_out_and_the_rest_keeps_its_bytes() {
        let parent = format!(r#""traceparent":"{PARENT}""#);
        for (sent, expected) in [
            (format!("{{ {parent} , \"tracestate\":\"a=1\"}}"), None),
            (r#"{"x":1e400, "baggage" : "a=1"}"#.into(), None),
            (r#"{"tracestate":"a=1","x":1e400}"#.into(), Some(r#"{"x":1e400}"#.into())),
            (r#"{"traceparent":"\u0000","tracestate":"a=1"}"#.into(), Some("{}".into())),
            (format!(r#"{{{parent},"tracestate":7}}"#), Some(format!("{{{parent}}}"))),
            (format!(r#"{{{parent},"baggage":["a"]}}"#), Some(format!("{{{parent}}}"))),
        ] {
            let mut meta = Object::parse(sent.clone()).expect("an object");
            assert_eq!(take_malformed(&mut meta), expected.is_some(), "{sent}");
            assert_eq!(meta.to_bytes(), expected.unwrap_or(sent));
        }
    }

    #[test]
    fn a_result_loses_what_is_malformed_and_nothing_else() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let good = format!(r#"{{"action":"accept", "_meta":{{"traceparent":"{parent}"}}}}"#);
        let bad = r#"{"action":"accept","_meta":{"traceparent":"x\n","a":1e400}}"#;
        for (text, expected) in [
            (&*good, &*good),
            (bad, r#"{"action":"accept","_meta":{"a":1e400}}"#),
            (r#"{ "_meta" : 7}"#, r#"{ "_meta" : 7}"#),
        ] {
            assert_eq!(without_malformed(text.to_owned().into()), expected);
        }
    }
}
