//! Lists of the upstreams: when they are read again, and the cache on disk.

pub(crate) mod list_cache;
pub(crate) mod list_refresher;
mod refresh_schedule;
pub(crate) mod stable_list;

use std::sync::Arc;

use super::Gateway;
use super::config_snapshot::{ConfigSnapshot, UpstreamEntry};
use list_refresher::ListRefresher;

impl Gateway {
    /// Starts the task that keeps the lists of an upstream fresh.
    pub(super) fn spawn_refresher(&self, config: &ConfigSnapshot, entry: &UpstreamEntry) {
        let UpstreamEntry { upstream, last_lists } = entry;
        let pending = self.startup.add(upstream.name());
        let (configs, last_lists) = (self.current.subscribe(), Arc::clone(last_lists));
        let refresher = ListRefresher::new(upstream.clone(), config, configs, last_lists, pending);
        self.tracker.spawn(refresher.run(self.stop.clone()));
    }
}
