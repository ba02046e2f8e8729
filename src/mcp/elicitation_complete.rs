//! The visits of URLs that are done with, and of which a client has yet to be told.
//!
//! A server may say so in the middle of a call, or long after it (spec 2025-11-25, elicitation, completion
//! notifications). What comes too late for its call's own stream waits here for the client's.
//!
//! Promises: telling never waits; no more than [`MAX_DONE`] wait, and the oldest go first, since nobody may
//! rely on being told.
//!
//! Knows nothing of: whose visit it was.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// How many wait to be told of.
pub const MAX_DONE: usize = 64;
/// How large the `params` of one may be: an id, and what a server may put beside it.
pub const MAX_DONE_BYTES: usize = 4 * 1024;

/// What one client has yet to be told. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Visits {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    done: Mutex<VecDeque<Bytes>>,
    came: Notify,
}

impl Visits {
    /// Takes the `params` of the news that a visit is done with; those over [`MAX_DONE_BYTES`] are dropped.
    pub fn tell(&self, params: Bytes) {
        if params.len() > MAX_DONE_BYTES {
            return;
        }
        {
            let mut done = self.lock();
            if done.len() >= MAX_DONE {
                done.pop_front();
            }
            done.push_back(params);
        }
        self.shared.came.notify_one();
    }

    /// The next of them. Never ends. Cancel-safe. For one reader at a time.
    pub async fn next(&self) -> Bytes {
        loop {
            if let Some(params) = self.lock().pop_front() {
                return params;
            }
            self.shared.came.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.shared.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn they_are_told_once_in_their_order_and_bounded() {
        let visits = Visits::default();
        visits.tell(vec![b'x'; MAX_DONE_BYTES + 1].into());
        (0..=MAX_DONE).for_each(|number| visits.tell(number.to_string().into()));
        let told: Vec<_> = std::iter::from_fn(|| visits.next().now_or_never()).collect();
        let expected: Vec<_> = (1..=MAX_DONE).map(|number| number.to_string()).collect();
        assert_eq!(told, expected);
    }
}
