//! MCP server side of the gateway: clients of both eras, over HTTP and over stdio.
//!
//! A transport ([`http`], [`stdio`]) frames messages and detects that its client is gone. [`era`]
//! decides once which era a message belongs to; after that one of two dialects (`legacy`, `modern`)
//! handles it. A dialect turns a request into a response future, perhaps with notifications and
//! requests of its own before the response, or into an open notification stream. The transport
//! writes it out.
//!
//! Invariants: every request that was read gets one response, unless its client has cancelled it or
//! disconnected; the gateway receives nothing before Host, Origin and credentials are verified.
//! JSON-RPC error codes, HTTP statuses and client request ids appear in this module only.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

mod batch;
mod client_requests;
pub mod era;
pub mod host_check;
pub mod http;
mod in_flight;
mod legacy;
mod limits;
mod modern;
mod request_meta;
mod request_parts;
mod response;
mod server_state;
mod session;
pub mod stdio;
mod stream_session;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use crate::legacy::stdio_handshake::read_handshake;
pub use crate::limits::client_limits::{ClientQuota, ConnectionTimeouts};
use crate::limits::concurrency::ConcurrencyLimiter;
use crate::limits::shared_questions::SharedQuestions;
use crate::limits::stream_limit::StreamLimiter;
use era::Versions;
use host_check::{AllowedHost, Origin, RefusedValues};
use http::ProtectedResource;
use http::connection::idle_eviction::OpenConnections;
use http::http_sse::SseSessions;
pub use server_state::ServerStateCell;
pub use session::SessionLifetime;
use session::Sessions;
use session::session_records::RecordPlace;
use weir_access::policy::Principal;
use weir_base::memory::memory_budget::{BufferLimit, MemoryBudget};
use weir_base::memory::quota::PerPrincipal;
use weir_fleet::Fleet;
use weir_gateway::{ConfigSnapshot, Gateway};
use weir_record::audit::Audit;

/// Settings of the downstream side.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The path of the MCP endpoint.
    pub path: String,
    /// True if only this machine can connect: loopback names are then accepted as Host and Origin.
    pub loopback: bool,
    /// Accepted Host values, in addition to the loopback names.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Accepted Origin values, in addition to the loopback ones.
    pub allowed_origins: Vec<Origin>,
    /// The largest message from a client, in bytes.
    pub max_body: usize,
    /// Largest upstream response that is buffered because it is inspected or written as a whole, in
    /// bytes.
    pub max_response: usize,
    /// Networks of the proxies that are believed when they name the address of a client.
    pub trusted_proxies: Vec<IpNet>,
    /// Supported protocol revisions.
    pub versions: Versions,
    /// True if the deprecated HTTP+SSE transport is served in addition to Streamable HTTP.
    pub legacy_sse: bool,
    /// True if event streams of legacy sessions can be resumed.
    pub resumable: bool,
    /// Path prefix that a proxy adds in front of the paths: empty, or a path without a trailing
    /// slash.
    pub public_prefix: String,
    /// Protected resource metadata, if tokens are accepted.
    pub protected_resource: Option<ProtectedResource>,
    /// Time limits of legacy sessions.
    pub session_lifetime: SessionLifetime,
    /// File with the ends and settings of sessions; without one they end with the process.
    pub session_records: Option<PathBuf>,
    /// Interval of the comments that keep a silent stream alive.
    pub sse_keepalive: Duration,
    /// Largest size of a request head over HTTP, in bytes; at least 8 KiB.
    pub max_head: usize,
    /// Largest number of header fields in a request.
    pub max_headers: usize,
    /// Time limits for clients.
    pub timeouts: ConnectionTimeouts,
    /// Limits per client.
    pub per_client: ClientQuota,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            path: DEFAULT_PATH.to_owned(),
            loopback: true,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body: MAX_BODY_BYTES,
            max_response: MAX_RESPONSE_BYTES,
            trusted_proxies: Vec::new(),
            versions: Versions::default(),
            legacy_sse: false,
            resumable: false,
            public_prefix: String::new(),
            protected_resource: None,
            session_lifetime: SessionLifetime { idle: SESSION_TTL, max_age: SESSION_MAX_AGE },
            session_records: None,
            sse_keepalive: SSE_KEEPALIVE,
            max_head: MAX_HEAD_BYTES,
            max_headers: MAX_HEADERS,
            timeouts: ConnectionTimeouts::default(),
            per_client: ClientQuota::default(),
        }
    }
}

/// Parts of the process that serve its clients under every configuration.
pub struct ServerParts {
    /// The gateway behind the server.
    pub gateway: Arc<Gateway>,
    /// Replicas that serve the same clients; the records of sessions are in their store then.
    pub fleet: Option<Arc<Fleet>>,
    /// True if the clients are the replicas of a fleet, for which this process runs one upstream.
    pub serves_replicas: bool,
    /// Memory budget that all buffered data counts against.
    pub budget: MemoryBudget,
    /// Audit log.
    pub audit: Audit,
    /// Tracker of all tasks of the server.
    pub tasks: TaskTracker,
    /// Token that ends them.
    pub stop: CancellationToken,
}

/// State that all connections share, under one configuration.
#[derive(Clone)]
pub struct ServerState {
    /// Configuration snapshot that requests are served under.
    config: Arc<ConfigSnapshot>,
    settings: Settings,
    gateway: Arc<Gateway>,
    fleet: Option<Arc<Fleet>>,
    /// True if the clients are the replicas of a fleet, for which this process runs one upstream.
    serves_replicas: bool,
    /// Memory budget for data buffered for clients: requests, and responses that they have not
    /// read.
    budget: MemoryBudget,
    audit: Audit,
    sessions: Arc<Sessions>,
    /// Open sessions of the HTTP+SSE transport.
    sse_sessions: SseSessions,
    /// Open HTTP connections.
    connections: Arc<OpenConnections>,
    streams: Arc<StreamLimiter>,
    concurrency: Arc<ConcurrencyLimiter>,
    /// Requests that were forwarded to other replicas.
    forwarded: Arc<PerPrincipal<Principal>>,
    /// Messages about calls in progress that are on the way to other replicas.
    deliveries: Arc<PerPrincipal<Principal>>,
    /// Questions to other replicas whether clients have calls in progress there, for the sessions
    /// of these clients, or for calls without a session.
    questions: Arc<SharedQuestions<(Principal, Option<Box<str>>)>>,
    /// Refused values of Host and Origin that the log has.
    refused_values: Arc<RefusedValues>,
    /// Tracker of all tasks of this module, so that a drain can wait for them.
    tracker: TaskTracker,
    /// Shutdown token: no new requests, streams end, calls that a client waits for continue.
    stop: CancellationToken,
    /// True once another process serves the same address.
    has_successor: Arc<AtomicBool>,
}

impl ServerState {
    fn new(parts: ServerParts, settings: Settings) -> Self {
        let ServerParts { gateway, fleet, serves_replicas, budget, audit, tasks, stop } = parts;
        let metrics = gateway.metrics();
        let records = RecordPlace::new(fleet.as_ref(), settings.session_records.as_deref());
        Self {
            config: gateway.config(),
            sessions: Arc::new(Sessions::new(Arc::clone(metrics), gateway.sealing_keys(), records)),
            sse_sessions: SseSessions::default(),
            connections: Arc::default(),
            streams: Arc::new(StreamLimiter::new(&metrics.streams)),
            concurrency: Arc::new(ConcurrencyLimiter::new(settings.per_client)),
            forwarded: Arc::default(),
            deliveries: Arc::default(),
            questions: Arc::default(),
            refused_values: Arc::default(),
            settings,
            gateway,
            fleet,
            serves_replicas,
            budget,
            audit,
            tracker: tasks,
            stop,
            has_successor: Arc::default(),
        }
    }

    /// Returns the state under another configuration snapshot, with the same sessions, connections
    /// and limits in use.
    fn with_settings(&self, config: Arc<ConfigSnapshot>, settings: Settings) -> Self {
        self.concurrency.set_quota(settings.per_client);
        Self { config, settings, ..self.clone() }
    }

    /// All paths that are served over HTTP, with their routes.
    pub fn routes(&self) -> impl Iterator<Item = (http::HttpRoute, &str)> {
        let settings = &self.settings;
        let routes = http::HttpRoute::ALL.into_iter();
        routes.flat_map(|route| route.paths(settings).map(move |path| (route, path)))
    }

    /// True if new requests are refused. Where another process serves the same clients, requests on
    /// connections that are open at the end are served: a new connection reaches that process.
    fn is_closed(&self) -> bool {
        let has_others = || self.fleet().is_some_and(|fleet| fleet.has_others());
        self.stop.is_cancelled() && !self.has_successor.load(Ordering::Acquire) && !has_others()
    }

    /// True if connections end with their next response.
    fn is_stopping(&self) -> bool {
        let is_draining = self.fleet().is_some_and(|fleet| fleet.is_draining());
        is_draining || self.stop.is_cancelled()
    }

    /// Memory budget for data buffered for clients: requests, and responses that they have not
    /// read.
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Limit of an upstream response that is buffered.
    fn buffer_limit(&self) -> BufferLimit {
        BufferLimit { limit: self.settings.max_response, budget: self.budget.clone() }
    }

    /// This replica and its fleet, if there is one.
    pub fn fleet(&self) -> Option<&Arc<Fleet>> {
        self.fleet.as_ref()
    }

    /// Refused values of Host and Origin that the log of this process has.
    pub fn refused_values(&self) -> &RefusedValues {
        &self.refused_values
    }

    /// Number of open legacy sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len() + self.sse_sessions.len()
    }
}

/// Default of `server.path`.
pub const DEFAULT_PATH: &str = "/mcp";
/// Default of `server.max_body`.
pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// Default of `server.max_reply`.
pub const MAX_RESPONSE_BYTES: usize = 8 * 1024 * 1024;
/// Default of `server.session_ttl`.
pub const SESSION_TTL: Duration = Duration::from_secs(30 * 60);
/// Default of `server.session_max_age`.
pub const SESSION_MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Default of `server.sse_keepalive`.
pub const SSE_KEEPALIVE: Duration = Duration::from_secs(15);
/// Default of `server.max_head`.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Default of `server.max_headers`.
pub const MAX_HEADERS: usize = 100;
/// Default of `server.max_buffered`.
pub const MAX_BUFFERED_BYTES: usize = 128 * 1024 * 1024;

/// Largest number of messages in one batch.
const MAX_BATCH: usize = 50;
/// Number of messages of one batch that are processed concurrently.
const BATCH_WIDTH: usize = 8;
