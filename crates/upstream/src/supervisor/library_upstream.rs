//! Prompt library as an upstream: the same interface, without a transport.
//!
//! Its results have no `resultType`, so its payloads belong to the legacy era.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::RetrySettings;
use crate::session::connection::UpstreamConnection;
use crate::session::library::LibraryConnection;
use crate::supervisor::state_publisher::StatePublisher;
use weir_mcp::kind::ListTopic;
use weir_prompts::Library;

/// Task that opens the library and publishes its changes.
pub(crate) struct LibraryTask {
    pub(crate) dir: PathBuf,
    pub(crate) retry: RetrySettings,
    pub(crate) state: StatePublisher,
    pub(crate) tracker: TaskTracker,
}

impl LibraryTask {
    /// Opens the library, retries if it cannot be opened, and publishes its changes. Ends only when
    /// `stop` fires.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Some(library) = stop.run_until_cancelled(self.open()).await else {
            return self.state.publish_stopped();
        };
        self.tracker.spawn(Arc::clone(&library).watch(stop.clone()));
        let mut changes = library.changes();
        self.state.publish_connected(UpstreamConnection::Library(LibraryConnection::new(library)));
        while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
            changes.mark_unchanged();
            let prompts = ListTopic::Prompts.index();
            self.state.changes.send_modify(|changes| changes.0[prompts] += 1);
        }
        self.state.publish_stopped();
    }

    async fn open(&self) -> Arc<Library> {
        let mut backoff = self.retry.start();
        loop {
            let dir = self.dir.clone();
            // Reading a folder blocks.
            let opened = self.tracker.spawn_blocking(move || Library::open(&dir)).await;
            match opened {
                Ok(Ok(library)) => return library,
                Ok(Err(error)) => {
                    let cause = &error.source;
                    let text = format!("{error}: {cause}; check the path and its permissions");
                    self.state.publish_disconnected(&text, false);
                }
                Err(panicked) => self.state.publish_disconnected(&panicked.to_string(), false),
            }
            let pause = backoff.next_pause();
            self.state.health.retry_scheduled(pause);
            tokio::time::sleep(pause).await;
            self.state.health.retry_started();
        }
    }
}
