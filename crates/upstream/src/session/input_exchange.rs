//! Exchange of a request whose server asks for input before it responds.

use crate::input_requests::InputRequests;
use crate::message::{OutboundRequest, RequestHeaders, TransportError};
use crate::transport::Transport;
use weir_mcp::call::ResponseOutcome;
use weir_mcp::jsonrpc;

/// Sends a request whose server may send input requests before it responds, and sends it the
/// responses.
pub(crate) async fn exchange_with_input(
    transport: &Transport,
    request: Box<OutboundRequest>,
    input_requests: InputRequests,
) -> Result<ResponseOutcome, TransportError> {
    let headers = request.headers.clone();
    input_requests.reopen();
    // Dropped after the exchange: first the request is cancelled, then its input requests are
    // refused.
    let open_requests = RejectOnDrop { transport, headers: &headers, input_requests };
    let forward_responses = async {
        loop {
            let submitted = open_requests.input_requests.next_response().await;
            let Some(message) = submitted.write() else { continue };
            if let Err(failure) = transport.notify(message, &headers).await {
                let reason = failure.into_reason();
                break TransportError::ConnectionLost(format!(
                    "the response to its input request was not delivered: {reason}"
                ));
            }
        }
    };
    tokio::select! {
        biased;
        response = transport.exchange(request) => response,
        failure = forward_responses => Err(failure),
    }
}

/// Input requests of a call. Dropping it refuses the open ones, since they will get no response.
struct RejectOnDrop<'a> {
    transport: &'a Transport,
    headers: &'a RequestHeaders,
    input_requests: InputRequests,
}

impl Drop for RejectOnDrop<'_> {
    fn drop(&mut self) {
        let open = self.input_requests.close();
        if open.is_empty() {
            return;
        }
        let error = jsonrpc::Error::new(jsonrpc::code::INTERNAL_ERROR, "the call has ended");
        let error = error.to_bytes();
        let refuse = |id| jsonrpc::write_error(Some(&id), &error);
        let refusals = open.into_iter().map(refuse).collect();
        self.transport.send_responses(refusals, self.headers);
    }
}
