//! The wire of 2024-11-05, HTTP with SSE: one event stream brings all that the server says, and each
//! message to it is a POST of its own, to an endpoint that the stream's first event names.
//!
//! Promises: the endpoint is of the URL's own origin, and whatever it says, nothing is ever sent to
//! another server. A request is written at most once. When the stream ends, every open request ends at
//! once. The reader waits for nothing but the stream. A POST that is refused ends its own request only.
//!
//! Knows nothing of: protocol eras. `id` and `retry` mean nothing here: a stream that was lost takes
//! its session with it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Uri};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::sse::{Cut, Event};
use crate::upstream::message::{Answer, Cancel, Failure, Outgoing, Sent, cancelled};
use crate::upstream::transport::child::quote;
use crate::upstream::transport::demux::{self, Inbox, Taken};
use crate::upstream::transport::dispatcher::{Claim, Ear};
use crate::upstream::transport::http_client::{Courier, refusal};
use crate::upstream::transport::junk_limits::TooMuch;
use crate::upstream::transport::lifetime::Life;
use crate::upstream::transport::sse_body::{Events, Oversize};
use crate::upstream::transport::uri_reference::{origin, resolve, same_origin};

/// How long the first event may take: a server sends it before it has anything to do.
const ENDPOINT: Duration = Duration::from_secs(10);
/// The longest endpoint that is taken.
const MAX_ENDPOINT_BYTES: usize = 4 * 1024;

/// Why a connection whose session the server has forgotten must be opened again.
const SESSION_OVER: &str = "it no longer knows the session";

/// An open event stream and the requests that are open on it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Wire {
    shared: Arc<Shared>,
}

struct Shared {
    /// Leads to the endpoint.
    courier: Courier,
    ear: Arc<Ear>,
    /// The stream's, which its reader ends.
    life: Life,
    /// What answers to the server's own requests carry beside what was configured.
    standing: Arc<OnceLock<HeaderMap>>,
}

impl Wire {
    /// Opens the stream, waits for the endpoint and starts the task that reads on. It ends with the
    /// stream. Where the failure is [`Failure::Refused`] or [`Failure::Protocol`], the pair is not served.
    pub(crate) async fn open(courier: &Courier, ear: Arc<Ear>) -> Result<Self, Failure> {
        let mut events = courier.listen(&HeaderMap::new(), None, Oversize::IsCut).await?;
        let late =
            |_| Failure::Protocol(format!("it sent no `endpoint` event within {ENDPOINT:?}"));
        let first = timeout(ENDPOINT, events.next()).await.map_err(late)??;
        let ended =
            || Failure::Protocol("its event stream ended before the `endpoint` event".into());
        let endpoint = endpoint(courier.url(), &first.ok_or_else(ended)?)?;
        let courier = courier.towards(endpoint);

        let (ended_sender, ended) = watch::channel(None);
        let (closing, gone) = (CancellationToken::new(), CancellationToken::new());
        let standing = Arc::new(OnceLock::new());
        let reader = Reader {
            events,
            inbox: Inbox { ear: Arc::clone(&ear) },
            courier: courier.clone(),
            standing: Arc::clone(&standing),
        };
        let end = End {
            reason: "its event stream is no longer read".into(),
            ended: ended_sender,
            ear: Arc::clone(&ear),
            _gone: gone.clone().drop_guard(),
        };
        let stop = closing.clone();
        courier.tasks().spawn(async move {
            let read = stop.run_until_cancelled(reader.run()).await;
            end.because(read.unwrap_or_else(|| "it was stopped".into()));
        });
        let life = Life { ended, closing, gone, unexplained: "the connection is closing" };
        Ok(Self { shared: Arc::new(Shared { courier, ear, life, standing }) })
    }

    /// From now on, answers to the server's own requests carry these headers.
    pub(crate) fn agree(&self, headers: HeaderMap) {
        let _ = self.shared.standing.set(headers);
    }

    /// Sends a request and waits for its answer, which comes in on the stream; it may come before the
    /// response to the POST does.
    pub(crate) async fn exchange(&self, mut request: Outgoing) -> Result<Answer, Failure> {
        let unsent = || Failure::Unsent(self.shared.life.reason());
        let claim = self.shared.ear.enter(&request).ok_or_else(unsent)?;
        let id = claim.id();
        let message = request.write(id);
        let farewell = (request.cancel != Cancel::Never).then(|| request.headers.clone());
        let sent = request.sent.clone();
        let mut open = Open { wire: self, claim, farewell, sent: sent.clone() };
        let (courier, ear) = (self.shared.courier.clone(), Arc::clone(&self.shared.ear));
        let mut post =
            Box::pin(
                async move { post(&courier, &ear, id, message, request.headers, &sent).await },
            );
        let answer = tokio::select! {
            biased;
            answer = demux::answer(&mut open.claim) => {
                if answer.is_some() {
                    // It was read, so all that is missing is that the server says so.
                    self.shared.courier.finish(async { drop(post.await) });
                }
                answer
            }
            posted = &mut post => match posted {
                Ok(()) => demux::answer(&mut open.claim).await,
                Err(failure) => {
                    // Only where the connection broke may the server be at work.
                    if !matches!(failure, Failure::Broke(_)) {
                        open.farewell = None;
                    }
                    return Err(failure);
                }
            },
        };
        answer.unwrap_or_else(|| Err(Failure::Broke(self.shared.life.reason())))
    }

    pub(crate) async fn notify(&self, message: Bytes, headers: &HeaderMap) -> Result<(), Failure> {
        self.shared.courier.notify(message, headers).await
    }

    /// Sends what the server is owed for its own requests.
    pub(crate) fn send_back(&self, replies: Vec<Bytes>, headers: &HeaderMap) {
        self.shared.courier.send_back(replies, headers);
    }

    /// Waits until the stream has ended and tells why. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        self.shared.life.ended().await
    }

    /// Closes the stream and returns when that is done.
    pub(crate) async fn close(&self) {
        self.shared.life.close().await;
    }
}

/// Reads where messages go from the first event.
///
/// Spec 2024-11-05, transports: the server MUST send an `endpoint` event that holds a URI. That it is of
/// the stream's own origin is asked for here, as by every careful client: otherwise a server could have
/// our credentials sent elsewhere.
fn endpoint(url: &Uri, first: &Event) -> Result<PathAndQuery, Failure> {
    let wrong = |text: String| Failure::Protocol(text);
    if first.name != "endpoint" {
        let name = if first.name.is_empty() { "message" } else { &first.name };
        return Err(wrong(format!("its first event is `{}`, not `endpoint`", quote(name, 40))));
    }
    if first.cut.is_some() || first.data.len() > MAX_ENDPOINT_BYTES {
        return Err(wrong(format!("its endpoint has more than {MAX_ENDPOINT_BYTES} bytes")));
    }
    let text = std::str::from_utf8(&first.data).ok().map(str::trim).filter(|text| !text.is_empty());
    let endpoint = text.and_then(|text| resolve(url, text));
    let endpoint = endpoint.ok_or_else(|| wrong("its endpoint is no URL".into()))?;
    if !same_origin(url, &endpoint) {
        let elsewhere = origin(&endpoint).unwrap_or_default();
        let elsewhere = quote(&elsewhere, 200);
        return Err(wrong(format!(
            "its endpoint is on another origin, {elsewhere}, and is not used"
        )));
    }
    // Of the same origin, so the path is all there is to it.
    endpoint.into_parts().path_and_query.ok_or_else(|| wrong("its endpoint is no URL".into()))
}

/// Sends a request to the endpoint. Whatever comes back but a status says nothing.
async fn post(
    courier: &Courier,
    ear: &Ear,
    id: u64,
    message: Bytes,
    headers: HeaderMap,
    sent: &Sent,
) -> Result<(), Failure> {
    let (head, body) = courier.post(message, &headers, sent).await?.into_parts();
    if head.status.is_success() {
        body.drain();
        return Ok(());
    }
    match refusal(ear, id, &head, body).await {
        // Each session has an endpoint of its own: nothing is there once it is over.
        Failure::Refused { status, names_it: false, .. } if status.as_u16() == 404 => {
            Err(Failure::Stale(SESSION_OVER.into()))
        }
        failure => Err(failure),
    }
}

/// An open request. Dropping it while it is open tells the server.
struct Open<'a> {
    wire: &'a Wire,
    claim: Claim,
    /// The headers of the cancellation; `None` where there is nothing to be told.
    farewell: Option<HeaderMap>,
    sent: Sent,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let Some(headers) = self.farewell.take() else { return };
        // Of what it has not seen the server need not be told.
        if self.claim.is_open() && self.sent.has_begun() {
            self.wire.shared.courier.cancel(cancelled(self.claim.id()), &headers);
        }
    }
}

// === Reader ===

struct Reader {
    events: Events,
    inbox: Inbox,
    courier: Courier,
    standing: Arc<OnceLock<HeaderMap>>,
}

impl Reader {
    /// Reads events until the stream ends, and tells how it did. Never waits for anything else.
    async fn run(mut self) -> String {
        loop {
            match self.events.next().await {
                Ok(Some(event)) => {
                    if let Err(too_much) = self.hear(event) {
                        return too_much.to_string();
                    }
                }
                Ok(None) => return "its event stream ended".into(),
                Err(failure) => {
                    return format!("its event stream broke: {}", failure.into_reason());
                }
            }
        }
    }

    fn hear(&mut self, event: Event) -> Result<(), TooMuch> {
        let upstream = &self.inbox.ear.name;
        let limits = &mut self.events.limits;
        if !matches!(&*event.name, "" | "message") {
            tracing::debug!(%upstream, name = quote(&event.name, 40), "an event that means nothing");
            return limits.junk();
        }
        if let Some(Cut { tail, why }) = event.cut {
            self.inbox.refuse(&event.data, &tail, why);
            return Ok(());
        }
        match self.inbox.take(event.data) {
            Ok(Taken { replies, useless }) => {
                if !replies.is_empty() {
                    let headers = self.standing.get().cloned().unwrap_or_default();
                    self.courier.send_back(replies, &headers);
                }
                limits.message(&useless)
            }
            Err(junk) => {
                tracing::debug!(%upstream, %junk, "an event is no message");
                limits.junk()
            }
        }
    }
}

/// Ends all that rests on the stream, however its reader has ended.
struct End {
    reason: String,
    ended: watch::Sender<Option<String>>,
    ear: Arc<Ear>,
    _gone: DropGuard,
}

impl End {
    fn because(mut self, reason: String) {
        self.reason = reason;
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // The reason first: whoever loses an answer asks for it.
        self.ended.send_replace(Some(std::mem::take(&mut self.reason)));
        self.ear.pending.close();
    }
}
