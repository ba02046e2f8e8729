//! Which request a line of the log is about.
//!
//! Whoever takes a request in gives its work a trail; whoever learns something on the way leaves it there; whoever
//! writes a line looks whether there is one. So a request of which nothing is said costs a number and a few moves.
//!
//! Promises: a trail is of one task and takes no lock; its names are shared, not copied.
//!
//! Knows nothing of: requests, and how a line looks.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static TRAIL: Trail;
}

/// What is known of a request.
#[derive(Debug, Default)]
pub struct Trail {
    number: u64,
    known: RefCell<Known>,
}

/// What may be told of a request beside its number.
#[derive(Debug, Default, Clone)]
pub struct Known {
    /// Whose it is.
    pub client: Option<Arc<str>>,
    /// The upstream that it goes to.
    pub upstream: Option<Arc<str>>,
    /// The trace that it is a part of.
    pub trace: Option<Box<str>>,
}

impl Trail {
    /// The trail of a new request.
    pub fn begin() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), known: RefCell::default() }
    }

    /// By which number it is told of.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Does work that belongs to the request.
    // No `async fn`, whose future would have room for the work twice: as it is given, and as it is waited for.
    pub fn walk<T>(self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        TRAIL.scope(self, work)
    }
}

/// The number of the request that is being worked on, if this is known. It counts from the start of the process.
pub fn number() -> Option<u64> {
    TRAIL.try_with(|trail| trail.number).ok()
}

/// Leaves something on the trail of the request that is being worked on.
pub fn leave(tell: impl FnOnce(&mut Known)) {
    // Whoever works on no request has nobody to tell of it.
    let _ = TRAIL.try_with(|trail| tell(&mut trail.known.borrow_mut()));
}

/// What is known of the request that is being worked on.
pub fn look<T>(read: impl FnOnce(u64, &Known) -> T) -> Option<T> {
    TRAIL.try_with(|trail| read(trail.number, &trail.known.borrow())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_left_on_a_trail_is_seen_on_that_one_only() {
        assert!(number().is_none());
        let walk = |name: &'static str| {
            Trail::begin().walk(async move {
                leave(|known| known.client = Some(name.into()));
                tokio::task::yield_now().await;
                look(|number, known| (number, known.client.clone()))
            })
        };
        let (one, other) = tokio::join!(walk("one"), walk("other"));
        let (one, other) = (one.expect("a trail"), other.expect("a trail"));
        assert_eq!((one.1.as_deref(), other.1.as_deref()), (Some("one"), Some("other")));
        assert_ne!(one.0, other.0);
    }
}
