//! Cache of verified tokens, which saves the signature check of later requests.
//!
//! Invariant: at most `2 × capacity` tokens are cached, by their SHA-256 and not as text.

use std::time::SystemTime;

use super::generations::Generations;
use crate::policy::Principal;
use weir_base::secrets::sha256::sha256;
use weir_base::tasks::sync::Mutex;

/// Cached result of a verification.
#[derive(Clone)]
pub(super) struct CachedToken {
    pub(super) principal: Principal,
    /// Time from which the token is refused.
    pub(super) expires_at: SystemTime,
    /// Time at which it was issued, if it says it.
    pub(super) issued_at: Option<SystemTime>,
    /// Number of the issuing provider, and the generation of the keys that verified it.
    pub(super) provider: u64,
    pub(super) generation: u64,
}

pub(super) type TokenDigest = [u8; 32];

/// Cache of verified tokens by their digests.
pub(super) struct TokenCache(Mutex<Generations<TokenDigest, CachedToken>>);

impl TokenCache {
    pub(super) fn new(capacity: usize) -> Self {
        Self(Mutex::new(Generations::new(capacity)))
    }

    pub(super) fn digest(token: &str) -> TokenDigest {
        sha256(token)
    }

    /// Returns the cached result if `is_valid` accepts it; otherwise removes it.
    pub(super) fn find(
        &self,
        token: &TokenDigest,
        is_valid: impl Fn(&CachedToken) -> bool,
    ) -> Option<CachedToken> {
        let mut cached = self.0.lock();
        let found = cached.find(token)?;
        if is_valid(found) {
            return Some(found.clone());
        }
        cached.remove(token);
        None
    }

    pub(super) fn insert(&self, token: TokenDigest, cached: CachedToken) {
        self.0.lock().insert(token, cached);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().iter().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached_token(name: &str) -> CachedToken {
        let principal = Principal::new(name, "r");
        CachedToken {
            principal,
            expires_at: SystemTime::UNIX_EPOCH,
            issued_at: None,
            provider: 0,
            generation: 1,
        }
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_is_bounded() {
        let verified = TokenCache::new(10);
        let kept = TokenCache::digest("kept");
        verified.insert(kept, cached_token("ann"));
        for n in 0..1_000 {
            verified.insert(TokenCache::digest(&n.to_string()), cached_token("x"));
            if n % 5 == 0 {
                let found = verified.find(&kept, |_| true).map(|cached| cached.principal.name);
                assert_eq!(found, Some("ann".into()));
            }
            assert!(verified.len() <= 20);
        }
        assert!(verified.find(&TokenCache::digest("0"), |_| true).is_none());
    }

    #[test]
    fn what_no_longer_holds_is_forgotten() {
        let verified = TokenCache::new(10);
        let token = TokenCache::digest("a");
        verified.insert(token, cached_token("ann"));
        assert!(verified.find(&token, |_| false).is_none());
        assert!(verified.find(&token, |_| true).is_none());
    }
}
