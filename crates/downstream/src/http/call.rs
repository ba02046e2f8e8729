//! Call over HTTP: it waits for its client's concurrency permit and runs, and its response is
//! charged to the memory budget until the client has read it.
//!
//! Invariants: a call without a permit or memory gets an error response; nothing is dropped
//! silently. The future of a modern call belongs to the HTTP response and is dropped with it. That
//! of a legacy call changes its owner at most once, in [`Detached`].

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::request::HttpRequest;
use crate::limits::concurrency::Overloaded;
use crate::response::results::{self, memory_exhausted};
use crate::response::{ClientResponse, ResponseBody, ResponseFuture, catch_panics, finish_event};
use crate::session::SessionGuard;
use weir_gateway::ClientContext;
use weir_mcp::jsonrpc::Id;

/// Returns a modern call that runs within its client's limits.
pub(super) fn limited(
    request: &HttpRequest,
    client: &ClientContext,
    id: Id,
    call: ResponseFuture,
) -> ResponseFuture {
    let ResponseFuture { response, messages } = call;
    let response = run(request, client, Some(id), response).boxed();
    ResponseFuture { response, messages }
}

/// Returns a call of a legacy session that runs within its client's limits, keeps the session in
/// use, and survives the loss of its stream. A batch has no id.
pub(super) fn limited_in_session(
    request: &HttpRequest,
    client: &ClientContext,
    session: SessionGuard,
    id: Option<Id>,
    call: ResponseFuture,
) -> ResponseFuture {
    let ResponseFuture { response, messages } = call;
    let response = run(request, client, id, response);
    let in_session = async move {
        let response = response.await;
        drop(session);
        response
    };
    let (tracker, stop) = (request.state.tracker.clone(), request.state.stop.clone());
    let response = Detached { work: Some(in_session.boxed()), tracker, stop }.boxed();
    ResponseFuture { response, messages }
}

fn run(
    request: &HttpRequest,
    client: &ClientContext,
    id: Option<Id>,
    call: BoxFuture<'static, Option<ClientResponse>>,
) -> impl Future<Output = Option<ClientResponse>> + Send + 'static {
    let (state, principal) = (request.state.clone(), client.principal().clone());
    let audit_event = client.audit_event().clone();
    if id.is_some() {
        // The response may still be replaced by an error.
        audit_event.defer_end(true);
    }
    async move {
        let refuse = |refused| {
            Some(finish_event(&audit_event, ClientResponse::refused(id.as_ref(), &refused)))
        };
        let permit = match state.concurrency.acquire(&principal).await {
            Ok(permit) => permit,
            Err(Overloaded { retry_after }) => return refuse(results::too_busy(retry_after)),
        };
        let mut response = catch_panics(id.as_ref(), call).await?;
        match &mut response.text {
            ResponseBody::Whole(text) | ResponseBody::Parts([_, text, _]) => {
                match state.budget().charge(std::mem::take(text)) {
                    Ok(charged) => *text = charged,
                    Err(_) => return refuse(memory_exhausted()),
                }
            }
            ResponseBody::Arriving(result) => {
                // A streamed result is final, and its audit event ends with the last piece. Until
                // then it occupies one of the client's own permits, however slowly the client
                // reads.
                audit_event.defer_end(false);
                result.concurrency_permit = Some(permit);
            }
        }
        Some(response)
    }
}

/// Future of a legacy call, the one place where it changes its owner.
///
/// At first it belongs to the HTTP response. In this era losing a stream does not cancel (spec
/// 2025-11-25, transports: "disconnection SHOULD NOT be interpreted as the client cancelling its
/// request"). So when the response is dropped before the end, the call becomes a task of the
/// tracker: it continues until its own limit, its client's cancellation or the end of the session,
/// and its response is dropped.
struct Detached<T: Send + 'static> {
    work: Option<BoxFuture<'static, T>>,
    tracker: TaskTracker,
    /// Shutdown token: no client waits for the response, so shutdown does not wait for the call.
    stop: CancellationToken,
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
        let detached =
            |work| Detached { work: Some(work), tracker: tasks.clone(), stop: stop.clone() };
        drop(detached(work.boxed()));
        go.send(()).expect("the work waits");
        assert_eq!(received.await, Ok(7));

        let tracker = tasks.clone();
        assert_eq!(Detached { work: Some(async { 7 }.boxed()), tracker, stop }.await, 7);
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn a_shutdown_does_not_wait_for_it() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let work = Some(std::future::pending::<()>().boxed());
        drop(Detached { work, tracker: tasks.clone(), stop: stop.clone() });
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }
}
