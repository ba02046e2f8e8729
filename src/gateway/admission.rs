//! How a request begins: with a [`Permit`], which lists, asks and subscriptions want to see.
//!
//! A request is charged once, before anything else is done for it: by the item that it is about, if its client can
//! reach one, and else by its method alone. What is denied and what is not there are charged alike.
//!
//! Knows nothing of: notifications and answers, which begin nothing and are never refused; HTTP.

use std::sync::Arc;
use std::time::Duration;

use super::round_trips::state_of;
use super::{Fault, Guest};
use crate::catalog::Target;
use crate::gateway::suspended::table::Request;
use crate::json::{self, Object};
use crate::mcp::call::{Ask, Method};
use crate::mcp::kind::{Kind, SUBSCRIBE, UNSUBSCRIBE};
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::{Era, Revision};
use crate::policy::limits::{Charge, Left, Limits, Permit, Refused};
use crate::request_scope;

impl Guest {
    /// Lets a request begin, if there is room for its record where it must have one, and charges the limits for
    /// it. The permit is to be kept until it has been answered.
    ///
    /// A further round of a call that waits here was charged when the call began; where the round goes to an
    /// upstream that keeps its calls itself it is a call like any other. Only modern requests have rounds: to a
    /// legacy one a state means nothing, so it saves it nothing.
    pub async fn admit(
        &self,
        revision: Revision,
        method: &str,
        params: &Object,
    ) -> Result<Permit, Fault> {
        request_scope::leave(|known| known.client = Some(Arc::clone(&self.principal.name)));
        self.record_asked(method, params);
        self.reserve().await?;
        let Some(limits) = self.limits() else { return Ok(Permit::unlimited()) };
        if revision.era() == Era::Modern && self.goes_on(method, params) {
            let target = self.item(revision, method, params).await;
            return Ok(limits.readmit(&self.charge(method, target.as_deref())));
        }
        let mut target = match limits.look_at_items() {
            true => self.item(revision, method, params).await,
            false => None,
        };
        match limits.admit(&self.charge(method, target.as_deref())) {
            Ok(permit) => Ok(permit),
            Err(refused) => {
                // A record names the item, whatever counts.
                if target.is_none() && self.record.is_on() {
                    target = self.item(revision, method, params).await;
                }
                Err(self.limited(&refused, method, target.as_deref()))
            }
        }
    }

    /// The same for a request that is about no item, without waiting.
    pub fn admit_at_once(&self, method: &str) -> Result<Permit, Fault> {
        self.reserve_at_once()?;
        match self.limits() {
            Some(limits) => {
                let admitted = limits.admit(&self.charge(method, None));
                admitted.map_err(|refused| self.limited(&refused, method, None))
            }
            None => Ok(Permit::unlimited()),
        }
    }

    /// Charges one of the resources that a listen names: by the limits on subscribing, on what it subscribes to and
    /// on whose it is. Those on requests as such have counted the listen.
    pub async fn admit_part(&self, uri: &str) -> Result<Permit, Fault> {
        let Some(limits) = self.limits() else { return Ok(Permit::unlimited()) };
        let mut params = Object::new();
        params.set("uri", json::quote(uri));
        let target = self.item(Revision::NEWEST, SUBSCRIBE, &params).await;
        let charge = Charge { is_part: true, ..self.charge(SUBSCRIBE, target.as_deref()) };
        let admitted = limits.admit(&charge);
        admitted.map_err(|refused| self.limited(&refused, SUBSCRIBE, target.as_deref()))
    }

    /// Whether so many of its requests have been refused that the next need not be read: then how long it has to
    /// wait. Never while it may have answers to bring.
    pub fn overrun(&self) -> Option<Duration> {
        let wait = self.limits()?.overrun(&self.principal, self.origin.from)?;
        (!self.gateway.parking.has_any(&self.principal)).then_some(wait)
    }

    /// What is left of the limits that count this method about this item, by its upstream's own name. Nothing is
    /// charged.
    pub fn left(&self, method: &str, upstream: &UpstreamName, own: &str) -> Vec<Left> {
        let Some(limits) = self.limits() else { return Vec::new() };
        limits.left(&Charge { item: Some((upstream, own)), ..self.charge(method, None) })
    }

    fn limits(&self) -> Option<&Limits> {
        let limits = self.generation.policy.limits();
        (self.is_limited && !limits.is_empty()).then_some(limits)
    }

    /// Tells the operator which limit is reached; the client learns no more than when to come back.
    fn limited(&self, refused: &Refused, method: &str, target: Option<&Target>) -> Fault {
        let Refused { retry_after, limit } = *refused;
        tracing::debug!(client = %self.principal.name, method, limit, "a limit is reached");
        self.record_limited(target, limit);
        self.gateway.meters.limited(limit);
        Fault::TooBusy { retry_after }
    }

    fn charge<'a>(&'a self, method: &'a str, target: Option<&'a Target>) -> Charge<'a> {
        let item = target.map(|target| (&target.upstream, &*target.own));
        Charge { method, principal: &self.principal, from: self.origin.from, item, is_part: false }
    }

    /// Whether it brings answers to a call that waits for them.
    fn goes_on(&self, method: &str, params: &Object) -> bool {
        let waits_for = || {
            let state = state_of(params)?;
            let method = Method::of(method)?;
            let (kind, key) = Ask::item(method, params).ok()?;
            let request = Request::new(method, kind, key, params);
            Some(self.gateway.parking.waits_for(&self.principal, &request, &state))
        };
        waits_for().unwrap_or(false)
    }

    /// The item that a request is about, if the guest can reach it.
    async fn item(&self, revision: Revision, method: &str, params: &Object) -> Option<Arc<Target>> {
        let (method, kind, key) = match method {
            SUBSCRIBE | UNSUBSCRIBE => {
                (Method::ReadResource, Kind::Resource, params.get_string("uri")?.into())
            }
            method => {
                let method = Method::of(method)?;
                let (kind, key) = Ask::item(method, params).ok()?;
                (method, kind, key)
            }
        };
        let find = || match method.is_about_a_task() {
            true => self.open_task(&key, revision.era()).map(|(_, target)| target),
            false => self.resolve_as(method, kind, &key, revision),
        };
        if let Some(target) = find() {
            return Some(target);
        }
        // Just after the start the owner may not have been listed yet.
        self.settle().await;
        find()
    }
}
