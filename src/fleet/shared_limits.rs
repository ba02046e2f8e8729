//! Limits that all replicas count together, in the store.
//!
//! All limits of a request are charged by one script, or none. Rates follow the clock of the store.
//! A concurrency limit counts what each living replica has reported last, so that the requests of a
//! replica that has ended count no more.
//!
//! Invariant: with the store, never more requests are admitted than the limits allow for one
//! process.

use std::collections::HashMap;

use aws_lc_rs::hmac;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Fleet;
use super::store::{SharedAdmission, SharedCharge, StoreError};
use crate::hex::hex;
use crate::sealing::SealingKeys;
use crate::sync::Mutex;

/// Handling of limits while the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum OnStoreDown {
    /// Each replica admits its share: the limit, divided by the last known number of replicas.
    Share,
    /// Requests that a limit counts are refused.
    Refuse,
}

/// Numbers of requests in progress that are to be reported to the store.
pub(super) struct SlotReports {
    key: hmac::Key,
    pending: Mutex<HashMap<String, usize>>,
    changed: Notify,
}

impl SlotReports {
    pub(super) fn new(keys: &SealingKeys) -> Self {
        let secret = keys.derive("fleet buckets").next().expect("there is a key");
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &*secret),
            pending: Mutex::default(),
            changed: Notify::new(),
        }
    }
}

impl Fleet {
    /// Returns the name of a bucket in the store: a keyed hash of its limit and its subject, which
    /// may be the name of a client.
    pub(crate) fn bucket(&self, limit: &[u8; 32], subject: &str) -> String {
        let mut hash = hmac::Context::with_key(&self.slots.key);
        hash.update(limit);
        hash.update(subject.as_bytes());
        hex(&hash.sign().as_ref()[..16])
    }

    /// Returns the number of replicas among which a limit is divided, as it was known last.
    pub(crate) fn share(&self) -> u32 {
        u32::try_from(self.view().members().len()).unwrap_or(u32::MAX).max(1)
    }

    /// Returns how limits are handled at the moment: `None` if the store decides.
    pub(crate) fn limits_without_store(&self) -> Option<OnStoreDown> {
        (!self.is_store_up()).then_some(self.on_store_down())
    }

    /// Returns how limits are handled while the store is away.
    pub(crate) fn on_store_down(&self) -> OnStoreDown {
        self.settings.on_store_down
    }

    /// Charges all limits of a request in the store, or none.
    pub(crate) async fn charge(
        &self,
        charges: Vec<SharedCharge>,
    ) -> Result<SharedAdmission, StoreError> {
        let charged = self.store.charge(self.instance().to_string(), charges).await;
        charged.inspect_err(|_| self.metrics.store_errors.increment())
    }

    /// Reports the number of requests in progress on this replica that a bucket counts. It is sent
    /// soon, and only the last one counts.
    pub(crate) fn report_slots(&self, bucket: &str, here: usize) {
        self.slots.pending.lock().insert(bucket.to_owned(), here);
        self.slots.changed.notify_one();
    }

    /// Sends the reported numbers until `stop` fires. What cannot be sent is sent with the next
    /// heartbeat that succeeds.
    pub(super) async fn send_slots(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(self.slots.changed.notified()).await.is_some() {
            let pending = std::mem::take(&mut *self.slots.pending.lock());
            let sent = pending.clone().into_iter().collect();
            if self.store.put_slots(self.instance().to_string(), sent).await.is_err() {
                self.metrics.store_errors.increment();
                let mut newer = self.slots.pending.lock();
                for (bucket, here) in pending {
                    newer.entry(bucket).or_insert(here);
                }
            }
        }
    }

    /// Sends again what could not be sent.
    pub(super) fn retry_slots(&self) {
        if !self.slots.pending.lock().is_empty() {
            self.slots.changed.notify_one();
        }
    }
}
