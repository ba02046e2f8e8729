//! Owner of what a modern request needs: the replica that has the call which the request resumes,
//! the task that it is about, or the client's own connection to the upstream.
//!
//! Invariant: only the replica that gets a request from its client looks for the owner; one that
//! was forwarded is served, or refused.

use super::{forward_to, tasks};
use crate::http::refusal::HttpRefusal;
use crate::http::request::HttpRequest;
use crate::http::response_body::HttpResponse;
use weir_base::secrets::sealing::InstanceId;
use weir_fleet::Fleet;
use weir_gateway::{ClientContext, ResolvedItem, named_task_scope};
use weir_mcp::call::Method;
use weir_mcp::jsonrpc::Request;
use weir_mcp::revision::{Era, Revision};

/// Forwards a request to the replica that has what it needs; `None` if that is this one.
pub(crate) async fn forward(
    request: &HttpRequest,
    client: &ClientContext,
    fleet: &Fleet,
    message: &Request,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    let (method, params) = (&message.method, &message.params);
    // A task is where it began, also if the client's connection would be elsewhere by now.
    if let Some(scope) = named_task_scope(client, method, params, Era::Modern) {
        return Box::pin(tasks::forward(request, client, scope)).await;
    }
    // Only a call is resumed. A listen that stays open is not ended when its client is removed.
    let is_call = Method::of(method).is_some();
    let state = params.get_string("requestState").filter(|_| is_call);
    if let Some((instance, _)) = state.as_deref().and_then(InstanceId::split_named)
        // A server that handles the rounds itself may name its states in the same way.
        && (fleet.has_replica(instance)
            || !ResolvedItem::passes_states_on(client, Revision::NEWEST, method, params).await)
    {
        let what = "the call of this `requestState`";
        return Box::pin(forward_to(request, client, instance, what)).await;
    }
    let upstream =
        ResolvedItem::upstream_with_own_connection(client, Revision::NEWEST, method, params).await;
    let Some(upstream) = upstream else { return Ok(None) };
    let find_owner = || fleet.owner_of_connection(&client.principal().name, upstream.as_str());
    let (mut owner, mut tries) = (find_owner(), 0);
    while let Some(instance) = owner {
        let what = "the connection of this client to the server";
        let forwarded = Box::pin(forward_to(request, client, instance, what)).await;
        tries += 1;
        owner = find_owner();
        match forwarded {
            Ok(None) if tries < MAX_TRIES => {}
            // It is opened elsewhere, if that replica has ended or refuses connections.
            Err(_) if owner != Some(instance) && tries < MAX_TRIES => {}
            forwarded => return forwarded,
        }
    }
    Ok(None)
}

/// Most replicas at which the connection of a client is looked for.
const MAX_TRIES: usize = 3;
