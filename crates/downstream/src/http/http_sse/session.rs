//! Session of the HTTP+SSE transport: a task that handles the messages its client posts.
//!
//! Invariants: the task never waits for the stream, so each message is accepted or refused
//! immediately; `initialize` opens the session once; at shutdown, requests in progress are answered
//! before the stream ends.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::sessions::{PostedMessage, RegisteredSession};
use crate::response::{ClientResponse, ResponseFuture};
use crate::stream_session::{StreamMessage, StreamSession};
use weir_access::policy::Certificate;
use weir_record::audit::AuditEvent;

/// Session of one client, run as a task.
pub(super) struct SseSession {
    pub(super) session: StreamSession,
    pub(super) inbox: mpsc::Receiver<PostedMessage>,
    pub(super) registered: RegisteredSession,
    /// Client certificate of the stream's connection.
    pub(super) certificate: Option<Arc<Certificate>>,
}

impl SseSession {
    /// Handles posted messages until the stream ends, the gateway shuts down, or the client's
    /// credentials are no longer valid. The stream ends with this task, because all of its senders
    /// are dropped.
    pub(super) async fn run(mut self) {
        loop {
            let posted = tokio::select! {
                biased;
                () = self.session.ended() => break,
                () = Certificate::expired(self.certificate.as_ref()) => break,
                posted = self.inbox.recv() => posted,
            };
            let Some(PostedMessage { message, outcome }) = posted else { break };
            // The POST may have been dropped.
            let _ = outcome.send(self.handle(message));
        }
        // The session is removed from the table, and a POST that has found it already gets an
        // error.
        drop((self.registered, self.inbox));
        self.session.close().await;
    }

    /// Handles a message. Its response is sent on the stream, where the client expects it; the POST
    /// returns one that refuses the message itself, or for which the queue has no space.
    fn handle(&mut self, message: StreamMessage) -> Result<(), ClientResponse> {
        let Some(immediate) = self.session.handle(message) else { return Ok(()) };
        let outgoing = &self.session.outgoing;
        match (immediate.id.clone(), immediate.permit.is_some()) {
            (Some(id), true) => {
                if let (response, Some(permit)) = immediate.record() {
                    let call = ResponseFuture::ready(response);
                    let requests = &outgoing.calls;
                    outgoing.spawn_call(requests, id, call, AuditEvent::off(), permit);
                }
                Ok(())
            }
            (Some(_), false) if outgoing.try_send(&immediate.response) => {
                immediate.record();
                Ok(())
            }
            _ => Err(immediate.unrecorded()),
        }
    }
}

/// Messages queued for the stream. When the queue is full, each call waits with its response in a
/// task of its own and keeps its concurrency permit. So a client can have no more than this number
/// and its permits queued, and all together no more than two responses of the largest size.
pub(super) const MAX_QUEUED_MESSAGES: usize = 32;
