//! Pending resource updates of one client (`notifications/resources/updated`).
//!
//! Invariants: it is a set, not a queue. A resource that changes often before the notification is
//! in it once; there is at most one notification per [`SPACING`], and the last change of a series
//! is always notified. Marking never waits. However many parts of a resource change, the set has at
//! most [`MAX_PENDING_UPDATES`] entries: beyond that the subscribed resource stands for its parts.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::name::UpstreamName;
use weir_base::memory::coalescing_queue::CoalescingQueue;

/// Minimum time between two notifications of a resource to one client.
pub const SPACING: Duration = Duration::from_secs(1);

/// Number of resources in a set from which on changed parts count as a change of the whole.
pub(crate) const MAX_PENDING_UPDATES: usize = 1_000;

/// Set of changed resources with any number of writers and one reader. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct PendingResourceUpdates {
    queue: Arc<CoalescingQueue<UpdateSet>>,
}

/// A resource that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResourceUpdate {
    /// The upstream that sent the notification.
    pub upstream: UpstreamName,
    /// The URI of the resource.
    pub uri: Arc<str>,
}

#[derive(Debug, Default)]
struct UpdateSet {
    states: HashMap<ResourceUpdate, State>,
    /// Updates that can be sent now, in the order in which they were marked.
    ready: VecDeque<ResourceUpdate>,
    /// Recently sent updates, with the end of their spacing.
    resting: VecDeque<(Instant, ResourceUpdate)>,
}

#[derive(Debug)]
enum State {
    Ready,
    Resting { has_changed: bool },
}

impl PendingResourceUpdates {
    /// Marks a changed resource for a client that subscribed to `subscribed`, which is the resource
    /// itself or one that contains it.
    pub fn mark(&self, upstream: &UpstreamName, uri: &Arc<str>, subscribed: &Arc<str>) {
        let is_new = {
            let set = &mut *self.queue.lock();
            let known =
                |uri: &Arc<str>| ResourceUpdate { upstream: upstream.clone(), uri: uri.clone() };
            let mut changed = known(uri);
            if set.states.len() >= MAX_PENDING_UPDATES && !set.states.contains_key(&changed) {
                changed = known(subscribed);
            }
            set.mark(changed)
        };
        if is_new {
            self.queue.wake();
        }
    }

    /// Waits for the next update, which then counts as sent. Never ends. Cancel-safe. For one
    /// reader at a time.
    pub async fn next(&self) -> ResourceUpdate {
        self.queue.next(UpdateSet::take).await
    }
}

impl UpdateSet {
    /// Adds an update; returns whether the reader must be woken.
    fn mark(&mut self, changed: ResourceUpdate) -> bool {
        match self.states.get_mut(&changed) {
            Some(State::Ready) => false,
            Some(State::Resting { has_changed }) => !std::mem::replace(has_changed, true),
            None => {
                self.states.insert(changed.clone(), State::Ready);
                self.ready.push_back(changed);
                true
            }
        }
    }

    /// Removes the next update that can be sent, or returns when one may be ready.
    fn take(&mut self, now: Instant) -> Result<ResourceUpdate, Option<Instant>> {
        while let Some((_, rested)) = self.resting.pop_front_if(|(until, _)| *until <= now) {
            match self.states.get_mut(&rested) {
                Some(state @ State::Resting { has_changed: true }) => {
                    *state = State::Ready;
                    self.ready.push_back(rested);
                }
                _ => {
                    self.states.remove(&rested);
                }
            }
        }
        let Some(changed) = self.ready.pop_front() else {
            return Err(self.resting.front().map(|(until, _)| *until));
        };
        self.states.insert(changed.clone(), State::Resting { has_changed: false });
        self.resting.push_back((now + SPACING, changed.clone()));
        Ok(changed)
    }
}

/// The URI and its parents, the nearest first (spec, resources: an updated resource may be a
/// sub-resource of the subscribed one). Bounded.
pub fn with_parents(uri: &str) -> impl Iterator<Item = &str> {
    let cuts = uri.bytes().enumerate().rev().filter(|(_, byte)| matches!(byte, b'/' | b'?' | b'#'));
    let parents = cuts.take(MAX_PARENTS).flat_map(|(at, byte)| {
        let folder = (byte == b'/').then(|| &uri[..=at]).filter(|folder| folder.len() < uri.len());
        folder.into_iter().chain([&uri[..at]])
    });
    std::iter::once(uri).chain(parents)
}

/// Maximum number of delimiters at which a URI is cut.
const MAX_PARENTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn hub() -> UpstreamName {
        "hub".parse().expect("a name")
    }

    fn mark(updates: &PendingResourceUpdates, uri: &str) {
        updates.mark(&hub(), &uri.into(), &"whole:".into());
    }

    fn now(updates: &PendingResourceUpdates) -> Option<Arc<str>> {
        updates.next().now_or_never().map(|changed| changed.uri)
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_often_is_told_once_and_its_last_change_after_a_rest() {
        let updates = PendingResourceUpdates::default();
        for _ in 0..10_000 {
            mark(&updates, "a");
            mark(&updates, "b");
        }
        assert_eq!((now(&updates).as_deref(), now(&updates).as_deref()), (Some("a"), Some("b")));
        assert_eq!(now(&updates), None);
        for _ in 0..10_000 {
            mark(&updates, "b");
        }
        assert_eq!(now(&updates), None);
        let (seen, since) = (updates.next().await, Instant::now());
        assert_eq!((&*seen.uri, seen.upstream), ("b", hub()));
        tokio::time::advance(SPACING * 2).await;
        assert_eq!((now(&updates), since.elapsed()), (None, SPACING * 2));
        assert!(updates.queue.lock().states.is_empty() && updates.queue.lock().resting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_wakes_whoever_waits() {
        let updates = PendingResourceUpdates::default();
        let marking = async {
            tokio::task::yield_now().await;
            mark(&updates, "a");
        };
        let (seen, ()) = tokio::join!(updates.next(), marking);
        assert_eq!(&*seen.uri, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_parts_are_told_as_the_whole() {
        let updates = PendingResourceUpdates::default();
        for number in 0..10 * MAX_PENDING_UPDATES {
            mark(&updates, &format!("whole:/{number}"));
        }
        assert_eq!(updates.queue.lock().states.len(), MAX_PENDING_UPDATES + 1);
        let seen: Vec<_> = std::iter::from_fn(|| now(&updates)).collect();
        assert_eq!(
            (seen.len(), seen.last().map(|uri| &**uri)),
            (MAX_PENDING_UPDATES + 1, Some("whole:"))
        );
    }

    #[test]
    fn a_uri_is_a_part_of_what_stands_before_a_delimiter() {
        let all: Vec<_> = with_parents("f:/a/b?c").collect();
        assert_eq!(all, ["f:/a/b?c", "f:/a/b", "f:/a/", "f:/a", "f:/", "f:"]);
        assert_eq!(with_parents("f:/a/").collect::<Vec<_>>(), ["f:/a/", "f:/a", "f:/", "f:"]);
        assert_eq!(with_parents("urn:a").collect::<Vec<_>>(), ["urn:a"]);
        assert_eq!(with_parents(&"/".repeat(10_000)).count(), 2 * MAX_PARENTS);
    }
}
