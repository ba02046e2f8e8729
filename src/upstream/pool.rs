//! HTTP/1.1 connections to one server, used again where that is safe.
//!
//! Promises: a connection is pooled only after its response was read to the end; one whose response is
//! dropped earlier is closed at once, so that the server notices. A request goes out a second time only
//! if hyper hands it back unsent. No redirect is followed.
//!
//! Knows nothing of: what requests and responses hold.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderMap;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::dial::Dial;
use super::pace::{Pace, TOO_SLOW};
use super::wire::Sent;

/// How long a connection may idle where its server does not say. Node closes after 5 s.
const IDLE: Duration = Duration::from_secs(4);
/// The longest idle time that is believed.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// How much earlier than the server we let go of a connection.
const IDLE_MARGIN: Duration = Duration::from_secs(1);
/// How long a pooled connection may take to be ready.
const READY: Duration = Duration::from_millis(100);
/// How many connections may idle; further ones are closed after use.
const MAX_IDLE_CONNECTIONS: usize = 32;
/// Header fields of a response, and the bytes that are buffered for them.
const MAX_HEADERS: usize = 100;
const BUFFER_BYTES: usize = 64 * 1024;
/// How long the end of a response is waited for once nobody wants the rest.
const DRAIN: Duration = Duration::from_secs(1);
/// How many bytes of it are read.
const DRAIN_BYTES: usize = 64 * 1024;

/// The connections to one server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    dial: Arc<dyn Dial>,
    url: Uri,
    /// How long connecting may take.
    connect: Duration,
    /// The most recently used stands last.
    idle: Mutex<Vec<Lease>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum NoResponse {
    /// The request was not written.
    Unsent(String),
    /// It was, at least in part.
    Broke(String),
}

/// A connection that is ours to use. Dropping it closes it.
struct Lease {
    sender: SendRequest<Full<Bytes>>,
    /// Until when it may idle; `None` while it is in use.
    idle_until: watch::Sender<Option<Instant>>,
    _hangup: DropGuard,
}

impl Pool {
    /// A pool of connections to the server of `url`. All of them close when `stop` fires.
    pub(super) fn new(
        dial: Arc<dyn Dial>,
        url: Uri,
        connect: Duration,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let idle = Mutex::default();
        Self { shared: Arc::new(Shared { dial, url, connect, idle, tasks, stop }) }
    }

    /// Sends a request and waits for the head of its response; `sent` tells once it begins to be written. Dropping the future, or the response
    /// before its end, closes the connection.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        sent: &Sent,
    ) -> Result<Response<Arrival>, NoResponse> {
        while let Some(mut lease) = self.take_idle() {
            // The connection's own task may not have seen the end of the last exchange yet; one that
            // takes long over it has a server that never read the whole request.
            if !matches!(tokio::time::timeout(READY, lease.sender.ready()).await, Ok(Ok(()))) {
                continue;
            }
            sent.begin();
            match lease.sender.try_send_request(request).await {
                Ok(response) => return Ok(self.response(response, lease)),
                Err(mut error) => match error.take_message() {
                    // The server closed the idle connection before it saw a byte of the request.
                    Some(unsent) => {
                        sent.take_back();
                        request = unsent;
                        break;
                    }
                    None => return Err(NoResponse::Broke(error.into_error().to_string())),
                },
            }
        }
        let mut lease = self.connect().await?;
        sent.begin();
        match lease.sender.try_send_request(request).await {
            Ok(response) => Ok(self.response(response, lease)),
            Err(mut error) => {
                let unsent = error.take_message().is_some();
                if unsent {
                    sent.take_back();
                }
                let text = error.into_error().to_string();
                Err(if unsent { NoResponse::Unsent(text) } else { NoResponse::Broke(text) })
            }
        }
    }

    async fn connect(&self) -> Result<Lease, NoResponse> {
        let unsent = |text: String| NoResponse::Unsent(text);
        let stream = self.shared.dial.connect(&self.shared.url, self.shared.connect).await;
        let stream = stream.map_err(|error| unsent(error.to_string()))?;
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .max_buf_size(BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| unsent(error.to_string()))?;
        let (idle_until, idle) = watch::channel(None);
        let (hangup, stop) = (CancellationToken::new(), self.shared.stop.clone());
        let hung_up = hangup.clone();
        self.shared.tasks.spawn(async move {
            // Whichever comes first closes the socket.
            tokio::select! {
                biased;
                () = hung_up.cancelled() => {}
                () = stop.cancelled() => {}
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection to an upstream broke");
                    }
                }
                () = expired(idle) => {}
            }
        });
        Ok(Lease { sender, idle_until, _hangup: hangup.drop_guard() })
    }

    fn take_idle(&self) -> Option<Lease> {
        let mut idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(lease) = idle.pop() {
            if !lease.sender.is_closed() {
                lease.idle_until.send_replace(None);
                return Some(lease);
            }
        }
        None
    }

    fn response(&self, response: Response<Incoming>, lease: Lease) -> Response<Arrival> {
        let keep = keep_alive(response.headers());
        let pool = self.clone();
        response.map(|body| {
            let mut body = Arrival { body, lease: Some(lease), keep, pace: Pace::default(), pool };
            if body.body.is_end_stream() {
                body.give_back();
            }
            body
        })
    }
}

/// How long a connection may idle after this response.
fn keep_alive(headers: &HeaderMap) -> Duration {
    let text = headers.get("keep-alive").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let timeout = text.split(',').find_map(|part| part.trim().strip_prefix("timeout="));
    match timeout.and_then(|seconds| seconds.parse().ok()) {
        Some(seconds) => Duration::from_secs(seconds).saturating_sub(IDLE_MARGIN).min(MAX_IDLE),
        None => IDLE,
    }
}

/// Waits until a connection has idled for too long.
async fn expired(mut idle: watch::Receiver<Option<Instant>>) {
    loop {
        let until = *idle.borrow_and_update();
        let changed = match until {
            None => idle.changed().await,
            Some(until) => tokio::select! {
                biased;
                // Taken as its time ends is taken: by now it may have written a request.
                changed = idle.changed() => changed,
                () = tokio::time::sleep_until(until) => return,
            },
        };
        if changed.is_err() {
            // The lease is gone, and its drop closes the connection.
            return std::future::pending().await;
        }
    }
}

// === Arrival ===

/// A response's body. Once it has been read to the end its connection goes back to the pool.
pub(super) struct Arrival {
    body: Incoming,
    lease: Option<Lease>,
    keep: Duration,
    pace: Pace,
    pool: Pool,
}

impl Arrival {
    /// The next piece; `None` at the end. An error, too, if what has begun arrives too slowly. Cancel-safe.
    pub(super) async fn chunk(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            let Some(next) = self.pace.wait(self.body.frame()).await else {
                return Some(Err(TOO_SLOW.into()));
            };
            match next {
                None => {
                    self.give_back();
                    return None;
                }
                Some(Err(error)) => return Some(Err(error.to_string())),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => {
                        self.pace.took(&data);
                        return Some(Ok(data));
                    }
                    // Trailers say nothing here.
                    Err(_) => {}
                },
            }
        }
    }

    /// One of the messages in the body has ended, and perhaps the next one begun. Where this is never said, the
    /// body is one message.
    pub(super) fn message_ended(&mut self, has_begun: bool) {
        self.pace.ended(has_begun);
    }

    /// How long the body is, if the server said so.
    pub(super) fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Reads the end of a body that nobody wants, so that the connection can be used again; a body
    /// that goes on for long is given up.
    pub(super) fn drain(mut self) {
        if self.lease.is_none() {
            return;
        }
        let tasks = self.pool.shared.tasks.clone();
        let stop = self.pool.shared.stop.clone();
        tasks.spawn(async move {
            let rest = async {
                let mut read = 0;
                while let Some(Ok(chunk)) = self.chunk().await {
                    read += chunk.len();
                    if read > DRAIN_BYTES {
                        return;
                    }
                }
            };
            let _ = stop.run_until_cancelled(tokio::time::timeout(DRAIN, rest)).await;
        });
    }

    fn give_back(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let mut idle = self.pool.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|lease| !lease.sender.is_closed());
        if !self.keep.is_zero() && idle.len() < MAX_IDLE_CONNECTIONS {
            lease.idle_until.send_replace(Some(Instant::now() + self.keep));
            idle.push(lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_taken_as_its_time_ends_is_not_closed() {
        // Without an order of its own a `select!` takes the end only now and then.
        for _ in 0..50 {
            let (idle_until, idle) = watch::channel(Some(Instant::now() + IDLE));
            let mut expired = std::pin::pin!(expired(idle));
            assert_eq!(futures::poll!(&mut expired), Poll::Pending);
            tokio::time::advance(IDLE).await;
            idle_until.send_replace(None);
            assert_eq!(futures::poll!(&mut expired), Poll::Pending);
        }
    }
}
