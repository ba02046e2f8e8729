//! Constraints between the keys of a table, as members of its JSON schema.

use serde_json::{Value, json};

use crate::config::access::KINDS;
use crate::config::keys::shape;
use crate::config::upstreams::defaults::{
    LIMITS_NOT_FOR_A_LIBRARY, NOT_FOR_A_LIBRARY, TIMEOUTS_NOT_FOR_A_LIBRARY,
};
use crate::config::upstreams::source::SOURCES;

/// A limit limits something.
pub(super) fn limit() -> Value {
    json!({ "anyOf": any(&["rate", "concurrency"]) })
}

/// A client has a role or rules of its own, and a key or a certificate.
pub(super) fn client() -> Value {
    json!({
        "oneOf": [{ "required": ["role"] }, { "anyOf": any(&KINDS) }],
        "anyOf": any(&["key_sha256", "certificates"]),
    })
}

/// An upstream has one source, and only keys that belong to it.
pub(super) fn upstream() -> Value {
    let contains_any = |table: &str, keys: &[&str]| {
        json!({
            "required": [table],
            "properties": { table: { "anyOf": any(keys) } },
        })
    };
    let mut without_effect = any(&NOT_FOR_A_LIBRARY);
    without_effect.push(contains_any("timeouts", &TIMEOUTS_NOT_FOR_A_LIBRARY));
    without_effect.push(contains_any("limits", &LIMITS_NOT_FOR_A_LIBRARY));
    let mut dependencies = json!({ "prompts_dir": { "not": { "anyOf": without_effect } } });
    for (source, keys) in SOURCES {
        for key in keys {
            dependencies[key] = json!([source]);
        }
    }
    let sse_is_legacy = json!({
        "required": ["transport", "era"],
        "properties": { "transport": { "const": "sse" }, "era": { "const": "modern" } },
    });
    let authorization = "^[Aa][Uu][Tt][Hh][Oo][Rr][Ii][Zz][Aa][Tt][Ii][Oo][Nn]$";
    let is_named = json!({ "not": { "propertyNames": { "not": { "pattern": authorization } } } });
    let authorized_twice =
        json!({ "required": ["auth", "headers"], "properties": { "headers": is_named } });
    json!({
        "oneOf": any(&SOURCES.map(|(source, _)| source)),
        "dependencies": dependencies,
        "not": { "anyOf": [sse_is_legacy, authorized_twice] },
    })
}

/// Each type of credentials has its own keys.
pub(super) fn credentials() -> Value {
    let with = |kind: &str, wanted: &[&str], unwanted: &[&str]| {
        json!({
            "properties": { "type": { "const": kind } },
            "required": wanted,
            "not": { "anyOf": any(unwanted) },
        })
    };
    let from_variable = json!({ "type": "string", "pattern": shape::VARIABLE });
    json!({ "anyOf": [
        with("none", &[], &["token", "user", "password"]),
        with("bearer", &["token"], &["user", "password"]),
        with("basic", &["user", "password"], &["token"]),
        { "properties": { "type": from_variable } },
    ] })
}

fn any(keys: &[&str]) -> Vec<Value> {
    keys.iter().map(|key| json!({ "required": [key] })).collect()
}
