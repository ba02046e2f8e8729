//! Shapes of values: type, bounds and pattern.
//!
//! Patterns are regular expressions in the common syntax of JavaScript and Rust, and match whole
//! values: they begin with `^`. They accept everything that the reader accepts, and in cases that a
//! pattern cannot decide they accept the value.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value};

use super::KeySpec;

/// Shape of a value.
#[derive(Clone)]
pub(crate) enum ValueShape {
    Boolean,
    Count(RangeInclusive<usize>),
    Duration,
    Size,
    /// One of a few words.
    Choice(Vec<&'static str>),
    /// String: name of its kind, and its pattern.
    Text(&'static str, &'static str),
    /// Date and time with an offset, a type of TOML.
    DateTime,
    /// Secret: a string with this pattern, or a table with its source.
    Secret(&'static str),
    List {
        of: Box<ValueShape>,
        /// Minimum and maximum number of entries.
        count: (usize, Option<usize>),
    },
    /// List, or its only entry without brackets.
    OneOrList(Box<ValueShape>),
    /// Table with free names that match a pattern.
    Map {
        names: String,
        of: Box<ValueShape>,
    },
    /// Table with these keys.
    Table(Vec<KeySpec>),
}

impl ValueShape {
    pub(crate) fn choice<T>(choices: &[(&'static str, T)]) -> Self {
        Self::Choice(choices.iter().map(|(word, _)| *word).collect())
    }

    pub(crate) fn text() -> Self {
        Self::Text("string", NOT_EMPTY)
    }

    pub(crate) fn list(of: Self) -> Self {
        Self::List { of: Box::new(of), count: (0, None) }
    }

    /// Returns the keys of a table, or of each of several tables.
    pub(crate) fn keys(&self) -> Option<&[KeySpec]> {
        match self {
            Self::Table(keys) => Some(keys),
            Self::Map { of, .. } | Self::List { of, .. } => of.keys(),
            _ => None,
        }
    }

    pub(crate) fn map(names: impl Into<String>, of: Self) -> Self {
        Self::Map { names: names.into(), of: Box::new(of) }
    }
}

/// Formats a duration.
pub(crate) fn duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    // "60s" is easier to read than "1m".
    let is_plain =
        |unit: u128| millis.is_multiple_of(unit) && (millis >= 2 * unit || unit == 1_000);
    let unit = units.into_iter().find(|(_, unit)| is_plain(*unit));
    let (name, unit) = unit.unwrap_or(("ms", 1));
    format!("{}{name}", millis / unit)
}

/// Formats a number of bytes.
pub(crate) fn size(bytes: usize) -> Value {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes.is_multiple_of(1 << shift)) {
        Some((name, shift)) => format!("{}{name}", bytes >> shift).into(),
        None => bytes.into(),
    }
}

// === Patterns ===

pub(crate) const DURATION: &str = "^0*[1-9][0-9]*(?:ms|s|m|h)$";
pub(crate) const SIZE: &str = "^0*[1-9][0-9]*(?:KiB|MiB|GiB)$";
pub(crate) const DATE_TIME: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}\
     (?::[0-9]{2}(?:\\.[0-9]+)?)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})$";
/// Strings with variables match every pattern, because variables are replaced before parsing.
pub(crate) const VARIABLE: &str = "\\$[{$]";

pub(crate) const NOT_EMPTY: &str = "^[^\\u0000]+$";
/// Path with `*` in its last part only.
pub(crate) const FILES: &str = "^(?![\\s\\S]*\\*[\\s\\S]*/)[^\\u0000]+$";
pub(crate) const ANYTHING: &str = "^[^\\u0000]*$";
pub(crate) const UPSTREAM_NAME: &str = "^[a-z][a-z0-9-]{0,31}$";
pub(crate) const PLAIN_NAME: &str = "^[A-Za-z0-9_.-]{1,64}$";
pub(crate) const SEPARATOR: &str = "^_[A-Za-z0-9_-]{0,7}$";
pub(crate) const SOCKET: &str =
    "^(?:[0-9]{1,3}(?:\\.[0-9]{1,3}){3}|\\[[0-9A-Fa-f:.]+(?:%[0-9]+)?\\]):[0-9]{1,5}$";
pub(crate) const NETWORK: &str = "^[0-9A-Fa-f:.]+(?:/[0-9]{1,3})?$";
pub(crate) const PATH: &str = "^/[^?#\\s]*$";
pub(crate) const URL: &str = "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\\s]+(?:[/?][^#\\s]*)?$";
pub(crate) const URL_WITHOUT_QUERY: &str = "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\\s]+(?:/[^?#\\s]*)?$";
/// URL of an issuer, without the placeholders of providers' documentation.
pub(crate) const ISSUER: &str =
    "^(?:[Hh][Tt][Tt][Pp][Ss]://|[Hh][Tt][Tt][Pp]://(?:localhost|127\\.|\\[))[^?#@\\s{}<>]*$";
/// Scope (RFC 6749, 3.3).
pub(crate) const SCOPE: &str = "^(?!offline_access$)[!#-\\[\\]-~]+$";
pub(crate) const OAUTH_PARAM: &str = "^(?!(?:response_type|client_id|redirect_uri|state|code_challenge|code_challenge_method|resource|\
     scope|grant_type|code|code_verifier|refresh_token|client_secret|client_assertion|\
     client_assertion_type|assertion)$)[\\s\\S]+$";
pub(crate) const HOST: &str = "^[^@*/?#\\s]+$";
pub(crate) const ORIGIN: &str = "^[A-Za-z0-9+.-]+://[^@*/?#\\s]+$";
pub(crate) const CERTIFICATE: &str = "^(?:dns:[\\s\\S]+|uri:[\\s\\S]*:|sha256:[0-9A-Fa-f]{64}$)";
pub(crate) const HASH: &str = "^[0-9A-Fa-f]{64}$";
/// Pattern over the items of one upstream.
pub(crate) const ITEM_PATTERN: &str = "^[\\s\\S]+$";
/// Pattern over the items of all upstreams.
pub(crate) const POLICY_PATTERN: &str = "^(?:\\*$|[^/]+/)";
pub(crate) const RATE: &str = "^ *0*[1-9][0-9]* */ *(?:s|min|h) *$";
pub(crate) const RENAMED: &str = "^(?:prompts|tools)/[\\s\\S]+$";
pub(crate) const VARIABLE_NAME: &str = "^[^=\\u0000]+$";
/// Name of a variable, or the beginning of the names of several.
pub(crate) const PASSED_VARIABLE: &str = "^[^=*\\u0000]+\\*?$";
pub(crate) const HEADER_VALUE: &str = "^[\\t -~]*$";
/// User name, which contains no colon (RFC 7617, 2).
pub(crate) const USER: &str = "^[^:\\u0000-\\u001f\\u007f-\\u009f]*$";
/// Bearer token, which is one word (RFC 6750, 2.1).
pub(crate) const TOKEN: &str = "^[!-~]+$";
pub(crate) const ADMIN_TOKEN: &str = "^[!-~]{16,}$";
pub(crate) const PASSWORD: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";

/// Returns the pattern of a header name that is none of `taken`, in any case, and none of MCP's
/// own.
pub(crate) fn header_name(taken: &[&str]) -> String {
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

/// Returns the word of a choice.
pub(crate) fn word<T: PartialEq>(choices: &[(&'static str, T)], choice: &T) -> Value {
    choices.iter().find(|(_, it)| it == choice).map_or(Value::Null, |(word, _)| (*word).into())
}

/// Returns the default of a table with free names.
pub(crate) fn empty_table() -> Value {
    Value::Object(Map::new())
}
