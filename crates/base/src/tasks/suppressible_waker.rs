//! Waker that is suppressed while its own task does what would wake it.
//!
//! hyper wakes the driver of a connection when a request is passed to it, or when more of a body is
//! requested. Here that is the task itself, which polls the connection anyway: if it were woken,
//! the whole request would be polled once more for nothing. The other way round a task may be woken
//! by anything, and polls a connection only if that was woken as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use futures::task::AtomicWaker;

/// Waker of the task that polls a connection.
pub struct SuppressibleWaker {
    task: AtomicWaker,
    /// Twice the number of wakes that were not taken, plus one while the waker is suppressed.
    state: AtomicUsize,
}

const SUPPRESSED: usize = 1;
const WAKE: usize = 2;

/// A connection that was never polled counts as woken.
impl Default for SuppressibleWaker {
    fn default() -> Self {
        Self { task: AtomicWaker::default(), state: AtomicUsize::new(WAKE) }
    }
}

impl SuppressibleWaker {
    /// Sets the waker of the task, at the beginning of each poll.
    pub fn register(&self, task: &Waker) {
        self.task.register(task);
    }

    /// Runs `work` without waking the task, and returns how often it would have been woken, perhaps
    /// by another thread. A caller that ignores this polls the connection next, or already has the
    /// result.
    pub fn without_waking<T>(&self, work: impl FnOnce() -> T) -> (T, usize) {
        let before = self.state.fetch_or(SUPPRESSED, Ordering::AcqRel);
        let done = work();
        let after = self.state.fetch_and(!SUPPRESSED, Ordering::AcqRel);
        (done, after / WAKE - before / WAKE)
    }

    /// Returns the number of wakes since the last call. Unless it is 0, the caller polls the
    /// connection, or what else the waker is for.
    pub fn take_wakes(&self) -> usize {
        self.state.fetch_and(SUPPRESSED, Ordering::AcqRel) / WAKE
    }
}

impl Wake for SuppressibleWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.fetch_add(WAKE, Ordering::AcqRel) & SUPPRESSED == 0 {
            self.task.wake();
        }
    }
}

/// Waker that counts the wakes of a task in a test.
#[cfg(any(test, feature = "testing"))]
#[derive(Default)]
pub struct WakeCounter(AtomicUsize);

#[cfg(any(test, feature = "testing"))]
impl WakeCounter {
    /// Returns the number of wakes since the last call.
    pub fn take_wakes(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

#[cfg(any(test, feature = "testing"))]
impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suppressed_waker_counts_the_wakes_of_all_threads_and_another_one_passes_them_on() {
        let (task, suppressible) = (Arc::<WakeCounter>::default(), Arc::default());
        let waker = Waker::from(Arc::<SuppressibleWaker>::clone(&suppressible));
        suppressible.register(&Waker::from(Arc::clone(&task)));
        let ((), wakes) = suppressible.without_waking(|| {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..100).for_each(|_| waker.wake_by_ref()));
                }
            });
        });
        assert_eq!((wakes, task.take_wakes()), (400, 0));
        assert_eq!(suppressible.take_wakes(), 401, "it was never polled before");
        assert_eq!(suppressible.take_wakes(), 0);
        assert_eq!(suppressible.without_waking(|| ()), ((), 0));
        waker.wake_by_ref();
        assert_eq!(suppressible.take_wakes(), 1);
        assert_eq!(task.take_wakes(), 1);
    }
}
