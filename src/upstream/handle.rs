//! The handle to an upstream: what the rest of the house holds.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::asks::Called;
use super::board::Board;
use super::connection::Connection;
use super::dial::Dial;
use super::prompts;
use super::subscriptions::{Interest, Subscribed};
use super::supervisor::{Complaint, Memory, Supervisor, Wrong};
use super::wire::Failure;
use super::{Changes, Error, Listing, Settings, Source, Status};
use crate::mcp::call::{Body, Broken, Call, Outcome};
use crate::mcp::dirty::Dirty;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::mcp::note::Notes;

/// How many calls may wait for their turn, and how long.
const MAX_WAITING: usize = 128;
const MAX_WAIT: Duration = Duration::from_secs(1);

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
    status: watch::Receiver<Status>,
    changes: watch::Receiver<Changes>,
    complaints: mpsc::Sender<Complaint>,
    /// What clients want to hear of its resources.
    interest: Arc<Interest>,
    /// Calls in flight.
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Upstream {
    /// Starts the task that keeps the upstream connected until `stop`.
    pub fn start(
        settings: Settings,
        dial: Arc<dyn Dial>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let settings = Arc::new(settings);
        let (link_sender, links) = watch::channel(None);
        let (status_sender, status) = watch::channel(Status::Starting);
        let (change_sender, changes) = watch::channel(Changes::default());
        let (complaints, complaint_receiver) = mpsc::channel(COMPLAINTS);
        let interest = Interest::new(settings.name.clone());
        let board = Board {
            name: settings.name.clone(),
            links: link_sender,
            status: status_sender,
            changes: change_sender,
        };
        if let Source::Library { dir } = &settings.source {
            let librarian = prompts::Librarian {
                dir: dir.clone(),
                retry: settings.retry,
                board,
                tasks: tasks.clone(),
            };
            tasks.spawn(librarian.run(stop));
        } else {
            let supervisor = Supervisor {
                settings: Arc::clone(&settings),
                dial,
                tasks: tasks.clone(),
                board,
                interest: Arc::clone(&interest),
                complaints: complaint_receiver,
                memory: Memory::default(),
            };
            tasks.spawn(supervisor.run(stop));
        }
        let turns = Arc::new(Semaphore::new(settings.limits.concurrency));
        let waiting = AtomicUsize::new(0);
        let shared =
            Shared { settings, links, status, changes, complaints, interest, turns, waiting };
        Self { shared: Arc::new(shared) }
    }

    /// What the upstream is called.
    pub fn name(&self) -> &UpstreamName {
        &self.shared.settings.name
    }

    /// How it is doing, and news of that.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.status.clone()
    }

    /// How often its lists were said to have changed, and news of that.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.shared.changes.clone()
    }

    /// Lists a kind through all pages. A kind that the upstream does not declare is empty and it is not asked.
    pub async fn list(&self, kind: Kind) -> Result<Listing, Error> {
        let settings = &self.shared.settings;
        self.with_connection(|connection| async move {
            if !connection.about().has(kind.topic()) {
                return Ok(Listing::default());
            }
            connection.list(kind, settings).await
        })
        .await
    }

    /// Sends a call, once. Dropping the future cancels it.
    pub async fn call(&self, call: Call) -> Result<Called, Error> {
        // Nobody waits for a turn at an upstream that is down.
        self.connection()?;
        let turn = self.turn().await?;
        let began = Instant::now();
        let work = self.with_connection(|connection| {
            let (call, settings) = (&call, &self.shared.settings);
            async move { connection.call(call, settings).await }
        });
        let mut reply = self.patiently(began, &call.caller.notes, work).await?;
        if let Outcome::Result(Body::Arriving(pieces)) = reply.outcome {
            reply.outcome = Outcome::Result(Body::Arriving(self.arriving(began, turn, pieces)));
        }
        Ok(Called::Replied(reply))
    }

    /// Subscribes a client to a resource, until what is returned is dropped; from then on its changes are
    /// marked in `dirty`. Waits until the server agrees, if it has not before.
    pub async fn subscribe(&self, uri: &str, dirty: &Dirty) -> Result<Subscribed, Error> {
        if !self.connection()?.about().subscribes {
            return Ok(Subscribed::Refused(None));
        }
        self.shared.interest.join(uri, dirty).await
    }

    /// Does `send` over the connection; once more over the next one if it was refused unexecuted.
    async fn with_connection<T, F>(&self, send: impl Fn(Connection) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let connection = self.connection()?;
        let epoch = connection.about().epoch;
        let failure = match send(connection).await {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        self.complain(epoch, &failure);
        if !matches!(failure, Failure::Stale(_)) {
            return Err(failure.into());
        }
        let connection = self.connection_after(epoch).await?;
        let epoch = connection.about().epoch;
        send(connection).await.map_err(|failure| {
            self.complain(epoch, &failure);
            failure.into()
        })
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
            Status::Up(_) => "it is connecting again".into(),
            Status::Down { reason } => reason.clone(),
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
        let busy = || Error::Busy { retry_after: MAX_WAIT };
        let turns = &self.shared.turns;
        if let Ok(turn) = Arc::clone(turns).try_acquire_owned() {
            return Ok(turn);
        }
        let waiting = Waiting::begin(&self.shared.waiting).ok_or_else(busy)?;
        let turn = timeout(MAX_WAIT, Arc::clone(turns).acquire_owned()).await;
        drop(waiting);
        turn.map_err(|_| busy())?.map_err(|_| busy())
    }

    /// Waits for `work` as long as the settings allow; progress may make the wait longer.
    async fn patiently<T>(
        &self,
        began: Instant,
        notes: &Notes,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let timeouts = &self.shared.settings.timeouts;
        let mut work = pin!(work);
        loop {
            let heard = if timeouts.reset_on_progress { notes.last_heard() } else { began };
            let end = (heard.max(began) + timeouts.call).min(began + timeouts.call_max);
            if end <= Instant::now() {
                return Err(Error::TimedOut(began.elapsed()));
            }
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep_until(end) => {}
            }
        }
    }

    /// Holds a body that is still arriving to the same limits, and to its turn until it has ended.
    fn arriving(
        &self,
        began: Instant,
        turn: OwnedSemaphorePermit,
        pieces: BoxStream<'static, Result<bytes::Bytes, Broken>>,
    ) -> BoxStream<'static, Result<bytes::Bytes, Broken>> {
        let timeouts = self.shared.settings.timeouts;
        let state = Some((pieces, turn));
        futures::stream::unfold(state, move |state| {
            let end = (Instant::now() + timeouts.call).min(began + timeouts.call_max);
            async move {
                let (mut pieces, turn) = state?;
                match timeout_at(end, pieces.next()).await {
                    Ok(None) => None,
                    Ok(Some(Ok(piece))) => Some((Ok(piece), Some((pieces, turn)))),
                    Ok(Some(Err(broken))) => Some((Err(broken), None)),
                    Err(_) => Some((Err(Broken("it stopped arriving".into())), None)),
                }
            }
        })
        .boxed()
    }
}

/// A place among those who wait.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Option<Self> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        let place = Self(count);
        (before < MAX_WAITING).then_some(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
