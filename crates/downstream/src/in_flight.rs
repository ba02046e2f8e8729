//! Requests in progress of one client connection, by client request id.
//!
//! Each legacy session and each stdio connection has a table of its own, so the ids of one client
//! mean nothing to another.
//!
//! Invariant: the future of a request is dropped, which is how cancellation works, as soon as its
//! client cancels it or the session ends, unless the response is ready first.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use weir_base::json::Object;
use weir_base::tasks::sync::Mutex;
use weir_mcp::call::CancelReason;
use weir_mcp::jsonrpc::{Id, Notification};

/// Notification that cancels a request.
pub(super) const CANCELLED: &str = "notifications/cancelled";

/// Table of the requests in progress.
#[derive(Debug)]
pub(super) struct InFlightRequests {
    open: Mutex<HashMap<Id, (CancellationToken, CancelReason)>>,
    end: CancellationToken,
}

/// One request in progress. Removed from the table on drop.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    in_flight: Arc<InFlightRequests>,
    id: Id,
    cancelled: CancellationToken,
    reason: CancelReason,
}

impl InFlightRequests {
    /// Creates an empty table; all of its requests are cancelled when `end` fires.
    pub(super) fn new(end: CancellationToken) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), end })
    }

    /// Adds a request; `None` if its id is in use (spec, base protocol: an id MUST NOT match one
    /// that has not been answered).
    pub(super) fn open(self: &Arc<Self>, id: &Id) -> Option<InFlightGuard> {
        let mut open = self.open.lock();
        if open.contains_key(id) {
            return None;
        }
        let cancelled = self.end.child_token();
        let reason = CancelReason::unset();
        open.insert(id.clone(), (cancelled.clone(), reason.clone()));
        Some(InFlightGuard { in_flight: Arc::clone(self), id: id.clone(), cancelled, reason })
    }

    /// Cancels the request that a `notifications/cancelled` names, and returns whether there is
    /// one; other notifications have no effect.
    pub(super) fn handle_notification(&self, notification: &Notification) -> bool {
        &*notification.method == CANCELLED && self.cancel(&notification.params)
    }

    /// Cancels the request that these parameters name. A request that is unknown, finished or
    /// unreadable is ignored (spec, cancellation: error handling).
    fn cancel(&self, params: &Object) -> bool {
        let id = params.get_bytes("requestId").and_then(Id::parse);
        let Some((cancelled, reason)) = id.and_then(|id| self.open.lock().get(&id).cloned()) else {
            return false;
        };
        // First the reason: the request is dropped as soon as its token fires.
        params.get_string("reason").into_iter().for_each(|text| reason.set(&text));
        cancelled.cancel();
        true
    }

    /// True if no request is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.open.lock().is_empty()
    }

    /// Number of requests in progress.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.open.lock().len()
    }
}

impl InFlightGuard {
    /// Runs the request until it is done; `None` if it was cancelled.
    pub(super) async fn run<T>(self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.cancelled.cancelled() => None,
        }
    }

    /// The client's reason for cancelling the request.
    pub(super) fn reason(&self) -> &CancelReason {
        &self.reason
    }

    /// Token that fires when the request is cancelled.
    pub(super) fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.in_flight.open.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    fn id(text: &'static str) -> Id {
        Id::parse(text.into()).expect("an id")
    }

    fn cancel(in_flight: &InFlightRequests, params: &'static str) -> bool {
        in_flight.cancel(&Object::parse(params).expect("an object"))
    }

    #[tokio::test]
    async fn a_cancel_ends_the_request_of_that_very_id() {
        let in_flight = InFlightRequests::new(CancellationToken::new());
        let (number, string) =
            (in_flight.open(&id("1")).expect("free"), in_flight.open(&id("\"1\"")));
        for (params, is_known) in [
            ("{}", false),
            (r#"{"requestId":null}"#, false),
            (r#"{"requestId":2}"#, false),
            (r#"{"requestId":"1"}"#, true),
        ] {
            assert_eq!(cancel(&in_flight, params), is_known, "{params}");
        }
        assert!(!number.cancelled().is_cancelled());
        assert_eq!(string.expect("free").run(pending::<()>()).await, None);
        assert!(cancel(&in_flight, r#"{"requestId":1}"#));
        assert_eq!(number.run(pending::<()>()).await, None);
        assert_eq!(in_flight.len(), 0);
    }

    #[test]
    fn reason_is_known_when_the_token_fires_and_the_first_one_counts() {
        let in_flight = InFlightRequests::new(CancellationToken::new());
        let call = in_flight.open(&id("1")).expect("free");
        assert_eq!(call.reason().get(), None);
        assert!(cancel(&in_flight, r#"{"requestId":1,"reason":"a\u0062"}"#));
        assert!(cancel(&in_flight, r#"{"requestId":1,"reason":"other"}"#));
        assert_eq!(call.reason().get(), Some("ab"));
    }

    #[tokio::test]
    async fn an_answer_that_is_there_goes_before_the_cancel() {
        let in_flight = InFlightRequests::new(CancellationToken::new());
        let call = in_flight.open(&id("1")).expect("free");
        cancel(&in_flight, r#"{"requestId":1}"#);
        assert_eq!(call.run(ready(7)).await, Some(7));
    }

    #[tokio::test]
    async fn the_end_of_a_conversation_cancels_all_and_an_id_is_free_again_after_its_answer() {
        let end = CancellationToken::new();
        let in_flight = InFlightRequests::new(end.clone());
        let call = in_flight.open(&id("1")).expect("free");
        assert!(in_flight.open(&id("1")).is_none());
        end.cancel();
        assert_eq!(call.run(pending::<()>()).await, None);
        assert!(in_flight.open(&id("1")).is_some());
    }
}
