//! How a connection ends whose one incoming stream all requests share: a child's, or that of the HTTP+SSE
//! pair. One task keeps it alive and tells why it ended; here is what those hold who use it.
//!
//! Promise: who waits for the end learns it, with its reason where there is one.
//!
//! Knows nothing of: what the connection carries, and what keeps it alive.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The life of such a connection. Dropping it asks the connection to end: whoever forgets a wire must not
/// leave a child or a stream behind.
pub(crate) struct Life {
    /// Why the connection has ended, once it has. Whoever keeps it alive tells.
    pub(crate) ended: watch::Receiver<Option<String>>,
    /// Asks the connection to end.
    pub(crate) closing: CancellationToken,
    /// Nothing is left of the connection.
    pub(crate) gone: CancellationToken,
    /// What is said as long as nobody has told why.
    pub(crate) unexplained: &'static str,
}

impl Life {
    /// Waits until the connection has ended and tells why. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        // An error means that nobody keeps the connection alive any more.
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

    /// Why the connection has ended, or is about to.
    pub(crate) fn reason(&self) -> String {
        self.ended.borrow().clone().unwrap_or_else(|| self.unexplained.into())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}
