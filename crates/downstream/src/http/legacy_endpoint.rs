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

use super::forwarding::{self, delivery, tasks};
use super::head::AcceptedForms;
use super::refusal::HttpRefusal;
use super::request::HttpRequest;
use super::response_body::{self, HttpResponse};
use super::{call, head, resume, sse_streams};
use crate::client_requests::ClientRequests;
use crate::in_flight::InFlightRequests;
use crate::legacy::LegacyConnection;
use crate::response::call_stream::CallMessages;
use crate::response::{ClientResponse, ErrorResponse, ResponseFuture, ResponseMode, results};
use crate::session::session_records::NotKept;
use crate::session::{self, RebuiltSession, SessionGuard};
use crate::{ServerState, batch, host_check, legacy};
use weir_fleet::{Fleet, SessionIdentity, SessionOwner};
use weir_gateway::ClientContext;
use weir_mcp::call::ClientHandle;
use weir_mcp::code::UNKNOWN_SESSION;
use weir_mcp::jsonrpc::{self, Message, code};
use weir_mcp::revision::{Era, Revision};
use weir_mcp::task::TaskScope;

/// Session of a request.
enum Located {
    Here(SessionGuard),
    /// At another replica, which has answered. Boxed, because few are.
    Answered(Box<HttpResponse>),
}

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
    if let Some(response) = Box::pin(delivery::deliver(request, client, &message)).await? {
        return Ok(response);
    }
    let mut copied = None;
    if let Some(scope) = tasks::legacy_scope(request, client, &message) {
        if let Some(response) = Box::pin(tasks::forward(request, client, scope)).await? {
            return Ok(response);
        }
        copied = Box::pin(copied_session(request, client, scope)).await?;
    }
    let session = match copied {
        Some(copy) => copy,
        None => match locate_session(request, client).await? {
            Located::Here(session) => session,
            Located::Answered(response) => return Ok(*response),
        },
    };
    match message {
        Message::Request(message) => {
            // A lost stream does not end a call of this era, and so not its response.
            request.gone = Box::pin(future::pending());
            let (settings, id) = (&request.state.settings, Some(message.id.clone()));
            // A copy of a session that another replica has cannot be found again.
            let is_resumable =
                settings.resumable && !session.is_moved() && request.forms != AcceptedForms::Json;
            let mode = match is_resumable {
                // Buffered as a whole, because it may have to be sent a second time.
                true => ResponseMode::SharedStream,
                false => request.forms.mode(),
            };
            let changes_settings = legacy::changes_settings(&message.method);
            let buffer_limit = request.state.buffer_limit();
            let mut call = legacy::serve(client, &session.peer, message, &buffer_limit, mode);
            if changes_settings {
                call.response = recording_settings(&request.state, &session, call.response);
            }
            let resumable = is_resumable.then(|| session.clone_guard());
            let call = call::limited_in_session(request, client, session, id, call);
            match resumable {
                Some(session) => Ok(Box::pin(resume::respond(request, &session, call)).await),
                None => {
                    let (forms, keep_alive) = (request.forms, settings.sse_keepalive);
                    Ok(response_body::respond(call, forms, keep_alive).await)
                }
            }
        }
        // It concerns no call, or one that has ended.
        Message::Notification(_) | Message::Response(_) => {
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
        return Err(refuse_batch(None, text, &batch::batches_removed()));
    }
    Box::pin(delivery::deliver_batch(request, client, text)).await?;
    let session = match locate_session(request, client).await? {
        Located::Here(session) => session,
        Located::Answered(response) => return Ok(*response),
    };
    let revision = session.peer.context.revision;
    let messages = batch::read(revision, text)
        .map_err(|refused| refuse_batch(Some(revision), text, &refused))?;
    let settings = &request.state.settings;
    let has_response = messages.iter().any(|it| matches!(it, Err(_) | Ok(Message::Request(_))));
    let buffer_limit = request.state.buffer_limit();
    let responses = batch::serve(client, &session.peer, messages, &buffer_limit, Ok);
    let call = ResponseFuture { response: responses.boxed(), messages: CallMessages::default() };
    let call = call::limited_in_session(request, client, session, None, call);
    let forms = if has_response { request.forms } else { AcceptedForms::Json };
    Ok(response_body::respond(call, forms, settings.sse_keepalive).await)
}

/// Refuses a batch as a whole. An HTTP response has one error where the revision has no batches.
fn refuse_batch(revision: Option<Revision>, text: &Bytes, refused: &ErrorResponse) -> HttpRefusal {
    let mut refusals = batch::refuse(revision, text, refused);
    match (refusals.pop(), &refusals[..]) {
        (Some(only), []) => only.into(),
        _ => ClientResponse::refused(None, refused).into(),
    }
}

async fn initialize(
    request: &HttpRequest,
    client: &ClientContext,
    message: &jsonrpc::Request,
) -> Result<HttpResponse, HttpRefusal> {
    let state = &request.state;
    if let Some(fleet) = state.fleet() {
        fleet.sessions().wait_until_known().await;
    }
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
    let session = match locate_session(request, client).await? {
        Located::Here(session) => session,
        Located::Answered(response) => return Ok(*response),
    };
    request.require_memory()?;
    match request.state.settings.resumable {
        true => resume::get(request, session, client),
        false => Ok(sse_streams::standalone(&request.state, session, client, None)),
    }
}

/// Ends a legacy session. The response says that it has ended only if it stays ended.
pub(super) async fn delete(
    request: &HttpRequest,
    client: &ClientContext,
) -> Result<HttpResponse, HttpRefusal> {
    let (sessions, settings) = (&request.state.sessions, &request.state.settings);
    let elsewhere = match locate_session(request, client).await {
        Ok(Located::Here(session)) => {
            let recorded = sessions.end(&session, settings.session_lifetime.max_age).await;
            return response_to_end(recorded);
        }
        Ok(Located::Answered(response)) => Ok(*response),
        Err(refusal) => Err(refusal),
    };
    let Some(placed) = placed_session(request, client) else { return elsewhere };
    // One that has ended here, and could not be recorded before.
    if let Some(end) = sessions.records.end_again(&placed) {
        return response_to_end(end.await);
    }
    if elsewhere.as_ref().is_ok_and(|response| response.status() == StatusCode::NO_CONTENT) {
        // The replica that had it may end before it has written that. What cannot be written here
        // is kept here, too.
        let _ = sessions.records.end(&placed).await;
    }
    elsewhere
}

fn response_to_end(recorded: Result<(), NotKept>) -> Result<HttpResponse, HttpRefusal> {
    match recorded {
        Ok(()) => Ok(response_body::empty(StatusCode::NO_CONTENT)),
        Err(NotKept) => {
            let text = "the end of the session cannot be stored at present: send the same request \
                        again";
            Err((StatusCode::SERVICE_UNAVAILABLE, text).into())
        }
    }
}

/// Returns the session of a request as its fleet places it; `None` if the id is none of this
/// client.
fn placed_session(request: &HttpRequest, client: &ClientContext) -> Option<SessionIdentity> {
    let (id, opened) = request.opened_session(client)?;
    let max_age = request.state.settings.session_lifetime.max_age;
    Some(opened.placed(id, max_age))
}

/// Finds the session of a legacy request, or rebuilds it, and validates the request's version
/// header; forwards the request if another replica of the fleet has the session.
async fn locate_session(
    request: &HttpRequest,
    client: &ClientContext,
) -> Result<Located, HttpRefusal> {
    let state = &request.state;
    if !request.headers().contains_key(session::HEADER) {
        let text = "no session: send `initialize` first, then the Mcp-Session-Id of its response";
        return Err((StatusCode::BAD_REQUEST, text).into());
    }
    if let Some(fleet) = state.fleet().filter(|fleet| fleet.is_draining()) {
        // The others take over its sessions, and their clients may have ended them there.
        Box::pin(fleet.refresh()).await;
    }
    let session = match find_open_session(request, client) {
        Some(session) => session,
        None => match Box::pin(fetch_session(request, client)).await? {
            Located::Here(session) => session,
            answered @ Located::Answered(_) => return Ok(answered),
        },
    };
    client.audit_event().set_session(&session.mark);
    client.audit_event().set_revision(session.peer.context.revision);
    request.check_version(session.peer.context.revision)?;
    Ok(Located::Here(session))
}

/// Finds the session of a request among those in use.
fn find_open_session(request: &HttpRequest, client: &ClientContext) -> Option<SessionGuard> {
    let id = host_check::single_value(request.headers(), &session::HEADER)?;
    request.state.sessions.find(client, id, request.state.settings.session_lifetime)
}

/// Copies a legacy session that another replica has, for a request about a task of this scope;
/// `None` if the task is not here, or if the session is here or can be taken over.
async fn copied_session(
    request: &HttpRequest,
    client: &ClientContext,
    scope: TaskScope,
) -> Result<Option<SessionGuard>, HttpRefusal> {
    let (state, settings) = (&request.state, &request.state.settings);
    let is_here = scope.is_of(client.instance());
    let Some(fleet) = state.fleet().filter(|_| is_here) else { return Ok(None) };
    if find_open_session(request, client).is_some() {
        return Ok(None);
    }
    let Some((id, opened)) = request.opened_session(client) else { return Ok(None) };
    let revision = opened.facts.revision;
    if !settings.versions.has(revision) {
        return Ok(None);
    }
    let max_age = settings.session_lifetime.max_age;
    let placed = opened.placed(id, max_age);
    if state.sessions.records.is_ended(&placed) {
        return Ok(None);
    }
    match fleet.sessions().find(&placed, || false).await {
        // A request that was forwarded takes nothing over.
        SessionOwner::Undecided if !request.connection.is_forwarded() => Ok(None),
        SessionOwner::ThisReplica(_) | SessionOwner::Ended => Ok(None),
        SessionOwner::Other(_) | SessionOwner::Undecided => {
            let (connection, limit) = (|| connection(state, client), settings.per_client.sessions);
            let copy = state.sessions.copy(client, (id, opened), connection, limit);
            let copy = copy.map_err(|_| results::too_busy(SESSION_RETRY))?;
            client.audit_event().set_session(&copy.mark);
            client.audit_event().set_revision(revision);
            request.check_version(revision)?;
            Ok(Some(copy))
        }
    }
}

/// Rebuilds a session that is not in the table, unless another replica has it: then the request is
/// forwarded.
async fn fetch_session(
    request: &HttpRequest,
    client: &ClientContext,
) -> Result<Located, HttpRefusal> {
    let (state, settings) = (&request.state, &request.state.settings);
    // Sessions of replicas end with the run of their server: in the next one they subscribe anew.
    let (id, opened) = request
        .opened_session(client)
        .filter(|_| !state.serves_replicas)
        .filter(|(_, opened)| settings.versions.has(opened.facts.revision))
        .ok_or_else(no_session)?;
    let max_age = settings.session_lifetime.max_age;
    let placed = opened.placed(id, max_age);
    if let Some(fleet) = state.fleet() {
        if state.sessions.records.is_ended(&placed) {
            return Err(no_session());
        }
        if let Some(response) = take_over_or_forward(request, client, fleet, &placed).await? {
            return Ok(Located::Answered(response.into()));
        }
    }
    let mut connection = connection(state, client);
    connection.handle.is_rebuilt = true;
    let limit = settings.per_client.sessions;
    let rebuilt = state.sessions.rebuild(client, (id, opened, &placed), connection, limit).await;
    if !matches!(rebuilt, Ok(Some(_))) {
        state.sessions.records.drop_unclaimed(id);
    }
    let rebuilt = rebuilt.map_err(|_| HttpRefusal::from(results::too_busy(SESSION_RETRY)))?;
    let RebuiltSession { session, lost_subscriptions } = rebuilt.ok_or_else(no_session)?;
    if !lost_subscriptions.is_empty() {
        state.tracker.spawn(session.peer.restore_subscriptions(client, lost_subscriptions));
    }
    Ok(Located::Here(session))
}

/// Makes this replica the owner of a session, unless another one is. Then the request is forwarded
/// to it, and its response is returned.
async fn take_over_or_forward(
    request: &HttpRequest,
    client: &ClientContext,
    fleet: &Fleet,
    placed: &SessionIdentity,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    let sessions = &request.state.sessions;
    for _ in 0..MAX_PLACES {
        let may_take_over = || sessions.may_take_over(client.principal());
        match fleet.sessions().find(placed, may_take_over).await {
            SessionOwner::ThisReplica(written) => {
                if let Some(written) = written {
                    sessions.records.take_over(placed, client.principal(), &written);
                }
                return Ok(None);
            }
            SessionOwner::Ended => return Err(no_session()),
            SessionOwner::Undecided => break,
            SessionOwner::Other(_) if request.connection.is_forwarded() => {
                return Err(forwarding::misdirected());
            }
            SessionOwner::Other(owner) => {
                if let Some(response) = forwarding::forward(request, client, fleet, &owner).await? {
                    return Ok(Some(response));
                }
            }
        }
    }
    Err(results::too_busy(SESSION_RETRY).into())
}

fn no_session() -> HttpRefusal {
    let text = "no session has this id, or it has ended: send `initialize` again";
    let mut refused = ErrorResponse::new(StatusCode::NOT_FOUND, code::INVALID_REQUEST, text);
    refused.error.data = Some(Bytes::from_static(UNKNOWN_SESSION.as_bytes()));
    refused.into()
}

/// Delay after which a client with too many busy sessions may retry.
const SESSION_RETRY: Duration = Duration::from_secs(1);
/// Places at which a session is looked for: replicas come and go meanwhile.
const MAX_PLACES: usize = 3;
