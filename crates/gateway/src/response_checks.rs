//! Checks of an upstream's response before the client receives it.

use super::Error;
use super::error::rejected_response;
use super::task_handles::TaskIdRewriter;
use weir_access::guard::{Findings, ResponseInspector};
use weir_base::memory::memory_budget::BufferLimit;
use weir_mcp::call::UpstreamResponse;
use weir_mcp::input_request::InputRequest;
use weir_mcp::name::UpstreamName;
use weir_record::audit::AuditEvent;

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
    /// Inspects a response, and replaces task ids in it by the client's handles.
    pub(super) async fn inspect(
        self,
        mut response: UpstreamResponse,
    ) -> Result<UpstreamResponse, Error> {
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
    pub(super) fn rewrite(&self, input_requests: Vec<InputRequest>) -> Vec<InputRequest> {
        match &self.rewriter {
            Some(rewriter) => {
                input_requests.into_iter().map(|it| rewriter.rewrite_input_request(it)).collect()
            }
            None => input_requests,
        }
    }
}
