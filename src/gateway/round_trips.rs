//! Asks of a client that has no conversation: what is asked back is a reply, and the answers come with the
//! ask when it is sent again.
//!
//! Between two of the modern era that is the upstream's own affair, and passes untouched. A call to a
//! legacy upstream waits in the parking meanwhile.
//!
//! Promises: the policy runs on every round; a state that is not good is refused before anything is sent, in the
//! same words whatever is wrong with it.
//!
//! Knows nothing of: how a reply that asks is written.

use std::borrow::Cow;

use super::{Asked, Fault, Guest, Went};
use crate::gateway::suspended::table::{Full, Request};
use crate::json::{self, Object};
use crate::jsonrpc;
use crate::mcp::call::{Ask, Caller, Method, Reply};
use crate::mcp::input_request::{Answered, INPUT_RESPONSES, Question, REQUEST_STATE};
use crate::mcp::revision::Era;
use crate::policy::limits::Permit;
use crate::upstream::{self, Status, Upstream};

/// How a round went.
#[derive(Debug)]
pub enum Round {
    /// It was answered.
    Replied(Reply),
    /// Its upstream wants to know something first; the answers are to come with this state.
    Asks {
        /// What has to be answered; each key once.
        questions: Vec<Question>,
        /// Good once.
        state: Box<str>,
    },
}

/// What makes an ask a further round.
struct Retry {
    state: Box<str>,
    responses: Object,
}

impl Guest {
    /// Sends an ask to the upstream that owns the item, or goes on with one that waits for the answers that
    /// this one brings. Dropping the future cancels the call.
    pub async fn ask_in_rounds(
        &self,
        _: &Permit,
        mut ask: Ask,
        caller: Caller,
    ) -> Result<Round, Fault> {
        if ask.method.is_about_a_task() {
            return rounds_over(self.ask_about_task(ask, caller).await?);
        }
        let target = self.find(&ask, caller.revision).await?;
        let upstream = self.generation.upstream(&target.upstream);
        // Which era it speaks is known once it is there.
        let _awake = upstream.awake().await;
        let era = era_of(upstream);
        // Spec 2026-07-28, multi round-trip requests: there are no rounds but in these three.
        let has_rounds = ask.method != Method::Complete;
        let parking = &self.gateway.parking;
        if era == Some(Era::Modern) || !has_rounds {
            // The answers to what a server has asked here reach no other that has the item by now.
            if state_of(&ask.params).is_some_and(|state| parking.has_made(&state)) {
                return Err(bad_state());
            }
            return rounds_over(self.send(&target, ask, caller).await?);
        }
        let retry = Retry::take(&mut ask.params)?;
        let request = Request::of(&ask);
        parking.forget(&self.principal, Asked::is_given_up);
        let went = match retry {
            None => self.send(&target, ask, caller).await?,
            Some(Retry { state, responses }) => {
                // Whose state it is cannot be told of an upstream that is not there.
                if era.is_none() && !parking.knows(&state) {
                    let cause = upstream::Error::Unavailable("it is not there".into());
                    return Err(super::upstream_error(&target.upstream, cause));
                }
                let read = |asked: &Asked| match *asked.upstream() == target.upstream {
                    true => answers(asked.questions(), &responses),
                    false => Err(bad_state()),
                };
                // First, so that nothing is taken whose answers cannot be recorded.
                if parking.waits_for(&self.principal, &request, &state) {
                    self.record_sending().await?;
                }
                let taken = parking.take(&self.principal, &request, &state, read);
                let (asked, answers) = taken.ok_or_else(bad_state)??;
                asked.recorded(&self.record).answer(answers, caller).await?
            }
        };
        match went {
            Went::Replied(reply) => Ok(Round::Replied(reply)),
            Went::Asks(asked) => {
                let questions = asked.questions().to_vec();
                // What was given up for this one leaves its place to it.
                parking.forget(&self.principal, Asked::is_given_up);
                let state = parking.park(&self.principal, request, asked);
                let state = state.map_err(|Full| Fault::TooManyWaiting)?;
                Ok(Round::Asks { questions, state })
            }
        }
    }
}

/// What came of an ask that has no further rounds.
fn rounds_over(went: Went) -> Result<Round, Fault> {
    match went {
        Went::Replied(reply) => Ok(Round::Replied(reply)),
        Went::Asks(asked) => Err(Fault::Upstream {
            upstream: asked.upstream().clone(),
            cause: upstream::Error::Protocol("it asks where it must not".into()),
        }),
    }
}

impl Retry {
    /// Takes what belongs to a retry out of `params`; `None` without a state: then the ask is a new one,
    /// whatever answers it brings.
    fn take(params: &mut Object) -> Result<Option<Self>, Fault> {
        let (state, responses) = (params.take(REQUEST_STATE), params.take(INPUT_RESPONSES));
        let Some(state) = state else { return Ok(None) };
        let state = std::str::from_utf8(&state).ok().and_then(json::decode_string);
        let state = state.ok_or_else(|| bad("`requestState` must be a string"))?;
        if state.len() > MAX_STATE_BYTES {
            return Err(bad_state());
        }
        let responses = match responses {
            None => Object::new(),
            Some(responses) => Object::parse_within(responses, usize::MAX)
                .map_err(|malformed| bad(malformed.in_member(INPUT_RESPONSES)))?,
        };
        Ok(Some(Self { state: (*state).into(), responses }))
    }
}

/// The answers to `questions`. What was not asked is ignored; what is missing will be asked again (spec, multi
/// round-trip requests, error handling).
fn answers(questions: &[Question], responses: &Object) -> Result<Vec<Answered>, Fault> {
    let answered = questions.iter().filter_map(|question| {
        let response = responses.get_bytes(&question.key)?;
        Some(match response.starts_with(b"{") {
            true => {
                let outcome = jsonrpc::Outcome::Result(response);
                Ok(Answered { key: question.key.clone(), outcome })
            }
            false => Err(bad("each of `inputResponses` must be an object")),
        })
    });
    answered.collect()
}

/// The state that an ask brings, if it is one.
pub(super) fn state_of(params: &Object) -> Option<Cow<'_, str>> {
    params.get_string(REQUEST_STATE)
}

/// What is spoken with an upstream; `None` while it is not there.
fn era_of(upstream: &Upstream) -> Option<Era> {
    match &*upstream.status().borrow() {
        Status::Up(about) => Some(about.era()),
        _ => None,
    }
}

fn bad(text: impl Into<String>) -> Fault {
    Fault::Request(text.into())
}

/// One text for all that can be wrong with a state.
fn bad_state() -> Fault {
    bad("`requestState` is not good, or not any more: send the request without it to begin anew")
}

/// The longest state that is looked up: those that are made here are much shorter.
const MAX_STATE_BYTES: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::input_request::Subject;

    fn object(text: &'static str) -> Object {
        Object::parse(text).expect(text)
    }

    #[test]
    fn a_retry_is_told_by_its_state() {
        let state = |text| {
            let retry = Retry::take(&mut object(text));
            retry.map(|retry| retry.map(|retry| retry.state)).map_err(|fault| fault.to_string())
        };
        assert_eq!(state("{}"), Ok(None));
        assert_eq!(state(r#"{"inputResponses":{"a":{}}}"#), Ok(None));
        assert_eq!(state(r#"{"inputResponses":7}"#), Ok(None));
        assert_eq!(state(r#"{"requestState":"\u0041"}"#), Ok(Some("A".into())));
        let no_string = Err("`requestState` must be a string".to_owned());
        assert_eq!(state(r#"{"requestState":null}"#), no_string);
        assert_eq!(state(r#"{"requestState":7}"#), no_string);
        let long = |bytes: usize| format!(r#"{{"requestState":"{}"}}"#, "a".repeat(bytes)).leak();
        assert_eq!(state(long(MAX_STATE_BYTES)), Ok(Some("a".repeat(MAX_STATE_BYTES).into())));
        assert_eq!(state(long(MAX_STATE_BYTES + 1)), Err(bad_state().to_string()));
        let no_object = Err("`inputResponses` must be an object".to_owned());
        assert_eq!(state(r#"{"requestState":"s","inputResponses":[]}"#), no_object);
    }

    #[test]
    fn what_belongs_to_a_retry_is_taken_out() {
        let mut params = object(r#"{"name":"x","inputResponses":{},"requestState":"s"}"#);
        assert!(Retry::take(&mut params).is_ok_and(|retry| retry.is_some()));
        assert_eq!(params.to_bytes(), r#"{"name":"x"}"#);
    }

    #[test]
    fn answers_are_those_to_what_was_asked() {
        let questions = ["a", "b"].map(|key| Question {
            key: key.into(),
            subject: Subject::Roots,
            params: Object::new(),
        });
        let answers = |text| {
            let answers = super::answers(&questions, &object(text)).ok()?;
            let text = |answered: Answered| match answered.outcome {
                jsonrpc::Outcome::Result(result) => format!("{}={result:?}", answered.key),
                jsonrpc::Outcome::Error(_) => "error".into(),
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
