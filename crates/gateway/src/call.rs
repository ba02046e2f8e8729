//! Call of an upstream for a client: the guard checks the request, the upstream that owns the item
//! is called, and its response is checked.
//!
//! Invariant: a call begins with a [`PreparedRequest`], which comes from the guard only. A
//! suspended call is resumed without one: its request was checked when it began.

use std::sync::Arc;

use super::completion_filter::CompletionFilter;
use super::error::GUARD;
use super::response_checks::ResponseChecks;
use super::task_handles::TaskIdRewriter;
use super::{Admission, ClientContext, Error, RefusalReason, ResolvedItem, SuspendedRequest};
use weir_mcp::call::{CallContext, CallOutcome, ItemRequest, Method, UpstreamRequest};
use weir_mcp::input_request::INPUT_RESPONSES;
use weir_mcp::revision::Revision;
use weir_mcp::task::{TaskScope, drop_related};
use weir_upstream as upstream;

/// Request for a resolved item that the guard lets pass.
pub struct PreparedRequest<'a> {
    client: &'a ClientContext,
    item: ResolvedItem,
    request: ItemRequest,
}

impl<'a> PreparedRequest<'a> {
    /// Checks a request: the arguments of a prompt.
    pub fn check(
        client: &'a ClientContext,
        item: ResolvedItem,
        request: ItemRequest,
    ) -> Result<Self, Error> {
        let checked = client.config.inspectors.guard.check_request(
            &item.upstream,
            request.method,
            item.prompt_arguments.as_ref(),
            &request.params,
        );
        checked.map_err(|bad| {
            client.audit_event.set_refused_by(GUARD);
            client.count_refusal(RefusalReason::Guard);
            Error::Request(bad.to_string())
        })?;
        Ok(Self { client, item, request })
    }

    /// The item that the request is about.
    pub(super) fn item(&self) -> &ResolvedItem {
        &self.item
    }

    /// The request.
    pub(super) fn request(&self) -> &ItemRequest {
        &self.request
    }

    /// Removes input responses from the request.
    pub(super) fn take_input_responses(&mut self) {
        self.request.params.take(INPUT_RESPONSES);
    }

    /// Sends the request to the upstream that owns the item, and checks the response. Dropping the
    /// future cancels the call.
    pub async fn send(
        self,
        _: &Admission,
        context: Box<CallContext>,
    ) -> Result<CallOutcome<SuspendedRequest>, Error> {
        let Self { client, item, request } = self;
        let filter = CompletionFilter::new(client, item.target(), &request)?;
        let (call, checks) = prepare_call(client, &item, request, context);
        let is_elsewhere = |task: TaskScope| task.is_local() && !task.is_of(client.instance());
        if call.scope.is_some_and(is_elsewhere) {
            return Err(Error::TaskLost);
        }
        client.record_sending().await?;
        let upstream = client.config.upstream(&item.upstream);
        let outcome = upstream.call(call, &client.gateway.metrics.calls).await;
        if let Err(upstream::Error::Busy { .. }) = outcome {
            client.count_refusal(RefusalReason::Overload);
        }
        match (checks.apply(outcome).await?, filter) {
            (CallOutcome::Response(response), Some(filter)) => {
                Ok(CallOutcome::Response(Box::pin(filter.apply(response)).await?))
            }
            (outcome, _) => Ok(outcome),
        }
    }
}

/// The request under the upstream's own names, and the checks of its response.
fn prepare_call(
    client: &ClientContext,
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
        may_name_a_task.then(|| TaskIdRewriter::new(client, item, &call, handle.as_deref()));
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
    (call, ResponseChecks::new(client, item, method, rewriter))
}
