//! Byte stream of a connection with read, write and idle timeouts.
//!
//! hyper's timers do not fit: its head timer also closes idle connections, no timer covers a client
//! that reads nothing, and a client that has sent part of the next request and disconnected goes
//! unnoticed. So this wrapper tracks the phase of the connection and fails with a timeout in the
//! phases that are bounded.
//!
//! All methods are called by the one task that serves the connection, so the lock is never
//! contended.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use crate::ConnectionTimeouts;
use crate::http::connection::framing::Framing;
use weir_base::memory::memory_budget::{MemoryBudget, MemoryPressure};
use weir_base::tasks::sync::Mutex;

/// Stream with timeouts. Cheap to clone: all clones are the same stream.
pub(crate) struct TimedIo<S> {
    inner: Arc<Mutex<Inner<S>>>,
    phase: Arc<ConnectionPhases>,
}

struct Inner<S> {
    io: S,
    framing: Framing,
    /// Bytes read while watching for a disconnect, or together with the end of a request; hyper
    /// gets them first.
    read_ahead: BytesMut,
    /// True once the client has closed its side.
    ended: bool,
    read_timer: Timer,
    write_timer: Timer,
    write_timeout: Duration,
}

/// Phase of a connection, shared with its requests.
pub(crate) struct ConnectionPhases {
    now: Mutex<ConnectionPhase>,
    /// Waker of the task that reads, while it waits for the end of the request in progress to get
    /// the bytes of the next one.
    next_reader: Mutex<Option<Waker>>,
    eviction: Notify,
    head_timeout: Duration,
    idle_timeout: Duration,
    budget: MemoryBudget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// Reading a head, which has to be complete by then.
    Head(Instant),
    /// A request is in progress; its own limits apply.
    Busy,
    /// Between requests, since then. See [`TimedIo::idle_timeout_elapsed`].
    Idle(Instant),
    /// Evicted while idle; the connection is closing.
    Evicted,
}

/// Marks a request in progress, from its head to the end of its response; ends on drop.
pub(crate) struct RequestInProgress(Arc<ConnectionPhases>);

impl<S> TimedIo<S> {
    pub(crate) fn new(io: S, timeouts: &ConnectionTimeouts, budget: &MemoryBudget) -> Self {
        let inner = Inner {
            io,
            framing: Framing::default(),
            read_ahead: BytesMut::new(),
            ended: false,
            read_timer: Timer::default(),
            write_timer: Timer::default(),
            write_timeout: timeouts.write,
        };
        let phase = Arc::new(ConnectionPhases::new(timeouts, budget));
        Self { inner: Arc::new(Mutex::new(inner)), phase }
    }

    /// Phase of the connection.
    pub(crate) fn phases(&self) -> &Arc<ConnectionPhases> {
        &self.phase
    }

    /// Starts the busy phase after a head was read. `body_bytes` is the length of the body, `None`
    /// if it is chunked.
    pub(crate) fn begin_request(&self, body_bytes: Option<u64>) -> RequestInProgress {
        self.inner.lock().framing.begin_body(body_bytes);
        *self.phase.now.lock() = ConnectionPhase::Busy;
        RequestInProgress(Arc::clone(&self.phase))
    }

    /// True if a request is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        *self.phase.now.lock() == ConnectionPhase::Busy
    }

    /// Waits until the connection has been idle for too long.
    ///
    /// Reading cannot detect this: hyper watches for a disconnect while a request is in progress,
    /// and after the response it does not read again, so no read timer would start.
    ///
    /// A request does not touch the timer. When it fires, it is set to the time at which the
    /// connection will have been idle for too long at the earliest.
    pub(crate) async fn idle_timeout_elapsed(self) {
        let mut stages = self.phase.budget.subscribe_pressure();
        loop {
            let is_tight = *stages.borrow_and_update() >= MemoryPressure::Elevated;
            let timeout = self.phase.idle_timeout.min(if is_tight {
                TIGHT_IDLE_TIMEOUT
            } else {
                Duration::MAX
            });
            let now = Instant::now();
            let phase = *self.phase.now.lock();
            let end = match phase {
                ConnectionPhase::Idle(since) if since + timeout <= now => return,
                ConnectionPhase::Idle(since) => since + timeout,
                ConnectionPhase::Head(_) | ConnectionPhase::Busy => now + timeout,
                ConnectionPhase::Evicted => return,
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(end) => {}
                _ = stages.changed() => {}
                () = self.phase.eviction.notified() => {}
            }
        }
    }
}

impl<S: AsyncRead + Unpin> TimedIo<S> {
    /// Waits until the client has closed the connection, even if it has sent bytes of a next
    /// request. With more than [`MAX_READ_AHEAD_BYTES`] of them, the disconnect is not noticed
    /// before they are read.
    pub(crate) async fn disconnected(self) {
        poll_fn(|cx| self.poll_disconnected(&mut self.inner.lock(), cx)).await;
    }

    /// Reads ahead until the client has closed the connection. The bytes are read once the request
    /// in progress has been answered.
    fn poll_disconnected(&self, inner: &mut Inner<S>, cx: &mut Context<'_>) -> Poll<()> {
        let disconnected = inner.poll_disconnected(cx);
        if !inner.read_ahead.is_empty() {
            *self.phase.next_reader.lock() = Some(cx.waker().clone());
        }
        disconnected
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TimedIo<S> {
    /// Closes the write side, and discards input until the client has closed its side, within
    /// limits.
    ///
    /// Closing a socket with unread input resets the connection, and a reset discards what was
    /// written last: the client would not see the reason.
    pub(crate) async fn lingering_close(self, timeout: Duration) {
        let closing = async {
            let _ = poll_fn(|cx| Pin::new(&mut self.inner.lock().io).poll_shutdown(cx)).await;
            let mut discarded = 0;
            while discarded < MAX_DISCARDED_BYTES {
                let more = poll_fn(|cx| self.inner.lock().poll_discard(cx)).await;
                if more == 0 {
                    break;
                }
                discarded += more;
            }
        };
        let _ = tokio::time::timeout(timeout, closing).await;
    }
}

impl<S: AsyncRead + Unpin> Inner<S> {
    /// Reads and discards some bytes; returns 0 at the client's end.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let mut chunk = [0_u8; 8 * 1_024];
        if self.ended {
            return Poll::Ready(0);
        }
        let mut buffer = ReadBuf::new(&mut chunk);
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer));
        Poll::Ready(if read.is_ok() { buffer.filled().len() } else { 0 })
    }

    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut chunk = [const { MaybeUninit::uninit() }; 1_024];
        while !self.ended && self.read_ahead.len() < MAX_READ_AHEAD_BYTES {
            let mut buffer = ReadBuf::uninit(&mut chunk);
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    self.read_ahead.extend_from_slice(buffer.filled());
                }
                Ok(()) | Err(_) => self.ended = true,
            }
        }
        if self.ended { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Reads bytes of the request in progress.
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        if !self.read_ahead.is_empty() {
            let count = self.read_ahead.len().min(into.remaining());
            into.put_slice(&self.read_ahead[..count]);
            let taken = self.framing.take(&mut into.filled_mut()[before..]);
            into.set_filled(before + taken);
            self.read_ahead.advance(taken);
            if self.read_ahead.is_empty() {
                // An idle connection keeps no buffer.
                self.read_ahead = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.io).poll_read(cx, into);
        if matches!(read, Poll::Ready(Ok(()))) {
            let received = &mut into.filled_mut()[before..];
            self.ended = received.is_empty();
            let taken = self.framing.take(received);
            self.read_ahead.extend_from_slice(&received[taken..]);
            into.set_filled(before + taken);
        }
        read
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.inner.lock();
        if !self.is_busy() {
            inner.framing.begin_head();
        }
        if inner.framing.is_at_end() {
            // Only a disconnect is watched for: the reader is woken when the request has been
            // answered.
            ready!(self.poll_disconnected(&mut inner, cx));
            return if inner.read_ahead.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let before = into.filled().len();
        match inner.poll_read(cx, into) {
            Poll::Ready(Ok(())) if into.filled().len() > before => {
                inner.read_timer.stop();
                self.phase.on_bytes();
                Poll::Ready(Ok(()))
            }
            Poll::Pending => match self.phase.deadline() {
                Some(deadline) => inner.read_timer.poll(deadline, cx),
                None => {
                    inner.read_timer.stop();
                    Poll::Pending
                }
            },
            ended => ended,
        }
    }
}

impl<S: AsyncWrite + Unpin> Inner<S> {
    /// Fails if the client has read nothing for too long.
    fn with_write_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match write(Pin::new(&mut self.io), cx) {
            Poll::Pending => {
                let deadline = self.write_timer.or_start(Instant::now() + self.write_timeout);
                self.write_timer.poll(deadline, cx)
            }
            done => {
                self.write_timer.stop();
                done
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner.lock().with_write_timeout(cx, |io, cx| io.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner.lock().with_write_timeout(cx, |io, cx| io.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.lock().io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.lock().with_write_timeout(cx, |io, cx| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.lock().with_write_timeout(cx, |io, cx| io.poll_shutdown(cx))
    }
}

impl<S> Clone for TimedIo<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), phase: Arc::clone(&self.phase) }
    }
}

impl ConnectionPhases {
    /// State of a connection that has just been opened.
    pub(crate) fn new(timeouts: &ConnectionTimeouts, budget: &MemoryBudget) -> Self {
        Self {
            now: Mutex::new(ConnectionPhase::Head(Instant::now() + timeouts.head)),
            next_reader: Mutex::default(),
            eviction: Notify::new(),
            head_timeout: timeouts.head,
            idle_timeout: timeouts.idle,
            budget: budget.clone(),
        }
    }

    /// Time since which the connection is idle; `None` while a request is in progress.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        match *self.now.lock() {
            ConnectionPhase::Head(deadline) => deadline.checked_sub(self.head_timeout),
            ConnectionPhase::Idle(since) => Some(since),
            ConnectionPhase::Busy | ConnectionPhase::Evicted => None,
        }
    }

    /// Evicts the connection, unless a request has begun meanwhile.
    pub(crate) fn evict(&self) {
        let mut now = self.now.lock();
        if matches!(*now, ConnectionPhase::Head(_) | ConnectionPhase::Idle(_)) {
            *now = ConnectionPhase::Evicted;
            self.eviction.notify_one();
        }
    }

    /// True if the connection was evicted.
    pub(crate) fn is_evicted(&self) -> bool {
        *self.now.lock() == ConnectionPhase::Evicted
    }

    /// Waits until the connection is evicted. For a connection in its TLS handshake.
    pub(crate) async fn evicted(&self) {
        while !self.is_evicted() {
            self.eviction.notified().await;
        }
    }

    fn on_bytes(&self) {
        let mut now = self.now.lock();
        if let ConnectionPhase::Idle(_) = *now {
            *now = ConnectionPhase::Head(Instant::now() + self.head_timeout);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match *self.now.lock() {
            ConnectionPhase::Head(deadline) => Some(deadline),
            ConnectionPhase::Busy | ConnectionPhase::Idle(_) | ConnectionPhase::Evicted => None,
        }
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        *self.0.now.lock() = ConnectionPhase::Idle(Instant::now());
        if let Some(reader) = self.0.next_reader.lock().take() {
            reader.wake();
        }
    }
}

/// Deadline that wakes a task. Allocated at its first use: a fast connection never needs it.
#[derive(Default)]
struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    deadline: Option<Instant>,
}

impl Timer {
    fn stop(&mut self) {
        self.deadline = None;
    }

    /// Returns the running deadline, or else this one.
    fn or_start(&mut self, deadline: Instant) -> Instant {
        self.deadline.unwrap_or(deadline)
    }

    /// Fails once the deadline has passed.
    fn poll<T>(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if self.deadline != Some(deadline) {
            self.deadline = Some(deadline);
            sleep.as_mut().reset(deadline);
        }
        ready!(sleep.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Idle timeout while the memory budget is nearly exhausted.
const TIGHT_IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a client's next requests that are read ahead while it waits for a response.
const MAX_READ_AHEAD_BYTES: usize = 64 * 1024;
/// Bytes that are discarded from a client when its connection ends.
const MAX_DISCARDED_BYTES: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use crate::http::connection::timed_io::*;
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio_util::task::TaskTracker;
    use weir_base::tasks::suppressible_waker::WakeCounter;

    fn timed_io(buffer: usize) -> (TimedIo<DuplexStream>, DuplexStream) {
        let (ours, theirs) = duplex(buffer);
        (TimedIo::new(ours, &ConnectionTimeouts::default(), &MemoryBudget::new(1 << 20)), theirs)
    }

    fn is_timeout<T>(result: io::Result<T>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_time_from_its_first_byte_however_it_trickles() {
        let (mut timed_io, mut client) = timed_io(64);
        let start = Instant::now();
        let trickle = async {
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                if client.write_all(b"G").await.is_err() {
                    break;
                }
            }
        };
        let read = async { while timed_io.read_u8().await.is_ok() {} };
        tokio::select! { () = trickle => {}, () = read => {} }
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn between_requests_there_is_more_time_and_none_runs_while_one_is_worked_on() {
        let (mut timed_io, mut client) = timed_io(64);
        let begin_request = timed_io.begin_request(Some(0));
        let waited = tokio::time::timeout(Duration::from_secs(600), timed_io.read_u8()).await;
        assert!(waited.is_err(), "no limit of the connection's own");
        drop(begin_request);
        let start = Instant::now();
        timed_io.clone().idle_timeout_elapsed().await;
        assert_eq!(start.elapsed(), Duration::from_secs(75));
        drop(timed_io.begin_request(Some(0)));
        client.write_all(b"P").await.expect("room");
        assert!(timed_io.read_u8().await.is_ok());
        let start = Instant::now();
        assert!(is_timeout(timed_io.read_u8().await));
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn where_much_is_held_an_idle_connection_closes_after_five_seconds() {
        let budget = MemoryBudget::new(1 << 20);
        let (ours, _theirs) = duplex(64);
        let timed_io = TimedIo::new(ours, &ConnectionTimeouts::default(), &budget);
        drop(timed_io.begin_request(Some(0)));
        let mut held = budget.start_reservation();
        held.grow((1 << 20) * 85 / 100 + 1).expect("room");
        let start = Instant::now();
        timed_io.clone().idle_timeout_elapsed().await;
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_and_one_that_takes_little_is_not() {
        let (mut timed_io, mut client) = timed_io(1);
        let start = Instant::now();
        let slow = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(29)).await;
                client.read_u8().await.expect("a byte");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            result = timed_io.write_all(&[0; 100]) => assert!(is_timeout(result)),
            () = slow => {}
        }
        assert_eq!(start.elapsed(), Duration::from_secs(3 * 29 + 30));
    }

    #[tokio::test]
    async fn the_end_of_a_request_wakes_the_reader_only_for_bytes_of_the_next_one() {
        for sent in [&b""[..], b"POST"] {
            let (mut timed_io, mut client) = timed_io(64);
            let task = Arc::<WakeCounter>::default();
            let waker = Waker::from(Arc::clone(&task));
            let cx = &mut Context::from_waker(&waker);
            let in_progress = timed_io.begin_request(Some(0));
            client.write_all(sent).await.expect("space");
            let mut reading = pin!(timed_io.read_u8());
            assert!(reading.as_mut().poll(cx).is_pending());
            drop(in_progress);
            assert_eq!(task.take_wakes(), usize::from(!sent.is_empty()));
            assert_eq!(reading.poll(cx).is_ready(), !sent.is_empty());
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_is_noticed_behind_what_it_sent_ahead() {
        let (mut timed_io, mut client) = timed_io(64);
        client.write_all(b"POST").await.expect("room");
        let disconnected = TaskTracker::new().spawn(timed_io.clone().disconnected());
        drop(client);
        disconnected.await.expect("no panic");
        let mut read = Vec::new();
        timed_io.read_to_end(&mut read).await.expect("the bytes are still there");
        assert_eq!(read, b"POST");
    }
}
