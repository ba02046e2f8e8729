//! Finds out which era a server speaks, by opening the connection.
//!
//! `server/discover` goes first. Only an answer decides: a discover result or an error that only modern
//! servers give means modern, any other answer means legacy. An outage, missing credentials or a busy
//! server decide nothing. Over stdio silence has to be told from slowness: after [`SILENCE`] the
//! handshake is tried too, and whichever is answered first wins.
//!
//! Knows nothing of: when a server is asked, and how often.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};

use super::connection::{Introduction, Opening};
use super::wire::{Answer, Failure, Outgoing, Wire};
use super::{legacy, modern};
use crate::mcp::call::{Body, Outcome};
use crate::mcp::revision::Era;
use crate::rpc;

/// How long a child may say nothing before the handshake is tried.
const SILENCE: Duration = Duration::from_secs(3);

/// An answered opening request.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) introduction: Introduction,
    /// The HTTP headers of the answer.
    pub(super) headers: HeaderMap,
}

/// Why the connection is not open.
#[derive(Debug)]
pub(super) enum Closed {
    /// The connection ended upon the first question, so the era is open.
    Ended(String),
    /// The server answers, but not in the era that was asked for.
    AnotherEra(String),
    /// Nothing is decided, or the server will not have us; in words.
    Refused(String),
}

/// Opens the connection in this era, or in the one that the server turns out to speak.
pub(super) async fn open(wire: &Wire, era: Option<Era>) -> Result<Opened, Closed> {
    match (era, wire) {
        (Some(Era::Modern), _) => discover(wire).await,
        (Some(Era::Legacy), _) => initialize(wire).await,
        (None, Wire::Stdio(_)) => over_stdio(wire).await,
        (None, Wire::Http(_)) => match discover(wire).await {
            Err(Closed::AnotherEra(_)) => initialize(wire).await,
            opened => opened,
        },
    }
}

/// Asks in both eras if need be. A late answer in the modern era still wins over a handshake that is
/// not answered yet, or that was refused: a modern server may be slow to start.
async fn over_stdio(wire: &Wire) -> Result<Opened, Closed> {
    let mut question = pin!(discover(wire));
    match tokio::time::timeout(SILENCE, &mut question).await {
        Ok(Err(Closed::AnotherEra(_))) => return initialize(wire).await,
        Ok(opened) => return opened,
        Err(_) => {}
    }
    let mut handshake = pin!(initialize(wire));
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

async fn discover(wire: &Wire) -> Result<Opened, Closed> {
    ask(wire, modern::opening(), modern::introduce).await
}

async fn initialize(wire: &Wire) -> Result<Opened, Closed> {
    ask(wire, legacy::opening(), legacy::introduce).await
}

async fn ask(
    wire: &Wire,
    request: Outgoing,
    introduce: fn(&rpc::Outcome) -> Opening,
) -> Result<Opened, Closed> {
    let method = request.method;
    let (opening, headers) = match wire.exchange(request).await {
        Ok(Answer { outcome: Outcome::Result(Body::Whole(result)), headers }) => {
            (introduce(&rpc::Outcome::Result(result)), headers)
        }
        Ok(Answer { outcome: Outcome::Error(error), headers }) => {
            (introduce(&rpc::Outcome::Error(error)), headers)
        }
        Ok(Answer { outcome: Outcome::Result(Body::Arriving(_)), .. }) => {
            return Err(Closed::Refused(format!("its answer to `{method}` is too large")));
        }
        Err(Failure::Refused { status, error, .. }) => {
            return Err(refused(method, status, error, introduce));
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
        Opening::Refused(text) => Err(Closed::Refused(text)),
    }
}

/// What an HTTP status that is no success means for an opening request.
fn refused(
    method: &str,
    status: StatusCode,
    error: Option<Bytes>,
    introduce: fn(&rpc::Outcome) -> Opening,
) -> Closed {
    let said = error.map(|error| introduce(&rpc::Outcome::Error(error)));
    let mut text = format!("it answers `{method}` with HTTP {status}");
    if let Some(Opening::Refused(said)) = said {
        // What only a modern server says decides under any status.
        if method != "initialize" {
            return Closed::Refused(said);
        }
        text = format!("{said} (HTTP {status})");
    }
    match status.as_u16() {
        401 | 403 | 408 | 429 => Closed::Refused(text),
        400 | 404 | 405 if method == "initialize" => Closed::AnotherEra(format!(
            "{text}: no Streamable HTTP is served here (the older HTTP+SSE pair is not supported)"
        )),
        400..500 => Closed::AnotherEra(text),
        300..400 => Closed::Refused(format!("{text}, and redirects are not followed")),
        _ => Closed::Refused(text),
    }
}
