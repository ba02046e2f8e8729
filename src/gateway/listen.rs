//! Waiting for changes of what a guest can see, of what it has subscribed to, and for the end of visits.
//!
//! There is no subscriber list and no queue: a listener looks at its view whenever that changes. A
//! change that a client cannot see never wakes it, and a burst is one notice.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Subscriptions;
use crate::catalog::View;
use crate::mcp::kind::Topic;
use crate::mcp::older::Form;
use crate::mcp::visits::Visits;

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

/// A guest's open ear.
pub struct Listen {
    subscriptions: Arc<Subscriptions>,
    visits: Visits,
    view: watch::Receiver<Arc<View>>,
    /// In which form its client sees lists.
    form: Form,
    /// For each topic the view as it was when the client was last told.
    told: [Arc<View>; 3],
    /// When the client may be told again.
    next_at: [Instant; 3],
}

impl Listen {
    pub(super) fn new(
        mut view: watch::Receiver<Arc<View>>,
        form: Form,
        subscriptions: Arc<Subscriptions>,
        now: Instant,
    ) -> Self {
        let seen = Arc::clone(&view.borrow_and_update());
        let told = std::array::from_fn(|_| Arc::clone(&seen));
        let visits = Visits::default();
        Self { subscriptions, visits, view, form, told, next_at: [now; 3] }
    }

    /// Tells of these visits, too.
    pub fn with_visits(self, visits: &Visits) -> Self {
        Self { visits: visits.clone(), ..self }
    }

    /// The next topic whose lists differ from what they were when this guest was last told, or the next
    /// resource that has changed since; each at most once a second. Never ends. Cancel-safe: what is
    /// returned counts as told.
    pub async fn next(&mut self) -> News {
        loop {
            let current = Arc::clone(&self.view.borrow_and_update());
            let now = Instant::now();
            let mut wake_at: Option<Instant> = None;
            for topic in Topic::ALL {
                let at = topic.index();
                if !current.differs(&self.told[at], topic, self.form) {
                    continue;
                }
                if self.next_at[at] <= now {
                    self.told[at] = current;
                    self.next_at[at] = now + SPACING;
                    return News::Lists(topic);
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
                changed = self.view.changed() => if changed.is_err() {
                    // The catalog is gone: the house is closing, and nothing changes any more.
                    std::future::pending::<()>().await;
                },
                () = spaced => {}
                uri = self.subscriptions.next() => return News::Updated(uri),
                task = self.subscriptions.tasks().next() => return News::Task(task),
                params = self.visits.next() => return News::Visited(params),
            }
        }
    }
}
