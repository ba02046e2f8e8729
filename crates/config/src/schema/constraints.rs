//! Constraints between the keys of a table, as members of its JSON schema.

use serde_json::{Value, json};
use strum::VariantArray;

use crate::access::KINDS;
use crate::keys::shape;
use crate::upstreams::auth::{GrantType, KEYS_OF_GRANTS, KEYS_OF_SCHEMES, Scheme, keys_of_others};
use crate::upstreams::defaults::{
    LIMITS_NOT_FOR_A_LIBRARY, NOT_FOR_A_LIBRARY, TIMEOUTS_NOT_FOR_A_LIBRARY,
};
use crate::upstreams::source::SOURCES;

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

/// Each type of credentials has its own keys, and so has each grant of OAuth.
pub(super) fn credentials() -> Value {
    let from_variable = json!({ "type": "string", "pattern": shape::VARIABLE });
    let oauth: &str = Scheme::OAuth.into();
    let mut forms = vec![
        json!({ "properties": { "type": from_variable } }),
        json!({
            "properties": { "type": { "const": oauth }, "grant": from_variable },
            "required": ["grant"],
        }),
    ];
    for scheme in Scheme::VARIANTS.iter().filter(|scheme| **scheme != Scheme::OAuth) {
        let (required, others) = split(&KEYS_OF_SCHEMES, *scheme);
        let word: &str = scheme.into();
        forms.push(form(json!({ "type": { "const": word } }), &required, &others));
    }
    let (_, of_others) = split(&KEYS_OF_SCHEMES, Scheme::OAuth);
    for (grant, credential, other) in [
        (GrantType::AuthorizationCode, None, Some("client_key")),
        (GrantType::AuthorizationCode, Some("client_key"), Some("client_secret")),
        (GrantType::ClientCredentials, Some("client_secret"), Some("client_key")),
        (GrantType::ClientCredentials, Some("client_key"), Some("client_secret")),
        (GrantType::JwtBearer, None, None),
    ] {
        let (required, others) = split(&KEYS_OF_GRANTS, grant);
        // This grant is the default.
        let is_user = grant == GrantType::AuthorizationCode;
        let named = if is_user { &[][..] } else { &["grant"] };
        let required = [named, &required, credential.as_slice()].concat();
        let others = of_others.iter().copied().chain(others).chain(other).collect::<Vec<_>>();
        let word: &str = grant.into();
        let chosen = json!({ "type": { "const": oauth }, "grant": { "const": word } });
        forms.push(form(chosen, &required, &others));
    }
    json!({ "anyOf": forms })
}

/// A table with these values and keys, and without the others.
fn form(values: Value, required: &[&str], others: &[&str]) -> Value {
    json!({ "properties": values, "required": required, "not": { "anyOf": any(others) } })
}

/// Returns the required keys of an owner, and the keys that are only of others.
fn split<T: PartialEq + Copy>(
    keys: &[(&'static str, T, bool)],
    owner: T,
) -> (Vec<&'static str>, Vec<&'static str>) {
    let own = keys.iter().filter(|(_, it, is_required)| *it == owner && *is_required);
    (own.map(|(key, ..)| *key).collect(), keys_of_others(keys, owner).collect())
}

fn any(keys: &[&str]) -> Vec<Value> {
    keys.iter().map(|key| json!({ "required": [key] })).collect()
}
