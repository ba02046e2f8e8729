//! A call in flight: time limits, suspension for client input, and resumption.
//!
//! Invariants: a call that requests input is executed once. A suspended call has no concurrency
//! permit, its idle time stands still, and the messages that the upstream sends in the meantime are
//! processed. Dropping the call, in a [`SuspendedCall`] or elsewhere, cancels it at the upstream.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::CallSlot;
use crate::call::body_stream::{BodyInUse, StreamedBody};
use crate::call::route::{SentResponse, send_call};
use crate::health::health_state::CallFailure;
use crate::input_requests::InputRequests;
use crate::message::SentCount;
use crate::shared::Shared;
use crate::{Error, Timeouts};
use weir_base::tasks::fairness::promptly;
use weir_base::time::timestamp;
use weir_mcp::call::{CallContext, CallOutcome, Payload, ResponseOutcome, UpstreamRequest};
use weir_mcp::call_notifications::NotificationSink;
use weir_mcp::input_request::{InputRequest, InputResponse};

// === SuspendedCall ===

/// A call that is suspended until its client responds to input requests. Dropping it cancels the
/// call.
pub struct SuspendedCall {
    input_requests: Vec<InputRequest>,
    active: Box<ActiveCall>,
    since: Instant,
    /// Slot among the suspended calls.
    slot: OwnedSemaphorePermit,
}

impl SuspendedCall {
    /// Input requests of the upstream; each key once.
    pub fn input_requests(&self) -> &[InputRequest] {
        &self.input_requests
    }

    /// Whether the call was given up in favor of a later call of the same client.
    pub fn is_given_up(&self) -> bool {
        self.active.input_requests.is_given_up()
    }

    /// Waits for further input requests. `None` once no responses are needed any more: all have
    /// been submitted, the upstream has responded without them or withdrawn its requests, the
    /// upstream is lost, or the call has lasted too long. Then [`SuspendedCall::resume`] without
    /// responses returns the outcome. Cancel-safe.
    pub async fn next_input_requests(&mut self) -> Option<Vec<InputRequest>> {
        let ActiveCall { work, done, input_requests, .. } = &mut *self.active;
        if done.is_some() {
            return None;
        }
        tokio::select! {
            biased;
            response = work => {
                *done = Some(response);
                None
            }
            more = input_requests.next_new() => more,
        }
    }

    /// Submits one response ahead of the others. A legacy upstream sent each input request
    /// separately and receives the response at once; [`SuspendedCall::next_input_requests`] returns
    /// what it requests then.
    pub fn submit(&self, response: InputResponse) {
        self.active.input_requests.submit(response);
    }

    /// Resumes the call with the responses; input requests without a response are sent to the
    /// client again. The notification sink and the client features of `caller` replace the earlier
    /// ones.
    pub async fn resume(
        self,
        responses: Vec<InputResponse>,
        caller: CallContext,
    ) -> Result<CallOutcome<SuspendedCall>, Error> {
        let Self { mut active, since, slot, .. } = self;
        active.notifications.redirect(caller.notifications);
        if let Err(error) = active.reacquire_permit(since).await {
            return active.fail(error.into());
        }
        drop(slot);
        active.input_requests.submit_all(responses, caller.features);
        active.drive().await
    }
}

impl fmt::Debug for SuspendedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuspendedCall")
            .field("input_requests", &self.input_requests)
            .finish_non_exhaustive()
    }
}

// === ActiveCall ===

/// A call in flight. Boxed, since it moves between owners.
pub(crate) struct ActiveCall {
    shared: Arc<Shared>,
    work: BoxFuture<'static, Result<SentResponse, CallFailure>>,
    /// Whether the work runs in a separate task.
    is_detached: bool,
    /// Result of the work, if it ended while the call was suspended.
    done: Option<Result<SentResponse, CallFailure>>,
    slot: CallSlot,
    input_requests: InputRequests,
    /// Whether any request of the call has been written.
    sent: SentCount,
    notifications: NotificationSink,
    began: Instant,
    /// Start of the idle time, moved on by the time that the call was suspended.
    idle_since: Instant,
}

impl ActiveCall {
    /// Creates a call that is sent as soon as it is driven.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        slot: CallSlot,
        call: Box<UpstreamRequest>,
    ) -> Box<Self> {
        let began = Instant::now();
        let notifications = call.caller.notifications.clone();
        let budget = shared.input_budget.clone();
        let input_requests = InputRequests::new(&call.caller, budget);
        let sent = SentCount::default();
        let work =
            send_call(Arc::clone(shared), call, input_requests.clone(), sent.clone()).boxed();
        Box::new(Self {
            shared: Arc::clone(shared),
            work,
            is_detached: false,
            done: None,
            slot,
            input_requests,
            sent,
            notifications,
            began,
            idle_since: began,
        })
    }

    fn timeouts(&self) -> &Timeouts {
        &self.shared.settings.timeouts
    }

    /// Drives the call until it has a response or requests input.
    pub(crate) async fn drive(mut self: Box<Self>) -> Result<CallOutcome<SuspendedCall>, Error> {
        if let Some(done) = self.done.take() {
            return self.finish(done);
        }
        loop {
            let deadline = self.deadline();
            tokio::select! {
                biased;
                done = &mut self.work => return self.finish(done),
                new = self.input_requests.wait_for_new() => if let Err(missing) = new {
                    return self.fail(Error::UndeclaredFeature(missing).into());
                },
                () = promptly(sleep_until(deadline)) => {
                    // A notification may have moved the deadline.
                    if self.deadline() <= Instant::now() {
                        let error = self.timeout_error();
                        return self.fail(error.into());
                    }
                    continue;
                }
            }
            // Input requests that arrive within a short time are sent to the client together.
            if self.input_requests.arrive_individually() {
                let gathered = (Instant::now() + self.timeouts().gather).min(self.hard_deadline());
                tokio::select! {
                    biased;
                    done = &mut self.work => return self.finish(done),
                    () = promptly(sleep_until(gathered)) => {}
                }
            }
            let input_requests = match self.input_requests.take_new() {
                Ok(input_requests) => input_requests,
                Err(missing) => return self.fail(Error::UndeclaredFeature(missing).into()),
            };
            // The server may have withdrawn all of them by now.
            if input_requests.is_empty() {
                continue;
            }
            match Arc::clone(&self.shared.suspended_slots).try_acquire_owned() {
                Ok(slot) => {
                    return Ok(CallOutcome::InputRequired(self.suspend(input_requests, slot)));
                }
                // The call has begun, so a rejection that invites a retry would be wrong.
                Err(_) => self.input_requests.decline(&input_requests),
            }
        }
    }

    /// Suspends the call until its client responds.
    fn suspend(
        mut self: Box<Self>,
        input_requests: Vec<InputRequest>,
        slot: OwnedSemaphorePermit,
    ) -> SuspendedCall {
        self.slot.permit = None;
        self.slot.breaker.responded();
        if !self.is_detached {
            self.detach();
        }
        SuspendedCall { input_requests, active: self, since: Instant::now(), slot }
    }

    /// Moves the work into a separate task. The client may not return for as long as a user thinks,
    /// and an upstream that sends a notification on the call's stream, or a ping, must not wait for
    /// that.
    fn detach(&mut self) {
        self.is_detached = true;
        let work = std::mem::replace(&mut self.work, std::future::pending().boxed());
        let (began, end) = (self.began, self.hard_deadline());
        let stop = self.shared.stop.clone();
        let lost = |reason: &str| Err(CallFailure::from(Error::ConnectionLost(reason.into())));
        let stopped_error = move || lost("the upstream was stopped");
        let input_requests = self.input_requests.clone();
        let limited = async move {
            tokio::select! {
                biased;
                () = input_requests.wait_until_given_up() => {
                    lost("the call was given up for a later call of the same client")
                }
                done = timeout_at(end, stop.run_until_cancelled(work)) => {
                    let late = |_| Some(Err(Error::TimedOut(began.elapsed()).into()));
                    done.unwrap_or_else(late).unwrap_or_else(stopped_error)
                }
            }
        };
        let task = AbortOnDropHandle::new(self.shared.tracker.spawn(limited));
        self.work = task.map(move |done| done.unwrap_or_else(|_| stopped_error())).boxed();
    }

    /// Acquires a concurrency permit again after the call was suspended.
    async fn reacquire_permit(&mut self, since: Instant) -> Result<(), Error> {
        // A call that has begun waits until its hard deadline, unlike a new call, which is rejected
        // after a short wait.
        if self.done.is_none() {
            let permit =
                timeout_at(self.hard_deadline(), Arc::clone(&self.shared.permits).acquire_owned())
                    .await;
            let late = || Error::TimedOut(self.began.elapsed());
            self.slot.permit = Some(permit.map_err(|_| late())?.map_err(|_| late())?);
        }
        // A response counts as progress where progress resets the idle time; elsewhere the idle
        // time only stood still.
        self.idle_since = match self.timeouts().reset_on_progress {
            true => Instant::now(),
            false => self.idle_since + since.elapsed(),
        };
        Ok(())
    }

    /// Time at which the call is timed out.
    fn deadline(&self) -> Instant {
        let last_progress = match self.timeouts().reset_on_progress {
            true => self.notifications.last_progress_at().max(self.idle_since),
            false => self.idle_since,
        };
        (last_progress + self.timeouts().call).min(self.hard_deadline())
    }

    fn timeout_error(&self) -> Error {
        let lasted = self.began.elapsed();
        match self.sent.is_any_sent() {
            true => Error::TimedOut(lasted),
            false => {
                let lasted = timestamp::seconds(lasted);
                Error::Unavailable(format!("the request could not be sent within {lasted} s"))
            }
        }
    }

    /// Time at which the call ends in any case. It is not extended while the call is suspended: the
    /// resources that a suspended call uses at the upstream (a request, often a thread) have to be
    /// bounded by a limit that no client can stretch.
    fn hard_deadline(&self) -> Instant {
        self.began + self.timeouts().call_max
    }

    /// Ends the call without a response. The failed request may have been a later one of a call
    /// whose earlier requests were executed: then the call is not reported as unexecuted.
    fn fail(mut self: Box<Self>, failed: CallFailure) -> Result<CallOutcome<SuspendedCall>, Error> {
        self.slot.breaker.failed(&failed);
        Err(match failed.error {
            Error::Unavailable(reason) | Error::SignInNeeded(reason) if self.sent.is_any_sent() => {
                Error::ConnectionLost(reason)
            }
            error => error,
        })
    }

    fn finish(
        mut self: Box<Self>,
        done: Result<SentResponse, CallFailure>,
    ) -> Result<CallOutcome<SuspendedCall>, Error> {
        let SentResponse { mut response, route } = match done {
            Ok(response) => response,
            Err(failed) => {
                // The rejected input request came before the failure and is the cause to report.
                let missing = self
                    .input_requests
                    .missing_features()
                    .map(|missing| Error::UndeclaredFeature(missing).into());
                return self.fail(missing.unwrap_or(failed));
            }
        };
        self.slot.breaker.responded();
        if let ResponseOutcome::Result(Payload::Streaming(chunks)) = response.outcome {
            let body = StreamedBody {
                permit: self.slot.permit.take(),
                in_use: Some(BodyInUse {
                    _usage: self.slot.usage.take(),
                    _route: route,
                    _shared: Arc::clone(&self.shared),
                }),
                idle_timeout: self.timeouts().call,
                hard_deadline: self.hard_deadline(),
                stop: self.shared.stop.clone(),
            };
            let chunks = body.wrap(chunks, &self.shared.tracker);
            response.outcome = ResponseOutcome::Result(Payload::Streaming(chunks));
        }
        Ok(CallOutcome::Response(response))
    }
}
