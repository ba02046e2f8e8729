//! Limits on a call over HTTP: a concurrency permit before it starts, and memory for its response
//! until that is read.
//!
//! Invariant: a call without a permit or memory gets an error response; nothing is dropped
//! silently.

use std::sync::Arc;

use futures::FutureExt;

use crate::downstream::ServerState;
use crate::downstream::limits::concurrency::Overloaded;
use crate::downstream::response::audit_events::finish_event;
use crate::downstream::response::call_stream::CallMessages;
use crate::downstream::response::results;
use crate::downstream::response::results::memory_exhausted;
use crate::downstream::response::{ClientResponse, ResponseBody, ResponseFuture, keep_until_end};
use crate::gateway::ClientContext;
use crate::jsonrpc::Id;
use crate::memory_budget::BudgetExhausted;
use crate::memory_budget::MemoryPressure;

/// Wraps a call so that it waits for its permit before it starts. A batch has no id.
pub(super) fn with_limits(
    state: &Arc<ServerState>,
    client: &ClientContext,
    id: Option<Id>,
    call: ResponseFuture,
) -> ResponseFuture {
    let (state, principal) = (Arc::clone(state), client.principal().clone());
    let audit_event = client.audit_event().clone();
    if id.is_some() {
        // The response may still be replaced by an error.
        audit_event.defer_end(true);
    }
    let ResponseFuture { response, messages } = call;
    let call = ResponseFuture { response, messages: CallMessages::default() };
    let response = async move {
        let refuse = |refused| {
            Some(finish_event(&audit_event, ClientResponse::refused(id.as_ref(), &refused)))
        };
        let permit = match state.concurrency.acquire(&principal).await {
            Ok(permit) => permit,
            Err(Overloaded { retry_after }) => return refuse(results::too_busy(retry_after)),
        };
        let response = call.catch_panics(id.clone()).response.await?;
        match response.text {
            ResponseBody::Whole(text) => match state.budget().charge(text) {
                Ok(text) => Some(ClientResponse { text: ResponseBody::Whole(text), ..response }),
                Err(BudgetExhausted) => refuse(memory_exhausted()),
            },
            ResponseBody::Parts([head, middle, tail]) => match state.budget().charge(middle) {
                Ok(middle) => Some(ClientResponse {
                    text: ResponseBody::Parts([head, middle, tail]),
                    ..response
                }),
                Err(BudgetExhausted) => refuse(memory_exhausted()),
            },
            ResponseBody::Arriving(head, pieces) => {
                // A streamed result is final, and its audit event ends with the last piece. Until
                // then it occupies one of the client's own permits, however slowly the client
                // reads.
                audit_event.defer_end(false);
                let pieces = keep_until_end(permit, pieces);
                Some(ClientResponse { text: ResponseBody::Arriving(head, pieces), ..response })
            }
        }
    };
    ResponseFuture { response: response.boxed(), messages }
}

/// True if so much memory is in use that no stream is opened.
pub(super) fn is_memory_scarce(state: &ServerState) -> bool {
    state.budget().pressure() >= MemoryPressure::High
}
