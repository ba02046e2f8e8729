//! The front doors: MCP clients of both eras, over HTTP and over standard input and output.
//!
//! A wire ([`http`], [`stdio`]) frames messages and knows when its client is gone. What a message
//! means is read once ([`era`]), and from there on one of two dialects (`legacy`, `modern`) speaks,
//! which never asks again. A dialect turns a request into an `Exchange`: an answer that is on its
//! way, perhaps with notes and questions beside it, or an open stream of changes; the wire carries it.
//!
//! Promises: every request that was read is answered once, or its client has cancelled it or gone;
//! nothing is asked of the gateway before Host, Origin and credentials are good. JSON-RPC codes for
//! faults, HTTP statuses and clients' ids appear in this room only.
//!
//! Knows nothing of: upstreams, views, rules, and where its settings come from.

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
mod response;
mod server_state;
mod session;
pub mod stdio;
mod stream_session;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::Audit;
pub use crate::downstream::legacy::stdio_handshake::introduction;
pub use crate::downstream::limits::client_limits::{PerClient, Timeouts};
use crate::downstream::limits::concurrency::Turns;
use crate::downstream::limits::stream_limit::Streams;
use crate::gateway::{Gateway, Generation, Guest};
use crate::memory_budget::{Allowance, Budget};
use crate::policy::{Arrival, Refusal};
use era::Versions;
use host_check::{AllowedHost, Origin};
use http::Protection;
use http::connection::idle_eviction::OpenConnections;
use http::http_sse::Pairs;
pub use server_state::Doors;
use session::Sessions;

/// What the front doors are made with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The path of the MCP endpoint.
    pub path: String,
    /// Whether only this machine can connect: then loopback names are good as Host and as Origin.
    pub loopback: bool,
    /// Hosts that requests may be addressed to, beside the loopback names.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Origins that a browser's requests may come from, beside the loopback ones.
    pub allowed_origins: Vec<Origin>,
    /// The largest message from a client, in bytes.
    pub max_body: usize,
    /// The largest reply that is held in memory because it has to be read or goes out whole, and what all that is held
    /// counts against.
    pub held: Allowance,
    /// The revisions that are served.
    pub versions: Versions,
    /// Whether the deprecated HTTP+SSE pair is served beside the endpoint.
    pub legacy_sse: bool,
    /// Whether the event streams of legacy sessions can be taken up again.
    pub resumable: bool,
    /// What stands before the paths where clients reach them, if a proxy puts something there: empty,
    /// or a path without a slash at its end.
    pub public_prefix: String,
    /// Who issues tokens for the endpoint, if anybody does.
    pub protection: Option<Protection>,
    /// How long a legacy session may be idle.
    pub session_ttl: Duration,
    /// How often a comment keeps a silent stream alive.
    pub sse_keepalive: Duration,
    /// The most bytes of a request's head over HTTP; no less than 8 KiB.
    pub max_head: usize,
    /// The most fields in it.
    pub max_headers: usize,
    /// How long a client may take.
    pub timeouts: Timeouts,
    /// What one client may have at a time.
    pub per_client: PerClient,
    /// Where requests are recorded.
    pub audit: Audit,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            path: "/mcp".to_owned(),
            loopback: true,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body: MAX_BODY_BYTES,
            held: Allowance { limit: MAX_REPLY_BYTES, budget: Budget::new(MAX_BUFFERED_BYTES) },
            versions: Versions::default(),
            legacy_sse: false,
            resumable: false,
            public_prefix: String::new(),
            protection: None,
            session_ttl: SESSION_TTL,
            sse_keepalive: SSE_KEEPALIVE,
            max_head: MAX_HEAD_BYTES,
            max_headers: MAX_HEADERS,
            timeouts: Timeouts::default(),
            per_client: PerClient::default(),
            audit: Audit::off(),
        }
    }
}

/// What all connections share, under one configuration.
pub struct Door {
    gateway: Arc<Gateway>,
    /// Whose rules hold here.
    generation: Arc<Generation>,
    settings: Settings,
    sessions: Arc<Sessions>,
    /// The clients of the HTTP+SSE pair.
    pairs: Pairs,
    /// Connections over HTTP, whatever is said on them.
    connections: Arc<OpenConnections>,
    streams: Arc<Streams>,
    turns: Arc<Turns>,
    /// Every task of this room runs on it, so that a drain can wait for them.
    tasks: TaskTracker,
    /// Fires when the house closes: no new request, streams end, calls that somebody awaits go on.
    stop: CancellationToken,
    /// Somebody else serves at the same address from now on.
    is_succeeded: Arc<AtomicBool>,
}

impl Door {
    fn new(
        gateway: Arc<Gateway>,
        settings: Settings,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (meters, generation) = (gateway.meters(), gateway.now());
        let sessions = Sessions::new(settings.session_ttl, settings.per_client.sessions)
            .counted(&meters.sessions, &meters.streams);
        let streams = Streams::new(settings.per_client.streams).counted(&meters.streams);
        let (sessions, streams, pairs) = (Arc::new(sessions), Arc::new(streams), Pairs::default());
        let turns = Arc::new(Turns::new(settings.per_client));
        let is_succeeded = Arc::default();
        Self {
            gateway,
            generation,
            settings,
            sessions,
            pairs,
            connections: Arc::default(),
            streams,
            turns,
            tasks,
            stop,
            is_succeeded,
        }
    }

    /// The door to another generation, with everybody who is in, and with all that they hold.
    fn then(&self, generation: Arc<Generation>, settings: Settings) -> Self {
        let PerClient { sessions, streams, .. } = settings.per_client;
        self.sessions.keep_for(settings.session_ttl);
        self.sessions.limit(sessions);
        self.streams.limit(streams);
        self.turns.limit(settings.per_client);
        let held = Allowance { budget: self.budget().clone(), ..settings.held };
        Self {
            gateway: Arc::clone(&self.gateway),
            generation,
            settings: Settings { audit: self.settings.audit.clone(), held, ..settings },
            sessions: Arc::clone(&self.sessions),
            pairs: self.pairs.clone(),
            connections: Arc::clone(&self.connections),
            streams: Arc::clone(&self.streams),
            turns: Arc::clone(&self.turns),
            tasks: self.tasks.clone(),
            stop: self.stop.clone(),
            is_succeeded: Arc::clone(&self.is_succeeded),
        }
    }

    /// Lets a client in.
    async fn enter(&self, arrival: Arrival<'_>) -> Result<Guest, Refusal> {
        self.gateway.enter_under(&self.generation, arrival).await
    }

    /// Every path that is served over HTTP, and what is there.
    pub fn routes(&self) -> impl Iterator<Item = (http::Route, &str)> {
        let settings = &self.settings;
        let routes = http::Route::ALL.into_iter();
        routes.flat_map(|route| route.paths(settings).map(move |path| (route, path)))
    }

    /// The path of the MCP endpoint.
    pub fn path(&self) -> &str {
        &self.settings.path
    }

    /// Whether new requests are refused.
    fn is_closed(&self) -> bool {
        self.stop.is_cancelled() && !self.is_succeeded.load(Ordering::Acquire)
    }

    /// What is held for clients: requests, and answers that they have not read.
    pub fn budget(&self) -> &Budget {
        &self.settings.held.budget
    }

    /// How many legacy sessions are open.
    pub fn sessions(&self) -> usize {
        self.sessions.len() + self.pairs.len()
    }
}

const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
const MAX_REPLY_BYTES: usize = 8 * 1024 * 1024;
const SESSION_TTL: Duration = Duration::from_secs(30 * 60);
const SSE_KEEPALIVE: Duration = Duration::from_secs(15);
const MAX_HEAD_BYTES: usize = 16 * 1024;
const MAX_HEADERS: usize = 100;
const MAX_BUFFERED_BYTES: usize = 128 * 1024 * 1024;

/// The most messages in one batch.
const MAX_BATCH: usize = 50;
/// How many messages of one batch are worked on at a time.
const BATCH_WIDTH: usize = 8;
