//! How whoever uses an upstream has it started, and waits for that.
//!
//! Promises: nobody waits for longer than a stop and a start may take. What is left alone is not started.
//!
//! Knows nothing of: what it is used for.

use std::time::Duration;

use tokio::time::timeout;

use super::{Status, Upstream, Use};

/// How long whoever comes while it is being stopped waits for that: a child has 5 s on the ladder.
const CLOSING: Duration = Duration::from_secs(10);

/// While this lives an upstream does not fall asleep.
#[derive(Debug)]
pub struct Awake {
    _in_use: Option<Use>,
}

impl Upstream {
    /// Has it started if it sleeps, so that it is listed.
    pub fn wake(&self) {
        if self.shared.demand.is_lazy() {
            self.shared.demand.summon();
        }
    }

    /// Has it started if it sleeps, and waits for that, but not for ever; it does not fall asleep until what is
    /// returned is dropped.
    pub async fn awake(&self) -> Awake {
        Awake { _in_use: self.use_it().await }
    }

    /// It does not fall asleep until what is returned is dropped. One that sleeps is not started.
    pub fn stay_up(&self) -> Awake {
        Awake { _in_use: self.shared.demand.hold() }
    }

    /// Begins to use it: if it sleeps it is started, unless it is left alone. Waits while it is starting: what
    /// it listed before, or the one did in whose place it is, may be called before it is there.
    pub(super) async fn use_it(&self) -> Option<Use> {
        let shared = &*self.shared;
        let in_use = match self.rests_until() {
            None => shared.demand.begin(),
            Some(_) => shared.demand.hold(),
        };
        // Too late is as good: then it says what it is about.
        if self.rests_until().is_none() {
            // It may be on its way out.
            self.is_no_more(Status::is_asleep, CLOSING).await;
        }
        self.is_no_more(Status::is_starting, shared.settings.timeouts.startup).await;
        in_use
    }

    /// Waits until its status is not so any more, for no longer than `at_most`.
    async fn is_no_more(&self, is_so: fn(&Status) -> bool, at_most: Duration) {
        if is_so(&self.shared.status.borrow()) {
            let mut status = self.shared.status.clone();
            let _ = timeout(at_most, status.wait_for(|status| !is_so(status))).await;
        }
    }
}
