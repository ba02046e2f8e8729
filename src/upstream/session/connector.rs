//! Opens connections to one upstream: the one that is kept, and further ones beside it.
//!
//! Promises: dropping a half-open connection ends it, its child included; each attempt takes no longer
//! than the upstream may take to start.
//!
//! Knows nothing of: when a connection is wanted, and what becomes of it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use hyper::{HeaderMap, Uri};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::mcp::revision::Era;
use crate::memory_budget::Budget;
use crate::upstream::connect::{Command, Dial};
use crate::upstream::health::health_state::Vitals;
use crate::upstream::message::{Failure, Wire};
use crate::upstream::session::connection::Wired;
use crate::upstream::session::negotiation::{self, Closed};
use crate::upstream::subscriptions::Interest;
use crate::upstream::transport::dispatcher::{Callers, Ear};
use crate::upstream::transport::http_client::Courier;
use crate::upstream::transport::http_pool::Pool;
use crate::upstream::transport::{stdio, streamable_http};
use crate::upstream::{Changes, Settings, Source, Transport};

/// What all connections to one upstream are opened with.
pub(crate) struct Opener {
    settings: Arc<Settings>,
    dial: Arc<dyn Dial>,
    vitals: Arc<Vitals>,
    /// What messages count against that are not small.
    budget: Budget,
    tasks: TaskTracker,
    /// To a server on the network, once there was something to be sent.
    pool: OnceLock<Pool>,
    /// Closes the pool's connections; fires after the last conversation has ended properly.
    pool_stop: CancellationToken,
}

/// Which connection is wanted.
pub(crate) struct Wanted {
    /// Its number.
    pub(crate) epoch: u64,
    /// What is known of the server by now.
    pub(crate) found: Option<Found>,
    /// The capabilities that a client declared, for a server of the legacy era; `None` for the connection
    /// that is kept.
    pub(crate) declared: Option<Bytes>,
    /// Whose calls are made on it.
    pub(crate) callers: Callers,
    /// Where news of changes go.
    pub(crate) changes: watch::Sender<Changes>,
    /// Who wants to hear of which resources.
    pub(crate) interest: Arc<Interest>,
}

/// An open connection.
pub(crate) struct Opened {
    pub(crate) connection: Arc<Wired>,
    pub(crate) ear: Arc<Ear>,
    pub(crate) found: Found,
}

/// What a server speaks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Found {
    /// A child or Streamable HTTP in this era.
    Streamable(Era),
    /// The HTTP+SSE pair.
    Pair,
}

/// Why a connection could not be opened.
pub(crate) struct Failed {
    pub(crate) reason: String,
    /// Whether it is evidence against what is known of the server.
    pub(crate) contradicts: bool,
    /// Whether its child has ended.
    pub(crate) has_ended: bool,
    /// What is left of the attempt.
    pub(crate) wire: Option<Wire>,
}

impl Opener {
    pub(crate) fn new(
        settings: Arc<Settings>,
        dial: Arc<dyn Dial>,
        vitals: Arc<Vitals>,
        budget: Budget,
        tasks: TaskTracker,
    ) -> Self {
        let pool_stop = CancellationToken::new();
        Self { settings, dial, vitals, budget, tasks, pool: OnceLock::new(), pool_stop }
    }

    /// Opens a connection. Dropping the future ends what has been begun.
    pub(crate) async fn open(&self, wanted: &Wanted) -> Result<Opened, Failed> {
        let deadline = Instant::now() + self.settings.timeouts.startup;
        match &self.settings.source {
            Source::Library { .. } => unreachable!("nobody connects to the library"),
            Source::Process(command) => self.open_process(command, wanted, deadline).await,
            Source::Http { url, headers, transport } => {
                let courier = self.courier(url, headers);
                self.open_http(courier, *transport, wanted, deadline).await
            }
        }
    }

    /// Closes the connections that outlive conversations.
    pub(crate) fn close(&self) {
        self.pool_stop.cancel();
    }

    /// Starts the child and finds out its era. One that ends upon the first question is started once
    /// more for the handshake: some legacy servers do.
    async fn open_process(
        &self,
        command: &Command,
        wanted: &Wanted,
        deadline: Instant,
    ) -> Result<Opened, Failed> {
        let known = wanted.found.and_then(Found::era);
        let mut era = self.settings.era.or(known);
        loop {
            let child = self.dial.spawn(command).map_err(|error| Failed {
                reason: format!("it cannot be started: {error}"),
                contradicts: false,
                has_ended: false,
                wire: None,
            })?;
            let ear = self.ear(wanted);
            let (hears, settings) = (Arc::clone(&ear), &self.settings);
            let stdio = stdio::Wire::start(child, hears, settings, &self.budget, &self.tasks);
            if wanted.declared.is_none() {
                let (process, tail) = stdio.child();
                self.vitals.child_started(process, tail);
            }
            let wire = Wire::Stdio(stdio.clone());
            match self.begin(&wire, &ear, era, wanted, deadline).await {
                Ok(connection) => {
                    let found = Found::Streamable(connection.about.era());
                    return Ok(Opened { connection, ear, found });
                }
                Err(Closed::Ended(_)) if era.is_none() => {
                    wire.close().await;
                    era = Some(Era::Legacy);
                }
                Err(closed) => {
                    let junk = stdio.junk().map(|junk| format!("; {junk}")).unwrap_or_default();
                    let reason = closed.into_reason() + &junk;
                    let has_ended = stdio.has_ended();
                    return Err(Failed { reason, contradicts: false, has_ended, wire: Some(wire) });
                }
            }
        }
    }

    /// Opens a connection to a server on the network, over the transport that is configured or
    /// remembered. Where it is neither, Streamable HTTP goes first and the older pair after it.
    async fn open_http(
        &self,
        courier: Courier,
        transport: Option<Transport>,
        wanted: &Wanted,
        deadline: Instant,
    ) -> Result<Opened, Failed> {
        let ear = self.ear(wanted);
        let known = transport.or(match wanted.found {
            Some(Found::Pair) => Some(Transport::Sse),
            _ => None,
        });
        let opened = if known == Some(Transport::Sse) {
            self.open_pair(&courier, &ear, None, wanted, deadline).await
        } else {
            let wire = Wire::Http(streamable_http::Wire::new(courier.clone(), Arc::clone(&ear)));
            let era = self.settings.era.or(wanted.found.and_then(Found::era));
            match self.begin(&wire, &ear, era, wanted, deadline).await {
                Ok(connection) => {
                    let found = Found::Streamable(connection.about.era());
                    Ok((connection, found))
                }
                Err(Closed::NotStreamable(tried)) if transport.is_none() => {
                    self.open_pair(&courier, &ear, Some(&tried), wanted, deadline).await
                }
                Err(closed) => Err(closed),
            }
        };
        match opened {
            Ok((connection, found)) => Ok(Opened { connection, ear, found }),
            Err(closed) => {
                let contradicts =
                    matches!(closed, Closed::AnotherEra(_) | Closed::NotStreamable(_));
                let reason = closed.into_reason();
                Err(Failed { reason, contradicts, has_ended: false, wire: None })
            }
        }
    }

    /// Opens the HTTP+SSE pair, after `tried` if anything was.
    async fn open_pair(
        &self,
        courier: &Courier,
        ear: &Arc<Ear>,
        tried: Option<&str>,
        wanted: &Wanted,
        deadline: Instant,
    ) -> Result<(Arc<Wired>, Found), Closed> {
        let opening = timeout_at(deadline, negotiation::open_pair(courier, ear, tried)).await;
        let wire = opening.map_err(|_| self.late())??;
        match self.begin(&wire, ear, Some(Era::Legacy), wanted, deadline).await {
            Ok(connection) => Ok((connection, Found::Pair)),
            Err(closed) => {
                wire.close().await;
                Err(closed)
            }
        }
    }

    /// Opens the conversation over a wire.
    async fn begin(
        &self,
        wire: &Wire,
        ear: &Arc<Ear>,
        era: Option<Era>,
        wanted: &Wanted,
        deadline: Instant,
    ) -> Result<Arc<Wired>, Closed> {
        let opening = async {
            let declared = match &wanted.declared {
                Some(declared) => declared.clone(),
                None => self.settings.declared(!matches!(wire, Wire::Http(_))),
            };
            let opened = negotiation::open(wire, era, &declared).await?;
            let (wire, ear) = (wire.clone(), Arc::clone(ear));
            let (introduction, headers) = (opened.introduction, &opened.headers);
            let settings = &self.settings;
            let begun =
                Wired::begin(wanted.epoch, wire, ear, introduction, headers, settings).await;
            let begun = begun.map(Arc::new);
            begun.map_err(|failure| Closed::Refused(Failure::into_reason(failure)))
        };
        timeout_at(deadline, opening).await.map_err(|_| self.late())?
    }

    /// The way to the server, over connections that outlive a conversation.
    fn courier(&self, url: &Uri, headers: &HeaderMap) -> Courier {
        let pool = self.pool.get_or_init(|| {
            let (dial, stop) = (Arc::clone(&self.dial), self.pool_stop.clone());
            let connect = self.settings.timeouts.connect;
            // A call that has its turn finds a connection, however many go on at a time.
            let most = self.settings.limits.concurrency;
            Pool::new(dial, url.clone(), most, connect, self.tasks.clone(), stop)
        });
        let (limit, budget) = (self.settings.limits.max_message, self.budget.clone());
        let (pool, tasks) = (pool.clone(), self.tasks.clone());
        Courier::new(pool, url.clone(), headers.clone(), limit, budget, tasks)
    }

    fn ear(&self, wanted: &Wanted) -> Arc<Ear> {
        let (name, changes) = (self.settings.name.clone(), wanted.changes.clone());
        let vitals = Arc::clone(&self.vitals);
        Ear::new(name, changes, Arc::clone(&wanted.interest), wanted.callers, vitals)
    }

    fn late(&self) -> Closed {
        let startup = self.settings.timeouts.startup;
        Closed::Refused(format!("it was not ready within {startup:?}"))
    }
}

impl Found {
    fn era(self) -> Option<Era> {
        match self {
            Self::Streamable(era) => Some(era),
            Self::Pair => None,
        }
    }
}
