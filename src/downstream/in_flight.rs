//! The requests of one conversation that are being worked on, by their client's ids.
//!
//! A conversation is a legacy session, or the two streams of a stdio client. No table is shared
//! between conversations: one client's ids mean nothing to another.
//!
//! Promise: a request's future is dropped, which is what cancelling is, as soon as its client cancels
//! it or the conversation ends, unless its answer was there first.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::json::Object;
use crate::jsonrpc::Id;

/// The open requests.
#[derive(Debug)]
pub(super) struct Calls {
    open: Mutex<HashMap<Id, CancellationToken>>,
    end: CancellationToken,
}

/// One open request; it leaves the table when dropped.
#[derive(Debug)]
pub(super) struct OpenCall {
    calls: Arc<Calls>,
    id: Id,
    cancelled: CancellationToken,
}

impl Calls {
    /// An empty table, whose requests all end when `end` fires.
    pub(super) fn new(end: CancellationToken) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), end })
    }

    /// Enters a request; `None` if its id is in use (spec, base protocol: an id MUST NOT match one that
    /// has not been answered).
    pub(super) fn open(self: &Arc<Self>, id: &Id) -> Option<OpenCall> {
        let mut open = self.lock();
        if open.contains_key(id) {
            return None;
        }
        let cancelled = self.end.child_token();
        open.insert(id.clone(), cancelled.clone());
        Some(OpenCall { calls: Arc::clone(self), id: id.clone(), cancelled })
    }

    /// Cancels the request that a `notifications/cancelled` names; one that is unknown, answered or
    /// unreadable is ignored (spec, cancellation: error handling).
    pub(super) fn cancel(&self, params: &Object) {
        let id = params.get_bytes("requestId").and_then(Id::parse);
        if let Some(cancelled) = id.and_then(|id| self.lock().get(&id).cloned()) {
            cancelled.cancel();
        }
    }

    /// Whether none is open.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// How many are open.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, CancellationToken>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenCall {
    /// Works on the request until it is done or cancelled; then it is `None`.
    pub(super) async fn run<T>(self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.cancelled.cancelled() => None,
        }
    }

    /// Fires when the request is cancelled.
    pub(super) fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    fn id(text: &'static str) -> Id {
        Id::parse(text.into()).expect("an id")
    }

    fn cancel(calls: &Calls, params: &'static str) {
        calls.cancel(&Object::parse(params).expect("an object"));
    }

    #[tokio::test]
    async fn a_cancel_ends_the_request_of_that_very_id() {
        let calls = Calls::new(CancellationToken::new());
        let (number, string) = (calls.open(&id("1")).expect("free"), calls.open(&id("\"1\"")));
        for unknown in ["{}", r#"{"requestId":null}"#, r#"{"requestId":2}"#, r#"{"requestId":"1"}"#]
        {
            cancel(&calls, unknown);
        }
        assert!(!number.cancelled().is_cancelled());
        assert_eq!(string.expect("free").run(pending::<()>()).await, None);
        cancel(&calls, r#"{"requestId":1}"#);
        assert_eq!(number.run(pending::<()>()).await, None);
        assert_eq!(calls.len(), 0);
    }

    #[tokio::test]
    async fn an_answer_that_is_there_goes_before_the_cancel() {
        let calls = Calls::new(CancellationToken::new());
        let call = calls.open(&id("1")).expect("free");
        cancel(&calls, r#"{"requestId":1}"#);
        assert_eq!(call.run(ready(7)).await, Some(7));
    }

    #[tokio::test]
    async fn the_end_of_a_conversation_cancels_all_and_an_id_is_free_again_after_its_answer() {
        let end = CancellationToken::new();
        let calls = Calls::new(end.clone());
        let call = calls.open(&id("1")).expect("free");
        assert!(calls.open(&id("1")).is_none());
        end.cancel();
        assert_eq!(call.run(pending::<()>()).await, None);
        assert!(calls.open(&id("1")).is_some());
    }
}
