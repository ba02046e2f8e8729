//! HTTP client for one upstream, common to both HTTP transports: one message per request.
//!
//! Invariants: a message is written at most once. A detached message takes a bounded time.
//! Responses to the server's own requests beyond [`MAX_REPLIES`] at a time are dropped, so a server
//! that sends requests without end loses the responses to them.

mod session_account;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::Full;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName,
    HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT,
};
use hyper::http::response::Parts as Head;
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Method, Request, Response, Uri};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Url;

use crate::message::message_trace::MessageTrace;
use crate::message::{
    CancelMode, HttpFailure, OutboundRequest, RequestHeaders, SentFlag, TransportError,
};
use crate::transport::cookies::SessionCookies;
use crate::transport::dispatcher::Dispatcher;
use crate::transport::http_pool::{HttpPool, PooledBody};
use crate::transport::sse_body::{MediaType, OversizePolicy, SseBody, media_type};
use session_account::{SessionAccount, no_token, token_challenge};
use weir_base::json::Object;
use weir_base::memory::memory_budget::BufferLimit;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::text::quote::quote;
use weir_mcp::call::ResponseOutcome;
use weir_mcp::code;
use weir_oauth::{AccessToken, Account, BearerChallenge, SignInNumber};

/// Timeout of a message that no caller waits for.
const DETACHED_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of responses to the server's own requests that are being sent.
const MAX_REPLIES: usize = 64;
/// Maximum number of attempts to send a cancellation when the connection breaks: a duplicate does
/// no server harm.
const MAX_CANCEL_ATTEMPTS: usize = 3;
/// Part of an error response's body that is read, and the timeout of that.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Part of what a server says beside a status that is read, and characters that are shown.
const MAX_SAID_BYTES: usize = 4 * 1024;
const MAX_SAID_CHARS: usize = 200;

/// Longest `Retry-After` that is passed on.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const DEFAULT_USER_AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// HTTP client for the server of one URL.
#[derive(Clone)]
pub(crate) struct HttpClient {
    pub(crate) pool: Arc<HttpPool>,
    /// Dispatcher of the server's messages.
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Headers of every request: the configured ones and Weir's own, with those of a message.
    headers: HeaderMap,
    /// Secrets that the server is given and may repeat.
    secrets: Arc<SecretPatterns>,
    /// Cookies that the server has set.
    cookies: Arc<SessionCookies>,
    /// Account whose access tokens are sent with every request.
    account: Option<SessionAccount>,
    /// Maximum size of a message, and the memory budget of larger ones.
    pub(crate) message_limit: BufferLimit,
    /// Slots of the responses to the server's own requests.
    reply_slots: Arc<Semaphore>,
    /// Request target, in the form that servers expect: the path alone, with the authority in
    /// `Host`.
    target: Uri,
    trace: Option<Arc<MessageTrace>>,
}

impl HttpClient {
    /// Creates a client for the server of the pool, with configured headers, and with what the
    /// server is given and may repeat.
    pub(crate) fn new(
        pool: Arc<HttpPool>,
        dispatcher: Arc<Dispatcher>,
        (configured, secrets): (HeaderMap, Arc<SecretPatterns>),
        account: Option<Arc<Account>>,
        message_limit: BufferLimit,
    ) -> Self {
        let reply_slots = Arc::new(Semaphore::new(MAX_REPLIES));
        let cookies = Arc::new(SessionCookies::new(&pool.url.to_string()));
        let headers = base_headers(configured, &pool.url);
        let account = account.map(SessionAccount::new);
        let target = request_target(&pool.url);
        Self {
            pool,
            dispatcher,
            headers,
            secrets,
            cookies,
            account,
            message_limit,
            reply_slots,
            target,
            trace: None,
        }
    }

    /// Returns a client whose messages are traced.
    pub(crate) fn with_trace(self, trace: Option<Arc<MessageTrace>>) -> Self {
        Self { trace, ..self }
    }

    /// Returns a client for another path on the same server.
    pub(crate) fn with_path(&self, path: PathAndQuery) -> Self {
        Self { target: Uri::from(path), ..self.clone() }
    }

    /// Sign-in whose tokens the session uses; `None` if it has no account, or no token yet.
    pub(crate) fn sign_in(&self) -> Option<SignInNumber> {
        self.account.as_ref()?.sign_in.get().copied()
    }

    /// Waits until the account uses another sign-in than the session; for ever if there is none.
    pub(crate) async fn sign_in_replaced(&self) {
        match (&self.account, self.sign_in()) {
            (Some(SessionAccount { account, .. }), Some(sign_in)) => {
                account.sign_in_other_than(Some(sign_in)).await;
            }
            _ => std::future::pending().await,
        }
    }

    /// Returns the headers of the requests of a session: its own replace those of every request.
    pub(crate) fn session_headers(&self, session: HeaderMap) -> RequestHeaders {
        let mut headers = self.headers.clone();
        headers.extend(session);
        RequestHeaders::new(headers)
    }

    /// Sends request `id` and waits for the head of its HTTP response, which is a success.
    pub(crate) async fn post_request(
        self: &Arc<Self>,
        id: u64,
        message: Bytes,
        headers: &RequestHeaders,
        sent: &SentFlag,
    ) -> Result<Response<PooledBody>, TransportError> {
        let response = self.send(Method::POST, message, headers, sent).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(Box::pin(self.read_error_response(id, response, headers)).await)
    }

    /// Opens an event stream, or resumes one that broke after the event `last_id`.
    pub(crate) async fn listen(
        &self,
        headers: &RequestHeaders,
        last_id: Option<&str>,
        oversize: OversizePolicy,
    ) -> Result<SseBody, TransportError> {
        let mut headers = headers.clone();
        headers.set(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.set(LAST_EVENT_ID, id);
        }
        let sent = SentFlag::default();
        let response = self.send(Method::GET, Bytes::new(), &headers, &sent).await?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            body.drain();
            return Err(TransportError::Http(Box::new(self.failure_of(&head, &[]))));
        }
        match media_type(&head.headers) {
            MediaType::EventStream => Ok(SseBody::new(body, &self.message_limit, oversize)),
            _ => Err(TransportError::Protocol("its response is not an event stream".into())),
        }
    }

    /// Returns a text of the server for an error, without a text that repeats an access token.
    pub(crate) fn without_tokens<'a>(&self, text: &'a str) -> &'a str {
        let account = self.account.as_ref().map(|session| &session.account);
        let has_token = account.is_some_and(|account| account.is_repeated_in(text));
        if has_token { "***" } else { text }
    }

    /// Returns the failure that the head of a response and the text of its body report.
    fn failure_of(&self, head: &Head, text: &[u8]) -> HttpFailure {
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let said = match header(LOCATION) {
            Some(location) if head.status.is_redirection() => {
                self.place_of(location).map(|place| format!("to {place}"))
            }
            _ => self.quote_text(head, text),
        };
        HttpFailure {
            status: head.status,
            // The other form, a date, requires synchronized clocks.
            retry_after: header(RETRY_AFTER)
                .and_then(|after| after.parse().ok())
                .map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER)),
            has_challenge: BearerChallenge::find(&head.headers).is_some(),
            said: said.map(String::into_boxed_str),
            ..HttpFailure::default()
        }
    }

    /// Returns the URL to which a server redirects, without what may be secret.
    fn place_of(&self, location: &str) -> Option<String> {
        let mut place = Url::parse(&self.pool.url.to_string()).ok()?.join(location).ok()?;
        place.set_query(None);
        place.set_fragment(None);
        place.set_username("").ok()?;
        place.set_password(None).ok()?;
        Some(self.shown(place.as_str()))
    }

    /// Quotes the body of a response, if it is plain text.
    fn quote_text(&self, head: &Head, text: &[u8]) -> Option<String> {
        let media_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_plain = media_type.is_none_or(|it| it.starts_with("text/plain"));
        let text =
            std::str::from_utf8(text).ok().filter(|text| is_plain && !text.trim().is_empty());
        let text = text?;
        Some(format!("\"{}\"", self.shown(&text[..text.floor_char_boundary(MAX_SAID_BYTES)])))
    }

    /// Returns a text of the server for the operator: bounded, and without secrets of the requests.
    fn shown(&self, text: &str) -> String {
        quote(&self.secrets.redact(self.without_tokens(text)), MAX_SAID_CHARS)
    }

    /// Reads an error response: its head, and the JSON-RPC error about request `id` if the body
    /// contains one.
    async fn read_error_response(
        self: &Arc<Self>,
        id: u64,
        response: Response<PooledBody>,
        headers: &RequestHeaders,
    ) -> TransportError {
        let (head, mut body) = response.into_parts();
        let mut text = BytesMut::new();
        let read = async {
            while let Some(Ok(chunk)) = body.chunk().await {
                text.extend_from_slice(&chunk);
                if text.len() > MAX_ERROR_BODY_BYTES {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(ERROR_BODY_TIMEOUT, read).await;
        let text = text.freeze();
        let dispatched = self.dispatcher.dispatch(text.clone(), Some(id));
        let mut dispatched = dispatched.unwrap_or_default();
        self.send_responses(std::mem::take(&mut dispatched.outgoing), headers);
        self.dispatcher.complete_others(&mut dispatched, Some(id));
        let is_named = dispatched.responses.iter().any(|(answered, _)| *answered == Some(id));
        let error = match dispatched.response_to(id, head.status) {
            Some(Ok(ResponseOutcome::Error(error))) => Some(error),
            Some(Err(TransportError::Http(failure))) => failure.error,
            _ => None,
        };
        // Another Weir says that it does not know the session, and names the request, too.
        let is_of_weir = error.as_ref().is_some_and(|error| {
            let data = Object::parse(error.clone()).ok();
            data.is_some_and(|error| error.get("data") == Some(code::UNKNOWN_SESSION))
        });
        let names_request = is_named && !is_of_weir;
        let failure = HttpFailure { error, names_request, ..self.failure_of(&head, &text) };
        TransportError::Http(Box::new(failure))
    }

    /// Sends a message that has no response.
    pub(crate) async fn notify(
        &self,
        message: Bytes,
        headers: &RequestHeaders,
    ) -> Result<(), TransportError> {
        let sent = SentFlag::default();
        let response = self.send(Method::POST, message, headers, &sent).await?;
        let (head, body) = response.into_parts();
        body.drain();
        if head.status.is_success() {
            return Ok(());
        }
        Err(TransportError::Http(Box::new(self.failure_of(&head, &[]))))
    }

    /// Deletes the session at the server. Waits at most [`DETACHED_TIMEOUT`] for it.
    pub(crate) async fn delete(&self, headers: &RequestHeaders) {
        let sent = SentFlag::default();
        let deletion = self.send(Method::DELETE, Bytes::new(), headers, &sent);
        let _ = tokio::time::timeout(DETACHED_TIMEOUT, deletion).await;
    }

    /// Sends responses to the server's own requests, detached.
    pub(crate) fn send_responses(
        self: &Arc<Self>,
        responses: Vec<Bytes>,
        headers: &RequestHeaders,
    ) {
        for response in responses {
            match Arc::clone(&self.reply_slots).try_acquire_owned() {
                Ok(permit) => self.spawn_send(response, headers, 1, Some(permit)),
                Err(_) => tracing::debug!("too many server requests, response dropped"),
            }
        }
    }

    /// Returns what sends the cancellation of a request, detached, if it has one.
    pub(crate) fn canceller<'a>(
        self: &'a Arc<Self>,
        request: &OutboundRequest,
    ) -> Option<impl FnOnce(Bytes) + use<'a>> {
        let cancel = |headers: RequestHeaders| {
            move |message| self.spawn_send(message, &headers, MAX_CANCEL_ATTEMPTS, None)
        };
        (request.cancel == CancelMode::Notify).then(|| cancel(request.headers.clone()))
    }

    fn spawn_send(
        self: &Arc<Self>,
        message: Bytes,
        headers: &RequestHeaders,
        attempts: usize,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let http_client = Arc::clone(self);
        let headers = headers.clone();
        self.spawn_with_timeout(async move {
            let _permit = permit;
            for _ in 0..attempts {
                let Err(failure) = http_client.notify(message.clone(), &headers).await else {
                    return;
                };
                tracing::debug!(?failure, "detached message failed");
                if !matches!(failure, TransportError::ConnectionLost(_)) {
                    return;
                }
            }
        });
    }

    /// Spawns work that no caller waits for, with a timeout.
    pub(crate) fn spawn_with_timeout(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.pool.tracker.spawn(async move {
            if tokio::time::timeout(DETACHED_TIMEOUT, work).await.is_err() {
                tracing::debug!("detached message timed out");
            }
        });
    }

    /// Keeps the cookies of a response.
    fn receive(
        &self,
        response: Result<Response<PooledBody>, TransportError>,
    ) -> Result<Response<PooledBody>, TransportError> {
        let response = match &self.trace {
            Some(trace) => {
                let response = response.inspect_err(|error| trace.no_response(error))?;
                trace.response(&response);
                response.map(|body| body.with_trace(trace))
            }
            None => response?,
        };
        self.cookies.keep(self.target.path(), response.headers());
        Ok(response)
    }

    /// Sends a request and waits for the head of its HTTP response. A request that the server
    /// refuses because it wants another access token is sent once more with a new one: the server
    /// has not executed it.
    async fn send(
        &self,
        method: Method,
        message: Bytes,
        headers: &RequestHeaders,
        sent: &SentFlag,
    ) -> Result<Response<PooledBody>, TransportError> {
        let request = |token: Option<&AccessToken>| {
            let mut headers = headers.to_map();
            if method != Method::POST {
                headers.remove(CONTENT_TYPE);
                // As the Fetch standard does for event streams: no cache may answer.
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            }
            self.cookies.add_to(self.target.path(), &mut headers);
            headers.extend(token.map(|token| (AUTHORIZATION, token.authorization())));
            let mut request = Request::new(Full::new(message.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = self.target.clone();
            *request.headers_mut() = headers;
            if let Some(trace) = &self.trace {
                trace.request(&request, &message);
            }
            request
        };
        let Some(session_account) = &self.account else {
            return self.receive(self.pool.send(request(None), sent).await);
        };
        let account = &session_account.account;
        let token = account.token().await.map_err(no_token)?;
        if token.as_ref().is_some_and(|token| !session_account.owns(token)) {
            return Err(TransportError::SignInReplaced);
        }
        let response = self.receive(self.pool.send(request(token.as_ref()), sent).await)?;
        let Some(challenge) = token_challenge(&response, account) else {
            if let Some(token) = token {
                account.accept(&token);
            }
            return Ok(response.map(|body| body.hide_tokens(account)));
        };
        response.into_body().drain();
        sent.mark_unsent();
        // Boxed, like everything here that few requests need: it would enlarge the future of each.
        let refresh = Box::pin(account.refresh(token.as_ref(), challenge));
        let token = refresh.await.map_err(no_token)?;
        if !session_account.owns(&token) {
            return Err(TransportError::SignInReplaced.of_sent_call());
        }
        let response = self.receive(self.pool.send(request(Some(&token)), sent).await)?;
        let Some(challenge) = token_challenge(&response, account) else {
            return Ok(response.map(|body| body.hide_tokens(account)));
        };
        response.into_body().drain();
        sent.mark_unsent();
        Err(no_token(Box::pin(account.reject(&token, &challenge)).await))
    }
}

/// Returns the headers of every request to a server.
fn base_headers(configured: HeaderMap, url: &Uri) -> HeaderMap {
    let mut headers = configured;
    let host = url.authority().map(|authority| {
        // Credentials in a URL do not belong in the Host header.
        authority.as_str().rsplit('@').next().unwrap_or_default()
    });
    if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok()) {
        headers.insert(HOST, host);
    }
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(DEFAULT_USER_AGENT));
    let accept = HeaderValue::from_static("application/json, text/event-stream");
    headers.insert(ACCEPT, accept);
    // Without it a server may choose any coding (RFC 9110, 12.5.3), and Weir decodes none.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
}

fn request_target(url: &Uri) -> Uri {
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    path.parse().unwrap_or_else(|_| Uri::from_static("/"))
}
