//! Suspended request: a call whose upstream waits for input of the client.

pub(crate) mod table;

use super::Error;
use super::error::upstream_error;
use super::response_checks::ResponseChecks;
use weir_mcp::call::{CallContext, CallOutcome};
use weir_mcp::input_request::{InputRequest, InputResponse};
use weir_mcp::name::UpstreamName;
use weir_record::audit::AuditEvent;
use weir_upstream::{self as upstream, SuspendedCall};

/// Call whose upstream needs input of the client. Dropping it cancels the call.
#[derive(Debug)]
pub struct SuspendedRequest {
    /// Checks of the response.
    checks: ResponseChecks,
    input_requests: Vec<InputRequest>,
    call: SuspendedCall,
}

impl SuspendedRequest {
    /// Checks the outcome of a call, which may be suspended. Its input requests then name tasks by
    /// the client's handles.
    pub(super) async fn after(
        outcome: Result<CallOutcome<SuspendedCall>, upstream::Error>,
        checks: ResponseChecks,
    ) -> Result<CallOutcome<Self>, Error> {
        match outcome {
            Err(cause) => Err(upstream_error(&checks.upstream, cause)),
            Ok(CallOutcome::InputRequired(call)) => {
                let input_requests = checks.rewrite(call.input_requests().to_vec());
                Ok(CallOutcome::InputRequired(Self { checks, input_requests, call }))
            }
            Ok(CallOutcome::Response(response)) => {
                Ok(CallOutcome::Response(checks.inspect(response).await?))
            }
        }
    }

    /// The upstream of the call.
    pub(crate) fn upstream(&self) -> &UpstreamName {
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
        Self::after(self.call.resume(responses, context).await, self.checks).await
    }
}
