//! Retries of a call to a modern server whose client cannot retry itself: Weir sends the input
//! requests to the client, and the call once more with the responses.
//!
//! Invariants: `requestState` is returned byte for byte; only input requests for features that the
//! client declared are sent to it; the number of retries is bounded.

use std::time::Duration;

use bytes::Bytes;

use crate::input_requests::{InputRequests, MAX_OPEN, SubmittedResponse};
use crate::message::{SIGN_IN_REPLACED, TransportError};
use weir_base::json::Object;
use weir_base::time::backoff::Backoff;
use weir_mcp::call::{Method, Payload, ResponseOutcome, UpstreamRequest, UpstreamResponse};
use weir_mcp::input_request::{
    INPUT_REQUESTS, INPUT_RESPONSES, InputKind, InputRequest, REQUEST_STATE,
};
use weir_mcp::jsonrpc;
use weir_mcp::revision::Era;

/// Maximum number of retries of a call.
const MAX_RETRIES: usize = 8;

/// Pauses before a call is retried whose server requested nothing but the retry.
const RETRY_PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Members of `params` that belong to a retry.
pub(crate) const RETRY_MEMBERS: [&str; 2] = [INPUT_RESPONSES, REQUEST_STATE];

/// Input that a server needs before it can continue.
#[derive(Debug)]
struct InputNeeded {
    input_requests: Vec<InputRequest>,
    /// Returned unchanged; `None` where the server sent none.
    state: Option<Bytes>,
}

/// Sends a call until the response is anything but `input_required`.
pub(crate) async fn send_with_retries<F>(
    call: &UpstreamRequest,
    input_requests: &InputRequests,
    send: impl Fn(UpstreamRequest) -> F,
) -> Result<UpstreamResponse, TransportError>
where
    F: Future<Output = Result<UpstreamResponse, TransportError>>,
{
    let mut first = call.clone();
    for member in RETRY_MEMBERS {
        first.params.take(member);
    }
    let mut next = first.clone();
    let mut backoff = RETRY_PAUSES;
    for round in 0.. {
        let response = send(next).await.map_err(|failure| match failure {
            // A call that starts anew would execute its first part once more, and ask its user
            // again.
            TransportError::SessionLost(reason) if round > 0 => {
                TransportError::ConnectionLost(reason)
            }
            TransportError::SignInReplaced if round > 0 => {
                TransportError::ConnectionLost(SIGN_IN_REPLACED.into())
            }
            failure => failure,
        })?;
        let Some(needed) = input_needed(&response).map_err(TransportError::Protocol)? else {
            return Ok(response);
        };
        // spec 2026-07-28, multi round-trip requests: MUST NOT on any other request.
        if call.method == Method::Complete {
            return Err(TransportError::Protocol("it requests input for a completion".into()));
        }
        if round == MAX_RETRIES {
            break;
        }
        next = first.clone();
        call.caller.notifications.begin_request();
        if let Some(state) = needed.state {
            next.params.set(REQUEST_STATE, state);
        }
        if needed.input_requests.is_empty() {
            tokio::time::sleep(backoff.next_pause()).await;
            continue;
        }
        input_requests.add_all(needed.input_requests).map_err(TransportError::Other)?;
        let mut responses = Object::new();
        for submitted in input_requests.all_responses().await {
            match retry_response(&submitted) {
                Ok(response) => responses.set(String::from(&*submitted.key), response),
                Err(error) => {
                    let outcome = ResponseOutcome::Error(error);
                    return Ok(UpstreamResponse { era: Era::Legacy, scope: None, outcome });
                }
            }
        }
        next.params.set(INPUT_RESPONSES, responses.to_bytes());
    }
    Err(TransportError::Protocol(format!("it still requests input after {MAX_RETRIES} retries")))
}

/// Reads the input requests of a response, if it has any.
fn input_needed(response: &UpstreamResponse) -> Result<Option<InputNeeded>, String> {
    // A response that was not parsed is passed on unchanged.
    let ResponseOutcome::Result(Payload::Parsed(result)) = &response.outcome else {
        return Ok(None);
    };
    if result.get_string("resultType").as_deref() != Some("input_required") {
        return Ok(None);
    }
    let state = result.get_bytes(REQUEST_STATE);
    if state.as_ref().is_some_and(|state| !state.starts_with(b"\"")) {
        return Err("its `requestState` is not a string".into());
    }
    let input_requests = match (result.get_object(INPUT_REQUESTS), result.has(INPUT_REQUESTS)) {
        (Some(requests), _) => requests
            .keys()
            .map(|key| InputRequest::read(&requests, key))
            .collect::<Option<Vec<_>>>()
            .ok_or("it requests input of an unknown kind")?,
        (None, true) => return Err("its `inputRequests` is not an object".into()),
        (None, false) => Vec::new(),
    };
    if input_requests.len() > MAX_OPEN {
        return Err(format!("it sends more than {MAX_OPEN} input requests at once"));
    }
    // spec, server requirements: at least one of the two.
    if input_requests.is_empty() && state.is_none() {
        return Err("it requires input without an input request or a state".into());
    }
    Ok(Some(InputNeeded { input_requests, state }))
}

/// Converts the client's response for a retry, which can carry results only; `Err` is an error
/// object that ends the call.
fn retry_response(submitted: &SubmittedResponse) -> Result<Bytes, Bytes> {
    match (&submitted.outcome, submitted.kind) {
        (jsonrpc::ResponsePayload::Result(result), _) => Ok(result.clone()),
        // A user who could not be asked has not decided.
        (jsonrpc::ResponsePayload::Error(_), InputKind::Elicitation) => {
            Ok(Bytes::from_static(b"{\"action\":\"cancel\"}"))
        }
        (jsonrpc::ResponsePayload::Error(error), _) => Err(error.clone()),
    }
}
