//! Arguments of a tool that are repeated in HTTP headers.
//!
//! A tool's schema marks them with `x-mcp-header` (spec 2026-07-28, Streamable HTTP, custom headers from
//! tool parameters). A [`Mirror`] tells which argument belongs in which header: one side writes the
//! headers by it, the other holds those that come against it. It is read from a definition once, when
//! the definition is listed, and most definitions have none.
//!
//! Promises: what [`header_value`] writes [`decode`] reads, and what [`Value::to_header`] writes of an
//! argument that argument says.
//!
//! Knows nothing of: which side writes and which side checks, and the rest of the schema.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};

use crate::json::{self, Object};

/// What the names of all such headers begin with.
pub const PREFIX: &str = "mcp-param-";

/// Which arguments of one tool are repeated, and in which headers. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    headers: Vec<(HeaderName, Box<[Box<str>]>)>,
}

/// An argument that is repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A string, decoded.
    Text(String),
    /// A boolean.
    Flag(bool),
    /// A number as it is written in the body.
    Number(Box<str>),
    /// An object or an array, which no header can say.
    Other,
}

/// What is wrong with a tool's marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadMark {
    /// Not on a property that is led to by `properties` alone.
    #[error("`{MARK}` stands where no argument can be reached")]
    Unreachable,
    /// Not a string, or none that may be in a header's name.
    #[error("`{MARK}` is no name of a header")]
    NoName,
    /// On anything but a string, an integer or a boolean.
    #[error("`{MARK}` on an argument that is no string, integer or boolean")]
    NotPlain,
    /// Two arguments in one header; case does not count.
    #[error("`{MARK}` names a header twice")]
    Twice,
}

impl Mirror {
    /// Reads the marks in a tool's definition; `None` if there are none.
    pub fn read(definition: &Object) -> Result<Option<Self>, BadMark> {
        let schema = definition.get_bytes("inputSchema").unwrap_or_default();
        if !may_have_marks(&schema) {
            return Ok(None);
        }
        let mut mirror = Self { headers: Vec::new() };
        mirror.schema(&schema, &mut Vec::new(), true)?;
        Ok(Some(mirror).filter(|mirror| !mirror.headers.is_empty()))
    }

    /// Whether a header of this name repeats an argument.
    pub fn has(&self, name: &HeaderName) -> bool {
        self.headers.iter().any(|(header, _)| header == name)
    }

    /// Each header with the argument that it is to repeat; `None` where that is absent or null, and so
    /// the header has to be absent, too.
    pub fn values(&self, params: &Object) -> impl Iterator<Item = (&HeaderName, Option<Value>)> {
        let arguments = params.get_object("arguments");
        self.headers.iter().map(move |(name, path)| {
            (name, arguments.as_ref().and_then(|arguments| value_at(arguments, path)))
        })
    }

    /// Reads a schema. `path` leads to it through `properties` alone if it is `reachable`.
    fn schema(
        &mut self,
        text: &Bytes,
        path: &mut Vec<Box<str>>,
        reachable: bool,
    ) -> Result<(), BadMark> {
        let Ok(schema) = Object::parse_within(text.clone(), usize::MAX) else {
            // No object: perhaps an array of schemas (`anyOf`).
            for element in json::elements_again(text).unwrap_or_default() {
                self.schema(&element, path, false)?;
            }
            return Ok(());
        };
        if schema.has(MARK) {
            if !reachable || path.is_empty() {
                return Err(BadMark::Unreachable);
            }
            self.mark(&schema, path)?;
        }
        for (key, value) in schema.members() {
            if key == MARK || VALUES.contains(&key) {
                continue;
            }
            if key != "properties" {
                self.schema(&value, path, false)?;
                continue;
            }
            let properties = Object::parse_within(value, usize::MAX).unwrap_or_default();
            for (name, property) in properties.members() {
                path.push(name.into());
                self.schema(&property, path, reachable)?;
                path.pop();
            }
        }
        Ok(())
    }

    fn mark(&mut self, schema: &Object, path: &[Box<str>]) -> Result<(), BadMark> {
        let name = schema.get_string(MARK).filter(|name| !name.is_empty());
        let header = name.and_then(|name| format!("{PREFIX}{name}").parse::<HeaderName>().ok());
        let header = header.ok_or(BadMark::NoName)?;
        let type_ = schema.get_string("type").unwrap_or_default();
        if !matches!(&*type_, "string" | "integer" | "boolean") {
            return Err(BadMark::NotPlain);
        }
        if self.has(&header) {
            return Err(BadMark::Twice);
        }
        self.headers.push((header, path.into()));
        Ok(())
    }
}

impl Value {
    /// The header that repeats it; `None` if none can.
    pub fn to_header(&self) -> Option<HeaderValue> {
        match self {
            Self::Text(text) => Some(header_value(text)),
            Self::Flag(flag) => Some(header_value(if *flag { "true" } else { "false" })),
            // spec 2026-07-28, Streamable HTTP, value encoding: an integer in decimal digits, whichever way
            // it is written in the body.
            Self::Number(raw) => Some(match integer(raw) {
                Some(number) => number.into(),
                None => header_value(raw),
            }),
            Self::Other => None,
        }
    }

    /// Whether a header says the same, once it is decoded (spec 2026-07-28, Streamable HTTP, server
    /// validation: integers are compared numerically, `42.0` and `42` are equal).
    pub fn is_said_by(&self, header: &str) -> bool {
        match self {
            Self::Text(text) => header == text,
            Self::Flag(flag) => header == if *flag { "true" } else { "false" },
            Self::Number(raw) => {
                header == &**raw || integer(raw).is_some_and(|own| integer(header) == Some(own))
            }
            Self::Other => false,
        }
    }
}

/// The integer that a number's text stands for, as far as every party reads it alike.
fn integer(text: &str) -> Option<i64> {
    // Rust reads words as numbers, too.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number = text.parse::<f64>().ok().filter(|_| is_number)?;
    (number.fract() == 0.0 && number.abs() <= MAX_SAFE).then_some(number as i64)
}

/// A text as a header's value: as it is, or in base64 between marks where it would not survive
/// (spec 2026-07-28, Streamable HTTP, value encoding).
pub fn header_value(text: &str) -> HeaderValue {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && text.trim() == text
        && !(text.starts_with(BEGIN) && text.ends_with(END));
    let encoded;
    let text = if is_plain {
        text
    } else {
        encoded = format!("{BEGIN}{}{END}", STANDARD.encode(text));
        &encoded
    };
    HeaderValue::from_str(text).expect("printable ASCII is a header's value")
}

/// Reads a value that may be in base64 between marks; `None` if the marks are there and what stands
/// between them is no base64 of a text.
pub fn decode(raw: &str) -> Option<Cow<'_, str>> {
    let Some(encoded) = raw.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)) else {
        return Some(Cow::Borrowed(raw));
    };
    let bytes = STANDARD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// The value at a path; `None` if it is absent or null.
fn value_at(arguments: &Object, path: &[Box<str>]) -> Option<Value> {
    let (last, way) = path.split_last()?;
    let mut inner = None;
    for step in way {
        inner = Some(inner.as_ref().unwrap_or(arguments).get_object(step)?);
    }
    let raw = inner.as_ref().unwrap_or(arguments).get(last)?;
    if let Some(text) = json::decode_string(raw) {
        return Some(Value::Text(text.into_owned()));
    }
    match raw {
        "null" => None,
        "true" => Some(Value::Flag(true)),
        "false" => Some(Value::Flag(false)),
        _ if raw.starts_with(['{', '[']) => Some(Value::Other),
        _ => Some(Value::Number(raw.into())),
    }
}

/// Whether a schema is worth reading: most have no marks, and reading is work. A key with an escape in it
/// may be one that does not look like it.
fn may_have_marks(schema: &[u8]) -> bool {
    stands_in(schema, MARK.as_bytes()) || stands_in(schema, b"\\u")
}

fn stands_in(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len()).any(|window| window == needle)
}

/// The mark in a property's schema.
const MARK: &str = "x-mcp-header";
/// Members of a schema that hold values, not schemas.
const VALUES: [&str; 4] = ["default", "const", "enum", "examples"];

/// What stands around a value in base64.
const BEGIN: &str = "=?base64?";
const END: &str = "?=";
/// The largest integer that every party reads alike.
const MAX_SAFE: f64 = 9_007_199_254_740_991.0;

#[cfg(test)]
mod tests {
    use crate::mcp::definition::param_headers::*;
    use proptest::prelude::*;

    fn read(schema: &str) -> Result<Option<Mirror>, BadMark> {
        let definition = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
        Mirror::read(&Object::parse(definition).expect("a definition"))
    }

    #[test]
    fn marked_arguments_belong_in_headers() {
        let mirror = read(
            r#"{"properties":{
                "region":{"type":"string","x-mcp-header":"Region"},
                "deep":{"type":"object","properties":{
                    "n":{"type":"integer","x-mcp-header":"N"},
                    "b":{"type":"boolean","x-mcp-\u0068eader":"B"}}},
                "gone":{"type":"string","x-mcp-header":"Gone","default":{"x-mcp-header":1}},
                "null":{"type":"string","x-mcp-header":"Method"},
                "list":{"type":"string","x-mcp-header":"!#$%&'*+-.^_`|~9"},
                "x-mcp-header":{"type":"number"}}}"#,
        );
        let mirror = mirror.expect("good marks").expect("some");
        let params = r#"{"arguments":{"region":"Z\u00fcrich","deep":{"n":4.2e1,"b":true},"null":null,"list":[]}}"#;
        let params = Object::parse(params).expect("params");
        let values: Vec<_> =
            mirror.values(&params).map(|(name, value)| (name.as_str(), value)).collect();
        let expected = [
            ("mcp-param-region", Some(Value::Text("Zürich".into()))),
            ("mcp-param-n", Some(Value::Number("4.2e1".into()))),
            ("mcp-param-b", Some(Value::Flag(true))),
            ("mcp-param-gone", None),
            ("mcp-param-method", None),
            ("mcp-param-!#$%&'*+-.^_`|~9", Some(Value::Other)),
        ];
        assert_eq!(values, expected);
        assert!(mirror.has(&HeaderName::from_static("mcp-param-region")));
        assert!(!mirror.has(&HeaderName::from_static("mcp-param-list")));
        for params in ["{}", r#"{"arguments":[]}"#, r#"{"arguments":{"deep":"n"}}"#] {
            let params = Object::parse(params).expect("params");
            assert!(mirror.values(&params).all(|(_, value)| value.is_none()));
        }
    }

    #[test]
    fn most_tools_have_none() {
        for schema in ["{}", r#"{"type":"object","properties":{"a\u0041":{}}}"#, "[]"] {
            assert_eq!(read(schema), Ok(None), "{schema}");
        }
        assert_eq!(Mirror::read(&Object::new()), Ok(None));
    }

    #[test]
    fn marks_that_break_the_rules_are_refused() {
        let one = |property: &str| format!(r#"{{"properties":{{"a":{property}}}}}"#);
        let named = |name: &str| one(&format!(r#"{{"type":"string","x-mcp-header":{name}}}"#));
        let typed = |type_: &str| one(&format!(r#"{{"type":{type_},"x-mcp-header":"A"}}"#));
        let within = |key: &str| {
            let marked = r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}"#;
            match key {
                "anyOf" | "oneOf" | "allOf" => format!(r#"{{"{key}":[{marked}]}}"#),
                _ => format!(r#"{{"{key}":{marked}}}"#),
            }
        };
        let two = |other: &str| {
            format!(
                r#"{{"properties":{{"a":{{"type":"string","x-mcp-header":"Region"}},"b":{{"type":"integer","x-mcp-header":"{other}"}}}}}}"#
            )
        };
        let mut cases = vec![
            (r#"{"x-mcp-header":"Root","type":"string"}"#.to_owned(), BadMark::Unreachable),
            (one(r#"{"x-mcp-header":"A"}"#), BadMark::NotPlain),
            (two("Region"), BadMark::Twice),
            (two("REGION"), BadMark::Twice),
            (one(r#"{"items":{"type":"string","x-mcp-header":"A"}}"#), BadMark::Unreachable),
            (
                r##"{"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}"##
                    .to_owned(),
                BadMark::Unreachable,
            ),
        ];
        let names = [
            r#""""#,
            r#""a b""#,
            r#""Region:Primary""#,
            r#""a\rb""#,
            r#""a\nX: y""#,
            r#""a\tb""#,
            r#""Région""#,
            "7",
            "null",
            "{}",
        ];
        cases.extend(names.map(|name| (named(name), BadMark::NoName)));
        let types = [r#""number""#, r#""array""#, r#""object""#, r#""null""#, r#"["string"]"#];
        cases.extend(types.map(|type_| (typed(type_), BadMark::NotPlain)));
        let keys = [
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "if",
            "then",
            "else",
            "items",
            "prefixItems",
            "contains",
            "additionalProperties",
            "dependentSchemas",
            "$defs",
        ];
        cases.extend(keys.map(|key| (within(key), BadMark::Unreachable)));
        for (schema, expected) in cases {
            assert_eq!(read(&schema), Err(expected), "{schema}");
        }
    }

    #[test]
    fn a_text_that_a_header_cannot_hold_goes_in_base64() {
        for (text, expected) in [
            ("us-west1", "us-west1"),
            ("us west 1", "us west 1"),
            ("", ""),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            (" us-west1", "=?base64?IHVzLXdlc3Qx?="),
            ("us-west1 ", "=?base64?dXMtd2VzdDEg?="),
            ("\tindented", "=?base64?CWluZGVudGVk?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(header_value(text), expected);
        }
    }

    #[test]
    fn an_argument_is_written_as_its_type_wants_it() {
        let number = |raw: &str| Value::Number(raw.into());
        for (value, expected) in [
            (Value::Flag(true), Some("true")),
            (Value::Flag(false), Some("false")),
            (number("-7"), Some("-7")),
            (number("42.0"), Some("42")),
            (number("4.2e1"), Some("42")),
            (number("-0"), Some("0")),
            (number("1.5"), Some("1.5")),
            (number("9007199254740993"), Some("9007199254740993")),
            (number("1e400"), Some("1e400")),
            (Value::Other, None),
        ] {
            let header = value.to_header();
            assert_eq!(header, expected.map(HeaderValue::from_static), "{value:?}");
            let decoded = expected.map(|header| value.is_said_by(header));
            assert!(decoded != Some(false), "{value:?}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let number = prop_oneof![
            any::<i64>().prop_map(|number| number.to_string()),
            any::<i32>().prop_map(|number| format!("{number}.0")),
            (-999..999_i32, 0..12_u8).prop_map(|(number, power)| format!("{number}e{power}")),
            any::<f64>()
                .prop_filter("JSON has no others", |it| it.is_finite())
                .prop_map(|it| format!("{it:?}")),
        ];
        prop_oneof![
            ".*".prop_map(Value::Text),
            "[ -~]{0,8}".prop_map(Value::Text),
            "=\\?base64\\?[A-Za-z0-9=]{0,8}\\?=".prop_map(Value::Text),
            any::<bool>().prop_map(Value::Flag),
            number.prop_map(|number| Value::Number(number.into())),
        ]
    }

    proptest! {
        #[test]
        fn a_header_says_the_argument_that_it_was_written_for(value in values()) {
            let header = value.to_header().expect("a plain value");
            let decoded = decode(header.to_str().expect("ASCII")).expect("readable");
            prop_assert!(value.is_said_by(&decoded), "{value:?} and {header:?}");
        }

        #[test]
        fn a_header_says_no_other_argument(one in values(), other in values()) {
            let header = one.to_header().expect("a plain value");
            let decoded = decode(header.to_str().expect("ASCII")).expect("readable");
            let same = match (&one, &other) {
                (Value::Text(one), Value::Text(other)) => one == other,
                (Value::Flag(one), Value::Flag(other)) => one == other,
                (Value::Number(one), Value::Number(other)) => {
                    one == other || integer(one).is_some() && integer(one) == integer(other)
                }
                // What an argument's type is the tool itself knows: `"42"` and `42` have one header.
                _ => return Ok(()),
            };
            prop_assert_eq!(other.is_said_by(&decoded), same);
        }
    }
}
