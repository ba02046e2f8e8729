//! Request handler: from the head of an HTTP request to its response.
//!
//! Invariant: the order of the checks is Host and Origin (403), path (404), credentials (401, 403),
//! method (405), headers that describe the body (415, 406). Only then is the body read, within
//! limits of size and time, and parsed. A request that fails before is refused without reading its
//! body: the body is skipped.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, StatusCode};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::ClientConnection;
use super::audit_event;
use super::call_limits::with_limits;
use super::detach::Detached;
use super::head;
use super::http_sse;
use super::oauth_metadata;
use super::request_body::{
    MEMORY_EXHAUSTED, MEMORY_RETRY, UnreadBody, read, skip_body, with_connection_close,
};
use super::response_body::{self, HttpResponse};
use super::resume;
use super::routes::HttpRoute;
use super::sse_streams;
use crate::audit::AuditEvent;
use crate::downstream::client_requests::ClientRequests;
use crate::downstream::http::call_limits::is_memory_scarce;
use crate::downstream::http::connection::timed_io::RequestInProgress;
use crate::downstream::modern::ResponseKind;
use crate::downstream::modern::{self, headers};
use crate::downstream::response::call_stream::CallMessages;
use crate::downstream::response::results;
use crate::downstream::response::{ClientResponse, ResponseFuture, ResponseMode};
use crate::downstream::session::{self, SessionGuard};
use crate::downstream::{ServerState, ServerStateCell, batch, era, host_check, legacy};
use crate::fairness::promptly;
use crate::gateway::{ClientContext, RefusalReason};
use crate::jsonrpc::{self, Message};
use crate::mcp::call::ClientHandle;
use crate::mcp::revision::{Era, Revision};
use crate::policy::AuthAttempt;
use crate::request_scope::RequestScope;

/// Handles one request. `gone` is ready once the client has closed the connection.
pub(super) fn handle(
    state_cell: Arc<ServerStateCell>,
    connection: ClientConnection,
    request: Request<Incoming>,
    in_progress: RequestInProgress,
    gone: BoxFuture<'static, ()>,
) -> impl Future<Output = HttpResponse> {
    RequestScope::begin().run(handle_in_scope(state_cell, connection, request, in_progress, gone))
}

async fn handle_in_scope(
    state_cell: Arc<ServerStateCell>,
    connection: ClientConnection,
    request: Request<Incoming>,
    in_progress: RequestInProgress,
    gone: BoxFuture<'static, ()>,
) -> HttpResponse {
    // The whole request is served under this configuration, even if it is replaced meanwhile.
    let state = state_cell.now();
    let (parts, incoming) = request.into_parts();
    let mut unread_body = Some(incoming);
    let route = HttpRoute::find(&state.settings, parts.uri.path());
    let audit_event = audit_event::begin(&state, &connection, route, &parts);
    // Rare branches are boxed: otherwise the future of every request would reserve space for them.
    let mut response =
        match check_before_body(&state, &connection, route, &parts, &audit_event).await {
            Ok((route, _)) if !route.takes(&parts.method) => {
                response_body::wrong_method(&route.allow())
            }
            Ok((HttpRoute::Endpoint, client)) => match parts.method {
                Method::POST => post(&state, &client, &parts.headers, &mut unread_body, gone).await,
                Method::GET => Box::pin(get(&state, &client, &parts.headers, gone)).await,
                _ => delete(&state, &client, &parts.headers),
            },
            Ok((HttpRoute::SseStream, client)) => {
                Box::pin(http_sse::open(&state_cell, &state, client, &parts.headers, gone)).await
            }
            Ok((HttpRoute::SseMessages, client)) => {
                Box::pin(http_sse::post(&state, &client, &parts, &mut unread_body)).await
            }
            Ok((HttpRoute::Metadata, _)) => oauth_metadata::metadata(&state.settings),
            Err(response) => *response,
        };
    audit_event::end(audit_event, &mut response).await;
    let is_ending = response.headers().contains_key(CONNECTION);
    let is_reusable = match unread_body {
        Some(unread_body) if !is_ending && !unread_body.is_end_stream() => {
            Box::pin(skip_body(&parts.headers, unread_body)).await
        }
        _ => true,
    };
    let is_closing = state.stop.is_cancelled() || connection.is_expired();
    if !is_reusable || is_closing || is_memory_scarce(&state) {
        response = with_connection_close(response);
    }
    response.body_mut().keep_in_progress(in_progress);
    response
}

/// Performs the checks before the body is read. Requests that need no credentials are answered
/// here.
async fn check_before_body(
    state: &ServerState,
    connection: &ClientConnection,
    route: Option<HttpRoute>,
    parts: &Parts,
    audit_event: &AuditEvent,
) -> Result<(HttpRoute, ClientContext), Box<HttpResponse>> {
    let (settings, meters) = (&state.settings, state.gateway.metrics());
    head::check_transfer(&parts.headers)
        .map_err(|(status, text)| with_connection_close(response_body::refusal(status, text)))?;
    host_check::check(settings, &parts.uri, &parts.headers).map_err(|rejection| {
        let (host, origin) = (parts.headers.get(HOST), parts.headers.get(ORIGIN));
        debug!(%rejection, ?host, ?origin, "request refused: Host or Origin not allowed");
        meters.refused(RefusalReason::Host);
        response_body::refusal(StatusCode::FORBIDDEN, &rejection.to_string())
    })?;
    oauth_metadata::check_query(parts)?;
    let route = route.ok_or_else(|| {
        response_body::refusal(StatusCode::NOT_FOUND, "nothing is served at this path")
    })?;
    if route == HttpRoute::Metadata {
        // Public, and not recorded: anyone may fetch it as often as they like.
        audit_event.discard();
        return Err(match route.takes(&parts.method) {
            true => oauth_metadata::metadata(settings).into(),
            false => response_body::wrong_method(&route.allow()).into(),
        });
    }
    if state.is_closed() {
        meters.refused(RefusalReason::Stopping);
        let response = response_body::overloaded("shutting down; connect again", CLOSING_RETRY);
        return Err(with_connection_close(response).into());
    }
    let credentials = head::credentials(&parts.headers)
        .ok_or_else(|| oauth_metadata::refuse_malformed(settings))?;
    let certificate = connection.certificate.as_ref();
    let from = connection.peer.map(|peer| peer.ip().to_canonical());
    let attempt = AuthAttempt { credentials, certificate, from };
    let client = state.authenticate(attempt).await.map_err(|refusal| {
        // Only the operator sees the reason; the client learns that it was refused.
        debug!(%refusal, "client not authenticated");
        meters.refused(RefusalReason::Auth);
        oauth_metadata::refuse(settings, &refusal)
    })?;
    let client = client.with_audit_event(audit_event.clone());
    if let (&Method::POST, HttpRoute::Endpoint, Some(wait)) =
        (&parts.method, &route, client.flood_retry_after())
        && !is_exempt_from_limits(state, &client, &parts.headers)
    {
        debug!(client = %client.principal().name, "request over the rate limit, body not read");
        meters.refused(RefusalReason::Limit);
        return Err(response_body::too_busy(wait).into());
    }
    Ok((route, client))
}

/// True if the message may be one that is never rate-limited: a response or a cancellation, in a
/// session with requests in progress.
fn is_exempt_from_limits(state: &ServerState, client: &ClientContext, headers: &HeaderMap) -> bool {
    headers.contains_key(session::HEADER)
        && session(state, client, headers).is_ok_and(|session| !session.in_flight.is_empty())
}

// === POST ===

async fn post(
    state: &Arc<ServerState>,
    client: &ClientContext,
    headers: &HeaderMap,
    unread_body: &mut UnreadBody,
    gone: BoxFuture<'static, ()>,
) -> HttpResponse {
    if let Err((status, text)) = head::check_post(headers) {
        return response_body::refusal(status, text);
    }
    let text = match read(state, unread_body).await {
        Ok(text) => text,
        Err(response) => return with_connection_close(*response),
    };
    client.audit_event().set_bytes_in(text.len());
    if batch::is_batch(&text) {
        return Box::pin(post_batch(state, client, headers, &text)).await;
    }
    let message = match Message::parse(text) {
        Ok(message) => message,
        Err(invalid) => {
            if let Some(response) = invalid.as_error_response()
                && let Ok(session) = session(state, client, headers)
            {
                session.peer.client_requests.complete(response);
            }
            return response_body::json(ClientResponse::from(invalid));
        }
    };
    if let Message::Request(jsonrpc::Request { method, .. })
    | Message::Notification(jsonrpc::Notification { method, .. }) = &message
    {
        client.audit_event().set_method(method);
    }
    let versions = &state.settings.versions;
    let version = version_header(headers);
    let era = match &message {
        Message::Request(request) => {
            era::of_request(versions, &request.method, &request.params, version)
        }
        Message::Notification(_) | Message::Response(_) => era::of_unversioned(versions, version),
    };
    match era {
        Era::Modern => post_modern(state, client, headers, message, gone).await,
        Era::Legacy => post_legacy(state, client, headers, message).await,
    }
}

async fn post_modern(
    state: &Arc<ServerState>,
    client: &ClientContext,
    headers: &HeaderMap,
    message: Message,
    mut gone: BoxFuture<'static, ()>,
) -> HttpResponse {
    let settings = &state.settings;
    let request = match message {
        Message::Request(request) => request,
        // No notification from a client has a meaning in this revision (spec, Streamable HTTP,
        // sending messages, note), but sending one is allowed.
        Message::Notification(_) => return response_body::empty(StatusCode::ACCEPTED),
        Message::Response(_) => {
            let text = "this server sends no requests, so it accepts no responses";
            return response_body::refusal(StatusCode::BAD_REQUEST, text);
        }
    };
    let id = request.id.clone();
    let kind = match modern::validate(request, Some(headers), &settings.versions) {
        Ok(validated) => {
            let (versions, allowed) = (&settings.versions, &settings.buffer_limit);
            let mode = ResponseMode::OwnStream;
            modern::serve(client, validated, versions, &state.streams, allowed, mode)
        }
        Err((id, refused)) => {
            return response_body::json(ClientResponse::refused(Some(&id), &refused));
        }
    };
    match kind {
        // A lost connection cancels (spec, cancellation: MUST): the call is dropped with the
        // response, or right here.
        ResponseKind::Unary(call) => {
            let call = with_limits(state, client, Some(id), call);
            tokio::select! {
                biased;
                mut response = response_body::respond(call, settings.sse_keepalive) => {
                    response.body_mut().end_when(gone);
                    response
                }
                () = promptly(&mut gone) => response_body::empty(StatusCode::REQUEST_TIMEOUT),
            }
        }
        ResponseKind::Stream(_) if is_memory_scarce(state) => {
            response_body::overloaded(MEMORY_EXHAUSTED, MEMORY_RETRY)
        }
        ResponseKind::Stream(listening) => sse_streams::listen(state, listening, gone),
    }
}

async fn post_legacy(
    state: &Arc<ServerState>,
    client: &ClientContext,
    headers: &HeaderMap,
    message: Message,
) -> HttpResponse {
    if let Message::Request(request) = &message
        && &*request.method == legacy::INITIALIZE
    {
        return Box::pin(initialize(state, client, request)).await;
    }
    let session = match session(state, client, headers) {
        Ok(session) => session,
        Err(response) => return *response,
    };
    match message {
        Message::Request(request) => {
            let allowed = &state.settings.buffer_limit;
            let (peer, in_flight, id) = (&session.peer, &session.in_flight, request.id.clone());
            if state.settings.resumable {
                // Buffered as a whole, because it may have to be sent a second time.
                let mode = ResponseMode::SharedStream;
                let call = legacy::serve(client, peer, in_flight, request, allowed, mode);
                let call = with_limits(state, client, Some(id), call);
                let call = detach_on_drop(state, session.clone_guard(), call);
                return Box::pin(resume::respond(state, &session, call)).await;
            }
            let mode = ResponseMode::OwnStream;
            let call = legacy::serve(client, peer, in_flight, request, allowed, mode);
            let call = with_limits(state, client, Some(id), call);
            let call = detach_on_drop(state, session, call);
            response_body::respond(call, state.settings.sse_keepalive).await
        }
        Message::Notification(notification) => {
            if &*notification.method == "notifications/cancelled" {
                session.in_flight.cancel(&notification.params);
            }
            response_body::empty(StatusCode::ACCEPTED)
        }
        Message::Response(response) => {
            session.peer.client_requests.complete(response);
            response_body::empty(StatusCode::ACCEPTED)
        }
    }
}

async fn post_batch(
    state: &Arc<ServerState>,
    client: &ClientContext,
    headers: &HeaderMap,
    text: &Bytes,
) -> HttpResponse {
    // If batches do not exist in this revision, the era of their messages does not matter.
    if era::of_unversioned(&state.settings.versions, version_header(headers)) == Era::Modern {
        return response_body::json(ClientResponse::refused(None, &batch::batches_removed()));
    }
    let session = match session(state, client, headers) {
        Ok(session) => session,
        Err(response) => return *response,
    };
    let messages = match batch::read(session.peer.revision, text) {
        Ok(messages) => messages,
        Err(refused) => return response_body::json(ClientResponse::refused(None, &refused)),
    };
    let (peer, in_flight) = (&session.peer, &session.in_flight);
    let allowed = &state.settings.buffer_limit;
    let responses = batch::serve(client, peer, in_flight, messages, allowed, Ok);
    let call = ResponseFuture { response: responses.boxed(), messages: CallMessages::default() };
    let call = with_limits(state, client, None, call);
    match detach_on_drop(state, session, call).response.await {
        Some(response) => response_body::json(response),
        None => response_body::empty(StatusCode::ACCEPTED),
    }
}

async fn initialize(
    state: &ServerState,
    client: &ClientContext,
    request: &jsonrpc::Request,
) -> HttpResponse {
    // A client of these revisions fetches the capabilities only once.
    client.wait_for_startup().await;
    let id = Some(&request.id);
    let handle = ClientHandle::new(&session::new_id(), CancellationToken::new());
    let (versions, client_requests) =
        (&state.settings.versions, ClientRequests::new(state.stop.clone()));
    let initialized =
        legacy::initialize(client, versions, &request.params, handle, client_requests);
    let (peer, result) = match initialized {
        Ok(initialized) => initialized,
        Err(refused) => return response_body::json(ClientResponse::refused(id, &refused)),
    };
    let notifications = client.listen(&peer.subscriptions, peer.revision);
    let notifications =
        notifications.with_elicitation_completions(&peer.client.elicitation_completions);
    match state.sessions.open(client, peer, notifications) {
        Ok(session) => {
            client.audit_event().set_session(&session.mark);
            client.audit_event().set_revision(session.peer.revision);
            let response = response_body::json(ClientResponse::result(&request.id, &result));
            let value = HeaderValue::from_str(&session.id).expect("base64url is visible ASCII");
            response_body::with_header(response, HeaderName::from_static(session::HEADER), value)
        }
        Err(_) => {
            response_body::json(ClientResponse::refused(id, &results::too_busy(SESSION_RETRY)))
        }
    }
}

/// Lets a call continue when its response stream is lost, and keeps its session in use.
fn detach_on_drop(
    state: &ServerState,
    session: SessionGuard,
    call: ResponseFuture,
) -> ResponseFuture {
    let response = async move {
        let response = call.response.await;
        drop(session);
        response
    };
    let response = Detached::new(response.boxed(), state.tracker.clone(), state.stop.clone());
    ResponseFuture { response: response.boxed(), messages: call.messages }
}

// === GET and DELETE ===

/// Opens the standalone stream of a legacy session.
async fn get(
    state: &Arc<ServerState>,
    client: &ClientContext,
    headers: &HeaderMap,
    gone: BoxFuture<'static, ()>,
) -> HttpResponse {
    if era::of_unversioned(&state.settings.versions, version_header(headers)) == Era::Modern {
        return response_body::wrong_method("POST");
    }
    if let Err((status, text)) = head::check_get(headers) {
        return response_body::refusal(status, text);
    }
    let session = match session(state, client, headers) {
        Ok(session) => session,
        Err(response) => return *response,
    };
    if is_memory_scarce(state) {
        return response_body::overloaded(MEMORY_EXHAUSTED, MEMORY_RETRY);
    }
    if state.settings.resumable {
        return resume::get(state, session, client, headers, gone);
    }
    sse_streams::standalone(state, session, client, None, gone)
}

/// Ends a legacy session.
fn delete(state: &ServerState, client: &ClientContext, headers: &HeaderMap) -> HttpResponse {
    if era::of_unversioned(&state.settings.versions, version_header(headers)) == Era::Modern {
        return response_body::wrong_method("POST");
    }
    match session(state, client, headers) {
        Ok(session) => {
            state.sessions.end(&session);
            response_body::empty(StatusCode::NO_CONTENT)
        }
        Err(response) => *response,
    }
}

/// Finds the session of a legacy request and validates its version header.
fn session(
    state: &ServerState,
    client: &ClientContext,
    headers: &HeaderMap,
) -> Result<SessionGuard, Box<HttpResponse>> {
    if !headers.contains_key(session::HEADER) {
        let text = "no session: send `initialize` first, then the Mcp-Session-Id of its response";
        return Err(response_body::refusal(StatusCode::BAD_REQUEST, text).into());
    }
    let id = host_check::single_value(headers, &HeaderName::from_static(session::HEADER));
    let session = id.and_then(|id| state.sessions.find(client, id));
    let session = session.ok_or_else(|| {
        let text = "no session has this id, or it has ended: send `initialize` again";
        response_body::refusal(StatusCode::NOT_FOUND, text)
    })?;
    client.audit_event().set_session(&session.mark);
    client.audit_event().set_revision(session.peer.revision);
    // Spec 2025-06-18 and later, transports: an invalid or unsupported version MUST get 400.
    // Earlier revisions have no such header. Without the header the session's version applies.
    let checked = session.peer.revision >= Revision::V2025_06_18;
    if checked && headers.contains_key(headers::VERSION) {
        let version = version_header(headers).and_then(|text| text.parse().ok());
        if !version.is_some_and(|revision| state.settings.versions.has(revision)) {
            let text = "this MCP-Protocol-Version is not supported here";
            return Err(response_body::refusal(StatusCode::BAD_REQUEST, text).into());
        }
    }
    Ok(session)
}

fn version_header(headers: &HeaderMap) -> Option<&str> {
    host_check::single_value(headers, &HeaderName::from_static(headers::VERSION))
}

/// Delay after which a client with too many busy sessions may retry.
const SESSION_RETRY: Duration = Duration::from_secs(1);
/// Delay after which a client may retry during shutdown.
const CLOSING_RETRY: Duration = Duration::from_secs(1);
