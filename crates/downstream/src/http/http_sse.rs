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

use futures::{StreamExt, future, stream};
use hyper::StatusCode;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::forwarding;
use super::head;
use super::refusal::HttpRefusal;
use super::request::HttpRequest;
use super::response_body::{self, HttpResponse};
use super::routes::MESSAGES_PATH;
use crate::response::{ClientResponse, results};
use crate::stream_session::{StreamMessage, StreamRules, StreamSession};
use crate::{ClientQuota, ServerState};
use session::SseSession;
use sessions::PostedMessage;
pub(crate) use sessions::SseSessions;
use weir_base::secrets::sealing::InstanceId;
use weir_base::text::sse::{write_event, write_message};
use weir_gateway::ClientContext;
use weir_mcp::jsonrpc::Message;
use weir_record::audit::{SessionMark, TransportKind};

// === GET ===

/// Opens a stream and its session.
pub(super) async fn open(
    request: &HttpRequest,
    client: ClientContext,
) -> Result<HttpResponse, HttpRefusal> {
    head::check_get(request.headers())?;
    request.require_memory()?;
    let (state, principal) = (&request.state, client.principal());
    let too_busy = || results::too_busy(STREAM_RETRY);
    let ClientQuota { streams, sessions, .. } = state.settings.per_client;
    let stream_permit = state.streams.acquire(principal, streams).ok_or_else(too_busy)?;
    let session_permit =
        state.sessions.count_external(principal, sessions).map_err(|_| too_busy())?;

    let (inbox, posted_messages) = mpsc::channel(INBOX);
    // hyper does not poll a stream that its client does not read; the write timeout of the
    // connection ends it.
    let (queue, mut messages) = mpsc::channel(session::MAX_QUEUED_MESSAGES);
    let end = CancellationToken::new();
    let registered = state.sse_sessions.add(principal, inbox, session_permit, client.instance());
    let messages_path = messages_path(&state.settings.public_prefix, registered.id());
    let audit_event = state.audit.begin_session(TransportKind::Sse, client.remote_ip());
    let mark = SessionMark::of(registered.id());
    audit_event.set_session(&mark);
    client.audit_event().set_session(&mark);
    let client = client.with_audit_event(audit_event);
    let certificate = client.certificate().cloned();
    let rules = StreamRules {
        hint: "send `initialize` first",
        // Enough for one response of the largest size in addition to whatever else is queued.
        max_queued_bytes: 2 * state.settings.max_response,
        has_modern: false,
        can_reinitialize: false,
    };
    let (state_cell, under) = (&request.state_cell, Arc::clone(state));
    let session = StreamSession::new(state_cell, under, client, queue, end.clone(), rules);
    let session_task = SseSession { session, inbox: posted_messages, registered, certificate };
    state.tracker.spawn(session_task.run());
    // Spec 2024-11-05, transports: the server MUST send an `endpoint` event when a client connects.
    let endpoint = stream::once(future::ready(Ok(write_event("endpoint", &messages_path))));
    // Dropping the stream ends the session.
    let until_end = (end.drop_guard(), stream_permit);
    let rest = stream::poll_fn(move |cx| {
        let _ = &until_end;
        messages.poll_recv(cx).map(|message| Some(Ok(write_message(&message?))))
    });
    Ok(response_body::events(state.settings.sse_keepalive, endpoint.chain(rest)))
}

/// Builds the path for a session's messages, from the root: clients resolve it against the address
/// that they have opened, which may be a proxy's.
fn messages_path(prefix: &str, id: &str) -> String {
    format!("{prefix}{MESSAGES_PATH}?{ID_MEMBER}={id}")
}

// === POST ===

/// Handles a posted message.
pub(super) async fn post(
    request: &mut HttpRequest,
    client: &ClientContext,
) -> Result<HttpResponse, HttpRefusal> {
    head::check_body(request.headers())?;
    let id = session_id(request.parts.uri.query().unwrap_or_default())?.to_owned();
    let state = Arc::clone(&request.state);
    let Some(inbox) = state.sse_sessions.find(client.principal(), &id) else {
        return forward(request, client, &id).await;
    };
    client.audit_event().set_session(&SessionMark::of(&id));
    let text = request.read_text().await?;
    let message = StreamMessage::parse(text).map_err(|invalid| {
        if let Some(response) = invalid.as_error_response() {
            let message = StreamMessage::Single(Message::Response(response));
            // If the inbox is full or closed, the call fails for that reason anyway.
            let _ = inbox.try_send(PostedMessage { message, outcome: oneshot::channel().0 });
        }
        ClientResponse::from(invalid)
    })?;
    let mut id = None;
    if let StreamMessage::Single(Message::Request(request)) = &message {
        client.audit_event().set_method(&request.method);
        id = Some(request.id.clone());
    }
    let (outcome, accepted) = oneshot::channel();
    let sent = inbox.try_send(PostedMessage { message, outcome });
    let accepted = match sent {
        // No outcome: the session has ended in the meantime.
        Ok(()) => accepted.await.map_err(|_| session_ended(&state)),
        Err(mpsc::error::TrySendError::Full(_)) => Err(results::too_busy(STREAM_RETRY).into()),
        Err(mpsc::error::TrySendError::Closed(_)) => Err(session_ended(&state)),
    };
    accepted.map_err(|refusal| refusal.naming(id.as_ref()))??;
    Ok(response_body::empty(StatusCode::ACCEPTED))
}

/// Forwards a message to the replica that has the stream.
async fn forward(
    request: &mut HttpRequest,
    client: &ClientContext,
    id: &str,
) -> Result<HttpResponse, HttpRefusal> {
    let owner = InstanceId::split_named(id).filter(|_| request.state.fleet().is_some());
    let Some((instance, _)) = owner else { return Err(session_ended(&request.state)) };
    request.read_text().await?;
    let forwarded =
        forwarding::forward_to(request, client, instance, "the stream of the session").await?;
    forwarded.ok_or_else(|| session_ended(&request.state))
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
fn session_ended(state: &ServerState) -> HttpRefusal {
    if state.stop.is_cancelled() {
        let text = "shutting down; connect again";
        return HttpRefusal::from((StatusCode::SERVICE_UNAVAILABLE, text)).with_connection_close();
    }
    let text = "no session has this id, or its stream has ended: GET /sse again";
    (StatusCode::NOT_FOUND, text).into()
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
