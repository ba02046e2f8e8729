//! Version negotiation: detects the era of a server, and its transport, by opening the connection.
//!
//! `server/discover` goes first. A discover result, or an error that only modern servers send,
//! means modern; any other response means legacy (spec 2026-07-28, versioning). A silent server and
//! a slow one look alike: after [`SILENCE`] `initialize` is sent as well, and the first response
//! wins. Over HTTP some responses may be those of a server of either era that is starting or busy,
//! or of a proxy before it: then `initialize` is sent, too, and an era that is found so is not
//! remembered. A server that asks for an access token is not asked further. An `initialize` that is
//! refused with 400, 404 or 405 leads on to the older HTTP+SSE transport.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};

use crate::Error;
use crate::health::author_notes::NoteKind;
use crate::message::{HttpFailure, OutboundRequest, TransportError, error_code};
use crate::session::handshake::{HandshakeInfo, NegotiationError};
use crate::session::{legacy, modern};
use crate::transport::Transport;
use crate::transport::http_client::HttpClient;
use crate::transport::http_sse;
use weir_mcp::call::{Payload, ResponseOutcome};
use weir_mcp::code;
use weir_mcp::jsonrpc::ResponsePayload;
use weir_mcp::revision::{Era, Revision};

/// Time without a response after which `initialize` is sent to a child, too.
const SILENCE: Duration = Duration::from_secs(3);

/// Result of a successful negotiation, with the HTTP headers of the response.
pub(crate) type Negotiated = (HandshakeInfo, HeaderMap);

/// Parser of the response to an opening request.
type ParseHandshake = fn(&ResponsePayload) -> Result<HandshakeInfo, NegotiationError>;

/// Opens the connection in `era`, or in the one that the server turns out to speak. `initialize`
/// declares the capabilities `declared`.
pub(crate) async fn open(
    transport: &Transport,
    era: Option<Era>,
    declared: &Bytes,
) -> Result<Negotiated, NegotiationError> {
    match (era, transport) {
        (Some(Era::Modern), _) => discover(transport).await,
        (Some(Era::Legacy), _) => initialize(transport, declared).await,
        (None, Transport::Stdio(_) | Transport::Http(_)) => negotiate(transport, declared).await,
        // This transport belongs to the legacy era only.
        (None, Transport::Sse(_)) => initialize(transport, declared).await,
    }
}

/// Opens the HTTP+SSE transport. `tried` describes the failure of Streamable HTTP, if that was
/// tried.
pub(crate) async fn open_http_sse(
    http_client: &HttpClient,
    tried: Option<&str>,
) -> Result<Transport, NegotiationError> {
    let (reason, is_response) = match http_sse::HttpSseTransport::open(http_client).await {
        Ok(transport) => return Ok(Transport::Sse(transport)),
        Err(TransportError::Http(failure)) => {
            let (status, said) = (failure.status, failure.describe());
            let redirects = if status.is_redirection() { ", which is not followed" } else { "" };
            (format!("it answers GET with {said}{redirects}"), !is_inconclusive(status))
        }
        Err(TransportError::Protocol(text)) => (format!("upon GET {text}"), true),
        Err(failure) => (failure.into_reason(), false),
    };
    let reason = match (tried, is_response) {
        (None, true) => format!("{reason}: no HTTP+SSE is served here"),
        (None, false) => reason,
        (Some(tried), true) => {
            format!("{tried}, and {reason}: neither Streamable HTTP nor HTTP+SSE is served here")
        }
        (Some(tried), false) => format!("{tried}, and {reason}"),
    };
    Err(if is_response {
        NegotiationError::AnotherEra(reason)
    } else {
        NegotiationError::Refused(reason)
    })
}

/// Whether a status only means that the server will not or cannot respond now.
fn is_inconclusive(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 408 | 429) || !status.is_client_error()
}

/// Tries both eras if necessary. A late response to `server/discover` still wins over an
/// `initialize` that has no response yet, or that was refused: a modern server may be slow to
/// start.
async fn negotiate(
    transport: &Transport,
    declared: &Bytes,
) -> Result<Negotiated, NegotiationError> {
    let mut discovery = pin!(discover(transport));
    if let Ok(result) = tokio::time::timeout(SILENCE, &mut discovery).await {
        return continue_after(result, initialize(transport, declared)).await;
    }
    let mut initialization = pin!(initialize(transport, declared));
    tokio::select! {
        biased;
        result = &mut discovery => continue_after(result, initialization).await,
        result = &mut initialization => match result {
            Ok(result) => Ok(uncertain(result)),
            Err(refused) => match discovery.await {
                Err(NegotiationError::AnotherEra(_)) => Err(refused),
                result => result,
            },
        },
    }
}

/// Returns the result of `server/discover`, or of `initialize` if that shows another era or none.
/// If both show none, the first response is reported.
async fn continue_after(
    discovered: Result<Negotiated, NegotiationError>,
    initialization: impl Future<Output = Result<Negotiated, NegotiationError>>,
) -> Result<Negotiated, NegotiationError> {
    match discovered {
        Err(NegotiationError::AnotherEra(_)) => initialization.await,
        Err(NegotiationError::Undecided(first)) => match initialization.await {
            Ok(result) => Ok(uncertain(result)),
            Err(NegotiationError::NotStreamable(_)) => Err(NegotiationError::NotStreamable(first)),
            Err(_) => Err(NegotiationError::Refused(first)),
        },
        result => result,
    }
}

fn uncertain((handshake_info, headers): Negotiated) -> Negotiated {
    (HandshakeInfo { is_certain: false, ..handshake_info }, headers)
}

/// Retries once if the server refuses the revision and lists it as supported (spec 2026-07-28,
/// versioning: the client SHOULD select one of the supported versions and retry).
async fn discover(transport: &Transport) -> Result<Negotiated, NegotiationError> {
    let request = || modern::opening_request(transport);
    let discover_once = || send_opening(transport, request, modern::parse_handshake);
    match discover_once().await {
        Err(NegotiationError::Retry(_)) => discover_once().await,
        result => result,
    }
}

async fn initialize(
    transport: &Transport,
    declared: &Bytes,
) -> Result<Negotiated, NegotiationError> {
    let initialize_with = |revision| {
        let request = move || legacy::opening_request(transport, declared, revision);
        send_opening(transport, request, legacy::parse_handshake)
    };
    match initialize_with(Revision::NEWEST_LEGACY).await {
        Err(NegotiationError::OtherRevision(revision, _)) => initialize_with(revision).await,
        result => result,
    }
}

async fn send_opening(
    transport: &Transport,
    request: impl Fn() -> OutboundRequest,
    parse_handshake: ParseHandshake,
) -> Result<Negotiated, NegotiationError> {
    let first_request = request();
    let method = first_request.method;
    let mut response = transport.exchange_with_headers(Box::new(first_request)).await;
    // A server that refuses a request before it has read it may break the connection, and lose its
    // response with it.
    if let (Err(TransportError::ConnectionLost(_)), Transport::Http(_)) = (&response, transport) {
        response = transport.exchange_with_headers(Box::new(request())).await;
    }
    // An error without an id is the response, too, under a status that is no error.
    if let Err(TransportError::Http(failure)) = &mut response
        && failure.status.is_success()
        && let Some(error) = failure.error.take()
    {
        response = Ok((ResponseOutcome::Error(error), HeaderMap::new()));
    }
    let (payload, headers) = match response {
        Ok((outcome, headers)) => {
            let payload = match outcome {
                ResponseOutcome::Result(Payload::Parsed(result)) => {
                    ResponsePayload::Result(result.to_bytes())
                }
                ResponseOutcome::Result(Payload::Complete(result)) => {
                    ResponsePayload::Result(result)
                }
                ResponseOutcome::Error(error) => ResponsePayload::Error(error),
                ResponseOutcome::Result(Payload::Streaming(_)) => {
                    let text = format!("its response to `{method}` is too large");
                    return Err(NegotiationError::Refused(text));
                }
            };
            (payload, headers)
        }
        Err(TransportError::Http(failure)) => {
            let asks_for_token = failure.status == StatusCode::UNAUTHORIZED;
            let is_final = asks_for_token && failure.has_challenge;
            let error = status_error(method, *failure, parse_handshake);
            return Err(match (error, transport) {
                // Other transports have no alternative to try.
                (
                    NegotiationError::NotStreamable(text) | NegotiationError::Undecided(text),
                    Transport::Stdio(_) | Transport::Sse(_),
                ) => NegotiationError::Refused(text),
                // With an account this response would not come here.
                (NegotiationError::Undecided(text), _) if asks_for_token => {
                    let hint = "set its auth, for example auth = { type = \"oauth\" }";
                    let text = format!("{text}: {hint}");
                    match is_final {
                        true => NegotiationError::Refused(text),
                        false => NegotiationError::Undecided(text),
                    }
                }
                (error, _) => error,
            });
        }
        // A server that sends an unexpected response has responded, and not in this era.
        Err(TransportError::Protocol(text) | TransportError::Other(Error::Protocol(text))) => {
            return Err(NegotiationError::AnotherEra(format!("`{method}`: {text}")));
        }
        // An event stream without a response, for example.
        Err(TransportError::ConnectionLost(reason)) if matches!(transport, Transport::Http(_)) => {
            return Err(NegotiationError::Undecided(reason));
        }
        Err(failure @ (TransportError::NotSent(_) | TransportError::ConnectionLost(_))) => {
            return Err(NegotiationError::Ended(failure.into_reason()));
        }
        Err(failure) => return Err(NegotiationError::Refused(failure.into_reason())),
    };
    let parsed = parse_handshake(&payload);
    if let (Err(NegotiationError::NoRevision(_)), ResponsePayload::Result(result)) =
        (&parsed, &payload)
    {
        transport.dispatcher().health.notes.add(NoteKind::ProtocolVersion, result);
    }
    Ok((parsed?, headers))
}

/// Interprets an HTTP error status of an opening request.
fn status_error(
    method: &str,
    failure: HttpFailure,
    parse_handshake: ParseHandshake,
) -> NegotiationError {
    let (status, said, is_late) =
        (failure.status, failure.describe(), failure.retry_after.is_some());
    let is_modern = failure.error.as_ref().is_some_and(is_modern_only_error);
    let outcome = failure.error.map(|error| parse_handshake(&ResponsePayload::Error(error)));
    if let Some(Err(retry @ (NegotiationError::Retry(_) | NegotiationError::OtherRevision(..)))) =
        outcome
    {
        return retry;
    }
    let mut text = format!("it answers `{method}` with {said}");
    if let Some(Err(NegotiationError::Refused(reason))) = outcome {
        // An error that only modern servers send decides under any status.
        if method != "initialize" {
            return NegotiationError::Refused(reason);
        }
        text = format!("{reason} (HTTP {status})");
    }
    if status.is_redirection() {
        return NegotiationError::Refused(format!("{text}, and redirects are not followed"));
    }
    if is_inconclusive(status) {
        // A server that names a time is not asked again before that.
        return match is_late {
            true => NegotiationError::Refused(text),
            false => NegotiationError::Undecided(text),
        };
    }
    // spec 2026-07-28, transports, HTTP+SSE: these three, unless the error is a modern server's.
    let is_absent = matches!(status.as_u16(), 400 | 404 | 405) && !is_modern;
    if is_absent && method == "initialize" {
        return NegotiationError::NotStreamable(text);
    }
    NegotiationError::AnotherEra(text)
}

/// Whether only a modern server sends this error.
fn is_modern_only_error(error: &Bytes) -> bool {
    let modern = [
        code::HEADER_MISMATCH,
        code::MISSING_CLIENT_CAPABILITY,
        code::UNSUPPORTED_PROTOCOL_VERSION,
    ];
    error_code(error).is_some_and(|code| modern.contains(&code))
}
