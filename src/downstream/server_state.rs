//! The doors over all configurations: under each there is one [`Door`], which is replaced whole.
//!
//! Promises: a request is served at one door from its head to its end, and so under one configuration. When a door is
//! replaced, sessions, streams and calls go on at the next; the sessions of whoever would not be let in there are over,
//! but for the calls that are under way in them.
//!
//! Knows nothing of: what is different between two configurations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Door, Settings};
use crate::gateway::{Gateway, Generation};

/// Where connections find the door that holds.
pub struct Doors {
    current: watch::Sender<Arc<Door>>,
}

impl Doors {
    /// Makes the front doors of `gateway`. Nothing runs yet.
    pub fn new(
        gateway: Arc<Gateway>,
        settings: Settings,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let door = Door::new(gateway, settings, tasks, stop);
        Arc::new(Self { current: watch::Sender::new(Arc::new(door)) })
    }

    /// The door that holds at this moment.
    pub fn now(&self) -> Arc<Door> {
        Arc::clone(&self.current.borrow())
    }

    /// The same as it changes.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<Door>> {
        self.current.subscribe()
    }

    /// Tells that somebody else serves at the same address. A connection that is open when the house closes is then
    /// served once more instead of being refused; its client finds the other one when it connects again.
    pub fn succeed(&self) {
        self.now().is_succeeded.store(true, Ordering::Release);
    }

    /// Puts a door with other settings in the place of the one that holds, leading to `generation`. Where requests are
    /// recorded stays as it is.
    pub fn replace(&self, generation: Arc<Generation>, settings: Settings) {
        let next = Arc::new(self.now().then(generation, settings));
        self.current.send_replace(next);
    }

    /// Ends the sessions of those who would not be let in any more, but for the calls that are under way in them.
    pub fn retire_unwelcome(&self) {
        self.now().sessions.retire_unwelcome();
    }
}
