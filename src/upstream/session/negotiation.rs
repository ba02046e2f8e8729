//! Finds out which era a server speaks, and over which transport, by opening the connection.
//!
//! `server/discover` goes first. Only an answer decides: a discover result or an error that only modern
//! servers give means modern, any other answer means legacy. An outage, missing credentials or a busy
//! server decide nothing. Over stdio silence has to be told from slowness: after [`SILENCE`] the
//! handshake is tried too, and whichever is answered first wins. Over HTTP a handshake that is refused
//! with 400, 404 or 405 leads on to the older HTTP+SSE pair.
//!
//! Knows nothing of: when a server is asked, and how often.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};

use crate::jsonrpc;
use crate::mcp::call::{Body, Outcome};
use crate::mcp::code;
use crate::mcp::revision::Era;
use crate::upstream::message::{Answer, Failure, Outgoing, Wire};
use crate::upstream::session::connection::{Introduction, Opening, error_code};
use crate::upstream::session::{legacy, modern};
use crate::upstream::transport::dispatcher::Ear;
use crate::upstream::transport::http_client::Courier;
use crate::upstream::transport::http_sse;

/// How long a child may say nothing before the handshake is tried.
const SILENCE: Duration = Duration::from_secs(3);

/// An answered opening request.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) introduction: Introduction,
    /// The HTTP headers of the answer.
    pub(crate) headers: HeaderMap,
}

/// Why the connection is not open.
#[derive(Debug)]
pub(crate) enum Closed {
    /// The connection ended upon the first question, so the era is open.
    Ended(String),
    /// The server answers, but not in the era that was asked for, or not over this transport.
    AnotherEra(String),
    /// No Streamable HTTP is served at this URL; the HTTP+SSE pair may be.
    NotStreamable(String),
    /// It refused what it says that it speaks, and has not been asked again; in words.
    Retry(String),
    /// Nothing is decided, or the server will not have us; in words.
    Refused(String),
}

impl Closed {
    /// The reason in words.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Ended(reason)
            | Self::AnotherEra(reason)
            | Self::Retry(reason)
            | Self::Refused(reason) => reason,
            Self::NotStreamable(tried) => format!("{tried}: no Streamable HTTP is served here"),
        }
    }
}

/// Opens the connection in this era, or in the one that the server turns out to speak.
/// A handshake declares `declared`.
pub(crate) async fn open(
    wire: &Wire,
    era: Option<Era>,
    declared: &Bytes,
) -> Result<Opened, Closed> {
    match (era, wire) {
        (Some(Era::Modern), _) => discover(wire).await,
        (Some(Era::Legacy), _) => initialize(wire, declared).await,
        (None, Wire::Stdio(_)) => over_stdio(wire, declared).await,
        (None, Wire::Http(_)) => match discover(wire).await {
            Err(Closed::AnotherEra(_)) => initialize(wire, declared).await,
            opened => opened,
        },
        // Nothing but the legacy era was ever spoken over it.
        (None, Wire::Sse(_)) => initialize(wire, declared).await,
    }
}

/// Opens the HTTP+SSE pair, after `tried` has shown that nothing else is served, if anything was tried.
pub(crate) async fn open_pair(
    courier: &Courier,
    ear: &Arc<Ear>,
    tried: Option<&str>,
) -> Result<Wire, Closed> {
    let (said, is_answer) = match http_sse::Wire::open(courier, Arc::clone(ear)).await {
        Ok(wire) => return Ok(Wire::Sse(wire)),
        Err(Failure::Refused { status, .. }) => {
            let redirects = if status.is_redirection() { ", which is not followed" } else { "" };
            (format!("it answers GET with HTTP {status}{redirects}"), !decides_nothing(status))
        }
        Err(Failure::Protocol(text)) => (format!("upon GET {text}"), true),
        Err(failure) => (failure.into_reason(), false),
    };
    let said = match (tried, is_answer) {
        (None, true) => format!("{said}: no HTTP+SSE is served here"),
        (None, false) => said,
        (Some(tried), true) => {
            format!("{tried}, and {said}: neither Streamable HTTP nor HTTP+SSE is served here")
        }
        (Some(tried), false) => format!("{tried}, and {said}"),
    };
    Err(if is_answer { Closed::AnotherEra(said) } else { Closed::Refused(said) })
}

/// Whether a status says only that the server will not or cannot answer now.
fn decides_nothing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 408 | 429) || !status.is_client_error()
}

/// Asks in both eras if need be. A late answer in the modern era still wins over a handshake that is
/// not answered yet, or that was refused: a modern server may be slow to start.
async fn over_stdio(wire: &Wire, declared: &Bytes) -> Result<Opened, Closed> {
    let mut question = pin!(discover(wire));
    match tokio::time::timeout(SILENCE, &mut question).await {
        Ok(Err(Closed::AnotherEra(_))) => return initialize(wire, declared).await,
        Ok(opened) => return opened,
        Err(_) => {}
    }
    let mut handshake = pin!(initialize(wire, declared));
    tokio::select! {
        biased;
        answer = &mut question => match answer {
            Err(Closed::AnotherEra(_)) => handshake.await,
            opened => opened,
        },
        opened = &mut handshake => match opened {
            Ok(opened) => Ok(opened),
            Err(refused) => match question.await {
                Err(Closed::AnotherEra(_)) => Err(refused),
                opened => opened,
            },
        },
    }
}

/// Asks once more if the server refuses the revision and names it (spec 2026-07-28, versioning: the client
/// SHOULD select one of the supported versions and retry).
async fn discover(wire: &Wire) -> Result<Opened, Closed> {
    let ask = || ask(wire, modern::opening, modern::introduce);
    match ask().await {
        Err(Closed::Retry(_)) => ask().await,
        opened => opened,
    }
}

async fn initialize(wire: &Wire, declared: &Bytes) -> Result<Opened, Closed> {
    ask(wire, || legacy::opening(declared), legacy::introduce).await
}

async fn ask(
    wire: &Wire,
    request: impl Fn() -> Outgoing,
    introduce: fn(&jsonrpc::Outcome) -> Opening,
) -> Result<Opened, Closed> {
    let asked = request();
    let method = asked.method;
    let mut answer = wire.exchange(asked).await;
    // Who refuses what it has not read to the end may break the connection, and its answer with it.
    if let (Err(Failure::Broke(_)), Wire::Http(_)) = (&answer, wire) {
        answer = wire.exchange(request()).await;
    }
    let (opening, headers) = match answer {
        Ok(Answer { outcome: Outcome::Result(Body::Read(result)), headers }) => {
            (introduce(&jsonrpc::Outcome::Result(result.to_bytes())), headers)
        }
        Ok(Answer { outcome: Outcome::Result(Body::Whole(result)), headers }) => {
            (introduce(&jsonrpc::Outcome::Result(result)), headers)
        }
        Ok(Answer { outcome: Outcome::Error(error), headers }) => {
            (introduce(&jsonrpc::Outcome::Error(error)), headers)
        }
        Ok(Answer { outcome: Outcome::Result(Body::Arriving(_)), .. }) => {
            return Err(Closed::Refused(format!("its answer to `{method}` is too large")));
        }
        Err(Failure::Refused { status, error, .. }) => {
            let closed = refused(method, status, error, introduce);
            return Err(match (closed, wire) {
                // Over another wire there is nothing else to be tried.
                (Closed::NotStreamable(text), Wire::Stdio(_) | Wire::Sse(_)) => {
                    Closed::Refused(text)
                }
                (closed, _) => closed,
            });
        }
        // A server that answers with something else has answered, and not in this era.
        Err(Failure::Protocol(text)) => {
            return Err(Closed::AnotherEra(format!("`{method}`: {text}")));
        }
        Err(failure @ (Failure::Unsent(_) | Failure::Broke(_))) => {
            return Err(Closed::Ended(failure.into_reason()));
        }
        Err(failure) => return Err(Closed::Refused(failure.into_reason())),
    };
    match opening {
        Opening::Introduced(introduction) => Ok(Opened { introduction, headers }),
        Opening::AnotherEra => Err(Closed::AnotherEra(format!("it does not know `{method}`"))),
        Opening::Retry(text) => Err(Closed::Retry(text)),
        Opening::Refused(text) => Err(Closed::Refused(text)),
    }
}

/// What an HTTP status that is no success means for an opening request.
fn refused(
    method: &str,
    status: StatusCode,
    error: Option<Bytes>,
    introduce: fn(&jsonrpc::Outcome) -> Opening,
) -> Closed {
    let is_modern = error.as_ref().is_some_and(says_only_a_modern_server);
    let said = error.map(|error| introduce(&jsonrpc::Outcome::Error(error)));
    if let Some(Opening::Retry(text)) = said {
        return Closed::Retry(text);
    }
    let mut text = format!("it answers `{method}` with HTTP {status}");
    if let Some(Opening::Refused(said)) = said {
        // What only a modern server says decides under any status.
        if method != "initialize" {
            return Closed::Refused(said);
        }
        text = format!("{said} (HTTP {status})");
    }
    if status.is_redirection() {
        return Closed::Refused(format!("{text}, and redirects are not followed"));
    }
    if decides_nothing(status) {
        return Closed::Refused(text);
    }
    // spec 2026-07-28, transports, HTTP+SSE: these three, unless the error is a modern server's.
    let is_absent = matches!(status.as_u16(), 400 | 404 | 405) && !is_modern;
    if is_absent && method == "initialize" {
        return Closed::NotStreamable(text);
    }
    Closed::AnotherEra(text)
}

/// Whether only a server of the modern era gives this error.
fn says_only_a_modern_server(error: &Bytes) -> bool {
    let modern = [
        code::HEADER_MISMATCH,
        code::MISSING_CLIENT_CAPABILITY,
        code::UNSUPPORTED_PROTOCOL_VERSION,
    ];
    error_code(error).is_some_and(|code| modern.contains(&code))
}
