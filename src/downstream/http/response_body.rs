//! HTTP responses: one JSON text, an event stream, or an empty body.
//!
//! If an upstream breaks in the middle of a text, the body ends with an error and hyper closes the
//! connection: HTTP/1.1 has no other way to signal an incomplete body.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use tokio::time::{Interval, MissedTickBehavior};

use crate::audit::OpenStreamEvent;
use crate::downstream::http::connection::timed_io::RequestInProgress;
use crate::downstream::response::results;
use crate::downstream::response::{ClientResponse, ErrorResponse, ResponseBody, ResponseFuture};
use crate::fairness::promptly;
use crate::jsonrpc::code;
use crate::mcp::call::PayloadBroken;
use crate::memory_budget::SMALL_BYTES;
use crate::sse::{KEEP_ALIVE, MESSAGE_HEAD, MESSAGE_TAIL, write_message};

/// Body of an HTTP response.
pub(super) struct HttpBody {
    content: BodyContent,
    /// Keeps the connection in the busy phase until the last byte is handed over.
    in_progress: Option<RequestInProgress>,
    /// Audit event of a stream that stays open.
    record: Option<OpenStreamEvent>,
}

enum BodyContent {
    Whole(Option<Bytes>),
    Parts(VecDeque<Bytes>),
    Arriving(BoxStream<'static, Result<Bytes, PayloadBroken>>),
}

/// HTTP response.
pub(super) type HttpResponse = Response<HttpBody>;

impl HttpBody {
    fn whole(text: impl Into<Bytes>) -> Self {
        Self { content: BodyContent::Whole(Some(text.into())), in_progress: None, record: None }
    }

    fn arriving(pieces: BoxStream<'static, Result<Bytes, PayloadBroken>>) -> Self {
        Self { content: BodyContent::Arriving(pieces), in_progress: None, record: None }
    }

    /// Keeps the connection in the busy phase until the body has ended.
    pub(super) fn keep_in_progress(&mut self, in_progress: RequestInProgress) {
        self.in_progress = Some(in_progress);
    }

    /// Length in bytes, if it is known.
    pub(super) fn len(&self) -> Option<u64> {
        self.size_hint().exact()
    }

    /// Ends an audit event with the body.
    pub(super) fn record_stream(&mut self, record: OpenStreamEvent) {
        self.record = Some(record);
    }

    /// Ends the body when `gone` is ready: the client has disconnected.
    pub(super) fn end_when(&mut self, gone: BoxFuture<'static, ()>) {
        if let BodyContent::Arriving(pieces) = &mut self.content {
            let rest = std::mem::replace(pieces, stream::empty().boxed());
            *pieces = rest.take_until(gone).boxed();
        }
    }
}

impl Body for HttpBody {
    type Data = Bytes;
    type Error = PayloadBroken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PayloadBroken>>> {
        let piece = match &mut self.content {
            BodyContent::Whole(text) => text.take().map(Ok),
            BodyContent::Parts(parts) => parts.pop_front().map(Ok),
            BodyContent::Arriving(pieces) => std::task::ready!(pieces.as_mut().poll_next(cx)),
        };
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            BodyContent::Whole(text) => text.as_ref().is_none_or(Bytes::is_empty),
            BodyContent::Parts(parts) => parts.is_empty(),
            BodyContent::Arriving(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BodyContent::Whole(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64)
            }
            BodyContent::Parts(parts) => {
                SizeHint::with_exact(parts.iter().map(|part| part.len() as u64).sum())
            }
            BodyContent::Arriving(_) => SizeHint::default(),
        }
    }
}

// === Making responses ===

/// Creates a response with an empty body.
pub(super) fn empty(status: StatusCode) -> HttpResponse {
    let mut response = Response::new(HttpBody::whole(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Creates an error response of the HTTP layer, before the message was parsed.
pub(super) fn refusal(status: StatusCode, text: &str) -> HttpResponse {
    json(ClientResponse::refused(None, &ErrorResponse::new(status, code::INVALID_REQUEST, text)))
}

/// Creates a response with a public document.
pub(super) fn document(text: Bytes) -> HttpResponse {
    let response = Response::new(HttpBody::whole(text));
    with_header(response, CONTENT_TYPE, HeaderValue::from_static("application/json"))
}

/// Creates an error response for a client that exceeds a limit.
pub(super) fn too_busy(retry_after: Duration) -> HttpResponse {
    json(ClientResponse::refused(None, &results::too_busy(retry_after)))
}

/// Creates an error response with a retry delay.
pub(super) fn overloaded(text: &str, retry_after: Duration) -> HttpResponse {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let refused = ErrorResponse::new(status, code::INVALID_REQUEST, text);
    json(ClientResponse::refused(
        None,
        &ErrorResponse { retry_after: Some(retry_after), ..refused },
    ))
}

/// Creates a 405 response with the accepted methods.
pub(super) fn wrong_method(allowed: &str) -> HttpResponse {
    let response = refusal(StatusCode::METHOD_NOT_ALLOWED, "this method is not served here");
    with_header(response, ALLOW, HeaderValue::from_str(allowed).expect("methods are plain words"))
}

/// Creates a JSON response.
pub(super) fn json(rpc_response: ClientResponse) -> HttpResponse {
    let body = match rpc_response.text {
        ResponseBody::Whole(text) => HttpBody::whole(text),
        ResponseBody::Parts(parts) => {
            HttpBody { content: BodyContent::Parts(parts.into()), in_progress: None, record: None }
        }
        arriving @ ResponseBody::Arriving(..) => HttpBody::arriving(arriving.into_pieces()),
    };
    let mut response = Response::new(body);
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

/// Creates a response with an event stream.
pub(super) fn events(
    events: impl Stream<Item = Result<Bytes, PayloadBroken>> + Send + 'static,
) -> HttpResponse {
    let response = Response::new(HttpBody::arriving(events.boxed()));
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

/// Responds to a call: as JSON if the response is ready before any other message, else as an event
/// stream.
///
/// Nothing is sent before either is there, so that an HTTP error status is still possible.
pub(super) async fn respond(call: ResponseFuture, keep_alive: Duration) -> HttpResponse {
    let ResponseFuture { mut response, mut messages } = call;
    let mut events_of_call = CallEvents {
        ready: VecDeque::new(),
        open: None,
        pieces: stream::empty().boxed(),
        keep_alive: keep_alive_timer(keep_alive),
    };
    tokio::select! {
        biased;
        done = &mut response => {
            let Some(done) = done else { return cancelled() };
            let rest = messages.rest(true).map(|message| write_message(&message));
            events_of_call.ready.extend(rest);
            if done.status != StatusCode::OK || events_of_call.ready.is_empty() {
                return json(done);
            }
            events_of_call.pieces = event(done);
        }
        message = messages.next() => {
            events_of_call.ready.push_back(write_message(&message));
            events_of_call.open = Some(ResponseFuture { response, messages });
        }
    }
    events(stream::unfold(events_of_call, |mut events| async {
        let piece = events.next().await?;
        Some((piece, events))
    }))
}

/// Creates the response to a request that its client has cancelled: a stream without a response
/// (spec, cancellation: "not send a response for the cancelled request").
fn cancelled() -> HttpResponse {
    events(stream::empty())
}

/// Events of one call: its messages, then its response, with comments during a silence.
struct CallEvents {
    ready: VecDeque<Bytes>,
    /// `None` once the response is ready.
    open: Option<ResponseFuture>,
    /// Pieces of the response, once it is ready.
    pieces: BoxStream<'static, Result<Bytes, PayloadBroken>>,
    keep_alive: Interval,
}

impl CallEvents {
    async fn next(&mut self) -> Option<Result<Bytes, PayloadBroken>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(Ok(bytes));
            }
            let Some(ResponseFuture { response, messages }) = &mut self.open else {
                return self.pieces.next().await;
            };
            tokio::select! {
                biased;
                done = response => {
                    let messages = self.open.take().map(|call| call.messages).unwrap_or_default();
                    let rest = messages.rest(done.is_some());
                    self.ready.extend(rest.map(|message| write_message(&message)));
                    if let Some(done) = done {
                        self.pieces = event(done);
                    }
                }
                message = messages.next() => self.ready.push_back(write_message(&message)),
                _ = promptly(self.keep_alive.tick()) => {
                    self.ready.push_back(Bytes::from_static(KEEP_ALIVE));
                }
            }
            self.keep_alive.reset();
        }
    }
}

/// Formats a response as an event.
fn event(rpc_response: ClientResponse) -> BoxStream<'static, Result<Bytes, PayloadBroken>> {
    let piece = |bytes| stream::once(std::future::ready(Ok(bytes)));
    match rpc_response.text {
        ResponseBody::Whole(text) if text.len() <= SMALL_BYTES => {
            piece(write_message(&text)).boxed()
        }
        // Large texts are not copied, so that they are counted in the memory budget once.
        text => piece(Bytes::from_static(MESSAGE_HEAD))
            .chain(text.into_pieces())
            .chain(piece(Bytes::from_static(MESSAGE_TAIL)))
            .boxed(),
    }
}

/// Creates a timer that ticks after this time of silence.
pub(super) fn keep_alive_timer(time: Duration) -> Interval {
    let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + time, time);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
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
    use crate::jsonrpc::Id;
    use crate::mcp::call;
    use http_body_util::BodyExt;

    fn arriving(pieces: Vec<Result<&'static str, PayloadBroken>>) -> ClientResponse {
        let pieces = pieces.into_iter().map(|piece| piece.map(Bytes::from));
        ClientResponse::forwarded(
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
            let mut result = crate::json::Object::new();
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
