//! A request's head: what has to be right before its body is read.
//!
//! Knows nothing of: Host and Origin (see `origin`), and what the body will say.

use hyper::StatusCode;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};

use crate::downstream::origin::only;
use crate::policy::Credentials;

/// Reads what a client shows; `None` if it shows something that is not one bearer token.
pub(super) fn credentials(headers: &HeaderMap) -> Option<Credentials<'_>> {
    if !headers.contains_key(AUTHORIZATION) {
        return Some(Credentials::None);
    }
    let (scheme, token) = only(headers, &AUTHORIZATION)?.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
        .then_some(Credentials::Bearer(token))
}

/// Refuses a body that is not plain JSON, and a client that cannot read what it would get.
pub(super) fn check_post(headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
    check_body(headers)?;
    if !accepts(headers, "application/json") || !accepts(headers, "text/event-stream") {
        let text = "the Accept header must list application/json and text/event-stream";
        return Err((StatusCode::NOT_ACCEPTABLE, text));
    }
    Ok(())
}

/// Refuses a body that is not plain JSON.
pub(super) fn check_body(headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
    let media = only(headers, &CONTENT_TYPE).map(media_type);
    if !media.is_some_and(|media| media.eq_ignore_ascii_case("application/json")) {
        let text = "the Content-Type must be application/json";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    if headers.contains_key(CONTENT_ENCODING) {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "no Content-Encoding is taken"));
    }
    Ok(())
}

/// Refuses a GET whose client cannot read events.
pub(super) fn check_get(headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
    if accepts(headers, "text/event-stream") {
        Ok(())
    } else {
        Err((StatusCode::NOT_ACCEPTABLE, "the Accept header must list text/event-stream"))
    }
}

/// What clients write who read all that is sent here.
const USUAL: &str = "application/json, text/event-stream";

/// Whether a client reads a media type. One that does not say reads everything (RFC 9110, 12.5.1);
/// weights are not looked at, since there is nothing to choose between.
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    if !headers.contains_key(ACCEPT) || only(headers, &ACCEPT) == Some(USUAL) {
        return true;
    }
    let (wanted_kind, _) = wanted.split_once('/').unwrap_or((wanted, ""));
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(media_type).any(|media| {
        let any_of_kind = media.strip_suffix("/*");
        media == "*/*"
            || media.eq_ignore_ascii_case(wanted)
            || any_of_kind.is_some_and(|kind| kind.eq_ignore_ascii_case(wanted_kind))
    })
}

fn media_type(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
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
                Some(Credentials::Certificate(_)) => panic!("no header holds one"),
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
    fn a_post_is_json_for_somebody_who_reads_json_and_events() {
        let json = (CONTENT_TYPE, "application/json");
        for (pairs, expected) in [
            (vec![], Some(415)),
            (vec![(CONTENT_TYPE, "text/plain")], Some(415)),
            (vec![(CONTENT_TYPE, "application/json-patch+json")], Some(415)),
            (vec![json.clone(), json.clone()], Some(415)),
            (vec![json.clone(), (CONTENT_ENCODING, "gzip")], Some(415)),
            (vec![json.clone()], None),
            (vec![(CONTENT_TYPE, "Application/JSON; charset=utf-8")], None),
            (vec![json.clone(), (ACCEPT, "application/json")], Some(406)),
            (vec![json.clone(), (ACCEPT, "text/event-stream")], Some(406)),
            (vec![json.clone(), (ACCEPT, "text/html")], Some(406)),
            (vec![json.clone(), (ACCEPT, "application/json, text/event-stream;q=0.5")], None),
            (vec![json.clone(), (ACCEPT, "application/*"), (ACCEPT, "Text/Event-Stream")], None),
            (vec![json.clone(), (ACCEPT, "*/*")], None),
        ] {
            let found = check_post(&headers(&pairs)).err().map(|(status, _)| status.as_u16());
            assert_eq!(found, expected, "{pairs:?}");
        }
        assert!(check_get(&headers(&[(ACCEPT, "application/json")])).is_err());
    }
}
