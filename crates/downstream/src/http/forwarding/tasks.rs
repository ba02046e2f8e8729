//! Requests about tasks that one replica alone can reach: those of a child process, or of a session
//! with a server on the network.
//!
//! The handle of a task says which replica that is. A request about the task is forwarded to it,
//! whichever replica has the client's session, and a listen for tasks of other replicas is joined
//! by listens there. A request in a legacy session of another replica is served in a copy of that
//! session, and the session stays where it is.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use http_body_util::Full;
use hyper::{Request, StatusCode};

use crate::http::refusal::HttpRefusal;
use crate::http::request::HttpRequest;
use crate::http::response_body::HttpResponse;
use crate::modern::{ListenSubscription, RemoteTasks};
use weir_base::json::{self, Object};
use weir_base::text::sse::SseDecoder;
use weir_fleet::{Fleet, Replica, ReplicaBody, Whereabouts};
use weir_gateway::{ClientContext, named_task_scope, task_scope};
use weir_mcp::jsonrpc::{self, Message};
use weir_mcp::revision::Era;
use weir_mcp::task::{TASK_IDS, TaskScope};

/// Forwards a request about a task of this scope to the replica that can reach it; `None` if that
/// is this one, or if there is none: then this one says so.
pub(crate) async fn forward(
    request: &HttpRequest,
    client: &ClientContext,
    scope: TaskScope,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    let Some(fleet) = request.fleet_for_forwarding() else { return Ok(None) };
    for _ in 0..MAX_PLACES {
        match fleet.find_by(|instance| scope.is_of(instance)).await {
            Whereabouts::ThisReplica | Whereabouts::Ended => return Ok(None),
            Whereabouts::Unreachable => break,
            Whereabouts::Other(replica) => {
                if let Some(response) = super::forward(request, client, fleet, &replica).await? {
                    return Ok(Some(response));
                }
            }
        }
    }
    Err(super::unreachable(request, "this task"))
}

/// Returns the scope of the task that a message of a legacy session is about, if it is about one
/// that one replica of the fleet alone can reach.
pub(crate) fn legacy_scope(
    request: &HttpRequest,
    client: &ClientContext,
    message: &Message,
) -> Option<TaskScope> {
    request.state.fleet()?;
    let Message::Request(jsonrpc::Request { method, params, .. }) = message else { return None };
    named_task_scope(client, method, params, Era::Legacy)
}

// === Listens ===

/// Has a listen followed at the other replicas for the tasks that are theirs.
pub(crate) fn follow_elsewhere(
    request: &HttpRequest,
    client: &ClientContext,
    listening: &mut ListenSubscription,
) {
    let Some(fleet) = request.fleet_for_forwarding() else { return };
    let mut listens: Vec<(Arc<Replica>, Vec<Box<str>>)> = Vec::new();
    for (handle, replica) in listening.take_tasks(|handle| {
        let scope = task_scope(client, handle, Era::Modern)?;
        fleet.reachable(|instance| scope.is_of(instance))
    }) {
        match listens.iter_mut().find(|(other, _)| other.instance == replica.instance) {
            Some((_, handles)) => handles.push(handle),
            None => listens.push((replica, vec![handle])),
        }
    }
    for (replica, handles) in listens {
        if let Some(copy) = listen_for(request, fleet, &handles)
            && let Some(permit) = super::permit(request, client)
        {
            let limit = request.state.buffer_limit();
            let decoder = SseDecoder::new(limit.limit).with_budget(&limit.budget);
            let fleet = Arc::clone(fleet);
            listening.join(Box::pin(async move {
                let events = open(&fleet, &replica, copy, decoder).await?;
                let events = events.map(move |message| {
                    let _permit = &permit;
                    message
                });
                RemoteTasks::read(Box::pin(events)).await
            }));
        }
    }
}

/// Returns a copy of a listen that is for these tasks only.
fn listen_for(
    request: &HttpRequest,
    fleet: &Fleet,
    handles: &[Box<str>],
) -> Option<Request<Full<Bytes>>> {
    let handles: Vec<_> = handles.iter().map(|handle| json::quote(handle)).collect();
    let handles = [&b"["[..], &handles.join(&b","[..]), b"]"].concat();
    let filter = Object::new().with(TASK_IDS, handles);
    let mut message = Object::parse(request.text.clone()).ok()?;
    let params = message.get_object("params")?.with("notifications", filter.to_bytes());
    message.set("params", params.to_bytes());
    Some(super::copy_of(request, fleet, message.to_bytes()))
}

/// Opens a listen at another replica; its messages follow until that ends it, or is gone.
async fn open(
    fleet: &Fleet,
    replica: &Replica,
    request: Request<Full<Bytes>>,
    decoder: SseDecoder,
) -> Option<impl futures::Stream<Item = Bytes> + Send + use<>> {
    let response = fleet.client().forward(replica, request).await.ok()?;
    let body = (response.status() == StatusCode::OK).then(|| response.into_body())?;
    let events =
        stream::unfold((body, decoder), |(mut body, mut decoder): (ReplicaBody, _)| async {
            let chunk = body.chunk().await?.ok()?;
            let events = SseDecoder::feed(&mut decoder, &chunk).ok()?;
            Some((stream::iter(events.into_iter().map(|event| event.data)), (body, decoder)))
        });
    Some(events.flatten())
}

/// Most attempts to reach the replica of a task.
const MAX_PLACES: usize = 2;
