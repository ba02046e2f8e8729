//! Subscriptions of one client to resources and tasks.
//!
//! Invariants: a client is notified of a resource only if it has subscribed to it, or to a resource
//! that contains it, and its own view resolves the URI at that moment, to the upstream that sent
//! the notification. Dropping or ending the set releases the subscriptions at the upstreams;
//! pending updates are a bounded set, however long the client does not read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::admission::record_found;
use super::error::upstream_error;
use super::task_handles::{TaskIdRewriter, TaskRef};
use super::{Admission, ClientContext, Error};
use weir_access::catalog::RoleView;
use weir_base::json::Object;
use weir_base::tasks::sync::Mutex;
use weir_base::time::backoff::Backoff;
use weir_mcp::call::{ClientHandle, ItemRequest, Method};
use weir_mcp::elicitation_complete::ElicitationCompletions;
use weir_mcp::kind::Kind;
use weir_mcp::resource_updates::{PendingResourceUpdates, ResourceUpdate, with_parents};
use weir_mcp::revision::{Era, Revision};
use weir_mcp::task::{FollowedTask, TaskOwner, TaskStatusQueue};
use weir_upstream::{self as upstream, Subscription};

/// Maximum number of resources that one client, or one listen request of it, may subscribe to.
pub const MAX_SUBSCRIPTIONS: usize = 1_000;

/// Pauses between attempts to restore a subscription.
const RESTORE_PAUSE: Duration = Duration::from_secs(1);
const MAX_RESTORE_PAUSE: Duration = Duration::from_secs(60);

/// The resources and tasks that a client is subscribed to, with the pending updates.
pub struct Subscriptions {
    /// The client's view under the latest configuration that it was checked with.
    view: Mutex<watch::Receiver<Arc<RoleView>>>,
    updates: PendingResourceUpdates,
    /// Queues of the client's other notifications.
    client: ClientHandle,
    table: Mutex<SubscriptionTable>,
}

#[derive(Debug, Default)]
struct SubscriptionTable {
    uris: HashMap<Box<str>, UriSubscription>,
    tasks: Vec<Subscription>,
    is_over: bool,
}

/// Subscription to one URI.
#[derive(Debug, Default)]
struct UriSubscription {
    subscription: Option<Subscription>,
    /// Number of requests that wait for the upstream's response.
    waiting: usize,
}

/// Outcome of a subscribe request.
#[derive(Debug)]
pub enum SubscribeOutcome {
    /// The client will be notified of changes.
    Accepted,
    /// The upstream refuses, with its error object if it sent one.
    Refused(Option<Bytes>),
}

impl Subscriptions {
    /// Creates an empty set for one client; `handle` has the queues of its other notifications.
    pub fn new(client: &ClientContext, handle: ClientHandle) -> Arc<Self> {
        let (updates, view) = (PendingResourceUpdates::default(), Mutex::new(client.view.clone()));
        Arc::new(Self { view, updates, client: handle, table: Mutex::default() })
    }

    /// Subscribes to a resource that the client may read; idempotent. Dropping the future changes
    /// nothing.
    pub async fn subscribe(
        &self,
        client: &ClientContext,
        admission: &mut Admission,
        uri: &str,
    ) -> Result<SubscribeOutcome, Error> {
        let method = Method::ReadResource;
        let request =
            ItemRequest { method, kind: Kind::Resource, key: uri.into(), params: Object::new() };
        // Resources are the same in every revision.
        let target = admission.resolve(client, &request, Revision::NEWEST).await?;
        // Notifications name the URI as it is listed.
        let Some(reservation) = self.reserve(&target.key)? else {
            return Ok(SubscribeOutcome::Accepted);
        };
        client.record_sending().await?;
        let owner = client.config.upstream(&target.upstream);
        match owner.subscribe(&target.own, &self.updates, &client.quota_owner()).await {
            Ok(upstream::Subscribed::Accepted(subscription)) => {
                reservation.complete(subscription);
                Ok(SubscribeOutcome::Accepted)
            }
            Ok(upstream::Subscribed::Refused(error)) => Ok(SubscribeOutcome::Refused(error)),
            Err(cause) => Err(upstream_error(&target.upstream, cause)),
        }
    }

    /// Restores a subscription of a session that another process served, and notifies the client
    /// once, since it may have missed an update. Ends when the upstream has answered, or when the
    /// client may not read the resource (any more).
    pub async fn restore(&self, client: &ClientContext, uri: &str) {
        let mut backoff = Backoff::new(RESTORE_PAUSE, MAX_RESTORE_PAUSE).with_jitter(true);
        // Reserved from the beginning, so that it counts as a subscription of the session.
        let Ok(Some(reservation)) = self.reserve(uri) else { return };
        client.wait_for_startup().await;
        while let Some(target) = client.view().resolve_uri(uri) {
            let owner = client.config.upstream(&target.upstream);
            match owner.subscribe(&target.own, &self.updates, &client.quota_owner()).await {
                Ok(upstream::Subscribed::Accepted(subscription)) => {
                    reservation.complete(subscription);
                    let uri = Arc::from(uri);
                    return self.updates.mark(&target.upstream, &uri, &uri);
                }
                Ok(upstream::Subscribed::Refused(_)) => return,
                Err(cause) => {
                    let upstream = &target.upstream;
                    tracing::debug!(%upstream, %cause, "subscription not restored yet");
                    tokio::time::sleep(backoff.next_pause()).await;
                }
            }
        }
    }

    /// Subscribes to status notifications of the task with this handle. Returns whether the
    /// upstream accepts; dropping the future changes nothing.
    pub async fn follow_task(&self, client: &ClientContext, handle: &str) -> bool {
        client.audit_event.set_public_name(handle);
        let opened = match TaskRef::open(client, handle, Era::Modern) {
            Some(opened) => Some(opened),
            // Shortly after the start the owner may not have been listed yet.
            None => {
                client.wait_for_startup().await;
                TaskRef::open(client, handle, Era::Modern)
            }
        };
        let Some((task, target)) = opened else { return false };
        record_found(client, &target);
        if client.record_sending().await.is_err() {
            return false;
        }
        let rewriter = TaskIdRewriter::of_tool(client, &target.upstream, &target.key, task.era);
        let owner = TaskOwner::new(Arc::new(rewriter), self.tasks());
        let followed = FollowedTask { owner, scope: task.scope, handle: handle.into() };
        let upstream = client.config.upstream(&target.upstream);
        match upstream.follow_task(&task.own, followed, &client.quota_owner()).await {
            Ok(upstream::Subscribed::Accepted(subscription)) => {
                self.add_task(subscription);
                true
            }
            Ok(upstream::Subscribed::Refused(_)) => false,
            Err(cause) => {
                tracing::debug!(upstream = %target.upstream, %cause, "task subscription failed");
                false
            }
        }
    }

    /// Removes a subscription, if there is one.
    pub fn unsubscribe(&self, uri: &str) {
        let target = self.view().resolve_uri(uri);
        let removed = {
            let uris = &mut self.table.lock().uris;
            uris.remove(uri).or_else(|| uris.remove(&target?.key))
        };
        drop(removed);
    }

    /// Removes all subscriptions; no new ones are accepted afterwards.
    pub fn end(&self) {
        let removed = {
            let mut table = self.table.lock();
            table.is_over = true;
            (std::mem::take(&mut table.uris), std::mem::take(&mut table.tasks))
        };
        drop(removed);
    }

    /// Switches to the client's view under another configuration. Subscriptions that it does not
    /// resolve are removed.
    pub(super) fn update_view(&self, client: &ClientContext) {
        *self.view.lock() = client.view.clone();
        let view = client.view();
        let removed: Vec<_> = {
            let uris = &mut self.table.lock().uris;
            uris.extract_if(|uri, entry| {
                entry.subscription.is_some() && view.resolve_uri(uri).is_none()
            })
            .collect()
        };
        drop(removed);
    }

    fn view(&self) -> Arc<RoleView> {
        let view = self.view.lock();
        Arc::clone(&view.borrow())
    }

    /// The URIs that the client is subscribed to.
    pub fn uris(&self) -> Vec<Box<str>> {
        self.table.lock().uris.keys().cloned().collect()
    }

    /// Pending task notifications of the client.
    pub(crate) fn tasks(&self) -> &TaskStatusQueue {
        &self.client.tasks
    }

    /// Pending completions of the client's URL elicitations.
    pub(crate) fn elicitations(&self) -> &ElicitationCompletions {
        &self.client.elicitation_completions
    }

    /// Stores a subscription to a task until the set ends.
    fn add_task(&self, subscription: Subscription) {
        let mut table = self.table.lock();
        if !table.is_over {
            table.tasks.push(subscription);
        }
    }

    /// Waits for the next updated resource that the client is to be notified of. Never ends.
    /// Cancel-safe. For one reader at a time.
    pub(crate) async fn next(&self) -> Arc<str> {
        loop {
            let ResourceUpdate { upstream, uri } = self.updates.next().await;
            let target = self.view().resolve_uri(&uri);
            let may_read = target.is_some_and(|target| target.upstream == upstream);
            if may_read && self.covers(&uri) {
                return uri;
            }
        }
    }

    fn covers(&self, uri: &str) -> bool {
        let table = self.table.lock();
        with_parents(uri).any(|uri| table.uris.contains_key(uri))
    }

    /// Reserves a URI; `None` if there is a subscription already.
    fn reserve<'a>(&'a self, uri: &'a str) -> Result<Option<SubscriptionReservation<'a>>, Error> {
        let mut table = self.table.lock();
        if table.is_over {
            return Err(Error::Request("the session has ended".into()));
        }
        if !table.uris.contains_key(uri) && table.uris.len() >= MAX_SUBSCRIPTIONS {
            let text = format!(
                "no more than {MAX_SUBSCRIPTIONS} resources can be subscribed to at a time: \
                 unsubscribe from some first"
            );
            return Err(Error::Request(text));
        }
        let entry = table.uris.entry(uri.into()).or_default();
        if entry.subscription.is_some() {
            return Ok(None);
        }
        entry.waiting += 1;
        Ok(Some(SubscriptionReservation { subscriptions: self, uri }))
    }
}

/// Reservation of a URI until the upstream has accepted. Dropped before, it is released.
struct SubscriptionReservation<'a> {
    subscriptions: &'a Subscriptions,
    uri: &'a str,
}

impl SubscriptionReservation<'_> {
    /// Stores the subscription, unless the client has unsubscribed meanwhile.
    fn complete(self, subscription: Subscription) {
        let mut table = self.subscriptions.table.lock();
        let replaced = match table.uris.get_mut(self.uri) {
            Some(entry) => entry.subscription.replace(subscription),
            None => Some(subscription),
        };
        drop(table);
        drop(replaced);
    }
}

impl Drop for SubscriptionReservation<'_> {
    fn drop(&mut self) {
        let mut table = self.subscriptions.table.lock();
        let Some(entry) = table.uris.get_mut(self.uri) else { return };
        entry.waiting = entry.waiting.saturating_sub(1);
        if entry.waiting == 0 && entry.subscription.is_none() {
            table.uris.remove(self.uri);
        }
    }
}
