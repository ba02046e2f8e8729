//! What the gateway learns about a request, told to its record.
//!
//! Knows nothing of: how a record is written, and how requests end.

use std::sync::Arc;

use super::{Fault, Guest, Reason};
use crate::audit::{Decision, Record};
use crate::catalog::Target;
use crate::json::Object;
use crate::mcp::call::{Ask, Method};
use crate::mcp::kind::{Kind, SUBSCRIBE, UNSUBSCRIBE};
use crate::mcp::revision::Revision;
use crate::policy::Principal;
use crate::request_scope;

impl Guest {
    /// The same guest, for one request or one conversation whose record this is.
    pub fn recorded(&self, record: Record) -> Self {
        let Principal { name, role, application } = &self.principal;
        record.by(name, role, application.as_ref());
        request_scope::leave(|known| known.client = Some(Arc::clone(name)));
        Self { record, ..self.clone() }
    }

    /// The record of what is asked in this guest's name.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Makes sure that there is room for the record, where it is a must. Before anything is done.
    pub(super) async fn reserve(&self) -> Result<(), Fault> {
        self.record.reserve().await.map_err(|_| self.unrecorded())
    }

    /// The same without waiting.
    pub(super) fn reserve_at_once(&self) -> Result<(), Fault> {
        self.record.reserve_at_once().map_err(|_| self.unrecorded())
    }

    /// Something is about to go to an upstream; where it must be recorded, it is now.
    pub(super) async fn record_sending(&self) -> Result<(), Fault> {
        self.record.admit().await.map_err(|_| self.unrecorded())
    }

    fn unrecorded(&self) -> Fault {
        self.gateway.meters.refused(Reason::Audit);
        Fault::Unrecorded
    }

    /// What is asked for, before anybody looks whether it is there.
    pub(super) fn record_asked(&self, method: &str, params: &Object) {
        if !self.record.is_on() {
            return;
        }
        let asked = match method {
            SUBSCRIBE | UNSUBSCRIBE => {
                params.get_string("uri").map(|uri| (Kind::Resource, uri.into()))
            }
            method => Method::of(method).and_then(|method| Ask::item(method, params).ok()),
        };
        if let Some((kind, key)) = asked {
            self.record.about(kind);
            self.record.named(&key);
        }
    }

    /// A limit is reached, by its number in the configuration.
    pub(super) fn record_limited(&self, target: Option<&Target>, limit: usize) {
        if self.record.is_on() {
            target.into_iter().for_each(|target| self.record_found(target));
            self.record.refused_by(&format!("limits[{limit}]"));
        }
    }

    /// Whoever sees all that there is under the guest's own configuration.
    fn as_operator(&self) -> Self {
        self.gateway.enter_as_operator_under(&self.generation)
    }

    pub(super) fn record_found(&self, target: &Target) {
        request_scope::leave(|known| known.upstream = Some(target.upstream.shared()));
        if !self.record.is_on() {
            return;
        }
        let (upstream, own) = (&target.upstream, &*target.own);
        let role = self.generation.policy.role(&self.principal);
        let rule = role.rule(target.kind, upstream, own, target.is_listed());
        let rule = rule.map(|pattern| pattern.as_str());
        let item = (target.kind, &*target.key);
        self.record.decided(item, Decision::Allowed, Some((upstream, own)), rule);
    }

    /// The client learns no more than that there is no such item; the operator, whether there is.
    pub(super) fn record_missing(&self, ask: &Ask, revision: Revision) {
        let item = (ask.kind, &*ask.key);
        let meters = &self.gateway.meters;
        let role = self.generation.policy.role(&self.principal);
        let hidden = (!role.allows_everything()).then(|| self.as_operator().resolve(ask, revision));
        let Some(target) = hidden.flatten() else {
            meters.refused(Reason::Unknown);
            return self.record.decided(item, Decision::Unknown, None, None);
        };
        meters.refused(Reason::Denied);
        let (upstream, own) = (&target.upstream, &*target.own);
        let rule = role.rule(target.kind, upstream, own, target.is_listed());
        let rule = rule.map(|pattern| pattern.as_str());
        self.record.decided(item, Decision::Denied, Some((upstream, own)), rule);
    }
}
