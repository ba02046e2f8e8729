//! The handle to an upstream: what the rest of the house holds.

mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connect::Dial;
use super::input_requests::{Questions, Room};
use super::library_upstream;
use super::message::{Failure, Sent};
use super::state_publisher::Board;
use super::subscriptions::{Interest, Listener, Subscribed};
use super::supervisor::{Complaint, Memory, Supervisor, Wrong};
use super::{Changes, Error, Limits, Listing, Report, Settings, Sharing, Source, Status};
use crate::mcp::call::{Call, Caller, Owner, Reply};
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::mcp::resource_updates::Dirty;
use crate::mcp::revision::Era;
use crate::mcp::task::FollowedTask;
use crate::memory_budget::{Allowance, Budget};
use crate::upstream::call::active_call::{Called, MAX_ASKING, Running};
use crate::upstream::call::call_metrics::Calls;
use crate::upstream::health::health_state::{Failed, Meter, Vitals};
use crate::upstream::health::on_demand::{Demand, Use};
use crate::upstream::session::connection::Connection;
use crate::upstream::session::connector::Opener;
use crate::upstream::session::session_pool::{Links, Route};

pub use usage::Awake;

/// Complaints that wait for the supervisor. When it is full, one about the same connection is already
/// on its way.
const COMPLAINTS: usize = 16;

/// A handle to an upstream and the task that keeps it connected. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Arc<Settings>,
    /// The connection, while there is one.
    links: watch::Receiver<Option<Connection>>,
    /// Those beside it.
    further: Arc<Links>,
    status: watch::Receiver<Status>,
    changes: watch::Receiver<Changes>,
    complaints: mpsc::Sender<Complaint>,
    /// What clients want to hear of its resources.
    interest: Arc<Interest>,
    /// Calls in flight.
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
    vitals: Arc<Vitals>,
    /// What its messages count against.
    budget: Budget,
    /// Who wants it, where it may sleep.
    demand: Arc<Demand>,
    /// Places of the calls that wait for their clients' answers.
    asking: Arc<Semaphore>,
    /// What their questions may take.
    room: Room,
    /// Where calls run that wait.
    tasks: TaskTracker,
    stop: CancellationToken,
    calls: Calls,
}

/// Nobody asks it anything any more, and nothing that was asked is under way.
impl Drop for Shared {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Upstream {
    /// Starts the task that keeps the upstream connected until `stop`, or until nobody holds the handle and nothing
    /// that was asked with it is under way. One that is lazy sleeps first. What it sends counts against `budget`.
    pub fn start(
        settings: Settings,
        dial: Arc<dyn Dial>,
        budget: &Budget,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self::start_after(None, settings, dial, budget, tasks, &stop)
    }

    /// The same in the place of another one of this name: what its clients have subscribed to is subscribed to here.
    pub fn start_after(
        before: Option<&Self>,
        settings: Settings,
        dial: Arc<dyn Dial>,
        budget: &Budget,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let (settings, stop) = (Arc::new(settings), stop.child_token());
        let (link_sender, links) = watch::channel(None);
        let demand = Demand::new(&settings);
        let first = if demand.is_lazy() { Status::Asleep } else { Status::Starting };
        let (status_sender, status) = watch::channel(first);
        let (change_sender, changes) = watch::channel(Changes::default());
        let (complaints, complaint_receiver) = mpsc::channel(COMPLAINTS);
        let vitals = Vitals::new(settings.name.clone(), settings.breaker);
        let (its, counts) = (Arc::clone(&vitals), budget.clone());
        let opener = Opener::new(Arc::clone(&settings), dial, its, counts, tasks.clone());
        let opener = Arc::new(opener);
        let further = Links::new(Arc::clone(&settings), Arc::clone(&opener), change_sender.clone());
        let interest = match before {
            Some(before) => Arc::clone(&before.shared.interest),
            None => Interest::new(settings.name.clone()),
        };
        let board = Board {
            name: settings.name.clone(),
            links: link_sender,
            status: status_sender,
            changes: change_sender,
            vitals: Arc::clone(&vitals),
        };
        if let Source::Library { dir } = &settings.source {
            let librarian = library_upstream::Librarian {
                dir: dir.clone(),
                retry: settings.retry,
                board,
                tasks: tasks.clone(),
            };
            tasks.spawn(librarian.run(stop.clone()));
        } else {
            let supervisor = Supervisor {
                settings: Arc::clone(&settings),
                opener,
                links: Arc::clone(&further),
                board,
                interest: Arc::clone(&interest),
                demand: Arc::clone(&demand),
                complaints: complaint_receiver,
                memory: Memory::default(),
            };
            tasks.spawn(supervisor.run(stop.clone()));
        }
        let turns = Arc::new(Semaphore::new(settings.limits.concurrency));
        let (waiting, asking) = (AtomicUsize::new(0), Arc::new(Semaphore::new(MAX_ASKING)));
        let tasks = tasks.clone();
        let shared = Shared {
            settings,
            links,
            further,
            status,
            changes,
            complaints,
            interest,
            turns,
            waiting,
            vitals,
            budget: budget.clone(),
            demand,
            asking,
            room: Room::new(),
            tasks,
            stop,
            calls: Calls::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// What the upstream is called.
    pub fn name(&self) -> &UpstreamName {
        &self.shared.settings.name
    }

    /// Whether it runs on these settings.
    pub fn runs_on(&self, settings: &Settings) -> bool {
        *self.shared.settings == *settings
    }

    /// Whether this is the same upstream, and not another one of its name.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// What stops it, whoever still holds it.
    pub fn stop(&self) -> CancellationToken {
        self.shared.stop.clone()
    }

    /// Whether Weir is not ready while it is not up.
    pub fn is_required(&self) -> bool {
        self.shared.settings.required
    }

    /// How its calls went.
    pub fn calls(&self) -> &Calls {
        &self.shared.calls
    }

    /// What it runs on.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// How much one of its replies may have, and what it counts against.
    pub fn allowance(&self) -> Allowance {
        let limit = self.shared.settings.limits.max_message;
        Allowance { limit, budget: self.shared.budget.clone() }
    }

    /// How it is doing, and news of that.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.status.clone()
    }

    /// How it is doing at this moment, in full.
    pub fn report(&self) -> Report {
        let shared = &*self.shared;
        let (all, free) = (shared.settings.limits.concurrency, shared.turns.available_permits());
        let waiting = shared.waiting.load(Ordering::Relaxed);
        let status = shared.status.borrow().clone();
        shared.vitals.report(&status, all.saturating_sub(free), waiting)
    }

    /// The last lines that its child wrote on standard error, at most so many, the oldest first; each is bounded and
    /// has no control characters. Nothing where it is no child.
    pub fn last_words(&self, lines: usize) -> Vec<String> {
        self.shared.vitals.last_words(lines)
    }

    /// Until when it is left alone because too many calls in a row failed, if it is.
    pub fn rests_until(&self) -> Option<Instant> {
        self.shared.vitals.rests_until()
    }

    /// How often its lists were said to have changed, and news of that.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.shared.changes.clone()
    }

    /// Lists a kind through all pages. One that sleeps is not started. A kind that the upstream does not declare is empty and it is not asked.
    pub async fn list(&self, kind: Kind) -> Result<Listing, Error> {
        let settings = &self.shared.settings;
        let _held = self.shared.demand.hold();
        if !self.connection()?.about().has(kind.topic()) {
            return Ok(Listing::default());
        }
        let trial = self.shared.vitals.begin()?;
        let listed = self.with_connection(None, |connection| async move {
            if !connection.about().has(kind.topic()) {
                return Ok(Listing::default());
            }
            connection.list(kind, settings).await
        });
        match listed.await {
            Ok((listing, _)) => {
                trial.answered();
                self.shared.vitals.listed(kind, &listing);
                Ok(listing)
            }
            Err(failed) => {
                trial.failed(&failed);
                Err(failed.error)
            }
        }
    }

    /// Sends a call, once. Dropping the future cancels it.
    pub async fn call(&self, call: Box<Call>) -> Result<Called, Error> {
        let counting = self.shared.calls.begin(call.method);
        let called = self.carry_out(call).await;
        counting.end(&called);
        called
    }

    async fn carry_out(&self, call: Box<Call>) -> Result<Called, Error> {
        let mut meter = Meter::new(&self.shared.vitals);
        let (in_use, turn) = match self.admit(&mut meter).await {
            Ok(admitted) => admitted,
            Err(error) => {
                let failed = Failed::from(error);
                meter.failed(&failed);
                return Err(failed.error);
            }
        };
        let began = Instant::now();
        let notes = call.caller.notes.clone();
        let questions = Questions::new(&call.caller, self.shared.room.clone());
        let sent = Sent::default();
        let work = self.clone().send(call, questions.clone(), sent.clone()).boxed();
        let shared = &self.shared;
        let (timeouts, turns) = (shared.settings.timeouts, Arc::clone(&shared.turns));
        let running = Box::new(Running {
            work,
            is_on_its_own: false,
            tasks: shared.tasks.clone(),
            stop: shared.stop.clone(),
            done: None,
            meter,
            questions,
            sent,
            notes,
            timeouts,
            began,
            idle_since: began,
            in_use,
            turns,
            turn: Some(turn),
            asking: Arc::clone(&shared.asking),
        });
        running.go_on().await
    }

    /// Whether a call may be sent now; nobody waits for a turn at an upstream that is down, or left alone.
    async fn admit(&self, meter: &mut Meter) -> Result<(Option<Use>, OwnedSemaphorePermit), Error> {
        // What is left alone is not started either.
        if self.rests_until().is_some() {
            meter.begin()?;
        }
        let in_use = self.use_it().await;
        self.connection()?;
        meter.begin()?;
        Ok((in_use, self.turn().await?))
    }

    /// Subscribes a client to a resource, until what is returned is dropped; from then on its changes are
    /// marked in `dirty`. Waits until the server agrees, if it has not before.
    pub async fn subscribe(
        &self,
        uri: &str,
        dirty: &Dirty,
        owner: &Owner,
    ) -> Result<Subscribed, Error> {
        let in_use = self.use_it().await;
        if !self.connection()?.about().capabilities.subscribe {
            return Ok(Subscribed::Refused(None));
        }
        self.shared.interest.join(uri, Listener::Resource(dirty.clone()), owner, in_use).await
    }

    /// Subscribes a client to a task of the modern era, by the upstream's own id, until what is returned is dropped.
    /// Waits until the server agrees, if it has not before. One that has a process for each client is not
    /// asked: nothing is known of the task but there.
    pub async fn follow_task(
        &self,
        own: &str,
        task: FollowedTask,
        owner: &Owner,
    ) -> Result<Subscribed, Error> {
        let in_use = self.use_it().await;
        let connection = self.connection()?;
        let about = connection.about();
        let is_told = about.era() == Era::Modern && about.capabilities.has_tasks();
        let is_known = connection.task_scope() == Some(task.scope);
        if !is_told || !is_known || matches!(self.shared.settings.sharing, Sharing::Client) {
            return Ok(Subscribed::Refused(None));
        }
        self.shared.interest.tasks().join(own, Listener::Task(task), owner, in_use).await
    }

    async fn send(
        self,
        call: Box<Call>,
        questions: Questions,
        sent: Sent,
    ) -> Result<Reply, Failed> {
        let settings = &self.shared.settings;
        let (call, questions, sent) = (&*call, &questions, &sent);
        let done = self.with_connection(Some(&call.caller), |connection| async move {
            connection.call(call, questions, sent, settings).await
        });
        let (reply, route) = done.await?;
        Ok(route.outlast(&self, reply))
    }

    /// Does `send` over the connection that is for this caller; once more over the next one if it was
    /// refused unexecuted. What is returned beside it keeps that connection in use.
    async fn with_connection<T, F>(
        &self,
        caller: Option<&Caller>,
        send: impl Fn(Connection) -> F,
    ) -> Result<(T, Route), Failed>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let route = self.route(self.connection()?, caller).await?;
        let failure = match send(route.connection()).await {
            Ok(done) => return Ok((done, route)),
            Err(failure) => failure,
        };
        self.blame(&route, &failure);
        let wire = route.connection().about().wire;
        if !matches!(failure, Failure::Stale(_)) {
            return Err(Failed::of(failure, wire));
        }
        let main = match &route {
            Route::Main(connection) => self.connection_after(connection.about().epoch).await?,
            Route::Beside(_) => self.connection()?,
        };
        let route = self.route(main, caller).await?;
        match send(route.connection()).await {
            Ok(done) => Ok((done, route)),
            Err(failure) => {
                self.blame(&route, &failure);
                Err(Failed::of(failure, wire))
            }
        }
    }

    /// The connection for this caller, which is `main` or one beside it.
    async fn route(&self, main: Connection, caller: Option<&Caller>) -> Result<Route, Error> {
        let (Connection::Wired(wired), Some(caller)) = (&main, caller) else {
            return Ok(Route::Main(main));
        };
        let lease = self.shared.further.lease(wired, caller).await?;
        Ok(lease.map_or(Route::Main(main), Route::Beside))
    }

    /// Tells whoever keeps the connection what is wrong with it.
    fn blame(&self, route: &Route, failure: &Failure) {
        match (route, failure) {
            (Route::Main(connection), _) => self.complain(connection.about().epoch, failure),
            (Route::Beside(lease), Failure::Stale(_) | Failure::Unsent(_)) => lease.spoil(),
            (Route::Beside(_), _) => {}
        }
    }

    fn connection(&self) -> Result<Connection, Error> {
        let connection = self.shared.links.borrow().clone();
        connection.ok_or_else(|| self.unavailable())
    }

    /// Waits until the connection `epoch` has been replaced.
    async fn connection_after(&self, epoch: u64) -> Result<Connection, Error> {
        let mut links = self.shared.links.clone();
        let next = links.wait_for(|link| {
            link.as_ref().is_none_or(|connection| connection.about().epoch > epoch)
        });
        let next = next.await.ok().and_then(|link| link.clone());
        next.ok_or_else(|| self.unavailable())
    }

    fn unavailable(&self) -> Error {
        Error::Unavailable(match &*self.shared.status.borrow() {
            Status::Starting => "it is still starting".into(),
            Status::Asleep => "it sleeps".into(),
            Status::Up(_) => "it is connecting again".into(),
            Status::Down { reason, .. } => reason.clone(),
        })
    }

    fn complain(&self, epoch: u64, failure: &Failure) {
        let wrong = match failure {
            Failure::Stale(reason) => Wrong::Stale(reason.clone()),
            Failure::Unsent(reason) => Wrong::Unreachable(reason.clone()),
            _ => return,
        };
        let _ = self.shared.complaints.try_send(Complaint { epoch, wrong });
    }

    /// Waits for a turn, if not too many others do already.
    async fn turn(&self) -> Result<OwnedSemaphorePermit, Error> {
        let Limits { waiting, wait, .. } = self.shared.settings.limits;
        let busy = || Error::Busy { retry_after: wait };
        let turns = &self.shared.turns;
        if let Ok(turn) = Arc::clone(turns).try_acquire_owned() {
            return Ok(turn);
        }
        let waiting = Waiting::begin(&self.shared.waiting, waiting).ok_or_else(busy)?;
        let turn = timeout(wait, Arc::clone(turns).acquire_owned()).await;
        drop(waiting);
        turn.map_err(|_| busy())?.map_err(|_| busy())
    }
}

/// A place among those who wait.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize, most: usize) -> Option<Self> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        let place = Self(count);
        (before < most).then_some(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
