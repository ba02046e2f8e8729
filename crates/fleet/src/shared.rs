//! State that the parts of a replica share: what it knows, and what it waits for.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use crate::FleetSettings;
use crate::beats::Beats;
use crate::claim_table::{ClaimTable, Owner, SessionIdentity};
use crate::known_count::KnownCount;
use crate::membership::Membership;
use crate::metrics::FleetMetrics;
use crate::records::Records;
use crate::store::{Roster, StoreError};
use weir_base::secrets::sealing::{InstanceId, SealingKeys};
use weir_base::tasks::sync::{Mutex, MutexGuard};

/// State of a replica.
pub(crate) struct Shared {
    pub(crate) settings: FleetSettings,
    pub(crate) keys: SealingKeys,
    pub(crate) records: Records,
    state: Mutex<FleetState>,
    pub(crate) beats: Beats,
    pub(crate) known_count: KnownCount,
    pub(crate) metrics: FleetMetrics,
}

impl Shared {
    pub(crate) fn new(
        keys: SealingKeys,
        settings: FleetSettings,
        known_count: KnownCount,
    ) -> Arc<Self> {
        Arc::new(Self {
            records: Records::new(&keys),
            state: Mutex::new(FleetState::new(keys.instance())),
            beats: Beats::new(settings.store.timeout),
            known_count,
            metrics: FleetMetrics::default(),
            keys,
            settings,
        })
    }

    /// Returns the number of this process.
    pub(crate) fn instance(&self) -> InstanceId {
        self.keys.instance()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, FleetState> {
        self.state.lock()
    }

    /// Returns whether another replica serves clients.
    pub(crate) fn has_others(&self) -> bool {
        self.state().membership.others().any(|it| !it.record.draining)
    }

    /// Counts a call of the store that has failed.
    pub(crate) fn count_failure<T>(&self, reply: Result<T, StoreError>) -> Result<T, StoreError> {
        reply.inspect_err(|_| self.metrics.store_errors.increment())
    }

    /// Makes a heartbeat that begins now, and waits until it has ended, after one that is in
    /// progress: for the time of one reply of the store at most, and not if that is away or late.
    pub(crate) async fn refresh(&self) {
        if self.beats.refresh().await.is_err() {
            self.metrics.store_errors.increment();
        }
    }
}

/// Knowledge of a replica about its fleet. Pure.
pub(crate) struct FleetState {
    pub(crate) membership: Membership,
    pub(crate) claims: ClaimTable,
}

impl FleetState {
    pub(crate) fn new(itself: InstanceId) -> Self {
        Self { membership: Membership::new(itself), claims: ClaimTable::new(itself) }
    }

    /// Takes over what the store has returned for the heartbeat that was sent last.
    pub(crate) fn update(
        &mut self,
        roster: Roster,
        records: &Records,
        (now, time): (Instant, SystemTime),
    ) {
        let was_away = self.membership.update(&roster, records, now);
        self.claims.update((roster.claims, roster.ended), records, (now, time));
        if was_away {
            self.claims.begin_anew();
        }
    }

    /// Returns the owner of a session.
    pub(crate) fn owner(&self, session: &SessionIdentity, now: Instant) -> Owner {
        self.claims.owner(session, &self.membership, now)
    }

    /// Returns whether a session that this replica serves is that of another one, or has ended.
    pub(crate) fn has_lost(&self, session: &SessionIdentity, now: Instant) -> bool {
        self.claims.has_lost(session, &self.membership, now)
    }

    /// Returns sessions that this replica has to claim now: none until it is certain which others
    /// have ended.
    pub(crate) fn unclaimed(&mut self, now: Instant) -> Vec<SessionIdentity> {
        match self.membership.is_steady() {
            true => self.claims.unclaimed(&self.membership, now),
            false => Vec::new(),
        }
    }
}
