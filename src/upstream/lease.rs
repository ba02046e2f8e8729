//! An HTTP/1.1 connection to a server, for one exchange at a time.
//!
//! Nobody drives it but who uses it: it has no task of its own, so a request goes out, and its response comes in, without
//! another task being woken. Dropping it closes it at once, and so does the end of the pool that it is of.
//!
//! Promises: while it idles, nothing is done; that its server has closed it meanwhile is noticed when it is taken.
//!
//! Knows nothing of: what requests and responses hold, and how long connections idle.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::task::coop::unconstrained;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::dial::Stream;

/// The bytes that are buffered for the head of a response. Of its fields hyper takes 100, where nobody says a number: then
/// it needs no room of its own for them with each response.
const BUFFER_BYTES: usize = 64 * 1024;

/// A connection that is ours to use.
pub(super) struct Lease {
    sender: SendRequest<Full<Bytes>>,
    link: Link,
}

type Wired = Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>;

/// What moves the bytes.
struct Link {
    /// `None` once it has ended.
    connection: Option<Box<Wired>>,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    /// It ended because it was told to.
    is_cut: bool,
}

impl Lease {
    /// A connection over this stream, until `stop` fires.
    pub(super) async fn open(
        stream: Box<dyn Stream>,
        stop: CancellationToken,
    ) -> hyper::Result<Self> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        let stopped = Box::pin(stop.cancelled_owned());
        let connection = Some(Box::new(connection));
        Ok(Self { sender, link: Link { connection, stopped, is_cut: false } })
    }

    /// Whether it can carry nothing any more, as far as anybody has looked.
    pub(super) fn is_closed(&self) -> bool {
        self.link.connection.is_none() || self.sender.is_closed()
    }

    /// Waits until it can take a request; false if it has been closed. Cancel-safe.
    pub(super) async fn is_ready(&mut self) -> bool {
        poll_fn(|cx| {
            self.link.poll_on(cx);
            match self.is_closed() {
                true => Poll::Ready(false),
                false => self.sender.poll_ready(&mut deaf()).map(|ready| ready.is_ok()),
            }
        })
        .await
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        // Without a budget of its own: one that was used up would have to wake somebody.
        let mut response = pin!(unconstrained(self.sender.try_send_request(request)));
        poll_fn(|cx| {
            self.link.poll_on(cx);
            response.as_mut().poll(&mut deaf())
        })
        .await
    }

    /// The next frame of a response that came over it; `None` at its end. Cancel-safe.
    pub(super) async fn frame(
        &mut self,
        body: &mut Incoming,
    ) -> Option<Result<Frame<Bytes>, String>> {
        let frame = poll_fn(|cx| {
            // What is there goes first: the connection brings no more before it is taken.
            let there = Pin::new(&mut *body).poll_frame(&mut deaf());
            if there.is_ready() {
                return there;
            }
            self.link.poll_on(cx);
            Pin::new(&mut *body).poll_frame(&mut deaf())
        });
        match frame.await {
            // To hyper a body is at its end when its connection is dropped.
            None if self.link.is_cut => Some(Err("the connection was closed".into())),
            frame => frame.map(|frame| frame.map_err(|error| error.to_string())),
        }
    }
}

impl Link {
    /// Moves the connection on, and drops it at its end.
    fn poll_on(&mut self, cx: &mut Context<'_>) {
        let Some(connection) = &mut self.connection else { return };
        self.is_cut = self.stopped.as_mut().poll(cx).is_ready();
        let ended = if self.is_cut { Poll::Ready(Ok(())) } else { Pin::new(connection).poll(cx) };
        if let Poll::Ready(ended) = ended {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to an upstream broke");
            }
            self.connection = None;
        }
    }
}

/// For what the connection alone can bring on: it is polled before that, with the true waker, so nothing has to wake the
/// same task a second time.
fn deaf() -> Context<'static> {
    Context::from_waker(Waker::noop())
}
