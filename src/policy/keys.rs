//! API keys of the clients.
//!
//! A key is looked up by the first eight bytes of its SHA-256 and then compared with the entries
//! found there, all 32 bytes in constant time. The look-up itself is not constant-time: its
//! duration depends on the hash of the presented key. An attacker cannot steer a guess towards an
//! unknown hash, and a known hash does not give the key. So the time does not grow with the number
//! of keys, and reveals nothing about how close a guess was.

pub mod text;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use subtle::ConstantTimeEq;

use super::{AuthError, Principal, VerifiedCredential};
use crate::sha256::sha256;

/// Client with the hashes of its keys.
#[derive(Debug, Clone)]
pub struct ApiKey {
    /// The client's name.
    pub client: String,
    /// The client's role.
    pub role: String,
    /// SHA-256 of each valid key: one, or two while the key is being changed.
    pub sha256: Vec<[u8; 32]>,
    /// Expiry of the keys.
    pub expires: Option<SystemTime>,
}

/// Table of all keys.
#[derive(Debug, Default)]
pub struct Keys {
    /// Entries by the first bytes of the hash; nearly always one.
    by_hash: HashMap<[u8; 8], Vec<KeyEntry>>,
    by_name: HashMap<Arc<str>, Principal>,
}

#[derive(Debug)]
struct KeyEntry {
    principal: Principal,
    sha256: [u8; 32],
    expires: Option<SystemTime>,
}

impl Keys {
    /// Creates the table.
    pub fn new(keys: Vec<ApiKey>) -> Self {
        let mut table = Self::default();
        for key in keys {
            let name: Arc<str> = key.client.into();
            let principal = Principal::new(Arc::clone(&name), key.role);
            for sha256 in key.sha256 {
                let entry = KeyEntry { principal: principal.clone(), sha256, expires: key.expires };
                table.by_hash.entry(first(&sha256)).or_default().push(entry);
            }
            table.by_name.insert(name, principal);
        }
        table
    }

    /// Returns the client of a key.
    pub fn find(
        &self,
        key: &str,
        now: SystemTime,
    ) -> Result<(Principal, VerifiedCredential), AuthError> {
        if text::is_mistyped(key) {
            tracing::debug!("API key refused: its checksum is wrong, it is truncated or mistyped");
            return Err(AuthError::Unknown);
        }
        let presented = sha256(key);
        Ok((self.principal_of_hash(&presented, now)?, VerifiedCredential::Key(presented)))
    }

    /// Returns the client of the key with this hash.
    pub(super) fn principal_of_hash(
        &self,
        presented: &[u8; 32],
        now: SystemTime,
    ) -> Result<Principal, AuthError> {
        let mut found = None;
        for entry in self.candidates(presented) {
            if bool::from(entry.sha256.ct_eq(presented)) {
                found = Some(entry);
            }
        }
        let entry = found.ok_or(AuthError::Unknown)?;
        if entry.expires.is_some_and(|expires| expires <= now) {
            return Err(AuthError::Expired);
        }
        Ok(entry.principal.clone())
    }

    /// Returns the entries that a presented key is compared with.
    fn candidates(&self, sha256: &[u8; 32]) -> &[KeyEntry] {
        self.by_hash.get(&first(sha256)).map_or(&[], Vec::as_slice)
    }

    /// Returns the client of this name.
    pub fn principal(&self, name: &str) -> Option<Principal> {
        self.by_name.get(name).cloned()
    }
}

fn first(sha256: &[u8; 32]) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&sha256[..8]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn whose(
        found: Result<(Principal, VerifiedCredential), AuthError>,
    ) -> Result<Arc<str>, AuthError> {
        found.map(|(principal, _)| principal.name)
    }

    fn hash(key: &str) -> [u8; 32] {
        sha256(key)
    }

    fn keys(expires: Option<SystemTime>) -> Keys {
        let key = |client: &str, keys: &[&str]| ApiKey {
            client: client.into(),
            role: "dev".into(),
            sha256: keys.iter().copied().map(hash).collect(),
            expires,
        };
        Keys::new(vec![key("ann", &["old", "new"]), key("bob", &["bob's"])])
    }

    #[test]
    fn either_of_two_keys_opens_while_they_are_changed() {
        let now = SystemTime::now();
        for (key, client) in [("old", "ann"), ("new", "ann"), ("bob's", "bob")] {
            assert_eq!(whose(keys(None).find(key, now)), Ok(client.into()));
        }
        assert_eq!(whose(keys(None).find("", now)), Err(AuthError::Unknown));
        assert_eq!(keys(None).principal("bob").map(|found| found.role), Some("dev".into()));
    }

    #[test]
    fn an_expired_key_opens_nothing() {
        let now = SystemTime::now();
        let keys = keys(Some(now));
        assert_eq!(whose(keys.find("new", now)), Err(AuthError::Expired));
        assert!(keys.find("new", now - Duration::from_secs(1)).is_ok());
    }

    #[test]
    fn a_key_of_weirs_own_form_is_refused_before_any_table_is_looked_at_if_it_is_mistyped() {
        let key = text::new_key();
        let cut = &key.expose()[..54];
        // Even if its hash is configured.
        let made = |key: &str| ApiKey {
            client: "ann".into(),
            role: "dev".into(),
            sha256: vec![hash(key)],
            expires: None,
        };
        let now = SystemTime::now();
        assert!(Keys::new(vec![made(key.expose())]).find(key.expose(), now).is_ok());
        assert_eq!(whose(Keys::new(vec![made(cut)]).find(cut, now)), Err(AuthError::Unknown));
    }

    #[test]
    fn s36_a_key_is_compared_with_one_of_ten_thousand_and_a_guess_with_none() {
        let many = (0..10_000).map(|n| ApiKey {
            client: format!("client-{n}"),
            role: "dev".into(),
            sha256: vec![hash(&format!("key-{n}")), hash(&format!("old-{n}"))],
            expires: None,
        });
        let keys = Keys::new(many.collect());
        for n in 0..10_000 {
            assert_eq!(keys.candidates(&hash(&format!("key-{n}"))).len(), 1);
            assert!(keys.candidates(&hash(&format!("guess-{n}"))).is_empty());
        }
        let found = whose(keys.find("old-9999", SystemTime::now()));
        assert_eq!(found, Ok("client-9999".into()));
    }

    #[test]
    fn s36_hashes_that_begin_alike_are_compared_whole() {
        let mut near = hash("ann's");
        near[31] ^= 1;
        let key = |client: &str, sha256| ApiKey {
            client: client.into(),
            role: "dev".into(),
            sha256: vec![sha256],
            expires: None,
        };
        let keys = Keys::new(vec![key("near", near), key("ann", hash("ann's"))]);
        assert_eq!(keys.candidates(&hash("ann's")).len(), 2);
        let found = whose(keys.find("ann's", SystemTime::now()));
        assert_eq!(found, Ok("ann".into()));
    }
}
