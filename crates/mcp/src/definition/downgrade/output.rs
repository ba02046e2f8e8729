//! Check of output schemas: whether every older client can compile them.
//!
//! Clients of the TypeScript SDK v1 compile the output schema of each tool when they list tools,
//! and the list fails if one of them does not compile. An output schema only describes results that
//! are sent anyway, so a schema that is not known to compile there is dropped for older clients.
//! Known are the keywords of JSON Schema with values of their own types, references within the
//! schema, and the common part of regular expressions. Keywords that give a schema another address
//! (`$id`, `$anchor`) are not: two tools with the same one would be checked by the same schema.
//!
//! Invariants: no reference is followed; the size of a schema is bounded by that of its item.

use std::collections::HashSet;

use bytes::Bytes;

use weir_base::json::{self, Object};

/// Whether every client compiles an output schema.
pub(super) fn compiles(schema: &Object) -> bool {
    object_compiles(schema, &Definitions::of(schema))
}

/// Names that a reference within a schema may point to.
struct Definitions([HashSet<String>; 2]);

/// The members of a schema that hold definitions.
const GROUPS: [&str; 2] = ["$defs", "definitions"];

impl Definitions {
    fn of(root: &Object) -> Self {
        let names = |object: Object| object.keys().map(str::to_owned).collect();
        Self(GROUPS.map(|group| root.get_object(group).map(names).unwrap_or_default()))
    }

    /// Whether a reference points to the schema itself or to one of its definitions, by a plain
    /// name.
    fn has(&self, reference: &str) -> bool {
        let Some(path) = reference.strip_prefix("#/") else { return reference == "#" };
        let Some((group, name)) = path.split_once('/') else { return false };
        // References with an escape or a further step are rare, so they are not resolved.
        let is_plain = !name.contains(['/', '%', '~']);
        let group = GROUPS.iter().position(|it| *it == group);
        is_plain && group.is_some_and(|at| self.0[at].contains(name))
    }
}

fn object_compiles(schema: &Object, definitions: &Definitions) -> bool {
    schema.members().all(|(keyword, value)| {
        let raw = std::str::from_utf8(&value).unwrap_or_default();
        match keyword {
            "$id"
            | "id"
            | "$anchor"
            | "$dynamicAnchor"
            | "$async"
            | "formatMinimum"
            | "formatMaximum"
            | "formatExclusiveMinimum"
            | "formatExclusiveMaximum" => false,
            "$ref" => json::decode_string(raw).is_some_and(|it| definitions.has(&it)),
            "type" => is_type(raw) || each(&value, |it| is_type(&String::from_utf8_lossy(it))),
            // The compiler rejects `nullable` without a type, and `[]` is no type.
            "nullable" => {
                raw == "true"
                    && schema.has("type")
                    && schema.get_elements("type").is_none_or(|mut types| types.next().is_some())
            }
            "properties" | "$defs" | "definitions" | "dependentSchemas" => {
                members(&value, |_, it| schema_compiles(it, definitions))
            }
            "patternProperties" => {
                members(&value, |name, it| is_pattern(name) && schema_compiles(it, definitions))
            }
            "dependencies" => {
                members(&value, |_, it| are_strings(it) || schema_compiles(it, definitions))
            }
            "dependentRequired" => members(&value, |_, it| are_strings(it)),
            "items" => {
                schema_compiles(&value, definitions)
                    || each(&value, |it| schema_compiles(it, definitions))
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                each(&value, |it| schema_compiles(it, definitions)) && !is_empty(&value)
            }
            "additionalProperties"
            | "additionalItems"
            | "unevaluatedProperties"
            | "unevaluatedItems"
            | "contains"
            | "not"
            | "if"
            | "then"
            | "else"
            | "propertyNames" => schema_compiles(&value, definitions),
            "required" => are_strings(&value),
            "enum" => each(&value, |_| true) && !is_empty(&value),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf"
            | "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" | "minContains" | "maxContains" => {
                raw.starts_with(|it: char| it == '-' || it.is_ascii_digit())
            }
            "uniqueItems" => matches!(raw, "true" | "false"),
            "pattern" => json::decode_string(raw).is_some_and(|it| is_pattern(&it)),
            "format" | "$schema" | "$comment" => raw.starts_with('"'),
            _ => true,
        }
    })
}

fn schema_compiles(value: &Bytes, definitions: &Definitions) -> bool {
    matches!(&**value, b"true" | b"false")
        || value.starts_with(b"{")
            && Object::parse_trusted(value.clone())
                .is_ok_and(|schema| object_compiles(&schema, definitions))
}

fn each(array: &Bytes, fits: impl Fn(&Bytes) -> bool) -> bool {
    let elements = Some(array).filter(|array| array.starts_with(b"[")).and_then(json::elements);
    elements.is_some_and(|mut elements| elements.all(|element| fits(&element)))
}

fn members(value: &Bytes, fits: impl Fn(&str, &Bytes) -> bool) -> bool {
    let object = Some(value).filter(|value| value.starts_with(b"{"));
    let object = object.and_then(|value| Object::parse_trusted(value.clone()).ok());
    object.is_some_and(|object| object.members().all(|(name, value)| fits(name, &value)))
}

fn are_strings(array: &Bytes) -> bool {
    each(array, |it| it.starts_with(b"\""))
}

fn is_empty(array: &Bytes) -> bool {
    json::elements(array).is_none_or(|mut elements| elements.next().is_none())
}

fn is_type(raw: &str) -> bool {
    let types = ["array", "boolean", "integer", "null", "number", "object", "string"];
    json::decode_string(raw).is_some_and(|it| types.contains(&&*it))
}

/// Whether a regular expression is valid in ECMAScript with the flag `u`. Backward references,
/// named groups and character properties are not supported here and count as invalid.
fn is_pattern(pattern: &str) -> bool {
    let mut rest = pattern.chars().peekable();
    // For each open group, whether it may be repeated.
    let mut open = Vec::new();
    let mut may_repeat = false;
    while let Some(letter) = rest.next() {
        may_repeat = match letter {
            '(' => {
                let is_plain = rest.next_if_eq(&'?').is_none();
                let kind = if is_plain { ':' } else { rest.next().unwrap_or_default() };
                match kind {
                    ':' => open.push(true),
                    '=' | '!' => open.push(false),
                    '<' if rest.next_if(|it| matches!(it, '=' | '!')).is_some() => open.push(false),
                    _ => return false,
                }
                false
            }
            ')' => match open.pop() {
                Some(may_repeat) => may_repeat,
                None => return false,
            },
            '|' | '^' | '$' => false,
            '*' | '+' | '?' if may_repeat => {
                rest.next_if_eq(&'?');
                false
            }
            '{' if may_repeat && is_count(&mut rest) => {
                rest.next_if_eq(&'?');
                false
            }
            '[' if is_class(&mut rest) => true,
            '\\' => match rest.next() {
                Some('b' | 'B') => false,
                Some(letter) if is_escape(letter) => true,
                _ => return false,
            },
            '*' | '+' | '?' | '{' | '[' | '}' | ']' => return false,
            _ => true,
        };
    }
    open.is_empty()
}

/// Whether the character may follow a backslash anywhere.
fn is_escape(letter: char) -> bool {
    "dDwWsStnvrf^$\\.*+?()[]{}|/".contains(letter)
}

/// Consumes the rest of a count such as `{2,3}`; whether it is valid.
fn is_count(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    let text: String = rest.by_ref().take_while(|letter| *letter != '}').collect();
    let number = |text: &str| {
        text.bytes().all(|it| it.is_ascii_digit()).then(|| text.parse::<u16>().ok()).flatten()
    };
    match text.split_once(',') {
        None => number(&text).is_some(),
        Some((least, "")) => number(least).is_some(),
        Some((least, most)) => {
            number(least).zip(number(most)).is_some_and(|(least, most)| least <= most)
        }
    }
}

/// Consumes the rest of a class such as `[a-z]`; whether it is valid.
fn is_class(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    rest.next_if_eq(&'^');
    // The character that a range may begin with.
    let (mut before, mut is_first) = (None::<char>, true);
    while let Some(letter) = rest.next() {
        let starts = std::mem::take(&mut is_first);
        let is_range = letter == '-' && rest.peek().is_some_and(|next| *next != ']');
        before = match letter {
            ']' => return true,
            '-' if is_range && before.is_some() => match (before, rest.next()) {
                (Some(first), Some(last)) if first <= last && !matches!(last, '\\' | '[' | '-') => {
                    None
                }
                _ => return false,
            },
            '-' if starts => Some('-'),
            // Between two classes some engines read a range, and some a dash.
            '-' if is_range => return false,
            '\\' => match rest.next() {
                Some(letter) if is_escape(letter) || letter == '-' => match letter {
                    letter if letter.is_ascii_alphabetic() => None,
                    letter => Some(letter),
                },
                _ => return false,
            },
            '[' => return false,
            letter => Some(letter),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::definition::downgrade::output::*;

    fn is_kept(schema: &str) -> bool {
        compiles(&Object::parse(schema.to_owned()).expect(schema))
    }

    #[test]
    fn schema_that_every_client_compiles_is_kept() {
        for schema in [
            "{}",
            r#"{"type":"object","properties":{"x":{"type":["integer","null"],"minimum":0},"pattern":{"format":"novel"}},"required":["x"],"novel":[7]}"#,
            r##"{"$schema":"s","type":"object","properties":{"x":{"$ref":"#/$defs/a b"},"y":{"$ref":"#"}},"$defs":{"a b":{"enum":[1,null]}}}"##,
            r#"{"anyOf":[true,{"not":{"const":7}}],"items":[{}],"additionalProperties":false,"dependencies":{"a":["b"],"c":{}}}"#,
            r#"{"properties":{"x":{"pattern":"^[\\w.-]+@[a-z0-9_]{2,}\\.(com|org)(?!x)$"}},"patternProperties":{"^x-":{}}}"#,
        ] {
            assert!(is_kept(schema), "{schema}");
        }
    }

    #[test]
    fn schema_that_some_client_may_not_compile_is_not_kept() {
        for schema in [
            r##"{"$ref":"#/$defs/none"}"##,
            r##"{"$ref":"#/properties/x","properties":{"x":{}}}"##,
            r#"{"$ref":"https://example.org/x.json"}"#,
            r#"{"$id":"https://example.org/x.json"}"#,
            r#"{"properties":{"x":{"type":"text"}}}"#,
            r#"{"properties":{"x":7}}"#,
            r#"{"allOf":[]}"#,
            r#"{"enum":[]}"#,
            r#"{"enum":{}}"#,
            r#"{"nullable":true}"#,
            r#"{"minimum":"1"}"#,
            r#"{"exclusiveMinimum":true}"#,
            r#"{"required":[7]}"#,
            r#"{"items":{"pattern":"["}}"#,
            r#"{"patternProperties":{"(":{}}}"#,
        ] {
            assert!(!is_kept(schema), "{schema}");
        }
    }

    #[test]
    fn pattern_is_known_if_every_client_compiles_it() {
        for good in [
            "",
            "a",
            "^a|b$",
            "(?:a)+?",
            "(?=a)b",
            "(?<!a)b",
            r"\d{3}",
            "a{1}b{2,}c{2,3}?",
            "[^a-z]",
            "[]",
            r"[\-\]]",
            r"[\w-]",
            "[-a]",
            r"\$\{x\}",
            "é",
            r"[+\-*/]",
            "(a|(b))*",
        ] {
            assert!(is_pattern(good), "{good}");
        }
        for bad in [
            "*", "a**", "(", ")", "(?x)", "(?P<n>a)", "[", "]", "{", "a{", "a{2,1}", "a{,2}",
            "[z-a]", r"[\d-z]", r"[a-\d]", r"\_", r"\-", r"\A", r"\p{Foo}", r"\1", r"\", "(?=a)*",
            "^*", r"\b+", "a|*", "a{99999}",
        ] {
            assert!(!is_pattern(bad), "{bad}");
        }
    }

    #[test]
    fn references_are_looked_up_without_reading_the_definitions_again() {
        let definitions: Vec<_> = (0..1_000).map(|at| format!("\"d{at}\":{{}}")).collect();
        let references: Vec<_> = (0..2_000).map(|_| r##"{"$ref":"#/$defs/d999"}"##).collect();
        let (definitions, references) = (definitions.join(","), references.join(","));
        let schema = format!(r#"{{"$defs":{{{definitions}}},"anyOf":[{references}]}}"#);
        let begin = Instant::now();
        assert!(is_kept(&schema));
        // Some milliseconds; read again for each, they took two seconds optimized.
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}
