//! What clients want to hear of one upstream's resources, and of its tasks: a subscription per URI or id, however
//! many share it.
//!
//! [`Interest`] is the table of what is wanted; on each connection the dialect's `follow` keeps the server
//! told of it. Interest outlives connections: on the next one everything is made anew, and what had been
//! subscribed to counts as updated, since what changed meanwhile went unheard. Interest that ends lingers
//! for a moment, so that a client that comes back finds its subscription where it was.
//!
//! Promises: who reads what the server says never waits here; updates that nobody subscribed to are
//! dropped; the number of URIs and their bytes are bounded, and no client can take all places.
//!
//! Knows nothing of: who may read what, and how a server is told.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::Error;
use crate::fairness::promptly;
use crate::json::Object;
use crate::mcp::call::Owner;
use crate::mcp::definition::item::MAX_URI_BYTES;
use crate::mcp::name::UpstreamName;
use crate::mcp::resource_updates::{Dirty, with_parents};
use crate::mcp::task::{FollowedTask, TASK_ID, TaskScope};
use crate::upstream::health::on_demand::Use;

/// How long a server has to take a subscription, and a client to wait for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long a subscription is kept after its last client has left.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// How many URIs of one upstream may be subscribed to, and how long they may be together: towards a
/// server of the newest revision they stand in one message.
pub(super) const MAX_URIS: usize = 4_096;
const MAX_URIS_BYTES: usize = 1024 * 1024;
/// How many of them one client may have been the first to subscribe to.
pub(super) const URIS_PER_CLIENT: usize = 1_024;

/// How an attempt to subscribe ended.
#[derive(Debug)]
pub enum Subscribed {
    /// The server tells of changes.
    Held(Subscription),
    /// The server does not, with the error object that it gave, if it gave one.
    Refused(Option<Bytes>),
}

/// One client's share in the subscription to a URI. Dropping it ends the client's interest.
#[derive(Debug)]
pub struct Subscription {
    interest: Arc<Interest>,
    uri: Arc<str>,
    number: u64,
    /// So that the upstream does not fall asleep, where it might.
    _in_use: Option<Use>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.interest.leave(&self.uri, self.number);
    }
}

// === Interest ===

/// What is wanted of an upstream, and by whom.
#[derive(Debug)]
pub(super) struct Interest {
    name: UpstreamName,
    table: Mutex<Table>,
    /// Counts changes of what is wanted.
    moved: watch::Sender<u64>,
    /// The same of tasks, where this is of resources.
    tasks: Option<Arc<Self>>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Arc<str>, Entry>,
    bytes: usize,
    /// How many entries each owner of clients has made.
    made: HashMap<Arc<str>, usize>,
    numbers: u64,
}

#[derive(Debug)]
struct Entry {
    /// Whose client was the first that wanted it.
    maker: Arc<str>,
    /// The clients that want to hear of it.
    clients: HashMap<u64, Listener>,
    standing: watch::Sender<Standing>,
    /// Whether a server has ever taken it: then its clients count on it, whatever comes.
    was_held: bool,
    /// When the last client left.
    left_at: Option<Instant>,
}

/// Where a client hears of what it has subscribed to.
#[derive(Debug, Clone)]
pub(super) enum Listener {
    /// Of a resource, whose changes are marked here.
    Resource(Dirty),
    /// Of a task.
    Task(FollowedTask),
}

/// How a subscription stands with the server.
#[derive(Debug, Clone)]
enum Standing {
    /// It has to be made on this connection.
    Wanted,
    Held,
    Refused(Option<Bytes>),
    Failed(String),
}

/// What a server should be subscribed to now.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) uris: HashSet<Arc<str>>,
    /// When the first of them may not be wanted any more.
    pub(super) until: Option<Instant>,
}

// What clients do.
impl Interest {
    pub(super) fn new(name: UpstreamName) -> Arc<Self> {
        let of = |tasks| {
            let name = name.clone();
            Arc::new(Self { name, table: Mutex::default(), moved: watch::Sender::new(0), tasks })
        };
        of(Some(of(None)))
    }

    /// The same of tasks.
    pub(super) fn tasks(self: &Arc<Self>) -> &Arc<Self> {
        self.tasks.as_ref().unwrap_or(self)
    }

    /// Subscribes a client, and waits until the server has agreed if it has not before.
    pub(super) async fn join(
        self: &Arc<Self>,
        uri: &str,
        listener: Listener,
        owner: &Owner,
        in_use: Option<Use>,
    ) -> Result<Subscribed, Error> {
        let (mut subscription, mut standing) = self.enter(uri, listener, owner)?;
        subscription._in_use = in_use;
        let settled = standing.wait_for(|standing| !matches!(standing, Standing::Wanted));
        let settled = timeout(PATIENCE, settled).await.map_err(|_| Error::TimedOut(PATIENCE))?;
        match settled.map(|standing| standing.clone()) {
            Ok(Standing::Held) => Ok(Subscribed::Held(subscription)),
            Ok(Standing::Refused(error)) => Ok(Subscribed::Refused(error)),
            // The server may have been asked, and may have agreed.
            Ok(Standing::Failed(reason)) => Err(Error::Broke(reason)),
            Ok(Standing::Wanted) | Err(_) => Err(Error::Broke("it was stopped".into())),
        }
    }

    /// Whether anybody wants to hear of anything.
    pub(super) fn is_wanted(&self) -> bool {
        let of_tasks = self.tasks.as_ref().is_some_and(|tasks| tasks.is_wanted());
        of_tasks || self.lock().entries.values().any(|entry| !entry.clients.is_empty())
    }

    fn enter(
        self: &Arc<Self>,
        uri: &str,
        listener: Listener,
        owner: &Owner,
    ) -> Result<(Subscription, watch::Receiver<Standing>), Error> {
        let mut table = self.lock();
        table.numbers += 1;
        let number = table.numbers;
        if !table.entries.contains_key(uri) {
            table.make_room(uri.len(), owner)?;
            let entry = Entry {
                maker: Arc::clone(&owner.name),
                clients: HashMap::new(),
                standing: watch::Sender::new(Standing::Wanted),
                was_held: false,
                left_at: None,
            };
            table.bytes += uri.len();
            *table.made.entry(Arc::clone(&owner.name)).or_default() += 1;
            table.entries.insert(uri.into(), entry);
        }
        let (uri, entry) = table.entry(uri).expect("it was there, or has just been put there");
        entry.clients.insert(number, listener);
        entry.left_at = None;
        if matches!(*entry.standing.borrow(), Standing::Refused(_)) {
            // It may be welcome now.
            entry.standing.send_replace(Standing::Wanted);
        }
        let is_new = matches!(*entry.standing.borrow(), Standing::Wanted);
        let standing = entry.standing.subscribe();
        drop(table);
        if is_new {
            self.move_on();
        }
        let interest = Arc::clone(self);
        Ok((Subscription { interest, uri, number, _in_use: None }, standing))
    }

    fn leave(&self, uri: &Arc<str>, number: u64) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(uri) else { return };
        if entry.clients.remove(&number).is_none() || !entry.clients.is_empty() {
            return;
        }
        if entry.was_held {
            entry.left_at = Some(Instant::now());
        } else {
            table.remove(uri);
        }
        drop(table);
        self.move_on();
    }

    fn move_on(&self) {
        self.moved.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// What the server's side does.
impl Interest {
    /// News of what is wanted.
    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// Nothing is subscribed to any more: the connection is new, or the server has ended it all.
    pub(super) fn begin_anew(&self) {
        for entry in self.lock().entries.values() {
            entry.standing.send_replace(Standing::Wanted);
        }
    }

    /// What the server should be subscribed to now. What nobody has wanted for a while is forgotten.
    pub(super) fn wanted(&self) -> Wanted {
        let (mut table, now) = (self.lock(), Instant::now());
        let is_over = |entry: &Entry| entry.left_at.is_some_and(|left| left + LINGER <= now);
        table.forget(is_over);
        let entries = || table.entries.iter();
        let open = entries().filter(|(_, entry)| {
            matches!(*entry.standing.borrow(), Standing::Wanted | Standing::Held)
        });
        Wanted {
            uris: open.map(|(uri, _)| uri.clone()).collect(),
            until: entries().filter_map(|(_, entry)| entry.left_at).min().map(|left| left + LINGER),
        }
    }

    /// The server has taken a subscription; tells whether it is still wanted. One that is made again after
    /// a gap counts as updated: what happened in the gap went unheard.
    pub(super) fn held(&self, uri: &Arc<str>) -> bool {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(uri) else { return false };
        let was_held = std::mem::replace(&mut entry.was_held, true);
        let before = entry.standing.send_replace(Standing::Held);
        if was_held && matches!(before, Standing::Wanted) {
            entry.tell(&self.name, uri, uri);
        }
        true
    }

    /// The server will not have a subscription.
    pub(super) fn refused(&self, uri: &Arc<str>, error: Option<Bytes>) {
        tracing::debug!(upstream = %self.name, %uri, "a subscription is refused");
        self.give_up(uri, Standing::Refused(error), true);
    }

    /// It is not known what became of a subscription. One that clients count on is tried again.
    pub(super) fn failed(&self, uri: &Arc<str>, reason: &str) {
        tracing::debug!(upstream = %self.name, %uri, reason, "a subscription cannot be made");
        self.give_up(uri, Standing::Failed(reason.to_owned()), false);
    }

    fn give_up(&self, uri: &Arc<str>, standing: Standing, for_good: bool) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(uri) else { return };
        if !entry.was_held {
            // Whoever waits for it is told, and nobody else knows of it.
            entry.standing.send_replace(standing);
            table.remove(uri);
        } else if for_good {
            entry.standing.send_replace(standing);
        }
    }

    /// A resource has changed. The work is that of telling those who subscribed to it or to what it is a
    /// part of; nobody is waited for.
    pub(super) fn updated(&self, uri: &str) {
        if uri.len() > MAX_URI_BYTES {
            return;
        }
        let table = self.lock();
        let mut shared: Option<Arc<str>> = None;
        for subscribed in with_parents(uri) {
            let Some((subscribed, entry)) = table.entries.get_key_value(subscribed) else {
                continue;
            };
            let uri = shared.get_or_insert_with(|| uri.into());
            entry.tell(&self.name, uri, subscribed);
        }
    }

    /// Takes the `params` of a notification about a task that is known at `scope`, for those who listen for it. The
    /// same id may have been another task in the process before.
    pub(super) fn told(&self, params: &Object, scope: TaskScope) {
        let Some(id) = params.get_string(TASK_ID) else { return };
        let table = self.lock();
        let Some(entry) = table.entries.get(&*id) else { return };
        for listener in entry.clients.values() {
            if let Listener::Task(task) = listener
                && task.scope == scope
            {
                task.owner.tell(&task.handle, params);
            }
        }
    }

    /// Nobody has heard what the server said for a while: all that is subscribed to may have changed.
    pub(super) fn missed(&self) {
        for (uri, entry) in &self.lock().entries {
            if matches!(*entry.standing.borrow(), Standing::Held) {
                entry.tell(&self.name, uri, uri);
            }
        }
    }
}

impl Table {
    fn entry(&mut self, uri: &str) -> Option<(Arc<str>, &mut Entry)> {
        let uri = self.entries.get_key_value(uri)?.0.clone();
        let entry = self.entries.get_mut(&uri)?;
        Some((uri, entry))
    }

    /// Makes sure that one more fits in; those that merely linger have to go for it.
    fn make_room(&mut self, bytes: usize, owner: &Owner) -> Result<(), Error> {
        let is_full = |table: &Self| {
            let made = table.made.get(&owner.name).copied().unwrap_or_default();
            table.entries.len() >= MAX_URIS
                || table.bytes + bytes > MAX_URIS_BYTES
                || made >= URIS_PER_CLIENT * owner.clients
        };
        if is_full(self) {
            self.forget(|entry| entry.left_at.is_some());
        }
        if is_full(self) { Err(Error::Busy { retry_after: LINGER }) } else { Ok(()) }
    }

    fn forget(&mut self, is_over: impl Fn(&Entry) -> bool) {
        let gone: Vec<_> = self.entries.iter().filter(|(_, entry)| is_over(entry)).collect();
        let gone: Vec<_> = gone.into_iter().map(|(uri, _)| Arc::clone(uri)).collect();
        gone.iter().for_each(|uri| self.remove(uri));
    }

    fn remove(&mut self, uri: &str) {
        let Some(entry) = self.entries.remove(uri) else { return };
        self.bytes -= uri.len();
        if let Some(made) = self.made.get_mut(&entry.maker) {
            *made -= 1;
            if *made == 0 {
                self.made.remove(&entry.maker);
            }
        }
    }
}

impl Entry {
    fn tell(&self, upstream: &UpstreamName, uri: &Arc<str>, subscribed: &Arc<str>) {
        for listener in self.clients.values() {
            // What became of a task in the meantime is not known here.
            if let Listener::Resource(dirty) = listener {
                dirty.mark(upstream, uri, subscribed);
            }
        }
    }
}

/// Waits until this moment, if there is one.
pub(super) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => promptly(tokio::time::sleep_until(at)).await,
        None => std::future::pending().await,
    }
}
