//! A connection's byte stream with our own timers around it.
//!
//! hyper's timers do not fit: its head timer also closes idle connections, nothing watches a client that
//! takes no bytes, and one that has sent part of a next request and left goes unnoticed. So the stream
//! knows in which phase the connection is, and fails with a time-out in the phases that are bounded.
//!
//! Everything is polled by the one task that serves the connection, so the lock is never contended.
//! Knows nothing of: HTTP, beyond that requests take turns.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use crate::downstream::Timeouts;
use crate::downstream::http::connection::framing::Framing;
use crate::memory_budget::{Budget, Stage};

/// A stream with timers. Cheap to clone: all clones are the same stream.
pub(crate) struct Wire<S> {
    inner: Arc<Mutex<Inner<S>>>,
    phase: Arc<Phases>,
}

struct Inner<S> {
    io: S,
    framing: Framing,
    /// Read while looking whether the client is still there, or together with the end of a request; hyper gets it first.
    ahead: BytesMut,
    /// The client has closed its side.
    ended: bool,
    read_timer: Timer,
    write_timer: Timer,
    write_stall: Duration,
}

/// The phase of a connection, shared with the requests on it.
pub(crate) struct Phases {
    now: Mutex<Phase>,
    /// Tells that the connection has become idle.
    rested: Notify,
    head_timeout: Duration,
    idle_timeout: Duration,
    budget: Budget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A head is expected in full by then.
    Head(Instant),
    /// A request is being worked on; its own limits hold.
    Busy,
    /// Between requests, since then. See [`Wire::idle_too_long`].
    Idle(Instant),
    /// Nothing was asked, and the connection is to be closed.
    Over,
}

/// A request is on this connection from its head to the end of its answer; dropped, it is over.
pub(crate) struct Busy(Arc<Phases>);

impl<S> Wire<S> {
    pub(crate) fn new(io: S, timeouts: &Timeouts, budget: &Budget) -> Self {
        let inner = Inner {
            io,
            framing: Framing::default(),
            ahead: BytesMut::new(),
            ended: false,
            read_timer: Timer::default(),
            write_timer: Timer::default(),
            write_stall: timeouts.write,
        };
        let phase = Arc::new(Phases::new(timeouts, budget));
        Self { inner: Arc::new(Mutex::new(inner)), phase }
    }

    /// The phase that the connection is in.
    pub(crate) fn phases(&self) -> &Arc<Phases> {
        &self.phase
    }

    /// Tells that a request's head has been read, and how long its body is if it is not chunked.
    pub(crate) fn busy(&self, body_bytes: Option<u64>) -> Busy {
        self.lock().framing.begin_body(body_bytes);
        *self.phase.lock() = Phase::Busy;
        Busy(Arc::clone(&self.phase))
    }

    /// Whether a request is being worked on.
    pub(crate) fn is_busy(&self) -> bool {
        *self.phase.lock() == Phase::Busy
    }

    /// Waits until nobody has asked anything for too long.
    ///
    /// This does not go by reading: hyper looks for the client's end while a request is being worked
    /// on, and having found nothing it does not read again behind the answer, so no timer would begin.
    pub(crate) async fn idle_too_long(self) {
        let mut stages = self.phase.budget.stages();
        loop {
            let phase = *self.phase.lock();
            let is_tight = *stages.borrow_and_update() >= Stage::Tight;
            let patience =
                self.phase.idle_timeout.min(if is_tight { TIGHT_IDLE } else { Duration::MAX });
            match phase {
                Phase::Idle(since) if since + patience <= Instant::now() => return,
                Phase::Idle(since) => tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(since + patience) => {}
                    _ = stages.changed() => {}
                    () = self.phase.rested.notified() => {}
                },
                Phase::Over => return,
                Phase::Head(_) | Phase::Busy => self.phase.rested.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<S>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + Unpin> Wire<S> {
    /// Waits until the client has closed the connection, even if it left bytes of a next request
    /// behind. One that leaves more than [`MAX_AHEAD`] of them is not noticed before they are read.
    pub(crate) async fn gone(self) {
        poll_fn(|cx| self.lock().poll_gone(cx)).await;
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Closes our side, and takes what still comes until the client has closed its own, within bounds.
    ///
    /// A socket that is closed with something unread in it is reset, and a reset takes back what was written last:
    /// the client would never see why.
    pub(crate) async fn see_off(self, patience: Duration) {
        let seeing_off = async {
            let _ = poll_fn(|cx| Pin::new(&mut self.lock().io).poll_shutdown(cx)).await;
            let mut taken = 0;
            while taken < MAX_SEE_OFF {
                let more = poll_fn(|cx| self.lock().poll_discard(cx)).await;
                if more == 0 {
                    break;
                }
                taken += more;
            }
        };
        let _ = tokio::time::timeout(patience, seeing_off).await;
    }
}

impl<S: AsyncRead + Unpin> Inner<S> {
    /// Takes some bytes and drops them; none at the client's end.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let mut chunk = [0_u8; 8 * 1_024];
        if self.ended {
            return Poll::Ready(0);
        }
        let mut buffer = ReadBuf::new(&mut chunk);
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer));
        Poll::Ready(if read.is_ok() { buffer.filled().len() } else { 0 })
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut chunk = [0_u8; 1_024];
        while !self.ended && self.ahead.len() < MAX_AHEAD {
            let mut buffer = ReadBuf::new(&mut chunk);
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    self.ahead.extend_from_slice(buffer.filled());
                }
                Ok(()) | Err(_) => self.ended = true,
            }
        }
        if self.ended { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Reads what belongs to the request under way. Behind its end only the end of the stream is looked for: the reader
    /// then is woken when the request has been answered.
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.framing.is_at_end() {
            ready!(self.poll_gone(cx));
            return if self.ahead.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let before = into.filled().len();
        if !self.ahead.is_empty() {
            let count = self.ahead.len().min(into.remaining());
            into.put_slice(&self.ahead[..count]);
            let taken = self.framing.take(&mut into.filled_mut()[before..]);
            into.set_filled(before + taken);
            self.ahead.advance(taken);
            if self.ahead.is_empty() {
                // An idle connection keeps no room for it.
                self.ahead = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.io).poll_read(cx, into);
        if matches!(read, Poll::Ready(Ok(()))) {
            let came = &mut into.filled_mut()[before..];
            self.ended = came.is_empty();
            let taken = self.framing.take(came);
            self.ahead.extend_from_slice(&came[taken..]);
            into.set_filled(before + taken);
        }
        read
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        if !self.is_busy() {
            inner.framing.begin_head();
        }
        let before = into.filled().len();
        match inner.poll_read(cx, into) {
            Poll::Ready(Ok(())) if into.filled().len() > before => {
                inner.read_timer.stop();
                self.phase.bytes_came();
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
    /// Fails where nothing has been taken for too long.
    fn timed<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match write(Pin::new(&mut self.io), cx) {
            Poll::Pending => {
                let deadline = self.write_timer.or_begin(Instant::now() + self.write_stall);
                self.write_timer.poll(deadline, cx)
            }
            done => {
                self.write_timer.stop();
                done
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.lock().timed(cx, |io, cx| io.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.lock().timed(cx, |io, cx| io.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().timed(cx, |io, cx| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().timed(cx, |io, cx| io.poll_shutdown(cx))
    }
}

impl<S> Clone for Wire<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), phase: Arc::clone(&self.phase) }
    }
}

impl Phases {
    /// A connection that has just been opened.
    pub(crate) fn new(timeouts: &Timeouts, budget: &Budget) -> Self {
        Self {
            now: Mutex::new(Phase::Head(Instant::now() + timeouts.head)),
            rested: Notify::new(),
            head_timeout: timeouts.head,
            idle_timeout: timeouts.idle,
            budget: budget.clone(),
        }
    }

    /// Since when nothing has been asked; none while a request is being worked on.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        match *self.lock() {
            Phase::Head(deadline) => deadline.checked_sub(self.head_timeout),
            Phase::Idle(since) => Some(since),
            Phase::Busy | Phase::Over => None,
        }
    }

    /// Has the connection closed, unless somebody has asked something meanwhile.
    pub(crate) fn make_room(&self) {
        let mut now = self.lock();
        if matches!(*now, Phase::Head(_) | Phase::Idle(_)) {
            *now = Phase::Over;
            self.rested.notify_one();
        }
    }

    /// Whether the connection is closed to make room.
    pub(crate) fn is_over(&self) -> bool {
        *self.lock() == Phase::Over
    }

    /// Waits until the connection is to be closed. For one that nothing has been asked on yet.
    pub(crate) async fn over(&self) {
        while !self.is_over() {
            self.rested.notified().await;
        }
    }

    fn bytes_came(&self) {
        let mut now = self.lock();
        if let Phase::Idle(_) = *now {
            *now = Phase::Head(Instant::now() + self.head_timeout);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match *self.lock() {
            Phase::Head(deadline) => Some(deadline),
            Phase::Busy | Phase::Idle(_) | Phase::Over => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.lock() = Phase::Idle(Instant::now());
        self.0.rested.notify_one();
    }
}

/// A deadline that a task is woken at. Allocated at its first use: a quick connection has none.
#[derive(Default)]
struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    deadline: Option<Instant>,
}

impl Timer {
    fn stop(&mut self) {
        self.deadline = None;
    }

    /// The deadline that runs, or else this one from now on.
    fn or_begin(&mut self, deadline: Instant) -> Instant {
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

/// How long a connection may be idle while what is held for clients is nearly all that may be.
const TIGHT_IDLE: Duration = Duration::from_secs(5);
/// How much of a client's next requests is read ahead while it waits for an answer.
const MAX_AHEAD: usize = 64 * 1024;
/// How much is taken of what a client still sends when its connection ends.
const MAX_SEE_OFF: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use crate::downstream::http::connection::timed_io::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio_util::task::TaskTracker;

    fn wire(buffer: usize) -> (Wire<DuplexStream>, DuplexStream) {
        let (ours, theirs) = duplex(buffer);
        (Wire::new(ours, &Timeouts::default(), &Budget::new(1 << 20)), theirs)
    }

    fn is_timeout<T>(result: io::Result<T>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_time_from_its_first_byte_however_it_trickles() {
        let (mut wire, mut client) = wire(64);
        let start = Instant::now();
        let trickle = async {
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                if client.write_all(b"G").await.is_err() {
                    break;
                }
            }
        };
        let read = async { while wire.read_u8().await.is_ok() {} };
        tokio::select! { () = trickle => {}, () = read => {} }
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn between_requests_there_is_more_time_and_none_runs_while_one_is_worked_on() {
        let (mut wire, mut client) = wire(64);
        let busy = wire.busy(Some(0));
        let waited = tokio::time::timeout(Duration::from_secs(600), wire.read_u8()).await;
        assert!(waited.is_err(), "no limit of the connection's own");
        drop(busy);
        let start = Instant::now();
        wire.clone().idle_too_long().await;
        assert_eq!(start.elapsed(), Duration::from_secs(75));
        drop(wire.busy(Some(0)));
        client.write_all(b"P").await.expect("room");
        assert!(wire.read_u8().await.is_ok());
        let start = Instant::now();
        assert!(is_timeout(wire.read_u8().await));
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn where_much_is_held_an_idle_connection_closes_after_five_seconds() {
        let budget = Budget::new(1 << 20);
        let (ours, _theirs) = duplex(64);
        let wire = Wire::new(ours, &Timeouts::default(), &budget);
        drop(wire.busy(Some(0)));
        let mut held = budget.hold();
        held.grow((1 << 20) * 85 / 100 + 1).expect("room");
        let start = Instant::now();
        wire.clone().idle_too_long().await;
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_and_one_that_takes_little_is_not() {
        let (mut wire, mut client) = wire(1);
        let start = Instant::now();
        let slow = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(29)).await;
                client.read_u8().await.expect("a byte");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            result = wire.write_all(&[0; 100]) => assert!(is_timeout(result)),
            () = slow => {}
        }
        assert_eq!(start.elapsed(), Duration::from_secs(3 * 29 + 30));
    }

    #[tokio::test]
    async fn a_client_that_leaves_is_noticed_behind_what_it_sent_ahead() {
        let (mut wire, mut client) = wire(64);
        client.write_all(b"POST").await.expect("room");
        let gone = TaskTracker::new().spawn(wire.clone().gone());
        drop(client);
        gone.await.expect("no panic");
        let mut read = Vec::new();
        wire.read_to_end(&mut read).await.expect("the bytes are still there");
        assert_eq!(read, b"POST");
    }
}
