//! Records, claims and pages of three replicas with the same keys, for tests of what one of them
//! knows.

use std::time::{Duration, SystemTime};

use crate::SessionIdentity;
use crate::claim_table::table_reading::{MODULUS, weight};
use crate::records::{Records, ReplicaRecord};
use crate::store::{Roster, StoredEntry, TablePage};
use weir_base::ended_sessions::SessionNumber;
use weir_base::secrets::sealing::{InstanceId, SealingKeys};

/// Three replicas with the same keys: m0, m1 and m2.
pub(crate) struct SealedWorld {
    keys: Vec<SealingKeys>,
    pub(crate) records: Vec<Records>,
}

impl SealedWorld {
    pub(crate) fn new() -> Self {
        let first = SealingKeys::random();
        let keys = vec![first.clone(), first.of_another_process(), first.of_another_process()];
        Self { records: keys.iter().map(Records::new).collect(), keys }
    }

    pub(crate) fn instance(&self, at: usize) -> InstanceId {
        self.keys[at].instance()
    }

    /// Returns the name and the sealed record of a replica.
    pub(crate) fn replica(&self, at: usize, draining: bool) -> (String, String) {
        let record =
            ReplicaRecord { draining, ..ReplicaRecord::of(&format!("m{at}"), "127.0.0.1:1") };
        let name = self.instance(at).to_string();
        let text = self.records[at].seal_replica(&name, &record);
        (name, text)
    }

    /// Returns the reply of a store that has been steady for so many seconds.
    pub(crate) fn roster(&self, steady: u64, replicas: &[usize]) -> Roster {
        let replicas = replicas.iter().map(|at| self.replica(*at, false)).collect();
        Roster { steady: Duration::from_secs(steady), replicas, ..Roster::default() }
    }

    /// Returns a claim of the session `s`, or its end.
    pub(crate) fn claim(&self, number: u64, by: usize, is_ended: bool) -> StoredEntry {
        let text = self.records[by].seal_claim("s", is_ended);
        StoredEntry { number, name: "s".into(), text }
    }

    /// Returns a session that replica 1 has opened.
    pub(crate) fn session(&self, key: &str) -> SessionIdentity {
        self.numbered(key, None)
    }

    pub(crate) fn numbered(&self, key: &str, place: Option<u64>) -> SessionIdentity {
        let opened_by = self.instance(1);
        let number = place.map(|place| SessionNumber { opened_by, place });
        let until = SystemTime::now() + Duration::from_secs(9);
        SessionIdentity { key: key.into(), number, sealed_by: opened_by, until }
    }
}

/// Page of a table with these entries, from those after a number on.
pub(crate) fn page(after: u64, all: &[StoredEntry]) -> TablePage {
    let weights = all.iter().map(|it| weight(&it.name, &it.text));
    TablePage {
        after,
        entries: all.iter().filter(|it| it.number > after).cloned().collect(),
        count: all.len(),
        last: all.iter().map(|it| it.number).max().unwrap_or_default(),
        sum: Some(weights.fold(0, |sum, weight| (sum + weight) % MODULUS)),
    }
}
