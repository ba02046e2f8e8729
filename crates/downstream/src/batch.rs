//! JSON-RPC batches, in revisions 2025-03-26 and earlier.
//!
//! Invariants: each message is handled as if it had been sent alone; all responses of a batch
//! together are no larger than one response may be.

use bytes::Bytes;
use futures::future::{self, BoxFuture};
use futures::{FutureExt, StreamExt, stream};
use hyper::StatusCode;
use serde::de::IgnoredAny;

use super::legacy::{self, LegacyClient};
use super::{BATCH_WIDTH, MAX_BATCH};
use crate::response::results::{self, memory_exhausted};
use crate::response::{ClientResponse, ErrorResponse, ResponseBody, ResponseMode, finish_event};
use weir_base::json;
use weir_base::memory::memory_budget::{BufferLimit, GrowingReservation};
use weir_gateway::ClientContext;
use weir_mcp::jsonrpc::{self, Id, InvalidMessage, Message, MessageShape, PartialMessage, code};
use weir_mcp::revision::Revision;
use weir_record::audit::AuditEvent;

/// Parses the messages of a batch. Each invalid message gets its own error.
pub(super) fn read(
    revision: Revision,
    text: &Bytes,
) -> Result<Vec<Result<Message, InvalidMessage>>, ErrorResponse> {
    if !revision.has_batches() {
        return Err(batches_removed());
    }
    let Some(elements) = json::elements(text) else {
        // The error comes from a library that does not look at text inside of strings.
        let error = serde_json::from_slice::<IgnoredAny>(text).err();
        let error = error.map_or_else(|| "not UTF-8".to_owned(), |error| error.to_string());
        return Err(refused(code::PARSE_ERROR, format!("not valid JSON: {error}")));
    };
    // One element more than allowed is enough to detect the excess: the others are not collected.
    let elements: Vec<_> = elements.take(MAX_BATCH + 1).collect();
    if elements.is_empty() || elements.len() > MAX_BATCH {
        let text = format!("a batch holds 1 to {MAX_BATCH} messages");
        return Err(refused(code::INVALID_REQUEST, text));
    }
    let messages: Vec<_> = elements
        .into_iter()
        .map(|element| Message::parse_within(element, json::MAX_DEPTH - 1))
        .collect();
    // Spec 2025-03-26, lifecycle: `initialize` MUST NOT be part of a batch.
    let opens = messages.iter().any(
        |message| matches!(message, Ok(Message::Request(r)) if &*r.method == legacy::INITIALIZE),
    );
    if opens {
        return Err(refused(code::INVALID_REQUEST, "`initialize` must come alone".to_owned()));
    }
    Ok(messages)
}

/// Returns the responses to a batch that is refused as a whole. Each request whose id can be read
/// gets an error: all in one array if the session's revision has batches. Without such requests,
/// there is one error without an id.
pub(super) fn refuse(
    revision: Option<Revision>,
    text: &Bytes,
    refused: &ErrorResponse,
) -> Vec<ClientResponse> {
    let elements = json::elements(text).into_iter().flatten().take(MAX_REFUSED);
    let messages = elements.map(|element| PartialMessage::read(&element));
    let requests = messages.filter(|it| it.shape == MessageShape::Request);
    let ids: Vec<_> = requests.filter_map(|request| request.id).collect();
    let named = ids.iter().map(|id| ClientResponse::refused(Some(id), refused));
    if ids.is_empty() {
        return vec![ClientResponse::refused(None, refused)];
    }
    if !revision.is_some_and(Revision::has_batches) {
        return named.collect();
    }
    let texts: Vec<_> = named.filter_map(|it| it.text.into_whole()).collect();
    let text = [&b"["[..], &texts.join(&b","[..]), b"]"].concat().into();
    let text = ResponseBody::Whole(text);
    vec![ClientResponse { text, ..ClientResponse::refused(None, refused) }]
}

/// Handles the messages of a batch, several at a time; `None` if no message needs a response.
/// Batched requests send no progress notifications. `finish` decides on the complete response, and
/// its result is what the audit log records.
pub(super) fn serve(
    client: &ClientContext,
    peer: &LegacyClient,
    messages: Vec<Result<Message, InvalidMessage>>,
    buffer_limit: &BufferLimit,
    finish: impl FnOnce(Bytes) -> Result<Bytes, ErrorResponse> + Send + 'static,
) -> impl Future<Output = Option<ClientResponse>> + Send + 'static {
    client.audit_event().discard();
    let mut pending: Vec<BoxFuture<'static, BatchResponse>> = Vec::new();
    for message in messages {
        match message {
            Ok(Message::Request(request)) => {
                let id = request.id.clone();
                let client = client.with_audit_event(child_event(client));
                let audit_event = client.audit_event().clone();
                let mode = ResponseMode::Batched;
                let call = legacy::serve(&client, peer, request, buffer_limit, mode);
                pending.push(async move { (Some(id), call.response.await, audit_event) }.boxed());
            }
            Ok(message) => {
                peer.deliver(&message);
            }
            Err(invalid) => {
                if let Some(response) = invalid.as_error_response() {
                    peer.client_requests.complete(response);
                }
                let (audit_event, response) = (child_event(client), ClientResponse::from(invalid));
                pending.push(future::ready((None, Some(response), audit_event)).boxed());
            }
        }
    }
    let buffer_limit = buffer_limit.clone();
    async move {
        let max_reply = buffer_limit.limit;
        let mut reservation = GrowingReservation::new(&buffer_limit.budget);
        let mut responses = stream::iter(pending).buffer_unordered(BATCH_WIDTH);
        let (mut all, mut audit_events) = (Vec::new(), Vec::new());
        while let Some((id, response, audit_event)) = responses.next().await {
            let Some(response) = response else { continue };
            let remaining = max_reply.saturating_sub(all.len());
            let response = match &response.text {
                ResponseBody::Whole(text)
                    if text.len() <= remaining
                        && reservation.grow_to(all.len() + text.len()).is_err() =>
                {
                    ClientResponse::refused(id.as_ref(), &memory_exhausted())
                }
                // The status of a single response does not apply to the batch.
                ResponseBody::Whole(text) if text.len() <= remaining => {
                    ClientResponse { status: StatusCode::OK, ..response }
                }
                _ => {
                    let refused = results::too_large("all upstreams together", max_reply);
                    ClientResponse::refused(id.as_ref(), &refused)
                }
            };
            let ResponseBody::Whole(text) = finish_event(&audit_event, response).text else {
                continue;
            };
            audit_events.push(audit_event);
            all.push(if all.is_empty() { b'[' } else { b',' });
            all.extend_from_slice(&text);
        }
        if all.is_empty() {
            return None;
        }
        all.push(b']');
        // `finish` accounts for the memory from here on.
        drop(reservation);
        let text = match finish(all.into()) {
            Ok(text) => text,
            Err(refused) => {
                for audit_event in &audit_events {
                    finish_event(audit_event, ClientResponse::refused(None, &refused));
                }
                jsonrpc::write_error(None, &refused.error.to_bytes())
            }
        };
        let text = ResponseBody::Whole(text);
        Some(ClientResponse { status: StatusCode::OK, retry_after: None, failure: None, text })
    }
}

/// Response to one message of a batch: the request id, the response, and the audit event it ends.
type BatchResponse = (Option<Id>, Option<ClientResponse>, AuditEvent);

/// Returns an audit event for one message, which ends when the batch is written.
fn child_event(client: &ClientContext) -> AuditEvent {
    let audit_event = client.audit_event().begin_next();
    audit_event.defer_end(true);
    audit_event
}

/// Most requests of a refused batch that get an error each.
const MAX_REFUSED: usize = 1_000;

/// Error: batches do not exist in this revision.
pub(super) fn batches_removed() -> ErrorResponse {
    let text = "batches were removed in revision 2025-06-18: send one message at a time";
    refused(code::INVALID_REQUEST, text.to_owned())
}

fn refused(code: i64, text: String) -> ErrorResponse {
    ErrorResponse::new(StatusCode::BAD_REQUEST, code, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_len(revision: Revision, text: String) -> Result<usize, i64> {
        let messages = read(revision, &text.into());
        messages.map(|messages| messages.len()).map_err(|refused| refused.error.code)
    }

    #[test]
    fn a_batch_is_a_short_array_of_messages_in_the_revisions_that_have_it() {
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let many = |count: usize| format!("[{}]", vec![ping; count].join(","));
        for revision in [Revision::V2024_11_05, Revision::V2025_03_26] {
            assert_eq!(read_len(revision, many(1)), Ok(1));
            assert_eq!(read_len(revision, many(MAX_BATCH)), Ok(MAX_BATCH));
            for bad in [many(0), many(MAX_BATCH + 1), many(1).replace("ping", "initialize")] {
                assert_eq!(read_len(revision, bad), Err(code::INVALID_REQUEST));
            }
            for bad in ["[", "[{}]]", "[1,]"] {
                assert_eq!(read_len(revision, bad.into()), Err(code::PARSE_ERROR), "{bad}");
            }
        }
        for revision in [Revision::V2025_06_18, Revision::V2025_11_25] {
            assert_eq!(read_len(revision, many(1)), Err(code::INVALID_REQUEST));
        }
    }

    #[test]
    fn requests_of_a_refused_batch_get_an_error_each_up_to_a_bound() {
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let batch = |count: usize| Bytes::from(format!("[{}]", vec![ping; count].join(",")));
        let refused = batches_removed();
        let count = |revision, count| refuse(revision, &batch(count), &refused).len();
        assert_eq!(count(Some(Revision::V2025_06_18), 3), 3);
        assert_eq!(count(None, MAX_REFUSED + 1), MAX_REFUSED);
        assert_eq!(count(Some(Revision::V2025_03_26), 3), 1);
        assert_eq!(count(None, 0), 1);
    }

    #[test]
    fn what_is_no_message_fails_alone() {
        let text = Bytes::from_static(b" [[], 7, {\"jsonrpc\":\"2.0\",\"method\":\"n\"}] ");
        let messages = read(Revision::V2025_03_26, &text).expect("a batch");
        let good: Vec<_> = messages.iter().map(Result::is_ok).collect();
        assert_eq!(good, [false, false, true]);
    }
}
