//! Keeps one upstream connected.
//!
//! One task per upstream: it opens the connection, hears of changes, and opens the connection again
//! when it has ended, with growing pauses. It alone changes the upstream's status; calls find the
//! connection in a `watch` and complain here when it fails them.

use std::sync::Arc;
use std::time::Duration;

use hyper::{HeaderMap, Uri};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backoff::Backoff;
use super::board::Board;
use super::connection::{Connection, Wired};
use super::courier::Courier;
use super::dial::{Command, Dial};
use super::ear::Ear;
use super::pool::Pool;
use super::probe::{self, Closed};
use super::subscriptions::Interest;
use super::wire::{Failure, Wire};
use super::{Settings, Source, Transport, http, stdio};
use crate::mcp::revision::Era;

/// A connection that lived this long was a good one: the pauses begin anew.
const STEADY: Duration = Duration::from_secs(30);
/// A connection that has to be opened again after so short a life waits for its turn.
const HASTY: Duration = Duration::from_secs(1);
/// How long what is remembered of a server holds against the evidence.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The task of one upstream.
pub(super) struct Supervisor {
    pub(super) settings: Arc<Settings>,
    pub(super) dial: Arc<dyn Dial>,
    pub(super) tasks: TaskTracker,
    pub(super) board: Board,
    pub(super) interest: Arc<Interest>,
    pub(super) complaints: mpsc::Receiver<Complaint>,
    pub(super) memory: Memory,
}

/// What outlives a connection.
#[derive(Default)]
pub(super) struct Memory {
    epoch: u64,
    /// What an HTTP server speaks, and when it was found out. A child is asked each time it starts.
    found: Option<(Found, Instant)>,
    pool: Option<Pool>,
    /// Closes the pool's connections; fires after the last connection has been closed properly.
    pool_stop: CancellationToken,
}

/// What an HTTP server speaks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Found {
    /// Streamable HTTP in this era.
    Streamable(Era),
    /// The HTTP+SSE pair.
    Pair,
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

/// Why a connection could not be opened.
struct Failed {
    reason: String,
    /// What is left of the attempt.
    wire: Option<Wire>,
}

/// What ends the life of a connection.
enum Event {
    Stop,
    Wrong(Wrong),
    Ended(String),
}

impl Supervisor {
    /// Keeps the upstream connected. Ends only when `stop` fires, and then leaves nothing running.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new(&self.settings.retry);
        loop {
            // Dropping a half-open connection ends it: the wire sees to its child.
            match stop.run_until_cancelled(self.open()).await {
                None => break,
                Some(Err(failed)) => {
                    self.board.down(&failed.reason);
                    if let Some(wire) = failed.wire {
                        wire.close().await;
                    }
                }
                Some(Ok((connection, ear))) => {
                    let since = Instant::now();
                    let event = self.watch(&connection, &ear, &stop).await;
                    if since.elapsed() >= STEADY {
                        backoff.reset();
                    }
                    match event {
                        Event::Stop => {
                            self.board.stopped();
                            connection.close().await;
                            break;
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
                            self.board.down(&reason);
                            connection.abandon().await;
                        }
                    }
                }
            }
            if stop.run_until_cancelled(tokio::time::sleep(backoff.next())).await.is_none() {
                break;
            }
        }
        self.board.stopped();
        self.memory.pool_stop.cancel();
    }

    /// Looks after an open connection until something ends it.
    async fn watch(&mut self, connection: &Wired, ear: &Ear, stop: &CancellationToken) -> Event {
        let mut listen = std::pin::pin!(connection.clone().listen(&self.interest));
        let mut listened = None;
        {
            let mut settled = std::pin::pin!(ear.settle_in(connection.tells));
            loop {
                tokio::select! {
                    biased;
                    over = &mut listen, if listened.is_none() => listened = Some(over),
                    () = &mut settled => break,
                }
            }
        }
        self.board.up(Connection::Wired(connection.clone()));
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
            }
        }
    }

    async fn open(&mut self) -> Result<(Wired, Arc<Ear>), Failed> {
        let settings = Arc::clone(&self.settings);
        match &settings.source {
            Source::Library { .. } => unreachable!("the library has no supervisor"),
            Source::Process(command) => self.open_process(command).await,
            Source::Http { url, headers, transport } => {
                self.open_http(url, headers, *transport).await
            }
        }
    }

    /// Starts the child and finds out its era. One that ends upon the first question is started once
    /// more for the handshake: some legacy servers do.
    async fn open_process(&mut self, command: &Command) -> Result<(Wired, Arc<Ear>), Failed> {
        let deadline = Instant::now() + self.settings.timeouts.startup;
        let mut era = self.settings.era;
        loop {
            let child = self.dial.spawn(command).map_err(|error| Failed {
                reason: format!("it cannot be started: {error}"),
                wire: None,
            })?;
            let ear = self.ear();
            let limits = &self.settings.limits;
            let (concurrency, max) = (limits.concurrency, limits.max_message);
            let stdio = stdio::Wire::start(child, Arc::clone(&ear), concurrency, max, &self.tasks);
            let wire = Wire::Stdio(stdio.clone());
            match self.begin(&wire, &ear, era, deadline).await {
                Ok(connection) => return Ok((connection, ear)),
                Err(Closed::Ended(_)) if era.is_none() => {
                    wire.close().await;
                    era = Some(Era::Legacy);
                }
                Err(closed) => {
                    let junk = stdio.junk().map(|junk| format!("; {junk}")).unwrap_or_default();
                    return Err(Failed { reason: closed.into_reason() + &junk, wire: Some(wire) });
                }
            }
        }
    }

    /// Opens a connection to a server on the network, over the transport that is configured or
    /// remembered. Where it is neither, Streamable HTTP goes first and the older pair after it.
    async fn open_http(
        &mut self,
        url: &Uri,
        headers: &HeaderMap,
        transport: Option<Transport>,
    ) -> Result<(Wired, Arc<Ear>), Failed> {
        let deadline = Instant::now() + self.settings.timeouts.startup;
        let courier = self.courier(url, headers);
        let ear = self.ear();
        let found = self.memory.found.map(|(found, _)| found);
        let known = transport.or(match found {
            Some(Found::Pair) => Some(Transport::Sse),
            _ => None,
        });
        let opened = if known == Some(Transport::Sse) {
            self.open_pair(&courier, &ear, None, deadline).await
        } else {
            let wire = Wire::Http(http::Wire::new(courier.clone(), Arc::clone(&ear)));
            let era = self.settings.era.or(match found {
                Some(Found::Streamable(era)) => Some(era),
                _ => None,
            });
            match self.begin(&wire, &ear, era, deadline).await {
                Ok(connection) => {
                    let found = Found::Streamable(connection.about.era());
                    Ok((connection, found))
                }
                Err(Closed::NotStreamable(tried)) if transport.is_none() => {
                    self.open_pair(&courier, &ear, Some(&tried), deadline).await
                }
                Err(closed) => Err(closed),
            }
        };
        match opened {
            Ok((connection, found)) => {
                self.memory.found.get_or_insert((found, Instant::now()));
                Ok((connection, ear))
            }
            Err(closed) => {
                if let Closed::AnotherEra(_) | Closed::NotStreamable(_) = closed {
                    self.doubt();
                }
                Err(Failed { reason: closed.into_reason(), wire: None })
            }
        }
    }

    /// Opens the HTTP+SSE pair, after `tried` if anything was.
    async fn open_pair(
        &mut self,
        courier: &Courier,
        ear: &Arc<Ear>,
        tried: Option<&str>,
        deadline: Instant,
    ) -> Result<(Wired, Found), Closed> {
        let opening = timeout_at(deadline, probe::open_pair(courier, ear, tried)).await;
        let wire = opening.map_err(|_| self.late())??;
        match self.begin(&wire, ear, Some(Era::Legacy), deadline).await {
            Ok(connection) => Ok((connection, Found::Pair)),
            Err(closed) => {
                wire.close().await;
                Err(closed)
            }
        }
    }

    /// The way to the server, over connections that outlive a conversation.
    fn courier(&mut self, url: &Uri, headers: &HeaderMap) -> Courier {
        let memory = &mut self.memory;
        let pool = memory.pool.get_or_insert_with(|| {
            let (dial, stop) = (Arc::clone(&self.dial), memory.pool_stop.clone());
            Pool::new(dial, url.clone(), self.tasks.clone(), stop)
        });
        let max_message = self.settings.limits.max_message;
        Courier::new(pool.clone(), url.clone(), headers.clone(), max_message, self.tasks.clone())
    }

    /// The ear of a new connection.
    fn ear(&self) -> Arc<Ear> {
        let (name, changes) = (self.settings.name.clone(), self.board.changes.clone());
        Ear::new(name, changes, Arc::clone(&self.interest))
    }

    /// Opens the conversation over a wire.
    async fn begin(
        &mut self,
        wire: &Wire,
        ear: &Arc<Ear>,
        era: Option<Era>,
        deadline: Instant,
    ) -> Result<Wired, Closed> {
        let epoch = self.memory.epoch + 1;
        let opening = async {
            let opened = probe::open(wire, era).await?;
            let (wire, ear) = (wire.clone(), Arc::clone(ear));
            let begun = Wired::begin(epoch, wire, ear, opened.introduction, &opened.headers);
            begun.await.map_err(|failure| Closed::Refused(Failure::into_reason(failure)))
        };
        let connection = timeout_at(deadline, opening).await.map_err(|_| self.late())??;
        self.memory.epoch = epoch;
        Ok(connection)
    }

    fn late(&self) -> Closed {
        let startup = self.settings.timeouts.startup;
        Closed::Refused(format!("it was not ready within {startup:?}"))
    }

    /// Forgets what the server speaks in the light of evidence against it, at most once a minute.
    fn doubt(&mut self) {
        self.memory.found = self.memory.found.filter(|(_, found)| found.elapsed() < REMEMBERED);
    }
}
