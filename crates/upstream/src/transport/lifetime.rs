//! Lifetime of a connection whose requests all share one incoming stream: that of a child process,
//! or of the HTTP+SSE transport.
//!
//! One task keeps the connection alive, and holds the [`ConnectionEnd`]; the [`ConnectionLifetime`]
//! is the handle of those who use it.
//!
//! Invariants: a waiter learns of the end, with its reason where there is one. Every request in
//! flight ends with the connection, however its task ends.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::message::TransportError;
use crate::transport::dispatcher::Dispatcher;

/// Handle of a connection that one task keeps alive. Dropping it closes the connection, so that a
/// forgotten transport leaves no child and no stream behind.
pub(crate) struct ConnectionLifetime {
    /// Reason of the end, once the connection has ended.
    ended: watch::Receiver<Option<String>>,
    closing: CancellationToken,
    gone: CancellationToken,
    /// Reason that is reported while none has been set.
    default_reason: &'static str,
}

/// End of a connection, which its task publishes. Dropping it publishes the end, if the task has
/// not done so, and that nothing is left of the connection.
pub(crate) struct ConnectionEnd {
    ended: watch::Sender<Option<String>>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Closes the connection when it fires.
    pub(crate) closing: CancellationToken,
    /// Fires when nothing is left of the connection.
    pub(crate) gone: CancellationToken,
    /// Reason if the task ends without one.
    lost_reason: &'static str,
}

impl ConnectionLifetime {
    /// Creates the lifetime of a connection that begins now. Its reason is `default_reason` while
    /// it lasts, and `lost_reason` if its task ends without a reason.
    pub(crate) fn begin(
        dispatcher: &Arc<Dispatcher>,
        default_reason: &'static str,
        lost_reason: &'static str,
    ) -> (Self, ConnectionEnd) {
        let (sender, ended) = watch::channel(None);
        let (closing, gone) = (CancellationToken::new(), CancellationToken::new());
        let end = ConnectionEnd {
            ended: sender,
            dispatcher: Arc::clone(dispatcher),
            closing: closing.clone(),
            gone: gone.clone(),
            lost_reason,
        };
        (Self { ended, closing, gone, default_reason }, end)
    }

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

    /// Error of a request that cannot be sent any more.
    pub(crate) fn not_sent(&self) -> TransportError {
        TransportError::NotSent(self.reason())
    }

    /// Error of a request in flight when the connection ended.
    pub(crate) fn connection_lost(&self) -> TransportError {
        TransportError::ConnectionLost(self.reason())
    }

    /// Reason why the connection has ended, or is about to end.
    fn reason(&self) -> String {
        self.ended.borrow().clone().unwrap_or_else(|| self.default_reason.into())
    }
}

impl Drop for ConnectionLifetime {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

impl ConnectionEnd {
    /// Publishes the end and ends the requests in flight.
    pub(crate) fn publish(&self, reason: String) {
        // The reason is set first, because requests that end read it.
        self.ended.send_replace(Some(reason));
        self.dispatcher.pending.close();
    }
}

impl Drop for ConnectionEnd {
    fn drop(&mut self) {
        if self.ended.borrow().is_none() {
            self.publish(self.lost_reason.into());
        }
        self.gone.cancel();
    }
}
