//! Upstream that is not started, because a value that decides about it is missing: a variable, a
//! file or the output of a command.
//!
//! Invariants: no process is started and nothing is connected to. It is down, with the missing
//! values as the reason, until another configuration replaces it.
//!
//! Decision: docs/decisions/0048-missing-values.md

use tokio_util::sync::CancellationToken;

use crate::supervisor::state_publisher::StatePublisher;

/// Task in place of the supervisor.
pub(crate) struct UnresolvedUpstream {
    pub(crate) reason: String,
    pub(crate) state: StatePublisher,
}

impl UnresolvedUpstream {
    /// Publishes the reason. Ends only when `stop` fires.
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.state.publish_unresolved(&self.reason);
        stop.cancelled().await;
        self.state.publish_stopped();
    }
}
