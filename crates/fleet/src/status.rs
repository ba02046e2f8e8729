//! State of a replica and of its fleet, for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::key_status::{self, KeyStatus};
use crate::membership::{FleetView, Replica, addresses};
use crate::records::Records;
use crate::store::valkey::RedisStore;
use crate::store::{Heartbeat, Store, StoreAbout, StoreError};
use crate::{Fleet, FleetSettings, HEARTBEAT};
use weir_base::metrics::{Counter, Histogram};
use weir_base::secrets::sealing::SealingKeys;

/// Status of a replica in its fleet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetStatus {
    /// Name of the fleet.
    pub name: String,
    /// Name of this replica.
    pub member: String,
    /// Number of this process, as `weir fleet` shows it.
    pub(crate) instance: String,
    /// Number of replicas, this one included, as far as it knows.
    pub members: usize,
    /// True if the store has replied a moment ago.
    pub store: bool,
    /// Differences between the replicas.
    pub differences: Vec<String>,
    /// Requests that were sent on to other replicas, by result: `response`, `unreachable` (not
    /// sent), `broken` (no response).
    pub hops: BTreeMap<String, u64>,
    /// Sessions that were taken over from other replicas.
    pub takeovers: u64,
    /// Calls of the store that failed, and heartbeats that were too late for a request.
    pub store_errors: u64,
}

/// State that a replica shows the others.
#[derive(Debug, Clone, Copy, Default)]
pub struct Condition {
    /// Number of sessions in its memory.
    pub sessions: usize,
    /// Hash of its lists.
    pub lists: u64,
}

/// Lists of this replica. Those of all replicas are compared once they have not changed for a
/// while: a change reaches all of them, but not at the same moment.
#[derive(Debug, Default)]
pub(super) struct SettledLists(Option<(u64, Instant)>);

impl SettledLists {
    /// Takes the current hash, and returns whether it has settled.
    pub(super) fn settle(&mut self, lists: u64) -> bool {
        let known = self.0.filter(|(known, _)| *known == lists);
        let (_, since) = *self.0.insert(known.unwrap_or((lists, Instant::now())));
        since.elapsed() >= SETTLING
    }
}

/// Time without a change after which lists are compared.
const SETTLING: Duration = Duration::from_secs(5);

/// Report about a fleet for its operator, read from the store.
pub struct FleetReport {
    /// Replicas whose records are in the store.
    pub members: Vec<Arc<Replica>>,
    /// Processes that were killed, and whose records the store has still, beside their successors.
    pub replaced: Vec<Arc<Replica>>,
    /// Differences between them, and what would go wrong if another one started.
    pub differences: Vec<String>,
    /// Keys of the configuration.
    pub keys: Vec<KeyStatus>,
    /// Number of sessions that were taken over.
    pub claims: usize,
    /// The store itself.
    pub store: StoreAbout,
}

impl FleetReport {
    /// Reads the store.
    pub async fn read(
        keys: &SealingKeys,
        settings: &FleetSettings,
        session_max_age: Duration,
    ) -> Result<Self, StoreError> {
        let store = RedisStore::new(settings.store.clone(), &settings.name, REPLY_TIMEOUT);
        let about = store.about().await?;
        let roster = store.heartbeat(Heartbeat::default()).await?;
        let (records, mut view) = (Records::new(keys), FleetView::new(keys.instance()));
        let (claims, key_use) = (roster.claims.count, roster.key_use.clone());
        view.update(roster, &records, Instant::now());
        let mut replaced = Vec::new();
        if addresses::may_be_replaced(&view) {
            // Those that live renew their records.
            sleep(2 * HEARTBEAT).await;
            let later = store.heartbeat(Heartbeat::default()).await?;
            view.update(later, &records, Instant::now());
            replaced = view.take_replaced();
        }
        let mut differences = differences(&view);
        differences.extend(key_status::problems(keys, &view, &key_use, session_max_age));
        let keys = key_status::status(keys, &view, &key_use, session_max_age);
        let members = view.members().map(Arc::clone).collect();
        Ok(Self { members, replaced, differences, keys, claims, store: about })
    }
}

/// Longest time that one call of the store may take here, where no request waits for it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Counters of a replica.
#[derive(Debug, Default)]
pub struct FleetMetrics {
    pub(super) responses: Counter,
    pub(super) unreachable: Counter,
    pub(super) broken: Counter,
    pub(super) takeovers: Counter,
    pub(super) store_errors: Counter,
    /// Durations of the heartbeats that succeeded.
    pub heartbeats: Histogram,
}

impl Fleet {
    /// Returns why this replica cannot work with the others, if it cannot.
    pub fn problem(&self) -> Option<&'static str> {
        if self.is_forbidden.load(Ordering::Relaxed) {
            return Some("the store of the fleet does not allow commands that Weir needs");
        }
        let view = self.view();
        if view.has_foreign_key() {
            return Some("the other replicas of the fleet have other keys");
        }
        addresses::is_taken(&view, self.instance()).then_some(addresses::TAKEN)
    }

    /// Returns whether the store has replied a moment ago.
    pub(crate) fn is_store_up(&self) -> bool {
        let replied_at = self.view().replied_at();
        replied_at.is_some_and(|replied_at| replied_at.elapsed() < 3 * HEARTBEAT)
    }

    /// Returns the status of this replica.
    pub fn status(&self) -> FleetStatus {
        let (members, differences) = {
            let view = self.view();
            (view.members().len(), differences(&view))
        };
        let metrics = self.metrics();
        let hops = [
            ("response", &metrics.responses),
            ("unreachable", &metrics.unreachable),
            ("broken", &metrics.broken),
        ];
        FleetStatus {
            name: self.settings.name.clone(),
            member: self.settings.member.clone(),
            instance: self.instance().to_string(),
            members,
            store: self.is_store_up(),
            differences,
            hops: hops.map(|(result, count)| (result.to_owned(), count.read())).into(),
            takeovers: metrics.takeovers.read(),
            store_errors: metrics.store_errors.read(),
        }
    }
}

/// Describes what differs between replicas and should not.
fn differences(view: &FleetView) -> Vec<String> {
    let (mut versions, mut configurations) = (BTreeSet::new(), BTreeSet::new());
    for member in view.members() {
        versions.insert(&*member.record.version);
        configurations.insert(&*member.record.configuration);
    }
    let several = |what: &str, values: BTreeSet<&str>| {
        let values = Vec::from_iter(values);
        let are_several = values.len() > 1;
        are_several.then(|| format!("the replicas have several {what}: {}", values.join(", ")))
    };
    let settled = view.members().filter(|it| it.record.has_settled);
    let lists: BTreeSet<_> = settled.filter_map(|it| it.record.lists.as_ref()).collect();
    let lists = (lists.len() > 1).then(|| {
        "the replicas list different items: an upstream is down at one of them, or of another \
         version, which `weir status` of each shows"
            .to_owned()
    });
    let differences = [several("versions", versions), several("configurations", configurations)];
    let differences =
        differences.into_iter().chain([lists]).flatten().chain(key_status::conflicts(view));
    differences.chain(addresses::conflicts(view)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lists_have_settled_once_they_have_not_changed_for_a_while() {
        let mut lists = SettledLists::default();
        assert!(!lists.settle(1));
        tokio::time::advance(SETTLING).await;
        assert!(lists.settle(1));
        assert!(!lists.settle(2), "they have changed");
        tokio::time::advance(SETTLING).await;
        assert!(lists.settle(2));
    }
}
