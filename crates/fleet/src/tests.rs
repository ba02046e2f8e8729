//! Tests of several replicas in one process.

mod bucket_contents;
mod limits;
pub(super) mod simulation;

use std::sync::Arc;

use super::hop::probes::Probe;
use super::store::Store;
use super::{Fleet, FleetSettings};
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
