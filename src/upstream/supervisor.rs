//! Keeps one upstream connected.
//!
//! One task per upstream: it opens the connection, hears of changes, and opens the connection again
//! when it has ended, with growing pauses. It alone changes the upstream's status; calls find the
//! connection in a `watch` and complain here when it fails them. One that is lazy is connected when somebody
//! wants it, and closed when nobody has for a while.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::state_publisher::Board;
use super::subscriptions::Interest;
use super::{Settings, Sharing, Source};
use crate::fairness::promptly;
use crate::mcp::revision::Era;
use crate::upstream::health::backoff::Backoff;
use crate::upstream::health::crash_loop::{Crashes, WINDOW};
use crate::upstream::health::on_demand::Demand;
use crate::upstream::session::connection::{Connection, Wired};
use crate::upstream::session::connector::{Failed, Found, Opened, Opener, Wanted};
use crate::upstream::session::session_pool::Links;
use crate::upstream::transport::dispatcher::{Callers, Ear};

/// A connection that lived this long was a good one: the pauses begin anew.
const STEADY: Duration = Duration::from_secs(30);
/// A connection that has to be opened again after so short a life waits for its turn.
const HASTY: Duration = Duration::from_secs(1);
/// How long what is remembered of a server holds against the evidence.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The task of one upstream.
pub(super) struct Supervisor {
    pub(super) settings: Arc<Settings>,
    pub(super) opener: Arc<Opener>,
    /// The connections beside this one, which end with it.
    pub(super) links: Arc<Links>,
    pub(super) board: Board,
    pub(super) interest: Arc<Interest>,
    pub(super) demand: Arc<Demand>,
    pub(super) complaints: mpsc::Receiver<Complaint>,
    pub(super) memory: Memory,
}

/// What outlives a connection.
#[derive(Default)]
pub(super) struct Memory {
    epoch: u64,
    /// What an HTTP server speaks, and when it was found out. A child is asked each time it starts.
    found: Option<(Found, Instant)>,
}

/// A call found that the connection does not work.
#[derive(Debug)]
pub(super) struct Complaint {
    /// The connection that it is about.
    pub(super) epoch: u64,
    pub(super) wrong: Wrong,
}

/// What is wrong with a connection.
#[derive(Debug)]
pub(super) enum Wrong {
    /// It has to be opened again, and can be at once.
    Stale(String),
    /// There is no way to the server.
    Unreachable(String),
}

/// What ends the life of a connection.
enum Event {
    Stop,
    Idle,
    Wrong(Wrong),
    Ended(String),
}

impl Supervisor {
    /// Keeps the upstream connected. Ends only when `stop` fires, and then leaves nothing running.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new(&self.settings.retry);
        let mut crashes = Crashes::default();
        let mut has_run = false;
        if self.interest.is_wanted() {
            self.demand.summon();
        }
        loop {
            if self.demand.is_asleep() {
                if stop.run_until_cancelled(self.demand.wanted()).await.is_none() {
                    break;
                }
                self.board.wakes();
                if has_run {
                    self.board.vitals.tries_again();
                }
            }
            has_run = true;
            let opened = Instant::now();
            // Dropping a half-open connection ends it: the wire sees to its child.
            match stop.run_until_cancelled(self.open()).await {
                None => break,
                Some(Err(failed)) => {
                    if failed.has_ended {
                        self.ended(&mut crashes, opened, &failed.reason);
                    }
                    self.board.down(&failed.reason, crashes.is_loop());
                    if let Some(wire) = failed.wire {
                        wire.close().await;
                    }
                }
                Some(Ok((connection, ear))) => {
                    let since = Instant::now();
                    let event = self.watch(&connection, &ear, &stop).await;
                    if since.elapsed() >= if crashes.is_loop() { WINDOW } else { STEADY } {
                        backoff.reset();
                    }
                    match event {
                        Event::Stop => {
                            self.board.stopped();
                            connection.close().await;
                            break;
                        }
                        Event::Idle => {
                            tracing::info!(upstream = %self.settings.name, "nobody uses it: stopped");
                            connection.close().await;
                            self.board.vitals.sleeps();
                            continue;
                        }
                        Event::Wrong(Wrong::Stale(reason)) => {
                            tracing::info!(upstream = %self.settings.name, reason, "connecting again");
                            // A legacy session that is over says nothing about the era.
                            if connection.about.era() == Era::Modern {
                                self.doubt();
                            }
                            connection.abandon().await;
                            // The calls that found out are waiting for the next connection.
                            if since.elapsed() >= HASTY {
                                continue;
                            }
                        }
                        Event::Wrong(Wrong::Unreachable(reason)) | Event::Ended(reason) => {
                            if let Source::Process(_) = self.settings.source {
                                self.ended(&mut crashes, since, &reason);
                            }
                            self.board.down(&reason, crashes.is_loop());
                            connection.abandon().await;
                        }
                    }
                }
            }
            let pause = if crashes.is_loop() { backoff.longest() } else { backoff.next() };
            self.board.vitals.waits(pause);
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                break;
            }
            self.board.vitals.tries_again();
        }
        self.board.stopped();
        self.links.close().await;
        self.opener.close();
    }

    /// Its child has ended, `since` which it has been alive. That this goes on and on is told once.
    fn ended(&self, crashes: &mut Crashes, since: Instant, reason: &str) {
        let before = crashes.is_loop();
        crashes.ended(since.elapsed(), Instant::now());
        if crashes.is_loop() && !before {
            let (upstream, longest) = (&self.settings.name, self.settings.retry.max_backoff);
            let text = "it ends again and again, and is started at long intervals from now on";
            tracing::error!(%upstream, reason, ?longest, "{text}");
        }
    }

    /// Looks after an open connection until something ends it.
    async fn watch(
        &mut self,
        connection: &Arc<Wired>,
        ear: &Ear,
        stop: &CancellationToken,
    ) -> Event {
        let mut listen = std::pin::pin!(Arc::clone(connection).listen(&self.interest));
        let mut listened = None;
        {
            let mut settled = std::pin::pin!(ear.settle_in(connection.tells));
            loop {
                tokio::select! {
                    biased;
                    over = &mut listen, if listened.is_none() => listened = Some(over),
                    () = promptly(&mut settled) => break,
                }
            }
        }
        self.demand.met();
        self.board.up(Connection::Wired(Arc::clone(connection)));
        loop {
            if let Some(Some(reason)) = listened.take_if(|over| over.is_some()) {
                return Event::Wrong(Wrong::Stale(reason));
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Event::Stop,
                reason = connection.ended() => return Event::Ended(reason),
                Some(complaint) = self.complaints.recv() => {
                    // One about an earlier connection has been dealt with.
                    if complaint.epoch == connection.about.epoch {
                        return Event::Wrong(complaint.wrong);
                    }
                }
                over = &mut listen, if listened.is_none() => listened = Some(over),
                () = promptly(self.demand.idle()) => {
                    // Clients of the one before it in whose place it is have begun no use here.
                    if ear.has_tasks() || self.interest.is_wanted() {
                        self.demand.met();
                    } else if self.demand.fall_asleep(|| self.board.asleep()) {
                        return Event::Idle;
                    }
                }
            }
        }
    }

    /// Opens the connection, and remembers what the server speaks. A child is asked each time it starts.
    async fn open(&mut self) -> Result<(Arc<Wired>, Arc<Ear>), Failed> {
        let epoch = self.memory.epoch + 1;
        let wanted = Wanted {
            epoch,
            found: self.memory.found.map(|(found, _)| found),
            declared: None,
            callers: match self.settings.sharing {
                Sharing::Sole(_) => Callers::One,
                Sharing::Shared | Sharing::Client => Callers::Many,
            },
            changes: self.board.changes.clone(),
            interest: Arc::clone(&self.interest),
        };
        match self.opener.open(&wanted).await {
            Ok(Opened { connection, ear, found }) => {
                self.memory.epoch = epoch;
                if let Source::Http { .. } = self.settings.source {
                    self.memory.found.get_or_insert((found, Instant::now()));
                }
                Ok((connection, ear))
            }
            Err(failed) => {
                if failed.contradicts {
                    self.doubt();
                }
                Err(failed)
            }
        }
    }

    /// Forgets what the server speaks in the light of evidence against it, at most once a minute.
    fn doubt(&mut self) {
        self.memory.found = self.memory.found.filter(|(_, found)| found.elapsed() < REMEMBERED);
    }
}
