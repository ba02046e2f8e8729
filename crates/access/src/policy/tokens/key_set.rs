//! Key set of a provider, parsed from its JWKS.
//!
//! Invariants: a malformed key is skipped and reported, and does not affect other keys. No two keys
//! have the same id and algorithm.

use std::sync::Arc;

use bytes::Bytes;

use super::TokenError;
use super::key::{Algorithm, KeyError, VerificationKey};
use weir_base::json::Object;

/// Key that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SkippedKey {
    /// Index and reason, as a text for the operator.
    pub(super) what: String,
    /// True if the key is malformed; otherwise it is only for another use.
    pub(super) is_malformed: bool,
}

/// Keys of one document.
pub(super) struct KeySet {
    text: Bytes,
    keys: Vec<KeySetEntry>,
}

struct KeySetEntry {
    id: Option<Box<str>>,
    key: Arc<VerificationKey>,
}

impl KeySet {
    /// Parses a JWKS. Returns the keys, and those that were skipped.
    pub(super) fn parse(
        text: Bytes,
        allowed: &[Algorithm],
    ) -> Result<(Self, Vec<SkippedKey>), &'static str> {
        let document = Object::parse(text.clone()).map_err(|_| "it is not a JSON object")?;
        if !document.has("keys") {
            return Err("it has no member `keys`");
        }
        let mut listed = document.get_elements("keys").ok_or("its member `keys` is not a list")?;
        let mut skipped = Vec::new();
        let count = listed.clone().count();
        if count > MAX_KEYS {
            let what = format!("all after the first {MAX_KEYS} of {count}");
            skipped.push(SkippedKey { what, is_malformed: true });
        }
        let mut keys: Vec<KeySetEntry> = Vec::new();
        for (at, raw) in listed.by_ref().take(MAX_KEYS).enumerate() {
            match entry(&raw, allowed, &keys) {
                Ok(entry) => keys.push(entry),
                Err(unfit) => {
                    let (KeyError::Unsuitable(why) | KeyError::Malformed(why)) = unfit;
                    let is_malformed = matches!(unfit, KeyError::Malformed(_));
                    skipped.push(SkippedKey {
                        what: format!("number {}: {why}", at + 1),
                        is_malformed,
                    });
                }
            }
        }
        Ok((Self { text, keys }, skipped))
    }

    /// Returns whether both were parsed from the same text.
    pub(super) fn equals(&self, other: &Self) -> bool {
        self.text == other.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the key of this id for this algorithm. Without an id there must be a single
    /// candidate.
    pub(super) fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<VerificationKey>, TokenError> {
        let Some(id) = id else {
            let mut fitting = self.keys.iter().filter(|entry| entry.key.algorithm == algorithm);
            return match (fitting.next(), fitting.next()) {
                (Some(only), None) => Ok(Arc::clone(&only.key)),
                _ => Err(TokenError::NoKeyId),
            };
        };
        let mut named = self.keys.iter().filter(|entry| entry.id.as_deref() == Some(id)).peekable();
        if named.peek().is_none() {
            return Err(TokenError::UnknownKey);
        }
        let fitting = named.find(|entry| entry.key.algorithm == algorithm);
        fitting.map(|entry| Arc::clone(&entry.key)).ok_or(TokenError::KeyMismatch)
    }
}

fn entry(
    raw: &[u8],
    allowed: &[Algorithm],
    existing: &[KeySetEntry],
) -> Result<KeySetEntry, KeyError> {
    let text = Bytes::copy_from_slice(raw);
    let jwk =
        Object::parse(text).map_err(|_| "it is not a JSON object, or has a duplicate member")?;
    let id = match jwk.has("kid") {
        true => Some(jwk.get_string("kid").ok_or("its kid is not a string")?),
        false => None,
    };
    if id.as_ref().is_some_and(|id| id.len() > MAX_KEY_ID_BYTES) {
        return Err("its kid is too long".into());
    }
    let id: Option<Box<str>> = id.map(|id| (&*id).into());
    let key = VerificationKey::from_jwk(&jwk, allowed)?;
    let same = |entry: &&KeySetEntry| entry.id == id && entry.key.algorithm == key.algorithm;
    if id.is_some() && existing.iter().find(same).is_some() {
        return Err("another key has its kid".into());
    }
    Ok(KeySetEntry { id, key: Arc::new(key) })
}

/// Most keys of one provider: usually a few, and twice as many during a rotation.
const MAX_KEYS: usize = 64;
/// Longest key id, in a JWKS and in a token.
pub(super) const MAX_KEY_ID_BYTES: usize = 128;
