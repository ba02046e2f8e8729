//! Request handler: from the head of an HTTP request to its response.
//!
//! Invariant: the order of the checks is Host and Origin (403), path (404), credentials (401, 403),
//! method (405), headers that describe the body (415, 406). Only then is the body read, within
//! limits of size and time, and parsed. A request that fails before is refused without reading its
//! body: the body is skipped. A preflight is answered after the first check, also at shutdown, so
//! that a page can read every later refusal.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HOST, ORIGIN};
use hyper::{Method, Request, StatusCode};
use tracing::debug;

use super::head::AcceptedForms;
use super::hop::delivery;
use super::request::{HttpRequest, is_memory_scarce};
use super::request_body::skip_body;
use super::response_body::{
    self, ConnectionClosed, HttpRefusal, HttpResponse, with_connection_close,
};
use super::routes::HttpRoute;
use super::{
    ClientConnection, audit_event, call, forwarded, head, hop, http_sse, legacy_endpoint,
    oauth_metadata, sse_streams,
};
use crate::http::connection::replicas::HopPurpose;
use crate::http::connection::timed_io::RequestInProgress;
use crate::modern::{self, ResponseKind};
use crate::response::cors::{self, CorsHeaders};
use crate::response::{ClientResponse, results};
use crate::{ServerStateCell, batch, era, host_check};
use weir_access::policy::AuthAttempt;
use weir_base::secrets::sealing::Instance;
use weir_base::tasks::fairness::promptly;
use weir_gateway::{ClientContext, RefusalReason};
use weir_mcp::jsonrpc::{self, Message};
use weir_mcp::revision::{Era, Revision};

/// Handles one request, from its head to its response. `gone` is ready once the client has closed
/// the connection.
pub(super) async fn handle(
    state_cell: Arc<ServerStateCell>,
    connection: Arc<ClientConnection>,
    request: Request<Incoming>,
    in_progress: RequestInProgress,
    gone: ConnectionClosed,
) -> Result<HttpResponse, Infallible> {
    let state = state_cell.now();
    let (mut parts, incoming) = request.into_parts();
    let route = HttpRoute::find(&state.settings, parts.uri.path());
    let (connection, refused) = match hop::client_of(&connection, &mut parts) {
        Ok(None) => (connection, None),
        Ok(Some(of_client)) => (of_client, None),
        Err(refused) => (connection, Some(refused)),
    };
    let audit_event = audit_event::begin(&state, &connection, route, &parts);
    // The replica that has the client's connection adds them.
    let is_for_pages = route.is_some_and(HttpRoute::is_for_pages) && !connection.is_forwarded();
    let cors =
        is_for_pages.then(|| CorsHeaders::of_response(&state.settings, &parts.headers)).flatten();
    let (body, text, forms) = (Some(incoming), Bytes::new(), AcceptedForms::Both);
    let mut request =
        HttpRequest { state_cell, state, connection, parts, body, text, forms, gone, audit_event };
    let responded = match refused {
        Some(refused) => Err(refused),
        None => respond(&mut request, route, cors.as_ref()).await,
    };
    let mut response = match responded {
        Ok(response) => response,
        Err(HttpRefusal(response)) => *response,
    };
    let HttpRequest { state, connection, parts, body, forms, gone, audit_event, .. } = request;
    audit_event::end(audit_event, &mut response).await;
    if forms == AcceptedForms::EventStream {
        response = response_body::as_events(response);
    }
    if let Some(cors) = cors {
        cors.add_to(response.headers_mut());
    }
    let is_ending = response.headers().contains_key(CONNECTION);
    let is_reusable = match body {
        Some(unread_body) if !is_ending && !unread_body.is_end_stream() => {
            Box::pin(skip_body(&parts.headers, unread_body)).await
        }
        _ => true,
    };
    let is_closing = state.is_stopping() || connection.is_expired();
    if !is_reusable || is_closing || is_memory_scarce(&state) {
        response = with_connection_close(response);
    }
    response.body_mut().keep_in_progress(in_progress, gone);
    Ok(response)
}

/// Checks the head, authenticates the client, and passes the request to the code of its route.
async fn respond(
    request: &mut HttpRequest,
    route: Option<HttpRoute>,
    cors: Option<&CorsHeaders>,
) -> Result<HttpResponse, HttpRefusal> {
    check_origin(request)?;
    if let (Some(route), Some(true)) = (route, cors.map(|cors| cors.is_preflight(&request.parts))) {
        request.audit_event.discard();
        let mut response = response_body::empty(StatusCode::NO_CONTENT);
        *response.headers_mut() = cors::preflight_headers(request.headers(), &route.allow());
        return Ok(response);
    }
    oauth_metadata::check_query(&request.parts)?;
    let route = route.ok_or((StatusCode::NOT_FOUND, "nothing is served at this path"))?;
    let client = match route {
        // Public, and not recorded: anyone may fetch it as often as they like.
        HttpRoute::Metadata => {
            request.audit_event.discard();
            None
        }
        _ => Some(authenticate(request, route).await?),
    };
    if !route.takes(&request.parts.method) {
        return Ok(response_body::wrong_method(&route.allow()));
    }
    let Some(client) = client else {
        return Ok(oauth_metadata::metadata(&request.state.settings));
    };
    // Rare branches are boxed: otherwise the future of every request would reserve space for them.
    match (route, &request.parts.method) {
        (HttpRoute::SseStream, _) => Box::pin(http_sse::open(request, client)).await,
        (HttpRoute::SseMessages, _) => Box::pin(http_sse::post(request, &client)).await,
        (_, &Method::POST) if request.connection.purpose() == HopPurpose::Ask => {
            delivery::answer(request, &client)
        }
        (_, &Method::POST) => post(request, &client).await,
        _ if request.era_of_unversioned() == Era::Modern => Ok(response_body::wrong_method("POST")),
        (_, &Method::GET) => Box::pin(legacy_endpoint::get(request, &client)).await,
        (_, _) => Box::pin(legacy_endpoint::delete(request, &client)).await,
    }
}

/// Refuses a request that no client of this server sends: another host, an untrusted page, an
/// ambiguous body.
fn check_origin(request: &HttpRequest) -> Result<(), HttpRefusal> {
    let (state, parts) = (&request.state, &request.parts);
    head::check_transfer(&parts.headers)
        .map_err(|refused| HttpRefusal::from(refused).with_connection_close())?;
    if request.connection.is_forwarded() {
        // The other replica has checked what its own address needs.
        return Ok(());
    }
    host_check::check(&state.settings, &parts.uri, &parts.headers).map_err(|rejection| {
        let (host, origin) = (parts.headers.get(HOST), parts.headers.get(ORIGIN));
        debug!(%rejection, ?host, ?origin, "request refused: Host or Origin not allowed");
        state.refused_values().warn_once(rejection, &parts.headers);
        state.gateway.metrics().refused(RefusalReason::Host);
        response_body::refusal(StatusCode::FORBIDDEN, &rejection.to_string()).into()
    })
}

/// Authenticates the client, and refuses one that exceeds its limits by far, unless it has calls in
/// progress: a response, a cancellation or a retry for one of them has to get through.
async fn authenticate(
    request: &HttpRequest,
    route: HttpRoute,
) -> Result<ClientContext, HttpRefusal> {
    let HttpRequest { state, connection, parts, .. } = request;
    let (settings, metrics) = (&state.settings, state.gateway.metrics());
    if state.is_closed() {
        metrics.refused(RefusalReason::Stopping);
        let refused = results::unavailable("shutting down; connect again", CLOSING_RETRY);
        return Err(HttpRefusal::from(refused).with_connection_close());
    }
    let credentials = head::credentials(request.headers()).ok_or_else(|| {
        request.audit_event.set_refusal("authorization_header", || None);
        oauth_metadata::refuse_malformed(settings)
    })?;
    let certificate = connection.certificate.as_ref();
    let from = forwarded::client_address(state, connection, &parts.headers);
    let attempt = AuthAttempt { credentials, certificate, from };
    let authenticated = state.gateway.authenticate_under(&state.config, attempt).await;
    let client = authenticated.map_err(|refusal| {
        // Only the operator sees the reason; the client learns that it was refused.
        debug!(%refusal, "client not authenticated");
        let claimed_user = || state.config.claimed_user(credentials);
        request.audit_event.set_refusal(refusal.reason(), claimed_user);
        metrics.refused(RefusalReason::Auth);
        oauth_metadata::refuse(settings, &refusal)
    })?;
    let client = client.with_audit_event(request.audit_event.clone());
    if let (&Method::POST, HttpRoute::Endpoint, Some(wait)) =
        (&request.parts.method, route, client.flood_retry_after())
        // One that another replica has sent on for a call in progress was counted there.
        && request.connection.purpose() == HopPurpose::Serve
        && !Box::pin(delivery::has_calls(request, &client)).await
    {
        debug!(client = %client.principal().name, "request over the rate limit, body not read");
        client.count_refusal(RefusalReason::Limit);
        return Err(results::too_busy(wait).into());
    }
    Ok(client)
}

// === POST ===

async fn post(
    request: &mut HttpRequest,
    client: &ClientContext,
) -> Result<HttpResponse, HttpRefusal> {
    request.forms = head::check_post(request.headers())?;
    let text = request.read_text().await?;
    if batch::is_batch(&text) {
        return Box::pin(legacy_endpoint::post_batch(request, client, &text)).await;
    }
    let message = match Message::parse(text) {
        Ok(message) => message,
        Err(invalid) => {
            if let Some(response) = invalid.as_error_response() {
                // The client has to learn that it cannot be read, wherever its call runs.
                let response = Message::Response(response);
                let _ = Box::pin(delivery::deliver(request, client, &response)).await;
            }
            return Err(ClientResponse::from(invalid).into());
        }
    };
    if let Message::Request(jsonrpc::Request { method, .. })
    | Message::Notification(jsonrpc::Notification { method, .. }) = &message
    {
        client.audit_event().set_method(method);
    }
    let era = match &message {
        Message::Request(message) => {
            let versions = &request.state.settings.versions;
            era::of_request(versions, &message.method, &message.params, request.version())
        }
        Message::Notification(_) | Message::Response(_) => request.era_of_unversioned(),
    };
    let id = match &message {
        Message::Request(message) => Some(message.id.clone()),
        Message::Notification(_) | Message::Response(_) => None,
    };
    let posted = match era {
        Era::Modern => post_modern(request, client, message).await,
        Era::Legacy => legacy_endpoint::post(request, client, message).await,
    };
    posted.map_err(|refusal| refusal.naming(id.as_ref()))
}

async fn post_modern(
    request: &mut HttpRequest,
    client: &ClientContext,
    message: Message,
) -> Result<HttpResponse, HttpRefusal> {
    let mut message = match message {
        Message::Request(message) => message,
        // No notification from a client has a meaning in this revision (spec, Streamable HTTP,
        // sending messages, note), but sending one is allowed.
        Message::Notification(_) => return Ok(response_body::empty(StatusCode::ACCEPTED)),
        Message::Response(_) => {
            let text = "this server sends no requests, so it accepts no responses";
            return Err((StatusCode::BAD_REQUEST, text).into());
        }
    };
    if let Some(response) = forward_placed(request, client, &message).await? {
        return Ok(response);
    }
    let state = &request.state;
    let id = message.id.clone();
    let headers = Some(request.headers());
    let context = modern::take_context(&mut message, headers, &state.settings.versions)
        .map_err(|refused| ClientResponse::refused(Some(&id), &refused))?;
    let forms = request.forms;
    if forms == AcceptedForms::Json && &*message.method == modern::LISTEN {
        return Err(head::STREAM_ONLY.into());
    }
    match modern::serve(client, message, context, state, forms.mode()) {
        // A lost connection cancels (spec, cancellation: MUST): the call is dropped with the
        // response, or right here.
        ResponseKind::Unary(call) => {
            let call = call::limited(request, client, id, call);
            let keep_alive = state.settings.sse_keepalive;
            tokio::select! {
                biased;
                response = response_body::respond(call, forms, keep_alive) => Ok(response),
                () = promptly(&mut request.gone) => {
                    Ok(response_body::empty(StatusCode::REQUEST_TIMEOUT))
                }
            }
        }
        ResponseKind::Stream(mut listening) => {
            request.require_memory()?;
            hop::tasks::follow_elsewhere(request, client, &mut listening);
            Ok(sse_streams::listen(state, listening))
        }
    }
}

/// Sends a request on to the replica that has what it needs: the call that it resumes, the task
/// that it is about, or the client's own connection to the upstream.
async fn forward_placed(
    request: &HttpRequest,
    client: &ClientContext,
    message: &jsonrpc::Request,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    let Some(fleet) = request.state.fleet().filter(|_| !request.connection.is_forwarded()) else {
        return Ok(None);
    };
    let (method, params) = (&message.method, &message.params);
    // A task is where it began, also if the client's connection would be elsewhere by now.
    if let Some(scope) = client.scope_of_named_task(method, params, Era::Modern) {
        return Box::pin(hop::tasks::forward(request, client, scope)).await;
    }
    // Only a call is resumed. A listen that stays open is not ended when its client is removed.
    let is_call = weir_mcp::call::Method::of(method).is_some();
    let state = params.get_string("requestState").filter(|_| is_call);
    if let Some((instance, _)) = state.as_deref().and_then(Instance::split_named)
        // A server that handles the rounds itself may name its states in the same way.
        && (fleet.has_replica(instance)
            || !client.passes_states_on(Revision::NEWEST, method, params).await)
    {
        let what = "the call of this `requestState`";
        return Box::pin(hop::forward_to(request, client, instance, what)).await;
    }
    let upstream = client.upstream_with_own_connection(Revision::NEWEST, method, params).await;
    let Some(upstream) = upstream else { return Ok(None) };
    let place = || fleet.owner_of_connection(&client.principal().name, upstream.as_str());
    let (mut sought, mut tries) = (place(), 0);
    while let Some(instance) = sought {
        let what = "the connection of this client to the server";
        let sent = Box::pin(hop::forward_to(request, client, instance, what)).await;
        tries += 1;
        sought = place();
        match sent {
            Ok(None) if tries < MAX_PLACES => {}
            // It is opened elsewhere, if that replica has ended or refuses connections.
            Err(_) if sought != Some(instance) && tries < MAX_PLACES => {}
            sent => return sent,
        }
    }
    Ok(None)
}

/// Replicas at which the connection of a client is looked for.
const MAX_PLACES: usize = 3;
/// Delay after which a client may retry during shutdown.
const CLOSING_RETRY: Duration = Duration::from_secs(1);
