//! Concurrency slots of one request.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Counting;
use super::table::Bucket;
use weir_fleet::SharedLimits;

/// Concurrency slots of a request in progress; none if no limit applies. They return when this is
/// dropped.
#[derive(Debug, Default)]
pub struct Permit {
    slots: SmallVec<[Arc<Bucket>; 2]>,
    /// Slots that all replicas count together, if there are any.
    shared: Option<Box<SharedSlots>>,
    is_released: bool,
}

/// Buckets that count a request for all replicas of a fleet.
#[derive(Debug)]
struct SharedSlots {
    fleet: Arc<SharedLimits>,
    names: Vec<String>,
}

impl Permit {
    /// Creates the permit of a request that was charged here. In a fleet its slots are reported, or
    /// it `is_charged` for all replicas next.
    pub(super) fn new(
        fleet: Option<&Arc<SharedLimits>>,
        applicable: &Counting<'_>,
        is_charged: bool,
    ) -> Self {
        let limiting = || applicable.iter().filter(|it| it.limit.concurrency.is_some());
        let slots = limiting().map(|it| Arc::clone(&it.bucket)).collect();
        let names: Vec<_> = limiting().filter_map(|it| it.shared.clone()).collect();
        let fleet = fleet.filter(|_| !names.is_empty()).map(Arc::clone);
        let shared = fleet.map(|fleet| {
            fleet.take_slots(&names, is_charged);
            Box::new(SharedSlots { fleet, names })
        });
        Self { slots, shared, is_released: false }
    }

    /// Returns whether the permit holds any slot, so that its duration matters.
    pub fn holds_slots(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Releases the slots while a person is waited for, and then takes them back even if they are
    /// in use: the request is in progress already.
    pub async fn release_while<T>(&mut self, wait: impl Future<Output = T>) -> T {
        self.release();
        let waited = wait.await;
        for bucket in &self.slots {
            bucket.lock().in_flight += 1;
        }
        if let Some(SharedSlots { fleet, names }) = self.shared.as_deref() {
            fleet.take_slots(names, false);
        }
        self.is_released = false;
        waited
    }

    fn release(&mut self) {
        if std::mem::replace(&mut self.is_released, true) {
            return;
        }
        for bucket in &self.slots {
            bucket.lock().in_flight -= 1;
        }
        if let Some(SharedSlots { fleet, names }) = self.shared.as_deref() {
            fleet.return_slots(names);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.release();
    }
}
