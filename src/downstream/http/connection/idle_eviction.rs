//! Open connections, of which those that nothing is asked on make room for new ones.
//!
//! Promise: while connections are as many as there may be, a new one waits no longer for a place than others have been
//! idle, or without a complete head, for a second or more. A connection with a request on it is never closed here.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::downstream::http::connection::timed_io::Phases;

/// All open connections.
#[derive(Default)]
pub(in crate::downstream) struct OpenConnections(Mutex<Vec<Weak<Phases>>>);

impl OpenConnections {
    pub(crate) fn add(&self, connection: &Arc<Phases>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == all.capacity() {
            all.retain(|it| it.strong_count() > 0);
        }
        all.push(Arc::downgrade(connection));
    }

    /// Closes up to `count` of those that nothing has been asked on for a while, the longest idle first.
    pub(crate) fn close_idle(&self, count: usize) {
        let mut idle: Vec<_> = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let open = all.iter().filter_map(Weak::upgrade);
            open.filter_map(|it| Some((it.idle_since()?, it))).collect()
        };
        let now = Instant::now();
        idle.retain(|(since, _)| *since + LEAST_IDLE <= now);
        idle.sort_unstable_by_key(|(since, _)| *since);
        idle.iter().take(count).for_each(|(_, connection)| connection.make_room());
    }
}

/// How long a connection is idle at least before it is closed for another one: who asks without a pause keeps it.
const LEAST_IDLE: Duration = Duration::from_secs(1);
