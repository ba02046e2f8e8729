//! Request body, read within limits of size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, EXPECT, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use super::response_body::{self, HttpResponse};
use crate::downstream::ServerState;
use crate::downstream::response::results;
use crate::downstream::response::{ClientResponse, ErrorResponse};
use crate::fairness::Workload;
use crate::memory_budget::BudgetExhausted;

/// Body of a request until it is read.
pub(super) type UnreadBody = Option<Incoming>;

/// Reads a body within limits of size and time. A body that was read before is empty.
pub(super) async fn read(
    state: &ServerState,
    body: &mut UnreadBody,
) -> Result<Bytes, Box<HttpResponse>> {
    let Some(mut incoming) = body.take() else { return Ok(Bytes::new()) };
    let limit = state.settings.max_body;
    let too_large = || {
        let refused = results::too_large("the client", limit);
        let refused = ErrorResponse { status: StatusCode::PAYLOAD_TOO_LARGE, ..refused };
        response_body::json(ClientResponse::refused(None, &refused))
    };
    if incoming.size_hint().lower() > limit as u64 {
        return Err(too_large().into());
    }
    let reading = async {
        let (mut text, mut reservation) = (BytesMut::new(), state.budget().start_reservation());
        let mut workload = Workload::default();
        while let Some(frame) = incoming.frame().await {
            let broken =
                |_| response_body::refusal(StatusCode::BAD_REQUEST, "the body is incomplete");
            let Ok(data) = frame.map_err(broken)?.into_data() else {
                continue;
            };
            if text.len() + data.len() > limit {
                return Err(too_large().into());
            }
            // Received bytes count against the budget, not announced ones: announcing costs the
            // client nothing.
            reservation.grow(data.len()).map_err(|BudgetExhausted| {
                response_body::overloaded(MEMORY_EXHAUSTED, MEMORY_RETRY)
            })?;
            text.extend_from_slice(&data);
            workload.add(data.len());
            workload.yield_if_due().await;
        }
        Ok(reservation.attach(text.freeze()))
    };
    tokio::time::timeout(state.settings.timeouts.body, reading).await.unwrap_or_else(|_| {
        Err(response_body::refusal(StatusCode::REQUEST_TIMEOUT, "timeout while reading the body")
            .into())
    })
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

/// Adds `Connection: close`: the rest of the input must not be read.
pub(super) fn with_connection_close(response: HttpResponse) -> HttpResponse {
    response_body::with_header(response, CONNECTION, HeaderValue::from_static("close"))
}

/// Largest body that is skipped.
const MAX_SKIPPED_BYTES: u64 = 64 * 1024;
/// Time limit for skipping a body.
const SKIP_TIMEOUT: Duration = Duration::from_secs(1);

/// Error text for a client while the memory budget is exhausted.
pub(super) const MEMORY_EXHAUSTED: &str =
    "the memory budget for clients is exhausted; try again later";
/// Delay after which it may retry.
pub(super) const MEMORY_RETRY: Duration = Duration::from_secs(1);
