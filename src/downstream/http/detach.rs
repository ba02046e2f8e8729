//! Call that continues after its response stream is lost.
//!
//! In the legacy era losing a stream does not cancel (spec 2025-11-25, transports: "disconnection
//! SHOULD NOT be interpreted as the client cancelling its request"): the call continues until its
//! own limit, its client's cancellation or the end of the session, and its response is dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Future that is spawned on the tracker if it is dropped before its end.
pub(super) struct Detached<T: Send + 'static> {
    work: Option<BoxFuture<'static, T>>,
    tracker: TaskTracker,
    /// Shutdown token: no client waits for the response, so shutdown does not wait for the call.
    stop: CancellationToken,
}

impl<T: Send + 'static> Detached<T> {
    pub(super) fn new(
        work: BoxFuture<'static, T>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self { work: Some(work), tracker: tasks, stop }
    }
}

impl<T: Send + 'static> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("polled after its end");
        let done = std::task::ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        let (Some(work), Ok(runtime)) = (self.work.take(), Handle::try_current()) else {
            return;
        };
        let stop = self.stop.clone();
        let run_on = async move {
            tokio::select! {
                biased;
                _ = work => {}
                () = stop.cancelled() => {}
            }
        };
        self.tracker.spawn_on(run_on, &runtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn dropped_work_goes_on_and_finished_work_does_not_come_again() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (go, wait) = oneshot::channel::<()>();
        let (sender, received) = oneshot::channel();
        let work = async move {
            let _ = wait.await;
            let _ = sender.send(7);
        };
        drop(Detached::new(work.boxed(), tasks.clone(), stop.clone()));
        go.send(()).expect("the work waits");
        assert_eq!(received.await, Ok(7));

        assert_eq!(Detached::new(async { 7 }.boxed(), tasks.clone(), stop).await, 7);
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn a_closing_house_does_not_wait_for_it() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        drop(Detached::new(std::future::pending::<()>().boxed(), tasks.clone(), stop.clone()));
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }
}
