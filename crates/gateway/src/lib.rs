//! Gateway: processes requests of clients. A client is authenticated, its view resolves the name,
//! and the upstream that owns the item is called.
//!
//! The gateway connects the modules below it: the catalog does not depend on the policy, and
//! neither depends on upstreams. A request takes these steps, each of which makes what the next one
//! needs, so none can be skipped in any revision or transport: a [`ClientContext`] comes from
//! authentication only, an [`Admission`] from the limits (or is unlimited, for the local user who
//! runs a command), a [`ResolvedItem`] from an admission and the view of the client, and a
//! [`PreparedRequest`], with which a call begins, from the guard.
//!
//! Does not know about transports, HTTP and JSON-RPC codes; of the eras it knows only what a
//! response may contain.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

mod admission;
mod authentication;
mod call;
mod client_context;
mod client_notifications;
mod completion_filter;
mod config_snapshot;
mod error;
mod last_lists;
mod lists;
mod metrics;
mod response_checks;
mod rounds;
mod startup;
mod subscriptions;
mod suspended;
mod task_handles;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use admission::{Admission, ListPage, ResolvedItem};
pub use authentication::ClientIdentity;
use authentication::local_principal;
pub use call::PreparedRequest;
pub use client_context::ClientContext;
use client_context::{AuthMethod, ConnectionOrigin};
pub use client_notifications::{ClientNotification, ClientNotifications};
use config_snapshot::UpstreamEntry;
pub use config_snapshot::{ConfigSnapshot, SnapshotParts};
pub use error::Error;
use lists::list_refresher::ListRefresher;
pub use metrics::{
    GatewayMetrics, LimitHits, RefusalReason, RequestStatus, RequestTimer, RoleMetrics,
};
pub use response_checks::SuspendedRequest;
pub use rounds::{PendingInput, send_in_rounds};
use startup::StartupBarrier;
pub use subscriptions::{MAX_SUBSCRIPTIONS, SubscribeOutcome, Subscriptions};
use suspended::SuspendedRequests;
use task_handles::TaskHandleCodec;
pub use task_handles::{named_task_scope, task_scope};
use weir_access::catalog::{self, Catalog};
use weir_access::guard::{self, Guard};
use weir_access::pins::{Change, Pins};
use weir_access::policy::{AuthAttempt, AuthError, Policy, Principal, UserSearch};
use weir_base::net::http_send::HttpSend;
use weir_base::secrets::sealing::SealingKeys;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_upstream::{ConnectionStatus, Upstream};

/// The running gateway: authenticates clients, resolves items and calls upstreams.
///
/// The value lives as long as the process. Everything that a configuration decides is in a
/// [`ConfigSnapshot`], which is replaced on reload; the other fields outlive it.
pub struct Gateway {
    current: watch::Sender<Arc<ConfigSnapshot>>,
    startup: StartupBarrier,
    /// Calls that wait for input of modern clients.
    suspended: SuspendedRequests<SuspendedRequest>,
    task_handles: Arc<TaskHandleCodec>,
    sealing_keys: SealingKeys,
    tracker: TaskTracker,
    stop: CancellationToken,
    metrics: Arc<GatewayMetrics>,
}

/// The content checks of definitions, requests and responses.
#[derive(Default)]
pub struct Inspectors {
    /// Checks of requests, responses and definitions.
    pub guard: Guard,
    /// Definition pinning: only approved definitions are published.
    pub pins: Pins,
}

impl Gateway {
    /// Creates the gateway and starts a task per upstream that keeps its lists fresh, until `stop`.
    /// What clients keep for Weir is sealed with `sealing_keys`.
    pub fn open(
        parts: SnapshotParts,
        sealing_keys: SealingKeys,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let gateway = Arc::new(Self {
            current: watch::Sender::new(Arc::new(ConfigSnapshot::new(parts, None))),
            startup: StartupBarrier::new(),
            suspended: SuspendedRequests::new(sealing_keys.instance()),
            task_handles: Arc::new(TaskHandleCodec::new(&sealing_keys)),
            sealing_keys,
            tracker: tasks.clone(),
            stop: stop.clone(),
            metrics: Arc::default(),
        });
        gateway.spawn_refreshers();
        let (sweeping, stop_sweep) = (Arc::clone(&gateway), stop.clone());
        tasks.spawn(async move { sweeping.suspended.sweep(&stop_sweep).await });
        tasks.spawn(follow_pins(gateway.current.subscribe(), stop.clone()));
        gateway
    }

    /// Starts tasks that fetch and refresh the keys of the identity providers until `stop`, for
    /// providers that have none yet.
    pub fn spawn_jwks_refreshers(
        &self,
        http: &Arc<dyn HttpSend>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        self.config().policy.spawn_jwks_refreshers(http, tasks, stop);
    }

    /// The upstreams of the current configuration, by name.
    pub fn upstreams(&self) -> Vec<Upstream> {
        self.config().upstreams().cloned().collect()
    }

    /// The keys that what clients keep for Weir is sealed with.
    pub fn sealing_keys(&self) -> &SealingKeys {
        &self.sealing_keys
    }

    /// The metrics of the process.
    pub fn metrics(&self) -> &Arc<GatewayMetrics> {
        &self.metrics
    }

    /// The limits that have rejected a request: the index in the configuration, its description,
    /// and its hits.
    pub fn limits_hit(&self) -> Vec<(usize, String, LimitHits)> {
        let config = self.config();
        let hits = self.metrics.limits().into_iter();
        hits.filter_map(|(number, hit)| {
            Some((number, config.policy.limits().get(number)?.to_string(), hit))
        })
        .collect()
    }

    /// Counts of the guard's findings, by upstream.
    pub fn findings(&self) -> Vec<(UpstreamName, guard::FindingCounts)> {
        let config = self.config();
        config.inspectors.guard.counts().map(|(name, counts)| (name.clone(), counts)).collect()
    }

    /// The content checks of the current configuration.
    pub fn inspectors(&self) -> Arc<Inspectors> {
        Arc::clone(&self.config().inspectors)
    }

    /// Items that are excluded from the lists, with the reasons.
    pub fn problems(&self) -> Vec<(UpstreamName, Kind, catalog::ExportProblems)> {
        self.config().catalog.problems()
    }

    /// Hash of all lists, equal in processes that list the same.
    pub fn lists_digest(&self) -> u64 {
        self.config().catalog.digest()
    }

    /// Whether an upstream is hidden from the lists because it has been down for longer than its
    /// grace period.
    pub fn is_hidden(&self, upstream: &UpstreamName) -> bool {
        self.config().is_hidden(upstream)
    }

    /// Items that wait for approval: upstream, kind and own name; of instructions, no kind.
    pub fn awaiting_approval(&self) -> Vec<(UpstreamName, Option<Kind>, String)> {
        let config = self.config();
        let pins = &config.inspectors.pins;
        if !config.upstreams().any(|upstream| pins.enforces(upstream.name())) {
            return Vec::new();
        }
        let waiting = pins
            .differences()
            .into_iter()
            .filter(|it| pins.enforces(&it.upstream) && it.change != Change::Missing);
        waiting.map(|it| (it.upstream, it.kind, it.key)).collect()
    }

    /// Has requests wait until each upstream has been listed or has failed once, for as long as
    /// their own time limits allow: for clients that know what there is from elsewhere.
    pub fn wait_for_upstreams(&self) {
        self.startup.set_patient();
    }

    /// Waits until each upstream has been listed or has failed once.
    pub async fn wait_until_listed(&self) {
        self.startup.wait_for_all().await;
    }

    /// Waits until no upstream is being started: each is connected, down, or asleep until it is
    /// used. One whose lists are known from before is listed, and may still be starting.
    pub async fn wait_until_started(&self) {
        for upstream in self.config().upstreams() {
            let is_settled =
                |status: &ConnectionStatus| !matches!(status, ConnectionStatus::Starting);
            // Fails if a reload removed it.
            let _ = upstream.status().wait_for(is_settled).await;
        }
    }

    /// Upstreams that have neither been listed nor failed yet.
    pub fn pending_upstreams(&self) -> Vec<UpstreamName> {
        self.startup.pending()
    }
}

// === Configuration ===

impl Gateway {
    /// The current configuration.
    pub fn config(&self) -> Arc<ConfigSnapshot> {
        Arc::clone(&self.current.borrow())
    }

    /// Calls `read` with the current policy, catalog and inspectors, from which the next ones are
    /// built.
    pub fn rules<R>(&self, read: impl FnOnce(&Policy, &Catalog, &Inspectors) -> R) -> R {
        let config = self.config();
        read(&config.policy, &config.catalog, &config.inspectors)
    }

    /// Creates the next configuration. It takes effect with [`Gateway::replace`].
    pub fn prepare(&self, parts: SnapshotParts) -> Arc<ConfigSnapshot> {
        Arc::new(ConfigSnapshot::new(parts, Some(&self.config())))
    }

    /// Makes a configuration the current one: clients are authenticated under it from now on.
    /// Removed upstreams are stopped when they have no request in flight, after `grace` at the
    /// latest.
    pub fn replace(&self, next: Arc<ConfigSnapshot>, grace: Duration) {
        let before = self.current.send_replace(Arc::clone(&next));
        for entry in next.entries.values().filter(|entry| !before.has(&entry.upstream)) {
            self.spawn_refresher(&next, entry);
        }
        before.policy.stop_removed_providers(&next.policy);
        for removed in before.upstreams().filter(|upstream| !next.has(upstream)) {
            self.tracker.spawn(stop_after(removed.stop_token(), grace));
        }
    }

    /// Starts the tasks of the first configuration.
    fn spawn_refreshers(&self) {
        let config = self.config();
        config.entries.values().for_each(|entry| self.spawn_refresher(&config, entry));
    }

    /// Starts the task that keeps the lists of an upstream fresh.
    fn spawn_refresher(&self, config: &ConfigSnapshot, entry: &UpstreamEntry) {
        let UpstreamEntry { upstream, last_lists } = entry;
        let pending = self.startup.add(upstream.name());
        let (configs, last_lists) = (self.current.subscribe(), Arc::clone(last_lists));
        let refresher = ListRefresher::new(upstream.clone(), config, configs, last_lists, pending);
        self.tracker.spawn(refresher.run(self.stop.clone()));
    }
}

// === Clients ===

impl Gateway {
    /// Authenticates a client under a given configuration.
    pub async fn authenticate_under(
        self: &Arc<Self>,
        config: &Arc<ConfigSnapshot>,
        attempt: AuthAttempt<'_>,
    ) -> Result<ClientContext, AuthError> {
        let (principal, pass) = config.policy.authenticate(attempt, SystemTime::now()).await?;
        let origin =
            ConnectionOrigin { from: attempt.from, certificate: attempt.certificate.cloned() };
        Ok(ClientContext::new(self, config, principal, AuthMethod::Credential(pass), origin))
    }

    /// The context of a configured client by its name, for local commands.
    pub fn named_client(self: &Arc<Self>, client: &str) -> Option<ClientContext> {
        let config = self.config();
        let principal = config.policy.principal(client)?;
        Some(self.local_context(&config, principal, AuthMethod::Named))
    }

    /// The context of a user of an identity provider with these roles, for local commands.
    pub fn client_with_roles(
        self: &Arc<Self>,
        name: &str,
        roles: &BTreeSet<Arc<str>>,
    ) -> ClientContext {
        let config = self.config();
        let principal = config.policy.principal_with(name, roles);
        self.local_context(&config, principal, AuthMethod::Named)
    }

    /// The context of the client at the other end of `weir stdio`, with a role.
    pub fn local_client(self: &Arc<Self>, role: &str) -> ClientContext {
        let config = self.config();
        let role = (*role != **config.policy.local_role()).then(|| role.into());
        let principal = local_principal(&config, role.as_ref());
        self.local_context(&config, principal, AuthMethod::Local(role))
    }

    /// The context of the operator, from which nothing is hidden.
    pub fn operator(self: &Arc<Self>) -> ClientContext {
        self.operator_under(&self.config())
    }

    fn operator_under(self: &Arc<Self>, config: &Arc<ConfigSnapshot>) -> ClientContext {
        // No role of the configuration can have this name.
        self.local_context(config, Principal::new("operator", "*"), AuthMethod::Operator)
    }

    fn local_context(
        self: &Arc<Self>,
        config: &Arc<ConfigSnapshot>,
        principal: Principal,
        method: AuthMethod,
    ) -> ClientContext {
        ClientContext::new(self, config, principal, method, ConnectionOrigin::default())
    }

    /// Finds a user of an identity provider by name, `<provider>/<user>`.
    pub fn find_user(&self, name: &str) -> UserSearch {
        self.config().policy.find_user(name)
    }

    /// The number of users without a role, by identity provider.
    pub fn users_without_role(&self) -> BTreeMap<String, usize> {
        self.config().policy.users_without_role()
    }
}

/// Reloads the lock file of approved definitions whenever it changes, until `stop`.
async fn follow_pins(mut current: watch::Receiver<Arc<ConfigSnapshot>>, stop: CancellationToken) {
    loop {
        let inspectors = Arc::clone(&current.borrow_and_update().inspectors);
        let following = async {
            inspectors.pins.follow(&stop).await;
            // This configuration has no lock file.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = following => {}
            changed = current.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Stops an upstream that has not stopped by itself within `grace`.
async fn stop_after(stop: CancellationToken, grace: Duration) {
    if tokio::time::timeout(grace, stop.cancelled()).await.is_err() {
        stop.cancel();
    }
}
