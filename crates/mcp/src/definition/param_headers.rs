//! Parameter headers: arguments of a tool that are repeated in `Mcp-Param-*` HTTP headers.
//!
//! A tool's schema annotates them with `x-mcp-header` (spec 2026-07-28, Streamable HTTP, custom
//! headers from tool parameters). [`ParamHeaders`] maps headers to arguments: the upstream side
//! writes headers by it, the downstream side validates received headers against it. It is parsed
//! once, when the definition is listed; most definitions have none.
//!
//! Invariants: [`decode`] reads every value that [`header_value`] writes, and
//! [`ParamHeader::matches_header`] accepts every header that [`ParamHeader::to_header`] makes.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use memchr::memmem;

use weir_base::json::{self, Object};

/// Prefix of the names of all parameter headers.
pub const PREFIX: &str = "mcp-param-";

/// The arguments of one tool that are repeated, with their headers. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamHeaders {
    headers: Vec<(HeaderName, Box<[Box<str>]>)>,
}

/// Value of an argument that is repeated in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParamHeader {
    /// A string, decoded.
    Text(String),
    /// A boolean.
    Flag(bool),
    /// A number as it is written in the body.
    Number(Box<str>),
    /// An object or an array, which no header can express.
    Other,
}

/// Defect of a tool's `x-mcp-header` annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeaderAnnotation {
    /// Not on a property that is reachable by `properties` alone.
    #[error("`{ANNOTATION}` is on a property that cannot be reached")]
    Unreachable,
    /// Not a string that may be part of a header's name.
    #[error("`{ANNOTATION}` is no valid name of a header")]
    InvalidName,
    /// On anything but a string, an integer or a boolean.
    #[error("`{ANNOTATION}` is on an argument that is not a string, integer or boolean")]
    InvalidType,
    /// Two arguments in one header, compared without case.
    #[error("`{ANNOTATION}` names a header twice")]
    Duplicate,
}

impl ParamHeaders {
    /// Parses the annotations in a tool's definition; `None` if there are none.
    pub fn read(definition: &Object) -> Result<Option<Self>, InvalidHeaderAnnotation> {
        let schema = definition.get_bytes("inputSchema").unwrap_or_default();
        if !may_have_annotations(&schema) {
            return Ok(None);
        }
        let mut param_headers = Self { headers: Vec::new() };
        param_headers.collect(&schema, &mut Vec::new(), true)?;
        Ok(Some(param_headers).filter(|param_headers| !param_headers.headers.is_empty()))
    }

    /// Whether a header of this name repeats an argument.
    pub(crate) fn has(&self, name: &HeaderName) -> bool {
        self.headers.iter().any(|(header, _)| header == name)
    }

    /// Each header with the value of its argument; `None` if that is absent or null, so that the
    /// header must be absent, too.
    pub fn values(
        &self,
        params: &Object,
    ) -> impl Iterator<Item = (&HeaderName, Option<ParamHeader>)> {
        let arguments = params.get_object("arguments");
        self.headers.iter().map(move |(name, path)| {
            (name, arguments.as_ref().and_then(|arguments| value_at(arguments, path)))
        })
    }

    /// Collects the annotations of a schema. `path` leads to it through `properties` alone if it is
    /// `reachable`.
    fn collect(
        &mut self,
        text: &Bytes,
        path: &mut Vec<Box<str>>,
        reachable: bool,
    ) -> Result<(), InvalidHeaderAnnotation> {
        let Ok(schema) = Object::parse_within(text.clone(), usize::MAX) else {
            // Not an object: it may be an array of schemas (`anyOf`).
            for element in json::trusted_elements(text).unwrap_or_default() {
                self.collect(&element, path, false)?;
            }
            return Ok(());
        };
        if schema.has(ANNOTATION) {
            if !reachable || path.is_empty() {
                return Err(InvalidHeaderAnnotation::Unreachable);
            }
            self.add_header(&schema, path)?;
        }
        for (key, value) in schema.members() {
            if key == ANNOTATION || VALUES.contains(&key) {
                continue;
            }
            if key != "properties" {
                self.collect(&value, path, false)?;
                continue;
            }
            let properties = Object::parse_within(value, usize::MAX).unwrap_or_default();
            for (name, property) in properties.members() {
                path.push(name.into());
                self.collect(&property, path, reachable)?;
                path.pop();
            }
        }
        Ok(())
    }

    fn add_header(
        &mut self,
        schema: &Object,
        path: &[Box<str>],
    ) -> Result<(), InvalidHeaderAnnotation> {
        let name = schema.get_string(ANNOTATION).filter(|name| !name.is_empty());
        let header = name.and_then(|name| format!("{PREFIX}{name}").parse::<HeaderName>().ok());
        let header = header.ok_or(InvalidHeaderAnnotation::InvalidName)?;
        let type_ = schema.get_string("type").unwrap_or_default();
        if !matches!(&*type_, "string" | "integer" | "boolean") {
            return Err(InvalidHeaderAnnotation::InvalidType);
        }
        if self.has(&header) {
            return Err(InvalidHeaderAnnotation::Duplicate);
        }
        self.headers.push((header, path.into()));
        Ok(())
    }
}

impl ParamHeader {
    /// The header's value; `None` if no header can express it.
    pub fn to_header(&self) -> Option<HeaderValue> {
        match self {
            Self::Text(text) => Some(header_value(text)),
            Self::Flag(flag) => Some(header_value(if *flag { "true" } else { "false" })),
            // Spec 2026-07-28, Streamable HTTP, value encoding: an integer in decimal digits,
            // however it is written in the body.
            Self::Number(raw) => Some(match integer(raw) {
                Some(number) => number.into(),
                None => header_value(raw),
            }),
            Self::Other => None,
        }
    }

    /// Whether a decoded header has this value (spec 2026-07-28, Streamable HTTP, server
    /// validation: integers are compared numerically, `42.0` and `42` are equal).
    pub fn matches_header(&self, header: &str) -> bool {
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

/// The integer that a number's text stands for, if every party reads it alike.
fn integer(text: &str) -> Option<i64> {
    // Rust parses `inf` and `nan` as numbers, too.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number = text.parse::<f64>().ok().filter(|_| is_number)?;
    (number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER).then_some(number as i64)
}

/// A text as a header's value: as it is, or in base64 between delimiters if a header cannot contain
/// it (spec 2026-07-28, Streamable HTTP, value encoding).
pub fn header_value(text: &str) -> HeaderValue {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && text.trim() == text
        && !(text.starts_with(BASE64_PREFIX) && text.ends_with(BASE64_SUFFIX));
    let encoded;
    let text = if is_plain {
        text
    } else {
        encoded = format!("{BASE64_PREFIX}{}{BASE64_SUFFIX}", STANDARD.encode(text));
        &encoded
    };
    HeaderValue::from_str(text).expect("printable ASCII is a header's value")
}

/// Decodes a value that may be in base64 between delimiters; `None` if the delimiters are there and
/// the text between them is no base64 of UTF-8.
pub fn decode(raw: &str) -> Option<Cow<'_, str>> {
    let Some(encoded) =
        raw.strip_prefix(BASE64_PREFIX).and_then(|rest| rest.strip_suffix(BASE64_SUFFIX))
    else {
        return Some(Cow::Borrowed(raw));
    };
    let bytes = STANDARD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// The value at a path; `None` if it is absent or null.
fn value_at(arguments: &Object, path: &[Box<str>]) -> Option<ParamHeader> {
    let (last, parents) = path.split_last()?;
    let mut inner = None;
    for step in parents {
        inner = Some(inner.as_ref().unwrap_or(arguments).get_object(step)?);
    }
    let raw = inner.as_ref().unwrap_or(arguments).get(last)?;
    if let Some(text) = json::decode_string(raw) {
        return Some(ParamHeader::Text(text.into_owned()));
    }
    match raw {
        "null" => None,
        "true" => Some(ParamHeader::Flag(true)),
        "false" => Some(ParamHeader::Flag(false)),
        _ if raw.starts_with(['{', '[']) => Some(ParamHeader::Other),
        _ => Some(ParamHeader::Number(raw.into())),
    }
}

/// Whether a schema must be parsed: most have no annotations, and parsing is expensive. A key with
/// an escape may be an annotation as well.
fn may_have_annotations(schema: &[u8]) -> bool {
    [ANNOTATION, "\\u"].iter().any(|it| memmem::find(schema, it.as_bytes()).is_some())
}

/// The annotation in a property's schema.
const ANNOTATION: &str = "x-mcp-header";
/// Members of a schema that contain values, not schemas.
const VALUES: [&str; 4] = ["default", "const", "enum", "examples"];

/// Delimiters of a value in base64.
const BASE64_PREFIX: &str = "=?base64?";
const BASE64_SUFFIX: &str = "?=";
/// The largest integer that every party reads alike.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

#[cfg(test)]
mod tests {
    use crate::definition::param_headers::*;
    use proptest::prelude::*;

    fn read(schema: &str) -> Result<Option<ParamHeaders>, InvalidHeaderAnnotation> {
        let definition = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
        ParamHeaders::read(&Object::parse(definition).expect("a definition"))
    }

    #[test]
    fn marked_arguments_belong_in_headers() {
        let param_headers = read(
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
        let param_headers = param_headers.expect("good marks").expect("some");
        let params = r#"{"arguments":{"region":"Z\u00fcrich","deep":{"n":4.2e1,"b":true},"null":null,"list":[]}}"#;
        let params = Object::parse(params).expect("params");
        let values: Vec<_> =
            param_headers.values(&params).map(|(name, value)| (name.as_str(), value)).collect();
        let expected = [
            ("mcp-param-region", Some(ParamHeader::Text("Zürich".into()))),
            ("mcp-param-n", Some(ParamHeader::Number("4.2e1".into()))),
            ("mcp-param-b", Some(ParamHeader::Flag(true))),
            ("mcp-param-gone", None),
            ("mcp-param-method", None),
            ("mcp-param-!#$%&'*+-.^_`|~9", Some(ParamHeader::Other)),
        ];
        assert_eq!(values, expected);
        assert!(param_headers.has(&HeaderName::from_static("mcp-param-region")));
        assert!(!param_headers.has(&HeaderName::from_static("mcp-param-list")));
        for params in ["{}", r#"{"arguments":[]}"#, r#"{"arguments":{"deep":"n"}}"#] {
            let params = Object::parse(params).expect("params");
            assert!(param_headers.values(&params).all(|(_, value)| value.is_none()));
        }
    }

    #[test]
    fn most_tools_have_none() {
        for schema in ["{}", r#"{"type":"object","properties":{"a\u0041":{}}}"#, "[]"] {
            assert_eq!(read(schema), Ok(None), "{schema}");
        }
        assert_eq!(ParamHeaders::read(&Object::new()), Ok(None));
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
            (r#"{"x-mcp-header":"Root","type":"string"}"#.to_owned(), InvalidHeaderAnnotation::Unreachable),
            (one(r#"{"x-mcp-header":"A"}"#), InvalidHeaderAnnotation::InvalidType),
            (two("Region"), InvalidHeaderAnnotation::Duplicate),
            (two("REGION"), InvalidHeaderAnnotation::Duplicate),
            (one(r#"{"items":{"type":"string","x-mcp-header":"A"}}"#), InvalidHeaderAnnotation::Unreachable),
            (
                r##"{"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}"##
                    .to_owned(),
                InvalidHeaderAnnotation::Unreachable,
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
        cases.extend(names.map(|name| (named(name), InvalidHeaderAnnotation::InvalidName)));
        let types = [r#""number""#, r#""array""#, r#""object""#, r#""null""#, r#"["string"]"#];
        cases.extend(types.map(|type_| (typed(type_), InvalidHeaderAnnotation::InvalidType)));
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
        cases.extend(keys.map(|key| (within(key), InvalidHeaderAnnotation::Unreachable)));
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
        let number = |raw: &str| ParamHeader::Number(raw.into());
        for (value, expected) in [
            (ParamHeader::Flag(true), Some("true")),
            (ParamHeader::Flag(false), Some("false")),
            (number("-7"), Some("-7")),
            (number("42.0"), Some("42")),
            (number("4.2e1"), Some("42")),
            (number("-0"), Some("0")),
            (number("1.5"), Some("1.5")),
            (number("9007199254740993"), Some("9007199254740993")),
            (number("1e400"), Some("1e400")),
            (ParamHeader::Other, None),
        ] {
            let header = value.to_header();
            assert_eq!(header, expected.map(HeaderValue::from_static), "{value:?}");
            let decoded = expected.map(|header| value.matches_header(header));
            assert!(decoded != Some(false), "{value:?}");
        }
    }

    fn values() -> impl Strategy<Value = ParamHeader> {
        let number = prop_oneof![
            any::<i64>().prop_map(|number| number.to_string()),
            any::<i32>().prop_map(|number| format!("{number}.0")),
            (-999..999_i32, 0..12_u8).prop_map(|(number, power)| format!("{number}e{power}")),
            any::<f64>()
                .prop_filter("JSON has no others", |it| it.is_finite())
                .prop_map(|it| format!("{it:?}")),
        ];
        prop_oneof![
            ".*".prop_map(ParamHeader::Text),
            "[ -~]{0,8}".prop_map(ParamHeader::Text),
            "=\\?base64\\?[A-Za-z0-9=]{0,8}\\?=".prop_map(ParamHeader::Text),
            any::<bool>().prop_map(ParamHeader::Flag),
            number.prop_map(|number| ParamHeader::Number(number.into())),
        ]
    }

    proptest! {
        #[test]
        fn a_header_says_the_argument_that_it_was_written_for(value in values()) {
            let header = value.to_header().expect("a plain value");
            let decoded = decode(header.to_str().expect("ASCII")).expect("readable");
            prop_assert!(value.matches_header(&decoded), "{value:?} and {header:?}");
        }

        #[test]
        fn a_header_says_no_other_argument(one in values(), other in values()) {
            let header = one.to_header().expect("a plain value");
            let decoded = decode(header.to_str().expect("ASCII")).expect("readable");
            let same = match (&one, &other) {
                (ParamHeader::Text(one), ParamHeader::Text(other)) => one == other,
                (ParamHeader::Flag(one), ParamHeader::Flag(other)) => one == other,
                (ParamHeader::Number(one), ParamHeader::Number(other)) => {
                    one == other || integer(one).is_some() && integer(one) == integer(other)
                }
                // What an argument's type is the tool itself knows: `"42"` and `42` have one
                // header.
                _ => return Ok(()),
            };
            prop_assert_eq!(other.matches_header(&decoded), same);
        }
    }
}
