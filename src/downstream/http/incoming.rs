//! A request's body: read in bounded space and time.
//!
//! Knows nothing of: what is in it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};

use super::body::{self, Reply};
use crate::budget::NoRoom;
use crate::downstream::answer::{Answer, Refused};
use crate::downstream::{Door, encode};

/// Reads a body in bounded space and time.
pub(super) async fn read(door: &Door, mut incoming: Incoming) -> Result<Bytes, Box<Reply>> {
    let limit = door.settings.max_body;
    let too_large = || {
        let refused = encode::too_large("the client", limit);
        let refused = Refused { status: StatusCode::PAYLOAD_TOO_LARGE, ..refused };
        body::json(Answer::refused(None, &refused))
    };
    if incoming.size_hint().lower() > limit as u64 {
        return Err(too_large().into());
    }
    let reading = async {
        let (mut text, mut held) = (BytesMut::new(), door.budget().hold());
        while let Some(frame) = incoming.frame().await {
            let broken = |_| body::refusal(StatusCode::BAD_REQUEST, "the body broke off");
            let Ok(data) = frame.map_err(broken)?.into_data() else {
                continue;
            };
            if text.len() + data.len() > limit {
                return Err(too_large().into());
            }
            // What has come is counted, not what was announced: to announce costs nothing.
            held.grow(data.len()).map_err(|NoRoom| body::later(FULL, FULL_RETRY))?;
            text.extend_from_slice(&data);
        }
        Ok(held.around(text.freeze()))
    };
    tokio::time::timeout(door.settings.timeouts.body, reading).await.unwrap_or_else(|_| {
        Err(body::refusal(StatusCode::REQUEST_TIMEOUT, "the body took too long").into())
    })
}

/// Asks for the connection to be closed: what is left on it is not to be read.
pub(super) fn closing(reply: Reply) -> Reply {
    body::with_header(reply, CONNECTION, HeaderValue::from_static("close"))
}

/// What a client is told for which there is no room.
pub(super) const FULL: &str = "too much is held for clients at the moment; try again";
/// When it may try again.
pub(super) const FULL_RETRY: Duration = Duration::from_secs(1);
