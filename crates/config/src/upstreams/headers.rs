//! HTTP headers for an upstream with a `url`.
//!
//! Invariants: every value is legal, and marked sensitive.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedName, TableReader};
use crate::secrets::{self, SecretResolver};

/// Reads the headers to add to every request.
pub(crate) fn read_headers(
    t: &TableReader<'_>,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> HeaderMap {
    let headers = t.table("headers", |t| {
        t.keys().into_iter().filter_map(|name| header(t, name, resolver, used)).collect()
    });
    let written = t.get("headers").and_then(|headers| headers.get_ref().as_table());
    let names = written.into_iter().flatten().map(|(name, _)| name.get_ref());
    let is_written = names.into_iter().any(|name| name.eq_ignore_ascii_case("authorization"));
    if is_written && t.has("auth") {
        let what = "headers holds an Authorization already";
        t.error("auth", ValueError::new(what, "keep one of the two"));
    }
    headers
}

fn header<'a>(
    t: &TableReader<'a>,
    name: SpannedName<'a>,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> Option<(HeaderName, HeaderValue)> {
    let key = name.get_ref();
    let value = secrets::read_secret(t, key, resolver, used);
    let value = value.and_then(|value| sensitive(t, key, value.expose()));
    match header_name(name) {
        Ok(header) => Some((header, value?)),
        Err(error) => {
            t.error(key, error);
            None
        }
    }
}

fn header_name(name: SpannedName<'_>) -> Parsed<HeaderName> {
    let bad = |what, remedy| ValueError::new(what, remedy).at(name.span());
    let header = HeaderName::from_bytes(name.get_ref().as_bytes())
        .map_err(|_| bad("this cannot name a header", "write a name like X-Team"))?;
    match is_own_header(header.as_str()) {
        true => Err(bad("this header belongs to the protocol, and Weir sets it", "remove it")),
        false => Ok(header),
    }
}

/// True if a header belongs to the protocol or to the connection, so that only Weir sets it.
pub fn is_own_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    OWN_HEADERS.contains(&name.as_str()) || name.starts_with("mcp-")
}

/// Makes a sensitive header value; an illegal one is reported.
pub(super) fn sensitive(t: &TableReader<'_>, key: &str, text: &str) -> Option<HeaderValue> {
    let Ok(mut value) = HeaderValue::from_str(text) else {
        let remedy = "write visible ASCII characters";
        t.error(key, ValueError::new("a header's value cannot hold this", remedy));
        return None;
    };
    value.set_sensitive(true);
    Some(value)
}

/// Headers of the protocol or the connection, in addition to those that begin with `mcp-`.
pub(crate) const OWN_HEADERS: [&str; 11] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
