//! `[egress]`, and `tls` of an upstream: the way from Weir to the servers on the network.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::LoadContext;
use crate::keys::shape::{self, ValueShape};
use crate::keys::{Described, by_hand, path, settings, strings};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use crate::reader::variables::Environment;
use crate::secrets::{read_private_key, read_secret};
use weir_base::files::regular_file;
use weir_base::secrets::secret::Secret;
use weir_upstream::connect::Egress;
use weir_upstream::connect::egress::{ProxySettings, is_exception, is_proxy, proxy_url};
use weir_upstream::connect::tls::{TlsProblem, TlsSettings};

settings! {
    /// Proxy for Weir's requests to upstreams with a `url`, to their authorization servers, and to
    /// identity providers. Requests to this machine use none. A change of this table reaches the
    /// requests to identity providers with a restart.
    pub(crate) struct EgressKeys {
        /// The HTTP proxy, also with a user and a password; a secret. `none` means that none is
        /// used. A server with an `https` URL is reached with the method CONNECT, so that the proxy
        /// sees its name only.
        ///
        /// ```toml
        /// proxy = "http://weir:${PROXY_PASSWORD}@proxy.example.com:3128"
        /// ```
        proxy: Option<Secret> = None,
            by_hand(ValueShape::Secret(shape::NOT_EMPTY))
                .default_text("the variables `HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY`");
        /// The hosts that are reached without the proxy: names, which stand for all names below
        /// them, too, addresses, networks, or `*`.
        ///
        /// ```toml
        /// no_proxy = ["internal.example.com", "10.0.0.0/8"]
        /// ```
        no_proxy: Vec<String> = Vec::new(),
            strings(ValueShape::Text("string", shape::NOT_EMPTY), exception)
                .default_text("the variable `NO_PROXY`");
    }
}

settings! {
    /// Keys of `tls` of an upstream.
    pub(super) struct UpstreamTlsKeys {
        /// The CAs of the server's certificate, in PEM, in place of those of the system.
        ///
        /// ```toml
        /// ca = "internal-ca.crt"
        /// ```
        ca: Option<PathBuf> = None, path("path").optional();
        /// Weir's certificate for the server with its chain, in PEM.
        ///
        /// ```toml
        /// cert = "weir.crt"
        /// ```
        cert: Option<PathBuf> = None, path("path").optional();
        /// The private key of this certificate, in PEM; a secret.
        ///
        /// ```toml
        /// key = { file = "secrets/weir.key" }
        /// ```
        key: Option<Secret> = None, by_hand(ValueShape::Secret(shape::NOT_EMPTY));
    }
}

/// Reads `[egress]`, and the variables of the environment that stand for missing keys.
pub(crate) fn read_egress(
    root: &TableReader<'_>,
    context: &LoadContext<'_>,
    environment: &Environment,
) -> Egress {
    root.table("egress", |t| {
        let EgressKeys { no_proxy, .. } = EgressKeys::read(t);
        let proxy = read_secret(t, "proxy", &context.resolver, true);
        // The first of these variables that is not empty, with its name.
        let variable = |names: &[&'static str]| {
            let value = |name: &'static str| environment.get(name).ok().flatten();
            let found = names.iter().filter_map(|name| Some((*name, value(name)?)));
            found.map(|(name, value)| (name, value.to_owned())).find(|(_, it)| !it.is_empty())
        };
        let exceptions = || match t.has("no_proxy") {
            true => no_proxy.join(","),
            false => match variable(&["NO_PROXY", "no_proxy"]) {
                Some((name, value)) => {
                    check_exceptions(root, name, &value);
                    value
                }
                None => String::new(),
            },
        };
        if t.has("proxy") {
            let proxy = proxy.filter(|proxy| proxy.expose() != "none");
            let no_proxy = proxy.as_ref().map(|_| exceptions()).unwrap_or_default();
            let settings = ProxySettings { http: proxy.clone(), https: proxy, no_proxy };
            return Egress::through(settings).unwrap_or_else(|_| {
                t.error("proxy", ValueError::new("this is not the URL of an HTTP proxy", PROXY));
                Egress::default()
            });
        }
        // A wrong variable takes no proxy from the other scheme.
        let proxy_of = |names: [&'static str; 2]| {
            let found = variable(&names).or_else(|| variable(&["ALL_PROXY", "all_proxy"]));
            let (name, value) = found?;
            if is_proxy(&value) {
                return Some(Secret::from(value));
            }
            let what = format!("the variable {name} is not the URL of an HTTP proxy");
            let remedy = format!("correct it, or set egress.proxy: {PROXY}");
            match proxy_url(&value) {
                // Other programs may use it.
                Some(_) => {
                    let remedy = format!("{remedy}; until then no proxy is used for such URLs");
                    root.warning("egress", ValueError::new(what, remedy));
                }
                None => root.error("egress", ValueError::new(what, remedy)),
            }
            None
        };
        let (http, https) =
            (proxy_of(["HTTP_PROXY", "http_proxy"]), proxy_of(["HTTPS_PROXY", "https_proxy"]));
        if http.is_none() && https.is_none() {
            return Egress::default();
        }
        Egress::through(ProxySettings { http, https, no_proxy: exceptions() }).unwrap_or_default()
    })
}

/// Parses a host that is reached without the proxy.
fn exception(v: &SpannedValue<'_>) -> Parsed<String> {
    let entry = value::text(v)?;
    match is_exception(&entry) {
        true => Ok(entry),
        false => Err(ValueError::new("no host is like this", EXCEPTION)),
    }
}

/// Warns of entries of a variable that except no host. Other programs may understand them, and a
/// misplaced URL may contain a password, so they are named by their numbers.
fn check_exceptions(root: &TableReader<'_>, name: &str, value: &str) {
    let entries = value.split(',').map(str::trim).zip(1..);
    let unread = entries.filter(|(entry, _)| !entry.is_empty() && !is_exception(entry));
    let unread: Vec<_> = unread.map(|(_, number)| format!("entry {number}")).collect();
    if !unread.is_empty() {
        let what = format!("{} of the variable {name} excepts no host", unread.join(" and "));
        root.warning("egress", ValueError::new(what, EXCEPTION));
    }
}

/// Forms of a proxy and of an exception.
const PROXY: &str = "write http://host:port or https://host:port, or \"none\"";
const EXCEPTION: &str = "write a name, which stands for all names below it, too, an address, a \
                         network such as 10.0.0.0/8, or *";

/// Reads `tls` of an upstream that is `used`.
pub(super) fn read_tls(
    t: &TableReader<'_>,
    context: &LoadContext<'_>,
    used: bool,
) -> Option<TlsSettings> {
    t.has("tls").then(|| t.table("tls", |t| tls(t, context, used)))?
}

fn tls(t: &TableReader<'_>, context: &LoadContext<'_>, used: bool) -> Option<TlsSettings> {
    let UpstreamTlsKeys { ca, cert, .. } = UpstreamTlsKeys::read(t);
    let key = read_private_key(t, "key", &context.resolver, used);
    for (name, other) in [("cert", "key"), ("key", "cert")] {
        if t.has(name) && !t.has(other) {
            let what = format!("{name} without {other} is no identity");
            t.error(name, ValueError::new(what, format!("add {other}, or remove {name}")));
            return None;
        }
    }
    if t.keys().is_empty() {
        let remedy = "write ca, or cert and key, or remove tls";
        t.table_error(ValueError::new("nothing is set here", remedy));
    }
    if !used || !context.on_disk {
        return None;
    }
    let remedy = "name a file in PEM that Weir's user may read, and that fits the others";
    let read = |name, path: Option<&Path>| match path {
        None => Some(None),
        Some(path) => match regular_file::read(path, MAX_FILE_BYTES) {
            Ok(text) => Some(Some(text)),
            Err(error) => {
                let what = format!("{} cannot be read: {error}", t.source_text(name));
                let problem = ValueError::new(what, remedy);
                let problem = match error.kind() {
                    ErrorKind::NotFound => problem.missing("make it, or correct the path"),
                    _ => problem,
                };
                t.error(name, problem);
                None
            }
        },
    };
    let (ca, cert) = (read("ca", ca.as_deref())?, read("cert", cert.as_deref())?);
    let identity = cert.as_deref().zip(key.as_ref().map(|key| key.expose().as_bytes()));
    match TlsSettings::new(ca.as_deref(), identity) {
        Ok(settings) => Some(settings),
        Err(problem) => {
            let at = match problem {
                TlsProblem::Ca(_) => "ca",
                TlsProblem::Certificate(_) => "cert",
                TlsProblem::Key(_) => "key",
            };
            t.error(at, ValueError::new(problem.to_string(), remedy));
            None
        }
    }
}

/// Size limit per file; a certificate chain is far smaller.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
