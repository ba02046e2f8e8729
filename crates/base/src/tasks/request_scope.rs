//! Task-local request number and log context.
//!
//! The code that accepts a request runs its work in a scope; code that learns a fact about the
//! request records it there; the log formatter reads it. A request without log lines costs a number
//! and a few moves.
//!
//! Invariants: a scope belongs to one task and takes no lock; its names are shared, not copied.
//!
//! Decision: docs/decisions/0022-metrics.md

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static CURRENT: RequestScope;
}

/// Number of a request, and its log context.
#[derive(Debug, Default)]
pub struct RequestScope {
    number: u64,
    context: RefCell<LogContext>,
}

/// Facts about a request that log lines show beside its number.
#[derive(Debug, Default, Clone)]
pub struct LogContext {
    /// Name of the client.
    pub client: Option<Arc<str>>,
    /// Name of the upstream that the request goes to.
    pub upstream: Option<Arc<str>>,
    /// Id of the trace that the request is a part of.
    pub trace: Option<Box<str>>,
}

impl RequestScope {
    /// Creates the scope of a new request.
    pub fn begin() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), context: RefCell::default() }
    }

    /// Returns the number of the request.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Runs a future in this scope.
    // Not an `async fn`: its future would contain the work twice, as an argument and while it is
    // awaited.
    pub fn run<T>(self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        CURRENT.scope(self, work)
    }
}

/// Returns the number of the current request, if there is one. Numbers count from the start of the
/// process.
pub fn number() -> Option<u64> {
    CURRENT.try_with(|scope| scope.number).ok()
}

/// Records facts about the current request.
pub fn record(tell: impl FnOnce(&mut LogContext)) {
    // Outside of a request there is nothing to record.
    let _ = CURRENT.try_with(|scope| tell(&mut scope.context.borrow_mut()));
}

/// Reads the number and the context of the current request, if there is one.
pub fn current<T>(read: impl FnOnce(u64, &LogContext) -> T) -> Option<T> {
    CURRENT.try_with(|scope| read(scope.number, &scope.context.borrow())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_values_of_a_request_scope_are_seen_in_that_scope_only() {
        assert!(number().is_none());
        let walk = |name: &'static str| {
            RequestScope::begin().run(async move {
                record(|context| context.client = Some(name.into()));
                tokio::task::yield_now().await;
                current(|number, context| (number, context.client.clone()))
            })
        };
        let (one, other) = tokio::join!(walk("one"), walk("other"));
        let (one, other) = (one.expect("a scope"), other.expect("a scope"));
        assert_eq!((one.1.as_deref(), other.1.as_deref()), (Some("one"), Some("other")));
        assert_ne!(one.0, other.0);
    }
}
