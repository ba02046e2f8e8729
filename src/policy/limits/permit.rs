//! Concurrency slots of one request.

use std::sync::Arc;

use smallvec::SmallVec;

use super::table::Bucket;
use super::{Counting, Limits};
use crate::fleet::Fleet;

/// Concurrency slots of a request in progress; none if no limit applies. They return when this is
/// dropped.
#[derive(Debug, Default)]
pub struct Permit {
    slots: SmallVec<[Arc<Bucket>; 2]>,
    /// Reports of the slots to the other replicas, if there are any.
    reports: Option<Box<SlotReporter>>,
    is_released: bool,
}

/// Reports the number of requests in progress to the store of a fleet.
#[derive(Debug)]
struct SlotReporter {
    fleet: Arc<Fleet>,
    /// Names of the buckets of the slots, in their order.
    names: Vec<Option<String>>,
}

impl Limits {
    /// Creates the permit of a request that was charged.
    pub(super) fn permit(&self, applicable: &Counting<'_>) -> Permit {
        let limiting = || applicable.iter().filter(|it| it.limit.concurrency.is_some());
        let slots: SmallVec<_> = limiting().map(|it| Arc::clone(&it.bucket)).collect();
        let fleet = self.fleet.clone().filter(|_| !slots.is_empty());
        let reports = fleet.map(|fleet| {
            let names = limiting().map(|it| it.shared.clone()).collect();
            Box::new(SlotReporter { fleet, names })
        });
        Permit { slots, reports, is_released: false }
    }
}

impl Permit {
    /// Creates a permit without limits, for the local user who runs the program.
    pub fn unlimited() -> Self {
        Self::default()
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
        self.change_slots(|in_flight| in_flight + 1);
        self.is_released = false;
        waited
    }

    fn release(&mut self) {
        if !std::mem::replace(&mut self.is_released, true) {
            self.change_slots(|in_flight| in_flight - 1);
        }
    }

    pub(super) fn change_slots(&self, change: impl Fn(usize) -> usize) {
        for (at, bucket) in self.slots.iter().enumerate() {
            let mut state = bucket.lock();
            state.in_flight = change(state.in_flight);
            if let Some(SlotReporter { fleet, names }) = self.reports.as_deref()
                && let Some(name) = &names[at]
            {
                // Under the lock, so that the last report is the last number.
                fleet.report_slots(name, state.in_flight);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.release();
    }
}
