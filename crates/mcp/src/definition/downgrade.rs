//! Downgrade of definitions and results of the newest revision for clients of older revisions.
//!
//! One tool that violates its schema can make a strict client discard a whole list. Compared with
//! 2025-11-25, the schema of 2026-07-28 allows more in two places only: a tool's schemas, and the
//! structured content of its result. Prompts, resources and templates are the same in both.
//!
//! Invariant: a text that needs no other form keeps every byte.
//!
//! Decision: docs/decisions/0027-older-clients.md

mod output;

use std::borrow::Cow;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use bytes::Bytes;

use crate::kind::Kind;
use crate::revision::Revision;
use weir_base::json::{self, Object};

/// Form of definitions, which also says what its reader can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DefinitionForm {
    /// The form of the newest revision.
    Newest,
    /// The form of 2025-11-25, the only revision with tools that can only be called as tasks.
    WithTasks,
    /// The form of the revisions before 2025-11-25.
    Older,
}

impl DefinitionForm {
    /// The form for clients of this revision.
    pub fn of(revision: Revision) -> Self {
        match revision {
            Revision::V2026_07_28 => Self::Newest,
            Revision::V2025_11_25 => Self::WithTasks,
            _ => Self::Older,
        }
    }
}

/// An item's definition for older clients; `None` if it is the same for all.
///
/// An output schema that older revisions cannot express is dropped, and so is one that a client
/// might not compile: it only describes results that are sent anyway.
pub fn definition(kind: Kind, definition: &Object) -> Option<Object> {
    if kind != Kind::Tool {
        return None;
    }
    let mut older = definition.clone();
    if let Some(Some(input)) = definition.get_object("inputSchema").map(|schema| plain(&schema)) {
        older.set("inputSchema", input.to_bytes());
    }
    match definition.get_object("outputSchema").filter(is_of_objects) {
        Some(output) => {
            let plain = plain(&output);
            if !output::compiles(plain.as_ref().unwrap_or(&output)) {
                older.take("outputSchema");
            } else if let Some(output) = plain {
                older.set("outputSchema", output.to_bytes());
            }
        }
        None => _ = older.take("outputSchema"),
    }
    older.is_changed().then_some(older)
}

/// Rewrites a tool's result for older clients: structured content that is no object becomes text.
/// Returns whether it changed the result.
///
/// Spec 2026-07-28, tools, structured content: a server SHOULD repeat it as text for them. If it
/// has done so, nothing is added. A null is dropped.
pub fn result(result: &mut Object) -> bool {
    let Some(structured) = result.get_bytes("structuredContent") else {
        return false;
    };
    if structured.starts_with(b"{") {
        return false;
    }
    result.take("structuredContent");
    let content = result.get_bytes("content").unwrap_or_else(|| Bytes::from_static(b"[]"));
    let mut blocks = json::trusted_elements(&content).unwrap_or_default();
    let has_any = blocks.clone().next().is_some();
    let text = String::from_utf8_lossy(&structured);
    let structured = (text != "null").then(|| StructuredText::new(&text));
    if structured.is_some_and(|it| !blocks.any(|block| it.is_repeated_by(&block))) {
        let block = Object::new().with("type", "\"text\"").with("text", json::quote(&text));
        let block = block.to_bytes();
        let inner = content.trim_ascii().strip_prefix(b"[").and_then(|it| it.strip_suffix(b"]"));
        let blocks = match inner.filter(|_| has_any) {
            Some(inner) => [b"[", inner, b",", &block, b"]"].concat(),
            None => [b"[", &block[..], b"]"].concat(),
        };
        result.set("content", blocks);
    }
    true
}

/// Whether a schema describes objects: older revisions allow no other output schema.
fn is_of_objects(schema: &Object) -> bool {
    let are_strings = |list: Bytes| {
        json::trusted_elements(&list)
            .is_some_and(|mut names| names.all(|name| name.starts_with(b"\"")))
    };
    schema.get_string("type").as_deref() == Some("object")
        && schema.get("$schema").is_none_or(|raw| raw.starts_with('"'))
        && schema.get_bytes("required").is_none_or(are_strings)
        && schema.get("properties").is_none_or(|raw| raw.starts_with('{'))
}

/// The schema with all properties as objects; `None` if they are already. `true` and `false` are
/// schemas, too, and have an equivalent object.
fn plain(schema: &Object) -> Option<Object> {
    let mut properties = schema.get_object("properties")?;
    let flags: Vec<(String, &str)> = properties
        .keys()
        .filter_map(|name| match properties.get(name)? {
            "true" => Some((name.to_owned(), "{}")),
            "false" => Some((name.to_owned(), r#"{"not":{}}"#)),
            _ => None,
        })
        .collect();
    if flags.is_empty() {
        return None;
    }
    for (name, long) in flags {
        properties.set(name, long);
    }
    let mut schema = schema.clone();
    schema.set("properties", properties.to_bytes());
    Some(schema)
}

/// Structured content that may be repeated in text blocks. It is tokenized once, however many
/// blocks it is compared with.
struct StructuredText<'a> {
    json: &'a str,
    /// The decoded text, if the content is a string.
    plain: Option<Cow<'a, str>>,
    /// Hash of the tokens.
    hash: u64,
    hasher: RandomState,
}

impl<'a> StructuredText<'a> {
    fn new(json: &'a str) -> Self {
        let hasher = RandomState::new();
        let hash = hash_of_tokens(json, &hasher);
        Self { json, plain: json::decode_string(json), hash, hasher }
    }

    /// Whether a content block repeats the structured content in its text.
    fn is_repeated_by(&self, block: &Bytes) -> bool {
        let Ok(block) = Object::parse_within(block.clone(), usize::MAX) else { return false };
        let (Some("\"text\""), Some(text)) = (block.get("type"), block.get_string("text")) else {
            return false;
        };
        self.plain.as_ref().is_some_and(|plain| *plain == text)
            || hash_of_tokens(&text, &self.hasher) == self.hash
                && tokens(&text).eq(tokens(self.json))
    }
}

fn hash_of_tokens(text: &str, hasher: &RandomState) -> u64 {
    let mut state = hasher.build_hasher();
    tokens(text).for_each(|token| token.hash(&mut state));
    state.finish()
}

/// The tokens of a JSON text, strings decoded after their first quote. For other texts the result
/// is arbitrary.
fn tokens(text: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(WHITE_SPACE);
        let first = rest.chars().next()?;
        let end = match first {
            '"' => string_length(rest),
            _ if PUNCTUATION.contains(&first) => 1,
            _ => rest
                .find(|c| c == '"' || PUNCTUATION.contains(&c) || WHITE_SPACE.contains(&c))
                .unwrap_or(rest.len()),
        };
        let (token, behind) = rest.split_at(end);
        rest = behind;
        Some(match json::decode_string(token) {
            Some(text) => Cow::Owned(format!("\"{text}")),
            None => Cow::Borrowed(token),
        })
    })
}

/// Length of the JSON string at the beginning of a text, quotes included.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Characters between JSON's tokens, and the tokens of one character.
const WHITE_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];
const PUNCTUATION: [char; 6] = ['[', ']', '{', '}', ',', ':'];

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::definition::downgrade::*;

    fn object(text: &str) -> Object {
        Object::parse(text.to_owned()).expect(text)
    }

    #[test]
    fn a_definition_that_older_clients_take_is_the_same_for_all() {
        for tool in [
            r#"{"name":"a"}"#,
            r#"{"name":"a","inputSchema":{"type":"object"}}"#,
            r#"{"name":"a","inputSchema":{"type":"object","properties":{"x":{"properties":{"y":true}}}}}"#,
            r#"{"name":"a","outputSchema":{"type":"object","properties":{"x":{}},"required":["x"],"$schema":"s","anyOf":[true]}}"#,
            r#"{"name":"a","outputSchema":{ "\u0074ype" : "obj\u0065ct" }}"#,
        ] {
            assert_eq!(definition(Kind::Tool, &object(tool)), None, "{tool}");
        }
        let odd = object(r#"{"name":"a","outputSchema":{"type":"array"}}"#);
        for kind in [Kind::Prompt, Kind::Resource, Kind::Template] {
            assert_eq!(definition(kind, &odd), None, "{kind}");
        }
    }

    #[test]
    fn an_output_schema_of_anything_but_objects_is_dropped() {
        for schema in [
            r#"{"type":"array","items":{}}"#,
            r#"{"type":"string"}"#,
            r#"{"type":["object","null"]}"#,
            r#"{"anyOf":[{"type":"object"}]}"#,
            r##"{"$ref":"#/$defs/x"}"##,
            "{}",
            "true",
            "null",
            "[]",
            r#"{"type":"object","required":"x"}"#,
            r#"{"type":"object","required":[1]}"#,
            r#"{"type":"object","properties":[]}"#,
            r#"{"type":"object","$schema":1}"#,
        ] {
            let tool =
                format!(r#"{{"name":"a","outputSchema":{schema},"title":"\u0041","x":1e400}}"#);
            let older = definition(Kind::Tool, &object(&tool)).expect(schema);
            assert_eq!(older.to_bytes(), r#"{"name":"a","title":"\u0041","x":1e400}"#, "{schema}");
        }
    }

    #[test]
    fn a_property_that_is_no_object_becomes_one_that_says_the_same() {
        let tool = r#"{"name":"a","inputSchema":{"type":"object","properties":{"a":true,"b":{"n":1.0},"c":false}},"outputSchema":{"type":"object","properties":{"d":true}}}"#;
        let expected = r#"{"name":"a","inputSchema":{"type":"object","properties":{"a":{},"b":{"n":1.0},"c":{"not":{}}}},"outputSchema":{"type":"object","properties":{"d":{}}}}"#;
        let older = definition(Kind::Tool, &object(tool)).expect("another form");
        assert_eq!(older.to_bytes(), expected);
    }

    #[test]
    fn structured_content_that_is_no_object_becomes_text_unless_a_text_says_it() {
        let text = |text: &str| format!(r#"{{"type":"text","text":{text}}}"#);
        for (content, structured, expected) in [
            (String::new(), "[1, 2]", text(r#""[1, 2]""#)),
            (text(r#""[1,2]""#), "[1, 2]", text(r#""[1,2]""#)),
            (
                text(r#""{\n \"\u00e4\": 1}""#),
                r#"[{"ä":1}]"#,
                format!("{},{}", text(r#""{\n \"\u00e4\": 1}""#), text(r#""[{\"ä\":1}]""#)),
            ),
            (
                text(r#""[{\n \"\\u00e4\": 1}]""#),
                r#"[{"ä":1}]"#,
                text(r#""[{\n \"\\u00e4\": 1}]""#),
            ),
            (text(r#""2 found""#), "[1]", format!("{},{}", text(r#""2 found""#), text(r#""[1]""#))),
            (text(r#""hi""#), r#""hi""#, text(r#""hi""#)),
            (text(r#""\"hi\"""#), r#""hi""#, text(r#""\"hi\"""#)),
            (text(r#""[12]""#), "[1,2]", format!("{},{}", text(r#""[12]""#), text(r#""[1,2]""#))),
            (
                r#"{"type":"image","text":"7"}"#.into(),
                "7",
                format!(r#"{{"type":"image","text":"7"}},{}"#, text(r#""7""#)),
            ),
            (String::new(), "1e400", text(r#""1e400""#)),
            (String::new(), "null", String::new()),
        ] {
            let mut sent = object(&format!(
                r#"{{"x":1.0,"content":[{content}],"structuredContent":{structured}}}"#
            ));
            assert!(result(&mut sent));
            assert_eq!(
                sent.to_bytes(),
                format!(r#"{{"x":1.0,"content":[{expected}]}}"#),
                "{structured}"
            );
        }
        for unchanged in [r#"{"content":[]}"#, r#"{"structuredContent": { "a":1.0 }}"#] {
            let mut sent = object(unchanged);
            assert!(!result(&mut sent));
            assert_eq!(sent.to_bytes(), unchanged);
        }
        let mut bare = object(r#"{"structuredContent":[]}"#);
        assert!(result(&mut bare));
        assert_eq!(bare.to_bytes(), r#"{"content":[{"type":"text","text":"[]"}]}"#);
    }

    #[test]
    fn structured_content_is_compared_with_many_blocks_in_linear_time() {
        let long = "a\\n".repeat(100_000);
        let blocks = vec![r#"{"type":"text","text":"[x"}"#; 20_000].join(",");
        for structured in [format!("\"{long}\""), format!("[\"{long}\"]")] {
            let text = format!(r#"{{"content":[{blocks}],"structuredContent":{structured}}}"#);
            let mut object = Object::parse_within(text.into(), usize::MAX).expect("an object");
            let begin = Instant::now();
            assert!(result(&mut object));
            assert_eq!(object.get_elements("content").expect("blocks").count(), 20_001);
            // A quarter of a second; by the product of both lengths it would be minutes.
            assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
        }
    }
}
