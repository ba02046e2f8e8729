//! Validation of Host and Origin: protection against DNS rebinding.
//!
//! Both are checked on every route, in every revision (spec, transports). An authority is parsed
//! and compared as a whole, never searched for a substring: everything that is not exactly `host`
//! or `host:port` in plain characters is refused.
//!
//! Invariant: a client chooses the values that are refused, so that few of them are stored and
//! logged as warnings; the others are only in the debug log.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::str::FromStr;

use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::http::uri::Uri;
use tracing::warn;

use super::Settings;
use weir_base::tasks::sync::Mutex;

/// Host with an optional port, as in `example.com:8642` or `[::1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Authority<'a> {
    /// Lower case; an IPv6 address in its shortest form, in brackets.
    host: Cow<'a, str>,
    port: Option<u16>,
}

/// Accepted Host: with a port only on that port, without one on any port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost(Authority<'static>);

/// Origin: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    scheme: Box<str>,
    authority: Authority<'static>,
}

/// Invalid host or origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidOrigin(&'static str);

/// Reason to refuse a request; the text may be sent to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostRejection {
    /// `Host` names no host of Weir.
    #[error("this Host is not served here")]
    Host,
    /// The request's target names another host than Host.
    #[error("this Host is not served here")]
    Target,
    /// `Origin` is that of a page which is not trusted.
    #[error("this Origin is not allowed here")]
    Origin,
}

/// Refuses requests for another host and requests from pages of an untrusted origin.
pub fn check(settings: &Settings, uri: &Uri, headers: &HeaderMap) -> Result<(), HostRejection> {
    let host =
        single_value(headers, &HOST).and_then(Authority::parse).ok_or(HostRejection::Host)?;
    if !host_is_allowed(settings, &host) {
        return Err(HostRejection::Host);
    }
    // An absolute target contains a host as well (RFC 9112, 3.2.2); a different one is an attack.
    if let Some(target) = uri.authority()
        && Authority::parse(target.as_str()).as_ref() != Some(&host)
    {
        return Err(HostRejection::Target);
    }
    if !headers.contains_key(ORIGIN) {
        return Ok(());
    }
    let origin = single_value(headers, &ORIGIN).and_then(|text| text.parse().ok());
    match origin {
        Some(origin) if origin_is_allowed(settings, &origin) => Ok(()),
        _ => Err(HostRejection::Origin),
    }
}

/// Returns the Origin of a request if the configuration names it. One that is accepted only because
/// its name is a loopback name is none.
pub(crate) fn configured_origin<'a>(
    settings: &Settings,
    headers: &'a HeaderMap,
) -> Option<&'a HeaderValue> {
    let origin = single_value(headers, &ORIGIN)?.parse().ok()?;
    headers.get(ORIGIN).filter(|_| settings.allowed_origins.contains(&origin))
}

fn host_is_allowed(settings: &Settings, host: &Authority<'_>) -> bool {
    let listed = settings.allowed_hosts.iter().any(|AllowedHost(allowed)| {
        allowed.host == host.host && (allowed.port.is_none() || allowed.port == host.port)
    });
    listed || settings.loopback && host.is_loopback()
}

fn origin_is_allowed(settings: &Settings, origin: &Origin) -> bool {
    let is_page = matches!(&*origin.scheme, "http" | "https");
    settings.allowed_origins.contains(origin)
        || settings.loopback && is_page && origin.authority.is_loopback()
}

/// Returns the single value of a header, in visible characters; `None` for several or none.
pub fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

impl<'a> Authority<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (host, port) = if text.starts_with('[') {
            let end = text.find(']')?;
            (&text[..=end], &text[end + 1..])
        } else {
            text.split_at(text.find(':').unwrap_or(text.len()))
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            None => return None,
            Some(digits) => Some(parse_port(digits)?),
        };
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => format!("[{}]", address.parse::<Ipv6Addr>().ok()?).into(),
            None => parse_name(host)?,
        };
        Some(Self { host, port })
    }

    fn into_owned(self) -> Authority<'static> {
        Authority { host: self.host.into_owned().into(), port: self.port }
    }

    fn is_loopback(&self) -> bool {
        matches!(&*self.host, "localhost" | "127.0.0.1" | "[::1]")
    }
}

fn parse_port(digits: &str) -> Option<u16> {
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    if is_plain { digits.parse().ok() } else { None }
}

/// Parses a name or an IPv4 address: labels of letters, digits, hyphens and underscores, without a
/// trailing dot.
fn parse_name(host: &str) -> Option<Cow<'_, str>> {
    let is_label = |label: &[u8]| {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.iter().all(plain)
    };
    let mut labels = host.as_bytes().split(|byte| *byte == b'.');
    let good = host.len() <= MAX_NAME_BYTES && labels.all(is_label);
    let is_lower_case = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    good.then(|| if is_lower_case { host.into() } else { host.to_ascii_lowercase().into() })
}

impl FromStr for AllowedHost {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        let authority = Authority::parse(text);
        authority
            .map(|authority| Self(authority.into_owned()))
            .ok_or(InvalidOrigin("a host is `name` or `name:port`, without a scheme"))
    }
}

impl FromStr for Origin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        const REFUSAL: InvalidOrigin =
            InvalidOrigin("an origin is `scheme://host` or `scheme://host:port`");
        let (scheme, authority) = text.split_once("://").ok_or(REFUSAL)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.bytes().all(plain) {
            return Err(REFUSAL);
        }
        let scheme = scheme.to_ascii_lowercase();
        let mut authority = Authority::parse(authority).ok_or(REFUSAL)?.into_owned();
        // A browser omits the default port of a scheme, so an explicit one is the same origin.
        let own_port = match scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        if authority.port == own_port {
            authority.port = None;
        }
        Ok(Self { scheme: scheme.into(), authority })
    }
}

// === RefusedValues ===

/// Values of Host and Origin that this process has warned about.
#[derive(Debug, Default)]
pub struct RefusedValues {
    hosts: Mutex<BTreeSet<String>>,
    origins: Mutex<BTreeSet<String>>,
}

impl RefusedValues {
    /// Warns about the value that a request was refused for, once in the process.
    pub fn warn_once(&self, rejection: HostRejection, headers: &HeaderMap) {
        let (table, name, key) = match rejection {
            HostRejection::Host => (&self.hosts, HOST, "server.allowed_hosts"),
            HostRejection::Origin => (&self.origins, ORIGIN, "server.allowed_origins"),
            // The Host is good: another key would not help.
            HostRejection::Target => return,
        };
        let Some(value) = value_of(headers, &name) else { return };
        let added = add(&mut table.lock(), &value);
        if added != Added::Known {
            warn!(%name, ?value, "request refused: to accept this value, add it to {key}");
        }
        if added == Added::Last {
            warn!(%name, "further refused values are logged at the level debug only");
        }
    }
}

/// Effect of a value on a table.
#[derive(Debug, PartialEq, Eq)]
enum Added {
    Known,
    New,
    /// The table is now full.
    Last,
}

fn add(table: &mut BTreeSet<String>, value: &str) -> Added {
    match table.len() < MAX_REFUSED_VALUES && table.insert(value.to_owned()) {
        false => Added::Known,
        true if table.len() == MAX_REFUSED_VALUES => Added::Last,
        true => Added::New,
    }
}

/// Returns the value of a header as it is compared and written: a host without its port, because a
/// client chooses that, too. `None` without the header.
fn value_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let value = String::from_utf8_lossy(headers.get(name)?.as_bytes());
    let host = Authority::parse(&value).filter(|_| name == HOST).map(|it| it.host.into_owned());
    let value = host.unwrap_or_else(|| value.to_lowercase());
    Some(value.chars().take(MAX_NAME_BYTES).collect())
}

/// Maximum number of hosts, and of origins, in the log of a process.
const MAX_REFUSED_VALUES: usize = 32;
/// Longest host name (RFC 1035).
const MAX_NAME_BYTES: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(loopback: bool) -> Settings {
        Settings {
            loopback,
            allowed_hosts: ["mcp.example.com", "other.example.com:8443"]
                .map(|host| host.parse().expect("a host"))
                .to_vec(),
            allowed_origins: ["https://app.example.com", "vscode-webview://abc"]
                .map(|origin| origin.parse().expect("an origin"))
                .to_vec(),
            ..Settings::default()
        }
    }

    fn checked(loopback: bool, headers: &[(&'static str, &str)]) -> Result<(), HostRejection> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            map.append(*name, value);
        }
        check(&settings(loopback), &Uri::from_static("/mcp"), &map)
    }

    #[test]
    fn only_our_own_hosts_are_served() {
        for (host, on_loopback, in_public) in [
            ("localhost", true, false),
            ("LocalHost:8642", true, false),
            ("127.0.0.1:1", true, false),
            ("[::1]:8642", true, false),
            ("[0:0:0:0:0:0:0:1]", true, false),
            ("mcp.example.com", true, true),
            ("MCP.example.com:9999", true, true),
            ("other.example.com:8443", true, true),
            ("other.example.com", false, false),
            ("other.example.com:8444", false, false),
            ("", false, false),
            ("localhost.", false, false),
            ("localhost.evil.com", false, false),
            ("evil.com", false, false),
            ("evil-localhost", false, false),
            ("localhost:80:80", false, false),
            ("localhost:", false, false),
            ("localhost:0", false, false),
            ("localhost:65536", false, false),
            ("localhost:+80", false, false),
            ("localhost:8642x", false, false),
            ("user@localhost", false, false),
            ("localhost@evil.com", false, false),
            ("evil.com/localhost", false, false),
            ("evil.com?localhost", false, false),
            ("evil.com#localhost", false, false),
            ("localhost, evil.com", false, false),
            ("localhost evil.com", false, false),
            ("local\thost", false, false),
            ("127.0.0.1.nip.io", false, false),
            ("127.1", false, false),
            ("2130706433", false, false),
            ("0.0.0.0", false, false),
            ("[::1", false, false),
            ("[::1]x", false, false),
            ("::1", false, false),
            ("[::ffff:127.0.0.1]", false, false),
            ("xn--lcalhost-n4a", false, false),
            ("l\u{f6}calhost", false, false),
            ("mcp..example.com", false, false),
        ] {
            for (loopback, expected) in [(true, on_loopback), (false, in_public)] {
                let found = checked(loopback, &[("host", host)]);
                let expected = if expected { Ok(()) } else { Err(HostRejection::Host) };
                assert_eq!(found, expected, "{host:?} on loopback: {loopback}");
            }
        }
    }

    #[test]
    fn exactly_one_host_is_needed() {
        assert_eq!(checked(true, &[]), Err(HostRejection::Host));
        let twice = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(checked(true, &twice), Err(HostRejection::Host));
    }

    #[test]
    fn a_target_that_names_another_host_is_refused() {
        let headers = HeaderMap::from_iter([(HOST, "localhost".parse().expect("a value"))]);
        let check = |uri: &'static str| check(&settings(true), &Uri::from_static(uri), &headers);
        assert_eq!(check("http://localhost/mcp"), Ok(()));
        assert_eq!(check("http://evil.com/mcp"), Err(HostRejection::Target));
    }

    #[test]
    fn only_trusted_pages_are_let_in() {
        for (origin, on_loopback, in_public) in [
            ("http://localhost", true, false),
            ("http://localhost:6274", true, false),
            ("https://127.0.0.1:1", true, false),
            ("http://[::1]:3000", true, false),
            ("https://app.example.com", true, true),
            ("https://APP.example.com:443", true, true),
            ("vscode-webview://abc", true, true),
            ("http://app.example.com", false, false),
            ("https://app.example.com:8443", false, false),
            ("https://app.example.com.evil.com", false, false),
            ("https://evil.com/https://app.example.com", false, false),
            ("https://app.example.com@evil.com", false, false),
            ("https://app.example.com.", false, false),
            ("https://app.example.com/", false, false),
            ("null", false, false),
            ("", false, false),
            ("http://", false, false),
            ("localhost", false, false),
            ("file://localhost", false, false),
            ("http://localhost.evil.com", false, false),
            ("http://user@localhost", false, false),
            ("http://localhost http://evil.com", false, false),
            ("//localhost", false, false),
            ("http:/localhost", false, false),
        ] {
            for (loopback, expected) in [(true, on_loopback), (false, in_public)] {
                let found = checked(loopback, &[("host", "mcp.example.com"), ("origin", origin)]);
                let expected = if expected { Ok(()) } else { Err(HostRejection::Origin) };
                assert_eq!(found, expected, "{origin:?} on loopback: {loopback}");
            }
        }
        let twice =
            [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://localhost")];
        assert_eq!(checked(true, &twice), Err(HostRejection::Origin));
    }

    #[test]
    fn a_refused_host_is_compared_without_its_port_and_cut_to_a_bounded_length() {
        let long = "x".repeat(10_000);
        for (value, expected) in [
            ("Weir.LAN:8642", "weir.lan"),
            ("[::0:1]:80", "[::1]"),
            ("weir.lan.", "weir.lan."),
            ("a, b", "a, b"),
            ("", ""),
            (&long, &long[..MAX_NAME_BYTES]),
        ] {
            let headers = HeaderMap::from_iter([(HOST, value.parse().expect("a value"))]);
            assert_eq!(value_of(&headers, &HOST).as_deref(), Some(expected), "{value}");
        }
        assert_eq!(value_of(&HeaderMap::new(), &HOST), None);
        let headers = HeaderMap::from_iter([(ORIGIN, "https://A:1".parse().expect("a value"))]);
        assert_eq!(value_of(&headers, &ORIGIN).as_deref(), Some("https://a:1"));
    }

    #[test]
    fn a_flood_of_refused_hosts_fills_the_table_once_and_is_then_not_logged() {
        let mut table = BTreeSet::new();
        assert_eq!(add(&mut table, "0"), Added::New);
        assert_eq!(add(&mut table, "0"), Added::Known);
        for host in 1..MAX_REFUSED_VALUES - 1 {
            assert_eq!(add(&mut table, &host.to_string()), Added::New);
        }
        assert_eq!(add(&mut table, "last"), Added::Last);
        for host in 0..10_000 {
            assert_eq!(add(&mut table, &format!("flood-{host}")), Added::Known);
        }
        assert_eq!(table.len(), MAX_REFUSED_VALUES);
    }
}
