//! Suspended request: a call whose upstream waits for input of the client.

pub(crate) mod table;

use super::Error;
use super::request::ResponseChecks;
use crate::audit::AuditEvent;
use crate::mcp::call::{CallContext, CallOutcome};
use crate::mcp::input_request::{InputRequest, InputResponse};
use crate::mcp::name::UpstreamName;
use crate::upstream::SuspendedCall;

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
        self.checks.set_audit_event(event);
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
