//! Open connections, and the eviction of idle ones in favour of new ones.
//!
//! Invariant: while the connection limit is reached, a new connection waits only until another one
//! has been idle, or without a complete head, for a second. A connection with a request in progress
//! is never closed here.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::http::connection::timed_io::ConnectionPhases;
use weir_base::tasks::sync::Mutex;

/// All open connections.
#[derive(Default)]
pub(crate) struct OpenConnections(Mutex<Vec<Weak<ConnectionPhases>>>);

impl OpenConnections {
    pub(crate) fn add(&self, connection: &Arc<ConnectionPhases>) {
        let mut all = self.0.lock();
        if all.len() == all.capacity() {
            all.retain(|it| it.strong_count() > 0);
        }
        all.push(Arc::downgrade(connection));
    }

    /// Closes up to `count` connections that have been idle for a while, the longest idle first.
    pub(crate) fn close_idle(&self, count: usize) {
        let mut idle: Vec<_> = {
            let all = self.0.lock();
            let open = all.iter().filter_map(Weak::upgrade);
            open.filter_map(|it| Some((it.idle_since()?, it))).collect()
        };
        let now = Instant::now();
        idle.retain(|(since, _)| *since + MIN_IDLE <= now);
        idle.sort_unstable_by_key(|(since, _)| *since);
        idle.iter().take(count).for_each(|(_, connection)| connection.evict());
    }
}

/// Minimum idle time before eviction: a client that sends requests continuously keeps its
/// connection.
const MIN_IDLE: Duration = Duration::from_secs(1);
