//! Record of this replica, as it shows itself to the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::FleetSettings;
use crate::membership::shown_lists;
use crate::records::ReplicaRecord;
use weir_base::secrets::sealing::SealingKeys;
use weir_base::tasks::sync::Mutex;

/// State that a replica shows the others.
#[derive(Debug, Clone, Copy, Default)]
pub struct Condition {
    /// Number of sessions in its memory.
    pub sessions: usize,
    /// Hash of its lists.
    pub lists: u64,
}

/// Record of this replica.
pub(crate) struct OwnRecord {
    /// Record without what changes from one heartbeat to the next.
    record: Mutex<ReplicaRecord>,
    is_draining: AtomicBool,
    lists: Mutex<SettledLists>,
}

impl OwnRecord {
    pub(crate) fn new(keys: &SealingKeys, settings: &FleetSettings) -> Self {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let record = ReplicaRecord {
            name: settings.replica.clone(),
            address: settings.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            keys: keys.ids().map(|id| id.to_string()).collect(),
            configuration: String::new(),
            draining: false,
            sessions: 0,
            running: [].into(),
            lists: None,
            has_settled: false,
            reads_numbers: true,
            started: started.map_or(0, |since| since.as_secs()),
        };
        Self {
            record: Mutex::new(record),
            is_draining: AtomicBool::new(false),
            lists: Mutex::default(),
        }
    }

    /// Returns the record that is written next.
    pub(crate) fn next(&self, condition: Condition) -> ReplicaRecord {
        ReplicaRecord {
            draining: self.is_draining(),
            sessions: condition.sessions,
            lists: Some(shown_lists(condition.lists)),
            has_settled: self.lists.lock().settle(condition.lists, Instant::now()),
            ..self.record.lock().clone()
        }
    }

    /// Sets the short hash of the configuration.
    pub(crate) fn set_configuration(&self, hash: String) {
        self.record.lock().configuration = hash;
    }

    /// Adds an upstream that this replica runs, under the lease of this number, or removes it.
    pub(crate) fn set_running(&self, upstream: &str, number: Option<u64>) {
        let running = &mut self.record.lock().running;
        match number {
            Some(number) => running.insert(upstream.to_owned(), number),
            None => running.remove(upstream),
        };
    }

    /// Records that this replica is about to stop.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }
}

/// Lists of this replica. Those of all replicas are compared once they have not changed for a
/// while: a change reaches all of them, but not at the same moment.
#[derive(Debug, Default)]
struct SettledLists(Option<(u64, Instant)>);

impl SettledLists {
    /// Takes the current hash, and returns whether it has settled.
    fn settle(&mut self, lists: u64, now: Instant) -> bool {
        let known = self.0.filter(|(known, _)| *known == lists);
        let (_, since) = *self.0.insert(known.unwrap_or((lists, now)));
        now - since >= SETTLING
    }
}

/// Time without a change after which lists are compared.
const SETTLING: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_settled_once_they_have_not_changed_for_a_while() {
        let (mut lists, now) = (SettledLists::default(), Instant::now());
        let later = now + SETTLING;
        assert!(!lists.settle(1, now) && lists.settle(1, later));
        assert!(!lists.settle(2, later), "they have changed");
        assert!(lists.settle(2, later + SETTLING));
    }
}
