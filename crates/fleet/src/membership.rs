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

use crate::PlacedSession;
use crate::claim_table::table_reading::{PageEnd, TableReading};
use crate::records::{Claim, MemberRecord, Records};
use crate::store::{Heartbeat, MAX_CLAIMS, Roster, StoredEntry, TablePage};
use signs::Signs;
pub(super) use signs::TICK;
use weir_base::ended_sessions::{BlockName, EndedBlock, EndedSessions, SessionNumber};
use weir_base::secrets::sealing::{Instance, KeyId};

/// Replica, as the others know it.
#[derive(Debug, Clone)]
pub struct Replica {
    /// Number of its process.
    pub instance: Instance,
    /// Record that it keeps in the store.
    pub record: MemberRecord,
    /// Fires when it is no member any more, or silent: what waits for it waits in vain.
    pub(super) gone: CancellationToken,
}

/// Lists of the other replicas, as they show them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListsElsewhere {
    /// Hash of them; it changes within two heartbeats after one of them.
    pub digest: u64,
    /// True if all of them are those of this replica.
    pub are_same: bool,
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
    claims_read: TableReading,
    ended: EndedSessions,
    ended_read: TableReading,
    /// Blocks of ended sessions that the store has lost.
    lost_ends: Vec<BlockName>,
    /// Number of heartbeats that were sent.
    beat: u64,
    /// Heartbeat with which the last reading of all claims began.
    first_beat: u64,
    /// True if a session may have got another owner.
    has_moved: bool,
    /// Sessions that this replica serves without a claim, because the store could not decide.
    unclaimed: HashMap<String, PlacedSession>,
    steady: Duration,
    replied_at: Option<Instant>,
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
    own: Option<PlacedSession>,
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
            claims_read: TableReading::default(),
            ended: EndedSessions::default(),
            ended_read: TableReading::default(),
            lost_ends: Vec::new(),
            beat: 0,
            first_beat: 0,
            has_moved: false,
            unclaimed: HashMap::new(),
            steady: Duration::ZERO,
            replied_at: None,
        }
    }

    /// Returns a heartbeat that is sent now, and asks for what has changed since the last one.
    /// Claims of this replica do not count as read: there may be others before them.
    pub(super) fn begin_beat(&mut self, member: Option<(String, String)>) -> Heartbeat {
        self.beat += 1;
        let (claims, ended) = (self.claims_read.request(), self.ended_read.request());
        Heartbeat { member, claims, ended }
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
        self.update_claims(roster.claims, records, now);
        self.update_ended(roster.ended);
        if was_away {
            self.claims_read.begin_anew();
            self.ended_read.begin_anew();
        }
    }

    fn update_claims(&mut self, page: TablePage, records: &Records, now: Instant) {
        if page.after == 0 {
            self.first_beat = self.beat;
        }
        let end = self.claims_read.take(&page);
        for claim in page.entries {
            self.learn(claim, records, now);
        }
        if end == PageEnd::All(true) {
            self.forget_lost();
        }
    }

    fn update_ended(&mut self, page: TablePage) {
        let end = self.ended_read.take(&page);
        for StoredEntry { name, text, .. } in page.entries {
            if let Some((name, block)) = BlockName::parse(&name).zip(EndedBlock::parse(&text)) {
                self.has_moved |= self.ended.merge(name, &block);
            }
        }
        if end == PageEnd::All(true) {
            let read = &self.ended_read;
            let now = SystemTime::now();
            let is_kept = |name: BlockName, block: &EndedBlock| {
                !block.has_expired(now) || read.has_any(&name.to_string())
            };
            self.ended.retain(is_kept);
            let is_lost = |(name, block): &(BlockName, &EndedBlock)| {
                !read.has(&name.to_string(), &block.to_string())
            };
            self.lost_ends = self.ended.blocks().filter(is_lost).map(|(name, _)| name).collect();
        }
    }

    /// Takes over a block of ended sessions that this replica has written, as the store has it now;
    /// `None` if it has expired there.
    pub(super) fn learn_ended(&mut self, name: BlockName, stored: Option<StoredEntry>) {
        self.lost_ends.retain(|lost| *lost != name);
        let block = stored.as_ref().and_then(|stored| EndedBlock::parse(&stored.text));
        match block.zip(stored) {
            Some((block, stored)) => {
                self.ended_read.expect(stored.number, &stored.name, &stored.text);
                self.has_moved |= self.ended.merge(name, &block);
            }
            None => self.ended.remove(name),
        }
    }

    /// Returns whether the client of a session has ended it.
    pub(super) fn is_ended(&self, number: Option<SessionNumber>) -> bool {
        number.is_some_and(|number| self.ended.contains(number))
    }

    /// Returns blocks of ended sessions that the store has lost, at most [`MAX_CLAIMED_PER_BEAT`].
    pub(super) fn lost_ends(&self) -> Vec<(BlockName, EndedBlock)> {
        let lost = self.lost_ends.iter().take(MAX_CLAIMED_PER_BEAT);
        lost.filter_map(|name| Some((*name, self.ended.get(*name)?.clone()))).collect()
    }

    /// Forgets the claims that were not read again. Those of this replica it makes anew.
    fn forget_lost(&mut self) {
        let first = self.first_beat;
        let lost: Vec<_> = self.claims.extract_if(|_, claim| claim.beat < first).collect();
        self.has_moved |= !lost.is_empty();
        for (_, claim) in lost {
            if let Some(own) = claim.own
                && claim.claim == Claim::Owner(self.itself)
                && own.until > SystemTime::now()
            {
                self.take_unclaimed(&own);
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
    pub(super) fn learn(&mut self, claim: StoredEntry, records: &Records, now: Instant) {
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
    pub(super) fn learn_reply(&mut self, claim: StoredEntry, records: &Records, now: Instant) {
        self.claims_read.expect(claim.number, &claim.name, &claim.text);
        self.learn(claim, records, now);
    }

    /// Records the facts of a session, if this replica has claimed it.
    pub(super) fn set_own(&mut self, session: &PlacedSession) {
        let claim = Claim::Owner(self.itself);
        if let Some(known) = self.claims.get_mut(&session.key).filter(|it| it.claim == claim) {
            known.own = Some(session.clone());
        }
    }

    /// Returns the owner of a session.
    pub(super) fn owner(&self, session: &PlacedSession, now: Instant) -> Owner {
        match self.unclaimed.contains_key(&session.key) && !self.is_ended(session.number) {
            true => Owner::Itself,
            false => self.claimed_owner(session, now),
        }
    }

    fn claimed_owner(&self, session: &PlacedSession, now: Instant) -> Owner {
        if self.is_ended(session.number) {
            return Owner::Ended;
        }
        match self.claims.get(&session.key).map(|known| known.claim) {
            Some(Claim::Ended) => Owner::Ended,
            Some(Claim::Owner(instance)) => self.owned_by(instance, now),
            None => self.owned_by(session.sealed_by, now),
        }
    }

    /// Returns whether a session that this replica serves is that of another one, or has ended. A
    /// claim counts even if its replica cannot be reached: others may reach it.
    pub(super) fn has_lost(&self, session: &PlacedSession, now: Instant) -> bool {
        let is_unclaimed = self.unclaimed.contains_key(&session.key);
        match self.claims.get(&session.key).filter(|_| !is_unclaimed).map(|known| known.claim) {
            _ if self.is_ended(session.number) => true,
            Some(claim) => claim != Claim::Owner(self.itself),
            None => matches!(self.owner(session, now), Owner::Member(_)),
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

    /// Returns whether another replica has claimed a session last.
    pub(super) fn is_claimed_elsewhere(&self, session: &str) -> bool {
        let known = self.claims.get(session);
        known
            .is_some_and(|known| matches!(known.claim, Claim::Owner(owner) if owner != self.itself))
    }

    /// Returns whether a missing record says that its member has ended.
    pub(super) fn is_steady(&self) -> bool {
        self.steady >= STEADY
    }

    /// Serves a session without a claim; false if there are too many of these.
    pub(super) fn take_unclaimed(&mut self, session: &PlacedSession) -> bool {
        let has_space = self.unclaimed.len() < MAX_UNCLAIMED;
        if has_space {
            self.unclaimed.insert(session.key.clone(), session.clone());
        }
        has_space
    }

    /// Returns sessions that this replica serves without a claim, and now has to claim, at most
    /// [`MAX_CLAIMED_PER_BEAT`]. Those that turn out to have another owner it gives up.
    pub(super) fn unclaimed(&mut self, now: Instant) -> Vec<PlacedSession> {
        let all = std::mem::take(&mut self.unclaimed);
        let (kept, given_up): (HashMap<_, _>, HashMap<_, _>) =
            all.into_iter().partition(|(_, session)| {
                let owner = self.claimed_owner(session, now);
                !matches!(owner, Owner::Member(_) | Owner::Ended)
            });
        self.has_moved |= !given_up.is_empty();
        self.unclaimed = kept;
        self.unclaimed.values().take(MAX_CLAIMED_PER_BEAT).cloned().collect()
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

    /// Removes the members that a successor has replaced, and returns them.
    pub(super) fn take_replaced(&mut self) -> Vec<Arc<Replica>> {
        let replaced = addresses::replaced(self);
        replaced.iter().for_each(|it| _ = self.members.remove(&it.instance));
        replaced
    }

    /// Returns whether all members read ids of sessions with numbers.
    pub(super) fn all_read_numbers(&self) -> bool {
        self.replied_at.is_some() && self.members.values().all(|it| it.record.reads_numbers)
    }

    /// Returns the lists of the other members; `own` is the hash of those of this replica.
    pub(super) fn lists_elsewhere(&self, own: u64) -> ListsElsewhere {
        let others = || self.members.iter().filter(|(instance, _)| **instance != self.itself);
        // Their order is that of a hash table, so it must not count.
        let digest = others().fold(0, |sum: u64, (instance, member)| {
            let mut hasher = DefaultHasher::new();
            (instance, &member.record.lists).hash(&mut hasher);
            sum.wrapping_add(hasher.finish())
        });
        let own = Some(shown_lists(own));
        ListsElsewhere { digest, are_same: others().all(|(_, member)| member.record.lists == own) }
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

/// Returns the hash of the lists of a replica as its record shows it.
pub(super) fn shown_lists(lists: u64) -> String {
    format!("{lists:016x}")
}

/// Time for which the store must have been steady before a missing record says that its member has
/// ended: every living member has written its record several times by then.
pub(super) const STEADY: Duration = Duration::from_secs(10);
/// Most sessions that are served without a claim.
const MAX_UNCLAIMED: usize = 10_000;
/// Most sessions that are claimed between two records of this replica. A slow store takes a second
/// for them, and its records must follow each other within [`crate::store::MAX_GAP`].
pub(super) const MAX_CLAIMED_PER_BEAT: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim_table::table_reading::{MODULUS, weight};
    use crate::store::MEMBER_TTL;
    use weir_base::secrets::sealing::SealingKeys;

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
            let record =
                MemberRecord { draining, ..MemberRecord::of(&format!("m{at}"), "127.0.0.1:1") };
            let name = self.instance(at).to_string();
            let text = self.records[at].seal_member(&name, &record);
            (name, text)
        }

        pub(super) fn roster(&self, steady: u64, members: &[usize]) -> Roster {
            let members = members.iter().map(|at| self.member(*at, false)).collect();
            Roster { steady: Duration::from_secs(steady), members, ..Roster::default() }
        }

        fn claim(&self, number: u64, by: usize, is_ended: bool) -> StoredEntry {
            let text = self.records[by].seal_claim("s", is_ended);
            StoredEntry { number, name: "s".into(), text }
        }

        /// A session that member 1 has opened.
        fn session(&self, key: &str) -> PlacedSession {
            self.numbered(key, None)
        }

        fn numbered(&self, key: &str, place: Option<u64>) -> PlacedSession {
            let opened_by = self.instance(1);
            let number = place.map(|place| SessionNumber { opened_by, place });
            let until = SystemTime::now() + Duration::from_secs(9);
            PlacedSession { key: key.into(), number, sealed_by: opened_by, until }
        }
    }

    /// Page of a table with these entries, from those after a number on.
    fn page(after: u64, all: &[StoredEntry]) -> TablePage {
        let weights = all.iter().map(|it| weight(&it.name, &it.text));
        TablePage {
            after,
            entries: all.iter().filter(|it| it.number > after).cloned().collect(),
            count: all.len(),
            last: all.iter().map(|it| it.number).max().unwrap_or_default(),
            sum: Some(weights.fold(0, |sum, weight| (sum + weight) % MODULUS)),
        }
    }

    fn stored(number: u64, session: &PlacedSession) -> StoredEntry {
        let (name, block) = session.number.expect("a number").ended(session.until);
        StoredEntry { number, name: name.to_string(), text: block.to_string() }
    }

    fn block_of(entry: &StoredEntry) -> BlockName {
        BlockName::parse(&entry.name).expect("a name")
    }

    pub(super) fn heartbeat(view: &mut FleetView, roster: Roster, records: &Records, now: Instant) {
        view.begin_beat(None);
        view.update(roster, records, now);
    }

    /// Number after which claims are read with the next heartbeat.
    fn after(view: &mut FleetView) -> u64 {
        view.begin_beat(None).claims.after
    }

    /// Name of the owner of a session that member 1 has sealed.
    fn owner(view: &FleetView, world: &World) -> String {
        match view.owner(&world.session("s"), Instant::now()) {
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
    async fn ids_have_numbers_once_all_replicas_read_them() {
        let (world, now) = (World::new(), Instant::now());
        let (mut view, records) = (FleetView::new(world.instance(0)), &world.records[0]);
        assert!(!view.all_read_numbers(), "it knows no other replica yet");
        let mut roster = world.roster(100, &[0, 1]);
        let (name, text) = world.member(2, false);
        let (_, record) = records.open_member(&name, &text).expect("a member");
        let earlier = MemberRecord { reads_numbers: false, ..record };
        roster.members.push((name.clone(), world.records[2].seal_member(&name, &earlier)));
        heartbeat(&mut view, roster, records, now);
        assert!(!view.all_read_numbers());
        heartbeat(&mut view, world.roster(100, &[0, 1]), records, now);
        assert!(view.all_read_numbers());
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
    async fn what_a_replica_has_recorded_of_a_session_is_dropped_unless_another_one_has_claimed_it()
    {
        let (world, now) = (World::new(), Instant::now());
        let (mut view, records) = (FleetView::new(world.instance(0)), &world.records[0]);
        heartbeat(&mut view, world.roster(100, &[0, 1, 2]), records, now);
        assert!(!view.is_claimed_elsewhere("s"));
        for (number, by, is_ended, expected) in
            [(5, 2, false, true), (6, 0, false, false), (7, 1, true, false)]
        {
            view.learn(world.claim(number, by, is_ended), records, now);
            assert_eq!(view.is_claimed_elsewhere("s"), expected, "{number}");
        }
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
        let forged = StoredEntry { number: 9, name: "s".into(), text: "x".into() };
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
        let roster = |steady, claims| Roster { claims, ..world.roster(steady, &[0, 1, 2]) };
        heartbeat(&mut view, roster(100, page(0, &[world.claim(50, 1, false)])), records, now);
        assert_eq!((owner(&view, &world), after(&mut view)), ("m1".to_owned(), 50));
        heartbeat(&mut view, roster(0, page(50, &[])), records, now);
        assert_eq!(after(&mut view), 0, "from the first one on");
        heartbeat(&mut view, roster(1, page(0, &[world.claim(1, 2, false)])), records, now);
        assert_eq!((owner(&view, &world), after(&mut view)), ("m2".to_owned(), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_went_back_is_noticed_and_a_claim_of_its_own_that_came_back_is_kept() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let roster = |claims| Roster { claims, ..world.roster(100, &[0, 1, 2]) };
        let (own, other) = (world.claim(7, 0, false), world.claim(9, 1, false));
        view.learn(own.clone(), records, now);
        view.set_own(&world.session("s"));
        heartbeat(&mut view, roster(page(0, std::slice::from_ref(&other))), records, now);
        assert_eq!((owner(&view, &world), after(&mut view)), ("m1".to_owned(), 9));
        heartbeat(&mut view, roster(page(9, std::slice::from_ref(&other))), records, now);
        assert_eq!(after(&mut view), 9, "nothing is read twice");
        // The store goes back to the claim of this replica, and numbers and counts are the same.
        let back = |after| TablePage { last: 9, ..page(after, std::slice::from_ref(&own)) };
        heartbeat(&mut view, roster(back(9)), records, now);
        assert_eq!(after(&mut view), 0);
        heartbeat(&mut view, roster(back(0)), records, now);
        assert_eq!(owner(&view, &world), "Itself");
        // It loses that one, too: it is made anew.
        heartbeat(&mut view, roster(TablePage { last: 9, ..page(7, &[]) }), records, now);
        heartbeat(&mut view, roster(TablePage { last: 9, ..page(0, &[]) }), records, now);
        assert_eq!(view.unclaimed_count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_table_whose_sum_is_unknown_is_read_anew_now_and_then_until_a_replica_gives_it() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let all = [world.claim(9, 1, false)];
        let mut read = |after| {
            let claims = TablePage { sum: None, ..page(after, &all) };
            heartbeat(&mut view, Roster { claims, ..world.roster(100, &[0, 1]) }, records, now);
            let next = view.begin_beat(None).claims;
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
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        heartbeat(&mut view, world.roster(100, &[0, 1, 2]), records, now);
        let own = StoredEntry { number: 7, name: "t".into(), text: records.seal_claim("t", false) };
        view.learn_reply(own.clone(), records, now);
        assert_eq!(after(&mut view), 0, "number 6 is not known yet");
        let all = [world.claim(6, 2, false), own];
        let roster = |claims| Roster { claims, ..world.roster(101, &[0, 1, 2]) };
        heartbeat(&mut view, roster(page(0, &all)), records, now);
        assert_eq!((owner(&view, &world), after(&mut view)), ("m2".to_owned(), 7));
        assert!(view.take_moved());
        // A store that has failed over to a server that lacks one says so by count, number or sum.
        let same = page(7, &all);
        let lacking = [
            TablePage { count: 1, ..same.clone() },
            TablePage { last: 6, ..same.clone() },
            TablePage { sum: Some(1), ..same },
        ];
        for less in lacking {
            heartbeat(&mut view, roster(less), records, now);
            assert_eq!(after(&mut view), 0, "all are read anew");
            heartbeat(&mut view, roster(page(0, &all)), records, now);
            assert_eq!(after(&mut view), 7);
        }
        heartbeat(&mut view, roster(page(0, &[])), records, now);
        assert_eq!((owner(&view, &world), view.take_moved()), ("m1".to_owned(), true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_its_own_that_the_store_lost_before_it_was_read_is_noticed() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let roster = |claims| Roster { claims, ..world.roster(101, &[0, 1, 2]) };
        heartbeat(&mut view, roster(page(0, &[])), records, now);
        let own = StoredEntry { number: 1, name: "t".into(), text: records.seal_claim("t", false) };
        view.learn_reply(own, records, now);
        // The store has gone back, and has given the number to another claim.
        heartbeat(&mut view, roster(page(0, &[world.claim(1, 2, false)])), records, now);
        assert_eq!(after(&mut view), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_known_at_once_and_is_written_again_if_the_store_loses_it() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let roster = |ended| Roster { ended, ..world.roster(101, &[0, 1, 2]) };
        let (session, other) = (world.numbered("s", Some(3)), world.numbered("t", Some(4)));
        heartbeat(&mut view, roster(page(0, &[])), records, now);
        assert!(!view.has_lost(&PlacedSession { sealed_by: view.itself, ..session.clone() }, now));
        let end = stored(1, &session);
        view.learn_ended(block_of(&end), Some(end.clone()));
        assert!(view.take_moved() && view.has_lost(&session, now));
        assert!(matches!(view.owner(&session, now), Owner::Ended));
        assert!(matches!(view.owner(&other, now), Owner::Member(_)), "another session");
        heartbeat(&mut view, roster(page(0, std::slice::from_ref(&end))), records, now);
        assert!(view.lost_ends().is_empty());
        // The store is empty: one heartbeat finds that out, and the next one reads what it has.
        heartbeat(&mut view, roster(page(1, &[])), records, now);
        heartbeat(&mut view, roster(page(0, &[])), records, now);
        assert!(matches!(view.owner(&session, now), Owner::Ended));
        let lost: Vec<_> = view.lost_ends().into_iter().map(|(name, _)| name).collect();
        assert_eq!(lost, [block_of(&end)]);
        view.learn_ended(block_of(&end), Some(end.clone()));
        assert!(view.lost_ends().is_empty());
        // By the clock of the store, the ids have expired.
        view.learn_ended(block_of(&end), None);
        assert!(matches!(view.owner(&session, now), Owner::Member(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn ends_of_other_replicas_in_one_block_are_merged_and_an_expired_block_is_dropped() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let roster = |ended| Roster { ended, ..world.roster(101, &[0, 1, 2]) };
        let [one, other] = [3, 4].map(|place| world.numbered("s", Some(place)));
        let end = stored(1, &one);
        view.learn_ended(block_of(&end), Some(end));
        let elsewhere = stored(2, &other);
        heartbeat(&mut view, roster(page(0, std::slice::from_ref(&elsewhere))), records, now);
        assert!([&one, &other].iter().all(|it| matches!(view.owner(it, now), Owner::Ended)));
        assert_eq!(view.lost_ends().len(), 1, "the store does not have both");
        let gone = PlacedSession { until: SystemTime::UNIX_EPOCH, ..one };
        let mut view = FleetView::new(world.instance(0));
        let end = stored(1, &gone);
        view.learn_ended(block_of(&end), Some(end.clone()));
        heartbeat(&mut view, roster(page(0, &[end])), records, now);
        assert!(view.is_ended(gone.number), "as long as the store has it");
        heartbeat(&mut view, roster(page(1, &[])), records, now);
        heartbeat(&mut view, roster(page(0, &[])), records, now);
        assert!(!view.is_ended(gone.number) && view.lost_ends().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_made_while_all_are_read_is_not_lost() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let earlier = Roster {
            claims: page(0, &[world.claim(1, 2, false)]),
            ..world.roster(100, &[0, 1, 2])
        };
        heartbeat(&mut view, earlier.clone(), records, now);
        view.begin_beat(None);
        view.learn_reply(world.claim(2, 0, false), records, now);
        let text = records.seal_claim("t", false);
        view.learn_reply(StoredEntry { number: 3, name: "t".into(), text }, records, now);
        view.set_own(&world.session("t"));
        // The store has answered before it has got the claims.
        view.update(earlier, records, now);
        assert_eq!(owner(&view, &world), "Itself");
        assert!(view.claim_of("t").is_some() && view.unclaimed_count() == 0);
        assert_eq!(after(&mut view), 0, "all are read again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_served_without_a_claim_is_served_until_there_is_one() {
        let (world, now) = (World::new(), Instant::now());
        let mut view = FleetView::new(world.instance(0));
        assert!(view.take_unclaimed(&world.session("s")));
        assert_eq!((owner(&view, &world), view.unclaimed(now).len()), ("Itself".to_owned(), 1));
        heartbeat(&mut view, world.roster(100, &[0, 1, 2]), &world.records[0], now);
        view.learn(world.claim(1, 2, false), &world.records[0], now);
        assert_eq!((owner(&view, &world), view.unclaimed(now).len()), ("m2".to_owned(), 0));
        // The replica that has sealed its id turns out to live.
        heartbeat(&mut view, world.roster(101, &[0, 1, 2]), &world.records[0], now);
        assert!(view.take_unclaimed(&world.session("s")) && view.take_moved());
        assert_eq!((view.unclaimed(now).len(), view.take_moved()), (0, true));
        assert_eq!(owner(&view, &world), "m1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_counts_even_if_its_replica_cannot_be_reached_and_is_made_anew_if_it_is_lost() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        heartbeat(&mut view, world.roster(100, &[0, 1, 2]), records, now);
        view.learn(world.claim(1, 2, false), records, now);
        view.set_unreachable(world.instance(2), now);
        assert_eq!(owner(&view, &world), "Gone");
        let session = world.session("s");
        let own = PlacedSession { sealed_by: world.instance(0), ..session.clone() };
        assert!(view.has_lost(&own, now));
        view.learn(world.claim(2, 0, false), records, now);
        view.set_own(&session);
        assert!(!view.has_lost(&session, now));
        heartbeat(&mut view, world.roster(101, &[0, 2]), records, now);
        assert_eq!((owner(&view, &world), view.unclaimed(now).len()), ("Itself".to_owned(), 1));
    }

    #[test]
    fn what_is_served_without_a_claim_is_bounded() {
        let world = World::new();
        let mut view = FleetView::new(world.instance(0));
        let mut take = |number: usize| view.take_unclaimed(&world.session(&number.to_string()));
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
