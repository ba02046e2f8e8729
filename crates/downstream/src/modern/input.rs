//! `input_required` results: input that an upstream needs from the client, and the capabilities
//! that the client would have to declare for it.

use bytes::Bytes;
use hyper::StatusCode;

use super::super::response::ErrorResponse;
use super::{INPUT_REQUIRED, own_meta};
use crate::response::results;
use weir_base::json::{self, Object};
use weir_mcp as mcp;
use weir_mcp::capabilities;
use weir_mcp::input_request::{
    ClientFeatures, INPUT_REQUESTS, InputKind, InputRequest, REQUEST_STATE,
};
use weir_mcp::revision::Revision;

/// Builds a result with these input requests; the client sends its responses with `state`, if there
/// is one.
pub(super) fn required(input_requests: &[InputRequest], state: Option<&str>) -> Bytes {
    let mut requests = Object::new();
    for input_request in input_requests {
        let request = Object::new()
            .with("method", json::quote(input_request.kind.method()))
            .with("params", input_request.params.to_bytes());
        requests.set(String::from(&*input_request.key), request.to_bytes());
    }
    let mut result =
        Object::new().with("resultType", INPUT_REQUIRED).with(INPUT_REQUESTS, requests.to_bytes());
    if let Some(state) = state {
        result.set(REQUEST_STATE, json::quote(state));
    }
    result.set("_meta", own_meta().to_bytes());
    result.to_bytes()
}

/// Checks that an upstream's result requests only what its client declared (spec, multi round-trip
/// requests, server requirements: MUST NOT).
pub(super) fn check(result: &Object, features: ClientFeatures) -> Result<(), ErrorResponse> {
    let broken = |text| Err(results::internal_error(text));
    let requests = match (result.get_object(INPUT_REQUESTS), result.has(INPUT_REQUESTS)) {
        (Some(requests), _) => requests,
        (None, true) => return broken("the upstream's input requests cannot be read"),
        (None, false) => return Ok(()),
    };
    let mut missing_features: Option<ClientFeatures> = None;
    for key in requests.keys() {
        let Some(input_request) = InputRequest::read(&requests, key) else {
            return broken("the upstream sent an unknown input request");
        };
        if let Some(lacks) = features.missing_for(&input_request) {
            missing_features = Some(lacks.and(missing_features.unwrap_or_default()));
        }
    }
    missing_features.map_or(Ok(()), |missing_features| Err(undeclared(missing_features)))
}

/// Error: the upstream requests a feature that the client did not declare.
pub(super) fn undeclared(missing_features: ClientFeatures) -> ErrorResponse {
    let text = "the upstream needs a capability that the client did not declare";
    missing(text, required_capabilities(missing_features))
}

/// Error: the client did not declare the tasks extension.
pub(super) fn undeclared_tasks() -> ErrorResponse {
    let data = Object::new().with("requiredCapabilities", capabilities::TASKS);
    missing("tasks need an extension that the client did not declare", data.to_bytes())
}

fn missing(text: &str, data: Bytes) -> ErrorResponse {
    // Spec, Streamable HTTP: the response status MUST be 400.
    let missing = mcp::code::MISSING_CLIENT_CAPABILITY;
    let mut refused = ErrorResponse::new(StatusCode::BAD_REQUEST, missing, text);
    refused.error.data = Some(data);
    refused
}

/// Builds the `data` of an error about missing client capabilities.
pub(super) fn required_capabilities(missing_features: ClientFeatures) -> Bytes {
    let missing_features = missing_features.declare(Revision::NEWEST).to_bytes();
    Object::new().with("requiredCapabilities", missing_features).to_bytes()
}

/// Returns the URL elicitations of a legacy server's error (spec 2025-11-25, elicitation, error
/// handling); `None` if there are none or one is invalid.
pub(super) fn url_elicitations(error: &Object) -> Option<Vec<InputRequest>> {
    let elicitations = error.get_object("data")?.get_elements("elicitations")?;
    let visit = |(at, params): (usize, Bytes)| {
        let params = Object::parse_trusted(params).ok()?;
        let key = format!("visit-{}", at + 1).into();
        let visit = InputRequest { key, kind: InputKind::Elicitation, params };
        visit.is_url_elicitation().then_some(visit)
    };
    let visits: Option<Vec<_>> =
        elicitations.take(MAX_URL_ELICITATIONS + 1).enumerate().map(visit).collect();
    visits.filter(|visits| !visits.is_empty() && visits.len() <= MAX_URL_ELICITATIONS)
}

/// Largest number of URL elicitations in one error.
const MAX_URL_ELICITATIONS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::parse(text.to_owned()).expect("an object")
    }

    #[test]
    fn what_is_asked_passes_byte_for_byte() {
        let params = object(r#"{ "message" : "\u0041", "odd":1e400 }"#);
        let elicitation = InputRequest { key: "q1".into(), kind: InputKind::Elicitation, params };
        let roots =
            InputRequest { key: "q\"2".into(), kind: InputKind::Roots, params: Object::new() };
        let meta = format!(r#""_meta":{}"#, String::from_utf8_lossy(&own_meta().to_bytes()));
        let requests = r#""inputRequests":{"q1":{"method":"elicitation/create","params":{ "message" : "\u0041", "odd":1e400 }},"q\"2":{"method":"roots/list","params":{}}}"#;
        let input_requests = [elicitation, roots];
        assert_eq!(
            required(&input_requests, Some("s")),
            format!(r#"{{"resultType":"input_required",{requests},"requestState":"s",{meta}}}"#)
        );
        assert_eq!(
            required(&input_requests, None),
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
            let found = check(
                &object(&format!("{{{requests}}}")),
                ClientFeatures::read(&object(capabilities)),
            );
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
            let visits = url_elicitations(&object(&format!(r#"{{"code":-32042,"data":{data}}}"#)));
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
