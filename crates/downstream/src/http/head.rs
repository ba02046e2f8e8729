//! Validation of a request head, before the body is read. Host and Origin are checked in
//! `host_check`.

use hyper::StatusCode;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING,
};

use crate::host_check::single_value;
use crate::response::ResponseMode;
use weir_access::policy::Credentials;

/// Parses the credentials; `None` if the header is anything else than one bearer token.
pub(super) fn credentials(headers: &HeaderMap) -> Option<Credentials<'_>> {
    if !headers.contains_key(AUTHORIZATION) {
        return Some(Credentials::None);
    }
    let (scheme, token) = single_value(headers, &AUTHORIZATION)?.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
        .then_some(Credentials::Bearer(token))
}

/// Refuses a Transfer-Encoding other than a single chunked. hyper looks at the last coding only,
/// and would take the others for content.
pub(super) fn check_transfer(headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
    let values =
        headers.get_all(TRANSFER_ENCODING).iter().map(|it| it.to_str().unwrap_or_default());
    let codings: Vec<_> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
    let is_chunked = |coding: &&str| coding.eq_ignore_ascii_case("chunked");
    match codings.as_slice() {
        [] => Ok(()),
        [coding] if is_chunked(coding) => Ok(()),
        // RFC 9112, 6.1: chunked MUST NOT be applied more than once; an unknown coding SHOULD get
        // 501.
        codings if codings.iter().all(is_chunked) => {
            Err((StatusCode::BAD_REQUEST, "the Transfer-Encoding must be chunked, once"))
        }
        _ => Err((StatusCode::NOT_IMPLEMENTED, "only Transfer-Encoding: chunked is supported")),
    }
}

/// Forms of a response that a client accepts; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AcceptedForms {
    /// One JSON text, however long it takes: nothing can be sent before it.
    Json,
    /// An event stream, also for a response that is ready at once.
    EventStream,
    Both,
}

impl AcceptedForms {
    /// Delivery of a response in a body of its own.
    pub(super) fn mode(self) -> ResponseMode {
        match self {
            Self::Json => ResponseMode::OwnText,
            Self::EventStream | Self::Both => ResponseMode::OwnStream,
        }
    }
}

/// Refuses a body that is not plain JSON, and a client that accepts neither form of a response.
/// Returns the accepted forms, which are known before anything is sent to an upstream.
pub(super) fn check_post(headers: &HeaderMap) -> Result<AcceptedForms, (StatusCode, &'static str)> {
    check_body(headers)?;
    if single_value(headers, &ACCEPT) == Some(USUAL) {
        return Ok(AcceptedForms::Both);
    }
    match (accepts(headers, JSON), accepts(headers, EVENT_STREAM)) {
        (true, true) => Ok(AcceptedForms::Both),
        (true, false) => Ok(AcceptedForms::Json),
        (false, true) => Ok(AcceptedForms::EventStream),
        (false, false) => {
            let text = "the Accept header must list application/json, text/event-stream or both";
            Err((StatusCode::NOT_ACCEPTABLE, text))
        }
    }
}

/// Refuses a body that is not plain JSON.
pub(super) fn check_body(headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
    let content_type = single_value(headers, &CONTENT_TYPE).unwrap_or_default();
    if !media_type(content_type).eq_ignore_ascii_case(JSON) {
        let text = "the Content-Type must be application/json";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    // RFC 8259, 8.1: JSON between systems is UTF-8.
    let is_utf8 =
        |charset: &str| ["utf-8", "utf8"].iter().any(|it| charset.eq_ignore_ascii_case(it));
    if !parameter(content_type, "charset").is_none_or(is_utf8) {
        let text = "the charset of the Content-Type must be utf-8";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    if headers.contains_key(CONTENT_ENCODING) {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Encoding is not supported"));
    }
    Ok(())
}

/// Refuses a GET whose client does not accept an event stream.
pub(super) fn check_get(headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
    if accepts(headers, EVENT_STREAM) { Ok(()) } else { Err(STREAM_ONLY) }
}

/// Refusal of a client that does not accept the only form of a response.
pub(super) const STREAM_ONLY: (StatusCode, &str) =
    (StatusCode::NOT_ACCEPTABLE, "the Accept header must list text/event-stream");
const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
/// Accept value of most clients, compared without parsing.
const USUAL: &str = "application/json, text/event-stream";

/// True if a client accepts a media type. Without an Accept header it accepts everything. The most
/// specific matching range decides, and a weight of 0 refuses (RFC 9110, 12.5.1); other weights are
/// ignored, because there is no choice between types.
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    if !headers.contains_key(ACCEPT) {
        return true;
    }
    let (wanted_kind, _) = wanted.split_once('/').unwrap_or((wanted, ""));
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let matches = values.flat_map(|value| value.split(',')).filter_map(|range| {
        let specificity = match media_type(range) {
            "*/*" => 0,
            media if media.eq_ignore_ascii_case(wanted) => 2,
            media => media
                .strip_suffix("/*")
                .filter(|kind| kind.eq_ignore_ascii_case(wanted_kind))
                .map(|_| 1)?,
        };
        let weight = parameter(range, "q").map_or(Ok(1.0), str::parse::<f32>);
        Some((specificity, weight.is_ok_and(|weight| weight > 0.0)))
    });
    matches.max().is_some_and(|(_, is_read)| is_read)
}

fn media_type(value: &str) -> &str {
    value.split_once(';').map_or(value, |(media_type, _)| media_type).trim()
}

/// Returns a parameter of a media type, without quotes.
fn parameter<'a>(value: &'a str, wanted: &str) -> Option<&'a str> {
    let (_, parameters) = value.split_once(';')?;
    let parameters = parameters.split(';').filter_map(|it| it.split_once('='));
    let mut values = parameters.filter(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
    values.next().map(|(_, value)| value.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.clone(), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn one_bearer_token_or_nothing_is_shown() {
        let shown = |values: &[&'static str]| {
            let pairs: Vec<_> = values.iter().map(|value| (AUTHORIZATION, *value)).collect();
            match credentials(&headers(&pairs)) {
                Some(Credentials::None) => "nothing".to_owned(),
                Some(Credentials::Bearer(token)) => token.to_owned(),
                None => "refused".to_owned(),
            }
        };
        for (values, expected) in [
            (&[][..], "nothing"),
            (&["Bearer abc"], "abc"),
            (&["bearer  abc"], "abc"),
            (&["Bearer abc", "Bearer abc"], "refused"),
            (&["Bearer"], "refused"),
            (&["Bearer "], "refused"),
            (&["Basic abc"], "refused"),
            (&[""], "refused"),
        ] {
            assert_eq!(shown(values), expected, "{values:?}");
        }
    }

    #[test]
    fn a_body_is_chunked_once_or_not_coded() {
        let te = |value: &'static str| (TRANSFER_ENCODING, value);
        for (pairs, expected) in [
            (vec![], None),
            (vec![te("Chunked")], None),
            (vec![te("chunked, chunked")], Some(400)),
            (vec![te("chunked"), te("chunked")], Some(400)),
            (vec![te("identity, chunked")], Some(501)),
            (vec![te("gzip"), te("chunked")], Some(501)),
            (vec![te(", chunked")], Some(501)),
            (vec![te("chunked;q=1")], Some(501)),
        ] {
            let found = check_transfer(&headers(&pairs)).err().map(|(status, _)| status.as_u16());
            assert_eq!(found, expected, "{pairs:?}");
        }
    }

    #[test]
    fn post_is_json_and_its_response_has_a_form_that_the_client_accepts() {
        use AcceptedForms::{Both, EventStream, Json};
        let json = (CONTENT_TYPE, "application/json");
        let accept = |value| vec![(CONTENT_TYPE, "application/json"), (ACCEPT, value)];
        for (pairs, expected) in [
            (vec![], Err(415)),
            (vec![(CONTENT_TYPE, "text/plain")], Err(415)),
            (vec![(CONTENT_TYPE, "application/json-patch+json")], Err(415)),
            (vec![json.clone(), json.clone()], Err(415)),
            (vec![json.clone(), (CONTENT_ENCODING, "gzip")], Err(415)),
            (vec![json.clone()], Ok(Both)),
            (vec![(CONTENT_TYPE, "Application/JSON; charset=utf-8")], Ok(Both)),
            (vec![(CONTENT_TYPE, "application/json; charset=\"UTF-8\"")], Ok(Both)),
            (vec![(CONTENT_TYPE, "application/json; charset=latin1")], Err(415)),
            (vec![(CONTENT_TYPE, "application/json;version=1; Charset=utf-16")], Err(415)),
            (accept("application/json"), Ok(Json)),
            (accept("application/*"), Ok(Json)),
            (accept("application/json, text/html;q=0.9"), Ok(Json)),
            (accept("text/event-stream"), Ok(EventStream)),
            (accept("text/*, application/xml"), Ok(EventStream)),
            (accept("text/html"), Err(406)),
            (accept("application/json;q=0, text/event-stream;q=0.0"), Err(406)),
            (accept("application/json, text/event-stream;q=0.5"), Ok(Both)),
            (
                vec![json.clone(), (ACCEPT, "application/*"), (ACCEPT, "Text/Event-Stream")],
                Ok(Both),
            ),
            (vec![json.clone(), (ACCEPT, "application/json"), (ACCEPT, "text/plain")], Ok(Json)),
            (accept("*/*"), Ok(Both)),
            (accept("*/*;q=0.1"), Ok(Both)),
            (accept("application/json, text/event-stream;q=0"), Ok(Json)),
            (accept("*/*, text/event-stream; Q=0.000"), Ok(Json)),
            (accept("*/*, application/json;q=0"), Ok(EventStream)),
            (accept("text/*;q=0, */*"), Ok(Json)),
            (accept("text/*;q=0, */*, text/event-stream;q=0.1"), Ok(Both)),
        ] {
            let found = check_post(&headers(&pairs)).map_err(|(status, _)| status.as_u16());
            assert_eq!(found, expected, "{pairs:?}");
        }
        assert!(check_get(&headers(&[(ACCEPT, "application/json")])).is_err());
    }
}
