//! Waiting for changes of what a guest can see, of what it has subscribed to, and for the end of visits.
//!
//! There is no subscriber list and no queue: a listener looks at its view whenever that changes. A
//! change that a client cannot see never wakes it, and a burst is one notice.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Generation, Guest, Standing, Subscriptions};
use crate::catalog::View;
use crate::mcp::definition::downgrade::Form;
use crate::mcp::elicitation_complete::Visits;
use crate::mcp::kind::Topic;

/// The least time between two notices of a topic to one client.
const SPACING: Duration = Duration::from_secs(1);

/// Something that a guest has to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The lists of this topic have changed.
    Lists(Topic),
    /// The resource of this URI has.
    Updated(Arc<str>),
    /// A task has, which stands here as it is now.
    Task(Bytes),
    /// A visit is done with: the `params` that say which.
    Visited(Bytes),
}

/// A guest's open ear. It stays open under the next configuration, as long as the guest would be let in again.
pub struct Listen {
    standing: Standing,
    generations: watch::Receiver<Arc<Generation>>,
    /// The configuration whose view is watched.
    number: u64,
    subscriptions: Arc<Subscriptions>,
    visits: Visits,
    view: watch::Receiver<Arc<View>>,
    /// In which form its client sees lists.
    form: Form,
    /// The view as it was looked at last.
    seen: Arc<View>,
    /// For each topic whether it has changed since the client was last told, be it there and back: the client may have
    /// listed in between.
    has_changed: [bool; 3],
    /// When the client may be told again.
    next_at: [Instant; 3],
}

impl Listen {
    pub(super) fn new(
        guest: &Guest,
        form: Form,
        subscriptions: Arc<Subscriptions>,
        now: Instant,
    ) -> Self {
        let generations = guest.gateway.current.subscribe();
        let (standing, number, mut view) =
            (guest.standing(), guest.generation.number, guest.view.clone());
        let seen = Arc::clone(&view.borrow_and_update());
        let (visits, has_changed, next_at) = (Visits::default(), [false; 3], [now; 3]);
        Self {
            standing,
            generations,
            number,
            subscriptions,
            visits,
            view,
            form,
            seen,
            has_changed,
            next_at,
        }
    }

    /// Tells of these visits, too.
    pub fn with_visits(self, visits: &Visits) -> Self {
        Self { visits: visits.clone(), ..self }
    }

    /// Takes the place of the guest that listened before, of the same client: what was told stays told.
    pub fn goes_on_as(&mut self, guest: &Guest) {
        self.standing = guest.standing();
        self.look_under(guest);
    }

    /// The next topic whose lists have changed since this guest was last told, or the next resource that has; each at
    /// most once a second. Ends when the guest would not be let in any more. Cancel-safe: what is returned counts as told.
    pub async fn next(&mut self) -> Option<News> {
        loop {
            let now = Arc::clone(&self.generations.borrow_and_update());
            // A guest may have entered under one that has not come here yet.
            if now.number > self.number {
                let guest = self.standing.enter(&now).ok()?;
                self.look_under(&guest);
            }
            drop(now);
            self.look();
            let now = Instant::now();
            let mut wake_at: Option<Instant> = None;
            for topic in Topic::ALL {
                let at = topic.index();
                if !self.has_changed[at] {
                    continue;
                }
                if self.next_at[at] <= now {
                    self.has_changed[at] = false;
                    self.next_at[at] = now + SPACING;
                    return Some(News::Lists(topic));
                }
                wake_at =
                    Some(wake_at.map_or(self.next_at[at], |other| other.min(self.next_at[at])));
            }
            let spaced = async {
                match wake_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // First: nothing is told that another configuration forbids.
                biased;
                replaced = self.generations.changed() => if replaced.is_err() {
                    // The house is gone, and nothing changes any more.
                    std::future::pending::<()>().await;
                },
                () = self.standing.expired() => return None,
                // Its catalog may be gone: then there is another configuration, or will be.
                Ok(()) = self.view.changed() => {}
                () = spaced => {}
                uri = self.subscriptions.next() => return Some(News::Updated(uri)),
                task = self.subscriptions.tasks().next() => return Some(News::Task(task)),
                params = self.visits.next() => return Some(News::Visited(params)),
            }
        }
    }

    /// Notes what has changed since the last look.
    fn look(&mut self) {
        let current = Arc::clone(&self.view.borrow_and_update());
        for topic in Topic::ALL {
            let differs = current.differs(&self.seen, topic, self.form);
            self.has_changed[topic.index()] |= differs;
        }
        self.seen = current;
    }

    fn look_under(&mut self, guest: &Guest) {
        self.number = guest.generation.number;
        self.view = guest.view.clone();
        self.subscriptions.look_with(guest);
    }
}
