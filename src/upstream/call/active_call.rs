//! A call under way: its time limits, its upstream's questions, and how it goes on once they are answered.
//!
//! Promises: a call that asks is executed once. While it waits for its client's answers it has no turn, its
//! idle time stands still, and what the upstream says in the meantime is heard. Dropping it, in an [`Asks`] or
//! anywhere else, cancels it at the upstream.
//!
//! Knows nothing of: clients, and where a call that waits is kept.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::fairness::promptly;
use crate::mcp::call::{Body, Caller, Outcome, Reply};
use crate::mcp::call_notifications::Notes;
use crate::mcp::input_request::{Answered, Question};
use crate::timestamp;
use crate::upstream::call::body_stream::Passing;
use crate::upstream::health::health_state::{Failed, Meter};
use crate::upstream::health::on_demand::Use;
use crate::upstream::input_requests::Questions;
use crate::upstream::message::Sent;
use crate::upstream::{Error, Timeouts};

/// How many calls of one upstream may wait for their clients' answers.
pub(crate) const MAX_ASKING: usize = 256;

/// How a call went on.
#[derive(Debug)]
pub enum Called {
    /// It was answered.
    Replied(Reply),
    /// Its upstream wants to know something first.
    Asks(Asks),
}

// === Asks ===

/// A call whose upstream wants to know something from its client. Dropping it cancels the call.
pub struct Asks {
    questions: Vec<Question>,
    running: Box<Running>,
    since: Instant,
    /// Its place among the calls that wait.
    place: OwnedSemaphorePermit,
}

impl Asks {
    /// What has to be answered; each key once.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// Whether the call was given up for a later one of its client.
    pub fn is_given_up(&self) -> bool {
        self.running.questions.is_given_up()
    }

    /// Waits for further questions. `None` once no answers are wanted any more: all have been given, the
    /// upstream has replied without them or withdrawn its questions, it is lost, or the call has lasted too
    /// long. Then [`Asks::answer`] without answers tells which. Cancel-safe.
    pub async fn more(&mut self) -> Option<Vec<Question>> {
        self.running.more().await
    }

    /// Brings one answer ahead of the others. A legacy upstream asked for each by itself and gets it at once;
    /// what it says then, [`Asks::more`] tells.
    pub fn give(&self, answered: Answered) {
        self.running.questions.give(answered);
    }

    /// Goes on with the answers; what was asked and is not among them will be asked again. What `caller` says
    /// of notes and abilities replaces what was said before.
    pub async fn answer(self, answers: Vec<Answered>, caller: Caller) -> Result<Called, Error> {
        let Self { mut running, since, place, .. } = self;
        running.notes.redirect(caller.notes);
        if let Err(error) = running.wake(since).await {
            return running.fail(error.into());
        }
        drop(place);
        running.questions.answer(answers, caller.abilities);
        running.go_on().await
    }
}

impl fmt::Debug for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asks").field("questions", &self.questions).finish_non_exhaustive()
    }
}

// === Running ===

/// A call under way. Boxed, since it goes from hand to hand.
pub(crate) struct Running {
    pub(crate) work: BoxFuture<'static, Result<Reply, Failed>>,
    /// Whether the work runs in a task of its own.
    pub(crate) is_on_its_own: bool,
    pub(crate) tasks: TaskTracker,
    /// Fires when the upstream is not wanted any more.
    pub(crate) stop: CancellationToken,
    /// What came of the work, if that happened while the call waited.
    pub(crate) done: Option<Result<Reply, Failed>>,
    pub(crate) meter: Meter,
    pub(crate) questions: Questions,
    /// Whether the upstream has seen anything of the call.
    pub(crate) sent: Sent,
    pub(crate) notes: Notes,
    pub(crate) timeouts: Timeouts,
    pub(crate) began: Instant,
    /// Since when it may have been idle, the time that it waited for its client left out.
    pub(crate) idle_since: Instant,
    /// So that the upstream does not fall asleep, where it might.
    pub(crate) in_use: Option<Use>,
    pub(crate) turns: Arc<Semaphore>,
    /// `None` while it waits for its client.
    pub(crate) turn: Option<OwnedSemaphorePermit>,
    /// The places of the calls that wait.
    pub(crate) asking: Arc<Semaphore>,
}

impl Running {
    /// Goes on until there is a reply, or something to be asked.
    pub(crate) async fn go_on(mut self: Box<Self>) -> Result<Called, Error> {
        if let Some(done) = self.done.take() {
            return self.finish(done);
        }
        loop {
            let end = self.end();
            tokio::select! {
                biased;
                done = &mut self.work => return self.finish(done),
                news = self.questions.news() => if let Err(lacking) = news {
                    return self.fail(Error::Undeclared(lacking).into());
                },
                () = promptly(sleep_until(end)) => {
                    // Progress may have moved the end.
                    if self.end() <= Instant::now() {
                        let error = self.too_late();
                        return self.fail(error.into());
                    }
                    continue;
                }
            }
            // Those that come together go out together.
            if self.questions.come_singly() {
                let gathered = (Instant::now() + self.timeouts.gather).min(self.last_moment());
                tokio::select! {
                    biased;
                    done = &mut self.work => return self.finish(done),
                    () = promptly(sleep_until(gathered)) => {}
                }
            }
            let questions = match self.questions.take() {
                Ok(questions) => questions,
                Err(lacking) => return self.fail(Error::Undeclared(lacking).into()),
            };
            // All of them may have been withdrawn by now.
            if questions.is_empty() {
                continue;
            }
            match Arc::clone(&self.asking).try_acquire_owned() {
                Ok(place) => return Ok(Called::Asks(self.wait(questions, place))),
                // The call has begun, so it is no answer to be asked to try it again.
                Err(_) => self.questions.decline(&questions),
            }
        }
    }

    /// Begins to wait for the client's answers.
    fn wait(mut self: Box<Self>, questions: Vec<Question>, place: OwnedSemaphorePermit) -> Asks {
        self.turn = None;
        self.meter.answered();
        if !self.is_on_its_own {
            self.set_on_its_own();
        }
        Asks { questions, running: self, since: Instant::now(), place }
    }

    /// Runs the work beside whoever holds the call: nobody may come for as long as a user thinks, and an
    /// upstream that says something on the call's stream, or asks whether we live, must not wait for that.
    fn set_on_its_own(&mut self) {
        self.is_on_its_own = true;
        let work = std::mem::replace(&mut self.work, std::future::pending().boxed());
        let (began, end, stop) = (self.began, self.last_moment(), self.stop.clone());
        let stopped = || Err(Failed::from(Error::Broke("it was stopped".into())));
        let questions = self.questions.clone();
        let limited = async move {
            tokio::select! {
                biased;
                () = questions.given_up() => {
                    let reason = "it was given up for a later call of its client";
                    Err(Failed::from(Error::Broke(reason.into())))
                }
                done = timeout_at(end, stop.run_until_cancelled(work)) => {
                    let late = |_| Some(Err(Error::TimedOut(began.elapsed()).into()));
                    done.unwrap_or_else(late).unwrap_or_else(stopped)
                }
            }
        };
        let task = AbortOnDropHandle::new(self.tasks.spawn(limited));
        self.work = task.map(move |done| done.unwrap_or_else(|_| stopped())).boxed();
    }

    async fn more(&mut self) -> Option<Vec<Question>> {
        if self.done.is_some() {
            return None;
        }
        tokio::select! {
            biased;
            done = &mut self.work => {
                self.done = Some(done);
                None
            }
            more = self.questions.more() => more,
        }
    }

    /// Takes a turn again after the call has waited.
    async fn wake(&mut self, since: Instant) -> Result<(), Error> {
        // Who has been at work already is not turned away, as others are who would have to wait this long.
        if self.done.is_none() {
            let turn =
                timeout_at(self.last_moment(), Arc::clone(&self.turns).acquire_owned()).await;
            let late = || Error::TimedOut(self.began.elapsed());
            self.turn = Some(turn.map_err(|_| late())?.map_err(|_| late())?);
        }
        // An answer is a sign of life where such signs count; elsewhere the limit only stood still.
        self.idle_since = match self.timeouts.reset_on_progress {
            true => Instant::now(),
            false => self.idle_since + since.elapsed(),
        };
        Ok(())
    }

    /// When the call has lasted too long.
    fn end(&self) -> Instant {
        let heard = match self.timeouts.reset_on_progress {
            true => self.notes.last_heard().max(self.idle_since),
            false => self.idle_since,
        };
        (heard + self.timeouts.call).min(self.last_moment())
    }

    fn too_late(&self) -> Error {
        let lasted = self.began.elapsed();
        match self.sent.has_any() {
            true => Error::TimedOut(lasted),
            false => {
                let lasted = timestamp::seconds(lasted);
                Error::Unavailable(format!("there was no way to send it within {lasted} s"))
            }
        }
    }

    /// When it has, whatever happens. This counts on while the call waits for its client: what it holds at the
    /// upstream in the meantime (a request, often a thread) has to be bounded by something that no client can
    /// stretch.
    fn last_moment(&self) -> Instant {
        self.began + self.timeouts.call_max
    }

    /// Ends the call without a reply. What failed may have been a later request of a call whose earlier ones were
    /// carried out: then the call is not said to have been left undone.
    fn fail(self: Box<Self>, failed: Failed) -> Result<Called, Error> {
        self.meter.failed(&failed);
        Err(match failed.error {
            Error::Unavailable(reason) if self.sent.has_any() => Error::Broke(reason),
            error => error,
        })
    }

    fn finish(mut self: Box<Self>, done: Result<Reply, Failed>) -> Result<Called, Error> {
        let mut reply = match done {
            Ok(reply) => reply,
            Err(failed) => {
                // What it lacks was asked before the rest went wrong.
                let lacking =
                    self.questions.lacking().map(|lacking| Error::Undeclared(lacking).into());
                return self.fail(lacking.unwrap_or(failed));
            }
        };
        if let Outcome::Result(Body::Arriving(pieces)) = reply.outcome {
            let passing = Passing {
                turn: self.turn.take(),
                in_use: self.in_use.take(),
                silence: self.timeouts.call,
                last_moment: self.last_moment(),
                stop: self.stop.clone(),
            };
            let pieces = passing.through(pieces, &self.tasks);
            reply.outcome = Outcome::Result(Body::Arriving(pieces));
        }
        self.meter.answered();
        Ok(Called::Replied(reply))
    }
}
