//! Responses of other replicas, passed through unread; and requests whose replica is lost.
//!
//! Invariants: the replica that has a request records it. If that replica is lost before the end of
//! its response, the one that has forwarded the request records it, as one that may have been
//! executed. The body of such a response ends with an error; an event stream that is between two
//! events ends with an error response instead.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{Response, StatusCode};
use memchr::{memchr, memmem};

use super::{id_of, remove_connection_headers};
use crate::batch;
use crate::http::request::HttpRequest;
use crate::http::response_body::{self, HttpResponse};
use crate::response::{ClientResponse, finish_event, results};
use weir_base::text::sse::write_message;
use weir_fleet::{Replica, ReplicaBody};
use weir_mcp::call::{ItemRequest, PayloadBroken};
use weir_mcp::jsonrpc::{self, Id, Message};
use weir_mcp::revision::Revision;
use weir_record::audit::AuditEvent;

/// Request that another replica has.
pub(super) struct SentRequest {
    audit_event: AuditEvent,
    /// Text of the request; empty if it has none.
    text: Bytes,
    replica: Arc<str>,
}

impl SentRequest {
    pub(super) fn new(request: &HttpRequest, replica: &Replica) -> Self {
        let (audit_event, text) = (request.audit_event.clone(), request.text.clone());
        Self { audit_event, text, replica: (*replica.record.name).into() }
    }

    /// Records the request as one that may have been executed, and returns its error response.
    pub(super) fn lost(&self) -> ClientResponse {
        let event = &self.audit_event;
        let requests = self.requests();
        if let [request] = &*requests {
            self.describe(event, request);
            return finish_event(event, refused(Some(&request.id)));
        }
        for request in &requests {
            let event = event.begin_next();
            self.describe(&event, request);
            finish_event(&event, refused(Some(&request.id)));
        }
        if !requests.is_empty() {
            event.discard();
        }
        refused(None)
    }

    /// Returns the requests in the text: those of a batch, or one.
    fn requests(&self) -> Vec<jsonrpc::Request> {
        let messages = match jsonrpc::is_batch(&self.text) {
            true => batch::read(Revision::V2025_03_26, &self.text).unwrap_or_default(),
            false => vec![Message::parse(self.text.clone())],
        };
        let requests = messages.into_iter().filter_map(|message| match message {
            Ok(Message::Request(request)) => Some(request),
            _ => None,
        });
        requests.collect()
    }

    fn describe(&self, event: &AuditEvent, request: &jsonrpc::Request) {
        let jsonrpc::Request { method, params, .. } = request;
        event.defer_end(false);
        event.set_message(method, params);
        event.set_lost_at(&self.replica);
        if let Some((_, kind, name)) = ItemRequest::requested(method, params) {
            event.set_requested(kind, &name);
        }
    }
}

fn refused(id: Option<&Id>) -> ClientResponse {
    ClientResponse::refused(id, &results::lost())
}

/// Body of a response of another replica.
struct PassedThroughBody<P> {
    body: ReplicaBody,
    request: SentRequest,
    /// Whether it is an event stream with the response to a request.
    is_call_stream: bool,
    last_event: LastEvent,
    is_over: bool,
    _permit: P,
}

/// Turns the response of another replica into that for the client, unread; it ends when `end` is
/// ready.
pub(super) fn pass_through(
    response: Response<ReplicaBody>,
    request: SentRequest,
    permit: impl Send + 'static,
    end: Option<BoxFuture<'static, ()>>,
) -> HttpResponse {
    let (mut parts, body) = response.into_parts();
    let length = parts.headers.get(CONTENT_LENGTH).cloned();
    remove_connection_headers(&mut parts.headers);
    if let Some(length) = length {
        parts.headers.insert(CONTENT_LENGTH, length);
    }
    let is_stream = parts.headers.get(CONTENT_TYPE).is_some_and(|it| it == "text/event-stream");
    // The other replica records it.
    request.audit_event.defer_end(true);
    let body = PassedThroughBody {
        body,
        is_call_stream: is_stream && parts.status == StatusCode::OK && !request.text.is_empty(),
        request,
        last_event: LastEvent::default(),
        is_over: false,
        _permit: permit,
    };
    let chunks = stream::unfold(body, |mut body| async {
        let chunk = body.next().await?;
        Some((chunk, body))
    });
    let end = end.unwrap_or_else(|| future::pending().boxed());
    let mut response = response_body::pass_through(chunks.take_until(end));
    *response.status_mut() = parts.status;
    *response.headers_mut() = parts.headers;
    response
}

/// Last event of a stream, as far as it was passed through.
#[derive(Debug)]
struct LastEvent {
    /// Its beginning, at most [`MAX_BEGINNING`] bytes.
    beginning: Vec<u8>,
    has_ended: bool,
    is_line_begun: bool,
}

impl Default for LastEvent {
    fn default() -> Self {
        Self { beginning: Vec::new(), has_ended: true, is_line_begun: false }
    }
}

impl LastEvent {
    /// Takes over a piece of the stream.
    fn pass(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            if self.has_ended {
                self.beginning.clear();
            }
            let line = memchr(b'\n', piece).map_or(piece.len(), |at| at + 1);
            let (line, rest) = piece.split_at(line);
            // An empty line ends an event.
            self.has_ended = line == b"\n" && !self.is_line_begun;
            self.is_line_begun = !line.ends_with(b"\n");
            let space = MAX_BEGINNING - self.beginning.len();
            self.beginning.extend_from_slice(&line[..line.len().min(space)]);
            piece = rest;
        }
    }

    /// Returns whether an error response to the request with this id may follow: not within an
    /// event, and not after its response.
    fn takes_error(&self, id: &Id) -> bool {
        let is_response = |member: &str| {
            let beginning: [&[u8]; 3] =
                [b"{\"jsonrpc\":\"2.0\",\"id\":", id.as_bytes(), member.as_bytes()];
            let beginning = beginning.concat();
            beginning.len() > MAX_BEGINNING || memmem::find(&self.beginning, &beginning).is_some()
        };
        self.has_ended && ![",\"result\":", ",\"error\":"].into_iter().any(is_response)
    }
}

impl<P> PassedThroughBody<P> {
    async fn next(&mut self) -> Option<Result<Bytes, PayloadBroken>> {
        if self.is_over {
            return None;
        }
        match self.body.chunk().await {
            Some(Ok(chunk)) => {
                if self.is_call_stream {
                    self.last_event.pass(&chunk);
                }
                Some(Ok(chunk))
            }
            Some(Err(error)) => {
                self.is_over = true;
                let error_response = self.request.lost().text.into_whole();
                let id = id_of(&self.request.text).filter(|_| self.is_call_stream);
                match id.filter(|id| self.last_event.takes_error(id)).and(error_response) {
                    Some(text) => Some(Ok(write_message(&text))),
                    None => Some(Err(PayloadBroken(format!("the replica that runs it: {error}")))),
                }
            }
            None => {
                self.is_over = true;
                None
            }
        }
    }
}

impl<P> Drop for PassedThroughBody<P> {
    fn drop(&mut self) {
        // Without effect if it was recorded here.
        self.request.audit_event.discard();
    }
}

/// Bytes of an event by which a response is recognized. Only ids of clients are long.
const MAX_BEGINNING: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::text::sse::KEEP_ALIVE;

    #[test]
    fn a_stream_has_room_for_an_error_between_two_events_only_and_before_the_response() {
        let id = Id::from(7);
        let question = write_message(br#"{"jsonrpc":"2.0","id":"7","method":"m","params":{}}"#);
        let response = write_message(&jsonrpc::write_result(&id, b"{}"));
        let text = [&*question, KEEP_ALIVE, &*question, &*response].concat();
        let (first, second) = (question.len(), question.len() + KEEP_ALIVE.len());
        let ends = [0, first, second, second + first];
        for size in 1..=text.len() {
            let (mut last_event, mut passed) = (LastEvent::default(), 0);
            for piece in text.chunks(size) {
                let takes_error = last_event.takes_error(&id);
                assert_eq!(takes_error, ends.contains(&passed), "{passed} of {size}");
                last_event.pass(piece);
                passed += piece.len();
            }
            assert!(last_event.has_ended && !last_event.takes_error(&id));
        }
        let error = ClientResponse::refused(Some(&id), &results::lost()).text.into_whole();
        let mut last_event = LastEvent::default();
        last_event.pass(&write_message(&error.expect("whole")));
        assert!(!last_event.takes_error(&id));
    }
}
