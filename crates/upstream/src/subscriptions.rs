//! Registry of one upstream's resource and task subscriptions: one per URI or task id, shared by
//! any number of clients.
//!
//! [`SubscriptionRegistry`] is the table of desired subscriptions; on each connection
//! `sync_subscriptions` of the session keeps the server in step with it. Subscriptions outlive
//! connections: on the next connection all of them are made again, and each that was accepted
//! before counts as updated, since updates in the gap were lost. A subscription whose last client
//! leaves lingers for a moment, so that a client that returns finds it in place.
//!
//! Invariants: the reader of the server's messages never waits here; updates without a subscriber
//! are dropped; the number of URIs and their bytes are bounded, and no client can use up the whole
//! table.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::Error;
use crate::health::on_demand::UsageGuard;
use weir_base::json::Object;
use weir_base::memory::quota::{PerPrincipal, QuotaPermit};
use weir_base::tasks::sync::Mutex;
use weir_mcp::call::QuotaOwner;
use weir_mcp::definition::item::MAX_URI_BYTES;
use weir_mcp::name::UpstreamName;
use weir_mcp::resource_updates::{PendingResourceUpdates, with_parents};
use weir_mcp::task::{FollowedTask, TASK_ID, TaskScope};

/// Time limit for the server's acceptance of a subscription, and for a client that waits for it.
pub(super) const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which a subscription outlives its last client.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// Maximum subscribed URIs of one upstream, and their total size: a server of the newest revision
/// receives them in one message.
pub(super) const MAX_URIS: usize = 4_096;
const MAX_URI_BYTES_TOTAL: usize = 1024 * 1024;
/// Maximum entries that one client may have created.
pub(super) const URIS_PER_CLIENT: usize = 1_024;

/// Outcome of a subscription attempt.
#[derive(Debug)]
pub enum Subscribed {
    /// The server notifies of updates.
    Accepted(Subscription),
    /// The server refused, with its error object if it sent one.
    Refused(Option<Bytes>),
}

/// One client's share of a subscription. Dropping it unsubscribes the client.
#[derive(Debug)]
pub struct Subscription {
    registry: Arc<SubscriptionRegistry>,
    uri: Arc<str>,
    number: u64,
    /// Keeps an on-demand upstream from being stopped.
    _usage: Option<UsageGuard>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.registry.unregister(&self.uri, self.number);
    }
}

// === SubscriptionRegistry ===

/// Desired subscriptions of an upstream and their clients.
#[derive(Debug)]
pub(crate) struct SubscriptionRegistry {
    name: UpstreamName,
    table: Mutex<RegistryTable>,
    /// Counts changes of the desired subscriptions.
    changed: watch::Sender<u64>,
    /// Registry of task subscriptions, if this is the one of resources.
    tasks: Option<Arc<Self>>,
}

#[derive(Debug, Default)]
struct RegistryTable {
    entries: HashMap<Arc<str>, RegistryEntry>,
    /// Entries created per quota owner.
    created: PerPrincipal<Arc<str>>,
    last_number: u64,
}

#[derive(Debug)]
struct RegistryEntry {
    /// Quota of the owner whose client created the entry.
    _quota: QuotaPermit<Arc<str>>,
    /// Subscribed clients, by number.
    clients: HashMap<u64, Subscriber>,
    state: watch::Sender<SubscriptionState>,
    /// Whether a server has ever accepted it: then its clients rely on it, and it is never dropped
    /// for an error.
    was_accepted: bool,
    /// Time at which the last client left.
    empty_since: Option<Instant>,
}

/// Receiver of a client's updates.
#[derive(Debug, Clone)]
pub(super) enum Subscriber {
    /// Resource subscriber: updates are marked here.
    Resource(PendingResourceUpdates),
    /// Task subscriber.
    Task(FollowedTask),
}

/// State of a subscription at the server.
#[derive(Debug, Clone)]
enum SubscriptionState {
    /// Not yet made on this connection.
    Pending,
    Accepted,
    Refused(Option<Bytes>),
    Failed(String),
}

/// Subscriptions that a server should have now.
#[derive(Debug)]
pub(super) struct DesiredSubscriptions {
    pub(super) uris: HashSet<Arc<str>>,
    /// Time at which the first of them may expire.
    pub(super) recheck_at: Option<Instant>,
}

// Operations of clients.
impl SubscriptionRegistry {
    pub(super) fn new(name: UpstreamName) -> Arc<Self> {
        let of = |tasks| {
            let name = name.clone();
            Arc::new(Self { name, table: Mutex::default(), changed: watch::Sender::new(0), tasks })
        };
        of(Some(of(None)))
    }

    /// Registry of the task subscriptions.
    pub(super) fn task_registry(self: &Arc<Self>) -> &Arc<Self> {
        self.tasks.as_ref().unwrap_or(self)
    }

    /// Subscribes a client, and waits for the server's acceptance if the URI is not subscribed yet.
    pub(super) async fn join(
        self: &Arc<Self>,
        uri: &str,
        subscriber: Subscriber,
        owner: &QuotaOwner,
        usage: Option<UsageGuard>,
    ) -> Result<Subscribed, Error> {
        let (mut subscription, mut state) = self.register(uri, subscriber, owner)?;
        subscription._usage = usage;
        let decided = state.wait_for(|state| !matches!(state, SubscriptionState::Pending));
        let decided =
            timeout(ACCEPT_TIMEOUT, decided).await.map_err(|_| Error::TimedOut(ACCEPT_TIMEOUT))?;
        match decided.map(|state| state.clone()) {
            Ok(SubscriptionState::Accepted) => Ok(Subscribed::Accepted(subscription)),
            Ok(SubscriptionState::Refused(error)) => Ok(Subscribed::Refused(error)),
            // The request may have reached the server, which may have accepted it.
            Ok(SubscriptionState::Failed(reason)) => Err(Error::ConnectionLost(reason)),
            Ok(SubscriptionState::Pending) | Err(_) => {
                Err(Error::ConnectionLost("the upstream was stopped".into()))
            }
        }
    }

    /// Whether any client is subscribed.
    pub(super) fn is_needed(&self) -> bool {
        let of_tasks = self.tasks.as_ref().is_some_and(|tasks| tasks.is_needed());
        of_tasks || self.table.lock().entries.values().any(|entry| !entry.clients.is_empty())
    }

    fn register(
        self: &Arc<Self>,
        uri: &str,
        subscriber: Subscriber,
        owner: &QuotaOwner,
    ) -> Result<(Subscription, watch::Receiver<SubscriptionState>), Error> {
        let mut table = self.table.lock();
        table.last_number += 1;
        let number = table.last_number;
        if !table.entries.contains_key(uri) {
            let entry = RegistryEntry {
                _quota: table.reserve(uri.len(), owner)?,
                clients: HashMap::new(),
                state: watch::Sender::new(SubscriptionState::Pending),
                was_accepted: false,
                empty_since: None,
            };
            table.entries.insert(uri.into(), entry);
        }
        let (uri, entry) = table.entry(uri).expect("it was there, or has just been put there");
        entry.clients.insert(number, subscriber);
        entry.empty_since = None;
        if matches!(*entry.state.borrow(), SubscriptionState::Refused(_)) {
            // The server may accept it now.
            entry.state.send_replace(SubscriptionState::Pending);
        }
        let is_new = matches!(*entry.state.borrow(), SubscriptionState::Pending);
        let state = entry.state.subscribe();
        drop(table);
        if is_new {
            self.notify_change();
        }
        let registry = Arc::clone(self);
        Ok((Subscription { registry, uri, number, _usage: None }, state))
    }

    fn unregister(&self, uri: &Arc<str>, number: u64) {
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(uri) else { return };
        if entry.clients.remove(&number).is_none() || !entry.clients.is_empty() {
            return;
        }
        if entry.was_accepted {
            entry.empty_since = Some(Instant::now());
        } else {
            table.entries.remove(uri);
        }
        drop(table);
        self.notify_change();
    }

    fn notify_change(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

// Operations of the server's session.
impl SubscriptionRegistry {
    /// Watches the desired subscriptions for changes.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Marks every subscription as not made: the connection is new, or the server has ended all of
    /// them.
    pub(super) fn reset(&self) {
        for entry in self.table.lock().entries.values() {
            entry.state.send_replace(SubscriptionState::Pending);
        }
    }

    /// Returns the subscriptions that the server should have now, and drops those whose linger time
    /// is over.
    pub(super) fn desired(&self) -> DesiredSubscriptions {
        let (mut table, now) = (self.table.lock(), Instant::now());
        table.entries.retain(|_, entry| entry.empty_since.is_none_or(|left| left + LINGER > now));
        let entries = || table.entries.iter();
        let open = entries().filter(|(_, entry)| {
            matches!(
                *entry.state.borrow(),
                SubscriptionState::Pending | SubscriptionState::Accepted
            )
        });
        DesiredSubscriptions {
            uris: open.map(|(uri, _)| uri.clone()).collect(),
            recheck_at: entries()
                .filter_map(|(_, entry)| entry.empty_since)
                .min()
                .map(|left| left + LINGER),
        }
    }

    /// Records the server's acceptance; returns whether the subscription is still desired. One that
    /// is made again after a gap counts as updated, since updates in the gap were lost.
    pub(super) fn on_accepted(&self, uri: &Arc<str>) -> bool {
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(uri) else { return false };
        let was_accepted = std::mem::replace(&mut entry.was_accepted, true);
        let before = entry.state.send_replace(SubscriptionState::Accepted);
        if was_accepted && matches!(before, SubscriptionState::Pending) {
            entry.mark_updated(&self.name, uri, uri);
        }
        true
    }

    /// Records the server's refusal.
    pub(super) fn on_refused(&self, uri: &Arc<str>, error: Option<Bytes>) {
        tracing::debug!(upstream = %self.name, %uri, "subscription refused by the server");
        self.end_attempt(uri, SubscriptionState::Refused(error), true);
    }

    /// Records a failure with an unknown outcome. A subscription that clients rely on is tried
    /// again.
    pub(super) fn on_failed(&self, uri: &Arc<str>, reason: &str) {
        tracing::debug!(upstream = %self.name, %uri, reason, "subscription failed");
        self.end_attempt(uri, SubscriptionState::Failed(reason.to_owned()), false);
    }

    fn end_attempt(&self, uri: &Arc<str>, state: SubscriptionState, is_final: bool) {
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(uri) else { return };
        if !entry.was_accepted {
            // The waiting client receives the error; no other client has this subscription.
            entry.state.send_replace(state);
            table.entries.remove(uri);
        } else if is_final {
            entry.state.send_replace(state);
        }
    }

    /// Marks an updated resource for the clients that subscribed to it or to a parent of it. Never
    /// waits.
    pub(super) fn on_updated(&self, uri: &str) {
        if uri.len() > MAX_URI_BYTES {
            return;
        }
        let table = self.table.lock();
        let mut shared: Option<Arc<str>> = None;
        for subscribed in with_parents(uri) {
            let Some((subscribed, entry)) = table.entries.get_key_value(subscribed) else {
                continue;
            };
            let uri = shared.get_or_insert_with(|| uri.into());
            entry.mark_updated(&self.name, uri, subscribed);
        }
    }

    /// Passes the `params` of a task status notification to the subscribers of that task, if the
    /// task is known at `scope`. The same id may have been another task of an earlier process.
    pub(super) fn on_task_status(&self, params: &Object, scope: TaskScope) {
        let Some(id) = params.get_string(TASK_ID) else { return };
        let table = self.table.lock();
        let Some(entry) = table.entries.get(&*id) else { return };
        for subscriber in entry.clients.values() {
            if let Subscriber::Task(task) = subscriber
                && task.scope == scope
            {
                task.owner.notify(&task.handle, params);
            }
        }
    }

    /// Marks every accepted resource as updated: notifications of the server have been lost.
    pub(super) fn mark_all_updated(&self) {
        for (uri, entry) in &self.table.lock().entries {
            if matches!(*entry.state.borrow(), SubscriptionState::Accepted) {
                entry.mark_updated(&self.name, uri, uri);
            }
        }
    }
}

impl RegistryTable {
    fn entry(&mut self, uri: &str) -> Option<(Arc<str>, &mut RegistryEntry)> {
        let uri = self.entries.get_key_value(uri)?.0.clone();
        let entry = self.entries.get_mut(&uri)?;
        Some((uri, entry))
    }

    /// Ensures that one more entry fits; lingering entries are dropped for it.
    fn reserve(
        &mut self,
        bytes: usize,
        owner: &QuotaOwner,
    ) -> Result<QuotaPermit<Arc<str>>, Error> {
        let acquire = |table: &Self| {
            let total = bytes + table.entries.keys().map(|uri| uri.len()).sum::<usize>();
            if table.entries.len() >= MAX_URIS || total > MAX_URI_BYTES_TOTAL {
                return None;
            }
            table.created.acquire(&owner.name, owner.share(URIS_PER_CLIENT))
        };
        let permit = acquire(self).or_else(|| {
            self.entries.retain(|_, entry| entry.empty_since.is_none());
            acquire(self)
        });
        permit.ok_or(Error::Busy { retry_after: LINGER })
    }
}

impl RegistryEntry {
    fn mark_updated(&self, upstream: &UpstreamName, uri: &Arc<str>, subscribed: &Arc<str>) {
        for subscriber in self.clients.values() {
            // The state that a task reached in the meantime is not known here.
            if let Subscriber::Resource(updates) = subscriber {
                updates.mark(upstream, uri, subscribed);
            }
        }
    }
}
