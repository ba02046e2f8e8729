//! Streamable HTTP transport: one message per request, answered by a JSON body or an event stream.
//!
//! A response that arrives on another stream of the session ends its request all the same, and then
//! the request's own stream is closed.
//!
//! Invariants: a request is written at most once. Dropping an exchange closes its response stream
//! at once, and sends a cancellation where `OutboundRequest::cancel` says so. An event stream that
//! ends after an event with an id, but without the response, is resumed where
//! `OutboundRequest::resume` says so; resuming a stream does not send the request again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};

use crate::message::{OutboundRequest, RequestHeaders, TransportError};
use crate::transport::RequestInFlight;
use crate::transport::dispatcher::Dispatched;
use crate::transport::http_client::HttpClient;
use crate::transport::json_body::{self, JsonBody};
use crate::transport::sse_body::{MediaType, OversizePolicy, SseBody, media_type};
use weir_base::text::quote::quote;
use weir_base::text::sse::Event;
use weir_mcp::call::{Payload, ResponseOutcome};

/// Pause before a broken stream is resumed if the server sets none, and shortest pause after a
/// failure to resume it.
const RESUME_AFTER: Duration = Duration::from_secs(1);
/// Shortest pause before a broken stream is resumed, even if the server sets a shorter one.
const RESUME_AT_LEAST: Duration = Duration::from_millis(50);
/// Maximum number of consecutive failures to resume a stream.
const RESUME_TRIES: u32 = 3;

/// Connection to a server behind a URL. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StreamableHttpTransport {
    pub(crate) http_client: Arc<HttpClient>,
}

impl StreamableHttpTransport {
    /// Sends a request and waits for its response; the headers are those of the HTTP response.
    pub(crate) async fn exchange(
        &self,
        mut request: Box<OutboundRequest>,
    ) -> Result<(ResponseOutcome, HeaderMap), TransportError> {
        let closed = || TransportError::NotSent("the connection is closing".into());
        let cancel = self.http_client.canceller(&request);
        let dispatcher = &self.http_client.dispatcher;
        let (mut open, message) =
            RequestInFlight::register(dispatcher, &mut request, cancel).ok_or_else(closed)?;
        let id = open.id();
        let answer = tokio::select! {
            biased;
            answer = self.send_request(id, &request, message) => answer,
            Some(response) = &mut open.response => response.map(|it| (it, HeaderMap::new())),
        };
        open.disarm_cancel();
        answer
    }

    async fn send_request(
        &self,
        id: u64,
        request: &OutboundRequest,
        message: Bytes,
    ) -> Result<(ResponseOutcome, HeaderMap), TransportError> {
        let response =
            self.http_client.post_request(id, message, &request.headers, &request.sent).await?;
        let (head, body) = response.into_parts();
        let outcome = match media_type(&head.headers) {
            MediaType::Json => {
                let limit = &self.http_client.message_limit;
                let (stream, buffer_if) = (request.stream, request.buffer_if_member);
                match json_body::read_response(body, id, limit, stream, buffer_if).await? {
                    JsonBody::Streaming(pieces) => {
                        ResponseOutcome::Result(Payload::Streaming(pieces))
                    }
                    JsonBody::Buffered(text) => {
                        let dispatched = self.http_client.dispatcher.dispatch(text, Some(id));
                        let dispatched = dispatched
                            .map_err(|junk| TransportError::Protocol(junk.to_string()))?;
                        let missing = || {
                            TransportError::Protocol(
                                "its HTTP response does not contain the response to the request"
                                    .into(),
                            )
                        };
                        self.take_response(dispatched, id, &request.headers)
                            .ok_or_else(missing)??
                    }
                }
            }
            MediaType::EventStream => {
                let limit = &self.http_client.message_limit;
                let events = SseBody::new(body, limit, OversizePolicy::Fail);
                Box::pin(self.read_stream(id, request, events)).await?
            }
            MediaType::None => {
                if head.status == StatusCode::ACCEPTED {
                    self.http_client.dispatcher.wait_while_standalone().await;
                }
                return Err(TransportError::Protocol(format!(
                    "HTTP {} without a response",
                    head.status
                )));
            }
            MediaType::Other(name) => {
                let name = quote(self.http_client.without_tokens(&name), 100);
                return Err(TransportError::Protocol(format!("unexpected content type {name}")));
            }
        };
        Ok((outcome, head.headers))
    }

    /// Reads events until the response to request `request_id` arrives, over several HTTP responses
    /// if necessary.
    async fn read_stream(
        &self,
        request_id: u64,
        request: &OutboundRequest,
        mut events: SseBody,
    ) -> Result<ResponseOutcome, TransportError> {
        let mut failed_resumes = 0;
        let mut last_event_id: Option<String> = None;
        loop {
            let end_reason = loop {
                match self.dispatch_next(&mut events, Some(request_id)).await {
                    Ok(Some(dispatched)) => {
                        failed_resumes = 0;
                        if let Some(outcome) =
                            self.take_response(dispatched, request_id, &request.headers)
                        {
                            events.drain();
                            return outcome;
                        }
                    }
                    Ok(None) => break "the event stream ended without the response".to_owned(),
                    Err(TransportError::ConnectionLost(reason)) => break reason,
                    Err(failure) => return Err(failure),
                }
            };
            last_event_id = events.last_id().or(last_event_id);
            let Some(resume_from) = last_event_id.as_deref().filter(|_| request.resume) else {
                return Err(TransportError::ConnectionLost(end_reason));
            };
            let mut pause = events.retry().unwrap_or(RESUME_AFTER).max(RESUME_AT_LEAST);
            events = loop {
                tokio::time::sleep(pause).await;
                match self.listen(&request.headers, Some(resume_from)).await {
                    Ok(events) => break events,
                    Err(TransportError::NotSent(_) | TransportError::ConnectionLost(_))
                        if failed_resumes < RESUME_TRIES =>
                    {
                        failed_resumes += 1;
                        pause = pause.max(RESUME_AFTER);
                    }
                    Err(_) => return Err(TransportError::ConnectionLost(end_reason)),
                }
            };
        }
    }

    /// Opens the server's standalone stream, or resumes a stream that broke.
    pub(crate) async fn listen(
        &self,
        headers: &RequestHeaders,
        last_event_id: Option<&str>,
    ) -> Result<SseBody, TransportError> {
        self.http_client.listen(headers, last_event_id, OversizePolicy::Fail).await
    }

    /// Waits for the next event of a stream and dispatches it; the stream is that of request
    /// `request_id`, or the standalone one. `None` at the end of the stream. An event that is no
    /// message returns an empty [`Dispatched`]; too many of them are an error. Cancel-safe.
    pub(crate) async fn dispatch_next(
        &self,
        events: &mut SseBody,
        request_id: Option<u64>,
    ) -> Result<Option<Dispatched>, TransportError> {
        let Some(Event { data, .. }) =
            events.next().await.inspect_err(|failure| self.log_violation(failure))?
        else {
            return Ok(None);
        };
        let dispatcher = &self.http_client.dispatcher;
        // An empty event carries an id only.
        let counted = if data.iter().all(u8::is_ascii_whitespace) {
            events.limits.padding.count(1).map(|()| Dispatched::default())
        } else {
            events.count_dispatched(&dispatcher.name, dispatcher.dispatch(data, request_id))
        };
        counted
            .map(|mut dispatched| {
                dispatcher.complete_others(&mut dispatched, request_id);
                Some(dispatched)
            })
            .map_err(TransportError::Protocol)
            .inspect_err(|failure| self.log_violation(failure))
    }

    /// Logs that a stream is closed because of its content.
    fn log_violation(&self, failure: &TransportError) {
        if let TransportError::Protocol(reason) = failure {
            let upstream = &self.http_client.dispatcher.name;
            tracing::warn!(%upstream, reason, "event stream closed");
        }
    }

    /// Returns the response to request `id`, and sends responses to the server's own requests.
    fn take_response(
        &self,
        mut dispatched: Dispatched,
        id: u64,
        headers: &RequestHeaders,
    ) -> Option<Result<ResponseOutcome, TransportError>> {
        self.http_client.send_responses(std::mem::take(&mut dispatched.outgoing), headers);
        self.http_client.dispatcher.complete_others(&mut dispatched, Some(id));
        // Error statuses have no response here.
        dispatched.response_to(id, StatusCode::OK)
    }
}
