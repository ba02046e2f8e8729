//! A large body on its way through: from an upstream that sends it to a client that reads it.
//!
//! Promises: a silence of the upstream's ends it, and so does the last moment of its call, whether anybody reads it then
//! or not. It keeps its call's turn while it arrives; from a reader that has kept it waiting for [`MAX_WAITED`], all
//! pauses together, the turn goes to others, and the reader reads on without one.
//!
//! Knows nothing of: what the body holds, and who reads it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::mcp::call::Broken;
use crate::upstream::health::on_demand::Use;

/// How long a reader may keep a turn waiting: as long as it may take nothing at all of what is written to it. A reader on
/// a line of 2 Mbit/s has read 8 MiB by then.
pub(crate) const MAX_WAITED: Duration = Duration::from_secs(30);

/// The pieces of a body.
pub(crate) type Pieces = BoxStream<'static, Result<Bytes, Broken>>;

/// What a body has until it has passed.
pub(crate) struct Passing {
    /// Of the upstream's calls in flight.
    pub(crate) turn: Option<OwnedSemaphorePermit>,
    /// So that the upstream does not fall asleep, where it might.
    pub(crate) in_use: Option<Use>,
    /// How long it may send nothing.
    pub(crate) silence: Duration,
    /// When the call has lasted too long.
    pub(crate) last_moment: Instant,
    /// Fires when the upstream is not wanted any more: nobody waits for what watches over the body then.
    pub(crate) stop: CancellationToken,
}

impl Passing {
    /// The body, held to its limits. A task watches over it until it has passed.
    pub(crate) fn through(self, pieces: Pieces, tasks: &TaskTracker) -> Pieces {
        let Self { turn, in_use, silence, last_moment, stop } = self;
        let waits = Waits { pieces, _in_use: in_use, since: Instant::now() };
        let desk = Desk { waits: Some(waits), turn, waited: Duration::ZERO };
        let desk = Arc::new(Mutex::new(desk));
        let watching = watch(Arc::clone(&desk), last_moment);
        let watching = async move {
            let _: Option<()> = stop.run_until_cancelled(watching).await;
        };
        let state = Some(Owner { desk, _watcher: AbortOnDropHandle::new(tasks.spawn(watching)) });
        let late = || Some((Err(Broken("it took too long".into())), None));
        stream::unfold(state, move |state| async move {
            let owner = state?;
            let Some(Waits { mut pieces, _in_use, .. }) = lock(&owner.desk).take_up() else {
                return late();
            };
            if last_moment <= Instant::now() {
                return late();
            }
            let end = (Instant::now() + silence).min(last_moment);
            match timeout_at(end, pieces.next()).await {
                Ok(None) => None,
                Ok(Some(Ok(piece))) => {
                    let since = Instant::now();
                    lock(&owner.desk).waits = Some(Waits { pieces, _in_use, since });
                    Some((Ok(piece), Some(owner)))
                }
                Ok(Some(Err(broken))) => Some((Err(broken), None)),
                Err(_) => Some((Err(Broken("it stopped arriving".into())), None)),
            }
        })
        .boxed()
    }
}

/// Where a body lies while it waits for its reader.
struct Desk {
    waits: Option<Waits>,
    turn: Option<OwnedSemaphorePermit>,
    /// How long it has waited by now, without the last time.
    waited: Duration,
}

/// Whoever has the body to read. With it all that the body has is gone.
struct Owner {
    desk: Arc<Mutex<Desk>>,
    _watcher: AbortOnDropHandle<()>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        clear(&self.desk);
    }
}

struct Waits {
    pieces: Pieces,
    _in_use: Option<Use>,
    since: Instant,
}

impl Desk {
    /// Its reader wants more. `None` if it comes too late.
    fn take_up(&mut self) -> Option<Waits> {
        let waits = self.waits.take()?;
        self.waited += waits.since.elapsed();
        Some(waits)
    }

    /// How much longer it would have to wait at least for its turn to be given to others.
    fn patience(&self) -> Duration {
        let now = self.waits.as_ref().map_or(Duration::ZERO, |waits| waits.since.elapsed());
        MAX_WAITED.saturating_sub(self.waited + now)
    }
}

/// Gives the turn to others when its reader has taken too long, and ends what is not read at its last moment.
async fn watch(desk: Arc<Mutex<Desk>>, last_moment: Instant) {
    loop {
        let patience = lock(&desk).patience();
        if patience.is_zero() || last_moment <= Instant::now() + patience {
            break;
        }
        sleep(patience).await;
    }
    if lock(&desk).patience().is_zero() {
        lock(&desk).turn = None;
    }
    sleep_until(last_moment).await;
    clear(&desk);
}

fn clear(desk: &Mutex<Desk>) {
    let left = {
        let mut desk = lock(desk);
        (desk.waits.take(), desk.turn.take())
    };
    // Not under the lock: its upstream is told.
    drop(left);
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use crate::upstream::call::body_stream::*;

    const CALL: Duration = Duration::from_secs(60);
    const CALL_MAX: Duration = Duration::from_secs(600);

    /// A body of as many pieces as there are, each after its time, and the turns of which it has one.
    fn passing(times: &[u64]) -> (Pieces, Arc<Semaphore>, TaskTracker) {
        let (turns, tasks) = (Arc::new(Semaphore::new(1)), TaskTracker::new());
        let turn = Arc::clone(&turns).try_acquire_owned().ok();
        let pieces = stream::iter(times.to_vec()).then(async |seconds| {
            sleep(Duration::from_secs(seconds)).await;
            Ok(Bytes::from_static(b"x"))
        });
        let last_moment = Instant::now() + CALL_MAX;
        let stop = CancellationToken::new();
        let passing = Passing { turn, in_use: None, silence: CALL, last_moment, stop };
        (passing.through(pieces.boxed(), &tasks), turns, tasks)
    }

    async fn pass(seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn f60_a_slow_reader_gives_its_turn_to_others_and_reads_on() {
        let (mut pieces, turns, tasks) = passing(&[0; 100]);
        let begin = Instant::now();
        let mut read = 0;
        while let Some(piece) = pieces.next().await {
            assert!(piece.is_ok());
            read += 1;
            let free = usize::from(begin.elapsed() >= MAX_WAITED);
            assert_eq!(turns.available_permits(), free, "after {:?}", begin.elapsed());
            pass(4).await;
        }
        assert_eq!(read, 100);
        drop(pieces);
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test(start_paused = true)]
    async fn f60_who_reads_nothing_more_gives_it_up_without_being_asked() {
        let (pieces, turns, _tasks) = passing(&[0; 100]);
        pass(29).await;
        assert_eq!(turns.available_permits(), 0);
        pass(2).await;
        assert_eq!(turns.available_permits(), 1);
        drop(pieces);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_takes_its_time_keeps_the_turn_to_the_end() {
        let (mut pieces, turns, _tasks) = passing(&[50; 11]);
        while let Some(piece) = pieces.next().await {
            assert!(piece.is_ok());
            assert_eq!(turns.available_permits(), 0);
        }
        drop(pieces);
        assert_eq!(turns.available_permits(), 1);
        let (mut pieces, ..) = passing(&[50, 61]);
        assert!(pieces.next().await.expect("a piece").is_ok());
        assert_eq!(pieces.next().await, Some(Err(Broken("it stopped arriving".into()))));
        assert_eq!(pieces.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_is_stopped_waits_for_no_reader() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let last_moment = Instant::now() + CALL_MAX;
        let (turn, stopped) = (None, stop.clone());
        let passing = Passing { turn, in_use: None, silence: CALL, last_moment, stop: stopped };
        let mut pieces =
            passing.through(stream::repeat(Ok(Bytes::from_static(b"x"))).boxed(), &tasks);
        assert!(pieces.next().await.expect("a piece").is_ok());
        let begin = Instant::now();
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        drop(pieces);
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
        let body = stream::repeat(()).map(move |()| {
            let _ = &gone;
            Ok(Bytes::from_static(b"x"))
        });
        let last_moment = Instant::now() + CALL_MAX;
        let stop = CancellationToken::new();
        let passing = Passing { turn: None, in_use: None, silence: CALL, last_moment, stop };
        let mut pieces = passing.through(body.boxed(), &tasks);
        assert!(pieces.next().await.expect("a piece").is_ok());
        pass(599).await;
        assert!(pieces.next().await.expect("a piece").is_ok());
        pass(1).await;
        sleep(Duration::from_millis(1)).await;
        assert!(open.is_closed(), "its upstream has been told");
        assert_eq!(pieces.next().await, Some(Err(Broken("it took too long".into()))));
    }
}
