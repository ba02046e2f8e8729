//! One request of a client, from admission to response: admit, resolve, inspect, call, inspect.
//!
//! Each step returns what the next one needs: an [`Admission`] comes only from the limits, a
//! [`ResolvedItem`] only from the client's view, and nothing reaches an upstream without both. A
//! request is charged once, before anything else is done for it: by the item that it is about, if
//! its client can reach one, and else by its method alone. A denied and an unknown item are charged
//! alike. Notifications and responses of clients are not charged and never rejected.
//!
//! Decision: docs/decisions/0017-limits.md

use std::sync::Arc;

use super::config_snapshot::{era_of, has_own_connections};
use super::error::GUARD;
use super::response_checks::{Inspection, ResponseChecks};
use super::task_handles::{TaskIdRewriter, TaskRef};
use super::{ClientContext, Error, RefusalReason, SuspendedRequest};
use crate::suspended::table::RequestKey;
use weir_access::catalog::ExportedItem;
use weir_access::policy::limits::{LimitRequest, Limits, Permit, RateLimited};
use weir_base::json::Object;
use weir_base::tasks::request_scope;
use weir_mcp::call::{
    CallContext, CallOutcome, ItemRequest, Method, RequestedItem, UpstreamRequest,
};
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::input_request::REQUEST_STATE;
use weir_mcp::kind::{Kind, SUBSCRIBE};
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::{Era, Revision};
use weir_mcp::task::{TaskScope, drop_related};
use weir_upstream as upstream;

/// Admission of one request: its concurrency slots, and the item that the limits looked at. It must
/// live until the response is sent.
#[derive(Default)]
pub struct Admission {
    permit: Permit,
    item: Option<ResolvedItem>,
}

/// Item of a client's view that a request is about; the proof needed for a call.
pub struct ResolvedItem {
    target: Arc<ExportedItem>,
    /// The task, if the request is about one of the client's tasks; the item is its tool.
    task: Option<TaskRef>,
}

impl Admission {
    /// Creates an admission without limits, for the local user who runs the program.
    pub fn unlimited() -> Self {
        Self::default()
    }

    /// Returns the concurrency slots.
    pub fn into_permit(self) -> Permit {
        self.permit
    }

    /// Releases the slots while a person is waited for.
    pub async fn release_while<T>(&mut self, wait: impl Future<Output = T>) -> T {
        self.permit.release_while(wait).await
    }
}

impl std::ops::Deref for ResolvedItem {
    type Target = ExportedItem;

    fn deref(&self) -> &ExportedItem {
        &self.target
    }
}

// === Admit ===

impl ClientContext {
    /// Admits a request: reserves its audit event if auditing is mandatory, and charges the limits.
    ///
    /// A further round of a call that is suspended here was charged when the call began; a round
    /// that goes to an upstream with rounds of its own is a new call. Only modern requests have
    /// rounds: a state in a legacy request has no effect.
    pub async fn admit(
        &self,
        revision: Revision,
        method: &str,
        params: &Object,
    ) -> Result<Admission, Error> {
        request_scope::record(|known| known.client = Some(Arc::clone(&self.principal.name)));
        let limits = self.limits();
        if limits.is_none() && !self.audit_event.is_on() {
            return Ok(Admission::unlimited());
        }
        let requested = ItemRequest::requested(method, params);
        if let Some((_, kind, key)) = &requested {
            self.audit_event.set_requested(*kind, key);
        }
        let requested = requested.as_ref();
        self.reserve().await?;
        let Some(limits) = limits else { return Ok(Admission::unlimited()) };
        if revision.era() == Era::Modern && self.resumes_suspended_call(requested, params) {
            let item = self.find_requested(revision, requested).await;
            let permit = limits.resume(&self.limit_request(method, item.as_deref()));
            return Ok(Admission { permit, item });
        }
        let mut item = match limits.depend_on_items() {
            true => self.find_requested(revision, requested).await,
            false => None,
        };
        match limits.acquire(&self.limit_request(method, item.as_deref())).await {
            Ok(permit) => Ok(Admission { permit, item }),
            Err(limited) => {
                // The audit event names the item, whatever the limit counts.
                if item.is_none() && self.audit_event.is_on() {
                    item = self.find_requested(revision, requested).await;
                }
                Err(self.reject_limited(&limited, method, item.as_deref()))
            }
        }
    }

    /// Admits a request that is not about an item, without waiting.
    pub fn try_admit(&self, method: &str) -> Result<Admission, Error> {
        self.reserve_at_once()?;
        let Some(limits) = self.limits() else { return Ok(Admission::unlimited()) };
        match limits.acquire_here(&self.limit_request(method, None)) {
            Ok(permit) => Ok(Admission { permit, item: None }),
            Err(limited) => Err(self.reject_limited(&limited, method, None)),
        }
    }

    /// Charges one of the resources of a listen request: by the limits on subscribing, on the
    /// resource and on its upstream. Limits on requests have counted the listen request itself.
    pub async fn admit_subscription(&self, uri: &str) -> Result<Admission, Error> {
        let Some(limits) = self.limits() else { return Ok(Admission::unlimited()) };
        let item =
            self.find_item(Method::ReadResource, Kind::Resource, uri, Revision::NEWEST).await;
        let charge =
            LimitRequest { is_part: true, ..self.limit_request(SUBSCRIBE, item.as_deref()) };
        match limits.acquire(&charge).await {
            Ok(permit) => Ok(Admission { permit, item }),
            Err(limited) => Err(self.reject_limited(&limited, SUBSCRIBE, item.as_deref())),
        }
    }

    /// The limits that apply to this client, if there are any.
    pub(super) fn limits(&self) -> Option<&Limits> {
        let limits = self.config.policy.limits();
        (self.is_limited && !limits.is_empty()).then_some(limits)
    }

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

    /// Logs which limit is reached; the client's error says only when to retry.
    fn reject_limited(
        &self,
        limited: &RateLimited,
        method: &str,
        item: Option<&ExportedItem>,
    ) -> Error {
        let RateLimited { retry_after, limit } = *limited;
        tracing::debug!(client = %self.principal.name, method, limit, "rate limit reached");
        self.record_limited(item, limit);
        self.count_limited(limit);
        Error::TooBusy { retry_after }
    }

    /// Whether the request has input responses for a suspended call.
    fn resumes_suspended_call(&self, requested: Option<&RequestedItem>, params: &Object) -> bool {
        let can_take = || {
            let state = params.get_string(REQUEST_STATE)?;
            let (method, kind, key) = requested.cloned()?;
            let request = RequestKey::new(method, kind, key, params);
            Some(self.gateway.suspended.can_take(&self.principal, &request, &state))
        };
        can_take().unwrap_or(false)
    }
}

// === Resolve ===

impl ClientContext {
    /// The item that an admitted request of a client of this revision is about. An unknown item and
    /// one that the client may not use have the same error.
    pub async fn resolve(
        &self,
        admission: &mut Admission,
        request: &ItemRequest,
        revision: Revision,
    ) -> Result<ResolvedItem, Error> {
        let ItemRequest { method, kind, ref key, .. } = *request;
        let found = match admission.item.take() {
            None => self.find_item(method, kind, key, revision).await,
            found => found,
        };
        let Some(item) = found else {
            if method.is_task_method() {
                return Err(Error::NoSuchTask);
            }
            self.record_missing(request, revision);
            return Err(Error::NoSuchItem { kind, key: key.clone() });
        };
        self.record_found(&item);
        Ok(item)
    }

    async fn find_requested(
        &self,
        revision: Revision,
        requested: Option<&RequestedItem>,
    ) -> Option<ResolvedItem> {
        let (method, kind, key) = requested?;
        self.find_item(*method, *kind, key, revision).await
    }

    /// Returns the upstream that a request without a session is for, if that has a connection for
    /// each client.
    pub async fn upstream_with_own_connection(
        &self,
        revision: Revision,
        method: &str,
        params: &Object,
    ) -> Option<UpstreamName> {
        if !self.config.has_own_connections {
            return None;
        }
        let requested = ItemRequest::requested(method, params)?;
        let item = self.find_requested(revision, Some(&requested)).await?;
        let is_own = has_own_connections(self.config.upstream(&item.upstream));
        is_own.then(|| item.upstream.clone())
    }

    /// Returns whether the upstream of a request handles input requests itself, so that a
    /// `requestState` in the request is its own.
    pub async fn passes_states_on(
        &self,
        revision: Revision,
        method: &str,
        params: &Object,
    ) -> bool {
        let Some(requested) = ItemRequest::requested(method, params) else { return false };
        let item = self.find_requested(revision, Some(&requested)).await;
        let era = item.and_then(|item| era_of(self.config.upstream(&item.upstream)));
        era == Some(Era::Modern)
    }

    /// The item with this key, if the client can reach it.
    async fn find_item(
        &self,
        method: Method,
        kind: Kind,
        key: &str,
        revision: Revision,
    ) -> Option<ResolvedItem> {
        let find = || match method.is_task_method() {
            true => {
                let (task, target) = self.open_task(key, revision.era())?;
                Some(ResolvedItem { target, task: Some(task) })
            }
            false => {
                let target = self.find_in_view(method, kind, key, revision)?;
                Some(ResolvedItem { target, task: None })
            }
        };
        if let Some(item) = find() {
            return Some(item);
        }
        // Shortly after the start the owner may not have been listed yet.
        self.wait_for_startup().await;
        find()
    }

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

// === Inspect, call, inspect ===

impl ClientContext {
    /// Sends a request to the upstream that owns the item. Dropping the future cancels the call.
    pub async fn call(
        &self,
        _: &Admission,
        item: ResolvedItem,
        request: ItemRequest,
        context: Box<CallContext>,
    ) -> Result<CallOutcome<SuspendedRequest>, Error> {
        self.inspect_request(&item, &request)?;
        self.send(item, request, context).await
    }

    /// Sends an inspected request, and inspects the response.
    pub(super) async fn send(
        &self,
        item: ResolvedItem,
        request: ItemRequest,
        context: Box<CallContext>,
    ) -> Result<CallOutcome<SuspendedRequest>, Error> {
        let completion = self.completion(&item.target, &request)?;
        let (call, checks) = self.prepare_call(&item, request, context);
        let is_elsewhere = |task: TaskScope| task.is_local() && !task.is_of(self.instance());
        if call.scope.is_some_and(is_elsewhere) {
            return Err(Error::TaskLost);
        }
        self.record_sending().await?;
        let (upstream, metrics) = (self.config.upstream(&item.upstream), &self.gateway.metrics);
        let outcome = upstream.call(call, &metrics.calls).await;
        if let Err(upstream::Error::Busy { .. }) = outcome {
            self.count_refusal(RefusalReason::Overload);
        }
        match (SuspendedRequest::after(outcome, checks).await?, completion) {
            (CallOutcome::Response(response), Some(completion)) => {
                let filtered = self.filter_completion(&completion, &item, response);
                Ok(CallOutcome::Response(Box::pin(filtered).await?))
            }
            (outcome, _) => Ok(outcome),
        }
    }

    /// Checks the arguments of a prompt.
    pub(super) fn inspect_request(
        &self,
        item: &ResolvedItem,
        request: &ItemRequest,
    ) -> Result<(), Error> {
        let checked = self.config.inspectors.guard.check_request(
            &item.upstream,
            request.method,
            item.prompt_arguments.as_ref(),
            &request.params,
        );
        checked.map_err(|bad| {
            self.audit_event.set_refused_by(GUARD);
            self.count_refusal(RefusalReason::Guard);
            Error::Request(bad.to_string())
        })
    }

    /// The request under the upstream's own names, and the checks of its response.
    fn prepare_call(
        &self,
        item: &ResolvedItem,
        request: ItemRequest,
        context: Box<CallContext>,
    ) -> (Box<UpstreamRequest>, ResponseChecks) {
        let (method, handle) = (request.method, item.task.as_ref().map(|_| request.key.clone()));
        let own = item.task.as_ref().map_or(&*item.own, |task| &*task.own);
        let mut call = request.into_upstream_request(own, context);
        call.scope = item.task.as_ref().map(|task| task.scope);
        let may_name_a_task = method == Method::CallTool || method.is_task_method();
        let mut rewriter =
            may_name_a_task.then(|| TaskIdRewriter::new(self, item, &call, handle.as_deref()));
        match &mut rewriter {
            Some(rewriter) if call.caller.revision == Revision::V2025_11_25 => {
                rewriter.rewrite_related_task(&mut call);
                call.caller.notifications =
                    call.caller.notifications.with_task_ids(Arc::new(rewriter.clone()));
            }
            // Other revisions have no related task in requests, and the id may be that of another
            // client's task at the upstream.
            _ => drop_related(&mut call.params),
        }
        let guard = &self.config.inspectors.guard;
        let inspection = guard.inspector(&item.upstream, method, item.kind, &item.key);
        let inspection = inspection.map(|inspector| {
            let limit = self.config.upstream(&item.upstream).response_limit();
            Box::new(Inspection { inspector, audit_event: self.audit_event.clone(), limit })
        });
        (call, ResponseChecks { upstream: item.upstream.clone(), inspection, rewriter })
    }
}
