//! View of one replica: the members that it knows, and the owners of sessions.
//!
//! The owner of a session is the replica that its claim names; without a claim, the one that has
//! sealed the session's id. Claims are rare, since only the end of a replica causes them, and every
//! replica knows all of them.
//!
//! Invariants: a member whose record is missing counts as ended only if the store has been steady
//! for [`STEADY`], so that a store that is empty or was away ends no member; a claim is replaced by
//! a later one only, except when all claims are read anew. That happens when the store seems to
//! have lost some, and now and then: a store that has gone back to earlier contents may have given
//! the numbers that are known to other claims since.

pub(super) mod addresses;
mod signs;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::PlacedSession;
use super::records::{Claim, MemberRecord, Records};
use super::store::{MAX_CLAIMS, MAX_CLAIMS_AT_ONCE, Roster, StoredClaim};
use crate::sealing::{Instance, KeyId};
use signs::Signs;
pub(super) use signs::TICK;

/// Replica, as the others know it.
#[derive(Debug, Clone)]
pub(crate) struct Replica {
    pub(crate) instance: Instance,
    pub(crate) record: MemberRecord,
    /// Fires when it is no member any more, or silent: what waits for it waits in vain.
    pub(super) gone: CancellationToken,
}

/// Knowledge of one replica about its fleet.
pub(super) struct FleetView {
    /// This replica.
    itself: Instance,
    members: HashMap<Instance, Arc<Replica>>,
    signs: Signs,
    /// Numbers of members whose records do not open with the keys of this replica, by the names of
    /// the keys with which they are sealed.
    unreadable: BTreeMap<String, usize>,
    claims: HashMap<String, KnownClaim>,
    /// Number of the last claim that was read with a heartbeat; 0 if all are to be read anew.
    last_number: u64,
    /// Highest number of a claim that the store is known to have given.
    last_given: u64,
    /// Number of heartbeats that were sent.
    beat: u64,
    /// Heartbeat with which the last reading of all claims began.
    first_beat: u64,
    /// Claims of this reading that do not open with the keys of this replica, or are too many.
    skipped: usize,
    /// True if a session may have got another owner.
    has_moved: bool,
    /// Sessions that this replica serves without a claim, because the store could not decide.
    unclaimed: HashMap<String, UnclaimedSession>,
    steady: Duration,
    replied_at: Option<Instant>,
}

/// Session that is served without a claim.
#[derive(Debug, Clone)]
struct UnclaimedSession {
    sealed_by: Instance,
    /// Time at which its id expires.
    until: SystemTime,
}

struct KnownClaim {
    number: u64,
    claim: Claim,
    text: String,
    since: Instant,
    /// Heartbeat that was sent last when the claim was read last, or made. One that was made while
    /// the heartbeat was under way may be missing in its reply.
    beat: u64,
    /// Facts of the session, if this replica has ever made a claim of it.
    own: Option<UnclaimedSession>,
}

/// Owner of a session, as far as a replica knows it.
#[derive(Debug, Clone)]
pub(super) enum Owner {
    /// This replica.
    Itself,
    /// Another one, which can be reached.
    Member(Arc<Replica>),
    /// None: the replica has ended, cannot be reached, or is about to stop.
    Gone,
    /// A replica without a record in a store that is not steady: it may have ended.
    Unknown,
    /// None: the session has ended.
    Ended,
}

impl FleetView {
    pub(super) fn new(itself: Instance) -> Self {
        Self {
            itself,
            members: HashMap::new(),
            signs: Signs::default(),
            unreadable: BTreeMap::new(),
            claims: HashMap::new(),
            last_number: 0,
            last_given: 0,
            beat: 0,
            first_beat: 0,
            skipped: 0,
            has_moved: false,
            unclaimed: HashMap::new(),
            steady: Duration::ZERO,
            replied_at: None,
        }
    }

    /// Returns the number of the last claim that was read with a heartbeat, for one that is sent
    /// now. Claims of this replica do not count: there may be others before them.
    pub(super) fn begin_beat(&mut self) -> u64 {
        self.beat += 1;
        self.last_number
    }

    /// Takes over what the store has returned for the heartbeat that was sent last.
    pub(super) fn update(&mut self, roster: Roster, records: &Records, now: Instant) {
        // The store was empty or away, and may number its claims anew.
        let was_away = roster.steady < self.steady;
        self.steady = roster.steady;
        self.replied_at = Some(now);
        let mut members = HashMap::new();
        self.unreadable.clear();
        for (name, text) in &roster.members {
            match records.open_member(name, text) {
                Some((instance, record)) => {
                    self.signs.read(instance, text);
                    let known = self.members.remove(&instance);
                    let gone = known.map(|known| known.gone.clone()).unwrap_or_default();
                    members.insert(instance, Arc::new(Replica { instance, record, gone }));
                }
                None => {
                    let key = KeyId::of_sealed(text);
                    let key = key.map_or_else(|| "unknown".to_owned(), |key| key.to_string());
                    *self.unreadable.entry(key).or_default() += 1;
                }
            }
        }
        if !self.is_steady() {
            // Those that are missing may not have come back to the store yet.
            for (instance, member) in self.members.drain() {
                members.entry(instance).or_insert(member);
            }
        }
        self.members.values().for_each(|member| member.gone.cancel());
        self.members = members;
        self.signs.retain(|instance| self.members.contains_key(instance));
        self.update_claims(roster, records, now);
        if was_away {
            self.last_number = 0;
        }
    }

    fn update_claims(&mut self, roster: Roster, records: &Records, now: Instant) {
        if roster.after == 0 {
            self.first_beat = self.beat;
            self.skipped = 0;
        }
        let is_last = roster.claims.len() < MAX_CLAIMS_AT_ONCE;
        self.last_number = roster.after;
        for claim in roster.claims {
            self.last_number = self.last_number.max(claim.number);
            self.learn(claim, records, now);
        }
        if is_last {
            self.forget_lost();
            let has_gone_back = roster.last_claim < self.last_given;
            let differs = self.claims.len() + self.skipped != roster.claim_count;
            if has_gone_back || differs || self.beat - self.first_beat >= MAX_BEATS {
                // Some may have expired, or be lost.
                self.last_number = 0;
            }
            self.last_given = roster.last_claim;
        }
    }

    /// Forgets the claims that were not read again. Those of this replica it makes anew.
    fn forget_lost(&mut self) {
        let first = self.first_beat;
        let lost: Vec<_> = self.claims.extract_if(|_, claim| claim.beat < first).collect();
        self.has_moved |= !lost.is_empty();
        for (session, claim) in lost {
            if let Some(UnclaimedSession { sealed_by, until }) = claim.own
                && claim.claim == Claim::Owner(self.itself)
                && until > SystemTime::now()
            {
                self.take_unclaimed(&session, sealed_by, until);
            }
        }
    }

    /// Returns whether a session may have got another owner since the last time.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Forgets a claim that the store does not have any more.
    pub(super) fn forget_claim(&mut self, session: &str) {
        self.has_moved |= self.claims.remove(session).is_some();
    }

    /// Takes over one claim.
    pub(super) fn learn(&mut self, claim: StoredClaim, records: &Records, now: Instant) {
        let StoredClaim { number, session, text } = claim;
        self.last_given = self.last_given.max(number);
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
        let Some(claim) = claim else {
            self.skipped += 1;
            return;
        };
        let is_own = claim == Claim::Owner(self.itself);
        let own = self.unclaimed.remove(&session).filter(|_| is_own);
        let own = own.or_else(|| known.and_then(|known| known.own.clone()));
        let beat = self.beat;
        self.claims.insert(session, KnownClaim { number, claim, text, since: now, beat, own });
        self.has_moved |= !is_own;
    }

    /// Records the facts of a session, if this replica has claimed it.
    pub(super) fn set_own(&mut self, session: &str, sealed_by: Instance, until: SystemTime) {
        let claim = Claim::Owner(self.itself);
        if let Some(known) = self.claims.get_mut(session).filter(|known| known.claim == claim) {
            known.own = Some(UnclaimedSession { sealed_by, until });
        }
    }

    /// Returns the owner of a session whose id this process has sealed.
    pub(super) fn owner(&self, session: &str, sealed_by: Instance, now: Instant) -> Owner {
        match self.unclaimed.contains_key(session) {
            true => Owner::Itself,
            false => self.claimed_owner(session, sealed_by, now),
        }
    }

    fn claimed_owner(&self, session: &str, sealed_by: Instance, now: Instant) -> Owner {
        match self.claims.get(session).map(|known| known.claim) {
            Some(Claim::Ended) => Owner::Ended,
            Some(Claim::Owner(instance)) => self.owned_by(instance, now),
            None => self.owned_by(sealed_by, now),
        }
    }

    /// Returns whether a session that this replica serves is that of another one, or has ended. A
    /// claim counts even if its replica cannot be reached: others may reach it.
    pub(super) fn has_lost(&self, session: &str, sealed_by: Instance, now: Instant) -> bool {
        let is_unclaimed = self.unclaimed.contains_key(session);
        match self.claims.get(session).filter(|_| !is_unclaimed).map(|known| known.claim) {
            Some(claim) => claim != Claim::Owner(self.itself),
            None => matches!(self.owner(session, sealed_by, now), Owner::Member(_)),
        }
    }

    fn owned_by(&self, instance: Instance, now: Instant) -> Owner {
        if instance == self.itself {
            return Owner::Itself;
        }
        match self.reachable(instance, now) {
            Some(member) if !member.record.draining => Owner::Member(member),
            None if !self.is_steady() && !self.members.contains_key(&instance) => Owner::Unknown,
            _ => Owner::Gone,
        }
    }

    /// Returns a member that can be reached, also one that is about to stop.
    pub(super) fn reachable(&self, instance: Instance, now: Instant) -> Option<Arc<Replica>> {
        let is_reachable = !self.signs.is_unreachable(instance, now);
        self.members.get(&instance).filter(|_| is_reachable).map(Arc::clone)
    }

    /// Returns whether there is such a member, which may not be reachable.
    pub(super) fn has_member(&self, instance: Instance) -> bool {
        self.members.contains_key(&instance)
    }

    /// Records that a member cannot be reached. For some time its sessions count as without an
    /// owner.
    pub(super) fn set_unreachable(&mut self, instance: Instance, now: Instant) {
        if self.has_member(instance) {
            self.signs.set_unreachable(instance, now);
        }
    }

    /// Returns the text of the known claim of a session, and the time since when it is known.
    pub(super) fn claim_of(&self, session: &str) -> Option<(&str, Instant)> {
        self.claims.get(session).map(|known| (&*known.text, known.since))
    }

    /// Returns whether a missing record says that its member has ended.
    pub(super) fn is_steady(&self) -> bool {
        self.steady >= STEADY
    }

    /// Serves a session without a claim; false if there are too many of these.
    pub(super) fn take_unclaimed(
        &mut self,
        session: &str,
        sealed_by: Instance,
        until: SystemTime,
    ) -> bool {
        let has_space = self.unclaimed.len() < MAX_UNCLAIMED;
        if has_space {
            self.unclaimed.insert(session.to_owned(), UnclaimedSession { sealed_by, until });
        }
        has_space
    }

    /// Returns sessions that this replica serves without a claim, and now has to claim, at most
    /// [`MAX_CLAIMED_PER_BEAT`]. Those that turn out to have another owner it gives up.
    pub(super) fn unclaimed(&mut self, now: Instant) -> Vec<PlacedSession> {
        let all = std::mem::take(&mut self.unclaimed);
        let (kept, given_up): (HashMap<_, _>, HashMap<_, _>) =
            all.into_iter().partition(|(session, facts)| {
                let owner = self.claimed_owner(session, facts.sealed_by, now);
                !matches!(owner, Owner::Member(_) | Owner::Ended)
            });
        self.has_moved |= !given_up.is_empty();
        self.unclaimed = kept;
        let placed = self.unclaimed.iter().map(|(session, facts)| PlacedSession {
            key: session.clone(),
            sealed_by: facts.sealed_by,
            until: facts.until,
        });
        placed.take(MAX_CLAIMED_PER_BEAT).collect()
    }

    /// Ends the service without a claim: the claim decides from now on.
    pub(super) fn drop_unclaimed(&mut self, session: &str) {
        self.unclaimed.remove(session);
    }

    /// Returns the number of sessions that this replica serves without a claim.
    #[cfg(test)]
    pub(super) fn unclaimed_count(&self) -> usize {
        self.unclaimed.len()
    }

    /// Returns the members, this one included.
    pub(super) fn members(&self) -> impl ExactSizeIterator<Item = &Arc<Replica>> {
        self.members.values()
    }

    /// Returns a hash of the lists of the other members.
    pub(super) fn lists_elsewhere(&self) -> u64 {
        let others = self.members.iter().filter(|(instance, _)| **instance != self.itself);
        // Their order is that of a hash table, so it must not count.
        others.fold(0, |sum: u64, (instance, member)| {
            let mut hasher = DefaultHasher::new();
            (instance, &member.record.lists).hash(&mut hasher);
            sum.wrapping_add(hasher.finish())
        })
    }

    /// Returns the time of the last reply of the store.
    pub(super) fn replied_at(&self) -> Option<Instant> {
        self.replied_at
    }

    /// Returns whether there are other members and none can be read: this replica has another key.
    pub(super) fn has_foreign_key(&self) -> bool {
        !self.unreadable.is_empty() && self.members.keys().all(|instance| *instance == self.itself)
    }

    /// Returns the numbers of members whose records do not open with the keys of this replica, by
    /// the names of the keys with which they are sealed.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = (&str, usize)> {
        self.unreadable.iter().map(|(key, count)| (&**key, *count))
    }
}

/// Time for which the store must have been steady before a missing record says that its member has
/// ended: every living member has written its record several times by then.
pub(super) const STEADY: Duration = Duration::from_secs(10);
/// Most heartbeats between two readings of all claims.
const MAX_BEATS: u64 = 10;
/// Most sessions that are served without a claim.
const MAX_UNCLAIMED: usize = 10_000;
/// Most sessions that are claimed between two records of this replica. A slow store takes a second
/// for them, and its records must follow each other within [`super::store::MAX_GAP`].
pub(super) const MAX_CLAIMED_PER_BEAT: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::store::MEMBER_TTL;
    use crate::sealing::SealingKeys;

    pub(super) struct World {
        keys: Vec<SealingKeys>,
        pub(super) records: Vec<Records>,
    }

    impl World {
        pub(super) fn new() -> Self {
            let first = SealingKeys::random();
            let keys = vec![first.clone(), first.of_another_process(), first.of_another_process()];
            Self { records: keys.iter().map(Records::new).collect(), keys }
        }

        pub(super) fn instance(&self, at: usize) -> Instance {
            self.keys[at].instance()
        }

        fn member(&self, at: usize, draining: bool) -> (String, String) {
            let record = MemberRecord {
                name: format!("m{at}"),
                address: "127.0.0.1:1".into(),
                version: String::new(),
                keys: Vec::new(),
                configuration: String::new(),
                draining,
                sessions: 0,
                running: Default::default(),
                lists: None,
                has_settled: false,
                started: 0,
            };
            let name = self.instance(at).to_string();
            let text = self.records[at].seal_member(&name, &record);
            (name, text)
        }

        pub(super) fn roster(&self, steady: u64, members: &[usize]) -> Roster {
            let members = members.iter().map(|at| self.member(*at, false)).collect();
            Roster { steady: Duration::from_secs(steady), members, ..Roster::default() }
        }

        fn claim(&self, number: u64, by: usize, is_ended: bool) -> StoredClaim {
            let text = self.records[by].seal_claim("s", is_ended);
            StoredClaim { number, session: "s".into(), text }
        }
    }

    pub(super) fn heartbeat(view: &mut FleetView, roster: Roster, records: &Records, now: Instant) {
        view.begin_beat();
        view.update(roster, records, now);
    }

    /// Name of the owner of a session that member 1 has sealed.
    fn owner(view: &FleetView, world: &World) -> String {
        match view.owner("s", world.instance(1), Instant::now()) {
            Owner::Member(member) => member.record.name.clone(),
            other => format!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_record_ends_a_member_only_if_the_store_has_been_steady() {
        let (world, now) = (World::new(), Instant::now());
        let mut view = FleetView::new(world.instance(0));
        let records = &world.records[0];
        assert_eq!(owner(&view, &world), "Unknown", "never seen");
        heartbeat(&mut view, world.roster(100, &[0, 1]), records, now);
        assert_eq!(owner(&view, &world), "m1");
        for (steady, expected) in [(0, "m1"), (9, "m1"), (10, "Gone")] {
            heartbeat(&mut view, world.roster(steady, &[0]), records, now);
            assert_eq!(owner(&view, &world), expected, "steady for {steady} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_refuses_or_stops_is_no_owner() {
        let (world, now) = (World::new(), Instant::now());
        let mut view = FleetView::new(world.instance(0));
        heartbeat(&mut view, world.roster(100, &[0, 1]), &world.records[0], now);
        view.set_unreachable(world.instance(1), now);
        assert_eq!(owner(&view, &world), "Gone");
        tokio::time::advance(MEMBER_TTL).await;
        assert_eq!(owner(&view, &world), "m1", "it is tried again");
        let mut roster = world.roster(100, &[0]);
        roster.members.push(world.member(1, true));
        heartbeat(&mut view, roster, &world.records[0], now);
        assert_eq!(owner(&view, &world), "Gone");
        let reached = view.reachable(world.instance(1), Instant::now());
        assert!(reached.is_some(), "its calls can be reached");
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_claim_decides_and_a_forged_one_counts_for_nothing() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        heartbeat(&mut view, world.roster(100, &[0, 1, 2]), records, now);
        view.learn(world.claim(5, 2, false), records, now);
        assert!(view.take_moved() && !view.take_moved());
        assert_eq!(owner(&view, &world), "m2");
        view.learn(world.claim(4, 1, false), records, now);
        assert_eq!(owner(&view, &world), "m2", "the other is an old one");
        let forged = StoredClaim { number: 9, session: "s".into(), text: "x".into() };
        view.learn(forged, records, now);
        assert_eq!(owner(&view, &world), "m2");
        view.learn(world.claim(10, 0, false), records, now);
        assert_eq!(owner(&view, &world), "Itself");
        assert!(!view.take_moved(), "no other replica has claimed it");
        view.learn(world.claim(11, 1, true), records, now);
        assert_eq!((owner(&view, &world), view.take_moved()), ("Ended".to_owned(), true));
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_a_store_that_was_empty_are_read_anew() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let roster = |steady, number, by| Roster {
            claims: vec![world.claim(number, by, false)],
            claim_count: 1,
            last_claim: number,
            ..world.roster(steady, &[0, 1, 2])
        };
        heartbeat(&mut view, roster(100, 50, 1), records, now);
        assert_eq!((owner(&view, &world), view.last_number), ("m1".to_owned(), 50));
        heartbeat(&mut view, world.roster(0, &[0, 1, 2]), records, now);
        assert_eq!(view.last_number, 0, "from the first one on");
        heartbeat(&mut view, roster(1, 1, 2), records, now);
        assert_eq!((owner(&view, &world), view.last_number), ("m2".to_owned(), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn all_claims_are_read_anew_now_and_then_and_one_of_its_own_that_came_back_is_kept() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let roster = |after, claim: &StoredClaim| Roster {
            after,
            claims: if after == 0 { vec![claim.clone()] } else { Vec::new() },
            claim_count: 1,
            last_claim: 9,
            ..world.roster(100, &[0, 1, 2])
        };
        let (own, other) = (world.claim(7, 0, false), world.claim(9, 1, false));
        view.learn(own.clone(), records, now);
        view.set_own("s", world.instance(2), SystemTime::now() + STEADY);
        heartbeat(&mut view, roster(0, &other), records, now);
        assert_eq!((owner(&view, &world), view.last_number), ("m1".to_owned(), 9));
        // The store goes back to the claim of this replica, and numbers and counts are the same.
        let mut beats = 0;
        while view.last_number != 0 {
            heartbeat(&mut view, roster(9, &own), records, now);
            beats += 1;
        }
        assert_eq!(beats, MAX_BEATS);
        heartbeat(&mut view, roster(0, &own), records, now);
        assert_eq!(owner(&view, &world), "Itself");
        // It loses that one, too: it is made anew.
        heartbeat(&mut view, world.roster(100, &[0, 1, 2]), records, now);
        assert_eq!(view.unclaimed_count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_its_own_hides_no_earlier_one_and_a_lost_one_is_noticed() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        heartbeat(&mut view, world.roster(100, &[0, 1, 2]), records, now);
        let own =
            StoredClaim { number: 7, session: "t".into(), text: records.seal_claim("t", false) };
        view.learn(own.clone(), records, now);
        assert_eq!(view.last_number, 0, "number 6 is not known yet");
        let claims = vec![world.claim(6, 2, false), own];
        let roster =
            Roster { claims, claim_count: 2, last_claim: 7, ..world.roster(101, &[0, 1, 2]) };
        heartbeat(&mut view, roster, records, now);
        assert_eq!((owner(&view, &world), view.last_number), ("m2".to_owned(), 7));
        // A store that has failed over to a server that lacks one says so by their number.
        assert!(view.take_moved());
        for (claim_count, last_claim) in [(1, 7), (2, 6)] {
            view.last_number = 7;
            let less =
                Roster { after: 7, claim_count, last_claim, ..world.roster(102, &[0, 1, 2]) };
            heartbeat(&mut view, less, records, now);
            assert_eq!(view.last_number, 0, "all are read anew");
        }
        heartbeat(
            &mut view,
            Roster { claim_count: 0, ..world.roster(103, &[0, 1, 2]) },
            records,
            now,
        );
        assert_eq!((owner(&view, &world), view.take_moved()), ("m1".to_owned(), true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_made_while_all_are_read_is_not_lost() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let earlier = Roster {
            claims: vec![world.claim(1, 2, false)],
            claim_count: 1,
            last_claim: 1,
            ..world.roster(100, &[0, 1, 2])
        };
        heartbeat(&mut view, earlier.clone(), records, now);
        view.begin_beat();
        view.learn(world.claim(2, 0, false), records, now);
        let made = records.seal_claim("t", false);
        view.learn(StoredClaim { number: 3, session: "t".into(), text: made }, records, now);
        view.set_own("t", world.instance(1), SystemTime::now() + STEADY);
        // The store has answered before it has got the claims.
        view.update(earlier, records, now);
        assert_eq!(owner(&view, &world), "Itself");
        assert!(view.claim_of("t").is_some() && view.unclaimed_count() == 0);
        assert_eq!(view.last_number, 0, "all are read again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_served_without_a_claim_is_served_until_there_is_one() {
        let (world, now) = (World::new(), Instant::now());
        let mut view = FleetView::new(world.instance(0));
        let until = SystemTime::now() + Duration::from_secs(9);
        assert!(view.take_unclaimed("s", world.instance(1), until));
        assert_eq!((owner(&view, &world), view.unclaimed(now).len()), ("Itself".to_owned(), 1));
        heartbeat(&mut view, world.roster(100, &[0, 1, 2]), &world.records[0], now);
        view.learn(world.claim(1, 2, false), &world.records[0], now);
        assert_eq!((owner(&view, &world), view.unclaimed(now).len()), ("m2".to_owned(), 0));
        // The replica that has sealed its id turns out to live.
        heartbeat(&mut view, world.roster(101, &[0, 1, 2]), &world.records[0], now);
        assert!(view.take_unclaimed("s", world.instance(1), until) && view.take_moved());
        assert_eq!((view.unclaimed(now).len(), view.take_moved()), (0, true));
        assert_eq!(owner(&view, &world), "m1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_counts_even_if_its_replica_cannot_be_reached_and_is_made_anew_if_it_is_lost() {
        let (world, now) = (World::new(), Instant::now());
        let (records, until) = (&world.records[0], SystemTime::now() + Duration::from_secs(9));
        let mut view = FleetView::new(world.instance(0));
        heartbeat(&mut view, world.roster(100, &[0, 1, 2]), records, now);
        view.learn(world.claim(1, 2, false), records, now);
        view.set_unreachable(world.instance(2), now);
        assert_eq!(owner(&view, &world), "Gone");
        assert!(view.has_lost("s", world.instance(0), now));
        view.learn(world.claim(2, 0, false), records, now);
        view.set_own("s", world.instance(1), until);
        assert!(!view.has_lost("s", world.instance(1), now));
        heartbeat(&mut view, world.roster(101, &[0, 2]), records, now);
        assert_eq!((owner(&view, &world), view.unclaimed(now).len()), ("Itself".to_owned(), 1));
    }

    #[test]
    fn what_is_served_without_a_claim_is_bounded() {
        let world = World::new();
        let mut view = FleetView::new(world.instance(0));
        let mut take = |number: usize| {
            view.take_unclaimed(&number.to_string(), world.instance(1), SystemTime::UNIX_EPOCH)
        };
        assert!((0..MAX_UNCLAIMED).all(&mut take) && !take(MAX_UNCLAIMED));
    }

    #[tokio::test(start_paused = true)]
    async fn records_under_another_key_are_counted() {
        let (world, other) = (World::new(), World::new());
        let mut view = FleetView::new(world.instance(0));
        let mut roster = world.roster(100, &[0]);
        roster.members.push(other.member(1, false));
        heartbeat(&mut view, roster.clone(), &world.records[0], Instant::now());
        assert!(view.has_foreign_key() && view.unreadable().count() == 1);
        roster.members.push(world.member(2, false));
        heartbeat(&mut view, roster, &world.records[0], Instant::now());
        assert!(!view.has_foreign_key(), "another member has the same key");
    }
}
