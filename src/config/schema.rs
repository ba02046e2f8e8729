//! Table of all configuration keys, for the JSON schema and for the Markdown page.
//!
//! The readers of the sections know their keys only by reading them, so they cannot list them. This
//! table lists the keys, with the descriptions for operators. Tests keep both in step: every key
//! that is read is described and the other way round, the defaults are those of the reader, and the
//! schema and the reader agree on a collection of files.
//!
//! Decision: docs/decisions/0020-configuration-and-schema.md

#![expect(clippy::disallowed_types, reason = "a schema is written here, no payload passes")]

mod access_keys;
mod admin_keys;
mod audit_keys;
mod guard_keys;
mod json;
mod keys;
mod limits_keys;
mod naming_keys;
mod oidc_keys;
mod page;
mod shape;
mod tuning_keys;
mod upstream_keys;

use serde_json::Value;

pub use json::schema;
pub use page::page;

#[cfg(test)]
pub(super) use page::toml;
pub(super) use shape::ValueShape;

/// Description of one key.
pub(super) struct KeySpec {
    pub(super) name: &'static str,
    pub(super) shape: ValueShape,
    pub(super) default: DefaultValue,
    /// Text for operators, as Markdown.
    pub(super) description: &'static str,
    /// Example, as lines of TOML.
    pub(super) example: &'static str,
    /// Table in which the keys of this key are described, if not here.
    pub(super) described_at: Option<&'static str>,
}

/// Value of a key that is not set.
pub(super) enum DefaultValue {
    /// None: the key must be set.
    Required,
    /// None: the key is optional.
    None,
    /// This value.
    Value(Value),
    /// A value that depends on other keys or on the environment; the text describes it.
    Described(&'static str),
}

impl KeySpec {
    fn new(name: &'static str, shape: ValueShape, description: &'static str) -> Self {
        let default = DefaultValue::None;
        Self { name, shape, default, description, example: "", described_at: None }
    }

    fn default(self, default: impl Into<Value>) -> Self {
        Self { default: DefaultValue::Value(default.into()), ..self }
    }

    fn default_text(self, text: &'static str) -> Self {
        Self { default: DefaultValue::Described(text), ..self }
    }

    fn required(self) -> Self {
        Self { default: DefaultValue::Required, ..self }
    }

    fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    fn described_at(self, table: &'static str) -> Self {
        Self { described_at: Some(table), ..self }
    }
}

/// Returns all keys of the top table, in the order of the example.
pub(super) fn keys() -> Vec<KeySpec> {
    keys::all()
}

/// Returns the keys of a secret's source.
pub(super) fn secret() -> Vec<KeySpec> {
    upstream_keys::secret()
}
