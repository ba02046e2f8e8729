//! Messages of legacy clients that concern a call in progress: responses to what Weir has asked the
//! client, and cancellations. In a fleet the call may run on another replica than the one that gets
//! the message, and on another than the one that has the session by now.
//!
//! A response names the process that has asked. The call that a cancellation names may run on each
//! replica that has ever had the session, so all of them get it.
//!
//! Invariants: a message has an effect once, however often it is sent. It counts as taken only if
//! it was delivered, or if no replica that lives has the call; otherwise the client has to send it
//! again. It is forwarded once, and is not charged to any limit of requests: it is needed to finish
//! what was admitted. The number of messages of one client that are on the way is bounded.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hyper::StatusCode;

use super::super::connection::replicas::ForwardPurpose;
use super::super::refusal::HttpRefusal;
use super::super::request::HttpRequest;
use super::super::response_body::{self, HttpResponse};
use super::{copy_for, misdirected};
use crate::client_requests::ClientRequests;
use crate::response::results;
use crate::{batch, host_check, in_flight, session};
use weir_base::json;
use weir_base::secrets::sealing::InstanceId;
use weir_fleet::{Fleet, MessageReply, Replica, Whereabouts};
use weir_gateway::ClientContext;
use weir_mcp::jsonrpc::Message;
use weir_record::audit::SessionMark;

/// Delivers a message to the call in progress that it concerns, on whichever replica that runs;
/// `None` if it concerns none. Then it is handled like any other message.
pub(crate) async fn deliver(
    request: &HttpRequest,
    client: &ClientContext,
    message: &Message,
) -> Result<Option<HttpResponse>, HttpRefusal> {
    if !concerns_call(message) {
        return Ok(None);
    }
    let Some((id, opened)) = request.opened_session(client) else { return Ok(None) };
    request.check_version(opened.facts.revision)?;
    client.audit_event().set_session(&SessionMark::of(id));
    let is_here = request.state.sessions.deliver(client, id, message);
    match (request.connection.purpose(), is_here) {
        (ForwardPurpose::Serve, true) => Ok(Some(response_body::empty(StatusCode::ACCEPTED))),
        (ForwardPurpose::Serve, false) => {
            let delivered = deliver_elsewhere(request, client, message, &request.text).await?;
            Ok(delivered.then(|| response_body::empty(StatusCode::ACCEPTED)))
        }
        (ForwardPurpose::Deliver | ForwardPurpose::Ask, _) => {
            reply_to_replica(client, is_here).map(Some)
        }
    }
}

/// Delivers the messages of a batch that concern calls on other replicas. The others have no
/// effect here: the batch is served as a whole then.
pub(crate) async fn deliver_batch(
    request: &HttpRequest,
    client: &ClientContext,
    text: &Bytes,
) -> Result<(), HttpRefusal> {
    let Some((id, opened)) = request.opened_session(client) else { return Ok(()) };
    if request.fleet_for_forwarding().is_none() {
        return Ok(());
    }
    // One that is invalid is refused as a whole.
    let messages = batch::read(opened.facts.revision, text).unwrap_or_default();
    for (message, element) in messages.into_iter().zip(json::elements(text).into_iter().flatten()) {
        let message = match message {
            Ok(message) => Some(message),
            Err(invalid) => invalid.as_error_response().map(Message::Response),
        };
        if let Some(message) = message.filter(concerns_call)
            && !request.state.sessions.deliver(client, id, &message)
        {
            deliver_elsewhere(request, client, &message, &element).await?;
        }
    }
    Ok(())
}

/// Returns whether a message is a cancellation, or a response to what Weir may have asked.
fn concerns_call(message: &Message) -> bool {
    match message {
        Message::Request(_) => false,
        Message::Notification(notification) => &*notification.method == in_flight::CANCELLED,
        Message::Response(_) => asker_of(message).is_some(),
    }
}

/// Returns the process that has asked what a response answers.
fn asker_of(message: &Message) -> Option<InstanceId> {
    let Message::Response(response) = message else { return None };
    ClientRequests::sender_of(response.id.as_ref()?)
}

/// Sends a message to the replicas that may run the call that it concerns, and returns whether one
/// of them does. One that has come from another replica is not forwarded.
async fn deliver_elsewhere(
    request: &HttpRequest,
    client: &ClientContext,
    message: &Message,
    text: &Bytes,
) -> Result<bool, HttpRefusal> {
    let Some(fleet) = request.fleet_for_forwarding() else { return Ok(false) };
    let asker = asker_of(message);
    let replicas = match asker {
        Some(asker) => match fleet.find(asker).await {
            Whereabouts::ThisReplica | Whereabouts::Ended => return Ok(false),
            Whereabouts::Other(asker) => vec![asker],
            Whereabouts::Unreachable => return Err(out_of_reach()),
        },
        None => fleet.others().ok_or_else(out_of_reach)?,
    };
    let principal = client.principal();
    let permit = request.state.deliveries.acquire(principal, principal.share(MAX_DELIVERIES));
    let _permit = permit.ok_or_else(|| results::too_busy(RETRY))?;
    let send = async |replica: &Replica| {
        let copy = copy_for(request, fleet, text.clone(), ForwardPurpose::Deliver);
        fleet.client().send_message(replica, copy, PATIENCE).await
    };
    let mut sending: FuturesUnordered<_> = replicas.iter().map(|replica| send(replica)).collect();
    let mut refused = None;
    while let Some(reply) = sending.next().await {
        match reply {
            MessageReply::Status(StatusCode::NO_CONTENT) => return Ok(true),
            // Replicas up to version 0.1.0 do not say whether they have the call.
            MessageReply::Status(StatusCode::ACCEPTED) if asker.is_some() => return Ok(true),
            MessageReply::Ended
            | MessageReply::Status(
                StatusCode::ACCEPTED | StatusCode::MISDIRECTED_REQUEST | StatusCode::NOT_FOUND,
            ) => {}
            // Its configuration does not know the client, which has no calls there.
            MessageReply::Status(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
                if asker.is_none() => {}
            MessageReply::Status(_) | MessageReply::Silent => refused = Some(out_of_reach()),
        }
    }
    refused.map_or(Ok(false), Err)
}

/// Refuses a message whose call may run on a replica that cannot be reached at present.
fn out_of_reach() -> HttpRefusal {
    let text = "the replica that may run this call cannot be reached at present: \
                send the same message again";
    results::unavailable(text, RETRY).into()
}

// === Calls of a client over its limits ===

/// Returns whether the client has calls in progress that the request may concern, here or on
/// another replica: in the session that it names, or calls that wait for input.
pub(crate) async fn has_calls(request: &HttpRequest, client: &ClientContext) -> bool {
    let state = &request.state;
    let opened = match request.headers().contains_key(session::HEADER) {
        true => match request.opened_session(client) {
            Some((id, _)) => Some(id),
            None => return false,
        },
        false => None,
    };
    if has_calls_here(request, client) {
        return true;
    }
    let Some(fleet) = request.fleet_for_forwarding() else { return false };
    let principal = client.principal();
    let asking = async {
        // Half of them, so that there is always one for a message.
        let permit = state.deliveries.acquire(principal, principal.share(MAX_DELIVERIES / 2));
        permit.is_some() && ask_others(request, fleet).await
    };
    state.questions.ask((principal.clone(), opened.map(Box::from)), asking).await
}

fn has_calls_here(request: &HttpRequest, client: &ClientContext) -> bool {
    match host_check::single_value(request.headers(), &session::HEADER) {
        Some(id) => request.state.sessions.has_calls(client, id),
        None => client.has_suspended_calls(),
    }
}

/// Asks all other replicas whether the client has calls in progress there.
async fn ask_others(request: &HttpRequest, fleet: &Fleet) -> bool {
    let replicas = fleet.others().unwrap_or_default();
    let ask = async |replica: &Replica| {
        let copy = copy_for(request, fleet, Bytes::new(), ForwardPurpose::Ask);
        fleet.client().send_message(replica, copy, PATIENCE).await
            == MessageReply::Status(StatusCode::NO_CONTENT)
    };
    let asking: FuturesUnordered<_> = replicas.iter().map(|replica| ask(replica)).collect();
    asking.any(std::future::ready).await
}

/// Replies to another replica that has asked whether the client has calls in progress here.
pub(crate) fn answer(
    request: &HttpRequest,
    client: &ClientContext,
) -> Result<HttpResponse, HttpRefusal> {
    reply_to_replica(client, has_calls_here(request, client))
}

/// Replies to another replica whether the call is here. The replica that has got the request of the
/// client records it.
fn reply_to_replica(client: &ClientContext, is_here: bool) -> Result<HttpResponse, HttpRefusal> {
    client.audit_event().discard();
    match is_here {
        true => Ok(response_body::empty(StatusCode::NO_CONTENT)),
        false => Err(misdirected()),
    }
}

/// Longest wait for the other replicas.
const PATIENCE: Duration = Duration::from_secs(5);
/// Delay after which a client may send a message again.
const RETRY: Duration = Duration::from_secs(1);
/// Most messages of one client that are on the way to other replicas.
const MAX_DELIVERIES: usize = 64;
