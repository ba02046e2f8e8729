//! Deprecated HTTP+SSE transport of 2024-11-05: one event stream to the client, one path for its
//! messages.
//!
//! `GET /sse` opens the stream; its first event contains the path for messages. `POST
//! /messages?sessionId=…` takes a message and returns 202; the response is sent as an event.
//! Clients may negotiate any legacy revision over it. Modern requests are handled as legacy ones,
//! so that a client that probes falls back.
//!
//! Invariants: a session lives as long as its stream. Whatever ends the stream (the client, a
//! client that reads nothing for too long, shutdown) ends the session and its calls, unlike a lost
//! stream of Streamable HTTP. Unknown and ended sessions and those of other principals look the
//! same. A POST never waits for the stream.

mod session;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{self, BoxFuture};
use futures::{StreamExt, stream};
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Interval;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::call_limits::is_memory_scarce;
use super::head;
use super::request_body::{
    MEMORY_EXHAUSTED, MEMORY_RETRY, UnreadBody, read, with_connection_close,
};
use super::response_body::{self, HttpResponse};
use super::routes::MESSAGES_PATH;
use crate::audit::{SessionMark, TransportKind};
use crate::downstream::limits::stream_limit::StreamPermit;
use crate::downstream::response::ClientResponse;
use crate::downstream::{ServerState, ServerStateCell, batch};
use crate::gateway::ClientContext;
use crate::jsonrpc::Message;
use crate::sse::{KEEP_ALIVE, write_event, write_message};
use session::SseSession;
pub(in crate::downstream) use sessions::SseSessions;
use sessions::{PostedMessage, PostedPayload};

// === GET ===

/// Opens a stream and its session.
pub(super) async fn open(
    state_cell: &ServerStateCell,
    state: &Arc<ServerState>,
    client: ClientContext,
    headers: &HeaderMap,
    gone: BoxFuture<'static, ()>,
) -> HttpResponse {
    if let Err((status, text)) = head::check_get(headers) {
        return response_body::refusal(status, text);
    }
    if is_memory_scarce(state) {
        return response_body::overloaded(MEMORY_EXHAUSTED, MEMORY_RETRY);
    }
    // A client of these revisions fetches the capabilities only once.
    client.wait_for_startup().await;
    let principal = client.principal();
    let Some(stream_permit) = state.streams.acquire(principal) else {
        return response_body::too_busy(STREAM_RETRY);
    };
    let Ok(session_permit) = state.sessions.count_external(principal) else {
        return response_body::too_busy(STREAM_RETRY);
    };

    let (inbox, posted_messages) = mpsc::channel(INBOX);
    let (queue, messages) = mpsc::channel(session::MAX_QUEUED_MESSAGES);
    let end = CancellationToken::new();
    let registered = state.sse_sessions.add(principal, inbox, session_permit);
    let messages_path = messages_path(&state.settings.public_prefix, registered.id());
    let audit_event = state.settings.audit.begin_session(TransportKind::Sse, client.remote_ip());
    let mark = SessionMark::of(registered.id());
    audit_event.set_session(&mark);
    client.audit_event().set_session(&mark);
    let client = client.with_audit_event(audit_event);
    let session_task = SseSession::new(
        state_cell,
        Arc::clone(state),
        client,
        posted_messages,
        queue,
        end.clone(),
        registered,
    );
    state.tracker.spawn(session_task.run());

    let outbound = SseOutbound {
        messages,
        keep_alive: response_body::keep_alive_timer(state.settings.sse_keepalive),
        _open: end.drop_guard(),
        _stream_permit: stream_permit,
    };
    // Spec 2024-11-05, transports: the server MUST send an `endpoint` event when a client connects.
    let endpoint = stream::once(future::ready(Ok(write_event("endpoint", &messages_path))));
    let rest = stream::unfold(outbound, |mut outbound| async {
        let event = outbound.next().await?;
        Some((Ok(event), outbound))
    });
    let mut response = response_body::events(endpoint.chain(rest));
    response.body_mut().end_when(gone);
    response
}

/// Builds the path for a session's messages, from the root: clients resolve it against the address
/// that they have opened, which may be a proxy's.
fn messages_path(prefix: &str, id: &str) -> String {
    format!("{prefix}{MESSAGES_PATH}?{ID_MEMBER}={id}")
}

/// Output of the stream. Dropping it ends the session.
struct SseOutbound {
    /// Bounded by [`session::MAX_QUEUED_MESSAGES`]. hyper does not poll a stream that its client
    /// does not read; the write timeout of the connection ends it.
    messages: mpsc::Receiver<Bytes>,
    keep_alive: Interval,
    _open: DropGuard,
    _stream_permit: StreamPermit,
}

impl SseOutbound {
    /// Returns the next event, or a comment after a silence; `None` once all senders are dropped.
    async fn next(&mut self) -> Option<Bytes> {
        let event = tokio::select! {
            biased;
            message = self.messages.recv() => write_message(&message?),
            _ = self.keep_alive.tick() => Bytes::from_static(KEEP_ALIVE),
        };
        self.keep_alive.reset();
        Some(event)
    }
}

// === POST ===

/// Handles a posted message.
pub(super) async fn post(
    state: &ServerState,
    client: &ClientContext,
    parts: &Parts,
    unread_body: &mut UnreadBody,
) -> HttpResponse {
    match accept(state, client, parts, unread_body).await {
        Ok(response) => response,
        Err(response) => *response,
    }
}

async fn accept(
    state: &ServerState,
    client: &ClientContext,
    parts: &Parts,
    unread_body: &mut UnreadBody,
) -> Result<HttpResponse, Box<HttpResponse>> {
    let refuse = |(status, text)| response_body::refusal(status, text);
    head::check_body(&parts.headers).map_err(refuse)?;
    let id = session_id(parts.uri.query().unwrap_or_default()).map_err(refuse)?;
    let inbox =
        state.sse_sessions.find(client.principal(), id).ok_or_else(|| session_ended(state))?;
    client.audit_event().set_session(&SessionMark::of(id));
    let text =
        read(state, unread_body).await.map_err(|response| with_connection_close(*response))?;
    client.audit_event().set_bytes_in(text.len());
    let message = match batch::is_batch(&text) {
        true => PostedPayload::Batch(text),
        false => PostedPayload::Message(Message::parse(text).map_err(|invalid| {
            if let Some(response) = invalid.as_error_response() {
                let payload = PostedPayload::Message(Message::Response(response));
                // If the inbox is full or closed, the call fails for that reason anyway.
                let _ = inbox.try_send(PostedMessage { payload, outcome: oneshot::channel().0 });
            }
            response_body::json(ClientResponse::from(invalid))
        })?),
    };
    if let PostedPayload::Message(Message::Request(request)) = &message {
        client.audit_event().set_method(&request.method);
    }
    let (outcome, accepted) = oneshot::channel();
    inbox.try_send(PostedMessage { payload: message, outcome }).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => response_body::too_busy(STREAM_RETRY),
        mpsc::error::TrySendError::Closed(_) => session_ended(state),
    })?;
    match accepted.await {
        Ok(Ok(())) => Ok(response_body::empty(StatusCode::ACCEPTED)),
        Ok(Err(response)) => Err(response_body::json(response).into()),
        // The session has ended in the meantime.
        Err(_) => Err(session_ended(state).into()),
    }
}

/// Parses the session id. An id has no character that would be escaped.
fn session_id(query: &str) -> Result<&str, (StatusCode, &'static str)> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut ids = pairs.filter(|(name, _)| *name == ID_MEMBER).map(|(_, id)| id);
    match (ids.next(), ids.next()) {
        (Some(id), None) => Ok(id),
        _ => Err((
            StatusCode::BAD_REQUEST,
            "no session: GET /sse first, then post to the address in its `endpoint` event",
        )),
    }
}

/// Error: the session does not exist.
fn session_ended(state: &ServerState) -> HttpResponse {
    if state.stop.is_cancelled() {
        let text = "shutting down; connect again";
        return with_connection_close(response_body::refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            text,
        ));
    }
    let text = "no session has this id, or its stream has ended: GET /sse again";
    response_body::refusal(StatusCode::NOT_FOUND, text)
}

/// Query parameter with the session id, as the SDKs name it.
const ID_MEMBER: &str = "sessionId";
/// Posted messages queued for the session's task, which never blocks; further ones are refused.
const INBOX: usize = 64;
/// Delay after which a client with too many streams, sessions or messages may retry.
const STREAM_RETRY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_messages_is_a_path_behind_the_proxys_own() {
        assert_eq!(messages_path("", "x"), "/messages?sessionId=x");
        assert_eq!(messages_path("/weir", "x"), "/weir/messages?sessionId=x");
    }

    #[test]
    fn one_session_is_named() {
        for (query, expected) in [
            ("sessionId=x", Some("x")),
            ("a=b&sessionId=x&c", Some("x")),
            ("sessionId=", Some("")),
            ("sessionId=x&sessionId=y", None),
            ("session_id=x", None),
            ("sessionId", None),
            ("", None),
        ] {
            assert_eq!(session_id(query).ok(), expected, "{query}");
        }
    }
}
