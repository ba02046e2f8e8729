//! Work that takes as long as a list is, done without holding up what else a worker thread has to do.
//!
//! A list may have a million items, and what is made of it takes seconds. [`run`] does such work on the thread that it
//! is called on, which first gives its other tasks away; so nothing changes for the caller, neither in which order
//! things happen nor whether it can fail. Short work, and all work of a runtime that has one thread only (as the tests in
//! memory have), is simply done.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// From so many items on, work is long: at a few microseconds each, they take some milliseconds together. Giving the other
/// tasks away takes less than a tenth of one.
const MANY: usize = 1_000;

/// How many bytes of a message there are to an item, at a guess.
const ITEM_BYTES: usize = 64;

/// Does work on so many items.
pub fn run<R>(items: usize, work: impl FnOnce() -> R) -> R {
    if items >= MANY && has_other_threads() { block_in_place(work) } else { work() }
}

/// Does work on the items of a message of so many bytes.
pub fn run_on_bytes<R>(bytes: usize, work: impl FnOnce() -> R) -> R {
    run(bytes / ITEM_BYTES, work)
}

/// Takes a lock under which such work is done. A holder that panicked has left the state whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            run(MANY, || mutex.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }
}

/// Drops a value that holds so many items, on another thread if that takes long.
pub fn discard<T: Send + 'static>(items: usize, value: T) {
    if items >= MANY && has_other_threads() {
        // A runtime that is being shut down drops it here and now.
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

    /// Whether another task of the only worker runs while this work is done: it waits for that in vain otherwise.
    async fn lets_others_run(items: usize) -> bool {
        let ran = Arc::new(AtomicBool::new(false));
        let (begun, sees) = (Arc::clone(&ran), Arc::clone(&ran));
        let tasks = tokio_util::task::TaskTracker::new();
        let working = tasks.spawn(async move {
            tokio_util::task::TaskTracker::new()
                .spawn(async move { begun.store(true, Ordering::Release) });
            run(items, || {
                let begin = std::time::Instant::now();
                while !sees.load(Ordering::Acquire) && begin.elapsed().as_millis() < 200 {
                    std::thread::yield_now();
                }
                sees.load(Ordering::Acquire)
            })
        });
        working.await.expect("it does not panic")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_lets_the_other_tasks_of_its_worker_run() {
        assert!(lets_others_run(1_000_000).await);
        assert!(!lets_others_run(MANY - 1).await, "short work is not worth it");
    }

    #[tokio::test]
    async fn on_a_single_thread_work_is_done_in_its_turn() {
        assert!(!lets_others_run(1_000_000).await);
    }

    /// Tells on which thread it is dropped.
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
        assert_ne!(dropped(MANY), here);
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
