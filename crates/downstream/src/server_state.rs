//! The current [`ServerState`], replaced as a whole on a configuration reload.
//!
//! Invariants: a request is served under one `ServerState` from its head to its end, and so under
//! one configuration. After a reload, sessions, streams and calls continue under the next state.
//! A session ends once the client's credentials are no longer valid, but calls in progress in it
//! are finished.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{ServerParts, ServerState, Settings};
use weir_fleet::Condition;
use weir_gateway::ConfigSnapshot;

/// Holder of the current [`ServerState`].
pub struct ServerStateCell {
    current: watch::Sender<Arc<ServerState>>,
}

impl ServerStateCell {
    /// Creates the downstream side of a gateway. Until the server stops, tasks drop the sessions
    /// that are over, and write what is to be recorded about sessions.
    pub fn new(parts: ServerParts, settings: Settings) -> Arc<Self> {
        let (tasks, stop) = (parts.tasks.clone(), parts.stop.clone());
        let state = ServerState::new(parts, settings);
        let sessions = Arc::clone(&state.sessions);
        let cell = Arc::new(Self { current: watch::Sender::new(Arc::new(state)) });
        let (records, recording, states) =
            (sessions.records.clone(), stop.clone(), Arc::clone(&cell));
        tasks.spawn(async move { records.run(&recording).await });
        let lifetime = move || states.now().settings.session_lifetime;
        tasks.spawn(async move { sessions.sweep(lifetime, &stop).await });
        cell
    }

    /// Announces to the other replicas of the fleet that this one is about to stop.
    pub fn drain(&self) {
        if let Some(fleet) = self.now().fleet() {
            fleet.drain();
        }
    }

    /// Writes what is still to be recorded about sessions, once no request is in progress.
    pub async fn record_sessions(&self) {
        let records = self.now().sessions.records.clone();
        records.write().await;
    }

    /// Keeps this replica a member of its fleet, if it has one, and gives up the sessions that
    /// others take over, until `stop` fires. That is later than the downstream side stops: as long
    /// as requests are served, it has to know which sessions others have taken over.
    pub fn follow_fleet(self: &Arc<Self>, tasks: &TaskTracker, stop: CancellationToken) {
        let Some(fleet) = self.now().fleet().cloned() else { return };
        let cell = Arc::clone(self);
        tasks.spawn(async move {
            let condition = || {
                let state = cell.now();
                Condition { sessions: state.sessions(), lists: state.gateway.lists_digest() }
            };
            let moved = || {
                let state = cell.now();
                let max_age = state.settings.session_lifetime.max_age;
                state.sessions.give_up_lost(&fleet, max_age);
                state.sessions.rebuild_late(fleet.sessions().take_late_settings(), max_age);
            };
            fleet.run(&stop, condition, moved).await;
        });
    }

    /// Returns the current state.
    pub fn now(&self) -> Arc<ServerState> {
        Arc::clone(&self.current.borrow())
    }

    /// Returns a receiver that is notified on every replacement.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<ServerState>> {
        self.current.subscribe()
    }

    /// Records that another process serves the same address. A connection that is open during
    /// shutdown is then served once more instead of being refused; its client reaches the other
    /// process when it connects again.
    pub fn set_has_successor(&self) {
        self.now().has_successor.store(true, Ordering::Release);
    }

    /// Replaces the current state by one with other settings and another configuration snapshot.
    pub fn replace(&self, config: Arc<ConfigSnapshot>, settings: Settings) {
        let next = Arc::new(self.now().with_settings(config, settings));
        self.current.send_replace(next);
    }

    /// Ends each session for which the client's credentials are no longer valid, but not the calls
    /// in progress in it.
    pub fn end_unauthorized_sessions(&self) {
        self.now().sessions.end_unauthorized();
    }
}
