//! Strings of JSON: quoting and decoding one, and rewriting some of those inside a text.
//!
//! Invariants of rewriting: every byte outside of a rewritten string stays as it was. A text
//! without a rewritten string is not copied. Strings are passed decoded, half of a surrogate pair
//! as U+FFFD. The text must be JSON; in any other text only some strings are found.

use std::borrow::Cow;

use bytes::Bytes;
use wide::u8x16;

/// Writes a string as JSON text, quotes included.
pub fn quote(text: &str) -> Bytes {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_quoted(&mut out, text);
    out.into()
}

pub(super) fn write_quoted(out: &mut Vec<u8>, text: &str) {
    // Most texts are names without escapes.
    if is_plain(text.as_bytes()) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
        return;
    }
    serde_json::to_writer(out, text).expect("a string is always writable as JSON");
}

/// Returns whether a text contains nothing that has to be escaped.
fn is_plain(text: &[u8]) -> bool {
    let is_plain_lane = |lane: &[u8; 16]| {
        let lane = u8x16::new(*lane);
        let marks = lane.simd_eq(u8x16::splat(b'"')) | lane.simd_eq(u8x16::splat(b'\\'));
        !(marks | lane.simd_lt(u8x16::splat(b' '))).any()
    };
    match text.last_chunk() {
        // The last vector overlaps the one before it.
        Some(last) => text.as_chunks().0.iter().all(is_plain_lane) && is_plain_lane(last),
        None => text.iter().all(|byte| *byte >= b' ' && !matches!(byte, b'"' | b'\\')),
    }
}

/// Decodes JSON text that is a string; `None` if it is something else.
pub fn decode_string(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

/// Decodes the raw text of a member that is a string; `None` if it is something else.
pub fn decode_bytes(raw: &[u8]) -> Option<Cow<'_, str>> {
    decode_string(std::str::from_utf8(raw).ok()?)
}

/// Returns whether [`decode_bytes`] finds a string in the raw text of a member. Of its escapes only
/// the values of `\u` were not checked when the text was parsed.
pub(super) fn is_string(raw: &[u8]) -> bool {
    let has_units = || memchr::memmem::find(raw, b"\\u").is_some();
    raw.starts_with(b"\"") && (!has_units() || decode_bytes(raw).is_some())
}

/// String inside a JSON text.
pub struct JsonString<'a> {
    /// Text between the quotes, with its escapes.
    pub raw: &'a str,
    /// True if the string is the name of a member.
    pub is_name: bool,
    /// Name, as written, of the member of the outermost object that contains the string; empty for
    /// that name itself.
    pub member: &'a str,
}

impl<'a> JsonString<'a> {
    /// Returns the decoded string.
    pub fn text(&self) -> Cow<'a, str> {
        match self.raw.contains('\\') {
            true => unescape(self.raw).into(),
            false => self.raw.into(),
        }
    }
}

/// Calls `rewrite` for each string and replaces the string by the result; returns `None` if nothing
/// was replaced.
pub fn rewrite_strings(
    text: &str,
    mut rewrite: impl FnMut(&JsonString<'_>) -> Option<String>,
) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let mut out: Option<Vec<u8>> = None;
    // End of the text copied to `out`, and the current position.
    let (mut copied, mut at) = (0, 0);
    let (mut depth, mut member) = (0_usize, "");
    while at < bytes.len() {
        match bytes[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let start = at + 1;
                let end = end_of_string(bytes, start);
                let raw = &text[start..end];
                let behind = bytes.get(end + 1..).unwrap_or_default();
                let next = behind.iter().find(|byte| !byte.is_ascii_whitespace());
                let is_name = next == Some(&b':');
                if is_name && depth == 1 {
                    member = "";
                }
                if let Some(new) = rewrite(&JsonString { raw, is_name, member }) {
                    let out = out.get_or_insert_with(|| Vec::with_capacity(bytes.len()));
                    out.extend_from_slice(&bytes[copied..at]);
                    out.extend_from_slice(&quote(&new));
                    copied = end + 1;
                }
                if is_name && depth == 1 {
                    member = raw;
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    let mut out = out?;
    out.extend_from_slice(bytes.get(copied..).unwrap_or_default());
    Some(out)
}

/// Returns the position of the quote that ends a string.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Decodes the escapes.
fn unescape(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((before, behind)) = rest.split_once('\\') {
        out.push_str(before);
        let mut letters = behind.chars();
        let escaped = letters.next().unwrap_or('\\');
        rest = letters.as_str();
        out.push(match escaped {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let (letter, behind) = code_point(rest);
                rest = behind;
                letter
            }
            plain => plain,
        });
    }
    out.push_str(rest);
    out
}

/// Decodes the digits behind `\u`, and those of the second half of a surrogate pair.
fn code_point(text: &str) -> (char, &str) {
    let unit = |text: &str| u32::from_str_radix(text.get(..4)?, 16).ok();
    let Some(first) = unit(text) else { return (char::REPLACEMENT_CHARACTER, text) };
    let rest = &text[4..];
    let second = rest.strip_prefix("\\u").and_then(unit);
    match second.filter(|low| (0xD800..0xDC00).contains(&first) && (0xDC00..0xE000).contains(low)) {
        Some(low) => {
            let code = 0x10000 + ((first - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), &rest[6..])
        }
        None => (char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(text: &str) -> Vec<String> {
        let mut all = Vec::new();
        let changed = rewrite_strings(text, |found| {
            let sort = if found.is_name { "name" } else { "in" };
            all.push(format!("{sort} {:?}: {}", found.member, found.text()));
            None
        });
        assert_eq!(changed, None);
        all
    }

    #[test]
    fn every_string_is_found_with_its_place() {
        let text = r#" {"a" : "1", "b":{"c":["2",{"d":"3"}]},"e\"":"4"} "#;
        assert_eq!(
            found(text),
            [
                r#"name "": a"#,
                r#"in "a": 1"#,
                r#"name "": b"#,
                r#"name "b": c"#,
                r#"in "b": 2"#,
                r#"name "b": d"#,
                r#"in "b": 3"#,
                r#"name "": e""#,
                r#"in "e\\\"": 4"#,
            ]
        );
        assert_eq!(found(r#""alone""#), [r#"in "": alone"#]);
    }

    #[test]
    fn a_string_is_shown_as_it_is_meant() {
        for (raw, meant) in [
            (r"\u001b[0m", "\u{1b}[0m"),
            (r"\ud83d\ude00", "😀"),
            (r"\udb40\udc41x", "\u{e0041}x"),
            (r"\ud83d!", "\u{fffd}!"),
            (r"\ud83d\u0041", "\u{fffd}A"),
            (r"\ude00", "\u{fffd}"),
            (r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t"),
        ] {
            assert_eq!(found(&format!("[\"{raw}\"]")), [format!("in \"\": {meant}")], "{raw}");
        }
    }

    #[test]
    fn what_is_not_rewritten_keeps_every_byte() {
        let text = r#"{ "a" : "x\u0041" , "n":1e400,"b":["x",  "\/é"] }"#;
        let new = rewrite_strings(text, |found| (found.raw == "x").then(|| "\"\u{1}".to_owned()));
        let new = String::from_utf8(new.expect("a change")).expect("text");
        assert_eq!(new, r#"{ "a" : "x\u0041" , "n":1e400,"b":["\"\u0001",  "\/é"] }"#);
    }

    proptest! {
        #[test]
        fn any_text_is_walked_to_its_end(text in ".*", json in prop::collection::vec(".*", 0..5)) {
            let _ = rewrite_strings(&text, |_| Some(String::new()));
            let written = serde_json::to_string(&json).expect("strings are writable");
            let mut seen = Vec::new();
            rewrite_strings(&written, |found| { seen.push(found.text().into_owned()); None });
            prop_assert_eq!(seen, json);
        }
    }
}
