//! Pending `notifications/elicitation/complete` of one client.
//!
//! A server may send the notification in the middle of a call, or long after it (spec 2025-11-25,
//! elicitation, completion notifications). One that is too late for its call's stream waits here
//! for the client's own stream.
//!
//! Invariants: adding never waits; at most [`MAX_COMPLETIONS`] notifications wait, and beyond that
//! the oldest are dropped, because clients may not rely on the notification.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use weir_base::memory::coalescing_queue::CoalescingQueue;

/// Maximum number of pending notifications.
pub(crate) const MAX_COMPLETIONS: usize = 64;
/// Maximum size of the `params` of one: an id, and further members of the server.
pub(crate) const MAX_COMPLETION_BYTES: usize = 4 * 1024;

/// Queue of pending notifications of one client. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ElicitationCompletions {
    queue: Arc<CoalescingQueue<VecDeque<Bytes>>>,
}

impl ElicitationCompletions {
    /// Adds the `params` of a notification; those over [`MAX_COMPLETION_BYTES`] are dropped.
    pub(crate) fn add(&self, params: Bytes) {
        if params.len() > MAX_COMPLETION_BYTES {
            return;
        }
        {
            let mut pending = self.queue.lock();
            if pending.len() >= MAX_COMPLETIONS {
                pending.pop_front();
            }
            pending.push_back(params);
        }
        self.queue.wake();
    }

    /// Waits for the next notification. Never ends. Cancel-safe. For one reader at a time.
    pub async fn next(&self) -> Bytes {
        self.queue.next(|pending, _| pending.pop_front().ok_or(None)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn they_are_told_once_in_their_order_and_bounded() {
        let completions = ElicitationCompletions::default();
        completions.add(vec![b'x'; MAX_COMPLETION_BYTES + 1].into());
        (0..=MAX_COMPLETIONS).for_each(|number| completions.add(number.to_string().into()));
        let seen: Vec<_> = std::iter::from_fn(|| completions.next().now_or_never()).collect();
        let expected: Vec<_> = (1..=MAX_COMPLETIONS).map(|number| number.to_string()).collect();
        assert_eq!(seen, expected);
    }
}
