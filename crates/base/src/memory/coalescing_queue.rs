//! Queue that combines what waits in it, for one reader.
//!
//! Its state decides what is combined, what is dropped at a bound, and when an entry may be read.
//!
//! Invariants: a writer never waits. A wake-up between two reads is not lost.

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::tasks::fairness::sleep_until;
use crate::tasks::sync::{Mutex, MutexGuard};

/// State of a queue with any number of writers and one reader.
#[derive(Debug, Default)]
pub struct CoalescingQueue<S> {
    state: Mutex<S>,
    arrived: Notify,
}

impl<S> CoalescingQueue<S> {
    /// Creates a queue.
    pub fn new(state: S) -> Self {
        Self { state: Mutex::new(state), arrived: Notify::new() }
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// Wakes the reader after a new entry.
    pub fn wake(&self) {
        self.arrived.notify_one();
    }

    /// Waits until `take` returns an entry; its error is the time at which there may be one.
    /// Cancel-safe. For one reader at a time.
    pub async fn next<T>(
        &self,
        mut take: impl FnMut(&mut S, Instant) -> Result<T, Option<Instant>>,
    ) -> T {
        loop {
            let taken = take(&mut self.state.lock(), Instant::now());
            match taken {
                Ok(entry) => return entry,
                Err(at) => tokio::select! {
                    biased;
                    () = self.arrived.notified() => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }
}
