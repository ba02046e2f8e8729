//! Checks of an upstream's response before the client receives it, and calls whose response waits
//! for input of the client.

use super::error::{rejected_response, upstream_error};
use super::task_handles::TaskIdRewriter;
use super::{ClientContext, Error};
use weir_access::catalog::ExportedItem;
use weir_access::guard::{Findings, ResponseInspector};
use weir_base::memory::memory_budget::BufferLimit;
use weir_mcp::call::{CallContext, CallOutcome, Method, UpstreamResponse};
use weir_mcp::input_request::{InputRequest, InputResponse};
use weir_mcp::name::UpstreamName;
use weir_record::audit::AuditEvent;
use weir_upstream::{self as upstream, SuspendedCall};

/// Checks and changes of the outcome of a call before the client receives it.
#[derive(Debug)]
pub(super) struct ResponseChecks {
    upstream: UpstreamName,
    /// The guard's inspection, if any is configured.
    inspection: Option<Box<Inspection>>,
    /// Rewriter of task ids, if the call may name a task.
    rewriter: Option<TaskIdRewriter>,
}

/// Inspection of a response by the guard.
#[derive(Debug)]
struct Inspection {
    inspector: ResponseInspector,
    audit_event: AuditEvent,
    /// Limit of the response's size.
    limit: BufferLimit,
}

impl ResponseChecks {
    /// Creates the checks of the response to a call of this client.
    pub(super) fn new(
        client: &ClientContext,
        item: &ExportedItem,
        method: Method,
        rewriter: Option<TaskIdRewriter>,
    ) -> Self {
        let config = &client.config;
        let guard = &config.inspectors.guard;
        let inspection = guard.inspector(&item.upstream, method, item.kind, &item.key);
        let inspection = inspection.map(|inspector| {
            let limit = config.upstream(&item.upstream).response_limit();
            Box::new(Inspection { inspector, audit_event: client.audit_event.clone(), limit })
        });
        Self { upstream: item.upstream.clone(), inspection, rewriter }
    }

    /// Checks the outcome of a call, which may be suspended. Its input requests then name tasks by
    /// the client's handles.
    pub(super) async fn apply(
        self,
        outcome: Result<CallOutcome<SuspendedCall>, upstream::Error>,
    ) -> Result<CallOutcome<SuspendedRequest>, Error> {
        match outcome {
            Err(cause) => Err(upstream_error(&self.upstream, cause)),
            Ok(CallOutcome::InputRequired(call)) => {
                let input_requests = self.rewrite(call.input_requests().to_vec());
                let suspended = SuspendedRequest { checks: self, input_requests, call };
                Ok(CallOutcome::InputRequired(suspended))
            }
            Ok(CallOutcome::Response(response)) => {
                Ok(CallOutcome::Response(self.inspect(response).await?))
            }
        }
    }

    /// Inspects a response, and replaces task ids in it by the client's handles.
    async fn inspect(self, mut response: UpstreamResponse) -> Result<UpstreamResponse, Error> {
        if let Some(inspection) = self.inspection {
            let Inspection { inspector, audit_event, limit } = *inspection;
            let event = audit_event.clone();
            let on_findings = move |found: Findings| event.add_findings(found.count());
            let inspected = inspector.inspect(response, &limit, on_findings).await;
            response =
                inspected.map_err(|why| rejected_response(&self.upstream, why, &audit_event))?;
        }
        match self.rewriter {
            Some(rewriter) => rewriter.rewrite_response(response),
            None => Ok(response),
        }
    }

    /// Replaces task ids in input requests by the client's handles.
    fn rewrite(&self, input_requests: Vec<InputRequest>) -> Vec<InputRequest> {
        match &self.rewriter {
            Some(rewriter) => {
                input_requests.into_iter().map(|it| rewriter.rewrite_input_request(it)).collect()
            }
            None => input_requests,
        }
    }
}

/// Call whose upstream needs input of the client. Dropping it cancels the call.
#[derive(Debug)]
pub struct SuspendedRequest {
    /// Checks of the response.
    checks: ResponseChecks,
    input_requests: Vec<InputRequest>,
    call: SuspendedCall,
}

impl SuspendedRequest {
    /// The upstream of the call.
    pub(super) fn upstream(&self) -> &UpstreamName {
        &self.checks.upstream
    }

    /// Whether the call was cancelled in favor of a later one of its client.
    pub(super) fn is_given_up(&self) -> bool {
        self.call.is_given_up()
    }

    /// The open input requests; each key once.
    pub fn input_requests(&self) -> &[InputRequest] {
        &self.input_requests
    }

    /// Waits for further input requests; `None` when no more responses are needed:
    /// [`SuspendedRequest::resume`] without responses then returns the outcome. Cancel-safe.
    pub async fn next_input_requests(&mut self) -> Option<Vec<InputRequest>> {
        let input_requests = self.call.next_input_requests().await?;
        Some(self.checks.rewrite(input_requests))
    }

    /// Submits one response ahead of the others.
    pub fn submit(&self, response: InputResponse) {
        self.call.submit(match &self.checks.rewriter {
            Some(rewriter) => rewriter.restore_input_response(response),
            None => response,
        });
    }

    /// Continues the call with the audit event of another request.
    pub(super) fn with_audit_event(mut self, audit_event: &AuditEvent) -> Self {
        if let Some(inspection) = &mut self.checks.inspection {
            inspection.audit_event = audit_event.clone();
        }
        self
    }

    /// Resumes the call with the responses; missing ones will be requested again.
    pub async fn resume(
        self,
        mut responses: Vec<InputResponse>,
        context: CallContext,
    ) -> Result<CallOutcome<Self>, Error> {
        if let Some(rewriter) = &self.checks.rewriter {
            let restored = responses.into_iter().map(|it| rewriter.restore_input_response(it));
            responses = restored.collect();
        }
        self.checks.apply(self.call.resume(responses, context).await).await
    }
}
