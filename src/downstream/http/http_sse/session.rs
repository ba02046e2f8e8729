//! Session of the HTTP+SSE transport: a task that handles the messages its client posts.
//!
//! Invariants: the task never waits for the stream, so each message is accepted or refused
//! immediately; `initialize` opens the session once; at shutdown, requests in progress are answered
//! before the stream ends.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::sessions::{PostedMessage, PostedPayload, RegisteredSession};
use crate::audit::AuditEvent;
use crate::downstream::response::{ClientResponse, ErrorResponse, ResponseFuture};
use crate::downstream::stream_session::StreamSession;
use crate::downstream::{ServerState, ServerStateCell, legacy};
use crate::gateway::ClientContext;
use crate::jsonrpc::{Message, Request, code};
use crate::policy::Certificate;

/// Session of one client, run as a task.
pub(super) struct SseSession {
    session: StreamSession,
    inbox: mpsc::Receiver<PostedMessage>,
    end: CancellationToken,
    stop: CancellationToken,
    registered: RegisteredSession,
    /// Client certificate of the stream's connection.
    certificate: Option<Arc<Certificate>>,
}

enum Event {
    /// The stream has ended.
    Gone,
    /// Shutdown.
    Stop,
    /// Configuration reload.
    Replaced,
    /// The client certificate has expired.
    Expired,
    Posted(Option<PostedMessage>),
}

impl SseSession {
    pub(super) fn new(
        state_cell: &ServerStateCell,
        state: Arc<ServerState>,
        client: ClientContext,
        inbox: mpsc::Receiver<PostedMessage>,
        queue: mpsc::Sender<Bytes>,
        end: CancellationToken,
        registered: RegisteredSession,
    ) -> Self {
        let stop = state.stop.clone();
        let certificate = client.certificate().cloned();
        // Enough for one response of the largest size in addition to whatever else is queued.
        let max_queued_bytes = 2 * state.settings.buffer_limit.limit;
        let session = StreamSession::new(
            state_cell,
            state,
            client,
            queue,
            end.clone(),
            HINT,
            max_queued_bytes,
        );
        Self { session, inbox, end, stop, registered, certificate }
    }

    /// Handles posted messages until the stream ends, the gateway shuts down, or the client's
    /// credentials are no longer valid. The stream ends with this task, because all of its senders
    /// are dropped.
    pub(super) async fn run(mut self) {
        loop {
            let event = tokio::select! {
                biased;
                () = self.end.cancelled() => Event::Gone,
                () = self.stop.cancelled() => Event::Stop,
                () = Certificate::expired(self.certificate.as_ref()) => Event::Expired,
                () = self.session.config_changed() => Event::Replaced,
                posted = self.inbox.recv() => Event::Posted(posted),
            };
            match event {
                Event::Posted(Some(PostedMessage { payload, outcome })) => {
                    // The POST may have been dropped.
                    let _ = outcome.send(self.handle(payload));
                }
                Event::Replaced if self.session.apply_new_config() => {}
                Event::Replaced
                | Event::Expired
                | Event::Gone
                | Event::Stop
                | Event::Posted(None) => break,
            }
        }
        // The session is removed from the table, and a POST that has found it already gets an
        // error.
        drop((self.registered, self.inbox));
        self.session.close().await;
    }

    fn handle(&mut self, payload: PostedPayload) -> Result<(), ClientResponse> {
        match payload {
            PostedPayload::Message(Message::Request(request)) => self.handle_request(request),
            PostedPayload::Message(Message::Notification(notification)) => {
                self.session.handle_notification(&notification);
                Ok(())
            }
            PostedPayload::Message(Message::Response(response)) => {
                self.session.handle_response(response);
                Ok(())
            }
            PostedPayload::Batch(text) => {
                let taken = self.session.handle_batch(&text);
                taken.map_err(|refused| ClientResponse::refused(None, &refused))
            }
        }
    }

    fn handle_request(&mut self, request: Request) -> Result<(), ClientResponse> {
        let outbound = &self.session.outgoing;
        let id = request.id.clone();
        let permit = match self.session.request_permit() {
            Ok(permit) => permit,
            Err(refused) => {
                let response = self.session.overloaded_response(&request, &refused);
                // The response is sent on the stream, where the client expects it, if the queue has
                // space. Otherwise the POST returns it, and its audit event records it.
                if !outbound.try_send(&response) {
                    return Err(response);
                }
                self.session.record_response(&request, response);
                return Ok(());
            }
        };
        let response = if self.session.is_initialized() && &*request.method == legacy::INITIALIZE {
            let text = "the session is already initialized: open another stream for a new session";
            let error = ErrorResponse::new(StatusCode::OK, code::INVALID_REQUEST, text);
            let error = ClientResponse::refused(Some(&id), &error);
            Some((self.session.record_response(&request, error), permit))
        } else {
            self.session.handle_request(request, permit)
        };
        if let Some((response, permit)) = response {
            let call = ResponseFuture::ready(response);
            self.session.outgoing.spawn_call(id, call, AuditEvent::off(), permit);
        }
        Ok(())
    }
}

/// Messages queued for the stream. When the queue is full, each call waits with its response in a
/// task of its own and keeps its concurrency permit. So a client can have no more than this number
/// and its permits queued, and all together no more than two responses of the largest size.
pub(super) const MAX_QUEUED_MESSAGES: usize = 32;
/// Hint for a client that sends a request before it has initialized.
const HINT: &str = "send `initialize` first";
