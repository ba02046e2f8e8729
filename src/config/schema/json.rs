//! The keys as a JSON schema, by which editors complete, explain and check.
//!
//! Draft 7 is the newest that Taplo reads, and with it the editors that build on it. Nothing is referenced and
//! no table has an `allOf`: Taplo would show no explanation there.
//!
//! The schema judges one file, and a configuration can be several: so what a file may leave to another, such
//! as to have an upstream at all, is left to `weir check`.

use serde_json::{Map, Value, json};

use super::shape::{self, Shape};
use super::{Fallback, Key, keys};

/// Returns the schema of the configuration, ready to be written to a file.
pub fn schema() -> String {
    let mut schema = object(&keys(), &Value::Null);
    schema.insert("$schema".to_owned(), "http://json-schema.org/draft-07/schema#".into());
    schema.insert("title".to_owned(), "The configuration of Weir".into());
    for first in ["title", "$schema"] {
        if let Some(value) = schema.shift_remove(first) {
            schema.shift_insert(0, first.to_owned(), value);
        }
    }
    format!("{:#}\n", Value::Object(schema))
}

fn key(key: &Key) -> Value {
    let mut schema = value(&key.shape);
    schema.shift_insert(0, "description".to_owned(), key.meaning.into());
    if let Fallback::Is(default) = &key.fallback {
        schema.insert("default".to_owned(), default.clone());
    }
    Value::Object(schema)
}

fn value(shape: &Shape) -> Map<String, Value> {
    let schema = match shape {
        Shape::Boolean => json!({ "type": "boolean" }),
        Shape::Count(bounds) => {
            json!({ "type": "integer", "minimum": bounds.start(), "maximum": bounds.end() })
        }
        Shape::Duration => text(shape::DURATION),
        Shape::Size => {
            json!({ "anyOf": [text(shape::SIZE), { "type": "integer", "minimum": 1 }] })
        }
        Shape::Choice(words) => json!({
            "anyOf": [{ "enum": words }, { "type": "string", "pattern": shape::VARIABLE }],
        }),
        Shape::Text(_, pattern) => text(pattern),
        Shape::Moment => json!({ "type": "string", "pattern": shape::MOMENT }),
        Shape::Secret(pattern) => json!({ "anyOf": [text(pattern), elsewhere()] }),
        Shape::List { of, count: (min, max) } => {
            let mut list = json!({ "type": "array", "items": value(of) });
            if *min > 0 {
                list["minItems"] = json!(min);
            }
            if let Some(max) = max {
                list["maxItems"] = json!(max);
            }
            list
        }
        Shape::OneOrList(of) => json!({
            "anyOf": [value(of), { "type": "array", "items": value(of) }],
        }),
        Shape::Map { names, of } => json!({
            "type": "object",
            "propertyNames": { "pattern": names },
            "additionalProperties": value(of),
        }),
        Shape::Table { keys, rules } => Value::Object(object(keys, rules)),
    };
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

fn text(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": format!("{pattern}|{}", shape::VARIABLE) })
}

fn object(table: &[Key], rules: &Value) -> Map<String, Value> {
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("additionalProperties".to_owned(), false.into());
    let is_required = |key: &&Key| matches!(key.fallback, Fallback::Required);
    let required: Vec<_> = table.iter().filter(is_required).map(|key| key.name).collect();
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema.extend(rules.as_object().cloned().unwrap_or_default());
    let properties: Map<_, _> = table.iter().map(|it| (it.name.to_owned(), key(it))).collect();
    schema.insert("properties".to_owned(), properties.into());
    schema
}

/// Where a secret is: exactly one of the ways.
fn elsewhere() -> Value {
    let mut schema = object(&super::secret(), &Value::Null);
    schema.insert("minProperties".to_owned(), 1.into());
    schema.insert("maxProperties".to_owned(), 1.into());
    Value::Object(schema)
}
