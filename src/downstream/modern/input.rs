//! `input_required`: what an upstream needs from the client before it can answer, and what the client would have
//! to declare for that.
//!
//! Knows nothing of: what becomes of the answers.

use bytes::Bytes;
use hyper::StatusCode;

use super::super::response::Refused;
use super::{INPUT_REQUIRED, own_meta};
use crate::downstream::response::results;
use crate::json::{self, Object};
use crate::mcp;
use crate::mcp::capabilities;
use crate::mcp::input_request::{Abilities, INPUT_REQUESTS, Question, REQUEST_STATE, Subject};
use crate::mcp::revision::Revision;

/// A result that asks `questions`; the answers are to come with `state`, if there is one.
pub(super) fn required(questions: &[Question], state: Option<&str>) -> Bytes {
    let mut requests = Object::new();
    for question in questions {
        let mut request = Object::new();
        request.set("method", json::quote(question.subject.method()));
        request.set("params", question.params.to_bytes());
        requests.set(String::from(&*question.key), request.to_bytes());
    }
    let mut result = Object::new();
    result.set("resultType", INPUT_REQUIRED);
    result.set(INPUT_REQUESTS, requests.to_bytes());
    if let Some(state) = state {
        result.set(REQUEST_STATE, json::quote(state));
    }
    result.set("_meta", own_meta().to_bytes());
    result.to_bytes()
}

/// Whether a result of an upstream's asks for nothing but what its client declared (spec, multi round-trip
/// requests, server requirements: MUST NOT).
pub(super) fn check(result: &Object, abilities: Abilities) -> Result<(), Refused> {
    let broken = |text| Err(results::broken(text));
    let requests = match (result.get_object(INPUT_REQUESTS), result.has(INPUT_REQUESTS)) {
        (Some(requests), _) => requests,
        (None, true) => return broken("the upstream asks for something that cannot be read"),
        (None, false) => return Ok(()),
    };
    let mut lacking: Option<Abilities> = None;
    for key in requests.keys() {
        let Some(question) = Question::read(&requests, key) else {
            return broken("the upstream asks for something that no client knows");
        };
        if let Some(lacks) = abilities.lacks(&question) {
            lacking = Some(lacks.and(lacking.unwrap_or_default()));
        }
    }
    lacking.map_or(Ok(()), |lacking| Err(undeclared(lacking)))
}

/// The refusal of a call whose upstream asks for what the client did not declare.
pub(super) fn undeclared(lacking: Abilities) -> Refused {
    let text = "the upstream needs something from the client that it did not declare";
    missing(text, required_capabilities(lacking))
}

/// The refusal of a request about tasks by a client that did not declare them.
pub(super) fn undeclared_tasks() -> Refused {
    let mut data = Object::new();
    data.set("requiredCapabilities", capabilities::TASKS);
    missing("tasks need an extension that the client did not declare", data.to_bytes())
}

fn missing(text: &str, data: Bytes) -> Refused {
    // Spec, Streamable HTTP: the response status MUST be 400.
    let missing = mcp::code::MISSING_CLIENT_CAPABILITY;
    let mut refused = Refused::new(StatusCode::BAD_REQUEST, missing, text);
    refused.error.data = Some(data);
    refused
}

/// The `data` of an error about capabilities that a client would have to declare.
pub(super) fn required_capabilities(lacking: Abilities) -> Bytes {
    let mut data = Object::new();
    data.set("requiredCapabilities", lacking.declare(Revision::NEWEST).to_bytes());
    data.to_bytes()
}

/// The URLs that a legacy server's error wants its user to visit first (spec 2025-11-25, elicitation, error
/// handling); `None` if there are none that can be asked for.
pub(super) fn visits(error: &Object) -> Option<Vec<Question>> {
    let elicitations = error.get_object("data")?.get_elements("elicitations")?;
    let visit = |(at, params): (usize, Bytes)| {
        let params = Object::parse_again(params).ok()?;
        let key = format!("visit-{}", at + 1).into();
        let visit = Question { key, subject: Subject::Elicitation, params };
        visit.is_visit().then_some(visit)
    };
    let visits: Option<Vec<_>> = elicitations.take(MAX_VISITS + 1).enumerate().map(visit).collect();
    visits.filter(|visits| !visits.is_empty() && visits.len() <= MAX_VISITS)
}

/// How many URLs an error may want to be visited.
const MAX_VISITS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::parse(text.to_owned()).expect("an object")
    }

    #[test]
    fn what_is_asked_passes_byte_for_byte() {
        let params = object(r#"{ "message" : "\u0041", "odd":1e400 }"#);
        let elicitation = Question { key: "q1".into(), subject: Subject::Elicitation, params };
        let roots = Question { key: "q\"2".into(), subject: Subject::Roots, params: Object::new() };
        let meta = format!(r#""_meta":{}"#, String::from_utf8_lossy(&own_meta().to_bytes()));
        let requests = r#""inputRequests":{"q1":{"method":"elicitation/create","params":{ "message" : "\u0041", "odd":1e400 }},"q\"2":{"method":"roots/list","params":{}}}"#;
        let questions = [elicitation, roots];
        assert_eq!(
            required(&questions, Some("s")),
            format!(r#"{{"resultType":"input_required",{requests},"requestState":"s",{meta}}}"#)
        );
        assert_eq!(
            required(&questions, None),
            format!(r#"{{"resultType":"input_required",{requests},{meta}}}"#)
        );
    }

    #[test]
    fn a_client_is_asked_for_what_it_declared() {
        let form = r#"{"method":"elicitation/create","params":{"message":"m"}}"#;
        let url = r#"{"method":"elicitation/create","params":{"mode":"url"}}"#;
        let roots = r#"{"method":"roots/list"}"#;
        let tools = r#"{"method":"sampling/createMessage","params":{"tools":[]}}"#;
        let missing = |capabilities: &str| {
            let data = format!(r#"{{"requiredCapabilities":{capabilities}}}"#);
            Err((-32021, Some(data)))
        };
        for (requests, capabilities, expected) in [
            (r#""requestState":"s""#.to_owned(), "{}", Ok(())),
            (format!(r#""inputRequests":{{"a":{form}}}"#), r#"{"elicitation":{}}"#, Ok(())),
            (
                format!(r#""inputRequests":{{"a":{form},"b":{roots}}}"#),
                r#"{"elicitation":{"url":{}}}"#,
                missing(r#"{"elicitation":{"form":{}},"roots":{}}"#),
            ),
            (
                format!(r#""inputRequests":{{"a":{url}}}"#),
                r#"{"elicitation":{}}"#,
                missing(r#"{"elicitation":{"url":{}}}"#),
            ),
            (
                format!(r#""inputRequests":{{"a":{tools}}}"#),
                r#"{"sampling":{}}"#,
                missing(r#"{"sampling":{"tools":{}}}"#),
            ),
            (r#""inputRequests":{"a":{"method":"x"}}"#.into(), "{}", Err((-32603, None))),
            (r#""inputRequests":{"a":7}"#.into(), "{}", Err((-32603, None))),
            (
                r#""inputRequests":{"a":{"method":"roots/list","params":7}}"#.into(),
                r#"{"roots":{}}"#,
                Err((-32603, None)),
            ),
            (r#""inputRequests":[]"#.into(), "{}", Err((-32603, None))),
        ] {
            let found =
                check(&object(&format!("{{{requests}}}")), Abilities::read(&object(capabilities)));
            let found = found.map_err(|refused| {
                let data = refused.error.data;
                (refused.error.code, data.map(|data| String::from_utf8_lossy(&data).into_owned()))
            });
            assert_eq!(found, expected, "{requests} {capabilities}");
        }
    }

    #[test]
    fn visits_are_read_from_an_error_whole_or_not_at_all() {
        let keys = |data: &str| {
            let visits = visits(&object(&format!(r#"{{"code":-32042,"data":{data}}}"#)));
            visits.map(|visits| visits.into_iter().map(|visit| visit.key).collect::<Vec<_>>())
        };
        let visit = r#"{"mode":"url","url":"https://x.test","message":"m","elicitationId":"e"}"#;
        let two = keys(&format!(r#"{{"elicitations":[{visit},{visit}]}}"#));
        assert_eq!(two, Some(vec!["visit-1".into(), "visit-2".into()]));
        for data in [
            "{}".to_owned(),
            r#"{"elicitations":[]}"#.into(),
            r#"{"elicitations":{}}"#.into(),
            format!(r#"{{"elicitations":[{visit},7]}}"#),
            r#"{"elicitations":[{"mode":"form"}]}"#.into(),
        ] {
            assert_eq!(keys(&data), None, "{data}");
        }
    }
}
