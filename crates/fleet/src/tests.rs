//! Tests of several replicas in one process.

mod limits;
pub(super) mod simulation;

use std::sync::Arc;

use crate::replica_client::probes::Probe;
use crate::store::Store;
use crate::{Fleet, FleetSettings};
use weir_base::secrets::sealing::SealingKeys;

impl Fleet {
    /// Creates a replica with this store, which asks others by this probe.
    pub(super) fn with_store(
        keys: SealingKeys,
        settings: FleetSettings,
        store: Box<dyn Store>,
        probe: Probe,
        is_member: bool,
    ) -> Arc<Self> {
        Arc::new(Self::build(keys, settings, store, probe, is_member))
    }
}
