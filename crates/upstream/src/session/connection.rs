//! Open connection to an upstream: a transport and the era's dialect over it.
//!
//! The era was determined when the connection was opened. Both dialects occur here, in one `match`
//! per function; below this module a session knows only one era.

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::input_requests::InputRequests;
use crate::message::{OutboundRequest, RequestHeaders, SentCount, TransportError, error_code};
use crate::session::input_exchange::exchange_with_input;
use crate::session::library::LibraryConnection;
use crate::session::negotiation::Negotiated;
use crate::session::notice::NoticeConnection;
use crate::session::pagination::ListPager;
use crate::session::session_check::{GiveUpBackoff, SessionCheck};
use crate::session::{input_retry, legacy, modern};
use crate::subscriptions::SubscriptionRegistry;
use crate::transport::Transport;
use crate::transport::dispatcher::Dispatcher;
use crate::{ConnectionInfo, Error, Listing, Settings, UpstreamSource};
use weir_base::json::Object;
use weir_base::secrets::sealing::InstanceId;
use weir_base::tasks::cpu_bound;
use weir_mcp::call::{Method, Payload, ResponseOutcome, UpstreamRequest, UpstreamResponse};
use weir_mcp::code;
use weir_mcp::kind::Kind;
use weir_mcp::log_level::LogLevel;
use weir_mcp::revision::Era;
use weir_mcp::task::TaskScope;
use weir_oauth::SignInNumber;

/// Dialect of the connection.
pub(crate) enum Dialect {
    Legacy(legacy::LegacyDialect),
    Modern(modern::ModernDialect),
}

// === UpstreamConnection ===

/// Destination of calls. Cheap to clone.
#[derive(Clone)]
pub(crate) enum UpstreamConnection {
    /// Session with a server.
    Session(Arc<McpSession>),
    /// The built-in prompt library.
    Library(LibraryConnection),
    /// A text in the place of servers.
    Notice(NoticeConnection),
}

impl UpstreamConnection {
    /// Information about the server.
    pub(crate) fn about(&self) -> &Arc<ConnectionInfo> {
        match self {
            Self::Session(session) => &session.about,
            Self::Library(library) => &library.about,
            Self::Notice(notice) => &notice.about,
        }
    }

    /// Returns the scope of the task ids of this connection if the tasks of `scope` are among them.
    pub(crate) fn scope_of_tasks(&self, scope: TaskScope) -> Option<TaskScope> {
        match self {
            Self::Session(session) => session.has_tasks_of(scope).then_some(session.scope),
            Self::Library(_) | Self::Notice(_) => None,
        }
    }

    /// Sends a call, once; see [`McpSession::call`].
    pub(crate) async fn call(
        &self,
        call: &UpstreamRequest,
        input_requests: &InputRequests,
        sent: &SentCount,
        settings: &Settings,
    ) -> Result<UpstreamResponse, TransportError> {
        match self {
            Self::Session(session) => session.call(call, input_requests, sent, settings).await,
            Self::Library(library) => Ok(library.call(call)),
            Self::Notice(notice) => Ok(notice.call()),
        }
    }

    /// Lists a kind that the server declares, through all pages.
    pub(crate) async fn list(
        &self,
        kind: Kind,
        settings: &Settings,
    ) -> Result<Listing, TransportError> {
        match self {
            Self::Session(session) => session.list(kind, settings).await,
            Self::Library(library) => Ok(library.list(&settings.name)),
            Self::Notice(notice) => Ok(notice.list()),
        }
    }
}

// === McpSession ===

/// MCP session with a server.
pub(crate) struct McpSession {
    pub(crate) about: Arc<ConnectionInfo>,
    transport: Transport,
    dialect: Dialect,
    /// Client capabilities with which it was opened.
    pub(crate) declared: Bytes,
    /// Scope in which the task ids of the connection are valid.
    pub(crate) scope: TaskScope,
    /// Scope of the tasks of a server without sessions in handles of earlier versions: each replica
    /// may have had one of its own.
    earlier_scope: TaskScope,
    /// Whether another replica runs the server.
    is_on_one_replica: bool,
    /// Topics whose changes the server announces.
    pub(crate) announced_topics: [bool; 3],
    check: Arc<SessionCheck>,
    /// Fires when the session is over.
    stop: CancellationToken,
}

impl McpSession {
    /// Starts the session after the handshake.
    pub(crate) async fn start(
        epoch: u64,
        transport: Transport,
        (handshake_info, headers): Negotiated,
        declared: Bytes,
        settings: &Settings,
        give_ups: GiveUpBackoff,
    ) -> Result<Self, TransportError> {
        let dispatcher = transport.dispatcher();
        let correlates_messages = transport.correlates_messages() || dispatcher.is_exclusive();
        let check = SessionCheck::new(give_ups);
        let dialect = match handshake_info.revision.era() {
            Era::Legacy => Dialect::Legacy(legacy::LegacyDialect::new(
                &handshake_info,
                &headers,
                &transport,
                correlates_messages,
                Arc::clone(&check),
            )?),
            Era::Modern => Dialect::Modern(modern::ModernDialect::new(
                &handshake_info,
                &transport,
                correlates_messages,
            )),
        };
        let has_session = matches!(&dialect, Dialect::Legacy(dialect) if dialect.has_session());
        let is_on_one_replica = matches!(settings.source, UpstreamSource::OnOneReplica { .. });
        let sign_in = transport.http_client().and_then(|http_client| http_client.sign_in());
        // An HTTP server without sessions keeps its tasks across connections; that it was restarted
        // cannot be seen. Every other connection is one process or one session.
        let scope = match &transport {
            // The replica that runs the server has sealed the ids of its tasks with their scope.
            _ if is_on_one_replica => TaskScope::of_server(settings.name.as_str()),
            Transport::Http(_) if !has_session => {
                TaskScope::of_server(&shared_fingerprint(settings, sign_in))
            }
            Transport::Http(_) | Transport::Stdio(_) | Transport::Sse(_) => {
                TaskScope::unique(settings.instance.unwrap_or_else(InstanceId::random))
            }
        };
        let _ = dispatcher.scope.set(scope);
        dispatcher.set_revision(handshake_info.revision);
        // The modern era has neither a handshake to complete nor a session to end.
        if let Dialect::Legacy(dialect) = &dialect {
            dialect.complete_handshake(&transport).await?;
        }
        let about = ConnectionInfo {
            epoch,
            revision: handshake_info.revision,
            is_era_certain: handshake_info.is_certain,
            transport: transport.name(),
            topics: handshake_info.topics,
            capabilities: handshake_info.capabilities,
            instructions: handshake_info.instructions,
            sign_in,
        };
        let stop = CancellationToken::new();
        let (about, announced_topics) = (Arc::new(about), handshake_info.list_changed);
        Ok(Self {
            about,
            transport,
            dialect,
            declared,
            scope,
            earlier_scope: TaskScope::of_server(&settings.fingerprint()),
            is_on_one_replica,
            announced_topics,
            check,
            stop,
        })
    }

    /// Whether the tasks of this scope are among those of the connection.
    pub(crate) fn has_tasks_of(&self, scope: TaskScope) -> bool {
        // The ids of a server that one replica runs are sealed, so any scope will do.
        let is_shared = !scope.is_local() && !self.scope.is_local();
        let is_earlier = self.is_on_one_replica || scope == self.earlier_scope;
        scope == self.scope || (is_shared && is_earlier)
    }

    /// Dispatcher of the server's messages.
    pub(crate) fn dispatcher(&self) -> &Arc<Dispatcher> {
        self.transport.dispatcher()
    }

    /// Sends a call, once. A tool call is sent once more if the server refused it unexecuted
    /// because of its headers, and a new list of its tools requires other ones.
    ///
    /// Input requests of the server go to `input_requests`, and the responses from there to the
    /// server; `sent` records whether any request of the call has been written.
    async fn call(
        &self,
        call: &UpstreamRequest,
        input_requests: &InputRequests,
        sent: &SentCount,
        settings: &Settings,
    ) -> Result<UpstreamResponse, TransportError> {
        if call.scope.is_some_and(|scope| !self.has_tasks_of(scope)) {
            return Err(TransportError::Other(Error::NoSuchTask));
        }
        if self.about.era() == Era::Legacy || !modern::reads_input_requests(call) {
            return self.call_once(call, input_requests, sent, settings).await;
        }
        let send =
            |call| async move { self.call_once(&call, input_requests, sent, settings).await };
        // Boxed, like everything here that few calls need: otherwise it would enlarge the future of
        // every call, which is moved.
        Box::pin(input_retry::send_with_retries(call, input_requests, send)).await
    }

    /// Sends a call, while a legacy server logs at the level that its caller wants.
    async fn call_once(
        &self,
        call: &UpstreamRequest,
        input_requests: &InputRequests,
        sent: &SentCount,
        settings: &Settings,
    ) -> Result<UpstreamResponse, TransportError> {
        let request = self.build_request(call, input_requests, sent);
        let headers = (call.method == Method::CallTool).then(|| request.headers.clone());
        let mut outcome = match &self.dialect {
            Dialect::Legacy(legacy::LegacyDialect { log_level: Some(log_level), .. }) => {
                let logs = call.caller.notifications.logs();
                let response = Box::pin(self.send_request(request));
                log_level.run_with(logs, |level| Box::pin(self.set_level(level)), response).await?
            }
            // In the modern era each request carries its log level.
            Dialect::Legacy(_) | Dialect::Modern(_) => self.send_request(request).await?,
        };
        let is_mismatch = matches!(
            &outcome,
            ResponseOutcome::Error(error) if error_code(error) == Some(code::HEADER_MISMATCH)
        );
        if let Some(headers) = headers.filter(|_| is_mismatch) {
            let again = self.send_again(call, input_requests, sent, settings, &headers);
            // A part of the call has been sent.
            if let Some(next) = Box::pin(again).await.map_err(TransportError::of_sent_call)? {
                outcome = next;
            }
        }
        if let (Method::CallTool, ResponseOutcome::Result(Payload::Parsed(result))) =
            (call.method, &outcome)
        {
            self.dispatcher().health.notes.check_result(&call.subject, result);
        }
        Ok(UpstreamResponse { era: self.about.era(), scope: Some(self.scope), outcome })
    }

    /// Lists the tools, and sends a call once more if it has other headers than these after that:
    /// in the modern era only, where no log level is set for a call.
    async fn send_again(
        &self,
        call: &UpstreamRequest,
        input_requests: &InputRequests,
        sent: &SentCount,
        settings: &Settings,
        headers: &RequestHeaders,
    ) -> Result<Option<ResponseOutcome>, TransportError> {
        self.list(Kind::Tool, settings).await?;
        let request = self.build_request(call, input_requests, sent);
        if request.headers == *headers {
            return Ok(None);
        }
        self.send_request(request).await.map(Some)
    }

    async fn list(&self, kind: Kind, settings: &Settings) -> Result<Listing, TransportError> {
        let read_page = |cursor: Option<Bytes>| async move { self.page(kind, cursor).await };
        let (name, limits) = (&settings.name, &settings.limits);
        let pager = ListPager { name, read_page, kind, limits, time: settings.timeouts.list };
        let mut listing = pager.run().await?;
        if kind == Kind::Tool {
            cpu_bound::run(listing.items.len(), || match &self.dialect {
                Dialect::Modern(dialect) => {
                    dialect.index_tools(&mut listing.items, &self.transport);
                }
                // Spec 2025-11-25, tasks, tool-level negotiation: a server that declares no task
                // support for tools has none.
                Dialect::Legacy(dialect) if self.about.capabilities.tasks.tools_call => {
                    dialect.index_tools(&mut listing.items);
                }
                Dialect::Legacy(_) => {}
            });
        }
        let duplicates = std::mem::take(&mut listing.duplicates);
        self.dispatcher().health.notes.list_read(kind, duplicates, &listing.items);
        Ok(listing)
    }

    /// Builds the request of a call in the era of this server.
    fn build_request(
        &self,
        call: &UpstreamRequest,
        input_requests: &InputRequests,
        sent: &SentCount,
    ) -> Box<OutboundRequest> {
        let mut request = match &self.dialect {
            Dialect::Legacy(dialect) => dialect.build_request(call, input_requests),
            Dialect::Modern(dialect) => dialect.build_request(call, &self.transport),
        };
        request.sent = sent.for_next_request();
        request.cancel_reason = call.caller.cancel_reason.clone();
        Box::new(request)
    }

    /// Requests one page of a list. `cursor` is JSON text.
    async fn page(
        &self,
        kind: Kind,
        cursor: Option<Bytes>,
    ) -> Result<ResponseOutcome, TransportError> {
        let mut params = Object::new();
        if let Some(cursor) = cursor {
            params.set("cursor", cursor);
        }
        let request = match &self.dialect {
            Dialect::Legacy(dialect) => dialect.build_list_request(kind, params),
            Dialect::Modern(dialect) => dialect.build_list_request(kind, params, &self.transport),
        };
        self.send_request(Box::new(request)).await
    }

    async fn send_request(
        &self,
        request: Box<OutboundRequest>,
    ) -> Result<ResponseOutcome, TransportError> {
        let sent = request.sent.clone();
        let result = match request.context.input_requests.clone() {
            Some(input_requests) => {
                Box::pin(exchange_with_input(&self.transport, request, input_requests)).await
            }
            None => self.transport.exchange(request).await,
        };
        if let Err(TransportError::Http(failure)) = &result {
            let (upstream, status) = (&self.dispatcher().name, failure.describe());
            match failure.status.as_u16() {
                // The client gets no more than the error. The log tells the operator that
                // credentials are missing.
                401 | 403 => tracing::warn!(%upstream, status, "upstream refused a request"),
                _ => tracing::debug!(%upstream, status, "upstream refused a request"),
            }
        }
        let lost = match &result {
            Ok(_) => None,
            // Boxed, because it is rare and would be part of every call's future.
            Err(failure) => Box::pin(self.judge(failure)).await,
        };
        let interpreted = match (lost, &self.dialect) {
            (Some(reason), _) => Err(TransportError::SessionLost(reason)),
            (None, Dialect::Legacy(dialect)) => dialect.interpret(result),
            (None, Dialect::Modern(dialect)) => dialect.interpret(result),
        };
        if let Err(TransportError::SessionLost(_)) = &interpreted {
            sent.mark_unsent();
        }
        interpreted
    }

    /// Judges the session after a failure: see [`SessionCheck::judge`].
    async fn judge(&self, failure: &TransportError) -> Option<String> {
        match &self.dialect {
            Dialect::Legacy(dialect) => dialect.judge(failure, &self.transport).await,
            Dialect::Modern(_) => {
                let discover = || modern::opening_request(&self.transport);
                self.check.judge(failure, &self.transport, discover).await
            }
        }
    }

    async fn set_level(&self, level: LogLevel) {
        let Dialect::Legacy(dialect) = &self.dialect else { return };
        let response = self.send_request(Box::new(dialect.build_level_request(level))).await;
        tracing::debug!(level = level.as_str(), ?response, "upstream log level requested");
    }

    /// Receives list changes until the session is over, and subscribes to the resources of
    /// `registry`. Returns the reason why the connection must be opened again, if it must.
    pub(crate) async fn listen(
        self: Arc<Self>,
        registry: &Arc<SubscriptionRegistry>,
    ) -> Option<String> {
        let transport = &self.transport;
        let capabilities = &self.about.capabilities;
        let listen = async {
            match &self.dialect {
                Dialect::Legacy(dialect) => dialect.listen(transport).await,
                Dialect::Modern(dialect) => dialect.listen(transport, self.announced_topics).await,
            }
        };
        let sync_subscriptions = async {
            match &self.dialect {
                Dialect::Legacy(dialect) => dialect.sync_subscriptions(transport, registry).await,
                Dialect::Modern(dialect) => dialect.sync_subscriptions(transport, registry).await,
            }
        };
        let sync_task_subscriptions = async {
            match &self.dialect {
                // A legacy server sends task status notifications without a subscription.
                Dialect::Legacy(_) => std::future::pending().await,
                Dialect::Modern(dialect) => {
                    dialect.sync_task_subscriptions(transport, registry.task_registry()).await
                }
            }
        };
        let reconnect_reason = async {
            tokio::select! {
                biased;
                Some(reason) = listen => reason,
                reason = sync_subscriptions, if capabilities.subscribe => reason,
                reason = sync_task_subscriptions, if capabilities.has_tasks() => reason,
                reason = self.transport.sign_in_replaced() => reason,
                reason = self.check.given_up() => reason,
                else => std::future::pending().await,
            }
        };
        reconnect_reason.with_cancellation_token(&self.stop).await
    }

    /// Waits until the connection has ended by itself and returns the reason. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        self.transport.ended().await
    }

    /// Ends the session and the connection; returns when that is done.
    pub(crate) async fn close(&self) {
        if let Dialect::Legacy(dialect) = &self.dialect {
            dialect.end(&self.transport).await;
        }
        self.abandon().await;
    }

    /// Ends a connection whose server does not respond any more.
    pub(crate) async fn abandon(&self) {
        self.stop.cancel();
        self.check.session_ended();
        self.transport.close().await;
    }
}

/// Returns a fingerprint of the server and the sign-in that is the same on all replicas with this
/// configuration: without the folder of the sign-in.
fn shared_fingerprint(settings: &Settings, sign_in: Option<SignInNumber>) -> String {
    let mut shared = settings.clone();
    if let UpstreamSource::Http { account: Some(account), .. } = &mut shared.source {
        account.state = None;
    }
    shared.fingerprint() + &sign_in.and_then(SignInNumber::text).unwrap_or_default()
}
