//! HTTP+SSE transport of revision 2024-11-05: one event stream carries all messages of the server,
//! and each message to it is a POST of its own, to an endpoint that the first event names.
//!
//! Invariants: the endpoint has the origin of the URL, and nothing is ever sent to another server.
//! A request is written at most once. When the stream ends, every request in flight ends at once.
//! The reader waits for nothing but the stream. A POST that is refused ends its own request only.
//! `id` and `retry` have no effect: a stream that breaks takes its session with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Uri};
use tokio::time::timeout;
use tokio_util::future::FutureExt as _;
use url::{Position, Url};

use crate::message::{OutboundRequest, RequestHeaders, SentFlag, TransportError};
use crate::transport::RequestInFlight;
use crate::transport::http_client::HttpClient;
use crate::transport::json_body::{self, JsonBody};
use crate::transport::lifetime::ConnectionLifetime;
use crate::transport::sse_body::{MediaType, OversizePolicy, SseBody, media_type};
use weir_base::tasks::sync::Mutex;
use weir_base::text::quote::quote;
use weir_base::text::sse::{Event, TruncatedEvent};
use weir_mcp::call::ResponseOutcome;

/// Timeout of the first event: a server sends it before it does anything else.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of an endpoint.
const MAX_ENDPOINT_BYTES: usize = 4 * 1024;

/// Connection over an open event stream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HttpSseTransport {
    /// Posts to the endpoint.
    pub(crate) http_client: Arc<HttpClient>,
    /// Lifetime of the stream; its reader ends it.
    pub(crate) lifetime: Arc<ConnectionLifetime>,
    /// Headers of responses to the server's own requests.
    reply_headers: Arc<Mutex<RequestHeaders>>,
}

impl HttpSseTransport {
    /// Opens the stream, waits for the endpoint and starts the task that reads the stream. Where
    /// the error is [`TransportError::Refused`] or [`TransportError::Protocol`], the server does
    /// not support HTTP+SSE.
    pub(crate) async fn open(http_client: &HttpClient) -> Result<Self, TransportError> {
        let headers = http_client.session_headers(HeaderMap::new());
        let mut events = http_client.listen(&headers, None, OversizePolicy::Truncate).await?;
        let late = |_| {
            TransportError::Protocol(format!(
                "it sent no `endpoint` event within {ENDPOINT_TIMEOUT:?}"
            ))
        };
        let first = timeout(ENDPOINT_TIMEOUT, events.next()).await.map_err(late)??;
        let ended = || {
            TransportError::Protocol("its event stream ended before the `endpoint` event".into())
        };
        let endpoint = parse_endpoint(&http_client.pool.url, &first.ok_or_else(ended)?)?;
        let http_client = Arc::new(http_client.with_path(endpoint));

        let (lifetime, end) = ConnectionLifetime::begin(
            &http_client.dispatcher,
            "the connection is closing",
            "its event stream is no longer read",
        );
        let reply_headers = Arc::new(Mutex::new(headers));
        let reader = SseReader {
            events,
            http_client: Arc::clone(&http_client),
            reply_headers: Arc::clone(&reply_headers),
        };
        http_client.pool.tracker.spawn(async move {
            let read = reader.run().with_cancellation_token(&end.closing).await;
            end.publish(read.unwrap_or_else(|| "it was stopped".into()));
        });
        Ok(Self { http_client, lifetime: Arc::new(lifetime), reply_headers })
    }

    /// Sets the headers of later responses to the server's own requests.
    pub(crate) fn set_reply_headers(&self, headers: RequestHeaders) {
        *self.reply_headers.lock() = headers;
    }

    /// Sends a request and waits for its response, which arrives on the stream, possibly before the
    /// HTTP response to the POST.
    pub(crate) async fn exchange(
        &self,
        mut request: Box<OutboundRequest>,
    ) -> Result<ResponseOutcome, TransportError> {
        let cancel = self.http_client.canceller(&request);
        let dispatcher = &self.http_client.dispatcher;
        let (mut open, message) = RequestInFlight::register(dispatcher, &mut request, cancel)
            .ok_or_else(|| self.lifetime.not_sent())?;
        let id = open.id();
        let http_client = Arc::clone(&self.http_client);
        let mut post = Box::pin(async move {
            post(&http_client, id, message, &request.headers, &request.sent).await
        });
        let answer = tokio::select! {
            biased;
            answer = &mut open.response => {
                if answer.is_some() {
                    // The server has read the request, and only its HTTP response is missing.
                    self.http_client.spawn_with_timeout(async { drop(post.await) });
                }
                answer
            }
            posted = &mut post => match posted {
                Ok(()) => (&mut open.response).await,
                Err(failure) => {
                    // Only after a broken connection may the server have begun to execute the
                    // request.
                    if !matches!(failure, TransportError::ConnectionLost(_)) {
                        open.disarm_cancel();
                    }
                    return Err(failure);
                }
            },
        };
        answer.unwrap_or_else(|| Err(self.lifetime.connection_lost()))
    }
}

/// Reads the endpoint from the first event.
///
/// Spec 2024-11-05, transports: the server MUST send an `endpoint` event that contains a URI. Weir
/// requires the origin of the stream, as careful clients do: otherwise a server could redirect
/// Weir's credentials to another host.
fn parse_endpoint(url: &Uri, first: &Event) -> Result<PathAndQuery, TransportError> {
    let protocol_error = |text: String| Err(TransportError::Protocol(text));
    if first.name != "endpoint" {
        let name = if first.name.is_empty() { "message" } else { &first.name };
        let name = quote(name, 40);
        return protocol_error(format!("its first event is `{name}`, not `endpoint`"));
    }
    if first.truncated.is_some() || first.data.len() > MAX_ENDPOINT_BYTES {
        return protocol_error(format!("its endpoint has more than {MAX_ENDPOINT_BYTES} bytes"));
    }
    let text = std::str::from_utf8(&first.data).ok().map(str::trim).filter(|text| !text.is_empty());
    let not_a_url = || TransportError::Protocol("its endpoint is not a URL".into());
    let endpoint = text.and_then(|text| resolve(url, text)).ok_or_else(not_a_url)?;
    if !has_origin_of(&endpoint, url) {
        let (scheme, host) = (endpoint.scheme(), endpoint.host_str().unwrap_or_default());
        let port = endpoint.port_or_known_default().unwrap_or_default();
        let elsewhere = quote(&format!("{scheme}://{host}:{port}"), 200);
        let text = format!("its endpoint is on another origin, {elsewhere}, and is not used");
        return protocol_error(text);
    }
    // The origin is the same, so only the path differs.
    endpoint[Position::BeforePath..Position::AfterQuery].parse().map_err(|_| not_a_url())
}

/// Resolves `reference` against `base`; `None` if the result is no URL over HTTP.
fn resolve(base: &Uri, reference: &str) -> Option<Url> {
    // `Url` would remove or replace these, which no URL contains.
    let has_others = |c: char| c.is_ascii_control() || matches!(c, ' ' | '\\');
    let resolved = Url::parse(&base.to_string()).ok()?.join(reference).ok()?;
    let is_http = matches!(resolved.scheme(), "http" | "https");
    (is_http && !reference.contains(has_others)).then_some(resolved)
}

/// Whether a URL has the scheme, host and port of another one.
fn has_origin_of(endpoint: &Url, url: &Uri) -> bool {
    Url::parse(&url.to_string()).is_ok_and(|url| url.origin() == endpoint.origin())
}

/// Posts a request to the endpoint. Of the HTTP response only the status matters, unless the server
/// sends its messages there and not on the stream.
async fn post(
    http_client: &Arc<HttpClient>,
    id: u64,
    message: Bytes,
    headers: &RequestHeaders,
    sent: &SentFlag,
) -> Result<(), TransportError> {
    let response = http_client.post_request(id, message, headers, sent).await?;
    let (head, body) = response.into_parts();
    if !matches!(media_type(&head.headers), MediaType::Json) {
        body.drain();
        return Ok(());
    }
    let limit = &http_client.message_limit;
    if let Ok(JsonBody::Buffered(text)) =
        json_body::read_response(body, id, limit, false, &[]).await
        && let Ok(dispatched) = http_client.dispatcher.demux(text)
    {
        http_client.send_responses(dispatched.outgoing, headers);
    }
    Ok(())
}

// === Reader ===

struct SseReader {
    events: SseBody,
    http_client: Arc<HttpClient>,
    reply_headers: Arc<Mutex<RequestHeaders>>,
}

impl SseReader {
    /// Reads events until the stream ends, and returns the reason. Waits for nothing else.
    async fn run(mut self) -> String {
        loop {
            match self.events.next().await {
                Ok(Some(event)) => {
                    if let Err(reason) = self.dispatch(event) {
                        return reason;
                    }
                }
                Ok(None) => return "its event stream ended".into(),
                Err(failure) => {
                    return format!("its event stream broke: {}", failure.into_reason());
                }
            }
        }
    }

    fn dispatch(&mut self, event: Event) -> Result<(), String> {
        let dispatcher = &self.http_client.dispatcher;
        let upstream = &dispatcher.name;
        if !matches!(&*event.name, "" | "message") {
            let name = quote(&event.name, 40);
            tracing::debug!(%upstream, name, "event of unknown type ignored");
            return self.events.limits.invalid.count(1);
        }
        if let Some(TruncatedEvent { tail, reason }) = event.truncated {
            self.send_responses(dispatcher.skip(&event.data, &tail, reason).into_iter().collect());
            return Ok(());
        }
        let mut dispatched = dispatcher.demux(event.data);
        if let Ok(dispatched) = &mut dispatched {
            self.send_responses(std::mem::take(&mut dispatched.outgoing));
        }
        self.events.count_dispatched(upstream, dispatched).map(drop)
    }

    /// Sends responses to the server's own requests.
    fn send_responses(&self, responses: Vec<Bytes>) {
        if !responses.is_empty() {
            let headers = self.reply_headers.lock().clone();
            self.http_client.send_responses(responses, &headers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_resolved_against_the_url_that_it_came_from() {
        let base = Uri::from_static("https://a.test:8443/v1/sse?x=1");
        for (reference, expected) in [
            ("/message?sessionId=1", Some("https://a.test:8443/message?sessionId=1")),
            ("messages/?id=a/b", Some("https://a.test:8443/v1/messages/?id=a/b")),
            ("./m#part", Some("https://a.test:8443/v1/m")),
            ("../m", Some("https://a.test:8443/m")),
            ("../../../m/..", Some("https://a.test:8443/")),
            ("/a/./b/../c", Some("https://a.test:8443/a/c")),
            ("?id=1", Some("https://a.test:8443/v1/sse?id=1")),
            ("", Some("https://a.test:8443/v1/sse?x=1")),
            ("m:1/x", None),
            ("./m:1/x", Some("https://a.test:8443/v1/m:1/x")),
            ("//b.test/m", Some("https://b.test/m")),
            ("http://b.test", Some("http://b.test/")),
            ("HTTPS://A.test:8443/m", Some("https://a.test:8443/m")),
            ("file:///etc/passwd", None),
            ("javascript:1", None),
            ("http:", None),
            ("/a b", None),
            ("/a\r\nx: y", None),
        ] {
            let resolved =
                resolve(&base, reference).map(|url| url[..Position::AfterQuery].to_owned());
            assert_eq!(resolved.as_deref(), expected, "{reference:?}");
        }
        let bare = Uri::from_static("http://a.test");
        let resolved = resolve(&bare, "m").map(String::from);
        assert_eq!(resolved.as_deref(), Some("http://a.test/m"));
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let base = Uri::from_static("http://A.test/sse");
        for (other, same) in [
            ("http://a.test:80/m", true),
            ("http://a.TEST", true),
            ("http://user@a.test/m", true),
            ("http://a.test:8080/m", false),
            ("https://a.test/m", false),
            ("https://a.test:80/m", false),
            ("http://a.test.evil/m", false),
            ("http://a.test@evil.test/m", false),
            ("http://sub.a.test/m", false),
            ("ftp://a.test/m", false),
        ] {
            assert_eq!(has_origin_of(&Url::parse(other).expect("a URL"), &base), same, "{other}");
        }
    }
}
