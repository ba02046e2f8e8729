//! How many change streams each client has open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

use crate::metrics::{Gauge, Present};
use crate::policy::Principal;

/// Counts the open streams of each principal.
pub(crate) struct Streams {
    open: Arc<DashMap<Principal, usize>>,
    limit: AtomicUsize,
    all: Arc<Gauge>,
}

/// The right to one stream; it returns when dropped.
pub(crate) struct Slot {
    open: Arc<DashMap<Principal, usize>>,
    principal: Principal,
    _open: Present,
}

impl Streams {
    pub(crate) fn new(limit: usize) -> Self {
        Self { open: Arc::default(), limit: limit.into(), all: Arc::default() }
    }

    /// The same, which are counted there.
    pub(crate) fn counted(self, all: &Arc<Gauge>) -> Self {
        Self { all: Arc::clone(all), ..self }
    }

    /// How many a client may have from now on. Who has more keeps them.
    pub(crate) fn limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Takes a slot; `None` if the principal has used all of its own.
    pub(crate) fn open(&self, principal: &Principal) -> Option<Slot> {
        let mut count = self.open.entry(principal.clone()).or_insert(0);
        if *count >= principal.share(self.limit.load(Ordering::Relaxed)) {
            return None;
        }
        *count += 1;
        let _open = Gauge::enter(&self.all);
        Some(Slot { open: Arc::clone(&self.open), principal: principal.clone(), _open })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.open.entry(self.principal.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::downstream::limits::stream_limit::*;
    use crate::policy::ANONYMOUS_CLIENTS;

    #[test]
    fn each_principal_has_slots_of_its_own_and_they_return() {
        let principal = |name: &str| Principal::new(name, "r");
        let streams = Streams::new(1);
        let slot = streams.open(&principal("a"));
        assert!(slot.is_some() && streams.open(&principal("a")).is_none());
        assert!(streams.open(&principal("b")).is_some());
        drop(slot);
        assert!(streams.open(&principal("a")).is_some() && streams.open.is_empty());
        let anonymous: Vec<_> =
            (0..20).filter_map(|_| streams.open(&principal("anonymous"))).collect();
        assert_eq!(anonymous.len(), ANONYMOUS_CLIENTS);
    }
}
