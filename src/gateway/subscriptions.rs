//! What one client wants to hear of single resources.
//!
//! Promises: a client hears of a resource only if it has subscribed to it, or to what it is a part of, and
//! its own view resolves it at that moment, to the upstream that says so. What is held is let go of when
//! this is dropped or ended; what has to be told is a bounded set, however long nobody asks for it.
//!
//! Knows nothing of: how clients subscribe and are told.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

use super::{Fault, Guest, upstream_error};
use crate::catalog::View;
use crate::json::Object;
use crate::mcp::call::{Ask, Method};
use crate::mcp::kind::Kind;
use crate::mcp::resource_updates::{Changed, Dirty, with_parents};
use crate::mcp::revision::Revision;
use crate::mcp::task::TaskNews;
use crate::policy::limits::Permit;
use crate::upstream::{self, Subscription};

/// How many resources one client, or one listen of it, may subscribe to.
pub const MAX_SUBSCRIPTIONS: usize = 1_000;

/// The resources that a client wants to hear of, and those of which it has yet to be told.
pub struct Subscriptions {
    /// What its client sees, under whatever configuration it was looked at last.
    view: Mutex<watch::Receiver<Arc<View>>>,
    dirty: Dirty,
    tasks: TaskNews,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    uris: HashMap<Box<str>, Slot>,
    tasks: Vec<Subscription>,
    is_over: bool,
}

/// What is held of a URI.
#[derive(Debug, Default)]
struct Slot {
    subscription: Option<Subscription>,
    /// How many requests wait for the upstream to agree.
    waiting: usize,
}

/// How an attempt to subscribe ended.
#[derive(Debug)]
pub enum Subscribed {
    /// The client will hear of changes.
    Agreed,
    /// The upstream does not tell of changes, with the error object that it gave, if it gave one.
    Refused(Option<Bytes>),
}

impl Guest {
    /// An empty set of subscriptions, for one client, which hears of its tasks through `tasks`.
    pub fn subscriptions(&self, tasks: &TaskNews) -> Arc<Subscriptions> {
        let (dirty, tasks) = (Dirty::default(), tasks.clone());
        let view = Mutex::new(self.view.clone());
        Arc::new(Subscriptions { view, dirty, tasks, held: Mutex::default() })
    }

    /// Subscribes to a resource that the guest may read; twice is once. Dropping the future leaves things as
    /// they were.
    pub async fn subscribe(
        &self,
        _: &Permit,
        subscriptions: &Subscriptions,
        uri: &str,
    ) -> Result<Subscribed, Fault> {
        let method = Method::ReadResource;
        let ask = Ask { method, kind: Kind::Resource, key: uri.into(), params: Object::new() };
        // Resources are the same in every revision.
        let target = self.find(&ask, Revision::NEWEST).await?;
        let Some(place) = subscriptions.reserve(uri)? else { return Ok(Subscribed::Agreed) };
        self.record_sending().await?;
        let owner = self.generation.upstream(&target.upstream);
        match owner.subscribe(&target.own, &subscriptions.dirty, &self.owner()).await {
            Ok(upstream::Subscribed::Held(subscription)) => {
                place.fill(subscription);
                Ok(Subscribed::Agreed)
            }
            Ok(upstream::Subscribed::Refused(error)) => Ok(Subscribed::Refused(error)),
            Err(cause) => Err(upstream_error(&target.upstream, cause)),
        }
    }
}

impl fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.lock().uris.len();
        f.debug_struct("Subscriptions").field("held", &held).finish_non_exhaustive()
    }
}

impl Subscriptions {
    /// Ends a subscription, if there is one.
    pub fn unsubscribe(&self, uri: &str) {
        let gone = self.lock().uris.remove(uri);
        drop(gone);
    }

    /// Ends all of them, for good.
    pub fn end(&self) {
        let gone = {
            let mut held = self.lock();
            held.is_over = true;
            (std::mem::take(&mut held.uris), std::mem::take(&mut held.tasks))
        };
        drop(gone);
    }

    /// Takes another view of the client's, under another configuration. What leads to nobody in it is let go of.
    pub(super) fn look_with(&self, guest: &Guest) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = guest.view.clone();
        let view = guest.view();
        let gone: Vec<_> = {
            let uris = &mut self.lock().uris;
            uris.extract_if(|uri, slot| {
                slot.subscription.is_some() && view.resolve_uri(uri).is_none()
            })
            .collect()
        };
        drop(gone);
    }

    fn view(&self) -> Arc<View> {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&view.borrow())
    }

    /// What the client has yet to be told of its tasks.
    pub fn tasks(&self) -> &TaskNews {
        &self.tasks
    }

    /// Keeps a task's subscription until the end.
    pub(super) fn hold_task(&self, subscription: Subscription) {
        let mut held = self.lock();
        if !held.is_over {
            held.tasks.push(subscription);
        }
    }

    /// The next resource that has changed since the client was last told of it. Never ends. Cancel-safe. For
    /// one reader at a time.
    pub async fn next(&self) -> Arc<str> {
        loop {
            let Changed { upstream, uri } = self.dirty.next().await;
            let target = self.view().resolve_uri(&uri);
            let may_read = target.is_some_and(|target| target.upstream == upstream);
            if may_read && self.covers(&uri) {
                return uri;
            }
        }
    }

    fn covers(&self, uri: &str) -> bool {
        let held = self.lock();
        with_parents(uri).any(|uri| held.uris.contains_key(uri))
    }

    /// Takes a place for a URI; `None` if it is held already.
    fn reserve<'a>(&'a self, uri: &'a str) -> Result<Option<Place<'a>>, Fault> {
        let mut held = self.lock();
        if held.is_over {
            return Err(Fault::Request("the session has ended".into()));
        }
        if !held.uris.contains_key(uri) && held.uris.len() >= MAX_SUBSCRIPTIONS {
            let text = format!(
                "no more than {MAX_SUBSCRIPTIONS} resources can be subscribed to at a time: \
                 unsubscribe from some first"
            );
            return Err(Fault::Request(text));
        }
        let slot = held.uris.entry(uri.into()).or_default();
        if slot.subscription.is_some() {
            return Ok(None);
        }
        slot.waiting += 1;
        Ok(Some(Place { subscriptions: self, uri }))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place that waits for its subscription. Dropped without one it is free again.
struct Place<'a> {
    subscriptions: &'a Subscriptions,
    uri: &'a str,
}

impl Place<'_> {
    /// Puts the subscription in its place, unless the client has unsubscribed meanwhile.
    fn fill(self, subscription: Subscription) {
        let mut held = self.subscriptions.lock();
        let superfluous = match held.uris.get_mut(self.uri) {
            Some(slot) => slot.subscription.replace(subscription),
            None => Some(subscription),
        };
        drop(held);
        drop(superfluous);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut held = self.subscriptions.lock();
        let Some(slot) = held.uris.get_mut(self.uri) else { return };
        slot.waiting = slot.waiting.saturating_sub(1);
        if slot.waiting == 0 && slot.subscription.is_none() {
            held.uris.remove(self.uri);
        }
    }
}
