//! Heartbeat: a replica writes its record each second, and reads what the store knows of the fleet.
//!
//! A process without a record of its own only looks.
//!
//! Invariant: `moved` is called at the end of each heartbeat in which a session has got another
//! owner, also if the heartbeat has failed.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::membership::{ListsElsewhere, addresses};
use crate::own_record::{Condition, OwnRecord};
use crate::session_owners::SessionOwners;
use crate::shared::Shared;
use crate::shared_limits::SharedLimits;
use crate::store::{HEARTBEAT, ReplicaStore, StoreError};

/// Task that keeps a replica in its fleet.
pub(crate) struct Heartbeat<C, M> {
    pub(crate) shared: Arc<Shared>,
    /// `None` for a process that only looks.
    pub(crate) own: Option<Arc<OwnRecord>>,
    pub(crate) store: Arc<dyn ReplicaStore>,
    pub(crate) sessions: Arc<SessionOwners>,
    pub(crate) limits: Arc<SharedLimits>,
    pub(crate) lists_elsewhere: watch::Sender<ListsElsewhere>,
    pub(crate) process: Callbacks<C, M>,
}

/// Parts of the process that the heartbeat asks and tells.
pub(crate) struct Callbacks<C, M> {
    /// Returns what this replica shows of itself.
    pub(crate) condition: C,
    /// Takes note that a session has got another owner.
    pub(crate) moved: M,
}

/// Time of the next heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// There is more to read or to write.
    Now,
    AfterInterval,
}

/// State that the log has named last.
#[derive(Default)]
struct LoggedState {
    is_connected: Option<bool>,
    is_address_taken: bool,
}

impl<C: Fn() -> Condition, M: Fn()> Heartbeat<C, M> {
    /// Sends heartbeats until `stop` fires.
    pub(crate) async fn run(self, stop: &CancellationToken) {
        let mut logged = LoggedState::default();
        loop {
            let next = self.beat().await;
            self.log(&mut logged, next.as_ref().err());
            let pause = if next == Ok(Next::Now) { Duration::ZERO } else { HEARTBEAT };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.shared.beats.requested() => {}
                () = sleep(pause) => {}
            }
        }
    }

    async fn beat(&self) -> Result<Next, StoreError> {
        let (begin, beats) = (Instant::now(), &self.shared.beats);
        beats.begin();
        let next = self.exchange().await;
        if self.sessions.have_moved() {
            (self.process.moved)();
        }
        match &next {
            Ok(_) => {
                let count = self.shared.state().membership.replicas().len();
                self.shared.known_count.learn(u32::try_from(count).unwrap_or(u32::MAX)).await;
                self.shared.metrics.heartbeats.observe(begin.elapsed());
            }
            Err(_) => self.shared.metrics.store_errors.increment(),
        }
        let is_slow = begin.elapsed() > self.shared.settings.store.timeout;
        self.limits.end_beat(next.is_err(), is_slow);
        beats.end(next.as_ref().err());
        next
    }

    /// Writes the record of this replica, reads what there is, and writes what the store lacks.
    async fn exchange(&self) -> Result<Next, StoreError> {
        let Shared { records, beats, .. } = &*self.shared;
        let condition = (self.process.condition)();
        let own = self.own.as_ref().map(|own| {
            let name = self.shared.instance().to_string();
            let record = records.seal_replica(&name, &own.next(condition));
            (name, record)
        });
        let beat = self.shared.state().claims.begin_beat(own);
        let roster = beats.ask(self.store.heartbeat(beat)).await?;
        self.limits.learn_contents(&roster);
        let has_more_to_read = roster.claims.has_more() || roster.ended.has_more();
        let (unclaimed, lost_ends, lists) = {
            let (mut state, now) = (self.shared.state(), Instant::now());
            state.update(roster, records, (now, SystemTime::now()));
            let lists = state.membership.lists_elsewhere(condition.lists);
            (state.unclaimed(now), state.claims.lost_ends(), lists)
        };
        self.lists_elsewhere.send_if_modified(|known| std::mem::replace(known, lists) != lists);
        let has_more_ends = self.sessions.write_lost_ends(lost_ends).await?;
        let has_more_claims = self.sessions.claim_unclaimed(unclaimed).await?;
        Ok(match has_more_to_read || has_more_ends || has_more_claims {
            true => Next::Now,
            false => Next::AfterInterval,
        })
    }

    fn log(&self, logged: &mut LoggedState, error: Option<&StoreError>) {
        let is_connected = error.is_none();
        if logged.is_connected.replace(is_connected) != Some(is_connected) {
            self.log_store(error);
        }
        let is_taken = addresses::is_taken(&self.shared.state().membership, self.shared.instance());
        if !std::mem::replace(&mut logged.is_address_taken, is_taken) && is_taken {
            let address = &self.shared.settings.address;
            warn!(address, "{}", addresses::TAKEN);
        }
    }

    fn log_store(&self, error: Option<&StoreError>) {
        if let Some(error) = error {
            return warn!(
                %error,
                "store of the fleet cannot be used, this replica serves what it has: check \
                 `store` under [fleet]"
            );
        }
        let (members, unreadable) = {
            let state = self.shared.state();
            let membership = &state.membership;
            let unreadable = membership.unreadable().map(|(_, count)| count).sum::<usize>();
            (membership.replicas().len(), unreadable)
        };
        info!(fleet = self.shared.settings.name, members, "store of the fleet connected");
        if unreadable > 0 {
            warn!(
                unreadable,
                "replicas with other keys are in the fleet: their sessions cannot be served here; \
                 give all replicas the same `keys` under [fleet]"
            );
        }
    }
}
