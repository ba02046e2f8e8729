//! Connector of one upstream: opens its main connection and additional ones.
//!
//! Invariants: dropping a half-open connection ends it, with its child process; each attempt is
//! limited by the upstream's startup timeout.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::Uri;
use hyper::header::HeaderMap;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connect::{ChildCommand, Connect, Egress, HttpRequests};
use crate::health::health_state::UpstreamHealth;
use crate::message::message_trace::MessageTrace;
use crate::session::connection::McpSession;
use crate::session::handshake::NegotiationError;
use crate::session::negotiation;
use crate::session::session_check::GiveUpBackoff;
use crate::subscriptions::SubscriptionRegistry;
use crate::transport::Transport;
use crate::transport::dispatcher::{ConnectionClients, Dispatcher};
use crate::transport::http_client::HttpClient;
use crate::transport::http_pool::HttpPool;
use crate::transport::stdio::StdioTransport;
use crate::transport::streamable_http::StreamableHttpTransport;
use crate::{ConnectionInfo, HttpTransport, ListChangeCounts, Settings, UpstreamSource};
use weir_base::memory::memory_budget::{BufferLimit, MemoryBudget};
use weir_mcp::jsonrpc::pending::RequestIds;
use weir_mcp::revision::Era;
use weir_oauth::Account;

/// Opens connections to one upstream.
pub(crate) struct Connector {
    settings: Arc<Settings>,
    io: Arc<dyn Connect>,
    /// Account at a network server that requires access tokens.
    pub(crate) account: Option<Arc<Account>>,
    health: Arc<UpstreamHealth>,
    /// Memory budget of larger messages.
    budget: MemoryBudget,
    tracker: TaskTracker,
    /// Ids of the requests of all connections: some servers keep one table for all of them.
    request_ids: RequestIds,
    /// Connections to a network server, created with the first one.
    pool: OnceLock<Arc<HttpPool>>,
    /// Closes the pool's connections; fires after the last session has ended properly.
    pool_stop: CancellationToken,
}

/// Parameters of a connection to open.
pub(crate) struct ConnectRequest {
    /// Number of the connection.
    pub(crate) epoch: u64,
    /// Earlier connection, whose transport and era the server is expected to speak.
    pub(crate) detected: Option<Arc<ConnectionInfo>>,
    /// Capabilities that a client declared, for a legacy server; `None` for the main connection.
    pub(crate) declared: Option<Bytes>,
    /// Clients whose calls are made on it.
    pub(crate) clients: ConnectionClients,
    /// Receives list changes.
    pub(crate) changes: watch::Sender<ListChangeCounts>,
    /// Subscriptions of the clients.
    pub(crate) registry: Arc<SubscriptionRegistry>,
    /// Back-off of the earlier connections for the same calls that were given up.
    pub(crate) give_ups: GiveUpBackoff,
}

/// Failed attempt to open a connection.
#[derive(Default)]
pub(crate) struct ConnectError {
    pub(crate) reason: String,
    /// Whether the failure contradicts the protocol detected so far.
    pub(crate) contradicts: bool,
    /// Whether the child process has ended.
    pub(crate) has_ended: bool,
    /// Transport of the attempt, which is still to be closed.
    pub(crate) transport: Option<Transport>,
}

impl Connector {
    pub(crate) fn new(
        settings: Arc<Settings>,
        io: Arc<dyn Connect>,
        health: Arc<UpstreamHealth>,
        budget: MemoryBudget,
        tasks: TaskTracker,
    ) -> Self {
        let pool_stop = CancellationToken::new();
        let account = match &settings.source {
            UpstreamSource::Http { account: Some(account), egress, .. } => {
                let (name, account) = (settings.name.to_string(), (**account).clone());
                let (connect, egress) = (Arc::clone(&io), egress.clone());
                let http = Arc::new(HttpRequests { connect, egress });
                Some(Account::new(name, account, http, tasks.clone(), pool_stop.clone()))
            }
            _ => None,
        };
        let (tracker, request_ids, pool) = (tasks, RequestIds::random(), OnceLock::new());
        Self { settings, io, account, health, budget, tracker, request_ids, pool, pool_stop }
    }

    /// Waits until a user has signed in to the upstream, if it needs that; otherwise for ever.
    pub(crate) async fn sign_in_made(&self) {
        match &self.account {
            Some(account) => account.sign_in_made().await,
            None => std::future::pending().await,
        }
    }

    /// Opens a connection. Dropping the future ends the attempt.
    pub(crate) async fn open(
        &self,
        request: &ConnectRequest,
    ) -> Result<Arc<McpSession>, ConnectError> {
        let deadline = Instant::now() + self.settings.timeouts.startup;
        match &self.settings.source {
            UpstreamSource::Library { .. }
            | UpstreamSource::Notice { .. }
            | UpstreamSource::Unresolved { .. } => {
                unreachable!("it has no supervisor, which alone connects")
            }
            UpstreamSource::Process(command) => self.open_process(command, request, deadline).await,
            UpstreamSource::Http { url, headers, transport, .. } => {
                self.open_url(url, headers.clone(), *transport, request, deadline).await
            }
            UpstreamSource::OnOneReplica { url, .. } => {
                self.open_on_runner(url, request, deadline).await
            }
        }
    }

    /// Opens a connection to the replica that runs the server. One that is about to stop it may
    /// refuse, and another one follows: calls wait for that.
    async fn open_on_runner(
        &self,
        url: &Uri,
        request: &ConnectRequest,
        deadline: Instant,
    ) -> Result<Arc<McpSession>, ConnectError> {
        let mut refused_since = None;
        loop {
            let transport = Some(HttpTransport::Http);
            let opened = self.open_url(url, HeaderMap::new(), transport, request, deadline).await;
            let refused_since = *refused_since.get_or_insert_with(Instant::now);
            let is_over = refused_since.elapsed() >= RUNNER_PATIENCE || Instant::now() >= deadline;
            if opened.is_ok() || is_over {
                return opened;
            }
            sleep(RUNNER_PAUSE).await;
        }
    }

    async fn open_url(
        &self,
        url: &Uri,
        headers: HeaderMap,
        transport: Option<HttpTransport>,
        request: &ConnectRequest,
        deadline: Instant,
    ) -> Result<Arc<McpSession>, ConnectError> {
        let pool = self.pool(url);
        let limit = self.settings.limits.max_message;
        let message_limit = BufferLimit { limit, budget: self.budget.clone() };
        let dispatcher = self.new_dispatcher(request);
        let secrets = Arc::clone(self.health.log.secrets());
        let (given, account) = ((headers, secrets), self.account.clone());
        let http_client = HttpClient::new(pool, dispatcher, given, account, message_limit);
        let http_client = Arc::new(http_client.with_trace(self.trace()));
        self.open_http(http_client, transport, request, deadline).await
    }

    /// Closes the connections that outlive sessions.
    pub(crate) fn close(&self) {
        self.pool_stop.cancel();
    }

    /// Starts the child and detects its era. A child that ends after `server/discover` is started
    /// once more for `initialize`: some legacy servers end there.
    async fn open_process(
        &self,
        command: &ChildCommand,
        request: &ConnectRequest,
        deadline: Instant,
    ) -> Result<Arc<McpSession>, ConnectError> {
        let mut era = self.era(request);
        let login_path = timeout_at(deadline, self.io.login_path(command)).await;
        let command = match login_path.unwrap_or_default() {
            Some(path) => &command.with_search_path_from(&path),
            None => command,
        };
        loop {
            let child = self.io.spawn(command).map_err(|error| ConnectError {
                reason: format!("it cannot be started: {error}"),
                ..ConnectError::default()
            })?;
            let dispatcher = self.new_dispatcher(request);
            let (settings, budget) = (&self.settings, &self.budget);
            let (tracker, trace) = (&self.tracker, self.trace());
            let stdio = StdioTransport::start(child, dispatcher, settings, budget, tracker, trace);
            let transport = Transport::Stdio(stdio.clone());
            match self.open_session(&transport, era, request, deadline).await {
                Ok(session) => {
                    stdio.mark_open();
                    return Ok(session);
                }
                Err(NegotiationError::Ended(_)) if era.is_none() => {
                    transport.close().await;
                    era = Some(Era::Legacy);
                }
                Err(error) => {
                    let invalid_output =
                        stdio.invalid_output().map(|text| format!("; {text}")).unwrap_or_default();
                    return Err(ConnectError {
                        reason: error.into_reason() + &invalid_output,
                        contradicts: false,
                        has_ended: stdio.lifetime.has_ended(),
                        transport: Some(transport),
                    });
                }
            }
        }
    }

    /// Opens a connection to a network server, over the transport that is configured or remembered.
    /// If neither is set, Streamable HTTP is tried first and HTTP+SSE after it.
    async fn open_http(
        &self,
        http_client: Arc<HttpClient>,
        configured: Option<HttpTransport>,
        request: &ConnectRequest,
        deadline: Instant,
    ) -> Result<Arc<McpSession>, ConnectError> {
        let is_sse = match configured {
            Some(transport) => transport == HttpTransport::Sse,
            None => request.detected.as_ref().is_some_and(|about| about.transport == "http+sse"),
        };
        let opened = if is_sse {
            self.open_http_sse(&http_client, None, request, deadline).await
        } else {
            let http_client = Arc::clone(&http_client);
            let transport = Transport::Http(StreamableHttpTransport { http_client });
            self.open_session(&transport, self.era(request), request, deadline).await
        };
        let opened = match opened {
            Err(NegotiationError::NotStreamable(tried)) if configured.is_none() => {
                self.open_http_sse(&http_client, Some(&tried), request, deadline).await
            }
            opened => opened,
        };
        opened.map_err(|error| {
            let contradicts = matches!(
                error,
                NegotiationError::AnotherEra(_) | NegotiationError::NotStreamable(_)
            );
            ConnectError { reason: error.into_reason(), contradicts, ..ConnectError::default() }
        })
    }

    /// Opens the HTTP+SSE transport. `tried` describes the failure of Streamable HTTP, if that was
    /// tried.
    async fn open_http_sse(
        &self,
        http_client: &HttpClient,
        tried: Option<&str>,
        request: &ConnectRequest,
        deadline: Instant,
    ) -> Result<Arc<McpSession>, NegotiationError> {
        let opening = timeout_at(deadline, negotiation::open_http_sse(http_client, tried)).await;
        let transport = opening.map_err(|_| self.startup_timeout())??;
        let opened = self.open_session(&transport, Some(Era::Legacy), request, deadline).await;
        if opened.is_err() {
            transport.close().await;
        }
        opened
    }

    /// Opens the session over a transport.
    async fn open_session(
        &self,
        transport: &Transport,
        era: Option<Era>,
        request: &ConnectRequest,
        deadline: Instant,
    ) -> Result<Arc<McpSession>, NegotiationError> {
        let opening = async {
            let declared = match &request.declared {
                Some(declared) => declared.clone(),
                None => self.settings.declared(!matches!(transport, Transport::Http(_))),
            };
            let mut negotiated = negotiation::open(transport, era, &declared).await?;
            // The replica that runs a server names the revisions of the server's era first.
            let is_on_one_replica =
                matches!(self.settings.source, UpstreamSource::OnOneReplica { .. });
            if is_on_one_replica && negotiated.0.first_era == Era::Legacy {
                negotiated = negotiation::open(transport, Some(Era::Legacy), &declared).await?;
            }
            let (epoch, transport) = (request.epoch, transport.clone());
            let (settings, give_ups) = (&self.settings, Arc::clone(&request.give_ups));
            let session =
                McpSession::start(epoch, transport, negotiated, declared, settings, give_ups).await;
            session
                .map(Arc::new)
                .map_err(|failure| NegotiationError::Refused(failure.into_reason()))
        };
        timeout_at(deadline, opening).await.map_err(|_| self.startup_timeout())?
    }

    /// Returns the configured or detected era. A server that another replica runs is asked in the
    /// modern one, and its additional sessions are in that of its main connection.
    fn era(&self, request: &ConnectRequest) -> Option<Era> {
        let detected = request.detected.as_ref().map(|about| about.era());
        match self.settings.source {
            UpstreamSource::OnOneReplica { .. } => detected.or(self.settings.era),
            _ => self.settings.era.or(detected),
        }
    }

    /// Returns the pool of connections to the server, which outlive a session.
    fn pool(&self, url: &Uri) -> Arc<HttpPool> {
        let pool = self.pool.get_or_init(|| {
            let (io, stop) = (Arc::clone(&self.io), &self.pool_stop);
            let connect_timeout = self.settings.timeouts.connect;
            // With this limit each call that has a concurrency permit finds a pooled connection.
            let max_idle = self.settings.limits.concurrency;
            let egress = match &self.settings.source {
                UpstreamSource::Http { egress, .. } => egress.clone(),
                _ => Egress::default(),
            };
            let tracker = self.tracker.clone();
            HttpPool::new(io, (url.clone(), egress), max_idle, connect_timeout, tracker, stop)
        });
        Arc::clone(pool)
    }

    fn new_dispatcher(&self, request: &ConnectRequest) -> Arc<Dispatcher> {
        let (name, changes) = (self.settings.name.clone(), request.changes.clone());
        let health = Arc::clone(&self.health);
        let (registry, ids) = (Arc::clone(&request.registry), self.request_ids.clone());
        Dispatcher::new(name, changes, registry, request.clients, health, ids)
    }

    /// Returns the trace of the messages of a connection, if there is a receiver for it.
    fn trace(&self) -> Option<Arc<MessageTrace>> {
        let sink = self.io.trace_sink()?;
        Some(Arc::new(MessageTrace::new(sink, &self.settings, self.account.as_ref())))
    }

    fn startup_timeout(&self) -> NegotiationError {
        let startup = self.settings.timeouts.startup;
        NegotiationError::Refused(format!("it was not ready within {startup:?}"))
    }
}

/// Time for which a replica that runs a server may refuse connections to it.
const RUNNER_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two attempts to connect to it.
const RUNNER_PAUSE: Duration = Duration::from_millis(100);
