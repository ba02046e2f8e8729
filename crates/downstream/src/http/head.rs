//! Request head, before the body is read: its validation, the credentials, and the address of the
//! client. Host and Origin are checked in `host_check`.
//!
//! Invariant: an address in `X-Forwarded-For` or `Forwarded` (RFC 7239) counts only if the proxy
//! that names it is trusted. The headers are read from their end, where the last proxy has added
//! the address that it saw; what is left of the first address that is not trusted was written by a
//! client. Without `server.trusted_proxies` the headers mean nothing.

use std::net::{IpAddr, SocketAddr};

use hyper::StatusCode;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, TRANSFER_ENCODING,
};
use hyper::http::uri::Uri;
use ipnet::IpNet;
use url::form_urlencoded;

use super::ClientConnection;
use crate::ServerState;
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

/// Refuses a request with a token in its URL, where logs and histories would store it (spec
/// 2026-07-28, authorization, token requirements: MUST NOT).
pub(super) fn check_query(uri: &Uri) -> Result<(), (StatusCode, &'static str)> {
    let query = uri.query().unwrap_or_default().as_bytes();
    let is_token = |name: &str| name.eq_ignore_ascii_case("access_token");
    if form_urlencoded::parse(query).any(|(name, _)| is_token(&name)) {
        let text = "a token does not belong in the URL: send it as `Authorization: Bearer <token>`";
        return Err((StatusCode::BAD_REQUEST, text));
    }
    Ok(())
}

/// Returns the address of the client that has sent a request.
pub(super) fn client_address(
    state: &ServerState,
    connection: &ClientConnection,
    headers: &HeaderMap,
) -> Option<IpAddr> {
    let peer = connection.peer?.ip().to_canonical();
    Some(behind_proxies(peer, headers, &state.settings.trusted_proxies))
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

fn behind_proxies(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|network| network.contains(address));
    if !is_trusted(&peer) {
        return peer;
    }
    // Of two headers, the one that almost all proxies write.
    let named = match headers.contains_key(X_FORWARDED_FOR) {
        true => last_entries(headers, X_FORWARDED_FOR, parse_address),
        false => last_entries(headers, FORWARDED, |entry| parse_address(node(entry)?)),
    };
    let mut client = peer;
    for address in named {
        // An entry that is no address was hidden by its proxy: the proxy itself is the client then.
        let Some(address) = address else { break };
        client = address;
        if !is_trusted(&client) {
            break;
        }
    }
    client
}

/// Returns the parsed entries of a list header, the last one first.
fn last_entries(
    headers: &HeaderMap,
    name: HeaderName,
    parse: fn(&str) -> Option<IpAddr>,
) -> impl Iterator<Item = Option<IpAddr>> {
    let lines: Vec<_> = headers.get_all(name).iter().collect();
    let entries = lines.into_iter().rev().flat_map(|line| line.to_str().unwrap_or("").rsplit(','));
    entries.take(MAX_PROXIES).map(move |entry| parse(entry.trim()))
}

/// Returns the value of `for` in an entry of `Forwarded`.
fn node(entry: &str) -> Option<&str> {
    let pairs = entry.split(';').filter_map(|pair| pair.trim().split_once('='));
    let node = pairs.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("for"))?.1;
    Some(node.strip_prefix('"').and_then(|quoted| quoted.strip_suffix('"')).unwrap_or(node))
}

/// Parses an address, which may be in brackets, and followed by a port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let alone = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    Some(alone.parse::<IpAddr>().ok().or_else(with_port)?.to_canonical())
}

/// Refusal of a client that does not accept the only form of a response.
pub(super) const STREAM_ONLY: (StatusCode, &str) =
    (StatusCode::NOT_ACCEPTABLE, "the Accept header must list text/event-stream");
const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
/// Accept value of most clients, compared without parsing.
const USUAL: &str = "application/json, text/event-stream";
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
/// Most entries that are read: a request does not pass more proxies.
const MAX_PROXIES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

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

    fn seen(peer: &str, lines: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().expect("a value"));
        }
        let trusted = ["10.0.0.0/8", "2001:db8::/32"].map(|it| it.parse().expect("a network"));
        behind_proxies(peer.parse().expect("an address"), &headers, &trusted).to_string()
    }

    #[test]
    fn the_last_address_that_is_no_trusted_proxy_is_the_clients() {
        const XFF: &str = "x-forwarded-for";
        for (peer, lines, expected) in [
            ("192.0.2.1", &[(XFF, "203.0.113.7")][..], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &[(XFF, "203.0.113.7")], "203.0.113.7"),
            ("10.0.0.1", &[(XFF, "1.1.1.1, 203.0.113.7, 10.0.0.9")], "203.0.113.7"),
            ("10.0.0.1", &[(XFF, "1.1.1.1"), (XFF, "203.0.113.7,10.0.0.9")], "203.0.113.7"),
            ("10.0.0.1", &[(XFF, "10.0.0.8, 10.0.0.9")], "10.0.0.8"),
            ("10.0.0.1", &[(XFF, "203.0.113.7, unknown")], "10.0.0.1"),
            ("10.0.0.1", &[(XFF, "203.0.113.7, ")], "10.0.0.1"),
            ("10.0.0.1", &[(XFF, "203.0.113.7:4711")], "203.0.113.7"),
            ("2001:db8::1", &[(XFF, "[2001:db9::2]:80")], "2001:db9::2"),
            ("10.0.0.1", &[(XFF, "::ffff:203.0.113.7")], "203.0.113.7"),
            ("10.0.0.1", &[("forwarded", "for=203.0.113.7;proto=http")], "203.0.113.7"),
            ("10.0.0.1", &[("forwarded", "for=1.1.1.1, For=\"[2001:db9::2]:80\"")], "2001:db9::2"),
            ("10.0.0.1", &[("forwarded", "for=1.1.1.1, for=_hidden")], "10.0.0.1"),
            ("10.0.0.1", &[("forwarded", "for=1.1.1.1"), (XFF, "2.2.2.2")], "2.2.2.2"),
        ] {
            assert_eq!(seen(peer, lines), expected, "{peer} {lines:?}");
        }
        let many = vec!["10.0.0.2"; 1_000].join(", ");
        assert_eq!(seen("10.0.0.1", &[(XFF, &format!("203.0.113.7, {many}"))]), "10.0.0.2");
    }
}
