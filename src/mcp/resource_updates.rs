//! The resources of which a client has yet to be told that they have changed.
//!
//! Promises: it is a set and no queue. A resource that changes often before its client is told stands in
//! it once; one is told at most once in [`SPACING`], and the last change of a storm always is. Marking
//! never waits. However many parts of a resource change, no more than [`MAX_DIRTY`] stand in the set:
//! beyond that the resource that was subscribed to stands for them.
//!
//! Knows nothing of: who may read what.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::mcp::name::UpstreamName;

/// The least time between two notices of a resource to one client.
pub const SPACING: Duration = Duration::from_secs(1);

/// How many resources stand in a set before changed parts of one count as a change of the whole.
pub const MAX_DIRTY: usize = 1_000;

/// A set of changed resources: whoever hears of changes marks them, one reader takes them out. Cheap to
/// clone.
#[derive(Clone, Default)]
pub struct Dirty {
    shared: Arc<Shared>,
}

/// A resource that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Changed {
    /// Who says so.
    pub upstream: UpstreamName,
    /// Which it is.
    pub uri: Arc<str>,
}

#[derive(Default)]
struct Shared {
    set: Mutex<Set>,
    marked: Notify,
}

#[derive(Default)]
struct Set {
    states: HashMap<Changed, State>,
    /// Those that can be told now, in the order in which they were marked.
    ready: VecDeque<Changed>,
    /// Those that were told a moment ago, and until when they rest.
    resting: VecDeque<(Instant, Changed)>,
}

enum State {
    Ready,
    Resting { has_changed: bool },
}

impl Dirty {
    /// Marks a resource that has changed, for a client that subscribed to `subscribed`, which is the
    /// resource itself or what it is a part of.
    pub fn mark(&self, upstream: &UpstreamName, uri: &Arc<str>, subscribed: &Arc<str>) {
        let is_news = {
            let set = &mut *self.lock();
            let known = |uri: &Arc<str>| Changed { upstream: upstream.clone(), uri: uri.clone() };
            let mut changed = known(uri);
            if set.states.len() >= MAX_DIRTY && !set.states.contains_key(&changed) {
                changed = known(subscribed);
            }
            set.mark(changed)
        };
        if is_news {
            self.shared.marked.notify_one();
        }
    }

    /// The next resource to tell of, which counts as told from now on. Never ends. Cancel-safe. For one
    /// reader at a time.
    pub async fn next(&self) -> Changed {
        loop {
            let rested = match self.lock().take(Instant::now()) {
                Ok(changed) => return changed,
                Err(rested) => rested,
            };
            let rested = async {
                match rested {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.shared.marked.notified() => {}
                () = rested => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Set> {
        // A panic under the lock can only come from memory that ran out.
        self.shared.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Set {
    /// Tells whether there is anything new to tell.
    fn mark(&mut self, changed: Changed) -> bool {
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

    /// Takes out what can be told, or tells when something may be ready.
    fn take(&mut self, now: Instant) -> Result<Changed, Option<Instant>> {
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

impl fmt::Debug for Dirty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = self.lock().ready.len();
        f.debug_struct("Dirty").field("ready", &ready).finish_non_exhaustive()
    }
}

/// The URI, and those of which it may be a part, the nearest first (spec, resources: what is updated may
/// be a sub-resource of what was subscribed to). Bounded.
pub fn with_parents(uri: &str) -> impl Iterator<Item = &str> {
    let cuts = uri.bytes().enumerate().rev().filter(|(_, byte)| matches!(byte, b'/' | b'?' | b'#'));
    let parents = cuts.take(MAX_PARENTS).flat_map(|(at, byte)| {
        let folder = (byte == b'/').then(|| &uri[..=at]).filter(|folder| folder.len() < uri.len());
        folder.into_iter().chain([&uri[..at]])
    });
    std::iter::once(uri).chain(parents)
}

/// How far up a URI is followed.
const MAX_PARENTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn hub() -> UpstreamName {
        "hub".parse().expect("a name")
    }

    fn mark(dirty: &Dirty, uri: &str) {
        dirty.mark(&hub(), &uri.into(), &"whole:".into());
    }

    fn now(dirty: &Dirty) -> Option<Arc<str>> {
        dirty.next().now_or_never().map(|changed| changed.uri)
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_often_is_told_once_and_its_last_change_after_a_rest() {
        let dirty = Dirty::default();
        for _ in 0..10_000 {
            mark(&dirty, "a");
            mark(&dirty, "b");
        }
        assert_eq!((now(&dirty).as_deref(), now(&dirty).as_deref()), (Some("a"), Some("b")));
        assert_eq!(now(&dirty), None);
        for _ in 0..10_000 {
            mark(&dirty, "b");
        }
        assert_eq!(now(&dirty), None);
        let (told, since) = (dirty.next().await, Instant::now());
        assert_eq!((&*told.uri, told.upstream), ("b", hub()));
        tokio::time::advance(SPACING * 2).await;
        assert_eq!((now(&dirty), since.elapsed()), (None, SPACING * 2));
        assert!(dirty.lock().states.is_empty() && dirty.lock().resting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_wakes_whoever_waits() {
        let dirty = Dirty::default();
        let marking = async {
            tokio::task::yield_now().await;
            mark(&dirty, "a");
        };
        let (told, ()) = tokio::join!(dirty.next(), marking);
        assert_eq!(&*told.uri, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_parts_are_told_as_the_whole() {
        let dirty = Dirty::default();
        for number in 0..10 * MAX_DIRTY {
            mark(&dirty, &format!("whole:/{number}"));
        }
        assert_eq!(dirty.lock().states.len(), MAX_DIRTY + 1);
        let told: Vec<_> = std::iter::from_fn(|| now(&dirty)).collect();
        assert_eq!((told.len(), told.last().map(|uri| &**uri)), (MAX_DIRTY + 1, Some("whole:")));
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
