//! Public handle of an upstream: lists, calls and subscriptions.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::active_call::{ActiveCall, SuspendedCall};
use crate::call::route::CallRoute;
use crate::call::{CallSlot, begin_use};
use crate::call_metrics::{CallDurations, CallMetrics};
use crate::connect::Connect;
use crate::health::author_notes::{AuthorNote, NoteKind, Occurrences};
use crate::health::health_state::UpstreamHealth;
use crate::health::keyed_backoff::KeyedBackoff;
use crate::health::on_demand::{OnDemand, UsageGuard};
use crate::health::status_report::State;
use crate::health::upstream_log::{LogPage, UpstreamLog};
use crate::input_requests::{InputBudget, MAX_SUSPENDED};
use crate::session::connection::UpstreamConnection;
use crate::session::connector::Connector;
use crate::session::session_pool::SessionPool;
use crate::shared::Shared;
use crate::subscriptions::{Subscribed, Subscriber, SubscriptionRegistry};
use crate::supervisor::state_publisher::StatePublisher;
use crate::supervisor::unresolved_upstream::UnresolvedUpstream;
use crate::supervisor::{Supervisor, library_upstream, notice_upstream};
use crate::{
    ConnectionStatus, Error, ListChangeCounts, Listing, Settings, Sharing, UpstreamReport,
    UpstreamSource,
};
use weir_base::memory::memory_budget::{BufferLimit, MemoryBudget};
use weir_base::secrets::secret_search::SecretPatterns;
use weir_mcp::call::{CallOutcome, QuotaOwner, UpstreamRequest};
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::resource_updates::PendingResourceUpdates;
use weir_mcp::revision::Era;
use weir_mcp::task::FollowedTask;
use weir_oauth::{SignInNumber, TokenOutcome};

/// Handle to an upstream and the task that keeps it connected. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {
    shared: Arc<Shared>,
}

impl Upstream {
    /// Starts the task that keeps the upstream connected until `stop` fires, or until the last
    /// handle is dropped and no call is in flight. An on-demand upstream is not started yet. Its
    /// messages count against `budget`.
    pub fn start(
        settings: Settings,
        connect: Arc<dyn Connect>,
        budget: &MemoryBudget,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self::start_after(None, settings, connect, budget, tasks, &stop)
    }

    /// Starts an upstream that replaces `before`, an earlier one of this name, and takes over its
    /// clients' subscriptions.
    pub fn start_after(
        before: Option<&Self>,
        settings: Settings,
        connect: Arc<dyn Connect>,
        budget: &MemoryBudget,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let (settings, stop) = (Arc::new(settings), stop.child_token());
        let (connection_sender, connection) = watch::channel(None);
        let on_demand = OnDemand::new(&settings);
        let first =
            if on_demand.is_lazy { ConnectionStatus::Asleep } else { ConnectionStatus::Starting };
        let (status_sender, status) = watch::channel(first);
        let (change_sender, changes) = watch::channel(ListChangeCounts::default());
        let (fault_reports, fault_receiver) = mpsc::channel(MAX_FAULT_REPORTS);
        let secrets = Arc::new(SecretPatterns::of_request(&settings.source.secrets()));
        let log = before.map(|before| &before.shared.health.log);
        let log = UpstreamLog::begin(Arc::clone(&secrets), log);
        let health = UpstreamHealth::new(settings.name.clone(), settings.breaker, log);
        let connector = Arc::new(Connector::new(
            Arc::clone(&settings),
            connect,
            Arc::clone(&health),
            budget.clone(),
            tasks.clone(),
        ));
        let account = connector.account.clone();
        if let (Some(account), Some(before)) =
            (&account, before.and_then(|before| before.shared.account.as_ref()))
        {
            account.succeed(before);
        }
        let session_pool =
            SessionPool::new(Arc::clone(&settings), Arc::clone(&connector), change_sender.clone());
        let subscriptions = match before {
            Some(before) => Arc::clone(&before.shared.subscriptions),
            None => SubscriptionRegistry::new(settings.name.clone()),
        };
        let state = StatePublisher {
            name: settings.name.clone(),
            connection: connection_sender,
            status: status_sender,
            changes: change_sender,
            health: Arc::clone(&health),
            secrets,
        };
        match &settings.source {
            UpstreamSource::Library { dir } => {
                let library_task = library_upstream::LibraryTask {
                    dir: dir.clone(),
                    retry: settings.retry,
                    state,
                    tracker: tasks.clone(),
                };
                tasks.spawn(library_task.run(stop.clone()));
            }
            UpstreamSource::Notice { text } => {
                tasks.spawn(notice_upstream::run(text.clone(), state, stop.clone()));
            }
            UpstreamSource::Unresolved { reason } => {
                let unresolved = UnresolvedUpstream { reason: reason.clone(), state };
                tasks.spawn(unresolved.run(stop.clone()));
            }
            _ => {
                let supervisor = Supervisor {
                    settings: Arc::clone(&settings),
                    connector,
                    session_pool: Arc::clone(&session_pool),
                    state,
                    subscriptions: Arc::clone(&subscriptions),
                    on_demand: Arc::clone(&on_demand),
                    fault_reports: fault_receiver,
                    give_ups: Arc::new(KeyedBackoff::new(settings.retry)),
                    epoch: 0,
                    detected: None,
                };
                tasks.spawn(supervisor.run(stop.clone()));
            }
        }
        let permits = Arc::new(Semaphore::new(settings.limits.concurrency));
        let shared = Shared {
            settings,
            connection,
            session_pool,
            status,
            changes,
            fault_reports,
            subscriptions,
            permits,
            waiting: Arc::default(),
            health,
            account,
            budget: budget.clone(),
            on_demand,
            suspended_slots: Arc::new(Semaphore::new(MAX_SUSPENDED)),
            input_budget: InputBudget::new(),
            tracker: tasks.clone(),
            stop,
            calls: CallMetrics::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Configured name of the upstream.
    pub fn name(&self) -> &UpstreamName {
        &self.shared.settings.name
    }

    /// Whether both handles refer to one upstream, not only to one name.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Token that stops the upstream, even if handles remain.
    pub fn stop_token(&self) -> CancellationToken {
        self.shared.stop.clone()
    }

    /// Counters and durations of its calls.
    pub fn call_metrics(&self) -> &CallMetrics {
        &self.shared.calls
    }

    /// Settings that the upstream was started with.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Time at which Weir's certificate for the server expires, if it has one.
    pub fn certificate_expiry(&self) -> Option<SystemTime> {
        match self.shared.settings.server() {
            UpstreamSource::Http { egress, .. } => egress.certificate_expiry(),
            _ => None,
        }
    }

    /// Size limit of one response, and the memory budget that it counts against.
    pub fn response_limit(&self) -> BufferLimit {
        let limit = self.shared.settings.limits.max_message;
        BufferLimit { limit, budget: self.shared.budget.clone() }
    }

    /// Watches the connection status.
    pub fn status(&self) -> watch::Receiver<ConnectionStatus> {
        self.shared.status.clone()
    }

    /// Watches the outcome of requests for access tokens; `None` if the upstream needs none.
    pub fn token_outcomes(&self) -> Option<watch::Receiver<TokenOutcome>> {
        self.shared.account.as_ref().map(|account| account.outcomes())
    }

    /// Whether users sign in to the upstream.
    pub fn is_signed_in_to(&self) -> bool {
        self.shared.account.as_ref().is_some_and(|account| account.is_of_user())
    }

    /// Sign-in whose account is used; `None` if a user has to sign in, and has not done so or has
    /// signed out. An upstream without users has always the same.
    pub fn sign_in(&self) -> Option<SignInNumber> {
        match &self.shared.account {
            Some(account) => account.sign_in(),
            None => Some(SignInNumber::default()),
        }
    }

    /// Waits until another sign-in than this one is used, and returns it. Cancel-safe.
    pub async fn sign_in_other_than(&self, known: Option<SignInNumber>) -> Option<SignInNumber> {
        match &self.shared.account {
            Some(account) => account.sign_in_other_than(known).await,
            None => std::future::pending().await,
        }
    }

    /// Builds a full status report.
    pub fn report(&self) -> UpstreamReport {
        let shared = &*self.shared;
        let (all, free) = (shared.settings.limits.concurrency, shared.permits.available_permits());
        let waiting = shared.waiting.read() as usize;
        let status = shared.status.borrow().clone();
        let mut report = shared.health.report(&status, all.saturating_sub(free), waiting);
        let account = shared.account.as_ref().filter(|_| report.state != State::Asleep);
        if let Some(reason) = account.and_then(|account| account.sign_in_needed()) {
            (report.state, report.reason) = (State::NeedsSignIn, Some(reason));
        }
        report
    }

    /// Reads the log of the upstream and of those that it has replaced: the last `count` entries
    /// after the one of this number. Blocks for some milliseconds if there are many secrets to be
    /// replaced in it.
    pub fn read_log(&self, after: u64, count: usize) -> LogPage {
        self.shared.health.log.read(after, count)
    }

    /// Notes for the author of the server, in the order of their kinds, without secrets of the
    /// upstream and control characters.
    pub fn author_notes(&self) -> Vec<AuthorNote> {
        let health = &self.shared.health;
        health.notes.read(health.log.secrets())
    }

    /// Replaces the mistakes of a kind that were found in the server's list of a kind.
    pub fn replace_list_notes(&self, kind: NoteKind, list: Kind, found: Occurrences) {
        self.shared.health.notes.replace(kind, list, found);
    }

    /// Mistakes in files of a prompt library, each with file and line: such a file is not served as
    /// it stands. Empty for an upstream of another kind.
    pub fn file_mistakes(&self) -> Vec<String> {
        match &*self.shared.connection.borrow() {
            Some(UpstreamConnection::Library(library)) => library.mistakes(),
            Some(UpstreamConnection::Session(_) | UpstreamConnection::Notice(_)) | None => {
                Vec::new()
            }
        }
    }

    /// End of the circuit breaker's open period, if the breaker is open.
    pub fn breaker_open_until(&self) -> Option<Instant> {
        self.shared.health.breaker_open_until()
    }

    /// Watches the number of `list_changed` notifications per topic.
    pub fn changes(&self) -> watch::Receiver<ListChangeCounts> {
        self.shared.changes.clone()
    }

    /// Sends a call once, and records it in the upstream's metrics and in those of `all` upstreams.
    /// Dropping the future cancels the call.
    pub async fn call(
        &self,
        call: Box<UpstreamRequest>,
        all: &CallDurations,
    ) -> Result<CallOutcome<SuspendedCall>, Error> {
        let recorder = self.shared.calls.begin(all, call.method);
        let outcome = match CallSlot::acquire(&self.shared).await {
            Ok(slot) => ActiveCall::begin(&self.shared, slot, call).drive().await,
            Err(error) => Err(error),
        };
        recorder.end(&outcome);
        outcome
    }

    /// Lists a kind through all pages. A stopped on-demand upstream is not started. A kind that the
    /// upstream does not declare gives an empty list, without a request.
    pub async fn list(&self, kind: Kind) -> Result<Listing, Error> {
        let settings = &self.shared.settings;
        let _held = self.shared.on_demand.begin_passive();
        if !self.shared.connection()?.about().has(kind.topic()) {
            return Ok(Listing::default());
        }
        let mut guard = self.shared.health.begin()?;
        let listed = CallRoute::send(&self.shared, None, |connection| async move {
            if !connection.about().has(kind.topic()) {
                return Ok(Listing::default());
            }
            connection.list(kind, settings).await
        });
        match listed.await {
            Ok((listing, _)) => {
                guard.responded();
                Ok(listing)
            }
            Err(failed) => {
                guard.failed(&failed);
                Err(failed.error)
            }
        }
    }

    /// Subscribes a client to a resource until the returned subscription is dropped; until then its
    /// updates are marked in `updates`. Waits for the server's acceptance if the URI is not
    /// subscribed yet.
    pub async fn subscribe(
        &self,
        uri: &str,
        updates: &PendingResourceUpdates,
        owner: &QuotaOwner,
    ) -> Result<Subscribed, Error> {
        let usage = begin_use(&self.shared).await;
        if !self.shared.connection()?.about().capabilities.subscribe {
            return Ok(Subscribed::Refused(None));
        }
        self.shared
            .subscriptions
            .join(uri, Subscriber::Resource(updates.clone()), owner, usage)
            .await
    }

    /// Subscribes a client to a modern task, by the upstream's own id, until the returned
    /// subscription is dropped. Waits for the server's acceptance if the task is not subscribed
    /// yet. Refused for an upstream with a process per client: only that process knows the task.
    pub async fn follow_task(
        &self,
        own: &str,
        task: FollowedTask,
        owner: &QuotaOwner,
    ) -> Result<Subscribed, Error> {
        let usage = begin_use(&self.shared).await;
        let connection = self.shared.connection()?;
        let about = connection.about();
        let supports_tasks = about.era() == Era::Modern && about.capabilities.has_tasks();
        let shares_tasks = !matches!(self.shared.settings.sharing, Sharing::Client);
        let scope = connection.scope_of_tasks(task.scope);
        let Some(scope) = scope.filter(|_| supports_tasks && shares_tasks) else {
            return Ok(Subscribed::Refused(None));
        };
        let subscriber = Subscriber::Task(FollowedTask { scope, ..task });
        self.shared.subscriptions.task_registry().join(own, subscriber, owner, usage).await
    }

    // === Start on demand ===

    /// Requests a start of a stopped on-demand upstream, so that it is listed.
    pub fn start_if_idle(&self) {
        if self.shared.on_demand.is_lazy {
            self.shared.on_demand.request_start();
        }
    }

    /// Starts a stopped on-demand upstream and waits for that for a bounded time. The upstream is
    /// not stopped for idleness until the guard is dropped.
    pub async fn start_and_keep_alive(&self) -> KeepAliveGuard {
        KeepAliveGuard { _usage: begin_use(&self.shared).await }
    }

    /// Returns the era of the server; a stopped on-demand upstream is started for that. Waits while
    /// the upstream is starting; `None` if it is not connected then.
    pub async fn era(&self) -> Option<Era> {
        let _usage = begin_use(&self.shared).await;
        Some(self.shared.connection().ok()?.about().era())
    }

    /// Keeps a running upstream from being stopped for idleness until the guard is dropped. A
    /// stopped one is not started.
    pub fn keep_alive(&self) -> KeepAliveGuard {
        KeepAliveGuard { _usage: self.shared.on_demand.begin_passive() }
    }
}

/// Guard that keeps an upstream from being stopped for idleness.
#[derive(Debug)]
pub struct KeepAliveGuard {
    _usage: Option<UsageGuard>,
}

/// Fault reports queued for the supervisor. A report that does not fit is dropped: one about the
/// same connection is already queued.
const MAX_FAULT_REPORTS: usize = 16;
