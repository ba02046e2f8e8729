//! Keys of `[auth]`, `[roles.<name>]` and `[clients.<name>]`.

use serde_json::json;

use super::shape::{self, ValueShape, word};
use super::{KeySpec, oidc_keys};
use crate::config::AuthConfig;
use crate::config::access::KINDS;
use crate::config::auth::AUTH_MODES;

pub(super) fn auth() -> KeySpec {
    let default = AuthConfig::default();
    let keys = vec![
        KeySpec::new(
            "mode",
            ValueShape::choice(&AUTH_MODES),
            "`required`: every request needs a client's key or certificate, or a token. \
             `anonymous`: requests without a key are accepted with the role `anonymous_role`; on \
             an address that the network can reach this is an error unless Weir is started with \
             `--allow-anonymous-network`. `auto`: `anonymous` on a loopback address as long as no \
             client and no identity provider is defined, otherwise `required`.",
        )
        .default(word(&AUTH_MODES, &default.mode)),
        KeySpec::new(
            "anonymous_role",
            ValueShape::Text("name of a role", shape::PLAIN_NAME),
            "The role of clients without a key: a `[roles.<name>]` table, or `local`.",
        )
        .default(default.anonymous_role),
        oidc_keys::providers(),
    ];
    KeySpec::new(
        "auth",
        ValueShape::table(keys),
        "Access over HTTP without a key, or with a token of an identity provider. The client \
         of `weir stdio` is the user who starts it, and needs no key.",
    )
}

pub(super) fn roles() -> KeySpec {
    let rules = ValueShape::table(rules());
    KeySpec::new(
        "roles",
        ValueShape::map(shape::PLAIN_NAME, rules),
        "The items that a role may use. Roles are assigned by `clients.<name>.role` or \
         `auth.anonymous_role`. Patterns are `<upstream>/<original name>`.",
    )
    .example(
        "[roles.developer]\nprompts.allow = [\"*\"]\ntools.allow = [\"github/*\", \"wiki/*\"]\n\
         tools.deny = [\"github/delete_*\"]\nresources.allow = [\"github/repo://public/*\"]",
    )
}

/// Keys for the rules of a role, or of a client with rules of its own.
fn rules() -> Vec<KeySpec> {
    let descriptions = [
        (
            "The prompts that the role may use.",
            "Patterns of prompts that may be used, each `<upstream>/<original name>`, or `*` for \
             all. Items that no pattern allows are not listed either.",
            "Patterns of prompts that may not be used although `allow` matches them: deny wins.",
        ),
        (
            "The tools that the role may use.",
            "Patterns of tools that may be called, as for prompts.",
            "Patterns of tools that may not be called although `allow` matches them.",
        ),
        (
            "The resources and resource templates that the role may use.",
            "Patterns of resources and resource templates that may be read: `<upstream>/<URI>`. \
             See docs/resource-uris.md for URIs that are not listed.",
            "Patterns of resources and templates that may not be read although `allow` matches \
             them.",
        ),
    ];
    let pattern = || ValueShape::Text("`<upstream>/<original name>`", shape::POLICY_PATTERN);
    let kind = |(kind, (all, allow, deny))| {
        let allow = KeySpec::new("allow", ValueShape::list(pattern()), allow).default(json!([]));
        let deny = KeySpec::new("deny", ValueShape::list(pattern()), deny).default(json!([]));
        KeySpec::new(kind, ValueShape::table(vec![allow, deny]), all)
    };
    KINDS.into_iter().zip(descriptions).map(kind).collect()
}

pub(super) fn clients() -> KeySpec {
    let any_rule = KINDS.map(|kind| json!({ "required": [kind] }));
    let role_or_rules = json!({
        "oneOf": [{ "required": ["role"] }, { "anyOf": any_rule }],
        "anyOf": [{ "required": ["key_sha256"] }, { "required": ["certificates"] }],
    });
    let hashes = ValueShape::List {
        of: Box::new(ValueShape::Text("64 hexadecimal digits", shape::HASH)),
        count: (1, Some(2)),
    };
    let mut keys = vec![
        KeySpec::new(
            "key_sha256",
            hashes,
            "The SHA-256 of the client's key: one, or two while you replace a key by a new one. No \
             two clients may have the same key.",
        )
        .example("key_sha256 = [\"<output of: printf %s KEY | sha256sum>\"]"),
        KeySpec::new(
            "certificates",
            ValueShape::list(ValueShape::Text("name in a certificate", shape::CERTIFICATE)),
            "Names of the client's certificates, with `server.tls.client_ca`: `dns:<name>` or \
             `uri:<URI>` as in their subjectAltName, or `sha256:<fingerprint>`. They replace a \
             key, or are used in addition to one.",
        )
        .example("certificates = [\"uri:spiffe://example.com/ci\"]"),
        KeySpec::new(
            "role",
            ValueShape::Text("name of a role", shape::PLAIN_NAME),
            "The client's role: a `[roles.<name>]` table, or `local`. A client has either a role \
             or rules of its own.",
        ),
        KeySpec::new(
            "expires",
            ValueShape::DateTime,
            "Date and time from which the client's keys are refused, with an offset from UTC and \
             without quotes.",
        )
        .default_text("never")
        .example("expires = 2027-06-30T00:00:00Z"),
    ];
    let own =
        "Rules of the client's own, instead of `role`; the client may use only what they allow.";
    keys.extend(
        rules().into_iter().map(|kind| KeySpec { description: own, ..kind }.described_at("roles")),
    );
    KeySpec::new(
        "clients",
        ValueShape::map(shape::PLAIN_NAME, ValueShape::Table { keys, rules: role_or_rules }),
        "A client with a key or a certificate, and the items that it may use: `role`, or rules of \
         its own.",
    )
    .example(
        "[clients.alice-laptop]\nkey_sha256 = [\"<output of: printf %s KEY | sha256sum>\"]\nrole = \
         \"developer\"\n\n[clients.ci]                     # rules of its own instead of a \
         role\nkey_sha256 = [\"<another hash>\"]\nprompts.allow = [\"library/*\"]",
    )
}
