//! Empty objects that a server in PHP writes as `[]`.
//!
//! PHP has one type for arrays and objects, and writes it as `[]` if it has no members. In a JSON
//! schema such a value is repaired at each keyword that takes an object or a schema, and no array.
//!
//! Invariant: data stays as it is (the values of `default`, `const`, `enum` and `examples`), and so
//! does an array where a keyword takes one (`items` and the members of `dependencies`, in older
//! drafts).

use bytes::Bytes;

use weir_base::json::{self, Object};

/// The schema with `{}` in place of each empty array that stands for an object; `None` if there is
/// none.
pub(super) fn repaired(schema: &Bytes) -> Option<Bytes> {
    // Most schemas have no empty array, and reading all levels of a schema is expensive.
    has_empty_array(schema).then(|| repaired_schema(schema)).flatten()
}

fn has_empty_array(text: &[u8]) -> bool {
    memchr::memchr_iter(b'[', text).any(|at| text[at + 1..].trim_ascii_start().starts_with(b"]"))
}

fn repaired_schema(schema: &Bytes) -> Option<Bytes> {
    repaired_object(schema, |keyword, value| match keyword {
        "additionalProperties"
        | "additionalItems"
        | "unevaluatedProperties"
        | "unevaluatedItems"
        | "contains"
        | "contentSchema"
        | "not"
        | "if"
        | "then"
        | "else"
        | "propertyNames" => repaired_schema(value),
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
            repaired_object(value, |_, value| repaired_schema(value))
        }
        "dependencies" => repaired_object(value, |_, value| repaired_if_object(value)),
        "dependentRequired" | "$vocabulary" => repaired_object(value, |_, _| None),
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => repaired_elements(value, repaired_schema),
        "items" => {
            repaired_if_object(value).or_else(|| repaired_elements(value, repaired_if_object))
        }
        _ => None,
    })
}

/// Repairs a schema where an array may be meant.
fn repaired_if_object(value: &Bytes) -> Option<Bytes> {
    value.starts_with(b"{").then(|| repaired_schema(value)).flatten()
}

/// Repairs an object with what `repair` makes of its members.
fn repaired_object(value: &Bytes, repair: impl Fn(&str, &Bytes) -> Option<Bytes>) -> Option<Bytes> {
    if json::is_empty_array(value) {
        return Some(Bytes::from_static(b"{}"));
    }
    let object = Some(value).filter(|value| value.starts_with(b"{"));
    let mut object = Object::parse_trusted(object?.clone()).ok()?;
    let new: Vec<_> = object
        .members()
        .filter_map(|(name, value)| Some((name.to_owned(), repair(name, &value)?)))
        .collect();
    new.into_iter().for_each(|(name, value)| object.set(name, value));
    object.is_changed().then(|| object.to_bytes())
}

/// Repairs the elements of an array.
fn repaired_elements(array: &Bytes, repair: impl Fn(&Bytes) -> Option<Bytes>) -> Option<Bytes> {
    let array = Some(array).filter(|array| array.starts_with(b"["));
    // The size of a definition is bounded, and so is this vector.
    let mut elements: Vec<_> = json::trusted_elements(array?)?.collect();
    let mut is_repaired = false;
    for element in &mut elements {
        if let Some(new) = repair(element) {
            (*element, is_repaired) = (new, true);
        }
    }
    is_repaired.then(|| [b"[", &elements.join(&b","[..])[..], b"]"].concat().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text_of(schema: &str) -> Option<String> {
        let new = repaired(&Bytes::from(schema.to_owned()))?;
        Some(String::from_utf8(new.to_vec()).expect("text"))
    }

    #[test]
    fn empty_array_is_an_object_where_a_keyword_takes_an_object_or_a_schema() {
        for keyword in [
            "properties",
            "patternProperties",
            "$defs",
            "definitions",
            "dependentSchemas",
            "dependencies",
            "dependentRequired",
            "$vocabulary",
            "additionalProperties",
            "additionalItems",
            "unevaluatedProperties",
            "unevaluatedItems",
            "contains",
            "contentSchema",
            "not",
            "if",
            "then",
            "else",
            "propertyNames",
        ] {
            for list in ["[]", "[ ]", "[\n\t]"] {
                let of = |value: &str| format!(r#"{{"type":"object","{keyword}":{value},"x":[]}}"#);
                assert_eq!(text_of(&of(list)), Some(of("{}")), "{keyword}");
                let nested = |value: &str| format!(r#"{{"properties":{{"a":{}}}}}"#, of(value));
                assert_eq!(text_of(&nested(list)), Some(nested("{}")), "{keyword}");
            }
        }
        for keyword in ["allOf", "anyOf", "oneOf", "prefixItems"] {
            let of = |value: &str| format!(r#"{{"{keyword}":[{value},{{"not":{value}}},true]}}"#);
            assert_eq!(text_of(&of("[]")), Some(of("{}")), "{keyword}");
        }
        assert_eq!(text_of("[]"), Some("{}".to_owned()));
        let within = |value: &str| {
            format!(
                r#"{{"items":{{"properties":{value}}},"dependencies":{{"a":{{"not":{value}}}}},"properties":{{"default":{value},"items":{value},"b":{{"items":[{{"if":{value}}}]}}}}}}"#
            )
        };
        assert_eq!(text_of(&within("[]")), Some(within("{}")));
    }

    #[test]
    fn empty_array_stays_where_it_is_data_or_an_array_is_allowed() {
        for schema in [
            r#"{"default":[],"const":[],"enum":[[],{"properties":[]}],"examples":[[]]}"#,
            r#"{"default":{"properties":[]},"const":{"not":[]}}"#,
            r#"{"required":[],"type":[],"items":[]}"#,
            r#"{"items":[[]]}"#,
            r#"{"dependencies":{"a":[]},"dependentRequired":{"a":[]}}"#,
            r#"{"allOf":[],"anyOf":[],"oneOf":[],"prefixItems":[]}"#,
            r#"{"x-own":[],"novel":{"properties":[]}}"#,
            r#"{"properties":{"a":{"default":[],"enum":[[]]}}}"#,
            r#"{"properties":[1],"not":[[]],"title":"[]"}"#,
            "true",
            r#""[]""#,
        ] {
            assert_eq!(text_of(schema), None, "{schema}");
        }
    }

    proptest! {
        #[test]
        fn repaired_schema_needs_no_other_repair(
            keys in prop::collection::vec("properties|items|not|anyOf|default|a", 0..6),
            end in "\\[\\]|\\{\\}|true",
            is_list in any::<bool>(),
        ) {
            let schema = keys.iter().fold(end, |schema, key| match is_list && key != "not" {
                true => format!(r#"{{"{key}":[{schema}]}}"#),
                false => format!(r#"{{"{key}":{schema}}}"#),
            });
            if let Some(new) = repaired(&schema.clone().into()) {
                prop_assert_eq!(repaired(&new), None, "{}", schema);
                prop_assert!(Object::parse(new).is_ok());
            }
        }
    }
}
