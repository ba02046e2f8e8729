//! The connections to an upstream beside the one that its supervisor keeps.
//!
//! A server of the legacy era decides when a conversation is opened what it may ask its client. So calls
//! go over a conversation that was opened with what their client declared: over Streamable HTTP clients
//! that declared the same share one; where each client has its own connection it is opened for it, and
//! ends with it. All are opened when they are first needed.
//!
//! Promises: there is a bounded number of them, in all and for one principal; what nobody has used for a while
//! is closed; several calls that need the same one open it once. Whoever stops waiting for it ends the attempt.
//! What cannot be opened, or does not live, is tried again after growing pauses, in which calls fail at once.
//!
//! Knows nothing of: what is called.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fairness::promptly;
use crate::mcp::call::{Body, Caller, Outcome, Owner, Reply};
use crate::mcp::revision::Era;
use crate::upstream::health::keyed_backoff::Pauses;
use crate::upstream::session::connection::{Connection, Wired};
use crate::upstream::session::connector::{Found, Opener, Wanted};
use crate::upstream::subscriptions::Interest;
use crate::upstream::transport::dispatcher::Callers;
use crate::upstream::{Changes, Error, Settings, Sharing, Upstream, declared};

/// How many connections are held beside the first one.
const MAX_LINKS: usize = 64;
/// How many of them one client may have taken.
const PER_CLIENT: usize = 16;
/// How long a connection that clients share is held for nobody.
const SHARED_IDLE: Duration = Duration::from_mins(15);
/// How long a client's own connection is held while it is silent; its session ends no sooner.
const OWN_IDLE: Duration = Duration::from_mins(30);
/// How long a server that refused a further conversation is not asked for one.
const REFUSED: Duration = Duration::from_mins(1);
/// A client's own connection that lived this long was a good one.
const STEADY: Duration = Duration::from_secs(30);

/// The table of them.
pub(crate) struct Links {
    settings: Arc<Settings>,
    opener: Arc<Opener>,
    table: Mutex<HashMap<Key, Arc<Slot>>>,
    /// Which of the clients' own do not live, and (without a client) what cannot be opened for any.
    pauses: Pauses<Key>,
    keepers: TaskTracker,
    stop: CancellationToken,
    /// Where news of changes go. Some servers tell them only on the stream of the call that made them.
    changes: watch::Sender<Changes>,
}

/// Which calls share a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    /// `None`: any client that declared the same.
    client: Option<Arc<str>>,
    declared: Bytes,
}

/// A place for one connection, and who uses it.
struct Slot {
    /// Who has taken the place.
    owner: Arc<str>,
    usage: Mutex<Usage>,
    link: tokio::sync::Mutex<Option<Link>>,
    /// Fires when its place is wanted for another.
    evicted: CancellationToken,
}

struct Usage {
    leases: usize,
    /// How many of its connections have not ended yet.
    connections: usize,
    idle_since: Instant,
    refused: Option<Refused>,
}

/// When a further conversation was refused, and beside which.
#[derive(Clone, Copy)]
struct Refused {
    at: Instant,
    epoch: u64,
}

/// An open connection.
#[derive(Clone)]
struct Link {
    connection: Arc<Wired>,
    /// Fires when a call has found that it does not work any more.
    spoiled: CancellationToken,
}

/// The right to use a connection, which is not closed for idleness until it is dropped.
pub(crate) struct Lease {
    pub(crate) connection: Arc<Wired>,
    spoiled: CancellationToken,
    _used: Used,
}

/// A use of a slot. The last one of a slot that holds nothing takes it off the table.
struct Used {
    links: Arc<Links>,
    key: Key,
    slot: Arc<Slot>,
}

impl Links {
    pub(crate) fn new(
        settings: Arc<Settings>,
        opener: Arc<Opener>,
        changes: watch::Sender<Changes>,
    ) -> Arc<Self> {
        let (keepers, stop) = (TaskTracker::new(), CancellationToken::new());
        let (table, pauses) = (Mutex::default(), Pauses::new(settings.retry));
        Arc::new(Self { settings, opener, table, pauses, keepers, stop, changes })
    }

    /// The connection for this caller; `None` where `main`, the supervisor's, is the one.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        main: &Wired,
        caller: &Caller,
    ) -> Result<Option<Lease>, Error> {
        let Some(key) = self.key(main, caller) else { return Ok(None) };
        let own = key.client.is_some();
        // Whoever waits for the end waits for what is opened here, too.
        let _tracked = self.keepers.token();
        let used = match self.take(&key, &caller.client.owner) {
            Some(used) => used,
            None if own => return Err(Error::Busy { retry_after: Duration::from_secs(1) }),
            None => return Ok(None),
        };
        let slot = Arc::clone(&used.slot);
        let mut place = slot.link.lock().await;
        if let Some(link) = &*place
            && !link.spoiled.is_cancelled()
        {
            return Ok(Some(Lease::new(link, used)));
        }
        // A server that cannot be opened is so for all that declare the same; a life that is short may be its
        // client's doing.
        let of_any = Key { client: None, declared: key.declared.clone() };
        if own {
            let may = self.pauses.check(&of_any).and_then(|()| self.pauses.check(&key));
            may.map_err(Error::Unavailable)?;
        }
        let epoch = main.about.epoch;
        let refused = slot.usage().refused;
        if refused.is_some_and(|it| it.epoch == epoch && it.at.elapsed() < REFUSED) {
            return Ok(None);
        }
        // Rare and large: it would be part of every call's future.
        let callers = match (own, caller.client.is_several) {
            (false, _) => Callers::Many,
            (true, false) => Callers::One,
            (true, true) => Callers::Alike,
        };
        match Box::pin(self.open(main, &key, callers)).await {
            Ok(connection) => {
                let link = Link { connection, spoiled: CancellationToken::new() };
                {
                    let mut usage = slot.usage();
                    usage.connections += 1;
                    usage.refused = None;
                }
                *place = Some(link.clone());
                drop(place);
                self.pauses.worked(&of_any);
                let gone = match own {
                    true => caller.client.gone.clone(),
                    false => CancellationToken::new(),
                };
                let lease = Lease::new(&link, used);
                self.keepers.spawn(Arc::clone(self).keep(key, slot, link, gone));
                Ok(Some(lease))
            }
            Err(reason) if own => {
                self.pauses.failed(&of_any, &reason);
                Err(Error::Unavailable(reason))
            }
            Err(reason) => {
                // Some servers have one conversation in all: then calls go over that one.
                let upstream = &self.settings.name;
                tracing::debug!(%upstream, reason, "no further conversation");
                slot.usage().refused = Some(Refused { at: Instant::now(), epoch });
                Ok(None)
            }
        }
    }

    /// Closes all of them, and waits for that.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.keepers.close();
        self.keepers.wait().await;
    }

    fn key(&self, main: &Wired, caller: &Caller) -> Option<Key> {
        let is_legacy = main.about.era() == Era::Legacy;
        let over_http = main.about.wire == "http";
        let client = match &self.settings.sharing {
            Sharing::Shared if is_legacy && over_http => None,
            // One stream for all cannot say whom it asks, and a request of the newer era carries what it
            // needs: there is nothing to be gained from another connection.
            Sharing::Shared => return None,
            // Requests over HTTP stand alone in the newer era: no connection is anybody's. And a single
            // client has a child of that era to itself.
            Sharing::Client | Sharing::Sole(_) if over_http && !is_legacy => return None,
            Sharing::Sole(_) if !is_legacy => return None,
            Sharing::Client | Sharing::Sole(_) => Some(Arc::clone(caller.client.id())),
        };
        let of_main = self.settings.declared(!over_http);
        // A request of the newer era says itself what its client can do.
        let declared = if is_legacy { declared(caller) } else { of_main.clone() };
        let is_mains = declared == of_main;
        let shares_main = !matches!(self.settings.sharing, Sharing::Client);
        (!is_mains || !shares_main).then_some(Key { client, declared })
    }

    /// Begins to use the slot of this key; `None` if there are too many that are in use.
    fn take(self: &Arc<Self>, key: &Key, owner: &Owner) -> Option<Used> {
        let mut table = self.table();
        let begin = |slot: Arc<Slot>| {
            // Under the table's lock: nobody takes it for idle in between.
            slot.usage().leases += 1;
            Used { links: Arc::clone(self), key: key.clone(), slot }
        };
        if let Some(slot) = table.get(key) {
            return Some(begin(Arc::clone(slot)));
        }
        let own = table.values().filter(|slot| slot.owner == owner.name).count();
        if own >= PER_CLIENT * owner.clients {
            Self::make_room(&mut table, |slot| slot.owner == owner.name)?;
        } else if table.len() >= MAX_LINKS {
            Self::make_room(&mut table, |_| true)?;
        }
        let slot = Arc::new(Slot {
            owner: Arc::clone(&owner.name),
            usage: Mutex::new(Usage {
                leases: 0,
                connections: 0,
                idle_since: Instant::now(),
                refused: None,
            }),
            link: tokio::sync::Mutex::new(None),
            evicted: self.stop.child_token(),
        });
        table.insert(key.clone(), Arc::clone(&slot));
        Some(begin(slot))
    }

    /// Takes the slot off the table that has been idle for longest among these; `None` if all are in use.
    fn make_room(
        table: &mut HashMap<Key, Arc<Slot>>,
        may_go: impl Fn(&Slot) -> bool,
    ) -> Option<()> {
        let idle = table.iter().filter_map(|(key, slot)| {
            let usage = slot.usage();
            // One that only remembers a refusal goes first.
            let rank = (usage.connections > 0, usage.idle_since);
            (usage.leases == 0 && may_go(slot)).then_some((rank, key))
        });
        let longest_idle = idle.min_by_key(|(rank, _)| *rank).map(|(_, key)| key.clone())?;
        if let Some(slot) = table.remove(&longest_idle) {
            slot.evicted.cancel();
        }
        Some(())
    }

    /// Takes a slot off the table.
    fn remove(table: &mut HashMap<Key, Arc<Slot>>, key: &Key, slot: &Arc<Slot>) {
        if table.get(key).is_some_and(|other| Arc::ptr_eq(other, slot)) {
            table.remove(key);
        }
    }

    async fn open(&self, main: &Wired, key: &Key, callers: Callers) -> Result<Arc<Wired>, String> {
        let found = match main.about.wire {
            "http+sse" => Found::Pair,
            _ => Found::Streamable(main.about.era()),
        };
        let wanted = Wanted {
            epoch: main.about.epoch,
            found: Some(found),
            declared: Some(key.declared.clone()),
            callers,
            changes: self.changes.clone(),
            // Which resources have changed is told on the main connection, which subscribes to them.
            interest: Interest::new(self.settings.name.clone()),
        };
        let opening = self.stop.run_until_cancelled(self.opener.open(&wanted)).await;
        match opening {
            Some(Ok(opened)) => Ok(opened.connection),
            Some(Err(failed)) => {
                if let Some(wire) = failed.wire {
                    wire.close().await;
                }
                Err(failed.reason)
            }
            None => Err("it was stopped".into()),
        }
    }

    /// Holds a connection until it has ended, or is not wanted any more, and closes it.
    async fn keep(self: Arc<Self>, key: Key, slot: Arc<Slot>, link: Link, gone: CancellationToken) {
        let limit = if key.client.is_some() { OWN_IDLE } else { SHARED_IDLE };
        // A server may ask on the session's own stream, and would wait for ever where nobody opened it.
        let nobody = Interest::new(self.settings.name.clone());
        let mut listening = Box::pin(Arc::clone(&link.connection).listen(&nobody));
        let (mut listened, opened) = (None, Instant::now());
        let mut idle_after = opened;
        let is_over = loop {
            if let Some(Some(_)) = listened {
                break true;
            }
            let idle_until = slot.usage().idle_since.max(idle_after) + limit;
            tokio::select! {
                biased;
                () = slot.evicted.cancelled() => break false,
                () = gone.cancelled() => break false,
                () = link.spoiled.cancelled() => break true,
                reason = link.connection.ended() => {
                    if opened.elapsed() < STEADY {
                        self.pauses.failed(&key, &reason);
                    } else {
                        self.pauses.worked(&key);
                    }
                    break true;
                }
                over = &mut listening, if listened.is_none() => listened = Some(over),
                () = promptly(tokio::time::sleep_until(idle_until)) => {
                    let mut table = self.table();
                    let mut usage = slot.usage();
                    if usage.leases > 0 {
                        usage.idle_since = Instant::now();
                    } else if link.connection.has_tasks() {
                        // They end with it: its place may be taken by others, but it is not idle.
                        idle_after = Instant::now();
                    } else if usage.idle_since.elapsed() >= limit {
                        drop(usage);
                        Self::remove(&mut table, &key, &slot);
                        break false;
                    }
                }
            }
        };
        link.spoiled.cancel();
        {
            let mut table = self.table();
            let mut usage = slot.usage();
            usage.connections -= 1;
            let is_empty = usage.connections == 0 && usage.leases == 0;
            drop(usage);
            // A client that is gone does not come back; the others find their slot, and open another.
            if is_empty || !is_over {
                Self::remove(&mut table, &key, &slot);
            }
        }
        match is_over {
            true => link.connection.abandon().await,
            false => link.connection.close().await,
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Arc<Slot>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    fn new(link: &Link, used: Used) -> Self {
        let Link { connection, spoiled } = link.clone();
        Self { connection, spoiled, _used: used }
    }

    /// The connection does not work any more: whoever comes next opens another.
    pub(crate) fn spoil(&self) {
        self.spoiled.cancel();
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut table = self.links.table();
        let mut usage = self.slot.usage();
        usage.leases -= 1;
        usage.idle_since = Instant::now();
        let is_empty = usage.leases == 0 && usage.connections == 0 && usage.refused.is_none();
        drop(usage);
        if is_empty {
            Links::remove(&mut table, &self.key, &self.slot);
        }
    }
}

/// Which connection a call goes over.
pub(crate) enum Route {
    /// The one that the supervisor keeps.
    Main(Connection),
    /// One beside it.
    Beside(Lease),
}

impl Route {
    pub(crate) fn connection(&self) -> Connection {
        match self {
            Self::Main(connection) => connection.clone(),
            Self::Beside(lease) => Connection::Wired(Arc::clone(&lease.connection)),
        }
    }

    /// The reply; the connection, and with it the upstream, is in use until it has arrived.
    pub(crate) fn outlast(self, upstream: &Upstream, reply: Reply) -> Reply {
        let Reply { era, scope, outcome: Outcome::Result(Body::Arriving(pieces)) } = reply else {
            return reply;
        };
        let in_use = (self, upstream.clone());
        let held = pieces.map(move |piece| {
            let _in_use = &in_use;
            piece
        });
        Reply { era, scope, outcome: Outcome::Result(Body::Arriving(held.boxed())) }
    }
}
