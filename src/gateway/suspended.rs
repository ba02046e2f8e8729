//! Suspended request: a call whose upstream waits for input of the client.

pub(crate) mod table;

use super::Error;
use super::error::{rejected_response, upstream_error};
use super::task_handles::TaskIdRewriter;
use crate::audit::AuditEvent;
use crate::guard::{Findings, ResponseInspector};
use crate::mcp::call::{CallContext, UpstreamResponse};
use crate::mcp::input_request::{InputRequest, InputResponse};
use crate::mcp::name::UpstreamName;
use crate::memory_budget::BufferLimit;
use crate::upstream::{CallOutcome, SuspendedCall};

/// Outcome of a client's request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one value per call, matched at once")]
pub enum RequestOutcome {
    /// The upstream's response.
    Response(UpstreamResponse),
    /// The upstream needs input of the client first.
    InputRequired(SuspendedRequest),
}

/// Call whose upstream needs input of the client. Dropping it cancels the call.
#[derive(Debug)]
pub struct SuspendedRequest {
    upstream: UpstreamName,
    /// Checks of the response, if any are configured.
    checks: Option<Box<ResponseChecks>>,
    /// Rewriter of task ids, if the call may name a task.
    rewriter: Option<TaskIdRewriter>,
    input_requests: Vec<InputRequest>,
    call: SuspendedCall,
}

/// Inspector of the response, audit event for its findings, and limit of the response's size.
type ResponseChecks = (ResponseInspector, AuditEvent, BufferLimit);

impl RequestOutcome {
    pub(super) async fn of(
        upstream: &UpstreamName,
        checks: Option<Box<ResponseChecks>>,
        rewriter: Option<TaskIdRewriter>,
        outcome: CallOutcome,
    ) -> Result<Self, Error> {
        let response = match outcome {
            CallOutcome::Response(response) => response,
            CallOutcome::InputRequired(call) => {
                let input_requests = rewritten(rewriter.as_ref(), call.input_requests().to_vec());
                let upstream = upstream.clone();
                return Ok(Self::InputRequired(SuspendedRequest {
                    upstream,
                    checks,
                    rewriter,
                    input_requests,
                    call,
                }));
            }
        };
        let response = match checks {
            Some(checks) => {
                let (inspector, record, limit) = *checks;
                let audit_event = record.clone();
                let on_findings = move |found: Findings| audit_event.add_findings(found.count());
                let inspected = inspector.inspect(response, &limit, on_findings).await;
                inspected.map_err(|why| rejected_response(upstream, why, &record))?
            }
            None => response,
        };
        Ok(Self::Response(match rewriter {
            Some(rewriter) => rewriter.rewrite_response(response)?,
            None => response,
        }))
    }
}

impl SuspendedRequest {
    /// The upstream of the call.
    pub fn upstream(&self) -> &UpstreamName {
        &self.upstream
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
        Some(rewritten(self.rewriter.as_ref(), input_requests))
    }

    /// Submits one response ahead of the others.
    pub fn submit(&self, response: InputResponse) {
        self.call.submit(match &self.rewriter {
            Some(rewriter) => rewriter.restore_input_response(response),
            None => response,
        });
    }

    /// Continues the call with the audit event of another request.
    pub(super) fn with_audit_event(mut self, record: &AuditEvent) -> Self {
        if let Some(checks) = &mut self.checks {
            checks.1 = record.clone();
        }
        self
    }

    /// Resumes the call with the responses; missing ones will be requested again.
    pub async fn resume(
        self,
        responses: Vec<InputResponse>,
        caller: CallContext,
    ) -> Result<RequestOutcome, Error> {
        let Self { upstream, checks, rewriter, call, .. } = self;
        let responses = match &rewriter {
            Some(rewriter) => {
                responses.into_iter().map(|it| rewriter.restore_input_response(it)).collect()
            }
            None => responses,
        };
        match call.resume(responses, caller).await {
            Ok(outcome) => RequestOutcome::of(&upstream, checks, rewriter, outcome).await,
            Err(cause) => Err(upstream_error(&upstream, cause)),
        }
    }
}

/// Replaces the upstream's task ids in input requests by the client's handles.
fn rewritten(
    rewriter: Option<&TaskIdRewriter>,
    input_requests: Vec<InputRequest>,
) -> Vec<InputRequest> {
    match rewriter {
        Some(rewriter) => {
            input_requests.into_iter().map(|it| rewriter.rewrite_input_request(it)).collect()
        }
        None => input_requests,
    }
}
