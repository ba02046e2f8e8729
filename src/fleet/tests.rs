//! Tests of several replicas in one process.

mod bucket_contents;
mod limits;
pub(super) mod simulation;

use std::sync::Arc;
use std::time::Duration;

use super::hop::probes::Probe;
use super::store::Store;
use super::{Fleet, FleetSettings, OnStoreDown, StoreKind, StoreLogin, StoreSettings};
use crate::sealing::SealingKeys;

impl FleetSettings {
    /// Creates the settings of a replica in tests, whose store is away.
    pub(crate) fn of_member(member: &str) -> Self {
        Self {
            name: "weir".to_owned(),
            member: member.to_owned(),
            address: "127.0.0.1:1".to_owned(),
            store: StoreSettings {
                urls: Vec::new(),
                kind: StoreKind::Server,
                login: StoreLogin::default(),
                ca: None,
                timeout: Duration::from_millis(50),
            },
            on_store_down: OnStoreDown::Share,
            expected_replicas: 3,
        }
    }
}

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
