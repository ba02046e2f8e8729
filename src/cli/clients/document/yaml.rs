//! YAML of a client's file as a [`DocumentValue`].

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};

use crate::cli::clients::document::DocumentValue;
use crate::cli::exit::Failure;

/// Parses a text. One without any value is [`DocumentValue::Null`].
pub(super) fn parse(text: &str) -> Result<DocumentValue, serde_saphyr::Error> {
    let is_content = |line: &str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#') && line != "---"
    };
    if !text.lines().any(is_content) {
        return Ok(DocumentValue::Null);
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: 1,
            max_depth: 64,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
    };
    serde_saphyr::from_str_with_options(text, options).map(|YamlValue(value)| value)
}

/// Failure for a file that is not YAML. The text at that place may be a secret.
pub(super) fn not_yaml(path: &Path, error: &serde_saphyr::Error) -> Failure {
    let place = error.location().map(|at| format!(":{}:{}", at.line(), at.column()));
    Failure::NoConfig(format!(
        "{}{}: not YAML, or with merged or repeated keys; correct it there and run this again",
        path.display(),
        place.unwrap_or_default()
    ))
}

/// Value as the parser of YAML builds it.
struct YamlValue(DocumentValue);

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(YamlValue)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = DocumentValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Null)
    }

    fn visit_none<E>(self) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<DocumentValue, D::Error> {
        value.deserialize_any(self)
    }

    fn visit_bool<E>(self, yes: bool) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Bool(yes))
    }

    fn visit_i64<E>(self, number: i64) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Number(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Number(number.to_string()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Number(number.to_string()))
    }

    fn visit_u128<E>(self, number: u128) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Number(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<DocumentValue, A::Error> {
        let mut elements = Vec::new();
        while let Some(YamlValue(value)) = list.next_element()? {
            elements.push(value);
        }
        Ok(DocumentValue::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut mapping: A) -> Result<DocumentValue, A::Error> {
        let mut members = Vec::new();
        // A key that is a number is read as it is written.
        while let Some((key, YamlValue(value))) = mapping.next_entry::<String, _>()? {
            members.push((key, value));
        }
        Ok(DocumentValue::Table(members))
    }
}
