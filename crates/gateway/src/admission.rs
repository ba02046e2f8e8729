//! Admission of a request: the limits are charged, and the item that it is about is resolved.
//!
//! Invariants: an [`Admission`] comes only from the limits, or is unlimited for the local user who
//! runs a command; a [`ResolvedItem`] comes only from an admission and the view of the client. A
//! request is charged once, before anything else is done for it: by the item that it is about, if
//! its client can reach one, and else by its method alone. A denied and an unknown item are charged
//! alike. Notifications and responses of clients are not charged and never rejected.
//!
//! Decision: docs/decisions/0017-limits.md

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::config_snapshot::{era_of, has_own_connections};
use super::suspended::RequestKey;
use super::task_handles::TaskRef;
use super::{ClientContext, Error, RefusalReason};
use weir_access::catalog::{Cursor, ExportedItem};
use weir_access::policy::limits::{LimitRequest, Permit, RateLimited};
use weir_base::json::Object;
use weir_base::tasks::request_scope;
use weir_mcp::call::{ItemRequest, Method, RequestedItem};
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::input_request::REQUEST_STATE;
use weir_mcp::kind::{Kind, SUBSCRIBE};
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::{Era, Revision};
use weir_record::audit::AuditDecision;

/// Admission of one request: its concurrency slots, and the item that the limits looked at. It must
/// live until the response is sent.
pub struct Admission {
    permit: Permit,
    item: Option<ResolvedItem>,
}

/// Item of a client's view that a request is about; the proof needed for a call.
pub struct ResolvedItem {
    target: Arc<ExportedItem>,
    /// The task, if the request is about one of the client's tasks; the item is its tool.
    pub(super) task: Option<TaskRef>,
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

impl Admission {
    /// Admits a request: reserves its audit event if auditing is mandatory, and charges the limits.
    ///
    /// A further round of a call that is suspended here was charged when the call began; a round
    /// that goes to an upstream with rounds of its own is a new call. Only modern requests have
    /// rounds: a state in a legacy request has no effect.
    pub async fn acquire(
        client: &ClientContext,
        revision: Revision,
        method: &str,
        params: &Object,
    ) -> Result<Self, Error> {
        request_scope::record(|known| known.client = Some(Arc::clone(&client.principal.name)));
        let limits = client.limits();
        if limits.is_none() && !client.audit_event.is_on() {
            return Ok(Self::unlimited());
        }
        let requested = ItemRequest::requested(method, params);
        if let Some((_, kind, key)) = &requested {
            client.audit_event.set_requested(*kind, key);
        }
        let requested = requested.as_ref();
        client.reserve().await?;
        let Some(limits) = limits else { return Ok(Self::unlimited()) };
        if revision.era() == Era::Modern && resumes_suspended_call(client, requested, params) {
            let item = ResolvedItem::find_requested(client, revision, requested).await;
            let permit = limits.resume(&client.limit_request(method, item.as_deref()));
            return Ok(Self { permit, item });
        }
        let mut item = match limits.depend_on_items() {
            true => ResolvedItem::find_requested(client, revision, requested).await,
            false => None,
        };
        match limits.acquire(&client.limit_request(method, item.as_deref())).await {
            Ok(permit) => Ok(Self { permit, item }),
            Err(limited) => {
                // The audit event names the item, whatever the limit counts.
                if item.is_none() && client.audit_event.is_on() {
                    item = ResolvedItem::find_requested(client, revision, requested).await;
                }
                Err(reject_limited(client, &limited, method, item.as_deref()))
            }
        }
    }

    /// Admits a request that is not about an item, without waiting.
    pub fn try_acquire(client: &ClientContext, method: &str) -> Result<Self, Error> {
        client.reserve_at_once()?;
        let Some(limits) = client.limits() else { return Ok(Self::unlimited()) };
        match limits.acquire_here(&client.limit_request(method, None)) {
            Ok(permit) => Ok(Self { permit, item: None }),
            Err(limited) => Err(reject_limited(client, &limited, method, None)),
        }
    }

    /// Charges one of the resources of a listen request: by the limits on subscribing, on the
    /// resource and on its upstream. Limits on requests have counted the listen request itself.
    pub async fn acquire_subscription(client: &ClientContext, uri: &str) -> Result<Self, Error> {
        let Some(limits) = client.limits() else { return Ok(Self::unlimited()) };
        let (method, kind) = (Method::ReadResource, Kind::Resource);
        let item = ResolvedItem::find(client, method, kind, uri, Revision::NEWEST).await;
        let charge =
            LimitRequest { is_part: true, ..client.limit_request(SUBSCRIBE, item.as_deref()) };
        match limits.acquire(&charge).await {
            Ok(permit) => Ok(Self { permit, item }),
            Err(limited) => Err(reject_limited(client, &limited, SUBSCRIBE, item.as_deref())),
        }
    }

    /// Creates an admission without limits, for the local user who runs the program.
    pub fn unlimited() -> Self {
        Self { permit: Permit::default(), item: None }
    }

    /// Returns the item that the request of a client of this revision is about. An unknown item and
    /// one that the client may not use have the same error.
    pub async fn resolve(
        &mut self,
        client: &ClientContext,
        request: &ItemRequest,
        revision: Revision,
    ) -> Result<ResolvedItem, Error> {
        let ItemRequest { method, kind, ref key, .. } = *request;
        let found = match self.item.take() {
            None => ResolvedItem::find(client, method, kind, key, revision).await,
            found => found,
        };
        let Some(item) = found else {
            if method.is_task_method() {
                return Err(Error::NoSuchTask);
            }
            record_missing(client, request, revision);
            return Err(Error::NoSuchItem { kind, key: key.clone() });
        };
        record_found(client, &item);
        Ok(item)
    }

    /// Returns a page of a list from memory.
    pub async fn list(
        &self,
        client: &ClientContext,
        kind: Kind,
        cursor: Option<&str>,
        form: DefinitionForm,
    ) -> Result<ListPage, Error> {
        let unreadable = |_| Error::Request("Invalid cursor".to_owned());
        client.audit_event.set_kind(kind);
        let after = cursor.map(|text| Cursor::parse(text, kind)).transpose().map_err(unreadable)?;
        client.wait_for_startup().await;
        let page = client.view().page(kind, after.as_ref(), form);
        Ok(ListPage {
            items: page.items,
            next_cursor: page.next.map(|next| next.encode(kind)),
            partial: page.partial,
            ttl: page.fresh_for.map_or(LIST_TTL, |fresh_for| fresh_for.min(LIST_TTL)),
            public: client.is_public() && !page.is_private,
        })
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

impl ResolvedItem {
    /// Returns the upstream that a request without a session is for, if that has a connection for
    /// each client.
    pub async fn upstream_with_own_connection(
        client: &ClientContext,
        revision: Revision,
        method: &str,
        params: &Object,
    ) -> Option<UpstreamName> {
        if !client.config.has_own_connections {
            return None;
        }
        let requested = ItemRequest::requested(method, params)?;
        let item = Self::find_requested(client, revision, Some(&requested)).await?;
        let is_own = has_own_connections(client.config.upstream(&item.upstream));
        is_own.then(|| item.upstream.clone())
    }

    /// Returns whether the upstream of a request handles input requests itself, so that a
    /// `requestState` in the request is its own.
    pub async fn passes_states_on(
        client: &ClientContext,
        revision: Revision,
        method: &str,
        params: &Object,
    ) -> bool {
        let Some(requested) = ItemRequest::requested(method, params) else { return false };
        let item = Self::find_requested(client, revision, Some(&requested)).await;
        let era = item.and_then(|item| era_of(client.config.upstream(&item.upstream)));
        era == Some(Era::Modern)
    }

    async fn find_requested(
        client: &ClientContext,
        revision: Revision,
        requested: Option<&RequestedItem>,
    ) -> Option<Self> {
        let (method, kind, key) = requested?;
        Self::find(client, *method, *kind, key, revision).await
    }

    /// The item with this key, if the client can reach it.
    async fn find(
        client: &ClientContext,
        method: Method,
        kind: Kind,
        key: &str,
        revision: Revision,
    ) -> Option<Self> {
        let find = || match method.is_task_method() {
            true => {
                let (task, target) = TaskRef::open(client, key, revision.era())?;
                Some(Self { target, task: Some(task) })
            }
            false => {
                let target = client.find_in_view(method, kind, key, revision)?;
                Some(Self { target, task: None })
            }
        };
        if let Some(item) = find() {
            return Some(item);
        }
        // Shortly after the start the owner may not have been listed yet.
        client.wait_for_startup().await;
        find()
    }

    /// The exported item, for longer than the request.
    pub(super) fn target(&self) -> &Arc<ExportedItem> {
        &self.target
    }
}

impl std::ops::Deref for ResolvedItem {
    type Target = ExportedItem;

    fn deref(&self) -> &ExportedItem {
        &self.target
    }
}

/// Returns whether a request has input responses for a suspended call.
fn resumes_suspended_call(
    client: &ClientContext,
    requested: Option<&RequestedItem>,
    params: &Object,
) -> bool {
    let can_take = || {
        let state = params.get_string(REQUEST_STATE)?;
        let (method, kind, key) = requested.cloned()?;
        let request = RequestKey::new(method, kind, key, params);
        Some(client.gateway.suspended.can_take(&client.principal, &request, &state))
    };
    can_take().unwrap_or(false)
}

/// Logs, counts and records which limit is reached; the client's error says only when to retry.
fn reject_limited(
    client: &ClientContext,
    limited: &RateLimited,
    method: &str,
    item: Option<&ExportedItem>,
) -> Error {
    let RateLimited { retry_after, limit } = *limited;
    tracing::debug!(client = %client.principal.name, method, limit, "rate limit reached");
    if client.audit_event.is_on() {
        item.into_iter().for_each(|item| record_found(client, item));
        client.audit_event.set_refused_by(&format!("limits[{limit}]"));
    }
    client.count_refusal(RefusalReason::Limit);
    client.gateway.metrics.limited(limit);
    Error::TooBusy { retry_after }
}

/// Records that an item was found.
pub(super) fn record_found(client: &ClientContext, target: &ExportedItem) {
    request_scope::record(|known| known.upstream = Some(target.upstream.shared()));
    if client.audit_event.is_on() {
        record_decision(client, (target.kind, &target.key), AuditDecision::Allowed, target);
    }
}

/// Records that an item was not found. The client learns only that; the audit event says whether
/// the item exists.
fn record_missing(client: &ClientContext, request: &ItemRequest, revision: Revision) {
    let item = (request.kind, &*request.key);
    let is_restricted = !client.config.policy.role(&client.principal).allows_everything();
    let as_operator = || {
        let operator = client.gateway.operator_under(&client.config);
        operator.find_in_view(request.method, request.kind, &request.key, revision)
    };
    match is_restricted.then(as_operator).flatten() {
        Some(target) => {
            client.count_refusal(RefusalReason::Denied);
            record_decision(client, item, AuditDecision::Denied, &target);
        }
        None => {
            client.count_refusal(RefusalReason::Unknown);
            client.audit_event.set_decision(item, AuditDecision::Unknown, None, None);
        }
    }
}

/// Records the decision about an item that exists, with the rule of the client's role.
fn record_decision(
    client: &ClientContext,
    item: (Kind, &str),
    decision: AuditDecision,
    target: &ExportedItem,
) {
    let (upstream, own) = (&target.upstream, &*target.own);
    let role = client.config.policy.role(&client.principal);
    let rule = role.rule(target.kind, upstream, own, target.is_listed());
    let rule = rule.map(|pattern| pattern.as_str());
    client.audit_event.set_decision(item, decision, Some((upstream, own)), rule);
}

/// Time to live of a list if no upstream gives a shorter one. Clients are notified of changes in
/// any case.
const LIST_TTL: Duration = Duration::from_secs(60);
