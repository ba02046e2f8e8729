//! What goes back over HTTP: one JSON text, a stream of events, or nothing.
//!
//! A broken upstream in the middle of a text ends it with an error, at which hyper cuts the connection:
//! the only honest way to say that what was sent is not all.
//!
//! Knows nothing of: eras, sessions, and what an event says.

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

use crate::downstream::http::connection::timed_io::Busy;
use crate::downstream::response::audit_events::Streaming;
use crate::downstream::response::results;
use crate::downstream::response::{Answer, Call, Refused, Text};
use crate::fairness::promptly;
use crate::jsonrpc::code;
use crate::mcp::call::Broken;
use crate::memory_budget::SMALL_BYTES;
use crate::sse::{KEEP_ALIVE, MESSAGE_HEAD, MESSAGE_TAIL, write_message};

/// A response's body.
pub(super) struct ReplyBody {
    content: Content,
    /// The connection is busy until the last byte is handed over.
    busy: Option<Busy>,
    /// Of a stream that stays open.
    record: Option<Streaming>,
}

enum Content {
    Whole(Option<Bytes>),
    Parts(VecDeque<Bytes>),
    Arriving(BoxStream<'static, Result<Bytes, Broken>>),
}

/// A response on its way.
pub(super) type Reply = Response<ReplyBody>;

impl ReplyBody {
    fn whole(text: impl Into<Bytes>) -> Self {
        Self { content: Content::Whole(Some(text.into())), busy: None, record: None }
    }

    fn arriving(pieces: BoxStream<'static, Result<Bytes, Broken>>) -> Self {
        Self { content: Content::Arriving(pieces), busy: None, record: None }
    }

    /// Keeps the connection busy until the body has ended.
    pub(super) fn hold(&mut self, busy: Busy) {
        self.busy = Some(busy);
    }

    /// How many bytes there will be, if that is known.
    pub(super) fn len(&self) -> Option<u64> {
        self.size_hint().exact()
    }

    /// Ends a record with the body.
    pub(super) fn record(&mut self, record: Streaming) {
        self.record = Some(record);
    }

    /// Ends the body when `over` is: its client is gone.
    pub(super) fn until(&mut self, over: BoxFuture<'static, ()>) {
        if let Content::Arriving(pieces) = &mut self.content {
            let rest = std::mem::replace(pieces, stream::empty().boxed());
            *pieces = rest.take_until(over).boxed();
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let piece = match &mut self.content {
            Content::Whole(text) => text.take().map(Ok),
            Content::Parts(parts) => parts.pop_front().map(Ok),
            Content::Arriving(pieces) => std::task::ready!(pieces.as_mut().poll_next(cx)),
        };
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(text) => text.as_ref().is_none_or(Bytes::is_empty),
            Content::Parts(parts) => parts.is_empty(),
            Content::Arriving(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64)
            }
            Content::Parts(parts) => {
                SizeHint::with_exact(parts.iter().map(|part| part.len() as u64).sum())
            }
            Content::Arriving(_) => SizeHint::default(),
        }
    }
}

// === Making responses ===

/// No more than a status.
pub(super) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(ReplyBody::whole(Bytes::new()));
    *reply.status_mut() = status;
    reply
}

/// A refusal of the wire's own, before anybody has read what is asked.
pub(super) fn refusal(status: StatusCode, text: &str) -> Reply {
    json(Answer::refused(None, &Refused::new(status, code::INVALID_REQUEST, text)))
}

/// A document that is the same for everybody.
pub(super) fn document(text: Bytes) -> Reply {
    let reply = Response::new(ReplyBody::whole(text));
    with_header(reply, CONTENT_TYPE, HeaderValue::from_static("application/json"))
}

/// A refusal of who asks too much at this moment.
pub(super) fn too_busy(retry_after: Duration) -> Reply {
    json(Answer::refused(None, &results::too_busy(retry_after)))
}

/// A refusal that may be different after a while.
pub(super) fn later(text: &str, retry_after: Duration) -> Reply {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let refused = Refused::new(status, code::INVALID_REQUEST, text);
    json(Answer::refused(None, &Refused { retry_after: Some(retry_after), ..refused }))
}

/// A refusal of a method, with those that are there.
pub(super) fn wrong_method(allowed: &str) -> Reply {
    let reply = refusal(StatusCode::METHOD_NOT_ALLOWED, "this method is not served here");
    with_header(reply, ALLOW, HeaderValue::from_str(allowed).expect("methods are plain words"))
}

/// One answer as JSON.
pub(super) fn json(answer: Answer) -> Reply {
    let body = match answer.text {
        Text::Whole(text) => ReplyBody::whole(text),
        Text::Parts(parts) => {
            ReplyBody { content: Content::Parts(parts.into()), busy: None, record: None }
        }
        arriving @ Text::Arriving(..) => ReplyBody::arriving(arriving.into_pieces()),
    };
    let mut reply = Response::new(body);
    *reply.status_mut() = answer.status;
    if let Some(failure) = answer.failure {
        reply.extensions_mut().insert(failure);
    }
    let reply = with_header(reply, CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match answer.retry_after {
        Some(time) => {
            // In whole seconds, and not too early.
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            with_header(reply, RETRY_AFTER, HeaderValue::from(seconds))
        }
        None => reply,
    }
}

/// A stream of events.
pub(super) fn events(events: impl Stream<Item = Result<Bytes, Broken>> + Send + 'static) -> Reply {
    let reply = Response::new(ReplyBody::arriving(events.boxed()));
    let reply = with_header(reply, CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    let reply = with_header(reply, CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Spec 2026-07-28, Streamable HTTP: proxies are told not to hold events back.
    with_header(reply, HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))
}

/// Answers a call: as JSON if its answer comes before anything beside it, else as events.
///
/// Nothing is sent before one of them is there, so that an answer that is an HTTP error can be one.
pub(super) async fn answer(call: Call, keep_alive: Duration) -> Reply {
    let Call { mut answer, mut beside } = call;
    let mut events_of_call = CallEvents {
        ready: VecDeque::new(),
        open: None,
        pieces: stream::empty().boxed(),
        keep_alive: silence(keep_alive),
    };
    tokio::select! {
        biased;
        done = &mut answer => {
            let Some(done) = done else { return nothing() };
            let rest = beside.rest(true).map(|message| write_message(&message));
            events_of_call.ready.extend(rest);
            if done.status != StatusCode::OK || events_of_call.ready.is_empty() {
                return json(done);
            }
            events_of_call.pieces = event(done);
        }
        message = beside.next() => {
            events_of_call.ready.push_back(write_message(&message));
            events_of_call.open = Some(Call { answer, beside });
        }
    }
    events(stream::unfold(events_of_call, |mut events| async {
        let piece = events.next().await?;
        Some((piece, events))
    }))
}

/// The response to a request that its client has cancelled: a stream without an answer (spec,
/// cancellation: "not send a response for the cancelled request").
fn nothing() -> Reply {
    events(stream::empty())
}

/// What goes beside the answer, then the answer, with comments in between where there is silence.
struct CallEvents {
    ready: VecDeque<Bytes>,
    /// Until its answer is there.
    open: Option<Call>,
    /// Of the answer, once it is there.
    pieces: BoxStream<'static, Result<Bytes, Broken>>,
    keep_alive: Interval,
}

impl CallEvents {
    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(Ok(bytes));
            }
            let Some(Call { answer, beside }) = &mut self.open else {
                return self.pieces.next().await;
            };
            tokio::select! {
                biased;
                done = answer => {
                    let beside = self.open.take().map(|call| call.beside).unwrap_or_default();
                    let rest = beside.rest(done.is_some());
                    self.ready.extend(rest.map(|message| write_message(&message)));
                    if let Some(done) = done {
                        self.pieces = event(done);
                    }
                }
                message = beside.next() => self.ready.push_back(write_message(&message)),
                _ = promptly(self.keep_alive.tick()) => {
                    self.ready.push_back(Bytes::from_static(KEEP_ALIVE));
                }
            }
            self.keep_alive.reset();
        }
    }
}

/// One answer as an event.
fn event(answer: Answer) -> BoxStream<'static, Result<Bytes, Broken>> {
    let piece = |bytes| stream::once(std::future::ready(Ok(bytes)));
    match answer.text {
        Text::Whole(text) if text.len() <= SMALL_BYTES => piece(write_message(&text)).boxed(),
        // Not copied: what it takes of the budget is the text's own.
        text => piece(Bytes::from_static(MESSAGE_HEAD))
            .chain(text.into_pieces())
            .chain(piece(Bytes::from_static(MESSAGE_TAIL)))
            .boxed(),
    }
}

/// Ticks when a stream has been silent for so long.
pub(super) fn silence(time: Duration) -> Interval {
    let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + time, time);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

pub(super) fn with_header(mut reply: Reply, name: HeaderName, value: HeaderValue) -> Reply {
    reply.headers_mut().insert(name, value);
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::Id;
    use crate::mcp::call;
    use http_body_util::BodyExt;

    fn arriving(pieces: Vec<Result<&'static str, Broken>>) -> Answer {
        let pieces = pieces.into_iter().map(|piece| piece.map(Bytes::from));
        Answer::passing(&Id::from(1), call::Body::Arriving(stream::iter(pieces).boxed()))
    }

    #[tokio::test]
    async fn a_result_that_arrives_is_one_answer() {
        let reply = json(arriving(vec![Ok("{\"a\":"), Ok("1}")]));
        assert_eq!(reply.body().size_hint().exact(), None);
        let body = reply.into_body().collect().await.expect("whole");
        assert_eq!(body.to_bytes(), r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#);
    }

    #[tokio::test]
    async fn a_list_goes_out_in_parts_of_which_the_large_one_is_not_copied() {
        let items = Bytes::from(format!("[\"{}\"]", "x".repeat(SMALL_BYTES)));
        let answer = || {
            let mut result = crate::json::Object::new();
            result.set("prompts", items.clone());
            result.set("nextCursor", "\"c\"");
            Answer::list(&Id::from(1), &result)
        };
        let text = answer().text.into_whole().expect("whole");
        assert!(text.ends_with(b"\"],\"nextCursor\":\"c\"}}"), "{text:?}");
        let reply = json(answer());
        assert_eq!(reply.body().size_hint().exact(), Some(text.len() as u64));
        let (mut body, mut parts) = (reply.into_body(), Vec::new());
        while let Some(part) = body.frame().await {
            parts.push(part.expect("whole").into_data().expect("data"));
        }
        assert!(body.is_end_stream() && parts.iter().any(|part| part.as_ptr() == items.as_ptr()));
        assert_eq!(parts.concat(), text);
        let pieces: Vec<_> = event(answer()).collect().await;
        let event: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.expect("whole")).collect();
        assert_eq!(event, write_message(&text));
    }

    #[tokio::test]
    async fn a_result_that_breaks_off_breaks_the_connection() {
        let reply = json(arriving(vec![Ok("{\"a\":"), Err(Broken("gone".into()))]));
        assert!(reply.into_body().collect().await.is_err());
    }

    #[tokio::test]
    async fn an_event_holds_a_result_that_arrives() {
        let pieces: Vec<_> = event(arriving(vec![Ok("{}")])).collect().await;
        let text: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.expect("whole")).collect();
        assert_eq!(text, write_message(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
    }

    #[test]
    fn who_has_to_wait_is_told_in_whole_seconds() {
        let mut answer = arriving(Vec::new());
        answer.retry_after = Some(Duration::from_millis(1_001));
        assert_eq!(json(answer).headers()[RETRY_AFTER], "2");
    }
}
