//! Settings of replicas in tests.

#[cfg(test)]
pub(crate) mod bucket_model;
#[cfg(test)]
pub(crate) mod dice;
#[cfg(test)]
pub(crate) mod sealed_world;
#[cfg(test)]
pub(crate) mod store_model;

use std::time::Duration;

use crate::{FleetSettings, OnStoreDown, StoreKind, StoreLogin, StoreSettings};

impl FleetSettings {
    /// Creates the settings of a replica in tests, whose store is away.
    pub fn of_replica(name: &str) -> Self {
        Self {
            name: "weir".to_owned(),
            replica: name.to_owned(),
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
