//! What the value of a key may look like.
//!
//! Patterns are regular expressions of the common kind of JavaScript and Rust, and whole: they begin with `^`.
//! They refuse nothing that the reader accepts; where a pattern cannot tell, it accepts.
//!
//! Knows nothing of: keys.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;

use super::Key;

/// What a value may look like.
pub(in crate::config) enum Shape {
    Boolean,
    Count(RangeInclusive<usize>),
    Duration,
    Size,
    /// One of a few words.
    Choice(Vec<&'static str>),
    /// A string: what it is called, and its pattern.
    Text(&'static str, &'static str),
    /// A date and a time with an offset, which TOML has a type for.
    Moment,
    /// A string that is never shown, with its pattern, or where it is.
    Secret(&'static str),
    List {
        of: Box<Shape>,
        /// The fewest and the most entries.
        count: (usize, Option<usize>),
    },
    /// A list, or its only entry without brackets.
    OneOrList(Box<Shape>),
    /// Free names, with their pattern.
    Map {
        names: String,
        of: Box<Shape>,
    },
    Table {
        keys: Vec<Key>,
        /// What holds between the keys: members of the table's JSON schema.
        rules: Value,
    },
}

impl Shape {
    pub(super) fn choice<T>(choices: &[(&'static str, T)]) -> Self {
        Self::Choice(choices.iter().map(|(word, _)| *word).collect())
    }

    pub(super) fn text() -> Self {
        Self::Text("string", NOT_EMPTY)
    }

    pub(super) fn list(of: Self) -> Self {
        Self::List { of: Box::new(of), count: (0, None) }
    }

    pub(super) fn table(keys: Vec<Key>) -> Self {
        Self::Table { keys, rules: Value::Null }
    }

    pub(super) fn map(names: impl Into<String>, of: Self) -> Self {
        Self::Map { names: names.into(), of: Box::new(of) }
    }
}

/// A length of time as one writes it.
pub(super) fn duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    // "60s" is plainer than "1m".
    let is_plain = |unit: u128| millis.is_multiple_of(unit) && millis >= 2 * unit;
    let unit = units.into_iter().find(|(_, unit)| is_plain(*unit));
    let (name, unit) = unit.unwrap_or(("ms", 1));
    format!("{}{name}", millis / unit)
}

/// A number of bytes as one writes it.
pub(super) fn size(bytes: usize) -> Value {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes.is_multiple_of(1 << shift)) {
        Some((name, shift)) => format!("{}{name}", bytes >> shift).into(),
        None => bytes.into(),
    }
}

// === Patterns ===

pub(super) const DURATION: &str = "^0*[1-9][0-9]*(?:ms|s|m|h)$";
pub(super) const SIZE: &str = "^0*[1-9][0-9]*(?:KiB|MiB|GiB)$";
pub(super) const MOMENT: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}\
     (?::[0-9]{2}(?:\\.[0-9]+)?)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})$";
/// Variables are put in before a string is judged, so one that holds any may be anything.
pub(super) const VARIABLE: &str = "\\$[{$]";

pub(super) const NOT_EMPTY: &str = "^[^\\u0000]+$";
/// A path with `*` in its last part only.
pub(super) const FILES: &str = "^(?![\\s\\S]*\\*[\\s\\S]*/)[^\\u0000]+$";
pub(super) const ANYTHING: &str = "^[^\\u0000]*$";
pub(super) const UPSTREAM_NAME: &str = "^[a-z][a-z0-9-]{0,31}$";
pub(super) const PLAIN_NAME: &str = "^[A-Za-z0-9_.-]{1,64}$";
pub(super) const SEPARATOR: &str = "^_[A-Za-z0-9_-]{0,7}$";
pub(super) const SOCKET: &str =
    "^(?:[0-9]{1,3}(?:\\.[0-9]{1,3}){3}|\\[[0-9A-Fa-f:.]+(?:%[0-9]+)?\\]):[0-9]{1,5}$";
pub(super) const PATH: &str = "^/[^?#\\s]*$";
pub(super) const URL: &str = "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\\s]+(?:[/?][^#\\s]*)?$";
pub(super) const URL_WITHOUT_QUERY: &str = "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\\s]+(?:/[^?#\\s]*)?$";
/// Without placeholders, as documents of providers have them.
pub(super) const ISSUER: &str =
    "^(?:[Hh][Tt][Tt][Pp][Ss]://|[Hh][Tt][Tt][Pp]://(?:localhost|127\\.|\\[))[^?#@\\s{}<>]*$";
/// RFC 6749, 3.3.
pub(super) const SCOPE: &str = "^(?!offline_access$)[!#-\\[\\]-~]+$";
pub(super) const HOST: &str = "^[^@*/?#\\s]+$";
pub(super) const ORIGIN: &str = "^[A-Za-z0-9+.-]+://[^@*/?#\\s]+$";
pub(super) const CERTIFICATE: &str = "^(?:dns:[\\s\\S]+|uri:[\\s\\S]*:|sha256:[0-9A-Fa-f]{64}$)";
pub(super) const HASH: &str = "^[0-9A-Fa-f]{64}$";
/// A pattern over one upstream.
pub(super) const ITEM_PATTERN: &str = "^[\\s\\S]+$";
/// A pattern over all upstreams.
pub(super) const POLICY_PATTERN: &str = "^(?:\\*$|[^/]+/)";
pub(super) const RATE: &str = "^ *0*[1-9][0-9]* */ *(?:s|min|h) *$";
pub(super) const RENAMED: &str = "^(?:prompts|tools)/[\\s\\S]+$";
pub(super) const VARIABLE_NAME: &str = "^[^=\\u0000]+$";
pub(super) const HEADER_VALUE: &str = "^[\\t -~]*$";
/// RFC 7617, 2: the first colon ends the name.
pub(super) const USER: &str = "^[^:\\u0000-\\u001f\\u007f-\\u009f]*$";
/// RFC 6750, 2.1: one word; Weir puts `Bearer` before it.
pub(super) const TOKEN: &str = "^[!-~]+$";
pub(super) const ADMIN_TOKEN: &str = "^[!-~]{16,}$";
pub(super) const PASSWORD: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";

/// What can name a header, and is none of `taken`, in any case of letters, nor one of MCP's own.
pub(super) fn header_name(taken: &[&str]) -> String {
    let any_case = |name: &&str| {
        let either = |c: char| match c.is_ascii_alphabetic() {
            true => format!("[{}{c}]", c.to_ascii_uppercase()),
            false => c.to_string(),
        };
        name.chars().map(either).collect::<String>()
    };
    let taken = taken.iter().map(any_case).collect::<Vec<_>>().join("|");
    format!("^(?!{}|(?:{taken})$)[!#$%&'*+.^_`|~0-9A-Za-z-]+$", any_case(&"mcp-"))
}
