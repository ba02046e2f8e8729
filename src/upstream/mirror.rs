//! Arguments of a tool that its server wants to see in HTTP headers, too.
//!
//! A tool's schema marks them with `x-mcp-header` (spec 2026-07-28, Streamable HTTP, custom headers from
//! tool parameters). A tool whose marks break the rules is left out of the list.
//!
//! Knows nothing of: what a header means, and the rest of the schema.

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::modern::header_value;
use crate::json::{self, Object};

/// The mark in a property's schema.
const MARK: &str = "x-mcp-header";
/// What stands before the marked name.
const PREFIX: &str = "mcp-param-";
/// Members of a schema that hold values, not schemas.
const VALUES: [&str; 4] = ["default", "const", "enum", "examples"];

/// Which arguments of one tool are repeated, and in which headers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Mirror {
    headers: Vec<(HeaderName, Vec<Box<str>>)>,
}

impl Mirror {
    /// Reads the marks in a tool's definition, or says what is wrong with them.
    pub(super) fn read(definition: &Object) -> Result<Self, String> {
        let mut mirror = Self::default();
        let schema = definition.get_bytes("inputSchema").unwrap_or_default();
        // Most tools have none, and reading a schema is work.
        if stands_in(&schema, MARK.as_bytes()) {
            mirror.schema(&schema, &mut Vec::new(), true)?;
        }
        Ok(mirror)
    }

    /// Whether nothing is repeated.
    pub(super) fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Reads a schema. `path` leads to it through `properties` alone if it is `reachable`.
    fn schema(
        &mut self,
        text: &Bytes,
        path: &mut Vec<Box<str>>,
        reachable: bool,
    ) -> Result<(), String> {
        let Ok(schema) = Object::parse_within(text.clone(), usize::MAX) else {
            // No object: perhaps an array of schemas (`anyOf`).
            for element in json::elements(text).unwrap_or_default() {
                self.schema(&element, path, false)?;
            }
            return Ok(());
        };
        if schema.has(MARK) {
            if !reachable || path.is_empty() {
                return Err(format!("`{MARK}` stands where no argument can be reached"));
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

    fn mark(&mut self, schema: &Object, path: &[Box<str>]) -> Result<(), String> {
        let name = schema.get_string(MARK).unwrap_or_default();
        let header = Some(&name).filter(|name| !name.is_empty());
        let header = header.and_then(|name| format!("{PREFIX}{name}").parse::<HeaderName>().ok());
        let header = header.ok_or_else(|| format!("`{MARK}` is no name of a header"))?;
        let type_ = schema.get_string("type").unwrap_or_default();
        if !matches!(&*type_, "string" | "integer" | "boolean") {
            return Err(format!("`{MARK}` on an argument that is no string, integer or boolean"));
        }
        if self.headers.iter().any(|(other, _)| *other == header) {
            return Err(format!("`{MARK}` names a header twice"));
        }
        self.headers.push((header, path.to_vec()));
        Ok(())
    }

    /// Adds the headers that repeat these parameters' arguments.
    pub(super) fn write(&self, params: &Object, headers: &mut HeaderMap) {
        let Some(arguments) = params.get_object("arguments") else { return };
        for (name, path) in &self.headers {
            if let Some(value) = value_at(&arguments, path) {
                headers.insert(name, value);
            }
        }
    }
}

/// The value at a path as a header's; `None` if it is absent, null, or no plain value.
fn value_at(arguments: &Object, path: &[Box<str>]) -> Option<HeaderValue> {
    let (last, way) = path.split_last()?;
    let mut object = arguments.clone();
    for step in way {
        object = object.get_object(step)?;
    }
    let raw = object.get(last)?;
    if let Some(text) = json::decode_string(raw) {
        return Some(header_value(&text));
    }
    match raw {
        "true" | "false" => Some(header_value(raw)),
        _ if raw.parse::<i64>().is_ok() => Some(header_value(raw)),
        // An integer in another notation, such as `1e3` or `42.0`.
        _ => {
            let number: f64 = raw.parse().ok()?;
            let exact = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
            exact.then(|| header_value(&(number as i64).to_string()))
        }
    }
}

/// Whether `needle` stands in `text`.
fn stands_in(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(schema: &str) -> Result<Mirror, String> {
        let definition = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
        Mirror::read(&Object::parse(definition).expect("a definition"))
    }

    #[test]
    fn marked_arguments_are_repeated_in_headers() {
        let mirror = read(
            r#"{"properties":{
                "region":{"type":"string","x-mcp-header":"Region"},
                "deep":{"type":"object","properties":{
                    "n":{"type":"integer","x-mcp-header":"N"},
                    "b":{"type":"boolean","x-mcp-header":"B"}}},
                "gone":{"type":"string","x-mcp-header":"Gone","default":{"x-mcp-header":1}},
                "null":{"type":"string","x-mcp-header":"Null"},
                "x-mcp-header":{"type":"number"}}}"#,
        )
        .expect("good marks");
        let params =
            r#"{"arguments":{"region":"Z\u00fcrich","deep":{"n":4.2e1,"b":true},"null":null}}"#;
        let mut headers = HeaderMap::new();
        mirror.write(&Object::parse(params).expect("params"), &mut headers);
        let mut headers: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        headers.sort_unstable();
        let expected: [(&str, &[u8]); 3] = [
            ("mcp-param-b", b"true"),
            ("mcp-param-n", b"42"),
            ("mcp-param-region", b"=?base64?WsO8cmljaA==?="),
        ];
        assert_eq!(headers, expected);
    }

    #[test]
    fn marks_that_break_the_rules_are_refused() {
        for schema in [
            r#"{"x-mcp-header":"Root","type":"string"}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":""}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":7}}}"#,
            r#"{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#,
            r#"{"properties":{"a":{"items":{"type":"string","x-mcp-header":"A"}}}}"#,
            r#"{"anyOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}"#,
        ] {
            assert!(read(schema).is_err(), "{schema}");
        }
    }
}
