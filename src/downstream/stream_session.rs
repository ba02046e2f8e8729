//! Legacy session in which everything for the client is written to one stream: stdio lines, or the
//! events of the HTTP+SSE transport.
//!
//! Invariants: each request runs in a task of its own that its client can cancel by id; its
//! notifications and its requests to the client are written before its response; receiving a
//! message never waits for the output. The end of the session ends all of its tasks.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::client_requests::ClientRequests;
use super::in_flight::InFlightRequests;
use super::legacy::{self, LegacyClient};
use super::response::results::memory_exhausted;
use super::response::{ClientResponse, ErrorResponse, ResponseBody, ResponseFuture, ResponseMode};
use super::session::new_id;
use super::{ServerState, ServerStateCell, batch};
use crate::audit::AuditEvent;
use crate::downstream::limits::concurrency::{ConcurrencyPermit, Overloaded};
use crate::downstream::response::audit_events::finish_event;
use crate::downstream::response::results;
use crate::gateway::{ClientContext, ClientNotifications};
use crate::json::Object;
use crate::jsonrpc::{self, Id, Notification, Request};
use crate::mcp::call::ClientHandle;
use crate::memory_budget::{BudgetExhausted, BufferLimit, MemoryBudget};
use crate::request_scope::RequestScope;

/// Session of one client, initialized or not.
pub(super) struct StreamSession {
    pub(super) client: ClientContext,
    pub(super) state: Arc<ServerState>,
    state_watch: watch::Receiver<Arc<ServerState>>,
    /// True once the client's credentials are no longer valid.
    pub(super) is_over: bool,
    /// Requests in progress, by the client's ids.
    pub(super) in_flight: Arc<InFlightRequests>,
    pub(super) outgoing: OutboundQueue,
    /// Hint for a client that has not initialized the session yet.
    hint: &'static str,
    /// Open server-to-client requests. Their ids continue even if the client initializes again.
    client_requests: ClientRequests,
    initialized: Option<InitializedSession>,
    end: CancellationToken,
}

/// State of an initialized session.
struct InitializedSession {
    peer: LegacyClient,
    /// Notifications; `None` once the client has sent `notifications/initialized` and they are
    /// sent.
    notifications: Option<ClientNotifications>,
    end: CancellationToken,
}

/// Outbound queue, and the tasks that write to it.
pub(super) struct OutboundQueue {
    /// Messages of one line each; a task waits here while the client does not read.
    pub(super) queue: mpsc::Sender<Bytes>,
    pub(super) tracker: TaskTracker,
    buffer_limit: BufferLimit,
    /// Byte limit of queued responses; a response that exceeds it is replaced by an error.
    queue_budget: QueueBudget,
}

/// Byte limits of queued responses: of one stream session, and of all clients together.
#[derive(Clone)]
struct QueueBudget {
    session_bytes: Arc<Semaphore>,
    budget: MemoryBudget,
}

/// Queued response, with the bytes that it reserves until it is written.
struct QueuedMessage {
    text: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for QueuedMessage {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl StreamSession {
    /// Creates a session that is not initialized, with at most `max_queued_bytes` of queued
    /// responses. When `end` fires its requests are cancelled.
    pub(super) fn new(
        state_cell: &ServerStateCell,
        state: Arc<ServerState>,
        client: ClientContext,
        queue: mpsc::Sender<Bytes>,
        end: CancellationToken,
        hint: &'static str,
        max_queued_bytes: usize,
    ) -> Self {
        let buffer_limit = state.settings.buffer_limit.clone();
        let session_bytes = Arc::new(Semaphore::new(max_queued_bytes.min(Semaphore::MAX_PERMITS)));
        let queue_budget = QueueBudget { session_bytes, budget: buffer_limit.budget.clone() };
        let outgoing =
            OutboundQueue { queue, tracker: TaskTracker::new(), buffer_limit, queue_budget };
        let (in_flight, client_requests) =
            (InFlightRequests::new(end.clone()), ClientRequests::new(state.stop.clone()));
        let mut state_watch = state_cell.watch();
        match Arc::ptr_eq(&state_watch.borrow(), &state) && client.is_under(&state.config) {
            true => state_watch.mark_unchanged(),
            false => state_watch.mark_changed(),
        }
        let (is_over, initialized) = (false, None);
        Self {
            client,
            state,
            state_watch,
            is_over,
            in_flight,
            outgoing,
            hint,
            client_requests,
            initialized,
            end,
        }
    }

    /// Waits for a configuration reload. Cancel-safe.
    pub(super) async fn config_changed(&mut self) {
        if self.state_watch.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.state_watch.mark_changed();
    }

    /// Switches to the current configuration; false if the client would not be authenticated under
    /// it. Requests in progress are still answered.
    pub(super) fn apply_new_config(&mut self) -> bool {
        if self.state_watch.has_changed().unwrap_or(false) {
            let state = Arc::clone(&self.state_watch.borrow_and_update());
            match self.client.reauthenticate(&state.config) {
                Ok(client) => (self.client, self.state) = (client, state),
                Err(refusal) => {
                    let client = &self.client.principal().name;
                    debug!(%client, %refusal, "client no longer authenticated, session ended");
                    self.is_over = true;
                }
            }
        }
        !self.is_over
    }

    /// True if `initialize` has succeeded.
    pub(super) fn is_initialized(&self) -> bool {
        self.initialized.is_some()
    }

    /// Returns a permit for one request, or a slot in the wait queue. It is released once the
    /// response is queued, because a client that does not read its responses still occupies it.
    pub(super) fn request_permit(&self) -> Result<ConcurrencyPermit, ErrorResponse> {
        let permit = self.state.concurrency.enqueue(self.client.principal());
        permit.map_err(|Overloaded { retry_after }| results::too_busy(retry_after))
    }

    /// Returns the response to a request that gets no permit: an error, or the result of a ping,
    /// which takes no work. The caller records the audit event.
    pub(super) fn overloaded_response(
        &self,
        request: &Request,
        refused: &ErrorResponse,
    ) -> ClientResponse {
        let is_ping = self.is_initialized() && &*request.method == "ping";
        match is_ping {
            true => ClientResponse::result(&request.id, b"{}"),
            false => ClientResponse::refused(Some(&request.id), refused),
        }
    }

    /// Returns the client context with a new audit event, for one message.
    pub(super) fn client_for_message(&self) -> ClientContext {
        self.client.with_audit_event(self.client.audit_event().begin_next())
    }

    /// Records a request that is answered immediately, from start to end, and returns its response.
    pub(super) fn record_response(
        &self,
        request: &Request,
        response: ClientResponse,
    ) -> ClientResponse {
        let audit_event = self.client.audit_event().begin_next();
        audit_event.set_method(&request.method);
        audit_event.set_bytes_in(request.bytes);
        if let Some(initialized) = &self.initialized {
            audit_event.set_revision(initialized.peer.revision);
        }
        finish_event(&audit_event, response)
    }

    /// Records a message that is no request, and returns its response.
    pub(super) fn record_invalid(&self, response: ClientResponse) -> ClientResponse {
        finish_event(&self.client.audit_event().begin_next(), response)
    }

    /// Starts a request once it has its permit, or returns its immediate response.
    pub(super) fn handle_request(
        &mut self,
        request: Request,
        permit: ConcurrencyPermit,
    ) -> Option<(ClientResponse, ConcurrencyPermit)> {
        if &*request.method == legacy::INITIALIZE {
            let response = self.initialize(&request);
            return Some((self.record_response(&request, response), permit));
        }
        let Some(initialized) = &self.initialized else {
            let response = legacy::handle_uninitialized(&self.client, &request, self.hint);
            return Some((self.record_response(&request, response), permit));
        };
        let id = request.id.clone();
        let buffer_limit = &self.state.settings.buffer_limit;
        let (client, peer) = (self.client_for_message(), &initialized.peer);
        let audit_event = client.audit_event().clone();
        audit_event.defer_end(true);
        let call = legacy::serve(
            &client,
            peer,
            &self.in_flight,
            request,
            buffer_limit,
            ResponseMode::SharedStream,
        );
        self.outgoing.spawn_call(id, call, audit_event, permit);
        None
    }

    fn initialize(&mut self, request: &Request) -> ClientResponse {
        let handle = ClientHandle::new(&new_id(), self.end.child_token());
        let versions = &self.state.settings.versions;
        let client_requests = self.client_requests.clone();
        match legacy::initialize(&self.client, versions, &request.params, handle, client_requests) {
            Ok((peer, result)) => {
                // A second `initialize` replaces the first session.
                if let Some(old) = self.initialized.take() {
                    old.end.cancel();
                }
                let notifications = self.client.listen(&peer.subscriptions, peer.revision);
                let notifications = Some(
                    notifications
                        .with_elicitation_completions(&peer.client.elicitation_completions),
                );
                let end = peer.client.gone.clone();
                self.initialized = Some(InitializedSession { peer, notifications, end });
                ClientResponse::result(&request.id, &result)
            }
            Err(refused) => ClientResponse::refused(Some(&request.id), &refused),
        }
    }

    /// Handles a notification.
    pub(super) fn handle_notification(&mut self, notification: &Notification) {
        match &*notification.method {
            "notifications/cancelled" => self.in_flight.cancel(&notification.params),
            "notifications/initialized" => {
                let initialized = self.initialized.as_mut();
                let initialized = initialized.and_then(|initialized| {
                    Some((initialized.notifications.take()?, &initialized.end))
                });
                if let Some((notifications, end)) = initialized {
                    let sending =
                        send_notifications(notifications, end.clone(), self.outgoing.queue.clone());
                    self.outgoing.tracker.spawn(sending);
                }
            }
            _ => {}
        }
    }

    /// Handles a client's response to a server-to-client request.
    pub(super) fn handle_response(&self, response: jsonrpc::Response) {
        if let Some(InitializedSession { peer, .. }) = &self.initialized {
            peer.client_requests.complete(response);
        }
    }

    /// Starts a batch, in the revisions that have them.
    pub(super) fn handle_batch(&self, text: &Bytes) -> Result<(), ErrorResponse> {
        let Some(InitializedSession { peer, .. }) = &self.initialized else {
            return Err(batch::batches_removed());
        };
        let messages = batch::read(peer.revision, text)?;
        let mut permit = self.request_permit()?;
        let buffer_limit = &self.state.settings.buffer_limit;
        let (queue, queue_budget) =
            (self.outgoing.queue.clone(), self.outgoing.queue_budget.clone());
        let finish = move |text| reserve(&queue_budget, text);
        let responses =
            batch::serve(&self.client, peer, &self.in_flight, messages, buffer_limit, finish);
        self.outgoing.tracker.spawn(async move {
            let response = match permit.acquire().await {
                Ok(()) => responses.await,
                Err(Overloaded { retry_after }) => {
                    Some(ClientResponse::refused(None, &results::too_busy(retry_after)))
                }
            };
            if let Some(text) = response.and_then(|response| response.text.into_whole()) {
                // Fails only if the stream is closed, and the client gone.
                let _ = queue.send(text).await;
            }
        });
        Ok(())
    }

    /// Ends the session and all of its requests. At shutdown, or if the client would no longer be
    /// authenticated, only the notifications end: calls in progress are finished first.
    pub(super) async fn close(self) {
        if !self.is_over && !self.state.stop.is_cancelled() {
            self.end.cancel();
        }
        if let Some(initialized) = self.initialized {
            initialized.end.cancel();
        }
        self.outgoing.tracker.close();
        self.outgoing.tracker.wait().await;
        self.end.cancel();
    }
}

impl OutboundQueue {
    /// Queues a response if there is space now; false if there is none.
    pub(super) fn try_send(&self, response: &ClientResponse) -> bool {
        match &response.text {
            ResponseBody::Whole(text) => self.queue.try_send(text.clone()).is_ok(),
            ResponseBody::Parts(_) | ResponseBody::Arriving(..) => false,
        }
    }

    /// Runs a call in a task of its own once it has its permit: queues its notifications and then
    /// its response. `record` is the call's audit event.
    pub(super) fn spawn_call(
        &self,
        id: Id,
        call: ResponseFuture,
        audit_event: AuditEvent,
        permit: ConcurrencyPermit,
    ) {
        let (queue, queue_budget) = (self.queue.clone(), self.queue_budget.clone());
        let call = call.catch_panics(Some(id.clone()));
        let scope = RequestScope::begin();
        audit_event.set_request_number(scope.number());
        let (buffer_limit, answering) = (self.buffer_limit.clone(), (id, call, audit_event));
        self.tracker.spawn(scope.run(run_call(
            answering,
            permit,
            queue,
            buffer_limit,
            queue_budget,
        )));
    }
}

async fn run_call(
    (id, call, audit_event): (Id, ResponseFuture, AuditEvent),
    mut permit: ConcurrencyPermit,
    queue: mpsc::Sender<Bytes>,
    buffer_limit: BufferLimit,
    queue_budget: QueueBudget,
) {
    let ResponseFuture { mut response, mut messages } = call;
    if let Err(Overloaded { retry_after }) = permit.acquire().await {
        let refused = finish_event(
            &audit_event,
            ClientResponse::refused(Some(&id), &results::too_busy(retry_after)),
        );
        drop((response, audit_event));
        if let Some(text) = refused.text.into_whole() {
            let _ = queue.send(text).await;
        }
        return;
    }
    let done = loop {
        tokio::select! {
            biased;
            done = &mut response => break done,
            message = messages.next() => if queue.send(message).await.is_err() {
                return;
            },
        }
    };
    let rest = messages.rest(done.is_some());
    let text = match done {
        // Buffered already by the dialect, so that a cancellation still reaches it while it
        // arrives.
        Some(done) => done.collect(&id, &buffer_limit).await.text.into_whole().map(|text| {
            reserve(&queue_budget, text).unwrap_or_else(|refused| {
                finish_event(&audit_event, ClientResponse::refused(Some(&id), &refused));
                jsonrpc::write_error(Some(&id), &refused.error.to_bytes())
            })
        }),
        None => None,
    };
    drop(audit_event);
    for message in rest.chain(text) {
        if queue.send(message).await.is_err() {
            return;
        }
    }
}

/// Reserves bytes for a response until it is written, or returns an error in its place: a client
/// that requests much and reads nothing must not fill the memory.
fn reserve(queue_budget: &QueueBudget, text: Bytes) -> Result<Bytes, ErrorResponse> {
    let text = queue_budget.budget.charge(text).map_err(|BudgetExhausted| memory_exhausted())?;
    if text.len() <= UNRESERVED_BYTES {
        return Ok(text);
    }
    let size = u32::try_from(text.len()).unwrap_or(u32::MAX);
    match Arc::clone(&queue_budget.session_bytes).try_acquire_many_owned(size) {
        Ok(permit) => Ok(Bytes::from_owner(QueuedMessage { text, _permit: permit })),
        Err(_) => Err(memory_exhausted()),
    }
}

/// Responses up to this size need no reservation in the session: their number is bounded.
const UNRESERVED_BYTES: usize = 64 * 1024;

/// Sends notifications until the session ends. While the queue is full, further changes coalesce in
/// the notification source.
async fn send_notifications(
    mut notifications: ClientNotifications,
    end: CancellationToken,
    queue: mpsc::Sender<Bytes>,
) {
    loop {
        let notification = tokio::select! {
            biased;
            () = end.cancelled() => return,
            notification = notifications.next() => notification,
        };
        // `None` means that the client's credentials are no longer valid; this task ends, and the
        // session ends in `apply_new_config`.
        let Some(notification) = notification else { return };
        if queue.send(results::change_notification(&notification, Object::new())).await.is_err() {
            return;
        }
    }
}
