//! Places of sessions, and the claims that decide about them.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until, timeout};

use crate::membership::{MAX_CLAIMED_PER_BEAT, Owner};
use crate::store::{ClaimReply, ClaimRequest, StoreError, StoredEntry};
use crate::{Fleet, HEARTBEAT, Place, PlacedSession};
use weir_base::ended_sessions::{BlockName, EndedBlock, SessionNumber};

impl Fleet {
    /// Returns whether this replica has lost a session: another one has claimed it, or its client
    /// has ended it.
    pub fn has_lost(&self, session: &PlacedSession) -> bool {
        self.view().has_lost(session, Instant::now())
    }

    /// Finds the place of a session. If its owner has ended, this replica takes it over.
    /// `may_take_over` is asked first then.
    pub async fn place(
        &self,
        session: &PlacedSession,
        may_take_over: impl FnOnce() -> bool,
    ) -> Place {
        let mut may_take_over = Some(may_take_over);
        self.know_others().await;
        for _ in 0..MAX_ATTEMPTS {
            let (owner, claim) = {
                let view = self.view();
                let owner = view.owner(session, Instant::now());
                let claim = view.claim_of(&session.key);
                (owner, claim.map(|(text, since)| (text.to_owned(), since)))
            };
            match owner {
                Owner::Itself => return Place::Here(None),
                Owner::Member(member) => return Place::Member(member),
                Owner::Ended => return Place::Ended,
                Owner::Gone | Owner::Unknown
                    if may_take_over.take().is_some_and(|may_take_over| !may_take_over()) =>
                {
                    return Place::Undecided;
                }
                Owner::Unknown => return self.serve_unclaimed(session),
                // A claim would wait in vain, too.
                Owner::Gone if self.is_store_silent() => return self.serve_unclaimed(session),
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
            match self.claim_placed(session, expected).await {
                Ok(ClaimReply { is_replaced: true, settings, .. }) => {
                    self.metrics.takeovers.increment();
                    let settings = settings.unwrap_or_default();
                    return Place::Here(self.records.open_settings(&session.key, &settings));
                }
                // Another replica was quicker; its claim is known now.
                Ok(_) => {}
                Err(_) => {
                    self.metrics.store_errors.increment();
                    return self.serve_unclaimed(session);
                }
            }
        }
        Place::Undecided
    }

    /// Waits for the first reply of the store, or the time in which one is due: before it, this
    /// replica knows neither the others nor what has ended.
    pub async fn know_others(&self) {
        if self.view().replied_at().is_none() {
            let mut beats = self.beats.subscribe();
            let first = beats.wait_for(|number| *number >= 2);
            let _ = timeout(self.settings.store.timeout, first).await;
        }
    }

    fn serve_unclaimed(&self, session: &PlacedSession) -> Place {
        match self.view().take_unclaimed(session) {
            true => {
                self.metrics.takeovers.increment();
                Place::Here(None)
            }
            false => Place::Undecided,
        }
    }

    /// Records that clients have ended the sessions of a block, so that no replica serves them
    /// again.
    pub async fn end_sessions(
        &self,
        name: BlockName,
        block: &EndedBlock,
    ) -> Result<(), StoreError> {
        let stored = self.store.end_sessions(name.to_string(), block.clone()).await;
        let stored = stored.inspect_err(|_| self.metrics.store_errors.increment())?;
        self.view().learn_ended(name, stored);
        Ok(())
    }

    /// Writes ends that the store has lost, until the time has come for the next record. Returns
    /// whether there may be more that it takes.
    pub(super) async fn write_lost_ends(
        &self,
        lost: Vec<(BlockName, EndedBlock)>,
    ) -> Result<bool, StoreError> {
        let are_many = lost.len() == MAX_CLAIMED_PER_BEAT;
        let begin = Instant::now();
        for (name, block) in lost {
            if begin.elapsed() >= HEARTBEAT {
                break;
            }
            match self.end_sessions(name, &block).await {
                // What is full has no space for the others either, and the store works otherwise.
                Err(StoreError::Full) => return Ok(false),
                ended => ended?,
            }
        }
        Ok(are_many)
    }

    /// Records that the client of a session has ended it whose id has no number: such ids were made
    /// up to version 0.1.0.
    pub async fn end_unnumbered(&self, key: &str, until: SystemTime) -> Result<(), StoreError> {
        let ended = self.claim((key, None), until, None, true).await.map(|_| ());
        ended.inspect_err(|_| self.metrics.store_errors.increment())
    }

    /// Replaces the expected claim of a session by one of this replica.
    async fn claim_placed(
        &self,
        session: &PlacedSession,
        expected: String,
    ) -> Result<ClaimReply, StoreError> {
        let named = (&*session.key, session.number);
        let reply = self.claim(named, session.until, Some(expected), false).await?;
        self.view().set_own(session);
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
        match !reply.is_replaced && self.records.is_misplaced(named.0, &reply.text) {
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
        let text = self.records.seal_claim(key, is_ended);
        let session = key.to_owned();
        let request = ClaimRequest { session, number, expected, text, life: life_of(until) };
        let reply = self.store.claim(request).await?;
        let mut view = self.view();
        if let Some((number, ended)) = number.zip(reply.ended.clone()) {
            view.learn_ended(number.block(), Some(ended));
        } else if reply.number == 0 {
            view.forget_claim(key);
        } else {
            let (number, name, text) = (reply.number, key.to_owned(), reply.text.clone());
            let claim = StoredEntry { number, name, text };
            view.learn_reply(claim, &self.records, Instant::now());
        }
        Ok(reply)
    }

    /// Ends the service of a session without a claim.
    pub fn drop_unclaimed(&self, key: &str) {
        self.view().drop_unclaimed(key);
    }

    /// Writes the settings of a session, for the replica that takes it over.
    pub async fn put_settings(
        &self,
        key: &str,
        settings: &[u8],
        until: SystemTime,
    ) -> Result<(), StoreError> {
        let text = self.records.seal_settings(key, settings);
        let put = self.store.put_settings(key.to_owned(), text, life_of(until)).await;
        put.inspect_err(|_| self.metrics.store_errors.increment())
    }

    /// Drops the settings of a session, which has ended or whose client has too many, unless it is
    /// another replica's by now.
    pub async fn drop_settings(&self, key: String) -> Result<(), StoreError> {
        if self.view().is_claimed_elsewhere(&key) {
            return Ok(());
        }
        let dropped = self.store.drop_settings(key).await;
        dropped.inspect_err(|_| self.metrics.store_errors.increment())
    }

    /// Claims sessions that this replica serves without a claim, until the time has come for its
    /// next record. Returns whether there may be more that the store takes.
    pub(super) async fn claim_unclaimed(
        &self,
        unclaimed: Vec<PlacedSession>,
    ) -> Result<bool, StoreError> {
        let are_many = unclaimed.len() == MAX_CLAIMED_PER_BEAT;
        let begin = Instant::now();
        for session in unclaimed {
            if begin.elapsed() >= HEARTBEAT {
                break;
            }
            // Unless another replica has claimed it: then that one has it.
            let expected = self.view().claim_of(&session.key).map(|(text, _)| text.to_owned());
            let reply = match self.claim_placed(&session, expected.unwrap_or_default()).await {
                Err(StoreError::Full) => return Ok(false),
                reply => reply?,
            };
            self.view().drop_unclaimed(&session.key);
            let written = reply.settings.filter(|_| reply.is_replaced);
            let written = written.and_then(|text| self.records.open_settings(&session.key, &text));
            if let Some(written) = written {
                self.late_settings.lock().insert(session.key, written);
            }
        }
        Ok(are_many)
    }

    /// Takes the settings of sessions that this replica has served before it could read them, by
    /// the keys of the sessions.
    pub fn take_late_settings(&self) -> HashMap<String, Vec<u8>> {
        std::mem::take(&mut *self.late_settings.lock())
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
