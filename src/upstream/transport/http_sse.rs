//! HTTP+SSE transport of revision 2024-11-05: one event stream carries all messages of the server,
//! and each message to it is a POST of its own, to an endpoint that the first event names.
//!
//! Invariants: the endpoint has the origin of the URL, and nothing is ever sent to another server.
//! A request is written at most once. When the stream ends, every request in flight ends at once.
//! The reader waits for nothing but the stream. A POST that is refused ends its own request only.
//! `id` and `retry` have no effect: a stream that breaks takes its session with it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Uri};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::sse::{Event, TruncatedEvent};
use crate::upstream::message::{
    CancelMode, OutboundRequest, SentFlag, TransportError, TransportResponse, cancel_notification,
};
use crate::upstream::quote::quote;
use crate::upstream::transport::demux::{self, Demuxed, ResponseDemux};
use crate::upstream::transport::dispatcher::{Dispatcher, PendingUpstreamResponse};
use crate::upstream::transport::http_client::{HttpClient, read_error_response};
use crate::upstream::transport::junk_limits::JunkLimitExceeded;
use crate::upstream::transport::lifetime::ConnectionLifetime;
use crate::upstream::transport::sse_body::{OversizePolicy, SseBody};
use crate::upstream::transport::uri_reference::{origin, resolve, same_origin};

/// Timeout of the first event: a server sends it before it does anything else.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of an endpoint.
const MAX_ENDPOINT_BYTES: usize = 4 * 1024;

/// Reason to reconnect when the server does not know the session any more.
const SESSION_LOST: &str = "it no longer knows the session";

/// Connection over an open event stream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HttpSseTransport {
    shared: Arc<Shared>,
}

struct Shared {
    /// Posts to the endpoint.
    http_client: HttpClient,
    dispatcher: Arc<Dispatcher>,
    /// Lifetime of the stream; its reader ends it.
    lifetime: ConnectionLifetime,
    /// Headers of responses to the server's own requests, beside the configured ones.
    reply_headers: Arc<OnceLock<HeaderMap>>,
}

impl HttpSseTransport {
    /// Opens the stream, waits for the endpoint and starts the task that reads the stream. Where
    /// the error is [`TransportError::Refused`] or [`TransportError::Protocol`], the server does
    /// not support HTTP+SSE.
    pub(crate) async fn open(
        http_client: &HttpClient,
        dispatcher: Arc<Dispatcher>,
    ) -> Result<Self, TransportError> {
        let mut events =
            http_client.listen(&HeaderMap::new(), None, OversizePolicy::Truncate).await?;
        let late = |_| {
            TransportError::Protocol(format!(
                "it sent no `endpoint` event within {ENDPOINT_TIMEOUT:?}"
            ))
        };
        let first = timeout(ENDPOINT_TIMEOUT, events.next()).await.map_err(late)??;
        let ended = || {
            TransportError::Protocol("its event stream ended before the `endpoint` event".into())
        };
        let endpoint = parse_endpoint(http_client.url(), &first.ok_or_else(ended)?)?;
        let http_client = http_client.with_path(endpoint);

        let (ended_sender, ended) = watch::channel(None);
        let (closing, gone) = (CancellationToken::new(), CancellationToken::new());
        let reply_headers = Arc::new(OnceLock::new());
        let reader = SseReader {
            events,
            demux: ResponseDemux { dispatcher: Arc::clone(&dispatcher) },
            http_client: http_client.clone(),
            reply_headers: Arc::clone(&reply_headers),
        };
        let end = EndGuard {
            reason: "its event stream is no longer read".into(),
            ended: ended_sender,
            dispatcher: Arc::clone(&dispatcher),
            _gone: gone.clone().drop_guard(),
        };
        let stop = closing.clone();
        http_client.tasks().spawn(async move {
            let read = stop.run_until_cancelled(reader.run()).await;
            end.with_reason(read.unwrap_or_else(|| "it was stopped".into()));
        });
        let lifetime = ConnectionLifetime {
            ended,
            closing,
            gone,
            default_reason: "the connection is closing",
        };
        Ok(Self { shared: Arc::new(Shared { http_client, dispatcher, lifetime, reply_headers }) })
    }

    /// Sets the headers of later responses to the server's own requests.
    pub(crate) fn set_reply_headers(&self, headers: HeaderMap) {
        let _ = self.shared.reply_headers.set(headers);
    }

    /// Sends a request and waits for its response, which arrives on the stream, possibly before the
    /// HTTP response to the POST.
    pub(crate) async fn exchange(
        &self,
        mut request: OutboundRequest,
    ) -> Result<TransportResponse, TransportError> {
        let unsent = || TransportError::NotSent(self.shared.lifetime.reason());
        let response = self.shared.dispatcher.register(&request).ok_or_else(unsent)?;
        let id = response.id();
        let message = request.write(id);
        let cancel_headers = (request.cancel != CancelMode::Never).then(|| request.headers.clone());
        let sent = request.sent.clone();
        let mut open =
            HttpSseRequest { transport: self, response, cancel_headers, sent: sent.clone() };
        let (http_client, dispatcher) =
            (self.shared.http_client.clone(), Arc::clone(&self.shared.dispatcher));
        let mut post = Box::pin(async move {
            post(&http_client, &dispatcher, id, message, request.headers, &sent).await
        });
        let answer = tokio::select! {
            biased;
            answer = demux::wait_for_response(&mut open.response) => {
                if answer.is_some() {
                    // The server has read the request, and only its HTTP response is missing.
                    self.shared.http_client.spawn_with_timeout(async { drop(post.await) });
                }
                answer
            }
            posted = &mut post => match posted {
                Ok(()) => demux::wait_for_response(&mut open.response).await,
                Err(failure) => {
                    // Only after a broken connection may the server have begun to execute the
                    // request.
                    if !matches!(failure, TransportError::ConnectionLost(_)) {
                        open.cancel_headers = None;
                    }
                    return Err(failure);
                }
            },
        };
        answer.unwrap_or_else(|| Err(TransportError::ConnectionLost(self.shared.lifetime.reason())))
    }

    pub(crate) async fn notify(
        &self,
        message: Bytes,
        headers: &HeaderMap,
    ) -> Result<(), TransportError> {
        self.shared.http_client.notify(message, headers).await
    }

    /// Sends responses to the server's own requests.
    pub(crate) fn send_responses(&self, responses: Vec<Bytes>, headers: &HeaderMap) {
        self.shared.http_client.send_responses(responses, headers);
    }

    /// Waits until the stream has ended and returns the reason. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        self.shared.lifetime.ended().await
    }

    /// Closes the stream and returns when that is done.
    pub(crate) async fn close(&self) {
        self.shared.lifetime.close().await;
    }
}

/// Reads the endpoint from the first event.
///
/// Spec 2024-11-05, transports: the server MUST send an `endpoint` event that contains a URI. Weir
/// requires the origin of the stream, as careful clients do: otherwise a server could redirect
/// Weir's credentials to another host.
fn parse_endpoint(url: &Uri, first: &Event) -> Result<PathAndQuery, TransportError> {
    let protocol_error = |text: String| TransportError::Protocol(text);
    if first.name != "endpoint" {
        let name = if first.name.is_empty() { "message" } else { &first.name };
        return Err(protocol_error(format!(
            "its first event is `{}`, not `endpoint`",
            quote(name, 40)
        )));
    }
    if first.truncated.is_some() || first.data.len() > MAX_ENDPOINT_BYTES {
        return Err(protocol_error(format!(
            "its endpoint has more than {MAX_ENDPOINT_BYTES} bytes"
        )));
    }
    let text = std::str::from_utf8(&first.data).ok().map(str::trim).filter(|text| !text.is_empty());
    let endpoint = text.and_then(|text| resolve(url, text));
    let endpoint = endpoint.ok_or_else(|| protocol_error("its endpoint is not a URL".into()))?;
    if !same_origin(url, &endpoint) {
        let elsewhere = origin(&endpoint).unwrap_or_default();
        let elsewhere = quote(&elsewhere, 200);
        return Err(protocol_error(format!(
            "its endpoint is on another origin, {elsewhere}, and is not used"
        )));
    }
    // The origin is the same, so only the path differs.
    endpoint
        .into_parts()
        .path_and_query
        .ok_or_else(|| protocol_error("its endpoint is not a URL".into()))
}

/// Posts a request to the endpoint. Of the HTTP response only the status matters.
async fn post(
    http_client: &HttpClient,
    dispatcher: &Dispatcher,
    id: u64,
    message: Bytes,
    headers: HeaderMap,
    sent: &SentFlag,
) -> Result<(), TransportError> {
    let (head, body) = http_client.post(message, &headers, sent).await?.into_parts();
    if head.status.is_success() {
        body.drain();
        return Ok(());
    }
    match read_error_response(dispatcher, id, &head, body).await {
        // Each session has an endpoint of its own, which no longer exists after the session's end.
        TransportError::HttpStatus { status, names_request: false, .. }
            if status.as_u16() == 404 =>
        {
            Err(TransportError::SessionLost(SESSION_LOST.into()))
        }
        failure => Err(failure),
    }
}

/// Request in flight. Dropping it before its response cancels it at the server.
struct HttpSseRequest<'a> {
    transport: &'a HttpSseTransport,
    response: PendingUpstreamResponse,
    /// Headers of the cancellation; `None` where none is to be sent.
    cancel_headers: Option<HeaderMap>,
    sent: SentFlag,
}

impl Drop for HttpSseRequest<'_> {
    fn drop(&mut self) {
        let Some(headers) = self.cancel_headers.take() else { return };
        // A request that was never written needs no cancellation.
        if self.response.is_open() && self.sent.is_sent() {
            self.transport
                .shared
                .http_client
                .cancel(cancel_notification(self.response.id()), &headers);
        }
    }
}

// === Reader ===

struct SseReader {
    events: SseBody,
    demux: ResponseDemux,
    http_client: HttpClient,
    reply_headers: Arc<OnceLock<HeaderMap>>,
}

impl SseReader {
    /// Reads events until the stream ends, and returns the reason. Waits for nothing else.
    async fn run(mut self) -> String {
        loop {
            match self.events.next().await {
                Ok(Some(event)) => {
                    if let Err(exceeded) = self.dispatch(event) {
                        return exceeded.to_string();
                    }
                }
                Ok(None) => return "its event stream ended".into(),
                Err(failure) => {
                    return format!("its event stream broke: {}", failure.into_reason());
                }
            }
        }
    }

    fn dispatch(&mut self, event: Event) -> Result<(), JunkLimitExceeded> {
        let upstream = &self.demux.dispatcher.name;
        let limits = &mut self.events.limits;
        if !matches!(&*event.name, "" | "message") {
            let name = quote(&event.name, 40);
            tracing::debug!(%upstream, name, "event of unknown type ignored");
            return limits.count_invalid();
        }
        if let Some(TruncatedEvent { tail, reason }) = event.truncated {
            self.demux.skip(&event.data, &tail, reason);
            return Ok(());
        }
        match self.demux.demux(event.data) {
            Ok(Demuxed { responses, junk_counts }) => {
                if !responses.is_empty() {
                    let headers = self.reply_headers.get().cloned().unwrap_or_default();
                    self.http_client.send_responses(responses, &headers);
                }
                limits.count_message(&junk_counts)
            }
            Err(junk) => {
                tracing::debug!(%upstream, %junk, "invalid message in an event");
                limits.count_invalid()
            }
        }
    }
}

/// Publishes the end of the stream and closes its requests, however the reader ends.
struct EndGuard {
    reason: String,
    ended: watch::Sender<Option<String>>,
    dispatcher: Arc<Dispatcher>,
    _gone: DropGuard,
}

impl EndGuard {
    fn with_reason(mut self, reason: String) {
        self.reason = reason;
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        // The reason is set first, because requests that end read it.
        self.ended.send_replace(Some(std::mem::take(&mut self.reason)));
        self.dispatcher.pending.close();
    }
}
