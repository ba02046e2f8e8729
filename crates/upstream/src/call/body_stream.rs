//! Streamed response body between an upstream and the client that reads it.
//!
//! Invariants: silence of the upstream for the idle timeout ends the body, and so does the hard
//! deadline of its call, whether or not a client reads it then. The body keeps its call's
//! concurrency permit while it arrives. If the reader has kept it waiting for [`MAX_WAITED`] in
//! total, the permit is released, and the reader continues without one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::call::route::CallRoute;
use crate::health::on_demand::UsageGuard;
use crate::shared::Shared;
use weir_base::tasks::sync::Mutex;
use weir_mcp::call::PayloadBroken;

/// Time that a reader may keep a permit waiting: as long as a client connection may accept no data
/// at all. A reader with 2 Mbit/s has read 8 MiB by then.
pub(crate) const MAX_WAITED: Duration = Duration::from_secs(30);

/// Chunks of a body.
pub(crate) type BodyChunks = BoxStream<'static, Result<Bytes, PayloadBroken>>;

/// Limits and resources of a body until it has been read.
pub(crate) struct StreamedBody {
    /// Concurrency permit of the call.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// Kept until the body has been read; `None` in tests.
    pub(crate) in_use: Option<BodyInUse>,
    /// Maximum silence of the upstream.
    pub(crate) idle_timeout: Duration,
    /// Time at which the call ends in any case.
    pub(crate) hard_deadline: Instant,
    /// Fires when the upstream is stopped: then nothing needs the task that watches the body.
    pub(crate) stop: CancellationToken,
}

/// Resources that a body needs while it arrives.
pub(crate) struct BodyInUse {
    /// Keeps an on-demand upstream from being stopped.
    pub(crate) _usage: Option<UsageGuard>,
    /// The connection, or the session of the pool, that it arrives over.
    pub(crate) _route: CallRoute,
    /// Keeps the upstream running, even if a reload has removed it.
    pub(crate) _shared: Arc<Shared>,
}

impl StreamedBody {
    /// Wraps the body with its limits. A task watches it until it has been read.
    pub(crate) fn wrap(self, chunks: BodyChunks, tasks: &TaskTracker) -> BodyChunks {
        let Self { permit, in_use, idle_timeout, hard_deadline, stop } = self;
        let waiting = WaitingBody { chunks, _in_use: in_use, since: Instant::now() };
        let slot = BodySlot { waiting: Some(waiting), permit, waited: Duration::ZERO };
        let slot = Arc::new(Mutex::new(slot));
        let watch_task = watch(Arc::clone(&slot), hard_deadline);
        let watch_task = async move {
            let _: Option<()> = stop.run_until_cancelled(watch_task).await;
        };
        let reader = BodyReader { slot, _watcher: AbortOnDropHandle::new(tasks.spawn(watch_task)) };
        let late = || PayloadBroken("the call took too long".into());
        let silent = |_| PayloadBroken("the upstream stopped sending the response".into());
        stream::try_unfold(reader, move |reader| async move {
            let waiting = reader.slot.lock().take();
            let WaitingBody { mut chunks, _in_use, .. } = waiting.ok_or_else(late)?;
            if hard_deadline <= Instant::now() {
                return Err(late());
            }
            let end = (Instant::now() + idle_timeout).min(hard_deadline);
            let next = timeout_at(end, chunks.try_next()).await.map_err(silent)?;
            let Some(piece) = next? else { return Ok(None) };
            let since = Instant::now();
            reader.slot.lock().waiting = Some(WaitingBody { chunks, _in_use, since });
            Ok(Some((piece, reader)))
        })
        .boxed()
    }
}

/// Slot of a body while it waits for its reader.
struct BodySlot {
    waiting: Option<WaitingBody>,
    permit: Option<OwnedSemaphorePermit>,
    /// Total waiting time so far, without the current pause.
    waited: Duration,
}

/// Reader of the body. Dropping it drops the body and its permit.
struct BodyReader {
    slot: Arc<Mutex<BodySlot>>,
    _watcher: AbortOnDropHandle<()>,
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        clear(&self.slot);
    }
}

struct WaitingBody {
    chunks: BodyChunks,
    _in_use: Option<BodyInUse>,
    since: Instant,
}

impl BodySlot {
    /// Takes the body for the next read; `None` after the hard deadline.
    fn take(&mut self) -> Option<WaitingBody> {
        let waiting = self.waiting.take()?;
        self.waited += waiting.since.elapsed();
        Some(waiting)
    }

    /// Least time that the body has to wait further until its permit is released.
    fn remaining_wait(&self) -> Duration {
        let now = self.waiting.as_ref().map_or(Duration::ZERO, |waiting| waiting.since.elapsed());
        MAX_WAITED.saturating_sub(self.waited + now)
    }
}

/// Releases the permit when the reader has taken too long, and drops an unread body at the hard
/// deadline.
async fn watch(slot: Arc<Mutex<BodySlot>>, hard_deadline: Instant) {
    loop {
        let remaining_wait = slot.lock().remaining_wait();
        if remaining_wait.is_zero() || hard_deadline <= Instant::now() + remaining_wait {
            break;
        }
        sleep(remaining_wait).await;
    }
    if slot.lock().remaining_wait().is_zero() {
        slot.lock().permit = None;
    }
    sleep_until(hard_deadline).await;
    clear(&slot);
}

fn clear(slot: &Mutex<BodySlot>) {
    let left = {
        let mut slot = slot.lock();
        (slot.waiting.take(), slot.permit.take())
    };
    // Dropping the body notifies the upstream, so it happens outside the lock.
    drop(left);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use crate::call::body_stream::*;

    const CALL: Duration = Duration::from_secs(60);
    const CALL_MAX: Duration = Duration::from_secs(600);

    /// Body with one piece per entry, each after that many seconds, and the semaphore of its
    /// permit.
    fn streamed_body(times: &[u64]) -> (BodyChunks, Arc<Semaphore>, TaskTracker) {
        let (permits, tasks) = (Arc::new(Semaphore::new(1)), TaskTracker::new());
        let permit = Arc::clone(&permits).try_acquire_owned().ok();
        let chunks = stream::iter(times.to_vec()).then(async |seconds| {
            sleep(Duration::from_secs(seconds)).await;
            Ok(Bytes::from_static(b"x"))
        });
        let hard_deadline = Instant::now() + CALL_MAX;
        let stop = CancellationToken::new();
        let body = StreamedBody { permit, in_use: None, idle_timeout: CALL, hard_deadline, stop };
        (body.wrap(chunks.boxed(), &tasks), permits, tasks)
    }

    async fn pass(seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn f60_a_slow_reader_gives_its_turn_to_others_and_reads_on() {
        let (mut chunks, permits, tasks) = streamed_body(&[0; 100]);
        let begin = Instant::now();
        let mut read = 0;
        while let Some(piece) = chunks.next().await {
            assert!(piece.is_ok());
            read += 1;
            let free = usize::from(begin.elapsed() >= MAX_WAITED);
            assert_eq!(permits.available_permits(), free, "after {:?}", begin.elapsed());
            pass(4).await;
        }
        assert_eq!(read, 100);
        drop(chunks);
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test(start_paused = true)]
    async fn f60_who_reads_nothing_more_gives_it_up_without_being_asked() {
        let (chunks, permits, _tasks) = streamed_body(&[0; 100]);
        pass(29).await;
        assert_eq!(permits.available_permits(), 0);
        pass(2).await;
        assert_eq!(permits.available_permits(), 1);
        drop(chunks);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_takes_its_time_keeps_the_turn_to_the_end() {
        let (mut chunks, permits, _tasks) = streamed_body(&[50; 11]);
        while let Some(piece) = chunks.next().await {
            assert!(piece.is_ok());
            assert_eq!(permits.available_permits(), 0);
        }
        drop(chunks);
        assert_eq!(permits.available_permits(), 1);
        let (mut chunks, ..) = streamed_body(&[50, 61]);
        assert!(chunks.next().await.expect("a piece").is_ok());
        assert_eq!(
            chunks.next().await,
            Some(Err(PayloadBroken("the upstream stopped sending the response".into())))
        );
        assert_eq!(chunks.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_is_stopped_waits_for_no_reader() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let hard_deadline = Instant::now() + CALL_MAX;
        let (permit, stopped) = (None, stop.clone());
        let body =
            StreamedBody { permit, in_use: None, idle_timeout: CALL, hard_deadline, stop: stopped };
        let mut chunks = body.wrap(stream::repeat(Ok(Bytes::from_static(b"x"))).boxed(), &tasks);
        assert!(chunks.next().await.expect("a piece").is_ok());
        let begin = Instant::now();
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        drop(chunks);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_moment_of_its_call_ends_a_body_that_nobody_reads() {
        struct Gone(Arc<Semaphore>);
        impl Drop for Gone {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        let (tasks, open) = (TaskTracker::new(), Arc::new(Semaphore::new(1)));
        let gone = Gone(Arc::clone(&open));
        let chunks = stream::repeat(()).map(move |()| {
            let _ = &gone;
            Ok(Bytes::from_static(b"x"))
        });
        let hard_deadline = Instant::now() + CALL_MAX;
        let stop = CancellationToken::new();
        let body =
            StreamedBody { permit: None, in_use: None, idle_timeout: CALL, hard_deadline, stop };
        let mut chunks = body.wrap(chunks.boxed(), &tasks);
        assert!(chunks.next().await.expect("a piece").is_ok());
        pass(599).await;
        assert!(chunks.next().await.expect("a piece").is_ok());
        pass(1).await;
        sleep(Duration::from_millis(1)).await;
        assert!(open.is_closed(), "the upstream's body is dropped");
        assert_eq!(chunks.next().await, Some(Err(PayloadBroken("the call took too long".into()))));
    }
}
