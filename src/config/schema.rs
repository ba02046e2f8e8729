//! Every key of the configuration, described once: for editors as a JSON schema, for people as a page.
//!
//! The reader knows its keys by asking for them, so it cannot list them; here they are listed, with what an
//! operator has to know. The tests hold the two together: every key that is asked for is described and the
//! other way round, the defaults are the reader's, and both judge a collection of files alike.
//!
//! Knows nothing of: any file that was written.

#![expect(clippy::disallowed_types, reason = "a schema is written here, no payload passes")]

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
pub(super) use shape::Shape;

/// One key.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) fallback: Fallback,
    /// What it means to an operator, as Markdown.
    pub(super) meaning: &'static str,
    /// Lines of TOML.
    pub(super) example: &'static str,
    /// The table in which its own keys are told, if not here.
    pub(super) told_at: Option<&'static str>,
}

/// What holds while a key is not written.
pub(super) enum Fallback {
    /// Nothing does: it has to be written.
    Required,
    /// There is nothing then.
    Nothing,
    /// As if this were written.
    Is(Value),
    /// It depends.
    Told(&'static str),
}

impl Key {
    fn new(name: &'static str, shape: Shape, meaning: &'static str) -> Self {
        let fallback = Fallback::Nothing;
        Self { name, shape, fallback, meaning, example: "", told_at: None }
    }

    fn or(self, default: impl Into<Value>) -> Self {
        Self { fallback: Fallback::Is(default.into()), ..self }
    }

    fn or_else(self, told: &'static str) -> Self {
        Self { fallback: Fallback::Told(told), ..self }
    }

    fn required(self) -> Self {
        Self { fallback: Fallback::Required, ..self }
    }

    fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    fn told_at(self, table: &'static str) -> Self {
        Self { told_at: Some(table), ..self }
    }
}

/// All keys of the top table, in the order of the example.
pub(super) fn keys() -> Vec<Key> {
    keys::all()
}

/// The ways to say where a secret is.
pub(super) fn secret() -> Vec<Key> {
    upstream_keys::secret()
}
