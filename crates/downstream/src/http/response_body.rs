//! HTTP responses: one JSON text, an event stream, or an empty body.
//!
//! If an upstream breaks in the middle of a text, the body ends with an error and hyper closes the
//! connection: HTTP/1.1 has no other way to signal an incomplete body.

use std::array;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
};
use hyper::{Response, StatusCode};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use crate::http::connection::timed_io::RequestInProgress;
use crate::http::head::AcceptedForms;
use crate::response::arriving::ArrivingResult;
use crate::response::{ClientResponse, ResponseBody, ResponseFuture};
use weir_base::memory::memory_budget::SMALL_BYTES;
use weir_base::tasks::fairness::promptly;
use weir_base::text::sse::{KEEP_ALIVE, MESSAGE_HEAD, MESSAGE_TAIL, write_message};
use weir_mcp::call::PayloadBroken;
use weir_record::audit::OpenStreamEvent;

/// Body of an HTTP response. Owns what lives until the last byte is handed over to hyper.
pub(super) struct HttpBody {
    content: BodyContent,
    /// Ready once the client has disconnected, which ends content that is still arriving.
    gone: Option<ConnectionClosed>,
    /// Keeps the connection in the busy phase.
    in_progress: Option<RequestInProgress>,
    /// Audit event of a stream that stays open.
    _audit_event: Option<OpenStreamEvent>,
}

enum BodyContent {
    /// Complete, in up to three parts.
    Complete(array::IntoIter<Bytes, 3>),
    Result(Box<ArrivingResult>),
    Events(Box<EventStream>),
    /// Chunks of another body.
    PassedThrough(BoxStream<'static, Result<Bytes, PayloadBroken>>),
}

/// Events and comments.
struct EventStream {
    chunks: BoxStream<'static, Result<Bytes, PayloadBroken>>,
    /// True if the last chunk has ended its event. Only then a comment may follow.
    is_between_events: bool,
    /// Ticks after a silence; the comment that is sent then makes proxies keep the connection open.
    keep_alive: Interval,
}

/// Future that is ready once the client has closed the connection.
pub(super) type ConnectionClosed = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// HTTP response.
pub(super) type HttpResponse = Response<HttpBody>;

impl HttpBody {
    fn new(content: BodyContent) -> Self {
        Self { content, gone: None, in_progress: None, _audit_event: None }
    }

    pub(super) fn complete(text: Bytes) -> Self {
        Self::new(BodyContent::Complete([text, Bytes::new(), Bytes::new()].into_iter()))
    }

    /// Keeps the connection in the busy phase until the body has ended. It ends early when `gone`
    /// is ready.
    pub(super) fn keep_in_progress(
        &mut self,
        in_progress: RequestInProgress,
        gone: ConnectionClosed,
    ) {
        self.in_progress = Some(in_progress);
        let is_arriving = !matches!(self.content, BodyContent::Complete(_));
        self.gone = is_arriving.then_some(gone);
    }

    /// Length in bytes, if it is known.
    pub(super) fn len(&self) -> Option<u64> {
        self.size_hint().exact()
    }

    /// Ends an audit event with the body.
    pub(super) fn record_stream(&mut self, audit_event: OpenStreamEvent) {
        self._audit_event = Some(audit_event);
    }
}

impl Body for HttpBody {
    type Data = Bytes;
    type Error = PayloadBroken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PayloadBroken>>> {
        if self.gone.as_mut().is_some_and(|gone| gone.as_mut().poll(cx).is_ready()) {
            (self.content, self.gone) = (BodyContent::Complete(Default::default()), None);
        }
        let chunk = match &mut self.content {
            BodyContent::Complete(parts) => parts.next().map(Ok),
            BodyContent::Result(result) => ready!(result.poll_next_unpin(cx)),
            BodyContent::Events(events) => ready!(events.poll_next(cx)),
            BodyContent::PassedThrough(chunks) => ready!(chunks.poll_next_unpin(cx)),
        };
        Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.len() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BodyContent::Complete(parts) => {
                SizeHint::with_exact(parts.as_slice().iter().map(|part| part.len() as u64).sum())
            }
            BodyContent::Result(_) | BodyContent::Events(_) | BodyContent::PassedThrough(_) => {
                SizeHint::default()
            }
        }
    }
}

impl EventStream {
    /// Returns the next chunk, or a comment after a silence between two events.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, PayloadBroken>>> {
        let chunk = match self.chunks.poll_next_unpin(cx) {
            Poll::Pending if self.is_between_events => {
                ready!(pin!(promptly(self.keep_alive.tick())).poll(cx));
                Some(Ok(Bytes::from_static(KEEP_ALIVE)))
            }
            chunk => ready!(chunk),
        };
        self.is_between_events = matches!(&chunk, Some(Ok(chunk)) if chunk.ends_with(MESSAGE_TAIL));
        if self.is_between_events {
            self.keep_alive.reset();
        }
        Poll::Ready(chunk)
    }
}

// === Making responses ===

/// Creates a response with an empty body.
pub(super) fn empty(status: StatusCode) -> HttpResponse {
    let mut response = Response::new(HttpBody::complete(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Creates a response with a public document.
pub(super) fn document(text: Bytes) -> HttpResponse {
    let response = Response::new(HttpBody::complete(text));
    with_header(response, CONTENT_TYPE, HeaderValue::from_static("application/json"))
}

/// Creates a JSON response.
pub(super) fn json(rpc_response: ClientResponse) -> HttpResponse {
    let mut response = Response::new(match rpc_response.text {
        ResponseBody::Whole(text) => HttpBody::complete(text),
        ResponseBody::Parts(parts) => HttpBody::new(BodyContent::Complete(parts.into_iter())),
        ResponseBody::Arriving(result) => HttpBody::new(BodyContent::Result(result)),
    });
    *response.status_mut() = rpc_response.status;
    if let Some(failure) = rpc_response.failure {
        response.extensions_mut().insert(failure);
    }
    let response =
        with_header(response, CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match rpc_response.retry_after {
        Some(time) => {
            // In whole seconds, rounded up.
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            with_header(response, RETRY_AFTER, HeaderValue::from(seconds))
        }
        None => response,
    }
}

/// Creates a response with an event stream. A comment breaks each silence of this length.
pub(super) fn events(
    keep_alive: Duration,
    chunks: impl Stream<Item = Result<Bytes, PayloadBroken>> + Send + 'static,
) -> HttpResponse {
    let mut keep_alive = interval_at(Instant::now() + keep_alive, keep_alive);
    keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let events = EventStream { chunks: chunks.boxed(), is_between_events: true, keep_alive };
    with_stream_headers(Response::new(HttpBody::new(BodyContent::Events(events.into()))))
}

/// Turns a JSON response into an event stream with one event, for a client that accepts nothing
/// else. The status stays; any other response is returned as it is.
pub(super) fn as_events(response: HttpResponse) -> HttpResponse {
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|it| it == "application/json");
    if !is_json {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    let one = |bytes| stream::once(future::ready(Ok(Bytes::from_static(bytes))));
    let chunks = one(MESSAGE_HEAD).chain(body.into_data_stream()).chain(one(MESSAGE_TAIL));
    with_stream_headers(Response::from_parts(
        parts,
        HttpBody::new(BodyContent::PassedThrough(chunks.boxed())),
    ))
}

fn with_stream_headers(response: HttpResponse) -> HttpResponse {
    let response =
        with_header(response, CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    let response = with_header(response, CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Spec 2026-07-28, Streamable HTTP: this header asks proxies not to buffer events.
    with_header(
        response,
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    )
}

/// Creates a response with the body of another one.
pub(super) fn pass_through(
    chunks: impl Stream<Item = Result<Bytes, PayloadBroken>> + Send + 'static,
) -> HttpResponse {
    Response::new(HttpBody::new(BodyContent::PassedThrough(chunks.boxed())))
}

/// Responds to a call: as JSON if the response is ready before any other message and within the
/// interval of the comments, else as an event stream. A client that accepts JSON only gets JSON.
///
/// Nothing is sent before one of these, so that an HTTP error status is possible until then. Later
/// an error is an event under status 200.
pub(super) async fn respond(
    call: ResponseFuture,
    forms: AcceptedForms,
    keep_alive: Duration,
) -> HttpResponse {
    if forms == AcceptedForms::Json {
        return call.response.await.map_or_else(|| empty(StatusCode::ACCEPTED), json);
    }
    let (ready, response) = (VecDeque::new(), stream::empty().boxed());
    let mut call_events = CallEvents { ready, open: Some(call), response };
    match timeout(keep_alive, call_events.advance()).await {
        Ok(Some(done)) if done.status != StatusCode::OK || call_events.ready.is_empty() => {
            return json(done);
        }
        Ok(Some(done)) => call_events.response = event(done),
        // Cancelled by its client: a stream without a response (spec, cancellation: "not send a
        // response for the cancelled request").
        Ok(None) if call_events.open.is_none() => return events(keep_alive, stream::empty()),
        Ok(None) => {}
        // A proxy closes a connection that is silent for too long.
        Err(_) => call_events.ready.push_back(Bytes::from_static(KEEP_ALIVE)),
    }
    let chunks = stream::unfold(call_events, |mut call_events| async {
        let chunk = call_events.next().await?;
        Some((chunk, call_events))
    });
    events(keep_alive, chunks)
}

/// Events of one call: its messages, then its response.
struct CallEvents {
    ready: VecDeque<Bytes>,
    /// `None` once the response is ready, or the call cancelled.
    open: Option<ResponseFuture>,
    /// Chunks of the response, once it is ready.
    response: BoxStream<'static, Result<Bytes, PayloadBroken>>,
}

impl CallEvents {
    async fn next(&mut self) -> Option<Result<Bytes, PayloadBroken>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(Ok(bytes));
            }
            if self.open.is_none() {
                return self.response.next().await;
            }
            if let Some(done) = self.advance().await {
                self.response = event(done);
            }
        }
    }

    /// Waits for the next message of the open call, or for its response, which is returned.
    /// Cancel-safe.
    async fn advance(&mut self) -> Option<ClientResponse> {
        let ResponseFuture { response, messages } = self.open.as_mut()?;
        tokio::select! {
            biased;
            done = response => {
                let messages = self.open.take().map(|call| call.messages).unwrap_or_default();
                let rest = messages.rest(done.is_some());
                self.ready.extend(rest.map(|message| write_message(&message)));
                done
            }
            message = messages.next() => {
                self.ready.push_back(write_message(&message));
                None
            }
        }
    }
}

/// Formats a response as an event.
fn event(rpc_response: ClientResponse) -> BoxStream<'static, Result<Bytes, PayloadBroken>> {
    let one = |bytes| stream::once(future::ready(Ok(bytes)));
    let text = match rpc_response.text {
        ResponseBody::Whole(text) if text.len() <= SMALL_BYTES => {
            return one(write_message(&text)).boxed();
        }
        // Large texts are not copied, so that they are counted in the memory budget once.
        ResponseBody::Whole(text) => one(text).boxed(),
        ResponseBody::Parts(parts) => stream::iter(parts.map(Ok)).boxed(),
        ResponseBody::Arriving(result) => result.boxed(),
    };
    let tail = one(Bytes::from_static(MESSAGE_TAIL));
    one(Bytes::from_static(MESSAGE_HEAD)).chain(text).chain(tail).boxed()
}

/// Adds `Connection: close`: the rest of the input must not be read.
pub(super) fn with_connection_close(response: HttpResponse) -> HttpResponse {
    with_header(response, CONNECTION, HeaderValue::from_static("close"))
}

pub(super) fn with_header(
    mut response: HttpResponse,
    name: HeaderName,
    value: HeaderValue,
) -> HttpResponse {
    response.headers_mut().insert(name, value);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use weir_mcp::call;
    use weir_mcp::jsonrpc::Id;

    fn arriving(pieces: Vec<Result<&'static str, PayloadBroken>>) -> ClientResponse {
        let pieces = pieces.into_iter().map(|piece| piece.map(Bytes::from));
        ClientResponse::passed_through(
            &Id::from(1),
            call::Payload::Streaming(stream::iter(pieces).boxed()),
        )
    }

    #[tokio::test]
    async fn a_result_that_arrives_is_one_answer() {
        let response = json(arriving(vec![Ok("{\"a\":"), Ok("1}")]));
        assert_eq!(response.body().size_hint().exact(), None);
        let body = response.into_body().collect().await.expect("whole");
        assert_eq!(body.to_bytes(), r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#);
    }

    #[tokio::test]
    async fn a_list_goes_out_in_parts_of_which_the_large_one_is_not_copied() {
        let items = Bytes::from(format!("[\"{}\"]", "x".repeat(SMALL_BYTES)));
        let rpc_response = || {
            let mut result = weir_base::json::Object::new();
            result.set("prompts", items.clone());
            result.set("nextCursor", "\"c\"");
            ClientResponse::list(&Id::from(1), &result)
        };
        let text = rpc_response().text.into_whole().expect("whole");
        assert!(text.ends_with(b"\"],\"nextCursor\":\"c\"}}"), "{text:?}");
        let response = json(rpc_response());
        assert_eq!(response.body().size_hint().exact(), Some(text.len() as u64));
        let (mut body, mut parts) = (response.into_body(), Vec::new());
        while let Some(part) = body.frame().await {
            parts.push(part.expect("whole").into_data().expect("data"));
        }
        assert!(body.is_end_stream() && parts.iter().any(|part| part.as_ptr() == items.as_ptr()));
        assert_eq!(parts.concat(), text);
        let pieces: Vec<_> = event(rpc_response()).collect().await;
        let event: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.expect("whole")).collect();
        assert_eq!(event, write_message(&text));
    }

    #[tokio::test]
    async fn a_result_that_breaks_off_breaks_the_connection() {
        let response = json(arriving(vec![Ok("{\"a\":"), Err(PayloadBroken("gone".into()))]));
        assert!(response.into_body().collect().await.is_err());
    }

    #[tokio::test]
    async fn an_event_holds_a_result_that_arrives() {
        let pieces: Vec<_> = event(arriving(vec![Ok("{}")])).collect().await;
        let text: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.expect("whole")).collect();
        assert_eq!(text, write_message(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
    }

    #[test]
    fn who_has_to_wait_is_told_in_whole_seconds() {
        let mut rpc_response = arriving(Vec::new());
        rpc_response.retry_after = Some(Duration::from_millis(1_001));
        assert_eq!(json(rpc_response).headers()[RETRY_AFTER], "2");
    }
}
