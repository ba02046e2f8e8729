//! The clients' API keys: who shows which key.

use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{Principal, Refusal};

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
    entries: Vec<Entry>,
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
        let entries = keys.into_iter().flat_map(|key| {
            let name: Arc<str> = key.client.into();
            let principal = Principal::new(name, key.role);
            let entry =
                move |sha256| Entry { principal: principal.clone(), sha256, expires: key.expires };
            key.sha256.into_iter().map(entry)
        });
        Self { entries: entries.collect() }
    }

    /// Tells whose key this is. Every entry is compared, each in constant time, so the time taken
    /// tells nothing of how near a guess came.
    pub fn find(&self, key: &str, now: SystemTime) -> Result<Principal, Refusal> {
        let shown: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut found = None;
        for entry in &self.entries {
            if bool::from(entry.sha256.ct_eq(&shown)) {
                found = Some(entry);
            }
        }
        let entry = found.ok_or(Refusal::Unknown)?;
        if entry.expires.is_some_and(|expires| expires <= now) {
            return Err(Refusal::Expired);
        }
        Ok(entry.principal.clone())
    }

    /// The client of this name.
    pub fn principal(&self, name: &str) -> Option<Principal> {
        let entry = self.entries.iter().find(|entry| *entry.principal.name == *name);
        entry.map(|entry| entry.principal.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn keys(expires: Option<SystemTime>) -> Keys {
        let hash = |key: &str| Sha256::digest(key.as_bytes()).into();
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
            assert_eq!(keys(None).find(key, now).map(|found| found.name), Ok(client.into()));
        }
        assert_eq!(keys(None).find("", now), Err(Refusal::Unknown));
        assert_eq!(keys(None).principal("bob").map(|found| found.role), Some("dev".into()));
    }

    #[test]
    fn an_expired_key_opens_nothing() {
        let now = SystemTime::now();
        let keys = keys(Some(now));
        assert_eq!(keys.find("new", now), Err(Refusal::Expired));
        assert!(keys.find("new", now - Duration::from_secs(1)).is_ok());
    }
}
