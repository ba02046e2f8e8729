//! A request's body: read in bounded space and time.
//!
//! Knows nothing of: what is in it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, EXPECT, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use super::response_body::{self, Reply};
use crate::downstream::Door;
use crate::downstream::response::results;
use crate::downstream::response::{Answer, Refused};
use crate::fairness::Workload;
use crate::memory_budget::NoRoom;

/// The body of a request until somebody reads it.
pub(super) type Unread = Option<Incoming>;

/// Reads a body in bounded space and time; one that was read is empty.
pub(super) async fn read(door: &Door, body: &mut Unread) -> Result<Bytes, Box<Reply>> {
    let Some(mut incoming) = body.take() else { return Ok(Bytes::new()) };
    let limit = door.settings.max_body;
    let too_large = || {
        let refused = results::too_large("the client", limit);
        let refused = Refused { status: StatusCode::PAYLOAD_TOO_LARGE, ..refused };
        response_body::json(Answer::refused(None, &refused))
    };
    if incoming.size_hint().lower() > limit as u64 {
        return Err(too_large().into());
    }
    let reading = async {
        let (mut text, mut held) = (BytesMut::new(), door.budget().hold());
        let mut workload = Workload::default();
        while let Some(frame) = incoming.frame().await {
            let broken = |_| response_body::refusal(StatusCode::BAD_REQUEST, "the body broke off");
            let Ok(data) = frame.map_err(broken)?.into_data() else {
                continue;
            };
            if text.len() + data.len() > limit {
                return Err(too_large().into());
            }
            // What has come is counted, not what was announced: to announce costs nothing.
            held.grow(data.len()).map_err(|NoRoom| response_body::later(FULL, FULL_RETRY))?;
            text.extend_from_slice(&data);
            workload.add(data.len());
            workload.yield_if_due().await;
        }
        Ok(held.around(text.freeze()))
    };
    tokio::time::timeout(door.settings.timeouts.body, reading).await.unwrap_or_else(|_| {
        Err(response_body::refusal(StatusCode::REQUEST_TIMEOUT, "the body took too long").into())
    })
}

/// Whether the connection can go on: takes what a request that is refused unread still brings, if that is little and comes
/// soon. Otherwise it has to be closed, of which its client has to be told (RFC 9112, 9.6): it would send its next request
/// there.
///
/// Many clients send a head and its body one after the other. One that waits to be asked for its body (RFC 9110, 10.1.1)
/// is not asked.
pub(super) async fn passed_over(headers: &HeaderMap, mut unread: Incoming) -> bool {
    if headers.contains_key(EXPECT) || unread.size_hint().lower() > MAX_PASSED_OVER {
        return false;
    }
    let passing = async {
        let mut passed = 0;
        while let Some(frame) = unread.frame().await {
            let Ok(frame) = frame else { return false };
            passed += frame.data_ref().map_or(0, Bytes::len) as u64;
            if passed > MAX_PASSED_OVER {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(PASSING_OVER, passing).await.unwrap_or(false)
}

/// Asks for the connection to be closed: what is left on it is not to be read.
pub(super) fn closing(reply: Reply) -> Reply {
    response_body::with_header(reply, CONNECTION, HeaderValue::from_static("close"))
}

/// So much of a body is taken that nobody reads.
const MAX_PASSED_OVER: u64 = 64 * 1024;
/// For so long it is waited for.
const PASSING_OVER: Duration = Duration::from_secs(1);

/// What a client is told for which there is no room.
pub(super) const FULL: &str = "too much is held for clients at the moment; try again";
/// When it may try again.
pub(super) const FULL_RETRY: Duration = Duration::from_secs(1);
