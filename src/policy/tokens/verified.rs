//! Tokens that were found good: the next request with one costs no signature.
//!
//! Promise: at most `2 × capacity` tokens are remembered, by their SHA-256 and not as they are.
//! Knows nothing of: why a token is good.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use crate::policy::Principal;
use crate::sha256::sha256;

/// What is remembered of a token.
#[derive(Clone)]
pub(super) struct Good {
    pub(super) principal: Principal,
    /// From when on it is refused.
    pub(super) until: SystemTime,
    /// Which provider issued it, and which of its sets of keys says so.
    pub(super) provider: u64,
    pub(super) generation: u64,
}

pub(super) type Digest = [u8; 32];

pub(super) struct Verified {
    capacity: usize,
    generations: Mutex<Generations>,
}

/// Who was not asked for while `young` filled up once is forgotten.
#[derive(Default)]
struct Generations {
    young: HashMap<Digest, Good>,
    old: HashMap<Digest, Good>,
}

impl Verified {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, generations: Mutex::default() }
    }

    pub(super) fn digest(token: &str) -> Digest {
        sha256(token)
    }

    /// What is remembered, if `good` says that it still holds; else it is forgotten.
    pub(super) fn find(&self, token: &Digest, good: impl Fn(&Good) -> bool) -> Option<Good> {
        let mut generations = self.lock();
        if let Some(found) = generations.young.get(token) {
            if good(found) {
                return Some(found.clone());
            }
            generations.young.remove(token);
            return None;
        }
        let found = generations.old.remove(token).filter(good)?;
        self.put(&mut generations, *token, found.clone());
        Some(found)
    }

    pub(super) fn remember(&self, token: Digest, good: Good) {
        self.put(&mut self.lock(), token, good);
    }

    fn put(&self, generations: &mut Generations, token: Digest, good: Good) {
        if generations.young.len() >= self.capacity {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(token, good);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let generations = self.lock();
        generations.young.len() + generations.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(name: &str) -> Good {
        let principal = Principal::new(name, "r");
        Good { principal, until: SystemTime::UNIX_EPOCH, provider: 0, generation: 1 }
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_is_bounded() {
        let verified = Verified::new(10);
        let kept = Verified::digest("kept");
        verified.remember(kept, good("ann"));
        for n in 0..1_000 {
            verified.remember(Verified::digest(&n.to_string()), good("x"));
            if n % 5 == 0 {
                let found = verified.find(&kept, |_| true).map(|good| good.principal.name);
                assert_eq!(found, Some("ann".into()));
            }
            assert!(verified.len() <= 20);
        }
        assert!(verified.find(&Verified::digest("0"), |_| true).is_none());
    }

    #[test]
    fn what_no_longer_holds_is_forgotten() {
        let verified = Verified::new(10);
        let token = Verified::digest("a");
        verified.remember(token, good("ann"));
        assert!(verified.find(&token, |_| false).is_none());
        assert!(verified.find(&token, |_| true).is_none());
    }
}
