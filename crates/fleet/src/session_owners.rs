//! Owners of sessions, and the claims that decide about them.
//!
//! Invariant: a request waits for the store only when its session is taken over, and before the
//! first heartbeat, and then for a bounded time. A session whose owner cannot be decided is served
//! without a claim, which is made as soon as the store decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

use crate::claim_table::{MAX_CLAIMED_PER_BEAT, Owner, SessionIdentity};
use crate::membership::Replica;
use crate::shared::Shared;
use crate::store::{ClaimReply, ClaimRequest, ClaimStore, HEARTBEAT, StoreError, StoredEntry};
use weir_base::ended_sessions::{BlockName, EndedBlock, SessionNumber};
use weir_base::tasks::sync::Mutex;

/// Owners of the sessions of legacy clients.
pub struct SessionOwners {
    shared: Arc<Shared>,
    store: Arc<dyn ClaimStore>,
    /// Settings of sessions that were taken over before they could be read, by sessions.
    late_settings: Mutex<HashMap<String, Vec<u8>>>,
}

/// Owner of a session.
#[derive(Debug)]
pub enum SessionOwner {
    /// This replica. If it has taken the session over just now: the session's settings as they were
    /// written, if any.
    ThisReplica(Option<Vec<u8>>),
    /// Another replica.
    Other(Arc<Replica>),
    /// None: its client has ended it.
    Ended,
    /// It cannot be decided at present.
    Undecided,
}

impl SessionOwners {
    pub(crate) fn new(shared: Arc<Shared>, store: Arc<dyn ClaimStore>) -> Self {
        Self { shared, store, late_settings: Mutex::default() }
    }

    // === Owners ===

    /// Finds the owner of a session. If that has ended and this replica `may_take_over`, it takes
    /// the session over.
    pub async fn find(
        &self,
        session: &SessionIdentity,
        may_take_over: impl FnOnce() -> bool,
    ) -> SessionOwner {
        self.wait_until_known().await;
        let owner = self.shared.state().owner(session, Instant::now());
        match owner {
            Owner::ThisReplica => SessionOwner::ThisReplica(None),
            Owner::Other(replica) => SessionOwner::Other(replica),
            Owner::Ended => SessionOwner::Ended,
            Owner::Gone | Owner::Unknown => match may_take_over() {
                true => self.take_over(session).await,
                false => SessionOwner::Undecided,
            },
        }
    }

    async fn take_over(&self, session: &SessionIdentity) -> SessionOwner {
        for _ in 0..MAX_ATTEMPTS {
            let (owner, claim) = {
                let state = self.shared.state();
                let owner = state.owner(session, Instant::now());
                let claim = state.claims.claim_of(&session.key);
                (owner, claim.map(|(text, since)| (text.to_owned(), since)))
            };
            match owner {
                Owner::ThisReplica => return SessionOwner::ThisReplica(None),
                Owner::Other(replica) => return SessionOwner::Other(replica),
                Owner::Ended => return SessionOwner::Ended,
                Owner::Unknown => return self.serve_unclaimed(session),
                // A claim would wait in vain, too.
                Owner::Gone if self.shared.beats.is_store_silent() => {
                    return self.serve_unclaimed(session);
                }
                Owner::Gone => {}
            }
            let expected = match claim {
                None => String::new(),
                Some((text, since)) => {
                    // Replicas that do not reach each other would take a session from each other
                    // all the time.
                    sleep_until(since + MIN_CLAIM_AGE).await;
                    text
                }
            };
            match self.claim_for_itself(session, expected).await {
                Ok(ClaimReply { is_replaced: true, settings, .. }) => {
                    self.shared.metrics.takeovers.increment();
                    let settings = settings.unwrap_or_default();
                    let settings = self.shared.records.open_settings(&session.key, &settings);
                    return SessionOwner::ThisReplica(settings);
                }
                // Another replica was quicker; its claim is known now.
                Ok(_) => {}
                Err(_) => {
                    self.shared.metrics.store_errors.increment();
                    return self.serve_unclaimed(session);
                }
            }
        }
        SessionOwner::Undecided
    }

    fn serve_unclaimed(&self, session: &SessionIdentity) -> SessionOwner {
        match self.shared.state().claims.take_unclaimed(session) {
            true => {
                self.shared.metrics.takeovers.increment();
                SessionOwner::ThisReplica(None)
            }
            false => SessionOwner::Undecided,
        }
    }

    /// Waits for the first reply of the store, or the time in which one is due: before it, this
    /// replica knows neither the others nor what has ended.
    pub async fn wait_until_known(&self) {
        let is_known = self.shared.state().membership.is_known();
        if !is_known {
            self.shared.beats.first().await;
        }
    }

    /// Returns whether this replica has lost a session: another one has claimed it, or its client
    /// has ended it.
    pub fn has_lost(&self, session: &SessionIdentity) -> bool {
        self.shared.state().has_lost(session, Instant::now())
    }

    /// Returns whether all replicas read ids of sessions with numbers, as far as this one knows.
    pub fn all_read_numbers(&self) -> bool {
        self.shared.state().membership.all_read_numbers()
    }

    /// Ends the service of a session without a claim.
    pub fn drop_unclaimed(&self, key: &str) {
        self.shared.state().claims.drop_unclaimed(key);
    }

    // === Ends and settings ===

    /// Records that clients have ended the sessions of a block, so that no replica serves them
    /// again.
    pub async fn end(&self, name: BlockName, block: &EndedBlock) -> Result<(), StoreError> {
        let stored = self.store.end_sessions(name.to_string(), block.clone()).await;
        let stored = self.shared.count_failure(stored)?;
        self.shared.state().claims.learn_ended(name, stored);
        Ok(())
    }

    /// Records that the client of a session has ended it whose id has no number: such ids were made
    /// up to version 0.1.0.
    pub async fn end_unnumbered(&self, key: &str, until: SystemTime) -> Result<(), StoreError> {
        let ended = self.claim((key, None), until, None, true).await;
        self.shared.count_failure(ended).map(drop)
    }

    /// Writes the settings of a session, for the replica that takes it over.
    pub async fn put_settings(
        &self,
        key: &str,
        settings: &[u8],
        until: SystemTime,
    ) -> Result<(), StoreError> {
        let text = self.shared.records.seal_settings(key, settings);
        let put = self.store.put_settings(key.to_owned(), text, life_of(until)).await;
        self.shared.count_failure(put)
    }

    /// Drops the settings of a session, which has ended or whose client has too many, unless it is
    /// another replica's by now.
    pub async fn drop_settings(&self, key: String) -> Result<(), StoreError> {
        let is_claimed = self.shared.state().claims.is_claimed_elsewhere(&key);
        if is_claimed {
            return Ok(());
        }
        let dropped = self.store.drop_settings(key).await;
        self.shared.count_failure(dropped)
    }

    /// Takes the settings of sessions that this replica has served before it could read them, by
    /// the keys of the sessions.
    pub fn take_late_settings(&self) -> HashMap<String, Vec<u8>> {
        std::mem::take(&mut *self.late_settings.lock())
    }

    // === Heartbeat ===

    /// Returns whether a session may have got another owner since the last time, or settings of one
    /// were read late.
    pub(crate) fn have_moved(&self) -> bool {
        let have_moved = self.shared.state().claims.take_moved();
        have_moved || !self.late_settings.lock().is_empty()
    }

    /// Writes ends that the store has lost, until the time has come for the next record. Returns
    /// whether there may be more that it takes.
    pub(crate) async fn write_lost_ends(
        &self,
        lost: Vec<(BlockName, EndedBlock)>,
    ) -> Result<bool, StoreError> {
        let are_many = lost.len() == MAX_CLAIMED_PER_BEAT;
        let begin = Instant::now();
        for (name, block) in lost {
            if begin.elapsed() >= HEARTBEAT {
                break;
            }
            match self.end(name, &block).await {
                // What is full has no space for the others either, and the store works otherwise.
                Err(StoreError::Full) => return Ok(false),
                ended => ended?,
            }
        }
        Ok(are_many)
    }

    /// Claims sessions that this replica serves without a claim, until the time has come for its
    /// next record. Returns whether there may be more that the store takes.
    pub(crate) async fn claim_unclaimed(
        &self,
        unclaimed: Vec<SessionIdentity>,
    ) -> Result<bool, StoreError> {
        let are_many = unclaimed.len() == MAX_CLAIMED_PER_BEAT;
        let begin = Instant::now();
        for session in unclaimed {
            if begin.elapsed() >= HEARTBEAT {
                break;
            }
            // Unless another replica has claimed it: then that one has it.
            let expected = {
                let state = self.shared.state();
                state.claims.claim_of(&session.key).map(|(text, _)| text.to_owned())
            };
            let reply = match self.claim_for_itself(&session, expected.unwrap_or_default()).await {
                Err(StoreError::Full) => return Ok(false),
                reply => reply?,
            };
            self.drop_unclaimed(&session.key);
            let written = reply.settings.filter(|_| reply.is_replaced);
            let written =
                written.and_then(|text| self.shared.records.open_settings(&session.key, &text));
            if let Some(written) = written {
                self.late_settings.lock().insert(session.key, written);
            }
        }
        Ok(are_many)
    }

    // === Claims ===

    /// Replaces the expected claim of a session by one of this replica.
    async fn claim_for_itself(
        &self,
        session: &SessionIdentity,
        expected: String,
    ) -> Result<ClaimReply, StoreError> {
        let named = (&*session.key, session.number);
        let reply = self.claim(named, session.until, Some(expected), false).await?;
        self.shared.state().claims.set_own(session);
        Ok(reply)
    }

    /// Replaces the claim of a session by one of this replica, or by its end, and takes over what
    /// the store has then. One of another session counts for nothing, whatever is expected.
    async fn claim(
        &self,
        named: (&str, Option<SessionNumber>),
        until: SystemTime,
        expected: Option<String>,
        is_ended: bool,
    ) -> Result<ClaimReply, StoreError> {
        let reply = self.try_claim(named, until, expected, is_ended).await?;
        match !reply.is_replaced && self.shared.records.is_misplaced(named.0, &reply.text) {
            true => self.try_claim(named, until, Some(reply.text), is_ended).await,
            false => Ok(reply),
        }
    }

    async fn try_claim(
        &self,
        (key, number): (&str, Option<SessionNumber>),
        until: SystemTime,
        expected: Option<String>,
        is_ended: bool,
    ) -> Result<ClaimReply, StoreError> {
        let Shared { records, .. } = &*self.shared;
        let text = records.seal_claim(key, is_ended);
        let session = key.to_owned();
        let request = ClaimRequest { session, number, expected, text, life: life_of(until) };
        let reply = self.store.claim(request).await?;
        let mut state = self.shared.state();
        let claims = &mut state.claims;
        if let Some((number, ended)) = number.zip(reply.ended.clone()) {
            claims.learn_ended(number.block(), Some(ended));
        } else if reply.number == 0 {
            claims.forget(key);
        } else {
            let (number, name, text) = (reply.number, key.to_owned(), reply.text.clone());
            let claim = StoredEntry { number, name, text };
            claims.learn_reply(claim, records, Instant::now());
        }
        Ok(reply)
    }
}

/// Time until then; at least a second.
fn life_of(until: SystemTime) -> Duration {
    until.duration_since(SystemTime::now()).unwrap_or_default().max(Duration::from_secs(1))
}

/// Shortest time between two claims of a session.
const MIN_CLAIM_AGE: Duration = Duration::from_secs(1);
/// Attempts to claim a session while others claim it, too.
const MAX_ATTEMPTS: usize = 3;
