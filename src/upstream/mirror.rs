//! Writes a tool's marked arguments into the headers of a call.
//!
//! Knows nothing of: which they are; `mcp::mirror` reads that.

use hyper::header::HeaderMap;

use super::modern::header_value;
use crate::json::Object;
use crate::mcp::mirror::{Mirror, Value};

/// Makes the headers repeat these parameters' arguments, and nothing that is not among them.
pub(super) fn write(mirror: &Mirror, params: &Object, headers: &mut HeaderMap) {
    for (name, value) in mirror.values(params) {
        let text = match value {
            Some(Value::Text(text)) => text,
            Some(Value::Flag(flag)) => flag.to_string(),
            Some(Value::Number(number)) => decimal(&number),
            Some(Value::Other) | None => {
                headers.remove(name);
                continue;
            }
        };
        headers.insert(name, header_value(&text));
    }
}

/// An integer in plain digits where it is one in another notation, such as `1e3` or `42.0`
/// (spec 2026-07-28, Streamable HTTP, value encoding).
fn decimal(number: &str) -> String {
    if number.parse::<i64>().is_err()
        && let Ok(float) = number.parse::<f64>()
        && float.fract() == 0.0
        && float.abs() <= MAX_SAFE
    {
        return (float as i64).to_string();
    }
    number.to_owned()
}

/// The largest integer that every party reads alike.
const MAX_SAFE: f64 = 9_007_199_254_740_991.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_arguments_are_repeated_in_headers() {
        let property = |name: &str, type_: &str| {
            format!(r#""{name}":{{"type":"{type_}","x-mcp-header":"{name}"}}"#)
        };
        let properties = [
            property("text", "string"),
            property("flag", "boolean"),
            property("int", "integer"),
            property("exp", "integer"),
            property("big", "integer"),
            property("half", "integer"),
            property("null", "string"),
            property("list", "string"),
        ]
        .join(",");
        let definition = format!(r#"{{"inputSchema":{{"properties":{{{properties}}}}}}}"#);
        let definition = Object::parse(definition).expect("a definition");
        let mirror = Mirror::read(&definition).expect("good marks").expect("some");
        let params = r#"{"arguments":{"text":"Z\u00fcrich","flag":false,"int":-7,"exp":4.2e1,"big":9007199254740993,"half":1.5,"null":null,"list":[]}}"#;
        let mut headers = HeaderMap::new();
        for name in ["mcp-param-text", "mcp-param-null"] {
            headers.insert(name, header_value("from elsewhere"));
        }
        write(&mirror, &Object::parse(params).expect("params"), &mut headers);
        let mut headers: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        headers.sort_unstable();
        let expected: [(&str, &[u8]); 6] = [
            ("mcp-param-big", b"9007199254740993"),
            ("mcp-param-exp", b"42"),
            ("mcp-param-flag", b"false"),
            ("mcp-param-half", b"1.5"),
            ("mcp-param-int", b"-7"),
            ("mcp-param-text", b"=?base64?WsO8cmljaA==?="),
        ];
        assert_eq!(headers, expected);
    }
}
