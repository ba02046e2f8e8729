//! Completion of URI templates for roles that may not read every URI of the template.
//!
//! Invariants: a value that stands for a URI which the role may not read is neither requested nor
//! returned, and neither is the number of values (docs/resource-uris.md). If no rule hides anything
//! from the role, requests and responses pass unchanged.

use std::sync::Arc;

use super::error::{rejected_response, upstream_error};
use super::{ClientContext, Error};
use weir_access::catalog::{Completion, ExportedItem};
use weir_access::guard::InspectionError;
use weir_base::json::{self, Object};
use weir_base::memory::memory_budget::BufferLimit;
use weir_base::tasks::cpu_bound;
use weir_mcp::call::{ItemRequest, Method, Payload, ResponseOutcome, UpstreamResponse};
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_record::audit::AuditEvent;
use weir_upstream as upstream;

/// Filter for the values of one completion, which must not name what its client may not read.
pub(super) struct CompletionFilter {
    completion: Completion,
    upstream: UpstreamName,
    /// Limit of the response's size.
    limit: BufferLimit,
    audit_event: AuditEvent,
}

impl CompletionFilter {
    /// Creates the filter for a request, if it is a completion of a template of which rules hide
    /// URIs from the client. A beginning of no readable URI has the same error as an unknown
    /// template.
    pub(super) fn new(
        client: &ClientContext,
        target: &Arc<ExportedItem>,
        request: &ItemRequest,
    ) -> Result<Option<Box<Self>>, Error> {
        if request.method != Method::Complete || request.kind != Kind::Template {
            return Ok(None);
        }
        let argument = request.params.get_object("argument").unwrap_or_default();
        let text = |member: &str| argument.get_string(member);
        let context = request.params.get_object("context").unwrap_or_default();
        let known = context.get_object("arguments").unwrap_or_default();
        let variable = text("name");
        let variable = variable.as_deref().unwrap_or_default();
        let Some(completion) = Completion::new(&client.view(), target, variable, &known) else {
            return Ok(None);
        };
        if !text("value").is_some_and(|value| completion.may_begin(&value)) {
            return Err(Error::NoSuchItem { kind: request.kind, key: request.key.clone() });
        }
        let upstream = target.upstream.clone();
        let limit = client.config.upstream(&upstream).response_limit();
        let audit_event = client.audit_event.clone();
        Ok(Some(Box::new(Self { completion, upstream, limit, audit_event })))
    }

    /// Removes the values that the client may not receive from the response.
    pub(super) async fn apply(
        &self,
        response: UpstreamResponse,
    ) -> Result<UpstreamResponse, Error> {
        let UpstreamResponse { era, scope, outcome: ResponseOutcome::Result(body) } = response
        else {
            return Ok(response);
        };
        let collected = body.read(&self.limit).await;
        let parsed = collected.map_err(|why| {
            let reason = InspectionError::Uncollected(why);
            rejected_response(&self.upstream, reason, &self.audit_event)
        })?;
        let mut result = parsed.map_err(|malformed| {
            let text = format!("invalid completion result: {malformed}");
            upstream_error(&self.upstream, upstream::Error::Protocol(text))
        })?;
        cpu_bound::run_on_bytes(result.text_len(), || {
            remove_hidden_values(&self.completion, &mut result)
        });
        Ok(UpstreamResponse {
            era,
            scope,
            outcome: ResponseOutcome::Result(Payload::Parsed(result)),
        })
    }
}

/// Removes the hidden values of a completion result.
fn remove_hidden_values(completion: &Completion, result: &mut Object) {
    let Some(mut read) = result.get_object("completion") else {
        result.take("completion");
        return;
    };
    let is_open = |value: &bytes::Bytes| {
        json::decode_bytes(value).is_some_and(|text| completion.may_return(&text))
    };
    let values = read.get_elements("values").into_iter().flatten();
    let open: Vec<_> = values.filter(is_open).collect();
    read.set("values", [b"[", &open.join(&b","[..])[..], b"]"].concat());
    // Both members would count hidden values.
    read.take("total");
    read.take("hasMore");
    result.set("completion", read.to_bytes());
}
