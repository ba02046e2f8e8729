//! A provider's keys, as its JWKS tells them.
//!
//! Promise: a key that is junk is left out and named, and takes no other with it. No two keys answer to the
//! same id and algorithm.
//! Knows nothing of: where the document comes from, and how old it is.

use std::sync::Arc;

use bytes::Bytes;

use super::key::{Algorithm, Key, Unfit};
use crate::json::Object;

/// A key that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Which one and why, in words for the operator.
    pub(super) what: String,
    /// Whether it should not be as it is; else it is only for something else.
    pub(super) is_junk: bool,
}

/// The keys of one document.
pub(super) struct KeySet {
    text: Bytes,
    keys: Vec<Entry>,
}

struct Entry {
    id: Option<Box<str>>,
    key: Arc<Key>,
}

/// What a search for a key comes to.
pub(super) enum Found {
    Key(Arc<Key>),
    /// The id is known, but its key is for another algorithm.
    OtherAlgorithm,
    /// No key has this id.
    Unknown,
    /// There is no id, and more than one key could be meant, or none.
    Ambiguous,
}

impl KeySet {
    /// Reads a JWKS. Beside the keys it returns what was left out, and why.
    pub(super) fn parse(
        text: Bytes,
        allowed: &[Algorithm],
    ) -> Result<(Self, Vec<LeftOut>), &'static str> {
        let document = Object::parse(text.clone()).map_err(|_| "it is no JSON object")?;
        if !document.has("keys") {
            return Err("it has no member `keys`");
        }
        let mut listed = document.get_elements("keys").ok_or("its member `keys` is no list")?;
        let mut left_out = Vec::new();
        let count = listed.clone().count();
        if count > MAX_KEYS {
            let what = format!("all after the first {MAX_KEYS} of {count}");
            left_out.push(LeftOut { what, is_junk: true });
        }
        let mut keys: Vec<Entry> = Vec::new();
        for (at, raw) in listed.by_ref().take(MAX_KEYS).enumerate() {
            match entry(&raw, allowed, &keys) {
                Ok(entry) => keys.push(entry),
                Err(unfit) => {
                    let (Unfit::Other(why) | Unfit::Junk(why)) = unfit;
                    let is_junk = matches!(unfit, Unfit::Junk(_));
                    left_out.push(LeftOut { what: format!("number {}: {why}", at + 1), is_junk });
                }
            }
        }
        Ok((Self { text, keys }, left_out))
    }

    /// Whether the document says the same.
    pub(super) fn equals(&self, other: &Self) -> bool {
        self.text == other.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key of this id for this algorithm. Without an id there must be no choice.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Found {
        let Some(id) = id else {
            let mut fitting = self.keys.iter().filter(|entry| entry.key.algorithm == algorithm);
            return match (fitting.next(), fitting.next()) {
                (Some(only), None) => Found::Key(Arc::clone(&only.key)),
                _ => Found::Ambiguous,
            };
        };
        let mut named = self.keys.iter().filter(|entry| entry.id.as_deref() == Some(id)).peekable();
        if named.peek().is_none() {
            return Found::Unknown;
        }
        match named.find(|entry| entry.key.algorithm == algorithm) {
            Some(entry) => Found::Key(Arc::clone(&entry.key)),
            None => Found::OtherAlgorithm,
        }
    }
}

fn entry(raw: &[u8], allowed: &[Algorithm], before: &[Entry]) -> Result<Entry, Unfit> {
    let text = Bytes::copy_from_slice(raw);
    let jwk = Object::parse(text).map_err(|_| "it is no JSON object, or has a member twice")?;
    let id = match jwk.has("kid") {
        true => Some(jwk.get_string("kid").ok_or("its kid is no string")?),
        false => None,
    };
    if id.as_ref().is_some_and(|id| id.len() > MAX_KEY_ID_BYTES) {
        return Err("its kid is too long".into());
    }
    let id: Option<Box<str>> = id.map(|id| (&*id).into());
    let key = Key::from_jwk(&jwk, allowed)?;
    let same = |entry: &&Entry| entry.id == id && entry.key.algorithm == key.algorithm;
    if id.is_some() && before.iter().find(same).is_some() {
        return Err("another key has its kid".into());
    }
    Ok(Entry { id, key: Arc::new(key) })
}

/// The most keys of one provider: a few, and twice as many while it changes them.
const MAX_KEYS: usize = 64;
/// The longest id of a key, in a JWKS and in a token.
pub(super) const MAX_KEY_ID_BYTES: usize = 128;
