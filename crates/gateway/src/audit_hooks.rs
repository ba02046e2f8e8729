//! Audit hooks: the facts that the gateway adds to the audit event of a request.

use std::sync::Arc;

use super::{ClientContext, Error, RefusalReason};
use weir_access::catalog::ExportedItem;
use weir_access::policy::Principal;
use weir_base::tasks::request_scope;
use weir_mcp::call::ItemRequest;
use weir_mcp::kind::Kind;
use weir_mcp::revision::Revision;
use weir_record::audit::{AuditDecision, AuditEvent};

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

    /// Records a rejection by a limit, given by its index in the configuration.
    pub(super) fn record_limited(&self, target: Option<&ExportedItem>, limit: usize) {
        if self.audit_event.is_on() {
            target.into_iter().for_each(|target| self.record_found(target));
            self.audit_event.set_refused_by(&format!("limits[{limit}]"));
        }
    }

    /// Records that an item was found.
    pub(super) fn record_found(&self, target: &ExportedItem) {
        request_scope::record(|known| known.upstream = Some(target.upstream.shared()));
        if self.audit_event.is_on() {
            self.record_decision((target.kind, &target.key), AuditDecision::Allowed, target);
        }
    }

    /// Records that an item was not found. The client learns only that; the audit event says
    /// whether the item exists.
    pub(super) fn record_missing(&self, request: &ItemRequest, revision: Revision) {
        let item = (request.kind, &*request.key);
        let is_restricted = !self.config.policy.role(&self.principal).allows_everything();
        let as_operator = || {
            let operator = self.gateway.operator_under(&self.config);
            operator.find_in_view(request.method, request.kind, &request.key, revision)
        };
        match is_restricted.then(as_operator).flatten() {
            Some(target) => {
                self.count_refusal(RefusalReason::Denied);
                self.record_decision(item, AuditDecision::Denied, &target);
            }
            None => {
                self.count_refusal(RefusalReason::Unknown);
                self.audit_event.set_decision(item, AuditDecision::Unknown, None, None);
            }
        }
    }

    /// Records the decision about an item that exists, with the rule of the client's role.
    fn record_decision(&self, item: (Kind, &str), decision: AuditDecision, target: &ExportedItem) {
        let (upstream, own) = (&target.upstream, &*target.own);
        let role = self.config.policy.role(&self.principal);
        let rule = role.rule(target.kind, upstream, own, target.is_listed());
        let rule = rule.map(|pattern| pattern.as_str());
        self.audit_event.set_decision(item, decision, Some((upstream, own)), rule);
    }
}
