//! Where one upstream's task posts how it is doing; everybody else only reads.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Changes, Status};
use crate::mcp::kind::Topic;
use crate::mcp::name::UpstreamName;
use crate::upstream::health::health_state::Vitals;
use crate::upstream::session::connection::Connection;

/// The sending ends of what an upstream's handle shows.
pub(super) struct Board {
    pub(super) name: UpstreamName,
    pub(super) links: watch::Sender<Option<Connection>>,
    pub(super) status: watch::Sender<Status>,
    pub(super) changes: watch::Sender<Changes>,
    pub(super) vitals: Arc<Vitals>,
}

impl Board {
    /// The upstream is connected.
    pub(super) fn up(&self, connection: Connection) {
        let about = Arc::clone(connection.about());
        // A process that was started again is another one; a server on the network may be the same.
        self.vitals.connected(about.wire == "stdio");
        // The connection first: whoever sees the status must find it.
        self.links.send_replace(Some(connection));
        self.status.send_replace(Status::Up(Arc::clone(&about)));
        // Last: whoever reads it may call.
        tracing::info!(upstream = %self.name, revision = %about.revision, wire = about.wire, "up");
    }

    /// The upstream is not connected, and why; of a crash loop its supervisor tells.
    pub(super) fn down(&self, reason: &str, crash_loop: bool) {
        let (is_news, is_change) = match &*self.status.borrow() {
            Status::Down { reason: last, crash_loop: before } => {
                (last != reason, crash_loop != *before)
            }
            Status::Starting | Status::Asleep | Status::Up(_) => (true, true),
        };
        let upstream = &self.name;
        // One that stays down is tried for ever, and need not say so each time.
        if is_news && !crash_loop {
            tracing::warn!(%upstream, reason, "down");
        } else {
            tracing::debug!(%upstream, reason, "still down");
        }
        self.vitals.disconnected(is_change);
        self.take_down(reason, crash_loop);
    }

    /// Nobody uses the upstream, and its connection is about to be closed.
    pub(super) fn asleep(&self) {
        self.vitals.fell_asleep();
        // The status first: whoever misses the connection must find the reason.
        self.status.send_replace(Status::Asleep);
        self.links.send_replace(None);
    }

    /// The upstream is started for somebody.
    pub(super) fn wakes(&self) {
        tracing::info!(upstream = %self.name, "it is wanted, and started");
        self.vitals.wakes();
        self.status.send_replace(Status::Starting);
    }

    /// The upstream is not wanted any more.
    pub(super) fn stopped(&self) {
        self.take_down("it was stopped", false);
    }

    fn take_down(&self, reason: &str, crash_loop: bool) {
        // The status first: whoever misses the connection must find the reason.
        self.status.send_replace(Status::Down { reason: reason.to_owned(), crash_loop });
        self.links.send_replace(None);
    }

    /// A list has changed.
    pub(super) fn changed(&self, topic: Topic) {
        self.changes.send_modify(|changes| changes.0[topic.index()] += 1);
    }
}
