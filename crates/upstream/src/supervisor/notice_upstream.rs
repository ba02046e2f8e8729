//! A text in the place of servers as an upstream: connected at once, until it is stopped.

use tokio_util::sync::CancellationToken;

use crate::session::connection::UpstreamConnection;
use crate::session::notice::NoticeConnection;
use crate::supervisor::state_publisher::StatePublisher;

/// Publishes the connection to a text. Ends only when `stop` fires.
pub(crate) async fn run(text: String, state: StatePublisher, stop: CancellationToken) {
    state.publish_connected(UpstreamConnection::Notice(NoticeConnection::new(&text)));
    stop.cancelled().await;
    state.publish_stopped();
}
