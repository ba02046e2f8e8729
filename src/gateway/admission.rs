//! Admission of requests: rate limiting and the audit reservation. It yields a [`Permit`], which
//! lists, calls and subscriptions require.
//!
//! A request is charged once, before anything else is done for it: by the item that it is about, if
//! its client can reach one, and else by its method alone. A denied and an unknown item are charged
//! alike. Notifications and responses of clients are not charged and never rejected.
//!
//! Decision: docs/decisions/0017-limits.md

use std::sync::Arc;
use std::time::Duration;

use super::round_trips::state_of;
use super::{ClientContext, Error};
use crate::catalog::AuthorizedItem;
use crate::gateway::suspended::table::RequestKey;
use crate::json::{self, Object};
use crate::mcp::call::{ItemRequest, Method};
use crate::mcp::kind::{Kind, SUBSCRIBE, UNSUBSCRIBE};
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::{Era, Revision};
use crate::policy::limits::{LimitRequest, Limits, Permit, RateLimited, Remaining};
use crate::request_scope;

impl ClientContext {
    /// Admits a request: reserves its audit event if auditing is mandatory, and charges the limits.
    /// The permit must live until the response is sent.
    ///
    /// A further round of a call that is suspended here was charged when the call began; a round
    /// that goes to an upstream with rounds of its own is a new call. Only modern requests have
    /// rounds: a state in a legacy request has no effect.
    pub async fn admit(
        &self,
        revision: Revision,
        method: &str,
        params: &Object,
    ) -> Result<Permit, Error> {
        request_scope::record(|known| known.client = Some(Arc::clone(&self.principal.name)));
        self.record_requested(method, params);
        self.reserve().await?;
        let Some(limits) = self.limits() else { return Ok(Permit::unlimited()) };
        if revision.era() == Era::Modern && self.resumes_suspended_call(method, params) {
            let target = self.find_item(revision, method, params).await;
            return Ok(limits.resume(&self.limit_request(method, target.as_deref())));
        }
        let mut target = match limits.depend_on_items() {
            true => self.find_item(revision, method, params).await,
            false => None,
        };
        match limits.acquire(&self.limit_request(method, target.as_deref())) {
            Ok(permit) => Ok(permit),
            Err(refused) => {
                // The audit event names the item, whatever the limit counts.
                if target.is_none() && self.audit_event.is_on() {
                    target = self.find_item(revision, method, params).await;
                }
                Err(self.reject_limited(&refused, method, target.as_deref()))
            }
        }
    }

    /// Admits a request that is not about an item, without waiting.
    pub fn try_admit(&self, method: &str) -> Result<Permit, Error> {
        self.reserve_at_once()?;
        match self.limits() {
            Some(limits) => {
                let admitted = limits.acquire(&self.limit_request(method, None));
                admitted.map_err(|refused| self.reject_limited(&refused, method, None))
            }
            None => Ok(Permit::unlimited()),
        }
    }

    /// Charges one of the resources of a listen request: by the limits on subscribing, on the
    /// resource and on its upstream. Limits on requests have counted the listen request itself.
    pub async fn admit_subscription(&self, uri: &str) -> Result<Permit, Error> {
        let Some(limits) = self.limits() else { return Ok(Permit::unlimited()) };
        let mut params = Object::new();
        params.set("uri", json::quote(uri));
        let target = self.find_item(Revision::NEWEST, SUBSCRIBE, &params).await;
        let limit_request =
            LimitRequest { is_part: true, ..self.limit_request(SUBSCRIBE, target.as_deref()) };
        let admitted = limits.acquire(&limit_request);
        admitted.map_err(|refused| self.reject_limited(&refused, SUBSCRIBE, target.as_deref()))
    }

    /// Time until the client may send the next request, if so many of its requests have been
    /// rejected that the next one need not be read. `None` while it has suspended calls, because it
    /// may send input responses.
    pub fn flood_retry_after(&self) -> Option<Duration> {
        let wait = self.limits()?.flood_retry_after(&self.principal, self.origin.from)?;
        (!self.gateway.suspended.has_any(&self.principal)).then_some(wait)
    }

    /// Remaining quota of the limits that count this method for this item, given by its own name.
    /// Nothing is charged.
    pub fn remaining_limits(
        &self,
        method: &str,
        upstream: &UpstreamName,
        own: &str,
    ) -> Vec<Remaining> {
        let Some(limits) = self.limits() else { return Vec::new() };
        limits.remaining(&LimitRequest {
            item: Some((upstream, own)),
            ..self.limit_request(method, None)
        })
    }

    fn limits(&self) -> Option<&Limits> {
        let limits = self.config.policy.limits();
        (self.is_limited && !limits.is_empty()).then_some(limits)
    }

    /// Logs which limit is reached; the client's error says only when to retry.
    fn reject_limited(
        &self,
        refused: &RateLimited,
        method: &str,
        target: Option<&AuthorizedItem>,
    ) -> Error {
        let RateLimited { retry_after, limit } = *refused;
        tracing::debug!(client = %self.principal.name, method, limit, "rate limit reached");
        self.record_limited(target, limit);
        self.gateway.metrics.limited(limit);
        Error::TooBusy { retry_after }
    }

    fn limit_request<'a>(
        &'a self,
        method: &'a str,
        target: Option<&'a AuthorizedItem>,
    ) -> LimitRequest<'a> {
        let item = target.map(|target| (&target.upstream, &*target.own));
        LimitRequest {
            method,
            principal: &self.principal,
            from: self.origin.from,
            item,
            is_part: false,
        }
    }

    /// Whether the request has input responses for a suspended call.
    fn resumes_suspended_call(&self, method: &str, params: &Object) -> bool {
        let can_take = || {
            let state = state_of(params)?;
            let method = Method::of(method)?;
            let (kind, key) = ItemRequest::item(method, params).ok()?;
            let request = RequestKey::new(method, kind, key, params);
            Some(self.gateway.suspended.can_take(&self.principal, &request, &state))
        };
        can_take().unwrap_or(false)
    }

    /// The item that a request is about, if the client can reach it.
    async fn find_item(
        &self,
        revision: Revision,
        method: &str,
        params: &Object,
    ) -> Option<Arc<AuthorizedItem>> {
        let (method, kind, key) = match method {
            SUBSCRIBE | UNSUBSCRIBE => {
                (Method::ReadResource, Kind::Resource, params.get_string("uri")?.into())
            }
            method => {
                let method = Method::of(method)?;
                let (kind, key) = ItemRequest::item(method, params).ok()?;
                (method, kind, key)
            }
        };
        let find = || match method.is_task_method() {
            true => self.open_task(&key, revision.era()).map(|(_, target)| target),
            false => self.resolve_as(method, kind, &key, revision),
        };
        if let Some(target) = find() {
            return Some(target);
        }
        // Shortly after the start the owner may not have been listed yet.
        self.wait_for_startup().await;
        find()
    }
}
