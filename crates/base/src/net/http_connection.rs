//! HTTP/1.1 connection to a server, for one exchange at a time.
//!
//! The task that uses the connection also drives it: no background task has to be woken to send a
//! request or to receive its response. Dropping it closes it at once, and so does the end of its
//! pool.
//!
//! Invariants: an idle connection does no work; that the server has closed it meanwhile is noticed
//! when it is used again, before a request is written.

use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Handle, Id};
use tokio::task::coop::unconstrained;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::tasks::fairness::FairStream;
use crate::tasks::suppressible_waker::SuppressibleWaker;

/// Buffer size: the maximum size of a response's head, with the informational responses before it
/// (RFC 9110, 15.2), and of the pieces of a large body. Pieces of half the size cost a sixth more,
/// larger ones more memory than they gain. hyper takes 100 header fields if no number is set, and
/// then needs no allocation for them per response.
const BUFFER_BYTES: usize = 128 * 1024;

/// Bidirectional byte stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// HTTP/1.1 connection that its owner drives.
pub struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    driver: ConnectionDriver,
    /// Runtime in which the connection was opened; used from another one, each of its bytes would
    /// wake two threads.
    pub runtime_id: Id,
}

/// hyper's connection, read fairly: hyper reads for as long as there is input, heads of
/// informational responses for example.
type Http1Connection = Connection<TokioIo<FairStream<Box<dyn ByteStream>>>, Full<Bytes>>;

/// Driver of hyper's connection.
struct ConnectionDriver {
    /// `None` once it has ended.
    connection: Option<Box<Http1Connection>>,
    suppressible: Arc<SuppressibleWaker>,
    /// `suppressible` as the waker that is passed to hyper.
    waker: Waker,
    stop: CancellationToken,
    /// Wakes the task when `stop` fires. Polled once: the waker stays the same.
    _stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    read_bytes: Arc<AtomicU64>,
    /// Whether it was closed by the pool's `stop` token.
    is_stopped: bool,
    /// Whether it was closed because of too many informational responses.
    is_flooded: bool,
    /// Error with which it has ended.
    failure: Option<String>,
}

impl HttpConnection {
    /// Opens a connection over a stream, until `stop` fires.
    pub async fn open(stream: Box<dyn ByteStream>, stop: CancellationToken) -> hyper::Result<Self> {
        let stream = FairStream::new(stream);
        let read_bytes = stream.read_bytes();
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        let connection = Some(Box::new(connection));
        let suppressible = Arc::<SuppressibleWaker>::default();
        let waker = Waker::from(Arc::clone(&suppressible));
        let mut stopped = Box::pin(stop.clone().cancelled_owned());
        let _ = stopped.as_mut().poll(&mut Context::from_waker(&waker));
        let (is_stopped, is_flooded) = (false, false);
        let driver = ConnectionDriver {
            connection,
            suppressible,
            waker,
            stop,
            _stopped: stopped,
            read_bytes,
            is_stopped,
            is_flooded,
            failure: None,
        };
        Ok(Self { sender, driver, runtime_id: Handle::current().id() })
    }

    /// Whether the connection is known to be closed.
    pub fn is_closed(&self) -> bool {
        self.driver.connection.is_none() || self.sender.is_closed()
    }

    /// Waits until the connection can take a request; false if it has been closed. Cancel-safe.
    ///
    /// That its server has closed it may be noticed only when the request is sent: hyper reads
    /// before it writes, and returns the request unsent.
    pub async fn is_ready(&mut self) -> bool {
        if self.sender.is_ready() {
            return true;
        }
        poll_fn(|cx| {
            self.driver.poll_driver(cx);
            match self.is_closed() {
                true => Poll::Ready(false),
                false => self.sender.poll_ready(&mut noop_context()).map(|ready| ready.is_ok()),
            }
        })
        .await
    }

    /// Whether it was closed because the informational responses before a response exceeded
    /// [`BUFFER_BYTES`].
    pub fn is_flooded(&self) -> bool {
        self.driver.is_flooded
    }

    /// Describes the error of a request: by the error with which the connection has ended, if it
    /// has, such as the alert with which a server refuses a certificate.
    pub fn describe(&self, error: &hyper::Error) -> String {
        self.driver.failure.clone().unwrap_or_else(|| describe(error))
    }

    /// Sends a request and waits for the head of its response.
    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        // Unconstrained, because a future that runs out of tokio's cooperative budget needs a
        // waker, and here none is registered.
        let (response, _) =
            self.driver.suppressible.without_waking(|| self.sender.try_send_request(request));
        let mut response = pin!(unconstrained(response));
        let max_read_bytes = self.driver.read_bytes.load(Ordering::Relaxed) + BUFFER_BYTES as u64;
        poll_fn(|cx| {
            self.driver.poll_driver(cx);
            let response_head = response.as_mut().poll(&mut noop_context());
            if response_head.is_pending()
                && self.driver.read_bytes.load(Ordering::Relaxed) > max_read_bytes
            {
                self.driver.is_flooded = true;
                self.driver.connection = None;
                return response.as_mut().poll(&mut noop_context());
            }
            response_head
        })
        .await
    }

    /// Returns the next frame of a response body; `None` at its end. Cancel-safe.
    pub async fn frame(&mut self, body: &mut Incoming) -> Option<Result<Frame<Bytes>, String>> {
        let frame = poll_fn(|cx| {
            // A buffered frame is taken first, because the connection reads no more before that.
            let mut poll = || Pin::new(&mut *body).poll_frame(&mut noop_context());
            let (frame_ready, _) = self.driver.suppressible.without_waking(&mut poll);
            if frame_ready.is_ready() {
                return frame_ready;
            }
            self.driver.poll_driver(cx);
            let (frame_ready, wakes) = self.driver.suppressible.without_waking(poll);
            if frame_ready.is_pending() && wakes > 0 {
                cx.waker().wake_by_ref();
            }
            frame_ready
        });
        match frame.await {
            // hyper reports the end of a body when its connection is dropped.
            None if self.driver.is_stopped => Some(Err("the connection was closed".into())),
            frame => frame.map(|frame| frame.map_err(|error| error.to_string())),
        }
    }
}

impl ConnectionDriver {
    /// Polls the connection if it has been woken, and drops it at its end.
    fn poll_driver(&mut self, cx: &mut Context<'_>) {
        let Some(connection) = &mut self.connection else { return };
        self.suppressible.register(cx.waker());
        if self.suppressible.take_wakes() == 0 {
            return;
        }
        self.is_stopped = self.stop.is_cancelled();
        let cx = &mut Context::from_waker(&self.waker);
        let ended =
            if self.is_stopped { Poll::Ready(Ok(())) } else { Pin::new(connection).poll(cx) };
        if let Poll::Ready(ended) = ended {
            if let Err(error) = ended {
                let error = describe(&error);
                tracing::debug!(error, "HTTP connection failed");
                self.failure = Some(error);
            }
            self.connection = None;
        }
    }
}

/// Describes an error with all its causes.
fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Returns a context with a no-op waker, for futures that only progress when the connection is
/// polled: the connection registers its own waker, so the task need not be woken twice.
fn noop_context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use crate::net::http_connection::*;
    use crate::tasks::suppressible_waker::WakeCounter;

    async fn open_pair() -> (HttpConnection, DuplexStream) {
        let (ours, server) = duplex(64 * 1024);
        let connection = HttpConnection::open(Box::new(ours), CancellationToken::new()).await;
        (connection.expect("a connection"), server)
    }

    /// Reads the request and writes `text`.
    async fn respond(server: &mut DuplexStream, text: &str) {
        let read = server.read(&mut [0; 1_024]).await.expect("a request");
        assert!(read > 0);
        server.write_all(text.as_bytes()).await.expect("space");
    }

    #[tokio::test]
    async fn a_task_is_woken_by_what_comes_and_not_by_what_it_does_itself() {
        let (mut connection, mut server) = open_pair().await;
        let task = Arc::<WakeCounter>::default();
        let waker = Waker::from(Arc::clone(&task));
        let cx = &mut Context::from_waker(&waker);
        assert!(connection.is_ready().await);
        let mut body = {
            let mut sending = pin!(connection.send(Request::new(Full::new("q".into()))));
            assert!(sending.as_mut().poll(cx).is_pending());
            assert_eq!(task.take_wakes(), 0);
            respond(&mut server, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nok").await;
            assert_eq!(task.take_wakes(), 1);
            let Poll::Ready(Ok(response)) = sending.as_mut().poll(cx) else {
                panic!("there is a response");
            };
            response.into_body()
        };
        let mut next = |connection: &mut HttpConnection| {
            let frame = pin!(connection.frame(&mut body)).poll(cx);
            frame.map(|frame| frame.map(|frame| frame.expect("ok").into_data().expect("data")))
        };
        assert_eq!(next(&mut connection), Poll::Ready(Some("ok".into())));
        assert_eq!(task.take_wakes(), 0);
        assert_eq!(next(&mut connection), Poll::Pending);
        server.write_all(b"!!").await.expect("space");
        assert_eq!(task.take_wakes(), 1);
        assert_eq!(next(&mut connection), Poll::Ready(Some("!!".into())));
        assert_eq!(next(&mut connection), Poll::Ready(None));
        assert_eq!(task.take_wakes(), 0);
    }

    #[tokio::test]
    async fn informational_responses_end_when_there_are_too_many() {
        for (heads, is_flooded) in [(1_000, false), (10_000, true)] {
            let (mut connection, mut server) = open_pair().await;
            assert!(connection.is_ready().await);
            let response_text = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(heads)
                + "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            let outcome = async {
                let response = connection.send(Request::new(Full::new("q".into()))).await;
                // The connection to a server that still writes is closed.
                (response.is_ok(), connection.is_closed(), connection.is_flooded())
            };
            let serve = async {
                let read = server.read(&mut [0; 1_024]).await.expect("a request");
                assert!(read > 0);
                // The write fails once the client has closed the connection.
                let _ = server.write_all(response_text.as_bytes()).await;
            };
            let (outcome, ()) = tokio::join!(outcome, serve);
            assert_eq!(outcome, (!is_flooded, is_flooded, is_flooded), "{heads}");
        }
    }
}
