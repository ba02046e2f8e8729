//! Way from Weir to a server on the network: directly or through a proxy, and the TLS settings.
//!
//! Invariants: the credentials of a proxy are sent to that proxy only. Requests to this machine use
//! no proxy. `Debug` contains no secret.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use hyper::header::PROXY_AUTHORIZATION;
use hyper::{Request, Uri};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use ipnet::IpNet;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use crate::connect::tls::TlsSettings;
use weir_base::net::allowed_addresses::is_loopback_host;
use weir_base::secrets::secret::Secret;

/// Way to a server; by default without a proxy, and with the TLS settings of the system. Cheap to
/// clone.
#[derive(Clone, Default, PartialEq)]
pub struct Egress {
    proxies: Option<Arc<Proxies>>,
    tls: Option<TlsSettings>,
}

/// Proxies for requests to servers on the network.
struct Proxies {
    settings: ProxySettings,
    matcher: Matcher,
}

/// URLs of the proxies, which may contain credentials, and the hosts that are reached directly.
#[derive(Clone, Default, PartialEq)]
pub struct ProxySettings {
    /// Proxy for `http` URLs.
    pub http: Option<Secret>,
    /// Proxy for `https` URLs.
    pub https: Option<Secret>,
    /// Hosts, separated by commas: names with the names below them, addresses, networks, or `*`.
    pub no_proxy: String,
}

impl Egress {
    /// Creates the way through these proxies.
    ///
    /// # Errors
    ///
    /// One is not the URL of an HTTP proxy; the text names the scheme in whose place it stands.
    pub fn through(settings: ProxySettings) -> Result<Self, String> {
        let text = |proxy: &Option<Secret>| {
            proxy.as_ref().map(Secret::expose).unwrap_or_default().to_owned()
        };
        let (http, https) = (text(&settings.http), text(&settings.https));
        if http.is_empty() && https.is_empty() {
            return Ok(Self::default());
        }
        for (scheme, proxy) in [("http", &http), ("https", &https)] {
            if !proxy.is_empty() && !is_proxy(proxy) {
                return Err(scheme.to_owned());
            }
        }
        let no_proxy = settings.no_proxy.clone();
        let matcher = Matcher::builder().http(http).https(https).no(no_proxy).build();
        Ok(Self { proxies: Some(Arc::new(Proxies { settings, matcher })), tls: None })
    }

    /// Returns the same way with the TLS settings of one server.
    #[must_use]
    pub fn with_tls(&self, tls: Option<TlsSettings>) -> Self {
        Self { tls, ..self.clone() }
    }

    /// Returns the time at which Weir's certificate for the server expires, if it has one.
    pub(crate) fn certificate_expiry(&self) -> Option<SystemTime> {
        self.tls.as_ref()?.expiry
    }

    /// Returns the proxy for a URL.
    pub fn proxy(&self, url: &Uri) -> Option<Intercept> {
        let proxies = self.proxies.as_ref().filter(|_| !url.host().is_some_and(is_loopback_host));
        proxies?.matcher.intercept(url)
    }

    pub(super) fn tls(&self) -> Option<&TlsConnector> {
        self.tls.as_ref().map(|tls| &tls.connector)
    }

    /// Prepares a request to this URL for the connection on which it is sent: a proxy for an
    /// unprotected URL gets the whole URL, and its credentials (RFC 9112, 3.2.2).
    pub(crate) fn prepare<B>(&self, url: &Uri, request: &mut Request<B>) {
        if url.scheme_str() != Some("http") {
            return;
        }
        let Some(proxy) = self.proxy(url) else { return };
        let mut whole = url.clone().into_parts();
        whole.path_and_query = request.uri().path_and_query().cloned();
        if let Ok(whole) = Uri::from_parts(whole) {
            *request.uri_mut() = whole;
        }
        let authorization = proxy.basic_auth().map(|it| (PROXY_AUTHORIZATION, it.clone()));
        request.headers_mut().extend(authorization);
    }
}

/// Returns whether a text is the URL of a proxy that speaks HTTP, with nothing behind its port.
pub fn is_proxy(text: &str) -> bool {
    let matcher = Matcher::builder().all(text.to_owned()).build();
    let found = matcher.intercept(&Uri::from_static("https://a.test"));
    let (Some(url), Some(found)) = (proxy_url(text), found) else { return false };
    // The matcher leaves out what it does not use, and both have to read the same host.
    let host = found.uri().host().and_then(|host| Host::parse(host).ok());
    let is_whole = url.path().len() <= 1 && url.query().is_none() && url.fragment().is_none();
    // A password with this character would become a part of the host that messages show.
    let is_split = found.uri().authority().is_some_and(|it| !it.as_str().contains('@'));
    matches!(url.scheme(), "http" | "https")
        && is_whole
        && is_split
        && has_valid_port(found.uri())
        && host.map(|host| host.to_string()).as_deref() == url.host_str()
}

/// Parses the URL of a proxy of any kind, which may lack its scheme.
pub fn proxy_url(text: &str) -> Option<Url> {
    let url = match text.contains("://") {
        true => Url::parse(text),
        false => Url::parse(&format!("http://{text}")),
    };
    url.ok().filter(|url| url.port() != Some(0))
}

/// Returns whether the port of a URL is one, or missing. hyper reads any other text as a missing
/// port.
pub fn has_valid_port(url: &Uri) -> bool {
    let Some(authority) = url.authority() else { return true };
    let whole = authority.as_str().rsplit('@').next().unwrap_or_default();
    match whole.strip_prefix(authority.host()).and_then(|rest| rest.strip_prefix(':')) {
        Some(port) => {
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            is_number && port.parse::<u16>().is_ok_and(|port| port > 0)
        }
        None => true,
    }
}

/// Returns whether an entry of [`ProxySettings::no_proxy`] excepts anything: a name, an address, a
/// network, or `*`. The matcher takes any other text for a name that no host has.
pub fn is_exception(entry: &str) -> bool {
    let name = entry.strip_prefix('.').unwrap_or(entry);
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.bytes().all(is_plain)
    };
    entry == "*"
        || entry.parse::<IpNet>().is_ok()
        || entry.parse::<IpAddr>().is_ok()
        || name.strip_suffix('.').unwrap_or(name).split('.').all(is_label)
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress")
            .field("proxies", &self.proxies.as_ref().map(|proxies| &proxies.matcher))
            .field("tls", &self.tls)
            .finish()
    }
}

impl PartialEq for Proxies {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(proxy: &str, no_proxy: &str) -> Egress {
        let proxy = Some(Secret::from(proxy));
        let no_proxy = no_proxy.to_owned();
        Egress::through(ProxySettings { http: proxy.clone(), https: proxy, no_proxy })
            .expect("a proxy")
    }

    #[test]
    fn a_proxy_is_used_for_all_hosts_but_this_machine_and_the_excepted_ones() {
        let egress = through("http://proxy.test:3128", "internal.test, 10.0.0.0/8");
        for (url, is_used) in [
            ("https://mcp.test/mcp", true),
            ("http://mcp.test:8080/mcp", true),
            ("https://1.2.3.4/", true),
            ("https://internal.test/", false),
            ("https://a.internal.test/", false),
            ("https://notinternal.test/", true),
            ("https://10.1.2.3/", false),
            ("http://localhost:8642/mcp", false),
            ("http://127.0.0.1:8642/mcp", false),
            ("http://[::1]:8642/mcp", false),
        ] {
            assert_eq!(egress.proxy(&Uri::from_static(url)).is_some(), is_used, "{url}");
        }
        let url = Uri::from_static("https://mcp.test");
        assert!(through("http://proxy.test", "*").proxy(&url).is_none());
        assert!(Egress::default().proxy(&url).is_none());
    }

    #[test]
    fn what_is_not_an_http_proxy_is_refused_and_credentials_are_not_shown() {
        let https = |text: &str| ProxySettings {
            https: Some(Secret::from(text)),
            ..ProxySettings::default()
        };
        for wrong in [
            "socks5://proxy.test",
            "http://",
            "pro xy",
            "http://pro xy:3128",
            " http://proxy.test:3128",
            "ftp://proxy.test",
            "http://proxy.test:99999",
            "proxy.test:99999",
            "http://proxy.test:65536",
            "http://proxy.test:0",
            "http://proxy.test:00",
            "http://proxy.test:",
            "proxy.test:",
            "http://proxy.test:port",
            "http://proxy.test:+80",
            "http://proxy.test:-1",
            "http://proxy.test:31 28",
            "http://weir:hunter2@proxy.test:99999",
            "http://weir:hunter2@",
            "http://weir@:3128",
            "weir:hunter2@",
            "http://:3128",
            ":3128",
            "http://::1:3128",
            "::1",
            "::1:3128",
            "http://[::1:3128",
            "http://[::1]3128",
            "http://proxy.test:3128/proxy.pac",
            "http://proxy.test:3128?x",
            "http://proxy.test:3128/?x",
            "http://proxy.test:3128/#x",
            "http://a@b@proxy.test:3128",
        ] {
            assert_eq!(Egress::through(https(wrong)).err().as_deref(), Some("https"), "{wrong}");
        }
        for (good, port) in [
            ("proxy.test:3128", Some(3128)),
            ("proxy.test", None),
            ("https://proxy.test", None),
            ("http://weir:hunter2@[::1]:3128/", Some(3128)),
            ("weir:hunter2@proxy.test:3128", Some(3128)),
            ("http://weir:%40%3a@proxy.test:65535", Some(65535)),
            ("HTTP://Proxy.Test:1", Some(1)),
            ("http://127.1:80", Some(80)),
        ] {
            let egress = Egress::through(https(good)).unwrap_or_else(|_| panic!("{good}"));
            let proxy = egress.proxy(&Uri::from_static("https://mcp.test")).expect("a proxy");
            assert_eq!(proxy.uri().port_u16(), port, "{good}");
        }
        let egress = through("http://weir:hunter2@proxy.test", "");
        let shown = format!("{egress:?}");
        assert!(shown.contains("proxy.test") && !shown.contains("hunter2"), "{shown}");
        assert!(egress != through("http://weir:hunter3@proxy.test", ""));
        assert_eq!(Egress::through(https("")), Ok(Egress::default()), "an empty variable");
    }

    #[test]
    fn a_proxy_for_an_unprotected_url_gets_the_whole_url_and_its_credentials() {
        let egress = through("http://weir:hunter2@proxy.test", "");
        let prepare = |url: &'static str| {
            let mut request = Request::new(());
            *request.uri_mut() = Uri::from_static("/mcp?x=1");
            egress.prepare(&Uri::from_static(url), &mut request);
            let sent = request.headers().get(PROXY_AUTHORIZATION).cloned();
            (request.uri().to_string(), sent.map(|value| value.to_str().expect("text").to_owned()))
        };
        let (uri, sent) = prepare("http://mcp.test:8080/mcp?x=1");
        assert_eq!(uri, "http://mcp.test:8080/mcp?x=1");
        assert_eq!(sent.as_deref(), Some("Basic d2VpcjpodW50ZXIy"));
        assert_eq!(prepare("https://mcp.test/mcp?x=1"), ("/mcp?x=1".to_owned(), None));
        assert_eq!(prepare("http://localhost/mcp?x=1"), ("/mcp?x=1".to_owned(), None));
    }

    #[test]
    fn the_port_of_a_url_is_one_or_missing() {
        for (url, is_valid) in [
            ("https://a.test/x", true),
            ("https://a.test:1/x", true),
            ("https://[::1]:65535/x", true),
            ("https://[::1]", true),
            ("https://a.test:65536/x", false),
            ("https://a.test:0", false),
            ("https://a.test:/x", false),
            ("https://[::1]:99999/x", false),
            ("/x", true),
        ] {
            assert_eq!(has_valid_port(&Uri::from_static(url)), is_valid, "{url}");
        }
    }

    #[test]
    fn an_exception_is_a_name_an_address_a_network_or_a_star() {
        for entry in ["*", "internal.test", ".svc", "a_b.test.", "10.0.0.0/8", "::1", "fd00::/8"] {
            assert!(is_exception(entry), "{entry}");
        }
        for entry in [
            "",
            ".",
            "*.internal.test",
            "internal.*",
            "10.0.0.0/33",
            "10.0.0/8",
            "internal.test:8080",
            "[::1]",
            "http://internal.test",
            "a b",
            "a,b",
            "a..b",
        ] {
            assert!(!is_exception(entry), "{entry}");
        }
    }

    #[test]
    fn this_machine_is_reached_without_a_proxy_in_any_spelling() {
        let egress = through("http://proxy.test:3128", "");
        for url in ["http://127.1/", "http://2130706433/", "http://[::ffff:127.0.0.1]:1/"] {
            assert!(egress.proxy(&Uri::from_static(url)).is_none(), "{url}");
        }
        assert!(egress.proxy(&Uri::from_static("http://localhost.test/")).is_some());
    }
}
