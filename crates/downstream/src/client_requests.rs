//! Server-to-client requests (sampling, elicitation, roots) to a legacy client.
//!
//! A request is sent on the stream of the call that it belongs to, under an id of its own. The
//! response arrives like any other message and completes the request once. A response that is late,
//! arrives twice, or answers no open request of its session is dropped.
//!
//! Invariants: a session has a bounded number of open requests; a request whose call has ended is
//! cancelled.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::response::ErrorResponse;
use crate::response::call_stream::{CallMessages, CallSender};
use crate::response::results;
use weir_base::json::{self, Object};
use weir_base::secrets::sealing::InstanceId;
use weir_base::secrets::secret;
use weir_gateway::SuspendedRequest;
use weir_mcp::input_request::{ClientFeatures, ELICITATION_ID, InputRequest, InputResponse};
use weir_mcp::jsonrpc::pending::{PendingRequests, PendingResponse};
use weir_mcp::jsonrpc::{self, Id, Response, ResponsePayload, code};
use weir_mcp::revision::Revision;

/// Open server-to-client requests of one session. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ClientRequests {
    open: PendingRequests<ResponsePayload, ()>,
    /// Process that sends the requests; their ids begin with its number, so that a response to one
    /// of another process, which served the session before, completes none of these.
    instance: InstanceId,
    /// Fires at shutdown: no more responses are accepted.
    stop: CancellationToken,
}

/// Sends the input requests of one call to its client.
#[derive(Debug)]
pub(super) struct ClientRequester {
    client_requests: ClientRequests,
    revision: Revision,
    /// Sender for the call's stream.
    sender: CallSender,
}

/// One open request; cancelled if it is dropped without a response.
struct PendingClientRequest<'a> {
    id: Id,
    pending: PendingResponse<ResponsePayload, ()>,
    sender: &'a CallSender,
}

impl ClientRequests {
    /// Creates an empty table. After `stop` no response is accepted.
    pub(super) fn new(instance: InstanceId, stop: CancellationToken) -> Self {
        Self { open: PendingRequests::default(), instance, stop }
    }

    /// Completes the request that a client's response belongs to, and returns whether it is open.
    pub(super) fn complete(&self, response: Response) -> bool {
        let Response { id, outcome, .. } = response;
        let number = id.as_ref().and_then(|id| self.number_of(id));
        number.is_some_and(|number| self.open.complete(number, outcome))
    }

    /// Returns the process that has sent the request with this id.
    pub(super) fn sender_of(id: &Id) -> Option<InstanceId> {
        Some(InstanceId::split_named(&id.as_text()?)?.0)
    }

    fn id_of(&self, number: u64) -> Id {
        Id::from_text(&self.instance.name(number))
    }

    fn number_of(&self, id: &Id) -> Option<u64> {
        let text = id.as_text()?;
        let (instance, number) = InstanceId::split_named(&text)?;
        (instance == self.instance).then(|| number.parse().ok())?
    }
}

impl ClientRequester {
    /// Creates the sender for a call, which uses the call's message stream; `None` if the client
    /// has declared no feature that allows requests.
    pub(super) fn for_call(
        client_requests: &ClientRequests,
        revision: Revision,
        features: ClientFeatures,
        messages: CallMessages,
    ) -> (Option<Self>, CallMessages) {
        if features == ClientFeatures::default() {
            return (None, messages);
        }
        let (sender, messages) = messages.with_sender();
        (Some(Self { client_requests: client_requests.clone(), revision, sender }), messages)
    }

    /// Sends all input requests of a call's upstream at once and passes each response on as it
    /// arrives: the upstream may need it before it continues with the others, or sends more
    /// requests. Returns once the upstream wants no more responses, and cancels the requests that
    /// are open then; so does dropping the future.
    pub(super) async fn send_all(
        &self,
        suspended: &mut SuspendedRequest,
    ) -> Result<(), ErrorResponse> {
        let mut responses = FuturesUnordered::new();
        let mut new = suspended.input_requests().to_vec();
        loop {
            for request in new.drain(..) {
                responses.push(self.send(request, self.register()?));
            }
            tokio::select! {
                biased;
                Some(response) = responses.next() => suspended.submit(response),
                more = suspended.next_input_requests() => match more {
                    Some(more) => new = more,
                    None => return Ok(()),
                },
            }
        }
    }

    fn register(&self) -> Result<PendingClientRequest<'_>, ErrorResponse> {
        let open = &self.client_requests.open;
        let pending = (open.len() < MAX_OPEN).then(|| open.open(())).flatten();
        let pending = pending.ok_or_else(|| results::too_busy(RETRY))?;
        let id = self.client_requests.id_of(pending.id());
        Ok(PendingClientRequest { id, pending, sender: &self.sender })
    }

    async fn send(
        &self,
        request: InputRequest,
        mut open: PendingClientRequest<'_>,
    ) -> InputResponse {
        let params = self.params_for(&request);
        let message = jsonrpc::write_request(&open.id, request.kind.method(), &params);
        let outcome = match self.sender.send(message).await {
            Ok(()) => open.response(&self.client_requests.stop).await,
            // The call continues without its stream (spec, transports), which is the only way to
            // send this request.
            Err(_) => error_response("the client's stream is lost, so the request cannot be sent"),
        };
        InputResponse { key: request.key, outcome }
    }

    /// Returns the parameters of a request in the form that this revision requires.
    fn params_for(&self, request: &InputRequest) -> Bytes {
        // Spec 2025-11-25, elicitation: a URL elicitation MUST have an id; later revisions have
        // none.
        if request.is_url_elicitation()
            && self.revision == Revision::V2025_11_25
            && !request.params.has(ELICITATION_ID)
        {
            let id = json::quote(&secret::random_token());
            return request.params.clone().with(ELICITATION_ID, id).to_bytes();
        }
        request.params.to_bytes()
    }
}

impl PendingClientRequest<'_> {
    async fn response(&mut self, stop: &CancellationToken) -> ResponsePayload {
        let response = tokio::select! {
            biased;
            response = &mut self.pending => response,
            () = stop.cancelled() => None,
        };
        match response {
            Some(ResponsePayload::Result(result)) if !result.starts_with(b"{") => {
                error_response("the client's result is not an object")
            }
            Some(outcome) => outcome,
            None => error_response("shutting down: no more responses are accepted from the client"),
        }
    }
}

impl Drop for PendingClientRequest<'_> {
    fn drop(&mut self) {
        if !self.pending.is_open() {
            return;
        }
        let params = Object::new()
            .with("requestId", self.id.as_bytes().clone())
            .with("reason", json::quote("the call that needed this request has ended"));
        let cancelled = jsonrpc::write_notification("notifications/cancelled", &params.to_bytes());
        // If the queue is full or closed, the request was not sent either, or the client has gone.
        let _ = self.sender.try_send(cancelled);
    }
}

/// Error response for an upstream, in place of a client response that will not arrive.
fn error_response(text: &str) -> ResponsePayload {
    ResponsePayload::Error(jsonrpc::Error::new(code::INTERNAL_ERROR, text).to_bytes())
}

/// Largest number of open requests of one session.
const MAX_OPEN: usize = 64;
/// Delay after which a call that was refused because of the limit may be retried.
const RETRY: Duration = Duration::from_secs(1);
