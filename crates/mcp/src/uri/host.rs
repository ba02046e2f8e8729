//! Host and port of a canonical URI.
//!
//! Invariant: for a special scheme (WHATWG's URL standard) a host is accepted only as every parser
//! writes it: lower case, no user information, no punycode, IP addresses in their one form, no
//! default port.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::NotCanonical;

/// Special schemes with their default ports.
const SPECIAL: [(&str, Option<u16>); 6] = [
    ("file", None),
    ("ftp", Some(21)),
    ("http", Some(80)),
    ("https", Some(443)),
    ("ws", Some(80)),
    ("wss", Some(443)),
];

pub(super) fn is_special(scheme: &str) -> bool {
    SPECIAL.iter().any(|(special, _)| *special == scheme)
}

/// The default port of a special scheme.
pub(super) fn default_port(scheme: &str) -> Option<u16> {
    SPECIAL.iter().find(|(special, _)| *special == scheme).and_then(|(_, port)| *port)
}

/// Splits an authority into the host and the port with its colon.
pub(super) fn split(authority: &str) -> (&str, &str) {
    let after_address = authority.rfind(']').map_or(0, |at| at + 1);
    let colon = authority[after_address..].find(':').map(|at| after_address + at);
    authority.split_at(colon.unwrap_or(authority.len()))
}

pub(super) fn check(scheme: &str, authority: &str) -> Result<(), NotCanonical> {
    let (host, port) = split(authority);
    let has_good_port = port.is_empty() || !host.is_empty() && is_port(scheme, &port[1..]);
    let has_good_host = match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').is_some_and(is_ipv6),
        None if is_special(scheme) => is_domain(host),
        None => host.chars().all(is_in_a_name),
    };
    if has_good_host && has_good_port { Ok(()) } else { Err(NotCanonical::Authority) }
}

fn is_port(scheme: &str, digits: &str) -> bool {
    let port = digits.parse::<u16>().ok().filter(|port| port.to_string() == digits);
    port.is_some() && port != default_port(scheme)
}

/// Whether the text is an IPv6 address in RFC 5952's form. Addresses with an embedded IPv4 address
/// are written in two ways and rejected.
fn is_ipv6(text: &str) -> bool {
    let address = text.parse::<Ipv6Addr>().map(|address| address.to_string());
    address.is_ok_and(|address| address == text && !address.contains('.'))
}

/// Whether the host is a DNS name in lower case or an IPv4 address; empty for `file:`.
fn is_domain(host: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let is_label =
        |label: &str| !label.is_empty() && label.chars().all(allowed) && !label.starts_with("xn--");
    let last = host.rsplit('.').next().unwrap_or_default();
    // `127.1`, `0x7f.1` and `2130706433` are addresses for some readers and names for others.
    let ends_in_a_number = last.starts_with("0x") || last.chars().all(|c| c.is_ascii_digit());
    host.is_empty()
        || host.split('.').all(is_label) && (!ends_in_a_number || host.parse::<Ipv4Addr>().is_ok())
}

/// Whether RFC 3986 allows the character in a `reg-name`.
fn is_in_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || matches!(c, '-' | '.' | '_' | '~' | '%' | '!' | '$' | '&' | '\'' | '(' | ')')
        || matches!(c, '*' | '+' | ',' | ';' | '=')
}
