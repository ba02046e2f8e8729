//! CPU-bound work that must not block the other tasks of a worker thread.
//!
//! A list may have a million items, and processing it takes seconds. [`run`] does such work on the
//! calling thread, which first hands its other tasks to another thread. For the caller nothing
//! changes, neither the order of events nor whether it can fail. Short work, and all work of a
//! single-threaded runtime (as in the in-memory tests), runs in place.

use crate::tasks::sync::{Mutex, MutexGuard};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Number of items from which work counts as long: at a few microseconds each, they take some
/// milliseconds together. Handing over the other tasks takes less than a tenth of one.
const LONG_WORK_ITEMS: usize = 1_000;

/// Estimated bytes of a message per item.
const ITEM_BYTES: usize = 64;

/// Does work on `items` items, without blocking the other tasks of this thread.
pub fn run<R>(items: usize, work: impl FnOnce() -> R) -> R {
    if items >= LONG_WORK_ITEMS && has_other_threads() { block_in_place(work) } else { work() }
}

/// Does work on the items of a message of `bytes` bytes.
pub fn run_on_bytes<R>(bytes: usize, work: impl FnOnce() -> R) -> R {
    run(bytes / ITEM_BYTES, work)
}

/// Does work that is long whatever it is about, or that waits for a disk.
pub fn run_long<R>(work: impl FnOnce() -> R) -> R {
    run(LONG_WORK_ITEMS, work)
}

/// Takes a lock under which long work is done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.try_lock().unwrap_or_else(|| run_long(|| mutex.lock()))
}

/// Drops a value of `items` items, on another thread if that takes long.
pub fn discard<T: Send + 'static>(items: usize, value: T) {
    if items >= LONG_WORK_ITEMS && has_other_threads() {
        // A runtime that is shutting down drops the value immediately, on this thread.
        drop(Handle::current().spawn_blocking(move || drop(value)));
    }
}

fn has_other_threads() -> bool {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    flavor.is_ok_and(|flavor| flavor == RuntimeFlavor::MultiThread)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::ThreadId;
    use std::time::Duration;

    /// Longest wait for the other task where it must run: without [`block_in_place`] it never does.
    const PATIENCE: Duration = Duration::from_secs(20);
    /// Wait for it where it cannot run.
    const GLANCE: Duration = Duration::from_millis(200);

    /// Returns whether another task of the only worker runs while this work is done; otherwise the
    /// work waits for it until the time is up.
    async fn lets_others_run(items: usize, time: Duration) -> bool {
        let ran = Arc::new(AtomicBool::new(false));
        let (begun, sees) = (Arc::clone(&ran), Arc::clone(&ran));
        let tasks = tokio_util::task::TaskTracker::new();
        let working = tasks.spawn(async move {
            tokio_util::task::TaskTracker::new()
                .spawn(async move { begun.store(true, Ordering::Release) });
            run(items, || {
                let begin = std::time::Instant::now();
                while !sees.load(Ordering::Acquire) && begin.elapsed() < time {
                    std::thread::yield_now();
                }
                sees.load(Ordering::Acquire)
            })
        });
        working.await.expect("it does not panic")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_lets_the_other_tasks_of_its_worker_run() {
        assert!(lets_others_run(1_000_000, PATIENCE).await);
        assert!(!lets_others_run(LONG_WORK_ITEMS - 1, GLANCE).await, "short work is not worth it");
    }

    #[tokio::test]
    async fn on_a_single_thread_work_is_done_in_its_turn() {
        assert!(!lets_others_run(1_000_000, GLANCE).await);
    }

    /// Sends the id of the thread that drops it.
    struct Tells(std::sync::mpsc::Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().id());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_is_long_is_dropped_on_another_thread() {
        let here = std::thread::current().id();
        let dropped = |items| {
            let (tells, told) = std::sync::mpsc::channel();
            discard(items, Tells(tells));
            told.recv().expect("it is dropped")
        };
        assert_ne!(dropped(LONG_WORK_ITEMS), here);
        assert_eq!(dropped(1), here);
    }

    #[test]
    fn a_lock_is_taken_whoever_held_it_and_wherever() {
        let mutex = Mutex::new(7);
        std::thread::scope(|scope| {
            let guard = lock(&mutex);
            let waits = scope.spawn(|| *lock(&mutex));
            drop(guard);
            assert_eq!(waits.join().expect("it does not panic"), 7);
            let panics = scope.spawn(|| {
                let _guard = lock(&mutex);
                panic!("on purpose");
            });
            assert!(panics.join().is_err());
        });
        assert_eq!(*lock(&mutex), 7);
    }
}
