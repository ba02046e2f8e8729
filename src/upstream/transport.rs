//! Transports to an upstream: stdio, Streamable HTTP and the deprecated HTTP+SSE, and the
//! dispatcher of the messages that arrive.

pub(crate) mod child;
pub(crate) mod demux;
pub(crate) mod dispatcher;
pub(crate) mod http_client;
pub(crate) mod http_connection;
pub(crate) mod http_pool;
pub(crate) mod http_sse;
pub(crate) mod json_body;
pub(crate) mod junk_limits;
pub(crate) mod lifetime;
pub(crate) mod min_rate;
pub(crate) mod sse_body;
pub(crate) mod stdio;
pub(crate) mod streamable_http;
pub(crate) mod uri_reference;

use bytes::Bytes;
use hyper::HeaderMap;

use crate::upstream::message::{OutboundRequest, TransportError, TransportResponse};

/// Connection to a server over one of three transports. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Transport {
    Stdio(stdio::StdioTransport),
    Http(streamable_http::StreamableHttpTransport),
    Sse(http_sse::HttpSseTransport),
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

    /// Sends a request and waits for its response. Dropping the future has the effect that `cancel`
    /// defines.
    pub(crate) async fn exchange(
        &self,
        request: OutboundRequest,
    ) -> Result<TransportResponse, TransportError> {
        match self {
            Self::Stdio(transport) => transport.exchange(request).await,
            Self::Http(transport) => transport.exchange(request).await,
            Self::Sse(transport) => transport.exchange(request).await,
        }
    }

    /// Sends a notification.
    pub(crate) async fn notify(
        &self,
        message: Bytes,
        headers: &HeaderMap,
    ) -> Result<(), TransportError> {
        match self {
            Self::Stdio(transport) => transport.notify(message).await,
            Self::Http(transport) => transport.notify(message, headers).await,
            Self::Sse(transport) => transport.notify(message, headers).await,
        }
    }

    /// Sends the responses to the server's own requests without waiting; beyond a bound they are
    /// dropped.
    pub(crate) fn send_responses(&self, responses: Vec<Bytes>, headers: &HeaderMap) {
        match self {
            Self::Stdio(transport) => transport.send_responses(responses),
            Self::Http(transport) => transport.send_responses(responses, headers),
            Self::Sse(transport) => transport.send_responses(responses, headers),
        }
    }

    /// Waits until the connection has ended by itself and returns the reason. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        match self {
            Self::Stdio(transport) => transport.ended().await,
            // Over HTTP each request detects a failure for itself.
            Self::Http(_) => std::future::pending().await,
            Self::Sse(transport) => transport.ended().await,
        }
    }

    /// Closes the connection and its process or stream; returns when that is done.
    pub(crate) async fn close(&self) {
        match self {
            Self::Stdio(transport) => transport.close().await,
            // HTTP requests end when their futures are dropped.
            Self::Http(_) => {}
            Self::Sse(transport) => transport.close().await,
        }
    }
}
