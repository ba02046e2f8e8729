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
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures::task::AtomicWaker;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::runtime::{Handle, Id};
use tokio::task::coop::unconstrained;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::fairness::FairStream;
use crate::upstream::connect::Stream;

/// The bytes that are buffered: the most that the head of a response may have, with those of the informational responses
/// before it (RFC 9110, 15.2), and a large body's pieces. Those of half the
/// size cost a sixth more, larger ones more memory than they are worth. Of a head's fields hyper takes 100, where nobody says
/// a number: then it needs no room of its own for them with each response.
const BUFFER_BYTES: usize = 128 * 1024;

/// A connection that is ours to use.
pub(crate) struct Lease {
    sender: SendRequest<Full<Bytes>>,
    link: Link,
    /// Whose thread hears of its bytes.
    home: Id,
}

/// Read fairly, since hyper goes on for as long as there is something to read: heads of interim responses, for one.
type Wired = Connection<TokioIo<FairStream<Box<dyn Stream>>>, Full<Bytes>>;

/// What moves the bytes.
struct Link {
    /// `None` once it has ended.
    connection: Option<Box<Wired>>,
    bell: Arc<Bell>,
    /// The same, as what is polled knows it.
    waker: Waker,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    read_bytes: Arc<AtomicU64>,
    /// It ended because it was told to.
    is_cut: bool,
    /// It ended because one informational response came after the other.
    is_flooded: bool,
}

impl Lease {
    /// A connection over this stream, until `stop` fires.
    pub(crate) async fn open(
        stream: Box<dyn Stream>,
        stop: CancellationToken,
    ) -> hyper::Result<Self> {
        let stream = FairStream::new(stream);
        let read_bytes = stream.read_bytes();
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        let stopped = Box::pin(stop.cancelled_owned());
        let connection = Some(Box::new(connection));
        let bell = Arc::<Bell>::default();
        let waker = Waker::from(Arc::clone(&bell));
        let (is_cut, is_flooded) = (false, false);
        let link = Link { connection, bell, waker, stopped, read_bytes, is_cut, is_flooded };
        Ok(Self { sender, link, home: Handle::current().id() })
    }

    /// The runtime in which it was opened; used from another one, each of its bytes would wake two threads.
    pub(crate) fn home(&self) -> Id {
        self.home
    }

    /// Whether it can carry nothing any more, as far as anybody has looked.
    pub(crate) fn is_closed(&self) -> bool {
        self.link.connection.is_none() || self.sender.is_closed()
    }

    /// Waits until it can take a request; false if it has been closed. Cancel-safe.
    pub(crate) async fn is_ready(&mut self) -> bool {
        poll_fn(|cx| {
            self.link.poll_on(cx);
            match self.is_closed() {
                true => Poll::Ready(false),
                false => self.sender.poll_ready(&mut deaf()).map(|ready| ready.is_ok()),
            }
        })
        .await
    }

    /// Whether it ended because more informational responses came than a response may have before it.
    pub(crate) fn is_flooded(&self) -> bool {
        self.link.is_flooded
    }

    /// Sends a request and waits for the head of its response.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        // Without a budget of its own: one that was used up would have to wake somebody.
        let (response, _) = self.link.bell.held(|| self.sender.try_send_request(request));
        let mut response = pin!(unconstrained(response));
        let most = self.link.read_bytes.load(Ordering::Relaxed) + BUFFER_BYTES as u64;
        poll_fn(|cx| {
            self.link.poll_on(cx);
            let answered = response.as_mut().poll(&mut deaf());
            if answered.is_pending() && self.link.read_bytes.load(Ordering::Relaxed) > most {
                self.link.is_flooded = true;
                self.link.connection = None;
                return response.as_mut().poll(&mut deaf());
            }
            answered
        })
        .await
    }

    /// The next frame of a response that came over it; `None` at its end. Cancel-safe.
    pub(crate) async fn frame(
        &mut self,
        body: &mut Incoming,
    ) -> Option<Result<Frame<Bytes>, String>> {
        let frame = poll_fn(|cx| {
            // What is there goes first: the connection brings no more before it is taken.
            let mut poll = || Pin::new(&mut *body).poll_frame(&mut deaf());
            let (there, _) = self.link.bell.held(&mut poll);
            if there.is_ready() {
                return there;
            }
            self.link.poll_on(cx);
            let (there, has_rung) = self.link.bell.held(poll);
            if there.is_pending() && has_rung {
                cx.waker().wake_by_ref();
            }
            there
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
        self.bell.task.register(cx.waker());
        let cx = &mut Context::from_waker(&self.waker);
        let ended = if self.is_cut { Poll::Ready(Ok(())) } else { Pin::new(connection).poll(cx) };
        if let Poll::Ready(ended) = ended {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to an upstream broke");
            }
            self.connection = None;
        }
    }
}

/// Wakes the task that uses a connection.
///
/// What hands a request to the connection, or asks it for more, wakes whoever drives it. Here that is the same task,
/// which goes on with the connection anyway: woken all the same it would be polled once more for nothing, with all that
/// a call has around it.
#[derive(Default)]
struct Bell {
    task: AtomicWaker,
    /// One of the three below.
    state: AtomicU8,
}

const FREE: u8 = 0;
const HELD: u8 = 1;
const RUNG: u8 = 2;

impl Bell {
    /// Does something without waking anybody; tells, too, whether somebody would have been woken. Where that is of no
    /// use to the caller, the connection is polled next, or it has what it waited for.
    fn held<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        self.state.store(HELD, Ordering::Release);
        let done = work();
        (done, self.state.swap(FREE, Ordering::AcqRel) == RUNG)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // What comes from elsewhere meanwhile is held as well.
        let held = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            (state != FREE).then_some(RUNG)
        });
        if held.is_err() {
            self.task.wake();
        }
    }
}

/// For what the connection alone can bring on: it is polled beside that, and rings its own bell, so nothing has to wake the
/// same task a second time.
fn deaf() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use crate::upstream::transport::http_connection::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Task {
        fn woken(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn opened() -> (Lease, DuplexStream) {
        let (ours, server) = duplex(64 * 1024);
        let lease = Lease::open(Box::new(ours), CancellationToken::new()).await;
        (lease.expect("a connection"), server)
    }

    /// Reads the request and says this.
    async fn say(server: &mut DuplexStream, text: &str) {
        let read = server.read(&mut [0; 1_024]).await.expect("a request");
        assert!(read > 0);
        server.write_all(text.as_bytes()).await.expect("room");
    }

    #[tokio::test]
    async fn a_task_is_woken_by_what_comes_and_not_by_what_it_does_itself() {
        let (mut lease, mut server) = opened().await;
        let task = Arc::<Task>::default();
        let waker = Waker::from(Arc::clone(&task));
        let cx = &mut Context::from_waker(&waker);
        assert!(lease.is_ready().await);
        let mut body = {
            let mut sending = pin!(lease.send(Request::new(Full::new("q".into()))));
            assert!(sending.as_mut().poll(cx).is_pending());
            assert_eq!(task.woken(), 0);
            say(&mut server, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nok").await;
            assert_eq!(task.woken(), 1);
            let Poll::Ready(Ok(response)) = sending.as_mut().poll(cx) else {
                panic!("there is a response");
            };
            response.into_body()
        };
        let mut next = |lease: &mut Lease| {
            let frame = pin!(lease.frame(&mut body)).poll(cx);
            frame.map(|frame| frame.map(|frame| frame.expect("ok").into_data().expect("data")))
        };
        assert_eq!(next(&mut lease), Poll::Ready(Some("ok".into())));
        assert_eq!(task.woken(), 0);
        assert_eq!(next(&mut lease), Poll::Pending);
        server.write_all(b"!!").await.expect("room");
        assert_eq!(task.woken(), 1);
        assert_eq!(next(&mut lease), Poll::Ready(Some("!!".into())));
        assert_eq!(next(&mut lease), Poll::Ready(None));
        assert_eq!(task.woken(), 0);
    }

    #[tokio::test]
    async fn informational_responses_end_when_there_are_too_many() {
        for (heads, is_flooded) in [(1_000, false), (10_000, true)] {
            let (mut lease, mut server) = opened().await;
            assert!(lease.is_ready().await);
            let said = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(heads)
                + "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            let answered = async {
                let response = lease.send(Request::new(Full::new("q".into()))).await;
                // A server that still writes is hung up on.
                (response.is_ok(), lease.is_closed(), lease.is_flooded())
            };
            let serve = async {
                let read = server.read(&mut [0; 1_024]).await.expect("a request");
                assert!(read > 0);
                // It breaks where the client has enough.
                let _ = server.write_all(said.as_bytes()).await;
            };
            let (answered, ()) = tokio::join!(answered, serve);
            assert_eq!(answered, (!is_flooded, is_flooded, is_flooded), "{heads}");
        }
    }
}
