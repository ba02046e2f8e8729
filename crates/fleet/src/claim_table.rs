//! Claims: the owners of sessions, as one replica knows them.
//!
//! The owner of a session is the replica that its claim names; without a claim, the one that has
//! sealed the session's id. Claims are rare, since only the end of a replica causes them, and every
//! replica knows all of them. Pure: it reads pages of the store, and takes the time as an argument.
//!
//! Invariant: a claim is replaced by a later one only, except when all claims are read anew. That
//! happens when the store seems to have lost some, and now and then: a store that has gone back to
//! earlier contents may have given the numbers that are known to other claims since.

mod ended_table;
pub(crate) mod table_reading;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use crate::membership::{Membership, Replica};
use crate::records::{Claim, Records};
use crate::store::{Beat, MAX_CLAIMS, StoredEntry, TablePage};
use ended_table::EndedTable;
use table_reading::{PageEnd, TableReading};
use weir_base::ended_sessions::{BlockName, EndedBlock, SessionNumber};
use weir_base::secrets::sealing::InstanceId;

/// Claims and ends of sessions that one replica knows.
pub(crate) struct ClaimTable {
    /// This replica.
    itself: InstanceId,
    claims: HashMap<String, KnownClaim>,
    reading: TableReading,
    ended: EndedTable,
    /// Number of heartbeats that were sent.
    beat: u64,
    /// Heartbeat with which the last reading of all claims began.
    first_beat: u64,
    /// True if a session may have got another owner.
    has_moved: bool,
    /// Sessions that this replica serves without a claim, because the store could not decide.
    unclaimed: HashMap<String, SessionIdentity>,
}

/// A session, as far as its owner is concerned.
#[derive(Debug, Clone)]
pub struct SessionIdentity {
    /// Hash of its id.
    pub key: String,
    /// Its number; `None` in ids that were made up to version 0.1.0.
    pub number: Option<SessionNumber>,
    /// Process that has sealed its id.
    pub sealed_by: InstanceId,
    /// Time at which its id expires.
    pub until: SystemTime,
}

struct KnownClaim {
    number: u64,
    claim: Claim,
    text: String,
    since: Instant,
    /// Heartbeat that was sent last when the claim was read last, or made. One that was made while
    /// the heartbeat was under way may be missing in its reply.
    beat: u64,
    /// The session, if this replica has ever made a claim of it.
    own: Option<SessionIdentity>,
}

/// Owner of a session, as far as a replica knows it.
#[derive(Debug, Clone)]
pub(crate) enum Owner {
    /// This replica.
    ThisReplica,
    /// Another one, which can be reached.
    Other(Arc<Replica>),
    /// None: the replica has ended, cannot be reached, or is about to stop.
    Gone,
    /// A replica without a record in a store that is not steady: it may have ended.
    Unknown,
    /// None: the session has ended.
    Ended,
}

impl ClaimTable {
    pub(crate) fn new(itself: InstanceId) -> Self {
        Self {
            itself,
            claims: HashMap::new(),
            reading: TableReading::default(),
            ended: EndedTable::default(),
            beat: 0,
            first_beat: 0,
            has_moved: false,
            unclaimed: HashMap::new(),
        }
    }

    // === Reading ===

    /// Returns a heartbeat that is sent now, and asks for what has changed since the last one.
    /// Claims of this replica do not count as read: there may be others before them.
    pub(crate) fn begin_beat(&mut self, own: Option<(String, String)>) -> Beat {
        self.beat += 1;
        Beat { own, claims: self.reading.request(), ended: self.ended.request() }
    }

    /// Takes over the pages that the store has returned for the heartbeat that was sent last.
    pub(crate) fn update(
        &mut self,
        (claims, ended): (TablePage, TablePage),
        records: &Records,
        (now, time): (Instant, SystemTime),
    ) {
        if claims.after == 0 {
            self.first_beat = self.beat;
        }
        let end = self.reading.take(&claims);
        for claim in claims.entries {
            self.learn(claim, records, now);
        }
        if end == PageEnd::All(true) {
            self.forget_lost(time);
        }
        self.has_moved |= self.ended.update(ended, time);
    }

    /// Has everything read anew: the store was empty or away, and may number its claims anew.
    pub(crate) fn begin_anew(&mut self) {
        self.reading.begin_anew();
        self.ended.begin_anew();
    }

    /// Forgets the claims that were not read again. Those of this replica it makes anew.
    fn forget_lost(&mut self, time: SystemTime) {
        let first = self.first_beat;
        let lost: Vec<_> = self.claims.extract_if(|_, claim| claim.beat < first).collect();
        self.has_moved |= !lost.is_empty();
        for (_, claim) in lost {
            if let Some(own) = claim.own
                && claim.claim == Claim::Owner(self.itself)
                && own.until > time
            {
                self.take_unclaimed(&own);
            }
        }
    }

    /// Takes over one claim.
    pub(crate) fn learn(&mut self, claim: StoredEntry, records: &Records, now: Instant) {
        let StoredEntry { number, name: session, text } = claim;
        let known = self.claims.get_mut(&session);
        if let Some(known) = known.filter(|known| known.text == text) {
            (known.number, known.beat) = (number, self.beat);
            return;
        }
        let known = self.claims.get(&session);
        if known.is_some_and(|known| known.beat >= self.first_beat && known.number >= number) {
            return;
        }
        let has_space = known.is_some() || self.claims.len() < MAX_CLAIMS;
        let claim = records.open_claim(&session, &text).filter(|_| has_space);
        let Some(claim) = claim else { return };
        let is_own = claim == Claim::Owner(self.itself);
        let own = self.unclaimed.remove(&session).filter(|_| is_own);
        let own = own.or_else(|| known.and_then(|known| known.own.clone()));
        let beat = self.beat;
        self.claims.insert(session, KnownClaim { number, claim, text, since: now, beat, own });
        self.has_moved |= !is_own;
    }

    /// Takes over the claim with which the store has replied to one of this replica.
    pub(crate) fn learn_reply(&mut self, claim: StoredEntry, records: &Records, now: Instant) {
        self.reading.expect(claim.number, &claim.name, &claim.text);
        self.learn(claim, records, now);
    }

    /// Takes over a block of ended sessions that this replica has written, as the store has it now;
    /// `None` if it has expired there.
    pub(crate) fn learn_ended(&mut self, name: BlockName, stored: Option<StoredEntry>) {
        self.has_moved |= self.ended.learn(name, stored);
    }

    /// Forgets a claim that the store does not have any more.
    pub(crate) fn forget(&mut self, session: &str) {
        self.has_moved |= self.claims.remove(session).is_some();
    }

    /// Records the facts of a session, if this replica has claimed it.
    pub(crate) fn set_own(&mut self, session: &SessionIdentity) {
        let claim = Claim::Owner(self.itself);
        if let Some(known) = self.claims.get_mut(&session.key).filter(|it| it.claim == claim) {
            known.own = Some(session.clone());
        }
    }

    /// Returns whether a session may have got another owner since the last time.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    // === Owners ===

    /// Returns the owner of a session.
    pub(crate) fn owner(
        &self,
        session: &SessionIdentity,
        membership: &Membership,
        now: Instant,
    ) -> Owner {
        match self.unclaimed.contains_key(&session.key) && !self.is_ended(session.number) {
            true => Owner::ThisReplica,
            false => self.claimed_owner(session, membership, now),
        }
    }

    fn claimed_owner(
        &self,
        session: &SessionIdentity,
        membership: &Membership,
        now: Instant,
    ) -> Owner {
        if self.is_ended(session.number) {
            return Owner::Ended;
        }
        let owner = match self.claims.get(&session.key).map(|known| known.claim) {
            Some(Claim::Ended) => return Owner::Ended,
            Some(Claim::Owner(instance)) => instance,
            None => session.sealed_by,
        };
        if owner == self.itself {
            return Owner::ThisReplica;
        }
        match membership.reachable(owner, now) {
            Some(replica) if !replica.record.draining => Owner::Other(replica),
            None if !membership.is_steady() && !membership.has(owner) => Owner::Unknown,
            _ => Owner::Gone,
        }
    }

    /// Returns whether a session that this replica serves is that of another one, or has ended. A
    /// claim counts even if its replica cannot be reached: others may reach it.
    pub(crate) fn has_lost(
        &self,
        session: &SessionIdentity,
        membership: &Membership,
        now: Instant,
    ) -> bool {
        let is_unclaimed = self.unclaimed.contains_key(&session.key);
        match self.claims.get(&session.key).filter(|_| !is_unclaimed).map(|known| known.claim) {
            _ if self.is_ended(session.number) => true,
            Some(claim) => claim != Claim::Owner(self.itself),
            None => matches!(self.owner(session, membership, now), Owner::Other(_)),
        }
    }

    /// Returns whether the client of a session has ended it.
    pub(crate) fn is_ended(&self, number: Option<SessionNumber>) -> bool {
        self.ended.contains(number)
    }

    /// Returns blocks of ended sessions that the store has lost, at most [`MAX_CLAIMED_PER_BEAT`].
    pub(crate) fn lost_ends(&self) -> Vec<(BlockName, EndedBlock)> {
        self.ended.lost(MAX_CLAIMED_PER_BEAT)
    }

    /// Returns the text of the known claim of a session, and the time since when it is known.
    pub(crate) fn claim_of(&self, session: &str) -> Option<(&str, Instant)> {
        self.claims.get(session).map(|known| (&*known.text, known.since))
    }

    /// Returns whether another replica has claimed a session last.
    pub(crate) fn is_claimed_elsewhere(&self, session: &str) -> bool {
        let known = self.claims.get(session);
        known
            .is_some_and(|known| matches!(known.claim, Claim::Owner(owner) if owner != self.itself))
    }

    // === Sessions without a claim ===

    /// Serves a session without a claim; false if there are too many of these.
    pub(crate) fn take_unclaimed(&mut self, session: &SessionIdentity) -> bool {
        let has_space = self.unclaimed.len() < MAX_UNCLAIMED;
        if has_space {
            self.unclaimed.insert(session.key.clone(), session.clone());
        }
        has_space
    }

    /// Returns sessions that this replica serves without a claim, and now has to claim, at most
    /// [`MAX_CLAIMED_PER_BEAT`]. Those that turn out to have another owner it gives up.
    pub(crate) fn unclaimed(
        &mut self,
        membership: &Membership,
        now: Instant,
    ) -> Vec<SessionIdentity> {
        let all = std::mem::take(&mut self.unclaimed);
        let (kept, given_up): (HashMap<_, _>, HashMap<_, _>) =
            all.into_iter().partition(|(_, session)| {
                let owner = self.claimed_owner(session, membership, now);
                !matches!(owner, Owner::Other(_) | Owner::Ended)
            });
        self.has_moved |= !given_up.is_empty();
        self.unclaimed = kept;
        self.unclaimed.values().take(MAX_CLAIMED_PER_BEAT).cloned().collect()
    }

    /// Ends the service without a claim: the claim decides from now on.
    pub(crate) fn drop_unclaimed(&mut self, session: &str) {
        self.unclaimed.remove(session);
    }

    /// Returns the number of sessions that this replica serves without a claim.
    #[cfg(test)]
    pub(crate) fn unclaimed_count(&self) -> usize {
        self.unclaimed.len()
    }
}

/// Most sessions that are served without a claim.
const MAX_UNCLAIMED: usize = 10_000;
/// Most sessions that are claimed between two records of this replica. A slow store takes a second
/// for them, and its records must follow each other within [`crate::store::MAX_GAP`].
pub(crate) const MAX_CLAIMED_PER_BEAT: usize = 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::shared::FleetState;
    use crate::store::{RECORD_TTL, Roster};
    use crate::testing::sealed_world::{SealedWorld, page};

    fn stored(number: u64, session: &SessionIdentity) -> StoredEntry {
        let (name, block) = session.number.expect("a number").ended(session.until);
        StoredEntry { number, name: name.to_string(), text: block.to_string() }
    }

    fn block_of(entry: &StoredEntry) -> BlockName {
        BlockName::parse(&entry.name).expect("a name")
    }

    fn heartbeat(state: &mut FleetState, roster: Roster, records: &Records, now: Instant) {
        heartbeat_at(state, roster, records, (now, SystemTime::now()));
    }

    fn heartbeat_at(
        state: &mut FleetState,
        roster: Roster,
        records: &Records,
        at: (Instant, SystemTime),
    ) {
        state.claims.begin_beat(None);
        state.update(roster, records, at);
    }

    /// Number after which claims are read with the next heartbeat.
    fn after(state: &mut FleetState) -> u64 {
        state.claims.begin_beat(None).claims.after
    }

    /// Name of the owner of a session that replica 1 has sealed.
    fn owner(state: &FleetState, world: &SealedWorld) -> String {
        match state.owner(&world.session("s"), Instant::now()) {
            Owner::Other(replica) => replica.record.name.clone(),
            other => format!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_record_ends_a_replica_only_if_the_store_has_been_steady() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let mut state = FleetState::new(world.instance(0));
        let records = &world.records[0];
        assert_eq!(owner(&state, &world), "Unknown", "never seen");
        heartbeat(&mut state, world.roster(100, &[0, 1]), records, now);
        assert_eq!(owner(&state, &world), "m1");
        for (steady, expected) in [(0, "m1"), (9, "m1"), (10, "Gone")] {
            heartbeat(&mut state, world.roster(steady, &[0]), records, now);
            assert_eq!(owner(&state, &world), expected, "steady for {steady} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_refuses_or_stops_is_no_owner() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let mut state = FleetState::new(world.instance(0));
        heartbeat(&mut state, world.roster(100, &[0, 1]), &world.records[0], now);
        state.membership.set_unreachable(world.instance(1), now);
        assert_eq!(owner(&state, &world), "Gone");
        tokio::time::advance(RECORD_TTL).await;
        assert_eq!(owner(&state, &world), "m1", "it is tried again");
        let mut roster = world.roster(100, &[0]);
        roster.replicas.push(world.replica(1, true));
        heartbeat(&mut state, roster, &world.records[0], now);
        assert_eq!(owner(&state, &world), "Gone");
        let reached = state.membership.reachable(world.instance(1), Instant::now());
        assert!(reached.is_some(), "its calls can be reached");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_replica_has_recorded_of_a_session_is_dropped_unless_another_one_has_claimed_it()
    {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let (mut state, records) = (FleetState::new(world.instance(0)), &world.records[0]);
        heartbeat(&mut state, world.roster(100, &[0, 1, 2]), records, now);
        assert!(!state.claims.is_claimed_elsewhere("s"));
        for (number, by, is_ended, expected) in
            [(5, 2, false, true), (6, 0, false, false), (7, 1, true, false)]
        {
            state.claims.learn(world.claim(number, by, is_ended), records, now);
            assert_eq!(state.claims.is_claimed_elsewhere("s"), expected, "{number}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_claim_decides_and_a_forged_one_counts_for_nothing() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        heartbeat(&mut state, world.roster(100, &[0, 1, 2]), records, now);
        state.claims.learn(world.claim(5, 2, false), records, now);
        assert!(state.claims.take_moved() && !state.claims.take_moved());
        assert_eq!(owner(&state, &world), "m2");
        state.claims.learn(world.claim(4, 1, false), records, now);
        assert_eq!(owner(&state, &world), "m2", "the other is an old one");
        let forged = StoredEntry { number: 9, name: "s".into(), text: "x".into() };
        state.claims.learn(forged, records, now);
        assert_eq!(owner(&state, &world), "m2");
        state.claims.learn(world.claim(10, 0, false), records, now);
        assert_eq!(owner(&state, &world), "ThisReplica");
        assert!(!state.claims.take_moved(), "no other replica has claimed it");
        state.claims.learn(world.claim(11, 1, true), records, now);
        assert_eq!((owner(&state, &world), state.claims.take_moved()), ("Ended".to_owned(), true));
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_a_store_that_was_empty_are_read_anew() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        let roster = |steady, claims| Roster { claims, ..world.roster(steady, &[0, 1, 2]) };
        heartbeat(&mut state, roster(100, page(0, &[world.claim(50, 1, false)])), records, now);
        assert_eq!((owner(&state, &world), after(&mut state)), ("m1".to_owned(), 50));
        heartbeat(&mut state, roster(0, page(50, &[])), records, now);
        assert_eq!(after(&mut state), 0, "from the first one on");
        heartbeat(&mut state, roster(1, page(0, &[world.claim(1, 2, false)])), records, now);
        assert_eq!((owner(&state, &world), after(&mut state)), ("m2".to_owned(), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_went_back_is_noticed_and_a_claim_of_its_own_that_came_back_is_kept() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        let roster = |claims| Roster { claims, ..world.roster(100, &[0, 1, 2]) };
        let (own, other) = (world.claim(7, 0, false), world.claim(9, 1, false));
        state.claims.learn(own.clone(), records, now);
        state.claims.set_own(&world.session("s"));
        heartbeat(&mut state, roster(page(0, std::slice::from_ref(&other))), records, now);
        assert_eq!((owner(&state, &world), after(&mut state)), ("m1".to_owned(), 9));
        heartbeat(&mut state, roster(page(9, std::slice::from_ref(&other))), records, now);
        assert_eq!(after(&mut state), 9, "nothing is read twice");
        // The store goes back to the claim of this replica, and numbers and counts are the same.
        let back = |after| TablePage { last: 9, ..page(after, std::slice::from_ref(&own)) };
        heartbeat(&mut state, roster(back(9)), records, now);
        assert_eq!(after(&mut state), 0);
        heartbeat(&mut state, roster(back(0)), records, now);
        assert_eq!(owner(&state, &world), "ThisReplica");
        // It loses that one, too: it is made anew.
        heartbeat(&mut state, roster(TablePage { last: 9, ..page(7, &[]) }), records, now);
        heartbeat(&mut state, roster(TablePage { last: 9, ..page(0, &[]) }), records, now);
        assert_eq!(state.claims.unclaimed_count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_table_whose_sum_is_unknown_is_read_anew_now_and_then_until_a_replica_gives_it() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        let all = [world.claim(9, 1, false)];
        let mut read = |after| {
            let claims = TablePage { sum: None, ..page(after, &all) };
            heartbeat(&mut state, Roster { claims, ..world.roster(100, &[0, 1]) }, records, now);
            let next = state.claims.begin_beat(None).claims;
            (next.after, next.missing_sum.map(|it| (it.last, it.count, Some(it.sum))))
        };
        let missing = Some((9, 1, page(0, &all).sum));
        assert_eq!(read(0), (9, missing));
        let beats = (0..20).take_while(|_| read(9) == (9, missing)).count();
        assert_eq!(beats, 9);
        assert_eq!(read(0), (9, missing));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_its_own_hides_no_earlier_one_and_a_lost_one_is_noticed() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        heartbeat(&mut state, world.roster(100, &[0, 1, 2]), records, now);
        let own = StoredEntry { number: 7, name: "t".into(), text: records.seal_claim("t", false) };
        state.claims.learn_reply(own.clone(), records, now);
        assert_eq!(after(&mut state), 0, "number 6 is not known yet");
        let all = [world.claim(6, 2, false), own];
        let roster = |claims| Roster { claims, ..world.roster(101, &[0, 1, 2]) };
        heartbeat(&mut state, roster(page(0, &all)), records, now);
        assert_eq!((owner(&state, &world), after(&mut state)), ("m2".to_owned(), 7));
        assert!(state.claims.take_moved());
        // A store that has failed over to a server that lacks one says so by count, number or sum.
        let same = page(7, &all);
        let lacking = [
            TablePage { count: 1, ..same.clone() },
            TablePage { last: 6, ..same.clone() },
            TablePage { sum: Some(1), ..same },
        ];
        for less in lacking {
            heartbeat(&mut state, roster(less), records, now);
            assert_eq!(after(&mut state), 0, "all are read anew");
            heartbeat(&mut state, roster(page(0, &all)), records, now);
            assert_eq!(after(&mut state), 7);
        }
        heartbeat(&mut state, roster(page(0, &[])), records, now);
        assert_eq!((owner(&state, &world), state.claims.take_moved()), ("m1".to_owned(), true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_its_own_that_the_store_lost_before_it_was_read_is_noticed() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        let roster = |claims| Roster { claims, ..world.roster(101, &[0, 1, 2]) };
        heartbeat(&mut state, roster(page(0, &[])), records, now);
        let own = StoredEntry { number: 1, name: "t".into(), text: records.seal_claim("t", false) };
        state.claims.learn_reply(own, records, now);
        // The store has gone back, and has given the number to another claim.
        heartbeat(&mut state, roster(page(0, &[world.claim(1, 2, false)])), records, now);
        assert_eq!(after(&mut state), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_known_at_once_and_is_written_again_if_the_store_loses_it() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        let roster = |ended| Roster { ended, ..world.roster(101, &[0, 1, 2]) };
        let (session, other) = (world.numbered("s", Some(3)), world.numbered("t", Some(4)));
        heartbeat(&mut state, roster(page(0, &[])), records, now);
        assert!(
            !state.has_lost(
                &SessionIdentity { sealed_by: world.instance(0), ..session.clone() },
                now
            )
        );
        let end = stored(1, &session);
        state.claims.learn_ended(block_of(&end), Some(end.clone()));
        assert!(state.claims.take_moved() && state.has_lost(&session, now));
        assert!(matches!(state.owner(&session, now), Owner::Ended));
        assert!(matches!(state.owner(&other, now), Owner::Other(_)), "another session");
        heartbeat(&mut state, roster(page(0, std::slice::from_ref(&end))), records, now);
        assert!(state.claims.lost_ends().is_empty());
        // The store is empty: one heartbeat finds that out, and the next one reads what it has.
        heartbeat(&mut state, roster(page(1, &[])), records, now);
        heartbeat(&mut state, roster(page(0, &[])), records, now);
        assert!(matches!(state.owner(&session, now), Owner::Ended));
        let lost: Vec<_> = state.claims.lost_ends().into_iter().map(|(name, _)| name).collect();
        assert_eq!(lost, [block_of(&end)]);
        state.claims.learn_ended(block_of(&end), Some(end.clone()));
        assert!(state.claims.lost_ends().is_empty());
        // By the clock of the store, the ids have expired.
        state.claims.learn_ended(block_of(&end), None);
        assert!(matches!(state.owner(&session, now), Owner::Other(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn ends_of_other_replicas_in_one_block_are_merged_and_an_expired_block_is_dropped() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        let roster = |ended| Roster { ended, ..world.roster(101, &[0, 1, 2]) };
        let [one, other] = [3, 4].map(|place| world.numbered("s", Some(place)));
        let end = stored(1, &one);
        state.claims.learn_ended(block_of(&end), Some(end));
        let elsewhere = stored(2, &other);
        heartbeat(&mut state, roster(page(0, std::slice::from_ref(&elsewhere))), records, now);
        assert!([&one, &other].iter().all(|it| matches!(state.owner(it, now), Owner::Ended)));
        assert_eq!(state.claims.lost_ends().len(), 1, "the store does not have both");
        let gone = SessionIdentity { until: SystemTime::UNIX_EPOCH, ..one };
        let mut state = FleetState::new(world.instance(0));
        let end = stored(1, &gone);
        state.claims.learn_ended(block_of(&end), Some(end.clone()));
        heartbeat(&mut state, roster(page(0, &[end])), records, now);
        assert!(state.claims.is_ended(gone.number), "as long as the store has it");
        heartbeat(&mut state, roster(page(1, &[])), records, now);
        heartbeat(&mut state, roster(page(0, &[])), records, now);
        assert!(!state.claims.is_ended(gone.number) && state.claims.lost_ends().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_made_while_all_are_read_is_not_lost() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        let earlier = Roster {
            claims: page(0, &[world.claim(1, 2, false)]),
            ..world.roster(100, &[0, 1, 2])
        };
        heartbeat(&mut state, earlier.clone(), records, now);
        state.claims.begin_beat(None);
        state.claims.learn_reply(world.claim(2, 0, false), records, now);
        let text = records.seal_claim("t", false);
        state.claims.learn_reply(StoredEntry { number: 3, name: "t".into(), text }, records, now);
        state.claims.set_own(&world.session("t"));
        // The store has answered before it has got the claims.
        state.update(earlier, records, (now, SystemTime::now()));
        assert_eq!(owner(&state, &world), "ThisReplica");
        assert!(state.claims.claim_of("t").is_some() && state.claims.unclaimed_count() == 0);
        assert_eq!(after(&mut state), 0, "all are read again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_served_without_a_claim_is_served_until_there_is_one() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let mut state = FleetState::new(world.instance(0));
        assert!(state.claims.take_unclaimed(&world.session("s")));
        assert_eq!(
            (owner(&state, &world), state.claims.unclaimed(&state.membership, now).len()),
            ("ThisReplica".to_owned(), 1)
        );
        heartbeat(&mut state, world.roster(100, &[0, 1, 2]), &world.records[0], now);
        state.claims.learn(world.claim(1, 2, false), &world.records[0], now);
        assert_eq!(
            (owner(&state, &world), state.claims.unclaimed(&state.membership, now).len()),
            ("m2".to_owned(), 0)
        );
        // The replica that has sealed its id turns out to live.
        heartbeat(&mut state, world.roster(101, &[0, 1, 2]), &world.records[0], now);
        assert!(state.claims.take_unclaimed(&world.session("s")) && state.claims.take_moved());
        assert_eq!(
            (state.claims.unclaimed(&state.membership, now).len(), state.claims.take_moved()),
            (0, true)
        );
        assert_eq!(owner(&state, &world), "m1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_counts_even_if_its_replica_cannot_be_reached_and_is_made_anew_if_it_is_lost() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        let mut state = FleetState::new(world.instance(0));
        heartbeat(&mut state, world.roster(100, &[0, 1, 2]), records, now);
        state.claims.learn(world.claim(1, 2, false), records, now);
        state.membership.set_unreachable(world.instance(2), now);
        assert_eq!(owner(&state, &world), "Gone");
        let session = world.session("s");
        let own = SessionIdentity { sealed_by: world.instance(0), ..session.clone() };
        assert!(state.has_lost(&own, now));
        state.claims.learn(world.claim(2, 0, false), records, now);
        state.claims.set_own(&session);
        assert!(!state.has_lost(&session, now));
        heartbeat(&mut state, world.roster(101, &[0, 2]), records, now);
        assert_eq!(
            (owner(&state, &world), state.claims.unclaimed(&state.membership, now).len()),
            ("ThisReplica".to_owned(), 1)
        );
    }

    #[test]
    fn what_is_served_without_a_claim_is_bounded() {
        let world = SealedWorld::new();
        let mut state = FleetState::new(world.instance(0));
        let mut take =
            |number: usize| state.claims.take_unclaimed(&world.session(&number.to_string()));
        assert!((0..MAX_UNCLAIMED).all(&mut take) && !take(MAX_UNCLAIMED));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_claim_is_made_anew_only_while_the_id_of_its_session_is_good() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let records = &world.records[0];
        for left in [Duration::from_secs(1), Duration::ZERO] {
            let mut state = FleetState::new(world.instance(0));
            let roster = |claims| Roster { claims, ..world.roster(100, &[0, 1, 2]) };
            let (session, own) = (world.session("s"), world.claim(7, 0, false));
            heartbeat(&mut state, roster(page(0, std::slice::from_ref(&own))), records, now);
            state.claims.set_own(&session);
            for after in [7, 0] {
                let at = (now, session.until - left);
                heartbeat_at(&mut state, roster(page(after, &[])), records, at);
            }
            assert_eq!(state.claims.unclaimed_count(), usize::from(!left.is_zero()), "{left:?}");
        }
    }
}
