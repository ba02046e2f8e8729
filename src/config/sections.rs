//! `[server]`, `[protocol]`, `[naming]` and `[log]`: what clients see of us, and what we tell of ourselves.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Authority;

use super::Surroundings;
use super::upstreams::Upstreams;
use crate::config::reader::report::{Complaint, did_you_mean};
use crate::config::reader::table_reader::Table;
use crate::config::reader::value;
use crate::downstream::http::connection::tls::Files;
use crate::downstream::http::{MESSAGES_PATH, STREAM_PATH};
use crate::downstream::{PerClient, Timeouts};
use crate::mcp::name::{ALTERED_LENGTH, Characters};
use crate::mcp::revision::{Era, Revision};

// === Server ===

/// What clients connect to.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The path of the MCP endpoint; begins with `/`.
    pub path: String,
    /// Values of `Host` to accept beside the loopback names, in lower case; that of `public_url` is among them.
    pub allowed_hosts: Vec<String>,
    /// Values of `Origin` to accept beside loopback ones on a loopback address, in lower case.
    pub allowed_origins: Vec<String>,
    /// The largest message from a client, in bytes.
    pub max_body: usize,
    /// The most bytes of a request's head.
    pub max_head: usize,
    /// The most header fields of a request.
    pub max_headers: usize,
    /// The largest reply that is held because it has to be read, or to go out as a whole, in bytes.
    pub max_reply: usize,
    /// The most bytes that are held for all clients together.
    pub max_buffered: usize,
    /// The most connections at a time.
    pub max_connections: usize,
    /// How long a client may take.
    pub timeouts: Timeouts,
    /// What one client may have at a time.
    pub per_client: PerClient,
    /// How long requests are taken on when the program is told to stop.
    pub shutdown_delay: Option<Duration>,
    /// How long calls may run on when the program is told to stop.
    pub shutdown_grace: Duration,
    /// Whether a change of the configuration's files is taken up by itself.
    pub watch: bool,
    /// The URL under which clients reach the server, if it is not the address itself.
    pub public_url: Option<Uri>,
    /// What connections are secured with; plain HTTP without.
    pub tls: Option<Files>,
}

impl Default for Server {
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
            timeouts: Timeouts::default(),
            per_client: PerClient::default(),
            shutdown_delay: None,
            shutdown_grace: Duration::from_secs(30),
            watch: true,
            public_url: None,
            tls: None,
        }
    }
}

pub(super) fn server(t: &Table<'_>, surroundings: &Surroundings<'_>) -> Server {
    let default = Server::default();
    let public_url = t.read("public_url", |v| {
        let url = value::url(v)?;
        match url.query() {
            None => Ok(url),
            Some(_) => {
                Err(Complaint::new("a public URL has no query", "remove the ? and what follows"))
            }
        }
    });
    let mut allowed_hosts = t.list("allowed_hosts", value::host).unwrap_or_default();
    allowed_hosts.extend(public_url.as_ref().and_then(host_header));
    let listen = t.read("listen", value::socket).unwrap_or(default.listen);
    if !listen.ip().is_loopback() && allowed_hosts.is_empty() {
        let what = "no request can be addressed to this server: no Host is allowed, and only loopback \
                    names are good by themselves";
        let remedy = "set public_url, or name the hosts that clients use in allowed_hosts";
        t.warn("listen", Complaint::new(what, remedy));
    }
    Server {
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
        tls: super::tls::tls(t, surroundings),
    }
}

impl Server {
    /// How its URLs begin.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

fn timeouts(t: &Table<'_>) -> Timeouts {
    let default = Timeouts::default();
    let read = |key, default| t.read(key, value::duration).unwrap_or(default);
    Timeouts {
        handshake: read("handshake", default.handshake),
        head: read("head", default.head),
        body: read("body", default.body),
        write: read("write", default.write),
        idle: read("idle", default.idle),
    }
}

fn per_client(t: &Table<'_>) -> PerClient {
    let default = PerClient::default();
    let read = |key, default| t.read(key, value::count(PER_CLIENT)).unwrap_or(default);
    PerClient {
        calls: read("calls", default.calls),
        waiting: read("waiting", default.waiting),
        wait: t.read("wait", value::duration).unwrap_or(default.wait),
        streams: read("streams", default.streams),
        sessions: read("sessions", default.sessions),
    }
}

/// What a client sends as `Host` for this URL: the scheme's own port is left out.
fn host_header(url: &Uri) -> Option<String> {
    let own_port = if url.scheme_str() == Some("https") { 443 } else { 80 };
    let authority = url.authority().map(Authority::as_str)?;
    let host = authority.strip_suffix(&format!(":{own_port}")).unwrap_or(authority);
    Some(host.to_ascii_lowercase())
}

// === Protocol ===

/// How the protocol is spoken with clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Protocol {
    /// The revisions to serve, newest first; never empty, and all of them known.
    pub versions: Vec<String>,
    /// Whether the deprecated HTTP+SSE pair is served beside the endpoint; then a legacy revision is among
    /// `versions`, and the endpoint's path is none of the pair's.
    pub legacy_sse: bool,
    /// Whether the event streams of legacy sessions can be taken up again after a lost connection.
    pub resumable: bool,
    /// How long a legacy session may be idle.
    pub session_ttl: Duration,
    /// How often a silent stream gets a comment.
    pub sse_keepalive: Duration,
    /// The most items on one page of a list.
    pub page_size: usize,
    /// Whether clients are told what upstreams say about their use.
    pub instructions: bool,
}

impl Default for Protocol {
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

pub(super) fn protocol(t: &Table<'_>, server: &Server) -> Protocol {
    let default = Protocol::default();
    let mut versions = t.list("versions", |v| {
        let version = value::string(v)?;
        let unknown = || {
            let remedy = did_you_mean(version, VERSIONS);
            let remedy = remedy.unwrap_or_else(|| format!("one of: {}", VERSIONS.join(", ")));
            Complaint::new(format!("{version:?} is not a revision of the protocol"), remedy)
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
    if t.written("versions")
        .and_then(|v| v.get_ref().as_array())
        .is_some_and(|list| list.is_empty())
    {
        t.object(
            "versions",
            Complaint::new("no revision is left to speak", "name one, or remove the key for all"),
        );
    }
    let versions = versions.unwrap_or(default.versions);
    let legacy_sse = t.read("legacy_sse", value::boolean).unwrap_or(default.legacy_sse);
    if legacy_sse {
        check_pair(t, &versions, &server.path);
    }
    Protocol {
        versions,
        legacy_sse,
        resumable: t.read("resumable", value::boolean).unwrap_or(default.resumable),
        session_ttl: t.read("session_ttl", value::duration).unwrap_or(default.session_ttl),
        sse_keepalive: t.read("sse_keepalive", value::duration).unwrap_or(default.sse_keepalive),
        page_size: t.read("page_size", value::count(PAGE_SIZES)).unwrap_or(default.page_size),
        instructions: t.read("instructions", value::boolean).unwrap_or(default.instructions),
    }
}

/// Objects to what leaves the HTTP+SSE pair without a revision to speak or without a path of its own.
fn check_pair(t: &Table<'_>, versions: &[String], path: &str) {
    let is_legacy =
        |text: &String| text.parse::<Revision>().is_ok_and(|one| one.era() == Era::Legacy);
    // An empty list has been objected to already.
    if !versions.is_empty() && !versions.iter().any(is_legacy) {
        let what = "no revision in `versions` is spoken over HTTP+SSE";
        let remedy = "add one before 2026-07-28 to `versions`, or remove this key";
        t.object("legacy_sse", Complaint::new(what, remedy));
    }
    if [STREAM_PATH, MESSAGES_PATH].contains(&path) {
        let what = format!("server.path is {path:?}, which is a path of HTTP+SSE");
        t.object("legacy_sse", Complaint::new(what, "set another server.path, or remove this key"));
    }
}

// === Naming ===

/// How items are named towards clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Naming {
    /// Whether names carry their upstream's prefix.
    pub mode: NamingMode,
    /// What stands between prefix and name; begins with `_`.
    pub separator: String,
    /// Characters that names may have; others are replaced.
    pub characters: Characters,
    /// The longest name, in bytes; longer ones are shortened.
    pub max_length: usize,
}

impl Default for Naming {
    fn default() -> Self {
        Self {
            mode: NamingMode::Always,
            separator: "__".to_owned(),
            characters: Characters::Portable,
            max_length: 53,
        }
    }
}

/// Whether names carry their upstream's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingMode {
    /// They do, whatever the number of upstreams.
    Always,
    /// They do not; there is exactly one upstream.
    None,
}

pub(super) fn naming(t: &Table<'_>, upstreams: &Upstreams) -> Naming {
    let default = Naming::default();
    let mode = t.read("mode", value::choice(&NAMING_MODES)).unwrap_or(default.mode);
    let enabled_upstreams = upstreams.enabled;
    if mode == NamingMode::None && enabled_upstreams != 1 {
        let what =
            format!("\"none\" is for exactly one upstream, and {enabled_upstreams} are enabled");
        t.object(
            "mode",
            Complaint::new(what, "write \"always\", or set enabled = false on the others"),
        );
    }
    let naming = Naming {
        mode,
        separator: t.read("separator", value::separator).unwrap_or(default.separator),
        characters: t.read("characters", value::choice(&CHARACTERS)).unwrap_or(default.characters),
        max_length: t.read("max_length", value::count(NAME_LENGTHS)).unwrap_or(default.max_length),
    };
    let prefixes = upstreams.outlines.iter().filter(|it| it.enabled && mode == NamingMode::Always);
    let longest = prefixes.filter_map(|it| it.prefix.as_deref()).max_by_key(|it| it.len());
    let needed = longest.map_or(0, |it| it.len() + naming.separator.len() + ALTERED_LENGTH);
    if naming.max_length < needed {
        let max_length = naming.max_length;
        let longest = longest.unwrap_or_default();
        let what = format!("{max_length} leaves no room for names behind the prefix {longest:?}");
        let remedy = format!("write at least {needed}, or give that upstream a shorter prefix");
        t.object("max_length", Complaint::new(what, remedy));
    }
    naming
}

// === Log ===

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// The least severe level that is logged.
    pub level: tracing::Level,
    /// What a line looks like.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: tracing::Level::INFO, format: LogFormat::Auto }
    }
}

/// What a line of the log looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// For machines.
    Json,
}

pub(super) fn log(t: &Table<'_>) -> Log {
    let default = Log::default();
    Log {
        level: t.read("level", value::choice(&LOG_LEVELS)).unwrap_or(default.level),
        format: t.read("format", value::choice(&LOG_FORMATS)).unwrap_or(default.format),
    }
}

/// The revisions that can be served, newest first.
pub(super) const VERSIONS: [&str; 5] =
    ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

pub(super) const NAMING_MODES: [(&str, NamingMode); 2] =
    [("always", NamingMode::Always), ("none", NamingMode::None)];

pub(super) const CHARACTERS: [(&str, Characters); 2] =
    [("portable", Characters::Portable), ("any", Characters::Any)];

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
pub(super) const NAME_LENGTHS: RangeInclusive<usize> = 32..=128;
