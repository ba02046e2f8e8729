//! Quota per principal: the number of things that each one holds.
//!
//! Invariant: a principal that holds nothing takes no memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use crate::tasks::sync::Mutex;

/// Number of permits that each principal holds.
#[derive(Debug)]
pub struct PerPrincipal<K> {
    held: Arc<Mutex<HashMap<K, usize>>>,
}

/// Permit that counts against a principal's quota until it is dropped.
#[derive(Debug)]
pub struct QuotaPermit<K: Eq + Hash> {
    held: Arc<Mutex<HashMap<K, usize>>>,
    principal: K,
}

impl<K: Clone + Eq + Hash> PerPrincipal<K> {
    /// Takes a permit; `None` if the principal holds `limit` already.
    pub fn acquire(&self, principal: &K, limit: usize) -> Option<QuotaPermit<K>> {
        let mut held = self.held.lock();
        let count = held.get(principal).copied().unwrap_or_default();
        if count >= limit {
            return None;
        }
        held.insert(principal.clone(), count + 1);
        Some(QuotaPermit { held: Arc::clone(&self.held), principal: principal.clone() })
    }

    /// Number of permits that the principal holds.
    pub fn count(&self, principal: &K) -> usize {
        self.held.lock().get(principal).copied().unwrap_or_default()
    }

    /// Returns whether no principal holds anything.
    pub fn is_empty(&self) -> bool {
        self.held.lock().is_empty()
    }
}

impl<K> Default for PerPrincipal<K> {
    fn default() -> Self {
        Self { held: Arc::default() }
    }
}

impl<K: Eq + Hash> Drop for QuotaPermit<K> {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        if let Some(count) = held.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_has_permits_of_its_own_and_they_return() {
        let quota = PerPrincipal::default();
        let permit = quota.acquire(&"a", 1);
        assert!(permit.is_some() && quota.acquire(&"a", 1).is_none() && quota.count(&"a") == 1);
        assert!(quota.acquire(&"b", 1).is_some());
        drop(permit);
        assert!(quota.acquire(&"a", 1).is_some() && quota.acquire(&"a", 0).is_none());
        assert!(quota.is_empty() && quota.count(&"a") == 0);
    }
}
