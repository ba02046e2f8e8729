//! Wait for the end of a connection that its client does not decide: it is idle for too long, Weir
//! stops, or the client's certificate has expired.
//!
//! The task of a connection is woken by each byte of a request, and polls everything that it waits
//! for. Invariant: what ends a connection is polled only if it was woken itself. It stands in the
//! task, and only its waker is allocated.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use weir_base::tasks::suppressible_waker::SuppressibleWaker;

/// Future that is ready with `wait`, and polls it only if it was woken.
pub(crate) struct ConnectionOver<'a, W> {
    wait: Pin<&'a mut W>,
    /// Counts the wakes of `wait`; never suppressed.
    wakes: Arc<SuppressibleWaker>,
    waker: Waker,
}

/// Reason to close a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// It has been idle for too long, or was evicted.
    Idle,
    /// Weir stops, or the client's certificate has expired.
    Closing,
}

impl<'a, W> ConnectionOver<'a, W> {
    pub(crate) fn new(wait: Pin<&'a mut W>) -> Self {
        let wakes = Arc::<SuppressibleWaker>::default();
        let waker = Waker::from(Arc::clone(&wakes));
        Self { wait, wakes, waker }
    }
}

impl<W: Future<Output = CloseReason>> Future for ConnectionOver<'_, W> {
    type Output = CloseReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReason> {
        self.wakes.register(cx.waker());
        if self.wakes.take_wakes() == 0 {
            return Poll::Pending;
        }
        let Self { wait, waker, .. } = &mut *self;
        wait.as_mut().poll(&mut Context::from_waker(waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;
    use tokio_util::sync::CancellationToken;
    use weir_base::tasks::suppressible_waker::WakeCounter;

    #[test]
    fn an_end_is_polled_at_first_and_when_it_was_woken_itself() {
        let (stop, task) = (CancellationToken::new(), Arc::<WakeCounter>::default());
        let (mut polls, mut stopped) = (0, pin!(stop.cancelled()));
        let wait = pin!(poll_fn(|cx| {
            polls += 1;
            stopped.as_mut().poll(cx).map(|()| CloseReason::Closing)
        }));
        let mut over = ConnectionOver::new(wait);
        let waker = Waker::from(Arc::clone(&task));
        let mut poll = || Pin::new(&mut over).poll(&mut Context::from_waker(&waker));
        for _ in 0..3 {
            assert_eq!((poll(), task.take_wakes()), (Poll::Pending, 0));
        }
        stop.cancel();
        assert_eq!(task.take_wakes(), 1);
        assert_eq!(poll(), Poll::Ready(CloseReason::Closing));
        assert_eq!(polls, 2);
    }
}
