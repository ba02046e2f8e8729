//! An authenticated client under one configuration: its principal, its view, and the audit event of
//! its request.
//!
//! Invariant: a [`ClientContext`] is made by the functions that authenticate clients only
//! (`Gateway` and `authentication.rs`), so that no request is processed for a client without one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::config_snapshot::ConfigSnapshot;
use super::{Error, Gateway, RefusalReason, RequestTimer};
use weir_access::catalog::{ExportedItem, Filter, RoleView};
use weir_access::policy::limits::{LimitRequest, Limits, RemainingQuota};
use weir_access::policy::role::Role;
use weir_access::policy::{Certificate, Principal, VerifiedCredential};
use weir_base::secrets::sealing::InstanceId;
use weir_base::tasks::request_scope;
use weir_mcp::call::{ClientHandle, Method, QuotaOwner};
use weir_mcp::capabilities::Capabilities;
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::{Era, Revision};
use weir_record::audit::AuditEvent;

/// An authenticated client, bound to one configuration. Cheap to clone.
#[derive(Clone)]
pub struct ClientContext {
    pub(super) gateway: Arc<Gateway>,
    /// The configuration under which its request is processed from beginning to end.
    pub(super) config: Arc<ConfigSnapshot>,
    pub(super) principal: Principal,
    pub(super) auth_method: AuthMethod,
    pub(super) origin: ConnectionOrigin,
    /// The view of its role, as it changes.
    pub(super) view: watch::Receiver<Arc<RoleView>>,
    /// True if its role hides nothing and it presented no credentials.
    public: bool,
    /// The audit event of its request.
    pub(super) audit_event: AuditEvent,
}

/// Method by which a client was authenticated.
#[derive(Debug, Clone)]
pub(super) enum AuthMethod {
    /// By the credential that it presented to the server.
    Credential(VerifiedCredential),
    /// By the name of a configured client, for local commands.
    Named,
    /// By running on this machine, with a role, or with the configuration's role for local clients.
    Local(Option<Arc<str>>),
    /// By access to the program and its configuration. Rate limits do not apply.
    Operator,
}

/// Properties of a client's connection.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionOrigin {
    /// Remote address, if it comes over a network.
    pub(super) from: Option<IpAddr>,
    /// The client certificate that secures it. It need not be what identifies the client.
    pub(super) certificate: Option<Arc<Certificate>>,
}

impl ClientContext {
    /// Creates the context of a client that was authenticated under this configuration, with an
    /// audit event that records nothing.
    pub(super) fn new(
        gateway: &Arc<Gateway>,
        config: &Arc<ConfigSnapshot>,
        principal: Principal,
        auth_method: AuthMethod,
        origin: ConnectionOrigin,
    ) -> Self {
        let policy = &config.policy;
        let anonymous = match auth_method {
            AuthMethod::Credential(VerifiedCredential::Nothing) | AuthMethod::Operator => true,
            AuthMethod::Local(_) => policy.allows_anonymous(),
            AuthMethod::Credential(_) | AuthMethod::Named => false,
        };
        let (role, name) = match auth_method {
            AuthMethod::Operator => (Role::everything().into(), Arc::clone(&principal.role)),
            _ => policy.role_and_view(&principal),
        };
        let public = anonymous && role.allows_everything();
        let filter: Arc<dyn Filter> = role;
        let view = config.catalog.view(&name, &filter);
        Self {
            gateway: Arc::clone(gateway),
            config: Arc::clone(config),
            principal,
            auth_method,
            origin,
            view,
            public,
            audit_event: AuditEvent::off(),
        }
    }

    /// The authenticated principal.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Remote address of its connection, if it comes over a network.
    pub fn remote_ip(&self) -> Option<IpAddr> {
        self.origin.from
    }

    /// The client certificate of the connection, if it has one.
    pub fn certificate(&self) -> Option<&Arc<Certificate>> {
        self.origin.certificate.as_ref()
    }

    /// Handle for all clients of the principal, for transports without sessions.
    pub fn client_handle(&self) -> ClientHandle {
        ClientHandle::shared_by(self.quota_owner())
    }

    /// The principal as owner of quotas.
    pub fn quota_owner(&self) -> QuotaOwner {
        QuotaOwner { name: Arc::clone(&self.principal.name), clients: self.principal.share(1) }
    }

    /// The number of this process.
    pub fn instance(&self) -> InstanceId {
        self.gateway.sealing_keys.instance()
    }

    /// Returns whether the client was authenticated under this configuration.
    pub fn is_under(&self, config: &Arc<ConfigSnapshot>) -> bool {
        Arc::ptr_eq(&self.config, config)
    }

    /// Returns whether every client would see the same lists: no rule hides anything from this one,
    /// it presented no credentials, and none are required.
    pub fn is_public(&self) -> bool {
        self.public
    }

    /// Returns the era of the server of the only upstream once it is connected; `None` if it cannot
    /// be reached, or if there is more than one.
    pub async fn era_of_only_upstream(&self) -> Option<Era> {
        let mut upstreams = self.config.upstreams();
        let only = upstreams.next().filter(|_| upstreams.next().is_none())?;
        only.era().await
    }
}

// === View ===

impl ClientContext {
    /// The client's current view.
    pub fn view(&self) -> Arc<RoleView> {
        Arc::clone(&self.view.borrow())
    }

    /// Returns the capabilities that Weir declares to the client: those of its view. While it can
    /// reach an upstream of which no list is known yet, these are all that this one may turn out to
    /// have, because clients read them once.
    pub fn capabilities(&self) -> Capabilities {
        let view = self.view();
        let mut capabilities = view.capabilities().clone();
        let is_pending = |name| Kind::ALL.iter().any(|kind| view.missing(*kind).contains(name));
        if self.gateway.startup.pending().iter().any(is_pending) {
            capabilities.join(&Capabilities::all());
        }
        capabilities
    }

    /// Waits for upstreams of which no list is known yet, at most until `protocol.list_wait` after
    /// the start of Weir: what depends on their items should be complete.
    pub async fn wait_for_startup(&self) {
        self.gateway.startup.wait_for_startup(self.config.list_wait).await;
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

    /// The item of the view that a request with this method and key is about, if clients of this
    /// revision have it.
    pub(super) fn find_in_view(
        &self,
        method: Method,
        kind: Kind,
        key: &str,
        revision: Revision,
    ) -> Option<Arc<ExportedItem>> {
        let view = self.view.borrow();
        let target = match method {
            Method::ReadResource => view.resolve_uri(key),
            _ => view.resolve(kind, key),
        };
        target.filter(|target| target.is_for(DefinitionForm::of(revision)))
    }
}

// === Limits ===

impl ClientContext {
    /// The limits that apply to this client, if there are any.
    pub(super) fn limits(&self) -> Option<&Limits> {
        let limits = self.config.policy.limits();
        let is_limited = !matches!(self.auth_method, AuthMethod::Operator);
        (is_limited && !limits.is_empty()).then_some(limits)
    }

    /// A request of the client as the limits see it.
    pub(super) fn limit_request<'a>(
        &'a self,
        method: &'a str,
        item: Option<&'a ExportedItem>,
    ) -> LimitRequest<'a> {
        let item = item.map(|item| (&item.upstream, &*item.own));
        LimitRequest {
            method,
            principal: &self.principal,
            from: self.origin.from,
            item,
            is_part: false,
        }
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

// === Audit event and metrics ===

impl ClientContext {
    /// This client with the audit event of one request or session.
    pub fn with_audit_event(&self, audit_event: AuditEvent) -> Self {
        let Principal { name, role, application } = &self.principal;
        audit_event.set_client(name, role, application.as_ref());
        request_scope::record(|known| known.client = Some(Arc::clone(name)));
        Self { audit_event, ..self.clone() }
    }

    /// This client with the audit event of one more request of its session or stream.
    pub fn with_next_audit_event(&self) -> Self {
        self.with_audit_event(self.audit_event.begin_next())
    }

    /// The audit event of the client's request.
    pub fn audit_event(&self) -> &AuditEvent {
        &self.audit_event
    }

    /// Reserves a place in the audit queue if auditing is mandatory, before anything is done.
    pub(super) async fn reserve(&self) -> Result<(), Error> {
        self.audit_event.reserve().await.map_err(|_| self.audit_unavailable())
    }

    /// Reserves a place in the audit queue without waiting.
    pub(super) fn reserve_at_once(&self) -> Result<(), Error> {
        self.audit_event.try_reserve().map_err(|_| self.audit_unavailable())
    }

    /// Records that a request is about to be sent to an upstream; waits for it if auditing is
    /// mandatory.
    pub(super) async fn record_sending(&self) -> Result<(), Error> {
        self.audit_event.before_sending().await.map_err(|_| self.audit_unavailable())
    }

    fn audit_unavailable(&self) -> Error {
        self.count_refusal(RefusalReason::Audit);
        Error::AuditUnavailable
    }

    /// Starts the timer of a request of this client.
    pub fn timing(&self, method: &str) -> RequestTimer {
        self.config.role_metrics.request(&self.principal.role);
        self.gateway.metrics.begin(method)
    }

    /// Counts a rejection of a request of this client.
    pub fn count_refusal(&self, reason: RefusalReason) {
        self.gateway.metrics.refused(reason);
        self.config.role_metrics.refusal(&self.principal.role, reason);
    }
}
