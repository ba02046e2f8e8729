//! Outbound queue of a stream session, and the tasks that write to it: calls, batches and
//! notifications.
//!
//! Invariants: the notifications and requests of a call are queued before its response; a client
//! that requests much and reads nothing does not fill the memory.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::in_flight::InFlightGuard;
use crate::limits::concurrency::{ConcurrencyPermit, Overloaded};
use crate::modern::ListenSubscription;
use crate::response::results::{self, memory_exhausted};
use crate::response::{
    ClientResponse, ErrorResponse, ResponseBody, ResponseFuture, catch_panics, finish_event,
    keep_with_text,
};
use weir_base::json::Object;
use weir_base::memory::memory_budget::{BudgetExhausted, BufferLimit};
use weir_base::tasks::request_scope::RequestScope;
use weir_gateway::ClientNotifications;
use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::kind::Kind;
use weir_record::audit::AuditEvent;

/// Outbound queue, and the tracker of the tasks that write to it.
#[derive(Clone)]
pub(crate) struct OutboundQueue {
    /// Messages of one line each; a task waits here while the client does not read.
    pub(crate) queue: mpsc::Sender<Bytes>,
    pub(super) tracker: TaskTracker,
    /// Tracker of the requests for lists, which are tasks of `tracker` as well.
    pub(super) lists: TaskTracker,
    /// Tracker of the other requests, likewise.
    pub(crate) calls: TaskTracker,
    buffer_limit: BufferLimit,
    /// Byte limit of the session's queued responses; a response that exceeds it is replaced by an
    /// error.
    session_bytes: Arc<Semaphore>,
}

impl OutboundQueue {
    /// Creates the queue, with at most `max_bytes` of responses.
    pub(super) fn new(
        queue: mpsc::Sender<Bytes>,
        buffer_limit: BufferLimit,
        max_bytes: usize,
    ) -> Self {
        let session_bytes = Arc::new(Semaphore::new(max_bytes.min(Semaphore::MAX_PERMITS)));
        let (tracker, lists, calls) = Default::default();
        Self { queue, tracker, lists, calls, buffer_limit, session_bytes }
    }

    /// Tracker of the requests of a method.
    pub(super) fn requests_of(&self, method: &str) -> TaskTracker {
        match Kind::of_list_method(method) {
            Some(_) => self.lists.clone(),
            None => self.calls.clone(),
        }
    }

    /// Queues a response if there is space now; false if there is none.
    pub(crate) fn try_send(&self, response: &ClientResponse) -> bool {
        match &response.text {
            ResponseBody::Whole(text) => self.queue.try_send(text.clone()).is_ok(),
            ResponseBody::Parts(_) | ResponseBody::Arriving(_) => false,
        }
    }

    /// Runs a call in a task of its own once it has its permit: queues its notifications and then
    /// its response. The task is one of `requests`, too.
    pub(crate) fn spawn_call(
        &self,
        requests: &TaskTracker,
        id: Id,
        call: ResponseFuture,
        audit_event: AuditEvent,
        permit: ConcurrencyPermit,
    ) {
        let scope = RequestScope::begin();
        audit_event.set_request_number(scope.number());
        let run = scope.run(self.clone().run_call(id, call, audit_event, permit));
        self.tracker.spawn(requests.track_future(run));
    }

    async fn run_call(
        self,
        id: Id,
        call: ResponseFuture,
        audit_event: AuditEvent,
        mut permit: ConcurrencyPermit,
    ) {
        let ResponseFuture { response, mut messages } = call;
        if let Err(Overloaded { retry_after }) = permit.acquire().await {
            let refused = ClientResponse::refused(Some(&id), &results::too_busy(retry_after));
            let refused = finish_event(&audit_event, refused);
            drop((response, audit_event));
            if let Some(text) = refused.text.into_whole() {
                let _ = self.queue.send(text).await;
            }
            return;
        }
        let mut response = pin!(catch_panics(Some(&id), response));
        let done = loop {
            tokio::select! {
                biased;
                done = &mut response => break done,
                message = messages.next() => if self.queue.send(message).await.is_err() {
                    return;
                },
            }
        };
        let rest = messages.rest(done.is_some());
        let text = match done {
            // Buffered already by the dialect, so that a cancellation still reaches it while it
            // arrives.
            Some(done) => done.collect(&id, &self.buffer_limit).await.text.into_whole(),
            None => None,
        };
        let text = text.map(|text| {
            self.reserve(text).unwrap_or_else(|refused| {
                finish_event(&audit_event, ClientResponse::refused(Some(&id), &refused));
                jsonrpc::write_error(Some(&id), &refused.error.to_bytes())
            })
        });
        drop(audit_event);
        for message in rest.chain(text) {
            if self.queue.send(message).await.is_err() {
                return;
            }
        }
    }

    /// Queues the response of a batch, once it has its permit; without one that of `refuse`.
    pub(super) fn spawn_batch(
        &self,
        responses: impl Future<Output = Option<ClientResponse>> + Send + 'static,
        mut permit: ConcurrencyPermit,
        refuse: impl FnOnce(&ErrorResponse) -> Option<ClientResponse> + Send + 'static,
    ) {
        let queue = self.queue.clone();
        self.tracker.spawn(self.calls.track_future(async move {
            let response = match permit.acquire().await {
                Ok(()) => responses.await,
                Err(Overloaded { retry_after }) => refuse(&results::too_busy(retry_after)),
            };
            if let Some(text) = response.and_then(|response| response.text.into_whole()) {
                // Fails only if the stream is closed, and the client gone.
                let _ = queue.send(text).await;
            }
        }));
    }

    /// Reserves bytes for a response until it is written, or returns an error in its place.
    pub(super) fn reserve(&self, text: Bytes) -> Result<Bytes, ErrorResponse> {
        let charged = self.buffer_limit.budget.charge(text);
        let text = charged.map_err(|BudgetExhausted| memory_exhausted())?;
        if text.len() <= UNRESERVED_BYTES {
            return Ok(text);
        }
        let size = u32::try_from(text.len()).unwrap_or(u32::MAX);
        match Arc::clone(&self.session_bytes).try_acquire_many_owned(size) {
            Ok(permit) => Ok(keep_with_text(permit, text)),
            Err(_) => Err(memory_exhausted()),
        }
    }

    /// Sends the notifications of a legacy session until it ends. While the queue is full, further
    /// changes coalesce in the notification source.
    pub(super) fn spawn_notifications(
        &self,
        mut notifications: ClientNotifications,
        end: CancellationToken,
    ) {
        let queue = self.queue.clone();
        self.tracker.spawn(async move {
            // `None` means that the session has ended, or that the client's credentials are no
            // longer valid; then it ends in `apply_new_config`.
            while let Some(Some(notification)) =
                notifications.next().with_cancellation_token(&end).await
            {
                let message = results::change_notification(&notification, Object::new());
                if queue.send(message).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Sends a modern client the notifications it subscribed to, until it cancels, its credentials
    /// are no longer valid, or the gateway shuts down.
    pub(super) fn spawn_listen(
        &self,
        mut listening: ListenSubscription,
        guard: InFlightGuard,
        stop: CancellationToken,
    ) {
        let queue = self.queue.clone();
        self.tracker.spawn(async move {
            loop {
                let change = tokio::select! {
                    biased;
                    () = guard.cancelled().cancelled() => return,
                    change = listening.next().with_cancellation_token(&stop) => change.flatten(),
                };
                let is_last = change.is_none();
                let line = change.unwrap_or_else(|| listening.cancel_notification());
                if queue.send(line).await.is_err() || is_last {
                    return;
                }
            }
        });
    }
}

/// Responses up to this size need no reservation in the session: their number is bounded.
const UNRESERVED_BYTES: usize = 64 * 1024;
