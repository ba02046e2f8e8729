//! Checks of the outcome of a call; suspended request: a call whose upstream waits for input of the
//! client.

pub(crate) mod table;

use super::Error;
use super::error::{rejected_response, upstream_error};
use super::task_handles::TaskIdRewriter;
use crate::audit::AuditEvent;
use crate::guard::{Findings, ResponseInspector};
use crate::mcp::call::{CallContext, CallOutcome, UpstreamResponse};
use crate::mcp::input_request::{InputRequest, InputResponse};
use crate::mcp::name::UpstreamName;
use crate::memory_budget::BufferLimit;
use crate::upstream::{self, SuspendedCall};

/// Call whose upstream needs input of the client. Dropping it cancels the call.
#[derive(Debug)]
pub struct SuspendedRequest {
    /// Checks of the response.
    checks: ResponseChecks,
    input_requests: Vec<InputRequest>,
    call: SuspendedCall,
}

impl SuspendedRequest {
    /// Suspends a call. Its input requests name tasks by the client's handles.
    pub(super) fn new(call: SuspendedCall, checks: ResponseChecks) -> Self {
        let input_requests = rewritten(&checks, call.input_requests().to_vec());
        Self { checks, input_requests, call }
    }

    /// The upstream of the call.
    pub fn upstream(&self) -> &UpstreamName {
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
        Some(rewritten(&self.checks, input_requests))
    }

    /// Submits one response ahead of the others.
    pub fn submit(&self, response: InputResponse) {
        self.call.submit(match &self.checks.rewriter {
            Some(rewriter) => rewriter.restore_input_response(response),
            None => response,
        });
    }

    /// Continues the call with the audit event of another request.
    pub(super) fn with_audit_event(mut self, event: &AuditEvent) -> Self {
        if let Some(inspection) = &mut self.checks.inspection {
            inspection.audit_event = event.clone();
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

/// Replaces the upstream's task ids in input requests by the client's handles.
fn rewritten(checks: &ResponseChecks, input_requests: Vec<InputRequest>) -> Vec<InputRequest> {
    match &checks.rewriter {
        Some(rewriter) => {
            input_requests.into_iter().map(|it| rewriter.rewrite_input_request(it)).collect()
        }
        None => input_requests,
    }
}

// === ResponseChecks ===

/// Checks and changes of the outcome of a call before the client receives it.
#[derive(Debug)]
pub(super) struct ResponseChecks {
    pub(super) upstream: UpstreamName,
    /// The guard's inspection, if any is configured.
    pub(super) inspection: Option<Box<Inspection>>,
    /// Rewriter of task ids, if the call may name a task.
    pub(super) rewriter: Option<TaskIdRewriter>,
}

/// Inspection of a response by the guard.
#[derive(Debug)]
pub(super) struct Inspection {
    pub(super) inspector: ResponseInspector,
    pub(super) audit_event: AuditEvent,
    /// Limit of the response's size.
    pub(super) limit: BufferLimit,
}

impl ResponseChecks {
    /// Inspects a response and replaces task ids in it; prepares a suspended call for its client.
    pub(super) async fn apply(
        self,
        outcome: Result<CallOutcome<SuspendedCall>, upstream::Error>,
    ) -> Result<CallOutcome<SuspendedRequest>, Error> {
        match outcome {
            Err(cause) => Err(upstream_error(&self.upstream, cause)),
            Ok(CallOutcome::InputRequired(call)) => {
                Ok(CallOutcome::InputRequired(SuspendedRequest::new(call, self)))
            }
            Ok(CallOutcome::Response(response)) => {
                Ok(CallOutcome::Response(self.inspect_response(response).await?))
            }
        }
    }

    async fn inspect_response(
        self,
        mut response: UpstreamResponse,
    ) -> Result<UpstreamResponse, Error> {
        if let Some(inspection) = self.inspection {
            let Inspection { inspector, audit_event, limit } = *inspection;
            let found_event = audit_event.clone();
            let on_findings = move |found: Findings| found_event.add_findings(found.count());
            let inspected = inspector.inspect(response, &limit, on_findings).await;
            response =
                inspected.map_err(|why| rejected_response(&self.upstream, why, &audit_event))?;
        }
        match self.rewriter {
            Some(rewriter) => rewriter.rewrite_response(response),
            None => Ok(response),
        }
    }
}
