//! Publisher of an upstream's connection and status through `watch` channels.
//!
//! Invariant: only the supervisor writes these two, or the task in its place of a prompt library,
//! of a notice, or of an upstream with a missing value. Dispatchers also count in `changes`.

use std::sync::Arc;

use tokio::sync::watch;

use crate::health::health_state::UpstreamHealth;
use crate::health::upstream_log::LogKind;
use crate::session::connection::UpstreamConnection;
use crate::{ConnectionStatus, ListChangeCounts};
use weir_base::secrets::secret_search::SecretPatterns;
use weir_mcp::name::UpstreamName;

/// Senders of the state that an upstream's handle reads.
pub(crate) struct StatePublisher {
    pub(crate) name: UpstreamName,
    pub(crate) connection: watch::Sender<Option<UpstreamConnection>>,
    pub(crate) status: watch::Sender<ConnectionStatus>,
    pub(crate) changes: watch::Sender<ListChangeCounts>,
    pub(crate) health: Arc<UpstreamHealth>,
    /// Values that the server was given, and may repeat in a refusal.
    pub(crate) secrets: Arc<SecretPatterns>,
}

impl StatePublisher {
    /// Publishes a new connection.
    pub(crate) fn publish_connected(&self, connection: UpstreamConnection) {
        let about = Arc::clone(connection.about());
        // A restarted process is a new server; a remote server may be the same one.
        self.health.connected(about.transport == "stdio");
        self.record(&match about.transport {
            "library" => "prompt library opened".to_owned(),
            "notice" => "stands in for a configuration with a mistake".to_owned(),
            transport => format!("connected over {transport}, revision {}", about.revision),
        });
        // The connection comes first: a reader that sees the status must find it.
        self.connection.send_replace(Some(connection));
        self.status.send_replace(ConnectionStatus::Up(Arc::clone(&about)));
        // The log line comes last: a reader of the log may call at once.
        let (upstream, revision, transport) = (&self.name, about.revision, about.transport);
        tracing::info!(%upstream, %revision, transport, "upstream connected");
    }

    /// Publishes a lost or failed connection with its reason. The supervisor logs a crash loop
    /// itself.
    pub(crate) fn publish_disconnected(&self, reason: &str, crash_loop: bool) {
        let reason = &*self.secrets.redact(reason);
        let (is_new_reason, is_new_status) = match &*self.status.borrow() {
            ConnectionStatus::Down { reason: last, crash_loop: before } => {
                (last != reason, crash_loop != *before)
            }
            ConnectionStatus::Starting | ConnectionStatus::Asleep | ConnectionStatus::Up(_) => {
                (true, true)
            }
        };
        let upstream = &self.name;
        // An upstream that stays down is retried for ever, and is not logged each time.
        if is_new_reason && !crash_loop {
            tracing::warn!(%upstream, reason, "upstream disconnected");
        } else {
            tracing::debug!(%upstream, reason, "upstream still disconnected");
        }
        if is_new_reason || is_new_status {
            let state = if crash_loop { "crash loop" } else { "not connected" };
            self.record(&format!("{state}: {reason}"));
        }
        self.health.disconnected(is_new_status);
        self.publish_down(reason, crash_loop);
    }

    /// Publishes an idle stop, before the connection is closed.
    pub(crate) fn publish_idle_stop(&self) {
        self.record("idle, stopped");
        self.health.status_changed();
        // The status comes first: a reader that misses the connection must find the reason.
        self.status.send_replace(ConnectionStatus::Asleep);
        self.connection.send_replace(None);
    }

    /// Publishes an on-demand start.
    pub(crate) fn publish_starting(&self) {
        tracing::info!(upstream = %self.name, "upstream started on demand");
        self.record("started on demand");
        self.health.status_changed();
        self.status.send_replace(ConnectionStatus::Starting);
    }

    /// Publishes that the upstream is not started, because values are missing. The warnings of the
    /// configuration name them as well.
    pub(crate) fn publish_unresolved(&self, reason: &str) {
        tracing::info!(upstream = %self.name, reason, "upstream not started, a value is missing");
        self.record(&format!("not started: {reason}"));
        self.health.status_changed();
        self.publish_down(reason, false);
    }

    /// Publishes the final stop.
    pub(crate) fn publish_stopped(&self) {
        let is_stopped = match &*self.status.borrow() {
            ConnectionStatus::Down { reason, .. } => reason == STOPPED,
            ConnectionStatus::Starting | ConnectionStatus::Asleep | ConnectionStatus::Up(_) => {
                false
            }
        };
        if !is_stopped {
            self.record("stopped");
        }
        self.publish_down(STOPPED, false);
    }

    /// Publishes that the session is gone, and that another one is opened at once.
    pub(crate) fn publish_session_lost(&self, reason: &str) {
        tracing::info!(upstream = %self.name, reason, "upstream reconnecting");
        self.record(&format!("reconnecting: {reason}"));
    }

    /// Records a change of the connection in the log for operators.
    fn record(&self, text: &str) {
        self.health.log.record(LogKind::Connection, text);
    }

    fn publish_down(&self, reason: &str, crash_loop: bool) {
        // The status comes first: a reader that misses the connection must find the reason.
        self.status.send_replace(ConnectionStatus::Down { reason: reason.to_owned(), crash_loop });
        self.connection.send_replace(None);
    }
}

/// Reason of the final stop.
const STOPPED: &str = "the upstream was stopped";
