//! Notifications for one client: changed lists, updated resources, task statuses and completed
//! elicitations.
//!
//! There is no subscriber list and no queue: whenever its role's view is replaced, the stream
//! compares it with the last one it saw. A change that the client cannot see never wakes it, and a
//! burst becomes one notification.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{ClientContext, ClientIdentity, ConfigSnapshot, Subscriptions};
use weir_access::catalog::RoleView;
use weir_base::tasks::fairness::sleep_until;
use weir_fleet::ListsElsewhere;
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::kind::ListTopic;
use weir_mcp::revision::Revision;

/// Minimum time between two notifications of a topic to one client; while changes continue, the
/// pause between reads grows to the same time (`MAX_CHANGE_PAUSE` in `refresh_schedule.rs`).
const SPACING: Duration = Duration::from_secs(1);

/// Time after a change of a list in which the other processes see it, too.
const RECENT: Duration = Duration::from_secs(10);

/// A notification for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientNotification {
    /// The lists of this topic have changed.
    Lists(ListTopic),
    /// The resource with this URI was updated.
    Updated(Arc<str>),
    /// The status of a task has changed: the `params` of the notification.
    Task(Bytes),
    /// A URL elicitation is complete: the `params` of the notification.
    ElicitationComplete(Bytes),
}

/// Stream of notifications for one client. Survives a reload if the client still authenticates.
pub struct ClientNotifications {
    /// Identity under the configuration whose view is watched.
    identity: ClientIdentity,
    configs: watch::Receiver<Arc<ConfigSnapshot>>,
    subscriptions: Arc<Subscriptions>,
    view: watch::Receiver<Arc<RoleView>>,
    /// The form in which its client sees lists.
    form: DefinitionForm,
    /// The view at the last comparison.
    seen: Arc<RoleView>,
    /// Per topic: whether it has changed since the last notification, even if it changed back: the
    /// client may have listed in between.
    has_changed: [bool; 3],
    /// Per topic: the earliest time of the next notification.
    next_at: [Instant; 3],
    /// Lists of other processes, from which the client may list, too.
    elsewhere: Option<watch::Receiver<ListsElsewhere>>,
    /// Hash of these lists at the last comparison.
    seen_elsewhere: u64,
    /// Per topic: the time until which its last change counts as recent, if there was one of which
    /// the client has been notified once only.
    recent_until: [Option<Instant>; 3],
    /// Per topic: whether lists of other processes have changed since its last change.
    is_followed: [bool; 3],
}

impl ClientNotifications {
    /// Notifications from now on for a client of this revision: changes of its lists and of the
    /// resources that it subscribes to.
    pub fn new(
        client: &ClientContext,
        subscriptions: &Arc<Subscriptions>,
        revision: Revision,
    ) -> Self {
        let mut view = client.view.clone();
        let seen = Arc::clone(&view.borrow_and_update());
        Self {
            seen,
            view,
            identity: ClientIdentity::of(client),
            configs: client.gateway.current.subscribe(),
            subscriptions: Arc::clone(subscriptions),
            form: DefinitionForm::of(revision),
            has_changed: [false; 3],
            next_at: [Instant::now(); 3],
            elsewhere: None,
            seen_elsewhere: 0,
            recent_until: [None; 3],
            is_followed: [false; 3],
        }
    }

    /// Counts every list as changed: a client that was notified by another process may have missed
    /// a change.
    #[must_use]
    pub fn with_all_lists_changed(self) -> Self {
        Self { has_changed: [true; 3], ..self }
    }

    /// Notifies the client once more if lists of other processes change within ten seconds after a
    /// change: it may have listed from one that had not seen the change yet. That is once all of
    /// them have the same lists, or at the end of that time.
    #[must_use]
    pub fn with_lists_elsewhere(self, mut lists: watch::Receiver<ListsElsewhere>) -> Self {
        let seen_elsewhere = lists.borrow_and_update().digest;
        Self { elsewhere: Some(lists), seen_elsewhere, ..self }
    }

    /// Continues with a new context of the same client, without repeating notifications.
    pub fn switch_client(&mut self, client: &ClientContext) {
        self.identity = ClientIdentity::of(client);
        self.view = client.view.clone();
        self.subscriptions.update_view(client);
    }

    /// Waits for the next notification; at most one per second for each topic and resource. `None`
    /// once the client's credentials are no longer valid. Cancel-safe: a returned notification
    /// counts as sent.
    pub async fn next(&mut self) -> Option<ClientNotification> {
        loop {
            let config = Arc::clone(&self.configs.borrow_and_update());
            // The client may have been authenticated under a configuration that is newer than
            // `config`.
            if config.number > self.identity.number {
                let client = self.identity.authenticate(&config).ok()?;
                self.switch_client(&client);
            }
            drop(config);
            self.detect_changes();
            let now = Instant::now();
            let mut wake_at = self.repeat_followed(now);
            for topic in ListTopic::ALL {
                let at = topic.index();
                if !self.has_changed[at] {
                    continue;
                }
                if self.next_at[at] <= now {
                    self.has_changed[at] = false;
                    self.next_at[at] = now + SPACING;
                    return Some(ClientNotification::Lists(topic));
                }
                wake_at =
                    Some(wake_at.map_or(self.next_at[at], |other| other.min(self.next_at[at])));
            }
            tokio::select! {
                // Checked first, so that nothing is sent that a newer configuration forbids.
                biased;
                replaced = self.configs.changed() => if replaced.is_err() {
                    // The gateway is gone; no change will follow.
                    std::future::pending::<()>().await;
                },
                () = self.identity.expired() => return None,
                // An error means that a reload has dropped this catalog; `configs` then wakes the
                // loop.
                Ok(()) = self.view.changed() => {}
                () = sleep_until(wake_at) => {}
                () = changed(&mut self.elsewhere) => {}
                uri = self.subscriptions.next() => return Some(ClientNotification::Updated(uri)),
                task = self.subscriptions.tasks().next() => {
                    return Some(ClientNotification::Task(task));
                }
                params = self.subscriptions.elicitations().next() => {
                    return Some(ClientNotification::ElicitationComplete(params));
                }
            }
        }
    }

    /// Marks the topics that have changed since the last comparison.
    fn detect_changes(&mut self) {
        let current = Arc::clone(&self.view.borrow_and_update());
        for topic in ListTopic::ALL {
            if current.differs(&self.seen, topic, self.form) {
                self.has_changed[topic.index()] = true;
                self.recent_until[topic.index()] = Some(Instant::now() + RECENT);
                self.is_followed[topic.index()] = false;
            }
        }
        self.seen = current;
    }

    /// Marks the topics of which the client is to be notified again: those that have changed a
    /// short time ago, and that other processes have seen since. Returns when there may be one.
    fn repeat_followed(&mut self, now: Instant) -> Option<Instant> {
        let ListsElsewhere { digest, are_same } = *self.elsewhere.as_mut()?.borrow_and_update();
        let have_changed = std::mem::replace(&mut self.seen_elsewhere, digest) != digest;
        let mut wake_at: Option<Instant> = None;
        for at in 0..self.recent_until.len() {
            let Some(until) = self.recent_until[at] else { continue };
            self.is_followed[at] |= have_changed && now < until;
            if now >= until || (are_same && self.is_followed[at]) {
                self.has_changed[at] |= std::mem::take(&mut self.is_followed[at]);
                // Once: the client has listed twice since the change then.
                self.recent_until[at] = None;
            } else if self.is_followed[at] {
                wake_at = Some(wake_at.map_or(until, |other| other.min(until)));
            }
        }
        wake_at
    }
}

/// Waits until the lists of other processes have changed; for ever if there are no others.
async fn changed(elsewhere: &mut Option<watch::Receiver<ListsElsewhere>>) {
    if let Some(lists) = elsewhere
        && lists.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
