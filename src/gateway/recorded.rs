//! What the gateway learns about a request, told to its record.
//!
//! Knows nothing of: how a record is written, and how requests end.

use super::{Fault, Guest};
use crate::audit::{Decision, Record};
use crate::catalog::Target;
use crate::json::Object;
use crate::mcp::call::{Ask, Method};
use crate::mcp::kind::{Kind, SUBSCRIBE, UNSUBSCRIBE};
use crate::mcp::revision::Revision;
use crate::policy::Principal;

impl Guest {
    /// The same guest, for one request or one conversation whose record this is.
    pub fn recorded(&self, record: Record) -> Self {
        let Principal { name, role, application } = &self.principal;
        record.by(name, role, application.as_ref());
        Self { record, ..self.clone() }
    }

    /// The record of what is asked in this guest's name.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Makes sure that there is room for the record, where it is a must. Before anything is done.
    pub(super) async fn reserve(&self) -> Result<(), Fault> {
        self.record.reserve().await.map_err(|_| Fault::Unrecorded)
    }

    /// The same without waiting.
    pub(super) fn reserve_at_once(&self) -> Result<(), Fault> {
        self.record.reserve_at_once().map_err(|_| Fault::Unrecorded)
    }

    /// Something is about to go to an upstream; where it must be recorded, it is now.
    pub(super) async fn record_sending(&self) -> Result<(), Fault> {
        self.record.admit().await.map_err(|_| Fault::Unrecorded)
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
        if !self.record.is_on() {
            return;
        }
        let (upstream, own) = (&target.upstream, &*target.own);
        let role = self.generation.policy.role(&self.principal);
        let rule = role.rule(target.kind, upstream, own).map(|pattern| pattern.as_str());
        self.record.about(target.kind);
        self.record.named(&target.key);
        self.record.decided(Decision::Allowed, Some((upstream, own)), rule);
    }

    /// The client learns no more than that there is no such item; the operator, whether there is.
    pub(super) fn record_missing(&self, ask: &Ask, revision: Revision) {
        if !self.record.is_on() {
            return;
        }
        self.record.about(ask.kind);
        self.record.named(&ask.key);
        let Some(target) = self.as_operator().resolve(ask, revision) else {
            return self.record.decided(Decision::Unknown, None, None);
        };
        let (upstream, own) = (&target.upstream, &*target.own);
        let role = self.generation.policy.role(&self.principal);
        let rule = role.rule(target.kind, upstream, own).map(|pattern| pattern.as_str());
        self.record.decided(Decision::Denied, Some((upstream, own)), rule);
    }
}
