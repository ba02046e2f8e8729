//! A call to a modern server whose client cannot answer in a retry of its own: Weir asks, and sends the call
//! once more with the answers.
//!
//! Promises: the state goes back byte for byte; nothing but what the client declared is asked; the rounds are
//! bounded.
//!
//! Knows nothing of: how a call is sent, and how the client is asked.

use std::time::Duration;

use bytes::Bytes;

use crate::json::Object;
use crate::jsonrpc;
use crate::mcp::call::{Body, Call, Method, Outcome, Reply};
use crate::mcp::input_request::{
    INPUT_REQUESTS, INPUT_RESPONSES, Question, REQUEST_STATE, Subject,
};
use crate::mcp::revision::Era;
use crate::upstream::input_requests::{Given, MAX_OPEN, Questions, Unasked};
use crate::upstream::message::Failure;

/// How many times a call is sent once more.
const MAX_ROUNDS: usize = 8;

/// Pauses before a call is sent once more that asked for nothing but that.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The members of `params` that belong to a retry.
pub(crate) const RETRY_MEMBERS: [&str; 2] = [INPUT_RESPONSES, REQUEST_STATE];

/// What a server needs before it can go on.
#[derive(Debug)]
struct Needed {
    questions: Vec<Question>,
    /// Goes back as it came; `None` where none came.
    state: Option<Bytes>,
}

/// Sends a call until it is answered with anything but questions.
pub(crate) async fn run<F>(
    call: &Call,
    questions: &Questions,
    send: impl Fn(Call) -> F,
) -> Result<Reply, Failure>
where
    F: Future<Output = Result<Reply, Failure>>,
{
    let mut first = call.clone();
    for member in RETRY_MEMBERS {
        first.params.take(member);
    }
    let mut next = first.clone();
    let mut pause = FIRST_PAUSE;
    for round in 0.. {
        let reply = send(next).await.map_err(|failure| match failure {
            // To begin again would run its first part once more, and ask its user again.
            Failure::Stale(reason) if round > 0 => Failure::Broke(reason),
            failure => failure,
        })?;
        let Some(needed) = read(&reply).map_err(Failure::Protocol)? else { return Ok(reply) };
        // spec 2026-07-28, multi round-trip requests: MUST NOT on any other request.
        if call.method == Method::Complete {
            return Err(Failure::Protocol("it wants input for a completion".into()));
        }
        if round == MAX_ROUNDS {
            break;
        }
        next = first.clone();
        call.caller.notes.begin_round();
        if let Some(state) = needed.state {
            next.params.set(REQUEST_STATE, state);
        }
        if needed.questions.is_empty() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            continue;
        }
        questions.put_all(needed.questions).map_err(|unasked| match unasked {
            Unasked::Undeclared(lacking) => Failure::Undeclared(lacking),
            Unasked::NoRoom => Failure::Crowded,
        })?;
        let mut responses = Object::new();
        for given in questions.all_answered().await {
            match response(&given) {
                Ok(response) => responses.set(String::from(&*given.key), response),
                Err(error) => {
                    let outcome = Outcome::Error(error);
                    return Ok(Reply { era: Era::Legacy, scope: None, outcome });
                }
            }
        }
        next.params.set(INPUT_RESPONSES, responses.to_bytes());
    }
    Err(Failure::Protocol(format!("it still wants input after {MAX_ROUNDS} rounds")))
}

/// Reads what a reply asks for, if it does.
fn read(reply: &Reply) -> Result<Option<Needed>, String> {
    // What cannot be read is for whoever hands it on.
    let Outcome::Result(Body::Read(result)) = &reply.outcome else { return Ok(None) };
    if result.get_string("resultType").as_deref() != Some("input_required") {
        return Ok(None);
    }
    let state = result.get_bytes(REQUEST_STATE);
    if state.as_ref().is_some_and(|state| !state.starts_with(b"\"")) {
        return Err("its `requestState` is no string".into());
    }
    let questions = match (result.get_object(INPUT_REQUESTS), result.has(INPUT_REQUESTS)) {
        (Some(requests), _) => requests
            .keys()
            .map(|key| Question::read(&requests, key))
            .collect::<Option<Vec<_>>>()
            .ok_or("it wants input that no client knows")?,
        (None, true) => return Err("its `inputRequests` is no object".into()),
        (None, false) => Vec::new(),
    };
    if questions.len() > MAX_OPEN {
        return Err(format!("it asks more than {MAX_OPEN} questions at once"));
    }
    // spec, server requirements: at least one of the two.
    if questions.is_empty() && state.is_none() {
        return Err("it wants input and does not say which".into());
    }
    Ok(Some(Needed { questions, state }))
}

/// What stands for an answer in a retry, which holds results only; `Err` is an error that ends the call.
fn response(given: &Given) -> Result<Bytes, Bytes> {
    match (&given.outcome, given.subject) {
        (jsonrpc::Outcome::Result(result), _) => Ok(result.clone()),
        // A user who cannot be asked has not decided.
        (jsonrpc::Outcome::Error(_), Subject::Elicitation) => {
            Ok(Bytes::from_static(b"{\"action\":\"cancel\"}"))
        }
        (jsonrpc::Outcome::Error(error), _) => Err(error.clone()),
    }
}
