//! Request body, read within limits of size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::EXPECT;
use hyper::{HeaderMap, StatusCode};

use super::response_body::HttpRefusal;
use crate::downstream::ServerState;
use crate::downstream::response::ErrorResponse;
use crate::downstream::response::results;
use crate::fairness::Workload;

/// Body of a request until it is read.
pub(super) type UnreadBody = Option<Incoming>;

/// Reads a body within limits of size and time; the connection of a body that is refused ends. A
/// body that was read before is empty.
pub(super) async fn read(state: &ServerState, body: &mut UnreadBody) -> Result<Bytes, HttpRefusal> {
    let Some(incoming) = body.take() else { return Ok(Bytes::new()) };
    let reading = tokio::time::timeout(state.settings.timeouts.body, read_all(state, incoming));
    let late = (StatusCode::REQUEST_TIMEOUT, "timeout while reading the body");
    let read = reading.await.unwrap_or_else(|_| Err(late.into()));
    read.map_err(HttpRefusal::with_connection_close)
}

async fn read_all(state: &ServerState, mut incoming: Incoming) -> Result<Bytes, HttpRefusal> {
    let limit = state.settings.max_body;
    let too_large = || ErrorResponse {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        ..results::too_large("the client", limit)
    };
    if incoming.size_hint().lower() > limit as u64 {
        return Err(too_large().into());
    }
    let (mut text, mut reservation) = (BytesMut::new(), state.budget().start_reservation());
    let mut workload = Workload::default();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|_| (StatusCode::BAD_REQUEST, "the body is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        if text.len() + data.len() > limit {
            return Err(too_large().into());
        }
        // Received bytes count against the budget, not announced ones: announcing costs the client
        // nothing.
        reservation.grow(data.len()).map_err(|_| results::memory_scarce())?;
        text.extend_from_slice(&data);
        workload.add(data.len());
        workload.yield_if_due().await;
    }
    Ok(reservation.attach(text.freeze()))
}

/// Skips the body of a refused request; true if the connection can be reused. That is the case if
/// the body is small and arrives soon. Otherwise the connection has to be closed with a notice to
/// the client (RFC 9112, 9.6), which would send its next request on it.
///
/// Many clients send a head and its body separately. A client that waits for `100 Continue` (RFC
/// 9110, 10.1.1) does not get it.
pub(super) async fn skip_body(headers: &HeaderMap, mut unread: Incoming) -> bool {
    if headers.contains_key(EXPECT) || unread.size_hint().lower() > MAX_SKIPPED_BYTES {
        return false;
    }
    let skipping = async {
        let mut skipped = 0;
        while let Some(frame) = unread.frame().await {
            let Ok(frame) = frame else { return false };
            skipped += frame.data_ref().map_or(0, Bytes::len) as u64;
            if skipped > MAX_SKIPPED_BYTES {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(SKIP_TIMEOUT, skipping).await.unwrap_or(false)
}

/// Largest body that is skipped.
const MAX_SKIPPED_BYTES: u64 = 64 * 1024;
/// Time limit for skipping a body.
const SKIP_TIMEOUT: Duration = Duration::from_secs(1);
