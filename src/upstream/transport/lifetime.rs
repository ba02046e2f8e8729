//! Lifetime of a connection whose requests all share one incoming stream: that of a child process,
//! or of the HTTP+SSE transport.
//!
//! One task keeps the connection alive and publishes why it ended; this is the handle of those who
//! use it.
//!
//! Invariant: a waiter learns of the end, with its reason where there is one.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Handle of a connection that one task keeps alive. Dropping it closes the connection, so that a
/// forgotten transport leaves no child and no stream behind.
pub(crate) struct ConnectionLifetime {
    /// Reason of the end, once the connection has ended. The task that keeps it alive sets it.
    pub(crate) ended: watch::Receiver<Option<String>>,
    /// Closes the connection when it fires.
    pub(crate) closing: CancellationToken,
    /// Fires when nothing is left of the connection.
    pub(crate) gone: CancellationToken,
    /// Reason that is reported while none has been set.
    pub(crate) default_reason: &'static str,
}

impl ConnectionLifetime {
    /// Waits until the connection has ended and returns the reason. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        // An error means that the task that kept the connection alive is gone.
        let _ = ended.wait_for(Option::is_some).await;
        self.reason()
    }

    /// Whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Ends the connection and returns when that is done.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.gone.cancelled().await;
    }

    /// Reason why the connection has ended, or is about to end.
    pub(crate) fn reason(&self) -> String {
        self.ended.borrow().clone().unwrap_or_else(|| self.default_reason.into())
    }
}

impl Drop for ConnectionLifetime {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}
