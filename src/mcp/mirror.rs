//! Arguments of a tool that are repeated in HTTP headers.
//!
//! A tool's schema marks them with `x-mcp-header` (spec 2026-07-28, Streamable HTTP, custom headers from
//! tool parameters). A [`Mirror`] tells which argument belongs in which header: one side writes the
//! headers by it, the other holds those that come against it. It is read from a definition once, when
//! the definition is listed, and most definitions have none.
//!
//! Knows nothing of: how a value is written in a header, and the rest of the schema.

use bytes::Bytes;
use hyper::header::HeaderName;

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
            for element in json::elements(text).unwrap_or_default() {
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
        for key in schema.keys().filter(|key| *key != MARK && !VALUES.contains(key)) {
            let Some(value) = schema.get_bytes(key) else { continue };
            if key != "properties" {
                self.schema(&value, path, false)?;
                continue;
            }
            let properties = Object::parse_within(value, usize::MAX).unwrap_or_default();
            for name in properties.keys() {
                let Some(property) = properties.get_bytes(name) else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
