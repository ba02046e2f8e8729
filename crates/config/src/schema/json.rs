//! JSON schema of the configuration, with which editors complete, explain and check keys.
//!
//! Draft 7 is the newest draft that Taplo and the editors based on it support. The schema has no
//! references and no table has an `allOf`, because Taplo would show no description there.
//!
//! The schema checks one file, but a configuration can have several. Therefore requirements that
//! another file may satisfy, such as an upstream, are left to `weir check`.

use serde_json::{Map, Value, json};

use super::{constraints, keys};
use crate::keys::shape::{self, ValueShape};
use crate::keys::{DefaultValue, Described, KeySpec};
use crate::reader::rule_locations::join;
use crate::secrets::SecretSource;

/// Returns the schema of the configuration, ready to be written to a file.
pub fn schema() -> String {
    let mut schema = object(&keys(), "");
    schema.insert("$schema".to_owned(), "http://json-schema.org/draft-07/schema#".into());
    schema.insert("title".to_owned(), "The configuration of Weir".into());
    for first in ["title", "$schema"] {
        if let Some(value) = schema.shift_remove(first) {
            schema.shift_insert(0, first.to_owned(), value);
        }
    }
    format!("{:#}\n", Value::Object(schema))
}

fn key_schema(key: &KeySpec, table: &str) -> Value {
    let path = join(table, key.name);
    let mut schema = value_schema(&key.shape, &path);
    schema.shift_insert(0, "description".to_owned(), key.documentation.description.as_str().into());
    if let DefaultValue::Value(default) = &key.default {
        schema.insert("default".to_owned(), default.clone());
    }
    Value::Object(schema)
}

/// Returns the schema of the value at a path, which leaves out the free names of tables.
fn value_schema(shape: &ValueShape, path: &str) -> Map<String, Value> {
    let schema = match shape {
        ValueShape::Boolean => json!({ "type": "boolean" }),
        ValueShape::Count(bounds) => {
            json!({ "type": "integer", "minimum": bounds.start(), "maximum": bounds.end() })
        }
        ValueShape::Duration => text(shape::DURATION),
        ValueShape::Size => {
            json!({ "anyOf": [text(shape::SIZE), { "type": "integer", "minimum": 1 }] })
        }
        ValueShape::Choice(words) => json!({
            "anyOf": [{ "enum": words }, { "type": "string", "pattern": shape::VARIABLE }],
        }),
        ValueShape::Text(_, pattern) => text(pattern),
        ValueShape::DateTime => json!({ "type": "string", "pattern": shape::DATE_TIME }),
        ValueShape::Secret(pattern) => json!({ "anyOf": [text(pattern), secret_source()] }),
        ValueShape::List { of, count: (min, max) } => {
            let mut list = json!({ "type": "array", "items": value_schema(of, path) });
            if *min > 0 {
                list["minItems"] = json!(min);
            }
            if let Some(max) = max {
                list["maxItems"] = json!(max);
            }
            list
        }
        ValueShape::OneOrList(of) => json!({
            "anyOf": [value_schema(of, path), { "type": "array", "items": value_schema(of, path) }],
        }),
        ValueShape::Map { names, of } => json!({
            "type": "object",
            "propertyNames": { "pattern": names },
            "additionalProperties": value_schema(of, path),
        }),
        ValueShape::Table(keys) => Value::Object(object(keys, path)),
    };
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

fn text(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": format!("{pattern}|{}", shape::VARIABLE) })
}

fn object(table: &[KeySpec], path: &str) -> Map<String, Value> {
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("additionalProperties".to_owned(), false.into());
    let is_required = |key: &&KeySpec| matches!(key.default, DefaultValue::Required);
    let required: Vec<_> = table.iter().filter(is_required).map(|key| key.name).collect();
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    let constraints = match path {
        "upstreams" => constraints::upstream(),
        "upstreams.auth" => constraints::credentials(),
        "clients" => constraints::client(),
        "limits" => constraints::limit(),
        _ => Value::Null,
    };
    schema.extend(constraints.as_object().cloned().unwrap_or_default());
    let properties: Map<_, _> =
        table.iter().map(|it| (it.name.to_owned(), key_schema(it, path))).collect();
    schema.insert("properties".to_owned(), properties.into());
    schema
}

/// Schema of a secret's source: exactly one of its keys.
fn secret_source() -> Value {
    let mut schema = object(&SecretSource::keys(), "");
    schema.insert("minProperties".to_owned(), 1.into());
    schema.insert("maxProperties".to_owned(), 1.into());
    Value::Object(schema)
}
