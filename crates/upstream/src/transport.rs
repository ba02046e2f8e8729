//! Transports to an upstream: stdio, Streamable HTTP and the deprecated HTTP+SSE; requests in
//! flight on any of them, and the dispatcher of the messages that arrive.

pub(crate) mod child;
pub(crate) mod cookies;
pub(crate) mod demux;
pub(crate) mod dispatcher;
pub(crate) mod echo_filter;
pub(crate) mod http_client;
pub(crate) mod http_pool;
pub(crate) mod http_sse;
pub(crate) mod invalid_lines;
pub(crate) mod json_body;
pub(crate) mod junk_limits;
pub(crate) mod lifetime;
pub(crate) mod min_rate;
pub(crate) mod sse_body;
pub(crate) mod stdio;
pub(crate) mod streamable_http;

use std::sync::Arc;

use bytes::Bytes;
use hyper::HeaderMap;

use crate::message::{
    OutboundRequest, RequestHeaders, SIGN_IN_REPLACED, SentFlag, TransportError,
    cancel_notification,
};
use crate::transport::dispatcher::{Dispatcher, PendingUpstreamResponse};
use crate::transport::http_client::HttpClient;
use crate::transport::http_sse::HttpSseTransport;
use crate::transport::lifetime::ConnectionLifetime;
use crate::transport::stdio::StdioTransport;
use crate::transport::streamable_http::StreamableHttpTransport;
use weir_mcp::call::{CancelReason, ResponseOutcome};
use weir_mcp::call_notifications::NotificationSink;

/// Connection to a server over one of three transports. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Transport {
    Stdio(StdioTransport),
    Http(StreamableHttpTransport),
    Sse(HttpSseTransport),
}

impl Transport {
    /// Label of the transport.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Stdio(_) => "stdio",
            Self::Http(_) => "http",
            Self::Sse(_) => "http+sse",
        }
    }

    /// Whether a server's message in mid-call identifies the call that it belongs to.
    pub(crate) fn correlates_messages(&self) -> bool {
        match self {
            Self::Http(_) => true,
            // All server messages share one stream.
            Self::Stdio(_) | Self::Sse(_) => false,
        }
    }

    /// Dispatcher of the server's messages.
    pub(crate) fn dispatcher(&self) -> &Arc<Dispatcher> {
        match self.by_http() {
            Ok(http_client) => &http_client.dispatcher,
            Err(stdio) => &stdio.dispatcher,
        }
    }

    /// Returns the headers of the requests of a session, where the transport has headers.
    pub(crate) fn session_headers(&self, session: HeaderMap) -> RequestHeaders {
        self.by_http()
            .map_or_else(|_| RequestHeaders::default(), |client| client.session_headers(session))
    }

    /// Sends a request and waits for its response. Dropping the future has the effect that `cancel`
    /// defines.
    pub(crate) async fn exchange(
        &self,
        request: Box<OutboundRequest>,
    ) -> Result<ResponseOutcome, TransportError> {
        match self {
            Self::Stdio(transport) => transport.exchange(request).await,
            Self::Http(transport) => Ok(transport.exchange(request).await?.0),
            Self::Sse(transport) => transport.exchange(request).await,
        }
    }

    /// Sends a request as [`Transport::exchange`] does. Returns the headers of the HTTP response
    /// with its outcome; other transports have none.
    pub(crate) async fn exchange_with_headers(
        &self,
        request: Box<OutboundRequest>,
    ) -> Result<(ResponseOutcome, HeaderMap), TransportError> {
        match self {
            Self::Http(transport) => transport.exchange(request).await,
            Self::Stdio(_) | Self::Sse(_) => Ok((self.exchange(request).await?, HeaderMap::new())),
        }
    }

    /// Sends a notification.
    pub(crate) async fn notify(
        &self,
        message: Bytes,
        headers: &RequestHeaders,
    ) -> Result<(), TransportError> {
        match self.by_http() {
            Ok(http_client) => http_client.notify(message, headers).await,
            Err(stdio) => stdio.notify(message).await,
        }
    }

    /// Sends the responses to the server's own requests without waiting; beyond a bound they are
    /// dropped.
    pub(crate) fn send_responses(&self, responses: Vec<Bytes>, headers: &RequestHeaders) {
        match self.by_http() {
            Ok(http_client) => http_client.send_responses(responses, headers),
            Err(stdio) => stdio.send_responses(responses),
        }
    }

    /// Waits until the connection has ended by itself and returns the reason. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        match self.lifetime() {
            Some(lifetime) => lifetime.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Closes the connection and its process or stream; returns when that is done.
    pub(crate) async fn close(&self) {
        if let Some(lifetime) = self.lifetime() {
            lifetime.close().await;
        }
    }

    /// Lifetime of the one stream that all requests share. `None` over Streamable HTTP: there each
    /// request detects a failure for itself, and ends when its future is dropped.
    fn lifetime(&self) -> Option<&ConnectionLifetime> {
        match self {
            Self::Stdio(transport) => Some(&transport.lifetime),
            Self::Http(_) => None,
            Self::Sse(transport) => Some(&transport.lifetime),
        }
    }

    /// Waits until another sign-in is used than the one with which the session was opened, and
    /// returns that as the reason for its end.
    pub(crate) async fn sign_in_replaced(&self) -> String {
        match self.http_client() {
            Some(http_client) => http_client.sign_in_replaced().await,
            None => std::future::pending().await,
        }
        SIGN_IN_REPLACED.into()
    }

    /// Client that carries each message in an HTTP request of its own; `None` over stdio.
    pub(crate) fn http_client(&self) -> Option<&Arc<HttpClient>> {
        self.by_http().ok()
    }

    /// Client that carries each message in an HTTP request of its own; `Err` over stdio.
    fn by_http(&self) -> Result<&Arc<HttpClient>, &StdioTransport> {
        match self {
            Self::Stdio(transport) => Err(transport),
            Self::Http(transport) => Ok(&transport.http_client),
            Self::Sse(transport) => Ok(&transport.http_client),
        }
    }
}

// === RequestInFlight ===

/// Request in flight. Dropping it before its response sends the cancellation, if it has one and
/// the request has begun to be written: one that never was needs none.
pub(crate) struct RequestInFlight<Cancel: FnOnce(Bytes)> {
    /// Response, where it arrives on a stream that requests share.
    pub(crate) response: PendingUpstreamResponse,
    sent: SentFlag,
    cancel_reason: CancelReason,
    /// Sends the cancellation without waiting; `None` where none is to be sent (any more).
    cancel: Option<Cancel>,
}

impl<Cancel: FnOnce(Bytes)> RequestInFlight<Cancel> {
    /// Registers a request, and encodes it under the id that was issued for it; `None` if the
    /// connection is closed.
    pub(crate) fn register(
        dispatcher: &Dispatcher,
        request: &mut OutboundRequest,
        cancel: Option<Cancel>,
    ) -> Option<(Self, Bytes)> {
        let context = std::mem::take(&mut request.context);
        let notifications = context.notifications.as_ref();
        let wants_progress = notifications.is_some_and(NotificationSink::wants_progress);
        let response = dispatcher.pending.open(context)?;
        let message = request.write(response.id(), wants_progress);
        let (sent, cancel_reason) = (request.sent.clone(), request.cancel_reason.clone());
        Some((Self { response, sent, cancel_reason, cancel }, message))
    }

    /// Id that was issued for the request.
    pub(crate) fn id(&self) -> u64 {
        self.response.id()
    }

    /// Makes sure that no cancellation is sent any more.
    pub(crate) fn disarm_cancel(&mut self) {
        self.cancel = None;
    }
}

impl<Cancel: FnOnce(Bytes)> Drop for RequestInFlight<Cancel> {
    fn drop(&mut self) {
        let Some(cancel) = self.cancel.take() else { return };
        if self.sent.is_sent() && self.response.is_open() {
            cancel(cancel_notification(self.response.id(), &self.cancel_reason));
        }
    }
}
