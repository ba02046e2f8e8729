//! Gateway: processes requests of clients. A client is authenticated, its view resolves the name,
//! and the upstream that owns the item is called.
//!
//! The gateway connects the modules below it: the catalog does not depend on the policy, and
//! neither depends on upstreams. A [`ClientContext`] comes only from the functions in
//! `authentication.rs`, and an item only from the view of a `ClientContext`, so no step can be
//! skipped in any revision or transport.
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

mod audit_hooks;
mod authentication;
mod client_notifications;
mod completing;
mod config_snapshot;
mod error;
mod last_lists;
mod lists;
mod metrics;
mod request;
mod response_checks;
mod round_trips;
mod startup;
mod subscriptions;
mod suspended;
mod task_handles;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::suspended::table::SuspendedRequests;
pub use authentication::ClientIdentity;
use authentication::{AuthMethod, ConnectionOrigin};
pub use client_notifications::{ClientNotification, ClientNotifications};
pub use config_snapshot::{ConfigSnapshot, SnapshotParts};
pub use error::Error;
pub use metrics::{
    GatewayMetrics, LimitHits, RefusalReason, RequestStatus, RequestTimer, RoleMetrics,
};
pub use request::{Admission, ResolvedItem};
pub use round_trips::PendingInput;
use startup::StartupBarrier;
pub use subscriptions::{MAX_SUBSCRIPTIONS, SubscribeOutcome, Subscriptions};
pub use suspended::SuspendedRequest;
use task_handles::TaskHandleCodec;
use weir_access::catalog::{self, Cursor, RoleView};
use weir_access::guard::{self, Guard};
use weir_access::pins::{Change, Pins};
use weir_access::policy::Principal;
use weir_access::policy::limits::{LimitRequest, RemainingQuota};
use weir_base::net::http_send::HttpSend;
use weir_base::secrets::sealing::{Instance, SealingKeys};
use weir_mcp::call::{ClientHandle, QuotaOwner};
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::Era;
use weir_record::audit::AuditEvent;
use weir_upstream::Upstream;

/// Time to live of a list if no upstream gives a shorter one. Clients are notified of changes in
/// any case.
const LIST_TTL: Duration = Duration::from_secs(60);

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

/// An authenticated client, bound to one configuration. Cheap to clone.
#[derive(Clone)]
pub struct ClientContext {
    gateway: Arc<Gateway>,
    /// The configuration under which its request is processed from beginning to end.
    config: Arc<ConfigSnapshot>,
    principal: Principal,
    auth_method: AuthMethod,
    origin: ConnectionOrigin,
    /// The view of its role, as it changes.
    view: watch::Receiver<Arc<RoleView>>,
    /// Whether its role hides nothing and it presented no credentials.
    public: bool,
    /// Whether rate limits apply.
    is_limited: bool,
    /// The audit event of its request.
    audit_event: AuditEvent,
}

/// Page of a merged list, independent of the revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage {
    /// The items as a JSON array.
    pub items: Bytes,
    /// Cursor of the next page; `None` on the last.
    pub next_cursor: Option<String>,
    /// Upstreams that are missing from the list and that this client could see.
    pub partial: Vec<UpstreamName>,
    /// Time to live of the page.
    pub ttl: Duration,
    /// Whether the page is the same for every client.
    pub public: bool,
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

    /// Upstreams that have neither been listed nor failed yet.
    pub fn pending_upstreams(&self) -> Vec<UpstreamName> {
        self.startup.pending()
    }
}

impl ClientContext {
    /// The authenticated principal.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Remote address of its connection, if it comes over a network.
    pub fn remote_ip(&self) -> Option<IpAddr> {
        self.origin.from
    }

    /// Handle for all clients of the principal, for transports without sessions.
    pub fn client_handle(&self) -> ClientHandle {
        ClientHandle::shared_by(self.quota_owner())
    }

    /// The number of this process.
    pub fn instance(&self) -> Instance {
        self.gateway.sealing_keys.instance()
    }

    /// The principal as owner of quotas.
    pub fn quota_owner(&self) -> QuotaOwner {
        QuotaOwner { name: Arc::clone(&self.principal.name), clients: self.principal.share(1) }
    }

    /// Whether every client would see the same lists: no rule hides anything from this one, it
    /// presented no credentials, and none are required.
    pub fn is_public(&self) -> bool {
        self.public
    }

    /// Waits for upstreams that are still starting, at most until shortly after the start of Weir:
    /// answers that are given only once, such as capabilities, should be complete.
    pub async fn wait_for_startup(&self) {
        self.gateway.startup.wait_for_startup().await;
    }

    /// Returns the era of the server of the only upstream once it is connected; `None` if it cannot
    /// be reached, or if there is more than one.
    pub async fn era_of_only_upstream(&self) -> Option<Era> {
        let mut upstreams = self.config.upstreams();
        let only = upstreams.next().filter(|_| upstreams.next().is_none())?;
        only.era().await
    }

    /// Waits until the client can see the item with this public key, or an upstream for this URI.
    pub async fn wait_until_visible(&self, kind: Kind, key: &str) {
        let mut view = self.view.clone();
        let is_visible = |view: &Arc<RoleView>| match kind {
            Kind::Resource => view.resolve_uri(key).is_some(),
            _ => view.resolve(kind, key).is_some(),
        };
        if view.wait_for(is_visible).await.is_err() {
            // The catalog is gone because the gateway is stopping; no change will follow.
            std::future::pending::<()>().await;
        }
    }

    /// The client's current view.
    pub fn view(&self) -> Arc<RoleView> {
        Arc::clone(&self.view.borrow())
    }

    /// Returns a page of a list from memory.
    pub async fn list(
        &self,
        _: &Admission,
        kind: Kind,
        cursor: Option<&str>,
        form: DefinitionForm,
    ) -> Result<ListPage, Error> {
        let unreadable = |_| Error::Request("Invalid cursor".to_owned());
        self.audit_event.set_kind(kind);
        let after = cursor.map(|text| Cursor::parse(text, kind)).transpose().map_err(unreadable)?;
        self.wait_for_startup().await;
        let page = self.view().page(kind, after.as_ref(), form);
        Ok(ListPage {
            items: page.items,
            next_cursor: page.next.map(|next| next.encode(kind)),
            partial: page.partial,
            ttl: page.fresh_for.map_or(LIST_TTL, |fresh_for| fresh_for.min(LIST_TTL)),
            public: self.public && !page.is_private,
        })
    }

    /// Time until the client may send the next request, if so many of its requests have been
    /// rejected that the next one need not be read. `None` while it has suspended calls, because it
    /// may send input responses.
    pub fn flood_retry_after(&self) -> Option<Duration> {
        let wait = self.limits()?.flood_retry_after(&self.principal, self.origin.from)?;
        (!self.has_suspended_calls()).then_some(wait)
    }

    /// Returns whether the client has suspended calls.
    pub fn has_suspended_calls(&self) -> bool {
        self.gateway.suspended.has_any(&self.principal)
    }

    /// Remaining quota of the limits that count this method for this item, given by its own name.
    /// Nothing is charged.
    pub fn remaining_limits(
        &self,
        method: &str,
        upstream: &UpstreamName,
        own: &str,
    ) -> Vec<RemainingQuota> {
        let Some(limits) = self.limits() else { return Vec::new() };
        limits.remaining(&LimitRequest {
            item: Some((upstream, own)),
            ..self.limit_request(method, None)
        })
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
