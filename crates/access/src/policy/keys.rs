//! API keys of the clients.
//!
//! A key is looked up by the first eight bytes of its SHA-256 and then compared with the entries
//! found there, all 32 bytes in constant time. The look-up itself is not constant-time: its
//! duration depends on the hash of the presented key. An attacker cannot steer a guess towards an
//! unknown hash, and a known hash does not give the key. So the time does not grow with the number
//! of keys, and reveals nothing about how close a guess was.

pub mod text;

use std::collections::HashMap;
use std::time::SystemTime;

use subtle::ConstantTimeEq;

use super::{AuthError, ClientCredentials, Principal, VerifiedCredential};
use weir_base::secrets::sha256::sha256;

/// Table of all keys.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// Entries by the first bytes of the hash; nearly always one.
    by_hash: HashMap<[u8; 8], Vec<KeyEntry>>,
}

#[derive(Debug)]
struct KeyEntry {
    principal: Principal,
    sha256: [u8; 32],
    expires: Option<SystemTime>,
}

impl Keys {
    /// Creates the table.
    pub(crate) fn new(clients: &[ClientCredentials]) -> Self {
        let mut table = Self::default();
        for client in clients {
            let (principal, expires) = (client.principal(), client.expires);
            for sha256 in client.key_sha256.iter().copied() {
                let entry = KeyEntry { principal: principal.clone(), sha256, expires };
                table.by_hash.entry(first(&sha256)).or_default().push(entry);
            }
        }
        table
    }

    /// Returns the client of a key.
    pub(crate) fn find(
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
}

fn first(sha256: &[u8; 32]) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&sha256[..8]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
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
        let key = |client: &str, keys: &[&str]| ClientCredentials {
            name: client.into(),
            role: "dev".into(),
            key_sha256: keys.iter().copied().map(hash).collect(),
            expires,
            ..Default::default()
        };
        Keys::new(&[key("ann", &["old", "new"]), key("bob", &["bob's"])])
    }

    #[test]
    fn either_of_two_keys_opens_while_they_are_changed() {
        let now = SystemTime::now();
        for (key, client) in [("old", "ann"), ("new", "ann"), ("bob's", "bob")] {
            assert_eq!(whose(keys(None).find(key, now)), Ok(client.into()));
        }
        assert_eq!(whose(keys(None).find("", now)), Err(AuthError::Unknown));
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
        let made = |key: &str| ClientCredentials {
            name: "ann".into(),
            role: "dev".into(),
            key_sha256: vec![hash(key)],
            ..Default::default()
        };
        let now = SystemTime::now();
        assert!(Keys::new(&[made(key.expose())]).find(key.expose(), now).is_ok());
        assert_eq!(whose(Keys::new(&[made(cut)]).find(cut, now)), Err(AuthError::Unknown));
    }

    #[test]
    fn s36_a_key_is_compared_with_one_of_ten_thousand_and_a_guess_with_none() {
        let many = (0..10_000).map(|n| ClientCredentials {
            name: format!("client-{n}"),
            role: "dev".into(),
            key_sha256: vec![hash(&format!("key-{n}")), hash(&format!("old-{n}"))],
            ..Default::default()
        });
        let keys = Keys::new(&Vec::from_iter(many));
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
        let key = |client: &str, sha256| ClientCredentials {
            name: client.into(),
            role: "dev".into(),
            key_sha256: vec![sha256],
            ..Default::default()
        };
        let keys = Keys::new(&[key("near", near), key("ann", hash("ann's"))]);
        assert_eq!(keys.candidates(&hash("ann's")).len(), 2);
        let found = whose(keys.find("ann's", SystemTime::now()));
        assert_eq!(found, Ok("ann".into()));
    }
}
