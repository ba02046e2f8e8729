//! State of a replica and of its fleet, for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::FleetSettings;
use crate::key_status::{self, KeyStatus};
use crate::membership::{Membership, Replica, addresses};
use crate::records::Records;
use crate::shared::Shared;
use crate::store::valkey::{StoreAbout, ValkeyStore};
use crate::store::{Beat, HEARTBEAT, ReplicaStore, StoreError};
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
    /// Requests that were forwarded to other replicas, by result: `response`, `unreachable` (not
    /// sent), `broken` (no response).
    pub hops: BTreeMap<String, u64>,
    /// Sessions that were taken over from other replicas.
    pub takeovers: u64,
    /// Calls of the store that failed, and heartbeats that were too late for a request.
    pub store_errors: u64,
}

impl FleetStatus {
    /// Returns the status of a replica.
    pub(crate) fn of(shared: &Shared) -> Self {
        let (members, differences, is_store_up) = {
            let state = shared.state();
            let membership = &state.membership;
            let is_store_up = membership.is_store_up(Instant::now());
            (membership.replicas().len(), differences(membership), is_store_up)
        };
        let metrics = &shared.metrics;
        let hops = [
            ("response", &metrics.responses),
            ("unreachable", &metrics.unreachable),
            ("broken", &metrics.broken),
        ];
        Self {
            name: shared.settings.name.clone(),
            member: shared.settings.replica.clone(),
            instance: shared.instance().to_string(),
            members,
            store: is_store_up,
            differences,
            hops: hops.map(|(result, count)| (result.to_owned(), count.read())).into(),
            takeovers: metrics.takeovers.read(),
            store_errors: metrics.store_errors.read(),
        }
    }
}

/// Report about a fleet for its operator, read from the store.
pub struct FleetReport {
    /// Replicas whose records are in the store.
    pub replicas: Vec<Arc<Replica>>,
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
        let store = ValkeyStore::new(settings.store.clone(), &settings.name, REPLY_TIMEOUT);
        let about = store.about().await?;
        let roster = store.heartbeat(Beat::default()).await?;
        let (records, mut membership) = (Records::new(keys), Membership::new(keys.instance()));
        membership.update(&roster, &records, Instant::now());
        let mut replaced = Vec::new();
        if addresses::may_be_replaced(&membership) {
            // Those that live renew their records.
            sleep(2 * HEARTBEAT).await;
            let later = store.heartbeat(Beat::default()).await?;
            membership.update(&later, &records, Instant::now());
            replaced = membership.take_replaced();
        }
        let (claims, key_use) = (roster.claims.count, &roster.key_use);
        let mut differences = differences(&membership);
        differences.extend(key_status::problems(keys, &membership, key_use, session_max_age));
        let keys = key_status::status(keys, &membership, key_use, session_max_age);
        let replicas = membership.replicas().map(Arc::clone).collect();
        Ok(Self { replicas, replaced, differences, keys, claims, store: about })
    }
}

/// Describes what differs between replicas and should not.
fn differences(membership: &Membership) -> Vec<String> {
    let (mut versions, mut configurations) = (BTreeSet::new(), BTreeSet::new());
    for replica in membership.replicas() {
        versions.insert(&*replica.record.version);
        configurations.insert(&*replica.record.configuration);
    }
    let several = |what: &str, values: BTreeSet<&str>| {
        let values = Vec::from_iter(values);
        let are_several = values.len() > 1;
        are_several.then(|| format!("the replicas have several {what}: {}", values.join(", ")))
    };
    let settled = membership.replicas().filter(|it| it.record.has_settled);
    let lists: BTreeSet<_> = settled.filter_map(|it| it.record.lists.as_ref()).collect();
    let lists = (lists.len() > 1).then(|| {
        "the replicas list different items: an upstream is down at one of them, or of another \
         version, which `weir status` of each shows"
            .to_owned()
    });
    let differences = [several("versions", versions), several("configurations", configurations)];
    let differences =
        differences.into_iter().chain([lists]).flatten().chain(key_status::conflicts(membership));
    differences.chain(addresses::conflicts(membership)).collect()
}

/// Longest time that one call of the store may take here, where no request waits for it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
