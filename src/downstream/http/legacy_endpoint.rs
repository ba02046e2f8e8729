//! Requests of the legacy era to the MCP endpoint: the session that a request belongs to, messages
//! and batches, the standalone stream, and the end of a session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, future};
use hyper::StatusCode;
use hyper::header::HeaderValue;
use tokio_util::sync::CancellationToken;

use super::hop;
use super::request::HttpRequest;
use super::response_body::{self, HttpRefusal, HttpResponse};
use super::{call, head, resume, sse_streams};
use crate::downstream::client_requests::ClientRequests;
use crate::downstream::in_flight::{self, InFlightRequests};
use crate::downstream::legacy::LegacyConnection;
use crate::downstream::modern::headers;
use crate::downstream::response::call_stream::CallMessages;
use crate::downstream::response::{ClientResponse, ResponseFuture, ResponseMode, results};
use crate::downstream::session::{self, RebuiltSession, SessionGuard};
use crate::downstream::{ServerState, batch, host_check, legacy};
use crate::fleet::{Fleet, Place, PlacedSession};
use crate::gateway::ClientContext;
use crate::jsonrpc::{self, Message, Notification};
use crate::mcp::call::ClientHandle;
use crate::mcp::revision::{Era, Revision};

/// Handles a message of a session, or opens one.
pub(super) async fn post(
    request: &mut HttpRequest,
    client: &ClientContext,
    message: Message,
) -> Result<HttpResponse, HttpRefusal> {
    if let Message::Request(message) = &message
        && &*message.method == legacy::INITIALIZE
    {
        return Box::pin(initialize(request, client, message)).await;
    }
    if let Some(response) = forward_to_asker(request, client, &message).await? {
        return Ok(response);
    }
    let session = find_session(request, client, Some(&message)).await?;
    match message {
        Message::Request(message) => {
            // A lost stream does not end a call of this era, and so not its response.
            request.gone = Box::pin(future::pending());
            let (settings, id) = (&request.state.settings, Some(message.id.clone()));
            let mode = match settings.resumable {
                // Buffered as a whole, because it may have to be sent a second time.
                true => ResponseMode::SharedStream,
                false => ResponseMode::OwnStream,
            };
            let changes_settings = legacy::changes_settings(&message.method);
            let mut call =
                legacy::serve(client, &session.peer, message, &settings.buffer_limit, mode);
            if changes_settings {
                call.response = recording_settings(&request.state, &session, call.response);
            }
            let resumable = settings.resumable.then(|| session.clone_guard());
            let call = call::limited_in_session(request, client, session, id, call);
            match resumable {
                Some(session) => Ok(Box::pin(resume::respond(request, &session, call)).await),
                None => Ok(response_body::respond(call, settings.sse_keepalive).await),
            }
        }
        Message::Notification(notification) => {
            session.peer.in_flight.handle_notification(&notification);
            forward_cancellation(request, client, &session, &notification).await;
            Ok(response_body::empty(StatusCode::ACCEPTED))
        }
        Message::Response(response) => {
            session.peer.client_requests.complete(response);
            Ok(response_body::empty(StatusCode::ACCEPTED))
        }
    }
}

/// Handles the messages of a batch.
pub(super) async fn post_batch(
    request: &HttpRequest,
    client: &ClientContext,
    text: &Bytes,
) -> Result<HttpResponse, HttpRefusal> {
    // If batches do not exist in this revision, the era of their messages does not matter.
    if request.era_of_unversioned() == Era::Modern {
        return Err(batch::batches_removed().into());
    }
    let session = find_session(request, client, None).await?;
    let messages = batch::read(session.peer.context.revision, text)?;
    let buffer_limit = &request.state.settings.buffer_limit;
    let responses = batch::serve(client, &session.peer, messages, buffer_limit, Ok);
    let call = ResponseFuture { response: responses.boxed(), messages: CallMessages::default() };
    let call = call::limited_in_session(request, client, session, None, call);
    Ok(match call.response.await {
        Some(response) => response_body::json(response),
        None => response_body::empty(StatusCode::ACCEPTED),
    })
}

async fn initialize(
    request: &HttpRequest,
    client: &ClientContext,
    message: &jsonrpc::Request,
) -> Result<HttpResponse, HttpRefusal> {
    // A client of these revisions fetches the capabilities only once.
    client.wait_for_startup().await;
    let state = &request.state;
    let connection = connection(state, client);
    let (peer, response) =
        legacy::initialize(client, &state.settings.versions, message, connection)?;
    let session =
        state.sessions.open(client, peer, state.settings.per_client.sessions).map_err(|_| {
            ClientResponse::refused(Some(&message.id), &results::too_busy(SESSION_RETRY))
        })?;
    client.audit_event().set_session(&session.mark);
    client.audit_event().set_revision(session.peer.context.revision);
    let value = HeaderValue::from_str(&session.id).expect("base64url is visible ASCII");
    Ok(response_body::with_header(response_body::json(response), session::HEADER, value))
}

/// Creates the parts of a session that its client does not determine.
fn connection(state: &ServerState, client: &ClientContext) -> LegacyConnection {
    let handle = ClientHandle::new(&session::new_id(), CancellationToken::new());
    LegacyConnection {
        in_flight: InFlightRequests::new(handle.gone.clone()),
        client_requests: ClientRequests::new(client.instance(), state.stop.clone()),
        handle,
    }
}

/// Records the settings of a session after a request that may have changed them.
fn recording_settings(
    state: &Arc<ServerState>,
    session: &SessionGuard,
    response: BoxFuture<'static, Option<ClientResponse>>,
) -> BoxFuture<'static, Option<ClientResponse>> {
    let (state, session) = (Arc::clone(state), session.clone_guard());
    async move {
        let response = response.await;
        state.sessions.record_settings(&session, state.settings.session_lifetime.max_age);
        response
    }
    .boxed()
}

/// Opens the standalone stream of a legacy session.
pub(super) async fn get(
    request: &HttpRequest,
    client: &ClientContext,
) -> Result<HttpResponse, HttpRefusal> {
    head::check_get(request.headers())?;
    if request.state.settings.resumable
        && let Some(response) = resume::forward(request, client).await?
    {
        return Ok(response);
    }
    let session = find_session(request, client, None).await?;
    request.require_memory()?;
    match request.state.settings.resumable {
        true => resume::get(request, session, client),
        false => Ok(sse_streams::standalone(&request.state, session, client, None)),
    }
}

/// Ends a legacy session.
pub(super) async fn delete(
    request: &HttpRequest,
    client: &ClientContext,
) -> Result<HttpResponse, HttpRefusal> {
    let session = find_session(request, client, None).await?;
    let state = &request.state;
    state.sessions.end(&session, state.settings.session_lifetime.max_age).await;
    Ok(response_body::empty(StatusCode::NO_CONTENT))
}

/// Finds the session of a legacy request, or rebuilds it, and validates its version header. The
/// error is the response; if another replica of the fleet has the session, that of this replica.
/// `message` is the content of the request, if that is one message.
async fn find_session(
    request: &HttpRequest,
    client: &ClientContext,
    message: Option<&Message>,
) -> Result<SessionGuard, HttpRefusal> {
    let (state, headers) = (&request.state, request.headers());
    if !headers.contains_key(session::HEADER) {
        let text = "no session: send `initialize` first, then the Mcp-Session-Id of its response";
        return Err((StatusCode::BAD_REQUEST, text).into());
    }
    if let Some(fleet) = state.fleet().filter(|fleet| fleet.is_draining()) {
        // The others take over its sessions, and their clients may have ended them there.
        Box::pin(fleet.refresh()).await;
    }
    let session = match find_open_session(request, client) {
        Some(session) => session,
        None => Box::pin(fetch_session(request, client, message)).await?,
    };
    client.audit_event().set_session(&session.mark);
    client.audit_event().set_revision(session.peer.context.revision);
    // Spec 2025-06-18 and later, transports: an invalid or unsupported version MUST get 400.
    // Earlier revisions have no such header. Without the header the session's version applies.
    let checked = session.peer.context.revision >= Revision::V2025_06_18;
    if checked && headers.contains_key(headers::VERSION) {
        let version = request.version().and_then(|text| text.parse().ok());
        if !version.is_some_and(|revision| state.settings.versions.has(revision)) {
            let text = "this MCP-Protocol-Version is not supported here";
            return Err((StatusCode::BAD_REQUEST, text).into());
        }
    }
    Ok(session)
}

/// Finds the session of a request among those in use.
pub(super) fn find_open_session(
    request: &HttpRequest,
    client: &ClientContext,
) -> Option<SessionGuard> {
    let id = host_check::single_value(request.headers(), &session::HEADER)?;
    request.state.sessions.find(client, id, request.state.settings.session_lifetime)
}

/// Rebuilds a session that is not in the table, unless another replica has it: then the request is
/// sent on, and the response is the error.
async fn fetch_session(
    request: &HttpRequest,
    client: &ClientContext,
    message: Option<&Message>,
) -> Result<SessionGuard, HttpRefusal> {
    let (state, settings) = (&request.state, &request.state.settings);
    let id = host_check::single_value(request.headers(), &session::HEADER);
    let max_age = settings.session_lifetime.max_age;
    let opened = id.and_then(|id| Some((id, state.sessions.open_id(client, id, max_age)?)));
    let (id, opened) = opened
        .filter(|(_, opened)| settings.versions.has(opened.facts.revision))
        .ok_or_else(no_session)?;
    if let Some(fleet) = state.fleet() {
        if let Some(session) = find_moved_session(request, client, message, id) {
            return Ok(session);
        }
        let placed = session::placed(id, opened.sealed_by, &opened.facts, max_age);
        take_over_or_forward(request, client, fleet, &placed, id).await?;
    }
    let mut connection = connection(state, client);
    connection.handle.is_rebuilt = true;
    let limit = settings.per_client.sessions;
    let rebuilt = state.sessions.rebuild(client, (id, opened), connection, limit).await;
    let rebuilt = rebuilt.map_err(|_| HttpRefusal::from(results::too_busy(SESSION_RETRY)))?;
    let RebuiltSession { session, lost_subscriptions } = rebuilt.ok_or_else(no_session)?;
    if !lost_subscriptions.is_empty() {
        state.tracker.spawn(session.peer.restore_subscriptions(client, lost_subscriptions));
    }
    Ok(session)
}

/// Makes this replica the owner of a session, unless another one is. Then the request is sent on to
/// it, and the response is the error.
async fn take_over_or_forward(
    request: &HttpRequest,
    client: &ClientContext,
    fleet: &Fleet,
    placed: &PlacedSession,
    id: &str,
) -> Result<(), HttpRefusal> {
    let sessions = &request.state.sessions;
    for _ in 0..MAX_PLACES {
        let may_take_over = || sessions.may_take_over(client.principal());
        match fleet.place(placed, may_take_over).await {
            Place::Here(written) => {
                if let Some(written) = written {
                    sessions.records.take_over(id, &written);
                }
                return Ok(());
            }
            Place::Ended => return Err(no_session()),
            Place::Undecided => break,
            Place::Member(_) if request.connection.is_forwarded() => return Err(hop::misdirected()),
            Place::Member(member) => {
                if let Some(response) = hop::forward(request, client, fleet, &member).await? {
                    return Err(response.into());
                }
            }
        }
    }
    Err(results::too_busy(SESSION_RETRY).into())
}

/// Finds a session that another replica has taken over, for a message that may concern a call that
/// still runs here: a notification or a response. A request belongs to the replica that has the
/// session now, and its client may have ended it there.
fn find_moved_session(
    request: &HttpRequest,
    client: &ClientContext,
    message: Option<&Message>,
    id: &str,
) -> Option<SessionGuard> {
    let may_concern = matches!(message, Some(Message::Notification(_) | Message::Response(_)));
    let is_for_call = may_concern && request.connection.is_forwarded();
    is_for_call.then(|| request.state.sessions.find_moved(client, id)).flatten()
}

/// Sends a client's response on to the replica that sent the request, if that is another one: a
/// session may have been taken over while its client was asked.
async fn forward_to_asker(
    request: &HttpRequest,
    client: &ClientContext,
    message: &Message,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    let Message::Response(response) = message else { return Ok(None) };
    match response.id.as_ref().and_then(ClientRequests::sender_of) {
        Some(asker) => {
            hop::forward_to(request, client, asker, "the call that asked for this response").await
        }
        None => Ok(None),
    }
}

/// Sends a cancellation on to the replica that opened the session, if that is another one: the call
/// may have begun there.
async fn forward_cancellation(
    request: &HttpRequest,
    client: &ClientContext,
    session: &SessionGuard,
    notification: &Notification,
) {
    let is_cancellation = &*notification.method == in_flight::CANCELLED;
    let Some(fleet) = request.state.fleet() else { return };
    if !is_cancellation || request.connection.is_forwarded() {
        return;
    }
    if let Some(member) = fleet.member(session.sealed_by()) {
        client.audit_event().discard();
        hop::forward_copy(request, fleet, &member).await;
    }
}

fn no_session() -> HttpRefusal {
    (StatusCode::NOT_FOUND, "no session has this id, or it has ended: send `initialize` again")
        .into()
}

/// Delay after which a client with too many busy sessions may retry.
const SESSION_RETRY: Duration = Duration::from_secs(1);
/// Places at which a session is looked for: replicas come and go meanwhile.
const MAX_PLACES: usize = 3;
