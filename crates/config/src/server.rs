//! `[server]`: the HTTP endpoint for clients, with its certificate and the CAs of client
//! certificates.

pub(super) mod fleet;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Authority;
use ipnet::IpNet;

use super::LoadContext;
use super::secrets::read_private_key;
use crate::keys::shape::{self, ValueShape};
use crate::keys::{
    Described, boolean, by_hand, choice, count, duration, networks, path, settings, size, string,
    strings, table,
};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use weir_downstream::host_check::AllowedHost;
use weir_downstream::http::connection::tls::{Tls, TlsFileError, TlsFiles, TlsKey};
use weir_downstream::{self as downstream, ClientQuota, ConnectionTimeouts};

settings! {
    /// The HTTP endpoint that clients connect to.
    pub struct ServerConfig {
        /// The address and port to listen on. Any address other than a loopback address
        /// (`127.0.0.1`, `[::1]`) can be reached from the network: then clients need keys, and
        /// `public_url` or `allowed_hosts` must be set.
        ///
        /// ```toml
        /// listen = "0.0.0.0:8642"
        /// ```
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8642)),
            string("IP address and port", shape::SOCKET, value::socket);
        /// The path of the MCP endpoint: by default clients connect to `http://127.0.0.1:8642/mcp`.
        path: String = downstream::DEFAULT_PATH.to_owned(),
            string("path of a URL", shape::PATH, value::path);
        /// The URL under which clients reach Weir, if it differs from the address above: set it
        /// when Weir runs behind a reverse proxy. Its host is accepted as `Host` in addition to
        /// `allowed_hosts`. It has no query.
        ///
        /// ```toml
        /// public_url = "https://mcp.example.com"
        /// ```
        public_url: Option<Uri> = None,
            string("http or https URL", shape::URL_WITHOUT_QUERY, public_url).optional();
        /// Values of the `Host` header that are accepted, in addition to the host of `public_url`;
        /// other values get 403, and the log has a warning about each, once. A value without a port
        /// matches every port. On a loopback address the loopback names are always accepted.
        ///
        /// ```toml
        /// allowed_hosts = ["weir.lan", "10.0.0.5:8642"]
        /// ```
        allowed_hosts: Vec<String> = Vec::new(),
            strings(ValueShape::Text("host, or host:port", shape::HOST), value::host);
        /// Values of the `Origin` header that are accepted, for clients that run in a browser: the
        /// pages of these origins may use the endpoint and read its responses (CORS). Requests with
        /// other values get 403, and requests without the header are accepted. On a loopback
        /// address origins with loopback names are accepted as well, but without CORS as long as
        /// they are not written here: a browser does not let their pages call tools.
        ///
        /// ```toml
        /// allowed_origins = ["https://app.example.com"]
        /// ```
        allowed_origins: Vec<String> = Vec::new(),
            strings(ValueShape::Text("origin", shape::ORIGIN), value::origin);
        /// The networks of the proxies and load balancers in front of Weir. The address that such a
        /// proxy names in `X-Forwarded-For`, or in `Forwarded`, is that of the client, for limits
        /// by address and the audit log. A proxy has to set the header, or to append to it.
        ///
        /// ```toml
        /// trusted_proxies = ["10.0.0.0/8", "2001:db8::/32"]
        /// ```
        trusted_proxies: Vec<IpNet> = Vec::new(), networks();
        /// The largest message from a client; a larger one gets 413. Raise it for tools that take
        /// large arguments.
        max_body: usize = downstream::MAX_BODY_BYTES, size();
        /// The largest head of a request, all header fields together; a larger one gets 431. Values
        /// below 8 KiB count as 8 KiB. Raise it for tokens with very many claims.
        max_head: usize = downstream::MAX_HEAD_BYTES, size();
        /// Maximum number of header fields of a request; a request with more gets 431.
        max_headers: usize = downstream::MAX_HEADERS, count(16..=1_000);
        /// The largest response that is buffered because Weir has to read all of it first, or has
        /// to send it in one piece: over `weir stdio` and HTTP+SSE, in batches, between two eras,
        /// and with `resumable`. A larger response ends its call with error 5130. Other responses
        /// are streamed as they arrive, up to the upstream's `limits.max_message`.
        max_reply: usize = downstream::MAX_RESPONSE_BYTES, size();
        /// The most bytes that Weir buffers for all clients together: requests in progress,
        /// messages of upstreams while they are assembled and until they are passed on, and
        /// responses and notifications that wait to be read. A message of at most 16 KiB always
        /// fits, and most of these are not counted. From 85 % on, idle connections are closed after
        /// 5 s; from 92 % on, connections are closed after their response and no stream is opened;
        /// from 95 % on, larger messages of clients get 503, and calls with larger responses end
        /// with error 5130; a message that is already on its way to a client and does not fit is
        /// replaced by an error. The upstream of such a call is not stopped: it has executed the
        /// call.
        max_buffered: usize = downstream::MAX_BUFFERED_BYTES, size();
        /// Maximum number of open connections; further ones wait until one is closed, and
        /// connections that have had no request for a second are closed for them. Never more than
        /// half of the file descriptors that the process may have: Weir raises its soft limit as
        /// far as this number needs and the hard limit allows.
        max_connections: usize = 10_000, count(1..=1_000_000);
        /// Time limits for a client on one connection; the connection is closed when one of them is
        /// exceeded.
        timeouts: ConnectionTimeouts = ConnectionTimeouts::default(), table();
        /// Limits on what one client may have open at a time. All clients without credentials
        /// together count as 16 clients. For rates there is `[[limits]]`.
        per_client: ClientQuota = ClientQuota::default(), table();
        /// Age at which a session (`Mcp-Session-Id`, revisions before 2026-07-28) ends; its client
        /// then has to start a new one. Until then a client may use its session again, also after
        /// a restart of Weir.
        session_max_age: Duration = downstream::SESSION_MAX_AGE, duration();
        /// Time after SIGTERM, SIGINT or SIGQUIT in which Weir serves as before but is no longer
        /// ready, so that a load balancer can notice. Without it Weir stops accepting requests at
        /// once. In a fleet, other replicas take over its sessions meanwhile, and without this key
        /// the time is 15 s.
        ///
        /// ```toml
        /// shutdown_delay = "5s"
        /// ```
        shutdown_delay: Option<Duration> = None, duration().optional();
        /// Time that calls in flight may continue after SIGTERM, SIGINT or SIGQUIT, before they are
        /// aborted.
        shutdown_grace: Duration = Duration::from_secs(30), duration();
        /// With `true` Weir reloads the configuration when one of its files, or a file that
        /// contains a secret, changes; SIGHUP and `weir reload` reload it in any case.
        watch: bool = true, boolean();
        /// TLS towards clients: the endpoint is then `https`. Without it, put a reverse proxy with
        /// TLS in front of Weir wherever others can read the traffic.
        ///
        /// ```toml
        /// #[server.tls]
        /// #cert = "tls.crt"
        /// #key = { file = "secrets/tls.key" }
        /// #client_ca = "clients.crt"
        /// #client_certificates = "optional"
        /// ```
        tls: Option<TlsFiles> = None, by_hand(ValueShape::Table(TlsKeys::keys()));
    }
}

settings! {
    for ConnectionTimeouts {
        /// For the TLS handshake.
        handshake: duration();
        /// For a request's head, counted from its first byte or from the start of the connection.
        head: duration();
        /// For a request's body; after that the request gets 408.
        body: duration();
        /// While the client reads none of the bytes that are sent to it.
        write: duration();
        /// Between two requests.
        idle: duration();
    }
}

settings! {
    for ClientQuota {
        /// Requests in progress.
        calls: count(PER_CLIENT);
        /// Requests that wait because `calls` is reached; further ones are refused at once.
        waiting: count(PER_CLIENT);
        /// Time that such a request waits; after that it is refused.
        wait: duration();
        /// Streams of `subscriptions/listen`, in revision 2026-07-28, which has no sessions.
        streams: count(PER_CLIENT);
        /// Sessions in memory, in the revisions that have them. When a client opens one more, the
        /// one that has been idle longest is dropped, and rebuilt with its next request.
        sessions: count(PER_CLIENT);
    }
}

impl ServerConfig {
    /// Returns the scheme of its URLs.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

pub(super) fn read_server(t: &TableReader<'_>, context: &LoadContext<'_>) -> ServerConfig {
    let mut server = ServerConfig::read(t);
    server.tls = read_tls(t, context);
    server.allowed_hosts.extend(server.public_url.as_ref().and_then(host_header));
    if !server.listen.ip().is_loopback() && server.allowed_hosts.is_empty() {
        let what = "no request can be addressed to this server: no Host is allowed, and only \
                    loopback names are allowed by default";
        let remedy = "set public_url, or name the hosts that clients use in allowed_hosts";
        t.warning("listen", ValueError::new(what, remedy));
    }
    server
}

fn public_url(v: &SpannedValue<'_>) -> Parsed<Uri> {
    let url = value::url(v)?;
    if url.query().is_some() {
        return Err(ValueError::new("a public URL has no query", "remove the ? and what follows"));
    }
    match host_header(&url).is_none_or(|host| host.parse::<AllowedHost>().is_ok()) {
        true => Ok(url),
        false => Err(ValueError::new(
            "no client can name the host of this URL",
            "write its host like \"mcp.example.com\", without a dot at its end",
        )),
    }
}

/// Returns the `Host` that a client sends for this URL: the default port of the scheme is left out.
fn host_header(url: &Uri) -> Option<String> {
    let own_port = if url.scheme_str() == Some("https") { 443 } else { 80 };
    let authority = url.authority().map(Authority::as_str)?;
    let host = authority.strip_suffix(&format!(":{own_port}")).unwrap_or(authority);
    Some(host.to_ascii_lowercase())
}

// === TLS ===

settings! {
    /// Keys of `[server.tls]`.
    struct TlsKeys {
        /// The server's certificate with its chain up to the CA, in PEM. The file is read again
        /// when it changes.
        cert: Option<PathBuf> = None, path("path").optional().required();
        /// The certificate's private key, in PEM; a secret. A key in a `file` is read again when
        /// the file changes.
        key: Option<TlsKey> = None, by_hand(ValueShape::Secret(shape::ANYTHING)).required();
        /// The CAs of the clients, in PEM: Weir requests a certificate from clients, and one of
        /// these CAs must have signed it. `clients.<name>.certificates` says which client a
        /// certificate belongs to. The file is read again when it changes; a connection whose
        /// certificate has expired, or was signed by a CA that is no longer in the file, ends
        /// within five seconds, and from the expiry on no request on it is served. TLS sessions are
        /// not resumed when this key is set.
        client_ca: Option<PathBuf> = None, path("path").optional();
        /// With `optional` a client may connect without a certificate and present a key instead. A
        /// client that presents a key is the client of that key, whatever its certificate says.
        client_certificates: bool = false, choice(&[("optional", false), ("required", true)]);
    }
}

/// Reads the table, and with `on_disk` also checks the files that it names. Returns `None` if the
/// table is missing or invalid, which is reported.
fn read_tls(t: &TableReader<'_>, context: &LoadContext<'_>) -> Option<TlsFiles> {
    t.has("tls").then(|| t.table("tls", |t| files(t, context)))?
}

fn files(t: &TableReader<'_>, context: &LoadContext<'_>) -> Option<TlsFiles> {
    let keys = TlsKeys::read(t);
    let key = key(t, context);
    for (name, what) in [("cert", "the server's certificate"), ("key", "its private key")] {
        if !t.has(name) {
            let what = format!("{name} is missing: {what}, in PEM");
            t.table_error(ValueError::new(what, format!("add {name} = {}", example(name))));
        }
    }
    if t.has("client_certificates") && !t.has("client_ca") {
        let what = "without client_ca Weir requests no client certificates";
        t.error(
            "client_certificates",
            ValueError::new(what, "name the CA of the clients, or remove it"),
        );
    }
    let files = TlsFiles {
        certificate: keys.cert?,
        key: key?,
        client_ca: keys.client_ca,
        client_required: keys.client_certificates,
    };
    if context.on_disk
        && let Err(broken) = Tls::open(files.clone())
    {
        let at = match broken {
            TlsFileError::Certificate(_) => "cert",
            TlsFileError::Key(_) => "key",
            TlsFileError::ClientCa(_) => "client_ca",
        };
        let remedy = "name a file in PEM that Weir's user may read, and that fits the others";
        t.error(at, ValueError::new(broken.to_string(), remedy));
    }
    Some(files)
}

fn example(key: &str) -> &'static str {
    match key {
        "cert" => "\"/etc/weir/tls.crt\"",
        _ => "{ file = \"/etc/weir/tls.key\" }",
    }
}

/// Reads the private key: a secret, but a key in a file is read again when the file changes.
fn key(t: &TableReader<'_>, context: &LoadContext<'_>) -> Option<TlsKey> {
    let text = read_private_key(t, "key", &context.resolver, true)?;
    let file = t.get("key").and_then(|v| v.get_ref().as_table()?.get("file")?.get_ref().as_str());
    match file {
        Some(file) => Some(TlsKey::File(t.base_folder("key").join(file))),
        None => Some(TlsKey::Text(text)),
    }
}

/// Parses a name of a certificate: `dns:<name>`, `uri:<URI>` or `sha256:<hex>`.
pub(super) fn certificate_name(v: &SpannedValue<'_>) -> Parsed<String> {
    let text = value::string(v)?;
    let bad = |what: &str, remedy: &str| Err(ValueError::new(what.to_owned(), remedy.to_owned()));
    match text.split_once(':') {
        Some(("dns", name)) if !name.is_empty() => Ok(format!("dns:{}", name.to_ascii_lowercase())),
        Some(("uri", uri)) if uri.contains(':') => Ok(text.to_owned()),
        Some(("sha256", hex)) => {
            match hex.len() == 64 && hex.bytes().all(|it| it.is_ascii_hexdigit()) {
                true => Ok(text.to_ascii_lowercase()),
                false => bad(
                    "this is not a SHA-256",
                    "write 64 digits: openssl x509 -outform der | sha256sum",
                ),
            }
        }
        _ => bad(
            "this is not a name of a certificate",
            "write \"dns:<name>\" or \"uri:<URI>\" of its subjectAltName, or \
             \"sha256:<its fingerprint>\"",
        ),
    }
}

const PER_CLIENT: std::ops::RangeInclusive<usize> = 1..=100_000;
