//! Requests that one replica of a fleet sends on to another, which has the session.
//!
//! The first replica authenticates the client, and sends the request on as it came, with what only
//! it knows beside it: the client's address and certificate. The other one authenticates,
//! authorizes, limits and records the request as if it had come to it directly.
//!
//! Invariants: a request is sent on once; a replica that gets one and does not have the session
//! refuses it without executing it. The headers of this module count only on a connection of
//! another replica, whose certificate proves that it belongs to the fleet.

pub(super) mod delivery;
pub(super) mod tasks;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};
use http_body_util::Full;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};

use super::ClientConnection;
use super::connection::replicas::{HopPurpose, RequestOrigin};
use super::request::HttpRequest;
use super::response_body::{self, HttpRefusal, HttpResponse};
use crate::downstream::response::{ClientResponse, results};
use crate::fleet::{Fleet, HopBody, HopFailure, Replica};
use crate::gateway::ClientContext;
use crate::jsonrpc::{Id, Message};
use crate::mcp::call::PayloadBroken;
use crate::sealing::Instance;

/// Sends a request on to another replica, and returns its response; `None` if that one cannot be
/// reached, or does not have the session: then nothing was executed.
pub(super) async fn forward(
    request: &HttpRequest,
    client: &ClientContext,
    fleet: &Fleet,
    member: &Replica,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    let state = &request.state;
    let permit = permit(request, client).ok_or_else(|| results::too_busy(HOP_RETRY))?;
    match fleet.hop(member, forwarded(request, fleet, request.text.clone())).await {
        Ok(response) if response.status() == StatusCode::MISDIRECTED_REQUEST => {
            // It knows of a claim that this replica has not read yet.
            fleet.refresh().await;
            Ok(None)
        }
        Ok(response) => {
            // The other replica records it.
            request.audit_event.discard();
            // The stream for notifications does not end by itself, unlike that of a call.
            let end = (request.parts.method == Method::GET).then(|| {
                let (stop, identity) = (state.stop.clone(), client.identity());
                let end = async move { stop.run_until_cancelled(identity.revoked()).await };
                end.map(Option::unwrap_or_default).boxed()
            });
            Ok(Some(relayed(response, permit, end)))
        }
        Err(HopFailure::Unreachable) => Ok(None),
        Err(HopFailure::Broken) => {
            let refused = ClientResponse::refused(id_of(&request.text).as_ref(), &results::lost());
            Ok(Some(response_body::json(refused)))
        }
    }
}

/// Sends a request on to the replica that is this process; `None` if it is this one, or has ended,
/// or if the request was sent on before.
pub(super) async fn forward_to(
    request: &HttpRequest,
    client: &ClientContext,
    instance: Instance,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    let fleet = request.state.fleet().filter(|_| !request.connection.is_forwarded());
    let member = fleet.and_then(|fleet| Some((fleet, fleet.member(instance)?)));
    let Some((fleet, member)) = member else { return Ok(None) };
    forward(request, client, fleet, &member).await
}

/// Counts a request of a client that is at another replica; `None` if there are too many.
fn permit(request: &HttpRequest, client: &ClientContext) -> Option<impl Send + Sync + use<>> {
    let (state, principal) = (&request.state, client.principal());
    // Calls and streams that stay open must not keep a client from ending its session.
    let quota = match request.parts.method {
        Method::DELETE => &state.deliveries,
        _ => &state.hops,
    };
    quota.acquire(principal, principal.share(MAX_HOPS))
}

/// Returns the id of the request in this text, for an error response.
fn id_of(text: &Bytes) -> Option<Id> {
    match Message::parse(text.clone()) {
        Ok(Message::Request(request)) => Some(request.id),
        _ => None,
    }
}

/// Copies a request with this text, and with what only this replica knows of its client.
fn forwarded(request: &HttpRequest, fleet: &Fleet, text: Bytes) -> Request<Full<Bytes>> {
    let HttpRequest { parts, connection, .. } = request;
    let mut copy = Request::new(Full::new(text));
    *copy.method_mut() = parts.method.clone();
    *copy.uri_mut() = parts.uri.clone();
    let headers = copy.headers_mut();
    *headers = parts.headers.clone();
    remove_connection_headers(headers);
    for name in OWN_HEADERS {
        headers.remove(name);
    }
    let mut set = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set(REPLICA, fleet.member_name());
    if let Some(peer) = connection.peer {
        set(CLIENT_ADDRESS, &peer.to_string());
    }
    if let Some(certificate) = &connection.certificate {
        let chain: Vec<_> = certificate.chain.iter().map(|der| STANDARD.encode(der)).collect();
        set(CLIENT_CERTIFICATE, &chain.join(","));
    }
    copy
}

/// Like [`forwarded`], for another purpose than to be served.
fn forwarded_to(
    request: &HttpRequest,
    fleet: &Fleet,
    text: Bytes,
    purpose: HopPurpose,
) -> Request<Full<Bytes>> {
    let mut copy = forwarded(request, fleet, text);
    let value = match purpose {
        HopPurpose::Serve => return copy,
        HopPurpose::Deliver => DELIVER,
        HopPurpose::Ask => ASK,
    };
    copy.headers_mut().insert(CALLS, HeaderValue::from_static(value));
    copy
}

fn remove_connection_headers(headers: &mut HeaderMap) {
    for name in
        [CONNECTION, CONTENT_LENGTH, EXPECT, KEEP_ALIVE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE]
    {
        headers.remove(name);
    }
}

/// Turns the response of another replica into that for the client, unread; it ends when `end` is
/// ready.
fn relayed(
    response: Response<HopBody>,
    permit: impl Send + 'static,
    end: Option<BoxFuture<'static, ()>>,
) -> HttpResponse {
    let (mut parts, body) = response.into_parts();
    let length = parts.headers.get(CONTENT_LENGTH).cloned();
    remove_connection_headers(&mut parts.headers);
    if let Some(length) = length {
        parts.headers.insert(CONTENT_LENGTH, length);
    }
    let chunks = stream::unfold((body, permit), |(mut body, permit)| async {
        let chunk = body.chunk().await?;
        let named = |error| PayloadBroken(format!("the replica that runs it: {error}"));
        Some((chunk.map_err(named), (body, permit)))
    });
    let end = end.unwrap_or_else(|| future::pending().boxed());
    let mut relayed = response_body::relay(chunks.take_until(end));
    *relayed.status_mut() = parts.status;
    *relayed.headers_mut() = parts.headers;
    relayed
}

// === The other side ===

/// Returns the connection of the client whose request another replica has sent on, and removes the
/// headers that describe it; `None` on a connection of a client itself.
pub(super) fn client_of(
    connection: &ClientConnection,
    parts: &mut Parts,
) -> Result<Option<Arc<ClientConnection>>, HttpRefusal> {
    let RequestOrigin::Listener(listener) = &connection.origin else { return Ok(None) };
    let mut take = |name: HeaderName| Some(parts.headers.remove(name)?.to_str().ok()?.to_owned());
    let replica = take(REPLICA).unwrap_or_default();
    let peer = take(CLIENT_ADDRESS).and_then(|it| it.parse::<SocketAddr>().ok());
    let certificate = match take(CLIENT_CERTIFICATE) {
        None => None,
        Some(chain) => Some(listener.verify(&chain).ok_or((
            StatusCode::FORBIDDEN,
            "the client certificate is not accepted by this replica",
        ))?),
    };
    let purpose = match take(CALLS).as_deref() {
        Some(DELIVER) => HopPurpose::Deliver,
        Some(ASK) => HopPurpose::Ask,
        _ => HopPurpose::Serve,
    };
    let origin = RequestOrigin::Replica(replica.into(), purpose);
    let waker = Arc::clone(&connection.waker);
    Ok(Some(Arc::new(ClientConnection { peer, certificate, waker, origin })))
}

/// Refuses a request that another replica has sent on, and whose session is not here.
pub(super) fn misdirected() -> HttpRefusal {
    (StatusCode::MISDIRECTED_REQUEST, "the session is on another replica").into()
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Name of the replica that sends a request on.
const REPLICA: HeaderName = HeaderName::from_static("weir-replica");
/// Address and port of the client.
const CLIENT_ADDRESS: HeaderName = HeaderName::from_static("weir-client-address");
/// Certificate chain of the client: DER in base64, separated by commas.
const CLIENT_CERTIFICATE: HeaderName = HeaderName::from_static("weir-client-certificate");
/// Purpose of a request that is not to be served, but concerns calls in progress. Replicas up to
/// version 0.1.0 do not know it, and serve such a request.
const CALLS: HeaderName = HeaderName::from_static("weir-calls");
const DELIVER: &str = "deliver";
const ASK: &str = "ask";
const OWN_HEADERS: [HeaderName; 4] = [REPLICA, CLIENT_ADDRESS, CLIENT_CERTIFICATE, CALLS];
/// Delay after which a client with too many of them may retry.
const HOP_RETRY: Duration = Duration::from_secs(1);
/// Most requests of one client that are at other replicas.
const MAX_HOPS: usize = 256;
