//! Multi round-trip requests of modern clients: input requests are part of a response, and the
//! client's responses come with the request when it is sent again.
//!
//! A modern upstream handles the rounds itself, and they pass unchanged. A call to a legacy
//! upstream is suspended between the rounds.
//!
//! Invariants: the policy is checked in every round; an invalid state is rejected before anything
//! is sent, with the same error whatever is wrong with it.
//!
//! Decision: docs/decisions/0009-mid-call-input.md

use std::borrow::Cow;

use super::config_snapshot::era_of;
use super::error::upstream_error;
use super::suspended::{RequestKey, TableFull};
use super::{Admission, ClientContext, Error, PreparedRequest, ResolvedItem, SuspendedRequest};
use weir_base::json::{self, Object};
use weir_mcp::call::{CallContext, CallOutcome, ItemRequest, Method};
use weir_mcp::input_request::{INPUT_RESPONSES, InputRequest, InputResponse, REQUEST_STATE};
use weir_mcp::jsonrpc;
use weir_mcp::revision::Era;
use weir_upstream::{self as upstream, KeepAliveGuard};

/// Input that a modern client is asked for: it sends the request again with the responses and this
/// state.
#[derive(Debug)]
pub struct PendingInput {
    /// The open input requests; each key once.
    pub input_requests: Vec<InputRequest>,
    /// Opaque `requestState`; can be redeemed exactly once.
    pub state: Box<str>,
}

/// The members that make a request a further round.
struct Retry {
    state: Box<str>,
    responses: Object,
}

/// Sends a request of a modern client to the upstream that owns the item, or resumes the suspended
/// call that waits for this request's input responses. Dropping the future cancels the call.
pub async fn send_in_rounds(
    client: &ClientContext,
    admission: &Admission,
    item: ResolvedItem,
    request: ItemRequest,
    context: Box<CallContext>,
) -> Result<CallOutcome<PendingInput>, Error> {
    // Spec 2026-07-28, multi round-trip requests: only the other three methods have rounds.
    if request.method.is_task_method() {
        let prepared = PreparedRequest::check(client, item, request)?;
        return final_response(prepared.send(admission, context).await?);
    }
    // A stopped server is not started for a bad request. An error about the state of a retry comes
    // first, and only the server's era says whose state it is.
    if request.params.has(REQUEST_STATE) {
        // Boxed, because every request would have the space of this rare path.
        return Box::pin(retry(client, admission, item, request, context)).await;
    }
    let mut prepared = PreparedRequest::check(client, item, request)?;
    let (_awake, era) = start(client, prepared.item()).await;
    if passes_rounds(era, prepared.request().method) {
        return final_response(prepared.send(admission, context).await?);
    }
    // Without a state, input responses have no effect.
    prepared.take_input_responses();
    let request_key = RequestKey::of(prepared.request());
    client.gateway.suspended.remove_if(&client.principal, SuspendedRequest::is_given_up);
    let outcome = prepared.send(admission, context).await?;
    suspend(client, request_key, outcome)
}

/// Sends a request with a `requestState`: a further round at a modern server, and else the
/// responses that a suspended call waits for.
async fn retry(
    client: &ClientContext,
    admission: &Admission,
    item: ResolvedItem,
    mut request: ItemRequest,
    context: Box<CallContext>,
) -> Result<CallOutcome<PendingInput>, Error> {
    let (_awake, era) = start(client, &item).await;
    let suspended = &client.gateway.suspended;
    if passes_rounds(era, request.method) {
        // Input responses for a legacy server must not reach another server that has taken over the
        // item's name.
        if state_of(&request.params).is_some_and(|state| suspended.issued_here(&state)) {
            return Err(bad_state());
        }
        let prepared = PreparedRequest::check(client, item, request)?;
        return final_response(prepared.send(admission, context).await?);
    }
    let retry = Retry::take(&mut request.params)?;
    let request_key = RequestKey::of(&request);
    suspended.remove_if(&client.principal, SuspendedRequest::is_given_up);
    let outcome = resume(client, &item, &request_key, retry, era, context).await?;
    suspend(client, request_key, outcome)
}

/// Starts the upstream of an item, and keeps it running until the guard is dropped. Its era is
/// known once it is connected.
async fn start(client: &ClientContext, item: &ResolvedItem) -> (KeepAliveGuard, Option<Era>) {
    let upstream = client.config.upstream(&item.upstream);
    let awake = upstream.start_and_keep_alive().await;
    (awake, era_of(upstream))
}

/// Returns whether rounds pass through to the server: modern servers have rounds of their own, and
/// completions have none.
fn passes_rounds(era: Option<Era>, method: Method) -> bool {
    era == Some(Era::Modern) || method == Method::Complete
}

/// Resumes the suspended call that the state of a retry redeems.
async fn resume(
    client: &ClientContext,
    item: &ResolvedItem,
    request_key: &RequestKey,
    Retry { state, responses }: Retry,
    era: Option<Era>,
    context: Box<CallContext>,
) -> Result<CallOutcome<SuspendedRequest>, Error> {
    let suspended = &client.gateway.suspended;
    // While the upstream is not connected, an unknown state may be its own.
    if era.is_none() && !suspended.contains(&state) {
        let cause = upstream::Error::Unavailable("it is not connected".into());
        return Err(upstream_error(&item.upstream, cause));
    }
    let read = |call: &SuspendedRequest| match *call.upstream() == item.upstream {
        true => input_responses(call.input_requests(), &responses),
        false => Err(bad_state()),
    };
    // Recorded before the state is redeemed, so that it stays valid if auditing fails.
    if suspended.can_take(&client.principal, request_key, &state) {
        client.record_sending().await?;
    }
    let taken = suspended.take(&client.principal, request_key, &state, read);
    let (call, responses) = taken.ok_or_else(bad_state)??;
    call.with_audit_event(&client.audit_event).resume(responses, *context).await
}

/// Suspends a call whose upstream needs input until the client sends the request again.
fn suspend(
    client: &ClientContext,
    request_key: RequestKey,
    outcome: CallOutcome<SuspendedRequest>,
) -> Result<CallOutcome<PendingInput>, Error> {
    let call = match outcome {
        CallOutcome::Response(response) => return Ok(CallOutcome::Response(response)),
        CallOutcome::InputRequired(call) => call,
    };
    let suspended = &client.gateway.suspended;
    let input_requests = call.input_requests().to_vec();
    // A call that was cancelled in favor of this one frees its place.
    suspended.remove_if(&client.principal, SuspendedRequest::is_given_up);
    let state = suspended.insert(&client.principal, request_key, call);
    let state = state.map_err(|TableFull| Error::TooManySuspended)?;
    Ok(CallOutcome::InputRequired(PendingInput { input_requests, state }))
}

/// Outcome of a request that cannot have further rounds.
fn final_response(
    outcome: CallOutcome<SuspendedRequest>,
) -> Result<CallOutcome<PendingInput>, Error> {
    match outcome {
        CallOutcome::Response(response) => Ok(CallOutcome::Response(response)),
        CallOutcome::InputRequired(call) => Err(Error::Upstream {
            upstream: call.upstream().clone(),
            cause: upstream::Error::Protocol(
                "it requests input in a method without input requests".into(),
            ),
        }),
    }
}

impl Retry {
    /// Removes the members of a retry from `params`, which have a state.
    fn take(params: &mut Object) -> Result<Self, Error> {
        let (state, responses) = (params.take(REQUEST_STATE), params.take(INPUT_RESPONSES));
        let state = state.as_ref().and_then(|state| json::decode_bytes(state));
        let state = state.ok_or_else(|| bad("`requestState` must be a string"))?;
        if state.len() > MAX_STATE_BYTES {
            return Err(bad_state());
        }
        let responses = match responses {
            None => Object::new(),
            Some(responses) => Object::parse_within(responses, usize::MAX)
                .map_err(|malformed| bad(malformed.in_member(INPUT_RESPONSES)))?,
        };
        Ok(Self { state: (*state).into(), responses })
    }
}

/// The responses to `input_requests`. Unexpected ones are ignored; missing ones will be requested
/// again (spec, multi round-trip requests, error handling).
fn input_responses(
    input_requests: &[InputRequest],
    responses: &Object,
) -> Result<Vec<InputResponse>, Error> {
    let found = input_requests.iter().filter_map(|request| {
        let response = responses.get_bytes(&request.key)?;
        Some(match response.starts_with(b"{") {
            true => {
                let outcome = jsonrpc::ResponsePayload::Result(response);
                Ok(InputResponse { key: request.key.clone(), outcome })
            }
            false => Err(bad("each of `inputResponses` must be an object")),
        })
    });
    found.collect()
}

/// The `requestState` of a request, if it has one.
fn state_of(params: &Object) -> Option<Cow<'_, str>> {
    params.get_string(REQUEST_STATE)
}

fn bad(text: impl Into<String>) -> Error {
    Error::Request(text.into())
}

/// Error for every invalid state, without the reason, so that the client learns nothing from it.
fn bad_state() -> Error {
    bad("`requestState` is unknown, expired or already used: \
         send the request without it to start over")
}

/// The longest state that is looked up; states issued here are much shorter.
const MAX_STATE_BYTES: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use weir_mcp::input_request::InputKind;

    fn object(text: &'static str) -> Object {
        Object::parse(text).expect(text)
    }

    #[test]
    fn a_retry_is_told_by_its_state() {
        let state = |text| {
            let retry = Retry::take(&mut object(text));
            retry.map(|retry| retry.state).map_err(|fault| fault.to_string())
        };
        assert_eq!(state(r#"{"requestState":"\u0041"}"#), Ok("A".into()));
        let no_string = Err("`requestState` must be a string".to_owned());
        assert_eq!(state(r#"{"requestState":null}"#), no_string);
        assert_eq!(state(r#"{"requestState":7}"#), no_string);
        let long = |bytes: usize| format!(r#"{{"requestState":"{}"}}"#, "a".repeat(bytes)).leak();
        assert_eq!(state(long(MAX_STATE_BYTES)), Ok("a".repeat(MAX_STATE_BYTES).into()));
        assert_eq!(state(long(MAX_STATE_BYTES + 1)), Err(bad_state().to_string()));
        let no_object = Err("`inputResponses` must be an object".to_owned());
        assert_eq!(state(r#"{"requestState":"s","inputResponses":[]}"#), no_object);
    }

    #[test]
    fn what_belongs_to_a_retry_is_taken_out() {
        let mut params = object(r#"{"name":"x","inputResponses":{},"requestState":"s"}"#);
        assert!(Retry::take(&mut params).is_ok());
        assert_eq!(params.to_bytes(), r#"{"name":"x"}"#);
    }

    #[test]
    fn answers_are_those_to_what_was_asked() {
        let input_requests = ["a", "b"].map(|key| InputRequest {
            key: key.into(),
            kind: InputKind::Roots,
            params: Object::new(),
        });
        let answers = |text| {
            let answers = super::input_responses(&input_requests, &object(text)).ok()?;
            let text = |answered: InputResponse| match answered.outcome {
                jsonrpc::ResponsePayload::Result(result) => format!("{}={result:?}", answered.key),
                jsonrpc::ResponsePayload::Error(_) => "error".into(),
            };
            Some(answers.into_iter().map(text).collect::<Vec<_>>().join(" "))
        };
        let both = r#"{"b":{ "x" : 1.0 },"c":7,"a":{}}"#;
        assert_eq!(answers(both), Some(r#"a=b"{}" b=b"{ \"x\" : 1.0 }""#.into()));
        assert_eq!(answers(r#"{"b":{}}"#), Some(r#"b=b"{}""#.into()));
        assert_eq!(answers("{}"), Some(String::new()));
        assert_eq!(answers(r#"{"a":null}"#), None);
        assert_eq!(answers(r#"{"a":[]}"#), None);
    }
}
