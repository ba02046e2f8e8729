//! `[server]`, `[protocol]` and `[log]`: the HTTP endpoint, MCP towards clients, and the log.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Authority;

use super::LoadContext;
use crate::config::reader::report::{ValueError, did_you_mean};
use crate::config::reader::table_reader::TableReader;
use crate::config::reader::value;
use crate::downstream::http::connection::tls::TlsFiles;
use crate::downstream::http::{MESSAGES_PATH, STREAM_PATH};
use crate::downstream::{ClientQuota, ConnectionTimeouts};

use crate::mcp::revision::{Era, Revision};

// === Server ===

/// HTTP server for clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Path of the MCP endpoint; begins with `/`.
    pub path: String,
    /// Accepted values of `Host` besides the loopback names, in lower case; includes that of
    /// `public_url`.
    pub allowed_hosts: Vec<String>,
    /// Accepted values of `Origin`, in lower case; loopback ones are implied on a loopback address.
    pub allowed_origins: Vec<String>,
    /// Largest message from a client, in bytes.
    pub max_body: usize,
    /// Largest head of a request, in bytes.
    pub max_head: usize,
    /// Maximum number of header fields of a request.
    pub max_headers: usize,
    /// Largest response that is buffered because it has to be read or sent as a whole, in bytes.
    pub max_reply: usize,
    /// Maximum number of bytes that are buffered for all clients together.
    pub max_buffered: usize,
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Time limits for a client on one connection.
    pub timeouts: ConnectionTimeouts,
    /// Concurrency limits of one client.
    pub per_client: ClientQuota,
    /// Time for which requests are still accepted after a stop signal.
    pub shutdown_delay: Option<Duration>,
    /// Time for which calls may continue after a stop signal.
    pub shutdown_grace: Duration,
    /// True if a change of the configuration's files causes a reload.
    pub watch: bool,
    /// URL under which clients reach the server, if it differs from the address.
    pub public_url: Option<Uri>,
    /// TLS files; `None` means plain HTTP.
    pub tls: Option<TlsFiles>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8642)),
            path: "/mcp".to_owned(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body: 4 << 20,
            max_head: 16 << 10,
            max_headers: 100,
            max_reply: 8 << 20,
            max_buffered: 128 << 20,
            max_connections: 10_000,
            timeouts: ConnectionTimeouts::default(),
            per_client: ClientQuota::default(),
            shutdown_delay: None,
            shutdown_grace: Duration::from_secs(30),
            watch: true,
            public_url: None,
            tls: None,
        }
    }
}

pub(super) fn read_server(t: &TableReader<'_>, context: &LoadContext<'_>) -> ServerConfig {
    let default = ServerConfig::default();
    let public_url = t.read("public_url", |v| {
        let url = value::url(v)?;
        match url.query() {
            None => Ok(url),
            Some(_) => {
                Err(ValueError::new("a public URL has no query", "remove the ? and what follows"))
            }
        }
    });
    let mut allowed_hosts = t.list("allowed_hosts", value::host).unwrap_or_default();
    allowed_hosts.extend(public_url.as_ref().and_then(host_header));
    let listen = t.read("listen", value::socket).unwrap_or(default.listen);
    if !listen.ip().is_loopback() && allowed_hosts.is_empty() {
        let what = "no request can be addressed to this server: no Host is allowed, and only \
                    loopback names are allowed by default";
        let remedy = "set public_url, or name the hosts that clients use in allowed_hosts";
        t.warning("listen", ValueError::new(what, remedy));
    }
    ServerConfig {
        listen,
        path: t.read("path", value::path).unwrap_or(default.path),
        allowed_hosts,
        allowed_origins: t.list("allowed_origins", value::origin).unwrap_or_default(),
        max_body: t.read("max_body", value::size).unwrap_or(default.max_body),
        max_head: t.read("max_head", value::size).unwrap_or(default.max_head),
        max_headers: t.read("max_headers", value::count(HEADERS)).unwrap_or(default.max_headers),
        max_reply: t.read("max_reply", value::size).unwrap_or(default.max_reply),
        max_buffered: t.read("max_buffered", value::size).unwrap_or(default.max_buffered),
        max_connections: t
            .read("max_connections", value::count(CONNECTIONS))
            .unwrap_or(default.max_connections),
        timeouts: t.table("timeouts", timeouts),
        per_client: t.table("per_client", per_client),
        shutdown_delay: t.read("shutdown_delay", value::duration),
        shutdown_grace: t.read("shutdown_grace", value::duration).unwrap_or(default.shutdown_grace),
        watch: t.read("watch", value::boolean).unwrap_or(default.watch),
        public_url,
        tls: super::tls::read_tls(t, context),
    }
}

impl ServerConfig {
    /// Returns the scheme of its URLs.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

fn timeouts(t: &TableReader<'_>) -> ConnectionTimeouts {
    let default = ConnectionTimeouts::default();
    let read = |key, default| t.read(key, value::duration).unwrap_or(default);
    ConnectionTimeouts {
        handshake: read("handshake", default.handshake),
        head: read("head", default.head),
        body: read("body", default.body),
        write: read("write", default.write),
        idle: read("idle", default.idle),
    }
}

fn per_client(t: &TableReader<'_>) -> ClientQuota {
    let default = ClientQuota::default();
    let read = |key, default| t.read(key, value::count(PER_CLIENT)).unwrap_or(default);
    ClientQuota {
        calls: read("calls", default.calls),
        waiting: read("waiting", default.waiting),
        wait: t.read("wait", value::duration).unwrap_or(default.wait),
        streams: read("streams", default.streams),
        sessions: read("sessions", default.sessions),
    }
}

/// Returns the `Host` that a client sends for this URL: the default port of the scheme is left out.
fn host_header(url: &Uri) -> Option<String> {
    let own_port = if url.scheme_str() == Some("https") { 443 } else { 80 };
    let authority = url.authority().map(Authority::as_str)?;
    let host = authority.strip_suffix(&format!(":{own_port}")).unwrap_or(authority);
    Some(host.to_ascii_lowercase())
}

// === Protocol ===

/// Settings of MCP towards clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ProtocolConfig {
    /// Revisions to serve, newest first; never empty, and all of them known.
    pub versions: Vec<String>,
    /// True if the deprecated HTTP+SSE transport is served in addition; then `versions` contains a
    /// legacy revision, and the endpoint's path differs from the paths of that transport.
    pub legacy_sse: bool,
    /// True if event streams of legacy sessions can be resumed after a lost connection.
    pub resumable: bool,
    /// Idle time after which a legacy session ends.
    pub session_ttl: Duration,
    /// Interval of comments on an idle stream.
    pub sse_keepalive: Duration,
    /// Maximum number of items on one page of a list.
    pub page_size: usize,
    /// True if clients get the instructions of upstreams.
    pub instructions: bool,
}

impl Default for ProtocolConfig {
    fn default() -> Self {
        Self {
            versions: VERSIONS.map(str::to_owned).to_vec(),
            legacy_sse: false,
            resumable: false,
            session_ttl: Duration::from_mins(30),
            sse_keepalive: Duration::from_secs(15),
            page_size: 200,
            instructions: true,
        }
    }
}

pub(super) fn read_protocol(t: &TableReader<'_>, server: &ServerConfig) -> ProtocolConfig {
    let default = ProtocolConfig::default();
    let mut versions = t.list("versions", |v| {
        let version = value::string(v)?;
        let unknown = || {
            let remedy = did_you_mean(version, VERSIONS);
            let remedy = remedy.unwrap_or_else(|| format!("one of: {}", VERSIONS.join(", ")));
            ValueError::new(format!("{version:?} is not a revision of the protocol"), remedy)
        };
        VERSIONS
            .iter()
            .find(|known| **known == version)
            .map(|known| known.to_string())
            .ok_or_else(unknown)
    });
    if let Some(versions) = &mut versions {
        versions.sort_by(|a, b| b.cmp(a));
        versions.dedup();
    }
    if t.get("versions").and_then(|v| v.get_ref().as_array()).is_some_and(|list| list.is_empty()) {
        t.error(
            "versions",
            ValueError::new("no revision is left", "name one, or remove the key for all"),
        );
    }
    let versions = versions.unwrap_or(default.versions);
    let legacy_sse = t.read("legacy_sse", value::boolean).unwrap_or(default.legacy_sse);
    if legacy_sse {
        check_http_sse(t, &versions, &server.path);
    }
    ProtocolConfig {
        versions,
        legacy_sse,
        resumable: t.read("resumable", value::boolean).unwrap_or(default.resumable),
        session_ttl: t.read("session_ttl", value::duration).unwrap_or(default.session_ttl),
        sse_keepalive: t.read("sse_keepalive", value::duration).unwrap_or(default.sse_keepalive),
        page_size: t.read("page_size", value::count(PAGE_SIZES)).unwrap_or(default.page_size),
        instructions: t.read("instructions", value::boolean).unwrap_or(default.instructions),
    }
}

/// Reports values that leave the HTTP+SSE transport without a revision or without a path of its
/// own.
fn check_http_sse(t: &TableReader<'_>, versions: &[String], path: &str) {
    let is_legacy =
        |text: &String| text.parse::<Revision>().is_ok_and(|one| one.era() == Era::Legacy);
    // An empty list has been reported already.
    if !versions.is_empty() && !versions.iter().any(is_legacy) {
        let what = "no revision in `versions` uses HTTP+SSE";
        let remedy = "add one before 2026-07-28 to `versions`, or remove this key";
        t.error("legacy_sse", ValueError::new(what, remedy));
    }
    if [STREAM_PATH, MESSAGES_PATH].contains(&path) {
        let what = format!("server.path is {path:?}, which is a path of HTTP+SSE");
        t.error("legacy_sse", ValueError::new(what, "set another server.path, or remove this key"));
    }
}

// === Log ===

/// Settings of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// Least severe level that is logged.
    pub level: tracing::Level,
    /// Format of a line.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: tracing::Level::INFO, format: LogFormat::Auto }
    }
}

/// Format of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// Text for people.
    Pretty,
    /// JSON for machines.
    Json,
}

pub(super) fn read_log(t: &TableReader<'_>) -> LogConfig {
    let default = LogConfig::default();
    LogConfig {
        level: t.read("level", value::choice(&LOG_LEVELS)).unwrap_or(default.level),
        format: t.read("format", value::choice(&LOG_FORMATS)).unwrap_or(default.format),
    }
}

/// Supported revisions, newest first.
pub(super) const VERSIONS: [&str; 5] =
    ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

pub(super) const LOG_LEVELS: [(&str, tracing::Level); 5] = [
    ("error", tracing::Level::ERROR),
    ("warn", tracing::Level::WARN),
    ("info", tracing::Level::INFO),
    ("debug", tracing::Level::DEBUG),
    ("trace", tracing::Level::TRACE),
];

pub(super) const LOG_FORMATS: [(&str, LogFormat); 3] =
    [("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];

pub(super) const CONNECTIONS: RangeInclusive<usize> = 1..=1_000_000;
pub(super) const HEADERS: RangeInclusive<usize> = 16..=1_000;
pub(super) const PER_CLIENT: RangeInclusive<usize> = 1..=100_000;
pub(super) const PAGE_SIZES: RangeInclusive<usize> = 1..=10_000;
