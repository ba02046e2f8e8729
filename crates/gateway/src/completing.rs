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
use weir_base::tasks::cpu_bound;
use weir_mcp::call::{ItemRequest, Method, Payload, ResponseOutcome, UpstreamResponse};
use weir_mcp::kind::Kind;
use weir_upstream as upstream;

impl ClientContext {
    /// The filter for the values of a completion, if rules hide URIs of the template from the
    /// client. A beginning of no readable URI has the same error as an unknown template.
    pub(super) fn completion(
        &self,
        target: &Arc<ExportedItem>,
        request: &ItemRequest,
    ) -> Result<Option<Completion>, Error> {
        if request.method != Method::Complete || request.kind != Kind::Template {
            return Ok(None);
        }
        let argument = request.params.get_object("argument").unwrap_or_default();
        let text = |member: &str| argument.get_string(member);
        let context = request.params.get_object("context").unwrap_or_default();
        let known = context.get_object("arguments").unwrap_or_default();
        let variable = text("name");
        let variable = variable.as_deref().unwrap_or_default();
        let Some(completion) = Completion::new(&self.view(), target, variable, &known) else {
            return Ok(None);
        };
        match text("value").is_some_and(|value| completion.may_begin(&value)) {
            true => Ok(Some(completion)),
            false => Err(Error::NoSuchItem { kind: request.kind, key: request.key.clone() }),
        }
    }

    /// Removes the values that the client may not receive from the response to a completion.
    pub(super) async fn filter_completion(
        &self,
        completion: &Completion,
        target: &ExportedItem,
        response: UpstreamResponse,
    ) -> Result<UpstreamResponse, Error> {
        let UpstreamResponse { era, scope, outcome: ResponseOutcome::Result(body) } = response
        else {
            return Ok(response);
        };
        let name = &target.upstream;
        let buffer_limit = self.config.upstream(name).response_limit();
        let collected = body.read(&buffer_limit).await;
        let parsed = collected.map_err(|why| {
            rejected_response(name, InspectionError::Uncollected(why), &self.audit_event)
        })?;
        let mut result = parsed.map_err(|malformed| {
            upstream_error(
                name,
                upstream::Error::Protocol(format!("invalid completion result: {malformed}")),
            )
        })?;
        cpu_bound::run_on_bytes(result.text_len(), || {
            remove_hidden_values(completion, &mut result)
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
