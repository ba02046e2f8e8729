//! Check of URIs: whether every client can read them.
//!
//! The specification asks for a URI (RFC 3986). Some clients are looser (any string), some have a
//! parser of their own: Python's SDK parses a resource's `uri` as an `AnyUrl`, which is WHATWG's
//! URL. Spaces and letters beyond ASCII are common in paths of files and every client accepts them,
//! so they pass here; a text that one of the clients rejects does not.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Characters that WHATWG's parsers take for a slash in URLs of the web and of files.
const SLASHES: [char; 2] = ['/', '\\'];

/// Whether every client accepts a text as a URI: it has a scheme, no control characters, and a
/// possible authority.
pub(super) fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let is_scheme =
        scheme.starts_with(|it: char| it.is_ascii_alphabetic()) && scheme.bytes().all(is_plain);
    // Some parsers remove spaces at the end, and clients then ask for another URI.
    if !is_scheme || text.ends_with(' ') || text.chars().any(char::is_control) {
        return false;
    }
    match &*scheme.to_ascii_lowercase() {
        // WHATWG's parsers skip any number of slashes of either kind here.
        "http" | "https" | "ws" | "wss" | "ftp" => {
            is_authority(until(rest.trim_start_matches(SLASHES), &['/', '\\', '?', '#']), is_domain)
        }
        // WHATWG's parsers take a backslash for a slash here, too.
        "file" => rest
            .strip_prefix(SLASHES)
            .and_then(|rest| rest.strip_prefix(SLASHES))
            .is_none_or(|rest| {
                let host = until(rest, &['/', '\\', '?', '#']);
                host.is_empty() || is_drive(host) || is_domain(host)
            }),
        _ => rest.strip_prefix("//").is_none_or(|rest| {
            let authority = until(rest, &['/', '?', '#']);
            authority.is_empty() || is_authority(authority, is_opaque_host)
        }),
    }
}

/// Whether every client accepts a text as a URI and it has only characters of RFC 3986 (without
/// brackets, which belong to IPv6 addresses).
pub(super) fn is_plain_uri(text: &str) -> bool {
    let is_allowed = |it: u8| it.is_ascii_alphanumeric() || b"-._~:/?#@!$&'()*+,;=%".contains(&it);
    let mut escapes = text.split('%').skip(1);
    let is_escape = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    text.bytes().all(is_allowed)
        && escapes.all(is_escape)
        && text.matches('#').count() < 2
        && is_uri(text)
}

/// Whether the braces of a text are those of a URI template (RFC 6570).
pub(super) fn is_template(text: &str) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let Some(expression) = rest[at..].strip_prefix('{') else { return false };
        let Some((inside, behind)) = expression.split_once('}') else { return false };
        if inside.is_empty() || inside.contains('{') {
            return false;
        }
        rest = behind;
    }
    !text.chars().any(char::is_control)
}

fn until<'a>(text: &'a str, ends: &[char]) -> &'a str {
    &text[..text.find(ends).unwrap_or(text.len())]
}

fn is_authority(text: &str, is_host: impl Fn(&str) -> bool) -> bool {
    let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (host, ""),
    };
    let is_port = port.is_empty()
        || port.bytes().all(|it| it.is_ascii_digit()) && port.parse::<u16>().is_ok();
    is_port && is_host(host)
}

/// Whether the host is a domain or an address. Internationalized names are not accepted: they are
/// not validated here.
fn is_domain(host: &str) -> bool {
    if host.starts_with('[') {
        return is_bracketed(host);
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let labels = || host.trim_end_matches('.').split('.');
    let last = labels().next_back().unwrap_or_default();
    // A host whose last label is a number, decimal or hexadecimal, is an address.
    let is_number = |label: &str| match label.get(..2) {
        Some("0x" | "0X") => label[2..].bytes().all(|it| it.is_ascii_hexdigit()),
        _ => label.bytes().all(|it| it.is_ascii_digit()),
    };
    host.bytes().all(is_plain)
        && labels().all(|label| !label.is_empty() && !is_encoded(label))
        && (!is_number(last) || host.parse::<Ipv4Addr>().is_ok())
}

/// Whether a label is punycode (`xn--`).
fn is_encoded(label: &str) -> bool {
    label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("xn--"))
}

fn is_bracketed(host: &str) -> bool {
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inside.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

/// Whether a text can be the host of a scheme that is not special in WHATWG's URL standard.
fn is_opaque_host(host: &str) -> bool {
    is_bracketed(host)
        || !host.is_empty() && !host.contains([' ', '<', '>', '[', '\\', ']', '^', '|', ':'])
}

fn is_drive(host: &str) -> bool {
    matches!(host.as_bytes(), [letter, b':' | b'|'] if letter.is_ascii_alphabetic())
}
