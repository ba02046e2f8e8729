//! The HTTP wire: one message a request, answered by a JSON body or an event stream.
//!
//! Promises: a request is written at most once. Dropping an exchange closes its response stream at
//! once, and sends a cancellation where the dialect wants one. An event stream that ends after an
//! event with an id, but without the answer, is taken up again where the dialect wants that; taking a
//! stream up is not sending the request again.
//!
//! Knows nothing of: protocol eras and sessions; the headers that differ come with each request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;

use crate::mcp::call::{Body, Outcome};
use crate::sse::Event;
use crate::upstream::message::{Answer, Cancel, Failure, Outgoing, Sent, cancelled};
use crate::upstream::transport::dispatcher::{Claim, Ear, Heard};
use crate::upstream::transport::http_client::{Courier, refusal};
use crate::upstream::transport::json_body::{self, Read};
use crate::upstream::transport::sse_body::{Events, Media, Oversize, media_type};

/// When a lost stream is taken up again where the server does not say; and never sooner than this.
const RESUME_AFTER: Duration = Duration::from_secs(1);
const RESUME_AT_LEAST: Duration = Duration::from_millis(50);
/// How many times in a row taking a stream up may fail.
const RESUME_TRIES: u32 = 3;

/// A server behind a URL and the requests that are open on it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Wire {
    courier: Courier,
    ear: Arc<Ear>,
}

impl Wire {
    pub(crate) fn new(courier: Courier, ear: Arc<Ear>) -> Self {
        Self { courier, ear }
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn exchange(&self, mut request: Outgoing) -> Result<Answer, Failure> {
        let closed = || Failure::Unsent("the connection is closing".into());
        let claim = self.ear.enter(&request).ok_or_else(closed)?;
        let message = request.write(claim.id());
        let mut open = Open { wire: self, claim, headers: None, sent: request.sent.clone() };
        if request.cancel == Cancel::Notify {
            open.headers = Some(request.headers.clone());
        }
        let answer = self.ask(open.claim.id(), &request, message).await;
        open.headers = None;
        answer
    }

    async fn ask(&self, id: u64, request: &Outgoing, message: Bytes) -> Result<Answer, Failure> {
        let response = self.courier.post(message, &request.headers, &request.sent).await?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            return Err(Box::pin(refusal(&self.ear, id, &head, body)).await);
        }
        let outcome = match media_type(&head.headers) {
            Media::Json => {
                let (limit, budget) = (self.courier.max_message(), self.courier.budget());
                let (stream, unless) = (request.stream, request.unless);
                match json_body::read(body, id, limit, budget, stream, unless).await? {
                    Read::Arriving(pieces) => Outcome::Result(Body::Arriving(pieces)),
                    Read::Whole(text) => {
                        let heard = self.ear.hear(text, Some(id));
                        let heard = heard.map_err(|junk| Failure::Protocol(junk.to_string()))?;
                        let missing = || Failure::Protocol("it answered something else".into());
                        self.answer_in(heard, id, &request.headers).ok_or_else(missing)??
                    }
                }
            }
            Media::Events => {
                let events = self.courier.events(body, Oversize::Fails);
                Box::pin(self.follow(id, request, events)).await?
            }
            Media::None => {
                return Err(Failure::Protocol(format!("HTTP {} without an answer", head.status)));
            }
            Media::Other(name) => {
                return Err(Failure::Protocol(format!("it answered with content type {name}")));
            }
        };
        Ok(Answer { outcome, headers: head.headers })
    }

    /// Reads events until the answer to request `id` comes, over several responses if need be.
    async fn follow(
        &self,
        id: u64,
        request: &Outgoing,
        mut events: Events,
    ) -> Result<Outcome, Failure> {
        let mut failures = 0;
        let mut last_id: Option<String> = None;
        loop {
            let broke = loop {
                match self.next(&mut events, Some(id)).await {
                    Ok(Some(heard)) => {
                        failures = 0;
                        if let Some(outcome) = self.answer_in(heard, id, &request.headers) {
                            events.drain();
                            return outcome;
                        }
                    }
                    Ok(None) => break "the event stream ended without the answer".to_owned(),
                    Err(Failure::Broke(reason)) => break reason,
                    Err(failure) => return Err(failure),
                }
            };
            last_id = events.last_id().or(last_id);
            let Some(from) = last_id.as_deref().filter(|_| request.resume) else {
                return Err(Failure::Broke(broke));
            };
            let mut pause = events.retry().unwrap_or(RESUME_AFTER).max(RESUME_AT_LEAST);
            events = loop {
                tokio::time::sleep(pause).await;
                match self.listen(&request.headers, Some(from)).await {
                    Ok(events) => break events,
                    Err(Failure::Unsent(_) | Failure::Broke(_)) if failures < RESUME_TRIES => {
                        failures += 1;
                        pause = pause.max(RESUME_AFTER);
                    }
                    Err(_) => return Err(Failure::Broke(broke)),
                }
            };
        }
    }

    /// Opens the stream that a server speaks on by itself, or takes up one that was lost.
    pub(crate) async fn listen(
        &self,
        headers: &HeaderMap,
        last_id: Option<&str>,
    ) -> Result<Events, Failure> {
        self.courier.listen(headers, last_id, Oversize::Fails).await
    }

    /// Hears the next event of a stream: that of request `on`, or one that the server speaks on by itself. `None` at the
    /// end of the stream. An event that is no message holds nothing; too many of them are an error. Cancel-safe.
    pub(crate) async fn next(
        &self,
        events: &mut Events,
        on: Option<u64>,
    ) -> Result<Option<Heard>, Failure> {
        let Some(Event { data, .. }) =
            events.next().await.inspect_err(|failure| self.warn(failure))?
        else {
            return Ok(None);
        };
        // An empty one only carries an id.
        let counted = if data.iter().all(u8::is_ascii_whitespace) {
            events.limits.padding(1).map(|()| Heard::default())
        } else {
            match self.ear.hear(data, on) {
                Ok(heard) => events.limits.message(&heard.useless).map(|()| heard),
                Err(junk) => {
                    tracing::debug!(upstream = %self.ear.name, %junk, "an event is no message");
                    events.limits.junk().map(|()| Heard::default())
                }
            }
        };
        counted.map(Some).map_err(Failure::from).inspect_err(|failure| self.warn(failure))
    }

    /// Logs that a stream is closed because of what the server sends on it.
    fn warn(&self, failure: &Failure) {
        if let Failure::Protocol(reason) = failure {
            tracing::warn!(upstream = %self.ear.name, reason, "event stream closed");
        }
    }

    /// Picks the answer to request `id`, and sends back what the server is owed.
    fn answer_in(
        &self,
        mut heard: Heard,
        id: u64,
        headers: &HeaderMap,
    ) -> Option<Result<Outcome, Failure>> {
        self.send_back(std::mem::take(&mut heard.replies), headers);
        heard.answer_to(id)
    }

    /// Sends what the server is owed for its own requests.
    pub(crate) fn send_back(&self, replies: Vec<Bytes>, headers: &HeaderMap) {
        self.courier.send_back(replies, headers);
    }

    pub(crate) async fn notify(&self, message: Bytes, headers: &HeaderMap) -> Result<(), Failure> {
        self.courier.notify(message, headers).await
    }

    /// Tells the server that its session is over, if it wants to know. Waits a moment for it.
    pub(crate) async fn delete(&self, headers: &HeaderMap) {
        self.courier.delete(headers).await;
    }
}

/// An open request. Dropping it before its end sends the cancellation that its dialect wants; its
/// response stream closes by itself.
struct Open<'a> {
    wire: &'a Wire,
    claim: Claim,
    /// The headers of the cancellation; `None` where there is nothing (any more) to be told.
    headers: Option<HeaderMap>,
    sent: Sent,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // Of what it has not seen the server need not be told.
        if let Some(headers) = self.headers.take().filter(|_| self.sent.has_begun()) {
            self.wire.courier.cancel(cancelled(self.claim.id()), &headers);
        }
    }
}
