//! Fairness between the tasks of a thread: timers fire and loops yield, however fast a peer sends.
//!
//! tokio polls a task until it waits, or until its budget of 128 operations is used up. From then
//! on every timer of the task reports that it is pending, even an expired one. A peer that always
//! has more to read keeps a task in that state: its deadlines never fire, and the other tasks of
//! the thread wait.
//!
//! Two rules prevent that. A timer beside other work of the same task is polled through
//! [`promptly`]. A loop that reads from a peer counts its work in a [`Workload`] and yields after a
//! turn's worth, long before the budget is used up; loops in other libraries read through a
//! [`FairStream`].
//!
//! Decision: docs/decisions/0028-misbehaving-peers.md

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;
use tokio::time::Instant;

/// Work of one turn, after which a task yields to the others of its thread: this many messages,
/// reads or pieces, or this many bytes. In an optimized build either takes some tenths of a
/// millisecond. The first is well below the 128 operations that tokio allows.
const TURN_ITEMS: usize = 32;
const TURN_BYTES: usize = 256 * 1024;
/// Cost of a small item, such as a line that is stored: some tenths of a microsecond.
const SMALL_ITEM_BYTES: usize = 512;

/// Bytes that may be parsed without checking the [`Workload`].
pub const PIECE_BYTES: usize = 4 * 1024;

/// Polls an event that must not be missed, above all a timer, even if other work has used up the
/// task's budget.
pub fn promptly<T>(event: impl Future<Output = T>) -> impl Future<Output = T> {
    unconstrained(event)
}

/// Waits until a time; without one for ever. The timer is boxed: there are thousands of futures
/// that wait like this, and they rarely have a time.
pub async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => promptly(Box::pin(tokio::time::sleep_until(at))).await,
        None => std::future::pending().await,
    }
}

// === Workload ===

/// Counter of a loop's work, which makes the loop yield after a bounded amount.
#[derive(Debug, Default)]
pub struct Workload {
    items: usize,
    bytes: usize,
}

impl Workload {
    /// Counts one more item of `bytes` bytes.
    pub fn add(&mut self, bytes: usize) {
        self.items += 1;
        self.bytes += bytes;
    }

    /// Counts one more small item, which costs as much as [`SMALL_ITEM_BYTES`] beside its `bytes`.
    pub fn add_small(&mut self, bytes: usize) {
        self.bytes += SMALL_ITEM_BYTES + bytes;
    }

    /// Yields to other tasks if this one has done a turn's work. Cancel-safe.
    pub async fn yield_if_due(&mut self) {
        if self.is_due() {
            yield_now().await;
        }
    }

    /// Returns whether a turn's work was done, and restarts the count in that case.
    fn is_due(&mut self) -> bool {
        let is_due = self.items >= TURN_ITEMS || self.bytes >= TURN_BYTES;
        if is_due {
            *self = Self::default();
        }
        is_due
    }
}

// === FairStream ===

/// Stream whose reader yields after a bounded number of reads and bytes, whatever loop it reads in.
pub struct FairStream<S> {
    stream: S,
    workload: Workload,
    read_bytes: Arc<AtomicU64>,
}

impl<S> FairStream<S> {
    /// Wraps a stream.
    pub fn new(stream: S) -> Self {
        Self { stream, workload: Workload::default(), read_bytes: Arc::default() }
    }

    /// Returns a counter of the bytes read, which stays valid after the stream has been moved.
    pub fn read_bytes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read_bytes)
    }

    /// Returns the stream that it has wrapped.
    pub fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FairStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.workload.is_due() {
            // `yield_now` is pending at its first poll and wakes the task after the others had
            // their turn.
            ready!(pin!(yield_now()).poll(cx));
        }
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, into));
        let bytes = into.filled().len() - before;
        self.workload.add(bytes);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FairStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::task::consume_budget;

    use super::*;

    /// Uses up the budget of each poll.
    async fn greedy() {
        loop {
            consume_budget().await;
        }
    }

    #[tokio::test]
    async fn a_timer_beside_work_that_uses_up_the_budget_fires() {
        // Without `promptly` the timer never fires.
        let end = Instant::now() + Duration::from_millis(20);
        let fires = async {
            tokio::select! {
                biased;
                () = greedy() => {}
                () = promptly(tokio::time::sleep_until(end)) => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(20), fires).await.expect("it fires");
    }

    #[tokio::test(start_paused = true)]
    async fn work_yields_after_as_many_items_or_bytes_as_are_a_turn() {
        for (bytes, expected) in [(0, TURN_ITEMS), (TURN_BYTES / 4, 4)] {
            let (mut workload, mut done) = (Workload::default(), 0);
            let mut work = Box::pin(async {
                loop {
                    workload.yield_if_due().await;
                    workload.add(bytes);
                    done += 1;
                }
            });
            let waker = std::task::Waker::noop();
            let polled: Poll<()> = work.as_mut().poll(&mut Context::from_waker(waker));
            drop(work);
            assert!(polled.is_pending());
            assert_eq!(done, expected);
        }
    }

    #[tokio::test]
    async fn a_stream_that_always_has_more_is_pending_after_a_turn_and_then_goes_on() {
        let mut stream = FairStream::new(tokio::io::join(tokio::io::repeat(7), tokio::io::sink()));
        let mut buffer = vec![0; TURN_BYTES / 2];
        let mut reads = 0;
        let mut reading = Box::pin(async {
            loop {
                stream.read_exact(&mut buffer).await.expect("it reads");
                reads += 1;
            }
        });
        let waker = std::task::Waker::noop();
        for _ in 0..3 {
            let polled: Poll<()> = reading.as_mut().poll(&mut Context::from_waker(waker));
            assert!(polled.is_pending());
        }
        drop(reading);
        assert_eq!(reads, 6);
    }
}
