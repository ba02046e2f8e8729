//! One HTTP request: from its head to a response.
//!
//! The order is the promise: whom it is for and where it comes from (403), what it wants (404), who sends it
//! (401, 403), how (405), what it says it holds (415, 406) — and only then is its body read, in bounded space and
//! time, and looked at. What is refused before is refused unread: its body is passed over.
//!
//! Knows nothing of: what a dialect makes of a message.

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

use super::Connection;
use super::admission::bounded;
use super::audit_event;
use super::detach::Detached;
use super::head;
use super::http_sse;
use super::oauth_metadata;
use super::request_body::{FULL, FULL_RETRY, Unread, closing, passed_over, read};
use super::response_body::{self, Reply};
use super::resume;
use super::routes::Route;
use super::sse_streams;
use crate::audit::Record;
use crate::downstream::client_requests::Questions;
use crate::downstream::http::connection::timed_io::Busy;
use crate::downstream::modern::Exchange;
use crate::downstream::modern::{self, headers};
use crate::downstream::response::call_stream::Beside;
use crate::downstream::response::results;
use crate::downstream::response::{Answer, Call, Way};
use crate::downstream::session::{self, InUse};
use crate::downstream::{Door, Doors, batch, era, host_check, legacy};
use crate::fairness::promptly;
use crate::gateway::{Guest, Reason};
use crate::jsonrpc::{self, Message};
use crate::mcp::call::Client;
use crate::mcp::revision::{Era, Revision};
use crate::memory_budget::Stage;
use crate::policy::Arrival;
use crate::request_scope::Trail;

/// Answers one request. `gone` is ready once its client has closed the connection.
pub(super) fn answer(
    doors: Arc<Doors>,
    connection: Connection,
    request: Request<Incoming>,
    busy: Busy,
    gone: BoxFuture<'static, ()>,
) -> impl Future<Output = Reply> {
    Trail::begin().walk(work(doors, connection, request, busy, gone))
}

async fn work(
    doors: Arc<Doors>,
    connection: Connection,
    request: Request<Incoming>,
    busy: Busy,
    gone: BoxFuture<'static, ()>,
) -> Reply {
    // The one at which it is served, whatever comes meanwhile.
    let door = doors.now();
    let (parts, incoming) = request.into_parts();
    let mut unread = Some(incoming);
    let route = Route::find(&door.settings, parts.uri.path());
    let record = audit_event::begin(&door, &connection, route, &parts);
    // Boxed, as is all here that few requests need: the future of every request would have room for it.
    let mut reply = match admit(&door, &connection, route, &parts, &record).await {
        Ok((route, _)) if !route.takes(&parts.method) => {
            response_body::wrong_method(&route.allow())
        }
        Ok((Route::Endpoint, guest)) => match parts.method {
            Method::POST => post(&door, &guest, &parts.headers, &mut unread, gone).await,
            Method::GET => Box::pin(get(&door, &guest, &parts.headers, gone)).await,
            _ => delete(&door, &guest, &parts.headers),
        },
        Ok((Route::PairStream, guest)) => {
            Box::pin(http_sse::open(&doors, &door, guest, &parts.headers, gone)).await
        }
        Ok((Route::PairMessages, guest)) => {
            Box::pin(http_sse::post(&door, &guest, &parts, &mut unread)).await
        }
        Ok((Route::Metadata, _)) => oauth_metadata::metadata(&door.settings),
        Err(reply) => *reply,
    };
    audit_event::end(record, &mut reply).await;
    let is_ending = reply.headers().contains_key(CONNECTION);
    let goes_on = match unread {
        Some(unread) if !is_ending && !unread.is_end_stream() => {
            Box::pin(passed_over(&parts.headers, unread)).await
        }
        _ => true,
    };
    if !goes_on || is_full(&door) || door.stop.is_cancelled() || connection.has_expired() {
        reply = closing(reply);
    }
    reply.body_mut().hold(busy);
    reply
}

/// Lets a request in. What needs no credentials is answered here.
async fn admit(
    door: &Door,
    connection: &Connection,
    route: Option<Route>,
    parts: &Parts,
    record: &Record,
) -> Result<(Route, Guest), Box<Reply>> {
    let (settings, meters) = (&door.settings, door.gateway.meters());
    head::check_transfer(&parts.headers)
        .map_err(|(status, text)| closing(response_body::refusal(status, text)))?;
    host_check::check(settings, &parts.uri, &parts.headers).map_err(|stranger| {
        debug!(%stranger, host = ?parts.headers.get(HOST), origin = ?parts.headers.get(ORIGIN), "a request is refused");
        meters.refused(Reason::Host);
        response_body::refusal(StatusCode::FORBIDDEN, &stranger.to_string())
    })?;
    oauth_metadata::check_query(parts)?;
    let route = route.ok_or_else(|| {
        response_body::refusal(StatusCode::NOT_FOUND, "there is nothing at this path")
    })?;
    if route == Route::Metadata {
        // Everybody may ask for it, as often as they like.
        record.forget();
        return Err(match route.takes(&parts.method) {
            true => oauth_metadata::metadata(settings).into(),
            false => response_body::wrong_method(&route.allow()).into(),
        });
    }
    if door.is_closed() {
        meters.refused(Reason::Stopping);
        return Err(
            closing(response_body::later("shutting down; connect again", CLOSING_RETRY)).into()
        );
    }
    let credentials = head::credentials(&parts.headers)
        .ok_or_else(|| oauth_metadata::refuse_malformed(settings))?;
    let certificate = connection.certificate.as_ref();
    let from = connection.peer.map(|peer| peer.ip().to_canonical());
    let arrival = Arrival { credentials, certificate, from };
    let guest = door.enter(arrival).await.map_err(|refusal| {
        // Why is the operator's to know: a client learns no more than that it was refused.
        debug!(%refusal, "a client is not let in");
        meters.refused(Reason::Auth);
        oauth_metadata::refuse(settings, &refusal)
    })?;
    let guest = guest.recorded(record.clone());
    if let (&Method::POST, Route::Endpoint, Some(wait)) = (&parts.method, &route, guest.overrun())
        && !is_expected(door, &guest, &parts.headers)
    {
        debug!(client = %guest.principal().name, "a request is refused unread");
        meters.refused(Reason::Limit);
        return Err(response_body::too_busy(wait).into());
    }
    Ok((route, guest))
}

/// Whether what is posted may be something that is never refused: an answer to a question, or the end of a call, in
/// a session that has anything under way.
fn is_expected(door: &Door, guest: &Guest, headers: &HeaderMap) -> bool {
    headers.contains_key(session::HEADER)
        && session(door, guest, headers).is_ok_and(|session| !session.calls.is_empty())
}

// === POST ===

async fn post(
    door: &Arc<Door>,
    guest: &Guest,
    headers: &HeaderMap,
    unread: &mut Unread,
    gone: BoxFuture<'static, ()>,
) -> Reply {
    if let Err((status, text)) = head::check_post(headers) {
        return response_body::refusal(status, text);
    }
    let text = match read(door, unread).await {
        Ok(text) => text,
        Err(reply) => return closing(*reply),
    };
    guest.record().took(text.len());
    if batch::is_batch(&text) {
        return Box::pin(post_batch(door, guest, headers, &text)).await;
    }
    let message = match Message::parse(text) {
        Ok(message) => message,
        Err(invalid) => {
            if let Some(answer) = invalid.as_answer()
                && let Ok(session) = session(door, guest, headers)
            {
                session.peer.questions.settle(answer);
            }
            return response_body::json(Answer::from(invalid));
        }
    };
    if let Message::Request(jsonrpc::Request { method, .. })
    | Message::Notification(jsonrpc::Notification { method, .. }) = &message
    {
        guest.record().of_method(method);
    }
    let versions = &door.settings.versions;
    let version = version_header(headers);
    let era = match &message {
        Message::Request(request) => {
            era::of_request(versions, &request.method, &request.params, version)
        }
        Message::Notification(_) | Message::Answer(_) => era::of_other(versions, version),
    };
    match era {
        Era::Modern => post_modern(door, guest, headers, message, gone).await,
        Era::Legacy => post_legacy(door, guest, headers, message).await,
    }
}

async fn post_modern(
    door: &Arc<Door>,
    guest: &Guest,
    headers: &HeaderMap,
    message: Message,
    mut gone: BoxFuture<'static, ()>,
) -> Reply {
    let settings = &door.settings;
    let request = match message {
        Message::Request(request) => request,
        // Nothing that a client of this revision tells over HTTP means anything (spec, Streamable HTTP,
        // sending messages, note), but telling it is allowed.
        Message::Notification(_) => return response_body::empty(StatusCode::ACCEPTED),
        Message::Answer(_) => {
            let text = "this server asks nothing, so it takes no answers";
            return response_body::refusal(StatusCode::BAD_REQUEST, text);
        }
    };
    let id = request.id.clone();
    let exchange = match modern::open(request, Some(headers), &settings.versions) {
        Ok(opened) => {
            let (versions, allowed) = (&settings.versions, &settings.held);
            modern::serve(guest, opened, versions, &door.streams, allowed, Way::Alone)
        }
        Err((id, refused)) => return response_body::json(Answer::refused(Some(&id), &refused)),
    };
    match exchange {
        // A client that is gone has cancelled (spec, cancellation: MUST): the call is dropped with the
        // response, or right here.
        Exchange::Call(call) => tokio::select! {
            biased;
            mut reply = response_body::answer(bounded(door, guest, Some(id), call), settings.sse_keepalive) => {
                reply.body_mut().until(gone);
                reply
            }
            () = promptly(&mut gone) => response_body::empty(StatusCode::REQUEST_TIMEOUT),
        },
        Exchange::Listening(_) if is_full(door) => response_body::later(FULL, FULL_RETRY),
        Exchange::Listening(listening) => sse_streams::listen(door, listening, gone),
    }
}

async fn post_legacy(
    door: &Arc<Door>,
    guest: &Guest,
    headers: &HeaderMap,
    message: Message,
) -> Reply {
    if let Message::Request(request) = &message
        && &*request.method == legacy::OPENING
    {
        return Box::pin(initialize(door, guest, request)).await;
    }
    let session = match session(door, guest, headers) {
        Ok(session) => session,
        Err(reply) => return *reply,
    };
    match message {
        Message::Request(request) => {
            let allowed = &door.settings.held;
            let (peer, calls, id) = (&session.peer, &session.calls, request.id.clone());
            if door.settings.resumable {
                // Held until it is whole: what is sent once more has to be kept.
                let call = legacy::serve(guest, peer, calls, request, allowed, Way::Shared);
                let call = bounded(door, guest, Some(id), call);
                let outlasting = outlasting(door, session.again(), call);
                return Box::pin(resume::answer(door, &session, outlasting)).await;
            }
            let call = legacy::serve(guest, peer, calls, request, allowed, Way::Alone);
            let call = bounded(door, guest, Some(id), call);
            response_body::answer(outlasting(door, session, call), door.settings.sse_keepalive)
                .await
        }
        Message::Notification(notification) => {
            if &*notification.method == "notifications/cancelled" {
                session.calls.cancel(&notification.params);
            }
            response_body::empty(StatusCode::ACCEPTED)
        }
        Message::Answer(answer) => {
            session.peer.questions.settle(answer);
            response_body::empty(StatusCode::ACCEPTED)
        }
    }
}

async fn post_batch(door: &Arc<Door>, guest: &Guest, headers: &HeaderMap, text: &Bytes) -> Reply {
    // Where batches were removed, the era of what is in them does not matter.
    if era::of_other(&door.settings.versions, version_header(headers)) == Era::Modern {
        return response_body::json(Answer::refused(None, &batch::removed()));
    }
    let session = match session(door, guest, headers) {
        Ok(session) => session,
        Err(reply) => return *reply,
    };
    let messages = match batch::read(session.peer.revision, text) {
        Ok(messages) => messages,
        Err(refused) => return response_body::json(Answer::refused(None, &refused)),
    };
    let answers =
        batch::serve(guest, &session.peer, &session.calls, messages, &door.settings.held, Ok);
    let call = Call { answer: answers.boxed(), beside: Beside::default() };
    let call = bounded(door, guest, None, call);
    match outlasting(door, session, call).answer.await {
        Some(answer) => response_body::json(answer),
        None => response_body::empty(StatusCode::ACCEPTED),
    }
}

async fn initialize(door: &Door, guest: &Guest, request: &jsonrpc::Request) -> Reply {
    // A client of these revisions learns once what can be asked here.
    guest.settle().await;
    let id = Some(&request.id);
    let client = Client::new(&session::new_id(), CancellationToken::new());
    let (versions, questions) = (&door.settings.versions, Questions::new(door.stop.clone()));
    let opened = legacy::initialize(guest, versions, &request.params, client, questions);
    let (peer, result) = match opened {
        Ok(opened) => opened,
        Err(refused) => return response_body::json(Answer::refused(id, &refused)),
    };
    let listen = guest.listen(&peer.subscriptions, peer.revision);
    let listen = listen.with_visits(&peer.client.visits);
    match door.sessions.open(guest, peer, listen) {
        Ok(session) => {
            guest.record().in_session(&session.mark);
            guest.record().speaks(session.peer.revision);
            let reply = response_body::json(Answer::result(&request.id, &result));
            let value = HeaderValue::from_str(&session.id).expect("base64url is visible ASCII");
            response_body::with_header(reply, HeaderName::from_static(session::HEADER), value)
        }
        Err(_) => response_body::json(Answer::refused(id, &results::too_busy(SESSION_RETRY))),
    }
}

/// Lets a call run on when the stream that it was asked on is lost, and keeps its session alive.
fn outlasting(door: &Door, session: InUse, call: Call) -> Call {
    let answer = async move {
        let answer = call.answer.await;
        drop(session);
        answer
    };
    let answer = Detached::new(answer.boxed(), door.tasks.clone(), door.stop.clone());
    Call { answer: answer.boxed(), beside: call.beside }
}

// === GET and DELETE ===

/// Opens the stream on which a legacy session hears of changes.
async fn get(
    door: &Arc<Door>,
    guest: &Guest,
    headers: &HeaderMap,
    gone: BoxFuture<'static, ()>,
) -> Reply {
    if era::of_other(&door.settings.versions, version_header(headers)) == Era::Modern {
        return response_body::wrong_method("POST");
    }
    if let Err((status, text)) = head::check_get(headers) {
        return response_body::refusal(status, text);
    }
    let session = match session(door, guest, headers) {
        Ok(session) => session,
        Err(reply) => return *reply,
    };
    if is_full(door) {
        return response_body::later(FULL, FULL_RETRY);
    }
    if door.settings.resumable {
        return resume::get(door, session, guest, headers, gone);
    }
    sse_streams::changes(door, session, guest, None, gone)
}

/// Whether so much is held for clients that no stream is opened.
pub(super) fn is_full(door: &Door) -> bool {
    door.budget().stage() >= Stage::Scarce
}

/// Ends a legacy session.
fn delete(door: &Door, guest: &Guest, headers: &HeaderMap) -> Reply {
    if era::of_other(&door.settings.versions, version_header(headers)) == Era::Modern {
        return response_body::wrong_method("POST");
    }
    match session(door, guest, headers) {
        Ok(session) => {
            door.sessions.end(&session);
            response_body::empty(StatusCode::NO_CONTENT)
        }
        Err(reply) => *reply,
    }
}

/// Finds the session that a legacy request belongs to, and checks its version header against it.
fn session(door: &Door, guest: &Guest, headers: &HeaderMap) -> Result<InUse, Box<Reply>> {
    if !headers.contains_key(session::HEADER) {
        let text = "no session: send `initialize` first, then the Mcp-Session-Id of its answer";
        return Err(response_body::refusal(StatusCode::BAD_REQUEST, text).into());
    }
    let id = host_check::only(headers, &HeaderName::from_static(session::HEADER));
    let session = id.and_then(|id| door.sessions.find(guest, id));
    let session = session.ok_or_else(|| {
        let text = "no session has this id, or it has ended: send `initialize` again";
        response_body::refusal(StatusCode::NOT_FOUND, text)
    })?;
    guest.record().in_session(&session.mark);
    guest.record().speaks(session.peer.revision);
    // Spec 2025-06-18 and later, transports: an invalid or unsupported version MUST get 400. Earlier
    // ones have no such header. Without one the session's own version holds.
    let checked = session.peer.revision >= Revision::V2025_06_18;
    if checked && headers.contains_key(headers::VERSION) {
        let version = version_header(headers).and_then(|text| text.parse().ok());
        if !version.is_some_and(|revision| door.settings.versions.has(revision)) {
            let text = "this MCP-Protocol-Version is not supported here";
            return Err(response_body::refusal(StatusCode::BAD_REQUEST, text).into());
        }
    }
    Ok(session)
}

fn version_header(headers: &HeaderMap) -> Option<&str> {
    host_check::only(headers, &HeaderName::from_static(headers::VERSION))
}

/// When a client whose sessions are all busy may try again.
const SESSION_RETRY: Duration = Duration::from_secs(1);
/// When a client may try again that comes while the house closes.
const CLOSING_RETRY: Duration = Duration::from_secs(1);
