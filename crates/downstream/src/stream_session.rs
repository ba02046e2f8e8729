//! Session in which everything for the client is written to one stream: stdio lines, or the events
//! of the HTTP+SSE transport.
//!
//! Invariants: each request runs in a task of its own that its client can cancel by id; its
//! notifications and its requests to the client are written before its response; receiving a
//! message never waits for the output. The end of the session ends all of its tasks.

mod outbound;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::client_requests::ClientRequests;
use super::in_flight::InFlightRequests;
use super::legacy::{self, LegacyClient, LegacyConnection};
use super::modern::{self, ResponseKind};
use super::session::new_id;
use super::{ServerState, ServerStateCell, batch, era};
use crate::limits::concurrency::{ConcurrencyPermit, Overloaded};
use crate::response::results;
use crate::response::{ClientResponse, ErrorResponse, ResponseFuture, ResponseMode, finish_event};
use outbound::OutboundQueue;
use weir_gateway::{ClientContext, ClientIdentity, ClientNotifications};
use weir_mcp::call::ClientHandle;
use weir_mcp::jsonrpc::{self, Id, InvalidMessage, Message, Notification, Request, code};
use weir_mcp::revision::Era;
use weir_record::audit::AuditEvent;

/// Differences between stdio and HTTP+SSE, which are both served by [`StreamSession`].
pub(super) struct StreamRules {
    /// Hint for a client that sends a request before it has initialized the session.
    pub(super) hint: &'static str,
    /// Largest number of bytes of queued responses.
    pub(super) max_queued_bytes: usize,
    /// True if modern requests are served as such, and not handled as legacy ones.
    pub(super) has_modern: bool,
    /// True if a second `initialize` replaces the first session; otherwise it is refused.
    pub(super) can_reinitialize: bool,
}

/// Message from the client.
pub(super) enum StreamMessage {
    Single(Message),
    /// Not parsed yet: the session's revision decides whether batches are allowed.
    Batch(Bytes),
}

/// Response that is ready as soon as its message has been handled.
pub(super) struct ImmediateResponse {
    /// Id of the request; `None` if the message was none.
    pub(super) id: Option<Id>,
    pub(super) response: ClientResponse,
    /// Audit event that the response ends if it is sent on the session's stream.
    audit_event: AuditEvent,
    /// Permit of a request that was admitted.
    pub(super) permit: Option<ConcurrencyPermit>,
}

/// Session of one client, initialized or not.
pub(super) struct StreamSession {
    pub(super) client: ClientContext,
    pub(super) state: Arc<ServerState>,
    state_watch: watch::Receiver<Arc<ServerState>>,
    /// True once the client's credentials are no longer valid.
    pub(super) is_over: bool,
    /// Requests in progress of both eras, by the client's ids.
    in_flight: Arc<InFlightRequests>,
    pub(super) outgoing: OutboundQueue,
    rules: StreamRules,
    /// Open server-to-client requests. Their ids continue even if the client initializes again.
    client_requests: ClientRequests,
    initialized: Option<InitializedSession>,
    /// Ends the session and its requests.
    pub(super) end: CancellationToken,
}

/// State of an initialized session.
struct InitializedSession {
    peer: LegacyClient,
    /// Notifications; `None` once the client has sent `notifications/initialized` and they are
    /// sent.
    notifications: Option<ClientNotifications>,
}

impl InitializedSession {
    /// Token that ends the notifications and the session's requests.
    fn end(&self) -> &CancellationToken {
        &self.peer.context.client.gone
    }
}

impl StreamMessage {
    /// Parses a message; the messages of a batch are not parsed yet.
    pub(super) fn parse(text: Bytes) -> Result<Self, InvalidMessage> {
        match jsonrpc::is_batch(&text) {
            true => Ok(Self::Batch(text)),
            false => Message::parse(text).map(Self::Single),
        }
    }
}

impl ImmediateResponse {
    /// Ends the audit event with the response. The permit is released when the caller drops it.
    pub(super) fn record(self) -> (ClientResponse, Option<ConcurrencyPermit>) {
        (finish_event(&self.audit_event, self.response), self.permit)
    }

    /// Returns the response without an audit event of its own.
    pub(super) fn unrecorded(self) -> ClientResponse {
        self.audit_event.discard();
        self.response
    }
}

impl StreamSession {
    /// Creates a session that is not initialized. When `end` fires its requests are cancelled.
    pub(super) fn new(
        state_cell: &ServerStateCell,
        state: Arc<ServerState>,
        client: ClientContext,
        queue: mpsc::Sender<Bytes>,
        end: CancellationToken,
        rules: StreamRules,
    ) -> Self {
        let buffer_limit = state.buffer_limit();
        let mut state_watch = state_cell.watch();
        match Arc::ptr_eq(&state_watch.borrow(), &state) && client.is_under(&state.config) {
            true => state_watch.mark_unchanged(),
            false => state_watch.mark_changed(),
        }
        let client_requests = ClientRequests::new(client.instance(), state.stop.clone());
        Self {
            client,
            state_watch,
            is_over: false,
            in_flight: InFlightRequests::new(end.clone()),
            outgoing: OutboundQueue::new(queue, buffer_limit, rules.max_queued_bytes),
            rules,
            client_requests,
            state,
            initialized: None,
            end,
        }
    }

    /// Waits until the session has to end: its stream has ended, the gateway shuts down, or the
    /// client would not be authenticated under a new configuration. Cancel-safe.
    pub(super) async fn ended(&mut self) {
        loop {
            tokio::select! {
                biased;
                () = self.end.cancelled() => return,
                () = self.state.stop.cancelled() => return,
                Ok(()) = self.state_watch.changed() => self.state_watch.mark_changed(),
            }
            if !self.apply_new_config() {
                return;
            }
        }
    }

    /// Switches to the current configuration; false if the client would not be authenticated under
    /// it. Requests in progress are still answered.
    pub(super) fn apply_new_config(&mut self) -> bool {
        if self.state_watch.has_changed().unwrap_or(false) {
            let state = Arc::clone(&self.state_watch.borrow_and_update());
            match ClientIdentity::reauthenticate(&self.client, &state.config) {
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

    /// Handles a message. Its response is queued by a task, or returned if it is ready.
    pub(super) fn handle(&mut self, message: StreamMessage) -> Option<ImmediateResponse> {
        match message {
            StreamMessage::Single(Message::Request(request)) => self.handle_request(request),
            StreamMessage::Single(Message::Notification(notification)) => {
                self.handle_notification(&notification);
                None
            }
            StreamMessage::Single(Message::Response(response)) => {
                self.handle_response(response);
                None
            }
            StreamMessage::Batch(text) => {
                let refused = self.handle_batch(&text).err()?;
                let revision = self.initialized.as_ref().map(|it| it.peer.context.revision);
                let mut refusals = batch::refuse(revision, &text, &refused);
                let last = refusals.pop()?;
                // Where there are no batches, each request gets a response of its own.
                refusals.iter().for_each(|refusal| _ = self.outgoing.try_send(refusal));
                Some(self.refused_message(last))
            }
        }
    }

    /// Returns the response to a message that is no request.
    pub(super) fn refused_message(&self, response: ClientResponse) -> ImmediateResponse {
        let audit_event = self.client.audit_event().begin_next();
        ImmediateResponse { id: None, response, audit_event, permit: None }
    }

    /// Handles a message of which only the beginning was read, and returns its response.
    pub(super) fn handle_unread(&self, head: &[u8], refused: ErrorResponse) -> ImmediateResponse {
        let jsonrpc::Error { code, message, .. } = refused.error;
        self.handle_invalid(InvalidMessage::of_part(head, code, message))
    }

    /// Handles a message that cannot be read, and returns its response.
    pub(super) fn handle_invalid(&self, invalid: InvalidMessage) -> ImmediateResponse {
        if let Some(response) = invalid.as_error_response() {
            self.handle_response(response);
        }
        self.refused_message(ClientResponse::from(invalid))
    }

    /// Starts a request once it has its permit, or returns its immediate response.
    fn handle_request(&mut self, request: Request) -> Option<ImmediateResponse> {
        let permit = match self.request_permit() {
            Ok(permit) => permit,
            Err(refused) => {
                // A ping takes no work.
                let is_ping = self.initialized.is_some() && &*request.method == "ping";
                let response = match is_ping {
                    true => ClientResponse::result(&request.id, b"{}"),
                    false => ClientResponse::refused(Some(&request.id), &refused),
                };
                return Some(self.immediate(&request, response, None));
            }
        };
        let versions = &self.state.settings.versions;
        if self.rules.has_modern
            && era::of_request(versions, &request.method, &request.params, None) == Era::Modern
        {
            return self.handle_modern(request, permit);
        }
        if &*request.method == legacy::INITIALIZE {
            let response = self.initialize(&request);
            return Some(self.immediate(&request, response, Some(permit)));
        }
        let Some(InitializedSession { peer, .. }) = &self.initialized else {
            let hint = self.rules.hint;
            let response = legacy::handle_uninitialized(&self.client, &request, hint);
            return Some(self.immediate(&request, response, Some(permit)));
        };
        let (id, client) = (request.id.clone(), self.client.with_next_audit_event());
        let audit_event = client.audit_event().clone();
        audit_event.defer_end(true);
        let buffer_limit = &self.state.buffer_limit();
        let mode = ResponseMode::SharedStream;
        let requests = self.outgoing.requests_of(&request.method);
        let call = legacy::serve(&client, peer, request, buffer_limit, mode);
        self.outgoing.spawn_call(&requests, id, call, audit_event, permit);
        None
    }

    fn handle_modern(
        &self,
        mut request: Request,
        permit: ConcurrencyPermit,
    ) -> Option<ImmediateResponse> {
        let client = self.client.with_next_audit_event();
        let audit_event = client.audit_event().clone();
        audit_event.set_method(&request.method);
        let id = request.id.clone();
        let opened = modern::take_context(&mut request, None, &self.state.settings.versions)
            .and_then(|context| {
                let guard = self.in_flight.open(&id).ok_or_else(legacy::id_in_use)?;
                Ok((context, guard))
            });
        let (mut context, guard) = match opened {
            Ok(opened) => opened,
            Err(refused) => {
                let response = ClientResponse::refused(Some(&id), &refused);
                let (id, permit) = (Some(id), Some(permit));
                return Some(ImmediateResponse { id, response, audit_event, permit });
            }
        };
        context.cancel_reason = guard.reason().clone();
        let requests = self.outgoing.requests_of(&request.method);
        let mode = ResponseMode::SharedStream;
        // Buffered: streaming one response piece by piece would block all other messages.
        match modern::serve(&client, request, context, &self.state, mode) {
            ResponseKind::Unary(ResponseFuture { response, messages }) => {
                let response = Box::pin(async move { guard.run(response).await.flatten() });
                let call = ResponseFuture { response, messages };
                self.outgoing.spawn_call(&requests, id, call, audit_event, permit);
            }
            // The stream limiter bounds these, not the concurrency limit.
            ResponseKind::Stream(listening) => {
                self.outgoing.spawn_listen(listening, guard, self.state.stop.clone());
            }
        }
        None
    }

    /// Returns a permit for one request, or a slot in the wait queue. It is released once the
    /// response is queued, because a client that does not read its responses still occupies it.
    fn request_permit(&self) -> Result<ConcurrencyPermit, ErrorResponse> {
        let permit = self.state.concurrency.enqueue(self.client.principal());
        permit.map_err(|Overloaded { retry_after }| results::too_busy(retry_after))
    }

    /// Returns the immediate response to a request, with an audit event from start to end.
    fn immediate(
        &self,
        request: &Request,
        response: ClientResponse,
        permit: Option<ConcurrencyPermit>,
    ) -> ImmediateResponse {
        let audit_event = self.client.audit_event().begin_next();
        audit_event.set_method(&request.method);
        audit_event.set_bytes_in(request.bytes);
        if let Some(initialized) = &self.initialized {
            audit_event.set_revision(initialized.peer.context.revision);
        }
        ImmediateResponse { id: Some(request.id.clone()), response, audit_event, permit }
    }

    fn initialize(&mut self, request: &Request) -> ClientResponse {
        if self.initialized.is_some() && !self.rules.can_reinitialize {
            let text = "the session is already initialized: open another stream for a new session";
            let refused = ErrorResponse::new(StatusCode::OK, code::INVALID_REQUEST, text);
            return ClientResponse::refused(Some(&request.id), &refused);
        }
        let connection = LegacyConnection {
            handle: ClientHandle::new(&new_id(), self.end.child_token()),
            in_flight: Arc::clone(&self.in_flight),
            client_requests: self.client_requests.clone(),
        };
        let versions = &self.state.settings.versions;
        match legacy::initialize(&self.client, versions, request, connection) {
            Ok((peer, response)) => {
                let notifications = Some(peer.notifications(&self.client));
                // A second `initialize` replaces the first session.
                if let Some(old) =
                    self.initialized.replace(InitializedSession { peer, notifications })
                {
                    old.end().cancel();
                }
                response
            }
            Err(refused) => refused,
        }
    }

    fn handle_notification(&mut self, notification: &Notification) {
        self.in_flight.handle_notification(notification);
        if &*notification.method == "notifications/initialized"
            && let Some(initialized) = &mut self.initialized
            && let Some(notifications) = initialized.notifications.take()
        {
            self.outgoing.spawn_notifications(notifications, initialized.end().clone());
        }
    }

    /// Handles a client's response to a server-to-client request.
    fn handle_response(&self, response: jsonrpc::Response) {
        if let Some(InitializedSession { peer, .. }) = &self.initialized {
            peer.client_requests.complete(response);
        }
    }

    /// Starts a batch, in the revisions that have them.
    fn handle_batch(&self, text: &Bytes) -> Result<(), ErrorResponse> {
        let Some(InitializedSession { peer, .. }) = &self.initialized else {
            return Err(batch::batches_removed());
        };
        let revision = peer.context.revision;
        let messages = batch::read(revision, text)?;
        let permit = self.request_permit()?;
        let outgoing = self.outgoing.clone();
        let finish = move |text| outgoing.reserve(text);
        let buffer_limit = &self.state.buffer_limit();
        let responses = batch::serve(&self.client, peer, messages, buffer_limit, finish);
        let text = text.clone();
        let refuse = move |refused: &_| batch::refuse(Some(revision), &text, refused).pop();
        self.outgoing.spawn_batch(responses, permit, refuse);
        Ok(())
    }

    /// Waits until the requests in progress are answered or the session has to end: for lists at
    /// most `lists`, for others at most `calls`.
    pub(super) async fn finish_requests(&mut self, lists: Duration, calls: Duration) {
        let outgoing = self.outgoing.clone();
        let answered = async {
            outgoing.calls.close();
            outgoing.lists.close();
            let _ = timeout(calls, outgoing.calls.wait()).await;
            let _ = timeout(lists, outgoing.lists.wait()).await;
        };
        tokio::select! {
            () = answered => {}
            () = self.ended() => {}
        }
    }

    /// Ends the session and all of its requests. At shutdown, or if the client would no longer be
    /// authenticated, only the notifications end: calls in progress are finished first.
    pub(super) async fn close(self) {
        if !self.is_over && !self.state.stop.is_cancelled() {
            self.end.cancel();
        }
        if let Some(initialized) = self.initialized {
            initialized.end().cancel();
        }
        self.outgoing.tracker.close();
        self.outgoing.tracker.wait().await;
        self.end.cancel();
    }
}
