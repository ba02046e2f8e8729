//! Requests that one replica of a fleet forwards to another, which has the session.
//!
//! The first replica authenticates the client, and forwards the request as it came, with what only
//! it knows beside it: the client's address and certificate. The other one authenticates,
//! authorizes, limits and records the request as if it had come to it directly.
//!
//! Invariants: a request is forwarded once; a replica that gets one for a session of a third
//! replica refuses it without executing it. The headers of this module count only on a connection
//! of another replica, whose certificate proves that it belongs to the fleet.

pub(super) mod delivery;
pub(super) mod owners;
mod responses;
pub(super) mod tasks;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::FutureExt;
use http_body_util::Full;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode};

use super::ClientConnection;
use super::connection::replicas::{ForwardPurpose, ReplicaListener, RequestOrigin};
use super::refusal::HttpRefusal;
use super::request::HttpRequest;
use super::response_body::{self, HttpResponse};
use crate::response::{ClientResponse, results};
use responses::SentRequest;
use weir_base::secrets::sealing::InstanceId;
use weir_fleet::{Fleet, ForwardError, Replica, Whereabouts};
use weir_gateway::{ClientContext, ClientIdentity};
use weir_mcp::jsonrpc::{Id, Message};

/// Result of forwarding a request.
enum ForwardOutcome {
    Response(Box<HttpResponse>),
    /// The other replica does not have the session, and has executed nothing.
    Misdirected,
    /// The other replica cannot be reached. Nothing was sent.
    Unreachable,
}

/// Forwards a request to another replica, and returns its response; `None` if that one cannot be
/// reached, or does not have the session: then nothing was executed.
pub(super) async fn forward(
    request: &HttpRequest,
    client: &ClientContext,
    fleet: &Fleet,
    replica: &Replica,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    Ok(match try_forward(request, client, fleet, replica).await? {
        ForwardOutcome::Response(response) => Some(*response),
        ForwardOutcome::Misdirected | ForwardOutcome::Unreachable => None,
    })
}

async fn try_forward(
    request: &HttpRequest,
    client: &ClientContext,
    fleet: &Fleet,
    replica: &Replica,
) -> Result<ForwardOutcome, HttpRefusal> {
    let state = &request.state;
    let permit = permit(request, client).ok_or_else(|| results::too_busy(FORWARD_RETRY))?;
    let sent = SentRequest::new(request, replica);
    match fleet.client().forward(replica, copy_of(request, fleet, request.text.clone())).await {
        Ok(response) if response.status() == StatusCode::MISDIRECTED_REQUEST => {
            // It knows of a claim that this replica has not read yet.
            fleet.refresh().await;
            Ok(ForwardOutcome::Misdirected)
        }
        Ok(response) => {
            // The stream for notifications does not end by itself, unlike that of a call.
            let end = (request.parts.method == Method::GET).then(|| {
                let (stop, identity) = (state.stop.clone(), ClientIdentity::of(client));
                let end = async move { stop.run_until_cancelled(identity.revoked()).await };
                end.map(Option::unwrap_or_default).boxed()
            });
            Ok(ForwardOutcome::Response(
                responses::pass_through(response, sent, permit, end).into(),
            ))
        }
        Err(ForwardError::NotSent(_)) => Ok(ForwardOutcome::Unreachable),
        Err(ForwardError::NoResponse) => {
            Ok(ForwardOutcome::Response(response_body::json(sent.lost()).into()))
        }
    }
}

/// Forwards a request to the replica that is this process, and has `what` the request needs; `None`
/// if it is this one, or has ended, or if the request was forwarded before. One that cannot be
/// reached has not ended: the client has to repeat the request.
pub(super) async fn forward_to(
    request: &HttpRequest,
    client: &ClientContext,
    instance: InstanceId,
    what: &str,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    let Some(fleet) = request.fleet_for_forwarding() else { return Ok(None) };
    if let Whereabouts::Other(replica) = fleet.find(instance).await {
        match try_forward(request, client, fleet, &replica).await? {
            ForwardOutcome::Response(response) => return Ok(Some(*response)),
            ForwardOutcome::Misdirected => return Ok(None),
            ForwardOutcome::Unreachable => {}
        }
    }
    match fleet.find(instance).await {
        Whereabouts::ThisReplica | Whereabouts::Ended => Ok(None),
        Whereabouts::Other(_) | Whereabouts::Unreachable => Err(unreachable(request, what)),
    }
}

/// Error: the replica that has what a request needs cannot be reached at present.
pub(super) fn unreachable(request: &HttpRequest, what: &str) -> HttpRefusal {
    let text = format!(
        "the replica that has {what} cannot be reached at present: repeat the same request"
    );
    let refused = results::unavailable(&text, REACH_RETRY);
    ClientResponse::refused(id_of(&request.text).as_ref(), &refused).into()
}

/// Counts a request of a client that is at another replica; `None` if there are too many.
fn permit(request: &HttpRequest, client: &ClientContext) -> Option<impl Send + Sync + use<>> {
    let (state, principal) = (&request.state, client.principal());
    // Calls and streams that stay open must not keep a client from ending its session.
    let quota = match request.parts.method {
        Method::DELETE => &state.deliveries,
        _ => &state.forwarded,
    };
    quota.acquire(principal, principal.share(MAX_FORWARDED))
}

/// Returns the id of the request in this text, for an error response.
fn id_of(text: &Bytes) -> Option<Id> {
    match Message::parse(text.clone()) {
        Ok(Message::Request(request)) => Some(request.id),
        _ => None,
    }
}

/// Copies a request with this text, and with what only this replica knows of its client.
fn copy_of(request: &HttpRequest, fleet: &Fleet, text: Bytes) -> Request<Full<Bytes>> {
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
    set(REPLICA, fleet.replica_name());
    if let Some(peer) = connection.peer {
        set(CLIENT_ADDRESS, &peer.to_string());
    }
    if let Some(certificate) = &connection.certificate {
        let chain: Vec<_> = certificate.chain.iter().map(|der| STANDARD.encode(der)).collect();
        set(CLIENT_CERTIFICATE, &chain.join(","));
    }
    copy
}

/// Copies a request like [`copy_of`], for another purpose than to be served.
fn copy_for(
    request: &HttpRequest,
    fleet: &Fleet,
    text: Bytes,
    purpose: ForwardPurpose,
) -> Request<Full<Bytes>> {
    let mut copy = copy_of(request, fleet, text);
    let value = match purpose {
        ForwardPurpose::Serve => return copy,
        ForwardPurpose::Deliver => DELIVER,
        ForwardPurpose::Ask => ASK,
    };
    copy.headers_mut().insert(CALLS, HeaderValue::from_static(value));
    copy
}

/// Removes the headers that are about one connection.
fn remove_connection_headers(headers: &mut HeaderMap) {
    for name in
        [CONNECTION, CONTENT_LENGTH, EXPECT, KEEP_ALIVE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE]
    {
        headers.remove(name);
    }
}

// === The other side ===

/// Returns the connection of the client whose request another replica has forwarded on its
/// `connection`, and removes the headers that describe it.
pub(super) fn client_connection(
    connection: &ClientConnection,
    listener: &ReplicaListener,
    parts: &mut Parts,
) -> Result<Arc<ClientConnection>, HttpRefusal> {
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
        Some(DELIVER) => ForwardPurpose::Deliver,
        Some(ASK) => ForwardPurpose::Ask,
        _ => ForwardPurpose::Serve,
    };
    let origin = RequestOrigin::Replica(replica.into(), purpose);
    let waker = Arc::clone(&connection.waker);
    Ok(Arc::new(ClientConnection { peer, certificate, waker, origin }))
}

/// Refuses a request that another replica has forwarded, and whose session is not here.
pub(super) fn misdirected() -> HttpRefusal {
    (StatusCode::MISDIRECTED_REQUEST, "the session is on another replica").into()
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Name of the replica that forwards a request.
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
/// Delay after which a request may be repeated whose replica could not be reached.
const REACH_RETRY: Duration = Duration::from_secs(1);
/// Delay after which a client with too many of them may retry.
const FORWARD_RETRY: Duration = Duration::from_secs(1);
/// Most requests of one client that are at other replicas.
const MAX_FORWARDED: usize = 256;
