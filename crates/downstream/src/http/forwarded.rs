//! Address of a client behind proxies that the configuration trusts: `X-Forwarded-For`, or
//! `Forwarded` (RFC 7239).
//!
//! Invariant: an address counts only if the proxy that names it is trusted. The headers are read
//! from their end, where the last proxy has added the address that it saw; what is left of the
//! first address that is not trusted was written by a client. Without `server.trusted_proxies` the
//! headers mean nothing.

use std::net::{IpAddr, SocketAddr};

use hyper::header::{HeaderMap, HeaderName};
use ipnet::IpNet;

use super::ClientConnection;
use crate::ServerState;

/// Returns the address of the client that has sent a request.
pub(super) fn client_address(
    state: &ServerState,
    connection: &ClientConnection,
    headers: &HeaderMap,
) -> Option<IpAddr> {
    let peer = connection.peer?.ip().to_canonical();
    Some(behind_proxies(peer, headers, &state.settings.trusted_proxies))
}

fn behind_proxies(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|network| network.contains(address));
    if !is_trusted(&peer) {
        return peer;
    }
    // Of two headers, the one that almost all proxies write.
    let named = match headers.contains_key(X_FORWARDED_FOR) {
        true => last_entries(headers, X_FORWARDED_FOR, address),
        false => last_entries(headers, FORWARDED, |entry| address(node(entry)?)),
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
fn address(text: &str) -> Option<IpAddr> {
    let alone = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    Some(alone.parse::<IpAddr>().ok().or_else(with_port)?.to_canonical())
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
/// Most entries that are read: a request does not pass more proxies.
const MAX_PROXIES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

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
