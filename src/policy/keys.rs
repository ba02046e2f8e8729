//! The clients' API keys: who shows which key.
//!
//! A key is looked up by the first eight bytes of its SHA-256, and then compared with what is found there, all
//! 32 bytes in constant time. The look-up itself is not: how long it takes depends on the hash of what is shown, which
//! nobody can steer towards a hash that they do not know, and who knows a hash still has no key. So the time taken
//! does not grow with the number of keys, and tells nothing of how near a guess came.
//!
//! Knows nothing of: where keys come from, but for the form of Weir's own.

pub mod text;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use subtle::ConstantTimeEq;

use super::{Pass, Principal, Refusal};
use crate::sha256::sha256;

/// A client and the hashes of its keys.
#[derive(Debug, Clone)]
pub struct Key {
    /// The client's name.
    pub client: String,
    /// The client's role.
    pub role: String,
    /// SHA-256 of each key that is good: one, or two while the key is being changed.
    pub sha256: Vec<[u8; 32]>,
    /// When the keys stop being good.
    pub expires: Option<SystemTime>,
}

/// All keys.
#[derive(Debug, Default)]
pub struct Keys {
    /// By the first bytes of the hash; nearly always there is one.
    by_hash: HashMap<[u8; 8], Vec<Entry>>,
    by_name: HashMap<Arc<str>, Principal>,
}

#[derive(Debug)]
struct Entry {
    principal: Principal,
    sha256: [u8; 32],
    expires: Option<SystemTime>,
}

impl Keys {
    /// Makes the table.
    pub fn new(keys: Vec<Key>) -> Self {
        let mut table = Self::default();
        for key in keys {
            let name: Arc<str> = key.client.into();
            let principal = Principal::new(Arc::clone(&name), key.role);
            for sha256 in key.sha256 {
                let entry = Entry { principal: principal.clone(), sha256, expires: key.expires };
                table.by_hash.entry(first(&sha256)).or_default().push(entry);
            }
            table.by_name.insert(name, principal);
        }
        table
    }

    /// Tells whose key this is.
    pub fn find(&self, key: &str, now: SystemTime) -> Result<(Principal, Pass), Refusal> {
        if text::is_mistyped(key) {
            tracing::debug!("a key of Weir's own form is cut short or mistyped");
            return Err(Refusal::Unknown);
        }
        let shown = sha256(key);
        Ok((self.whose(&shown, now)?, Pass::Key(shown)))
    }

    /// Tells whose key this is the hash of.
    pub(super) fn whose(&self, shown: &[u8; 32], now: SystemTime) -> Result<Principal, Refusal> {
        let mut found = None;
        for entry in self.candidates(shown) {
            if bool::from(entry.sha256.ct_eq(shown)) {
                found = Some(entry);
            }
        }
        let entry = found.ok_or(Refusal::Unknown)?;
        if entry.expires.is_some_and(|expires| expires <= now) {
            return Err(Refusal::Expired);
        }
        Ok(entry.principal.clone())
    }

    /// What a shown key is compared with.
    fn candidates(&self, sha256: &[u8; 32]) -> &[Entry] {
        self.by_hash.get(&first(sha256)).map_or(&[], Vec::as_slice)
    }

    /// The client of this name.
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

    fn whose(found: Result<(Principal, Pass), Refusal>) -> Result<Arc<str>, Refusal> {
        found.map(|(principal, _)| principal.name)
    }

    fn hash(key: &str) -> [u8; 32] {
        sha256(key)
    }

    fn keys(expires: Option<SystemTime>) -> Keys {
        let key = |client: &str, keys: &[&str]| Key {
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
        assert_eq!(whose(keys(None).find("", now)), Err(Refusal::Unknown));
        assert_eq!(keys(None).principal("bob").map(|found| found.role), Some("dev".into()));
    }

    #[test]
    fn an_expired_key_opens_nothing() {
        let now = SystemTime::now();
        let keys = keys(Some(now));
        assert_eq!(whose(keys.find("new", now)), Err(Refusal::Expired));
        assert!(keys.find("new", now - Duration::from_secs(1)).is_ok());
    }

    #[test]
    fn a_key_of_weirs_own_form_is_refused_before_any_table_is_looked_at_if_it_is_mistyped() {
        let key = text::new_key();
        let cut = &key.expose()[..54];
        // Even if somebody has configured its hash.
        let made = |key: &str| Key {
            client: "ann".into(),
            role: "dev".into(),
            sha256: vec![hash(key)],
            expires: None,
        };
        let now = SystemTime::now();
        assert!(Keys::new(vec![made(key.expose())]).find(key.expose(), now).is_ok());
        assert_eq!(whose(Keys::new(vec![made(cut)]).find(cut, now)), Err(Refusal::Unknown));
    }

    #[test]
    fn s36_a_key_is_compared_with_one_of_ten_thousand_and_a_guess_with_none() {
        let many = (0..10_000).map(|n| Key {
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
        let key = |client: &str, sha256| Key {
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
