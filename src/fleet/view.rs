//! View of one replica: the members that it knows, and the owners of sessions.
//!
//! The owner of a session is the replica that its claim names; without a claim, the one that has
//! sealed the session's id. Claims are rare, since only the end of a replica causes them, and every
//! replica knows all of them.
//!
//! Invariants: a member whose record is missing counts as ended only if the store has been steady
//! for [`STEADY`], so that a store that is empty or was away ends no member; a claim is replaced by
//! a later one only.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::records::{Claim, MemberRecord, Records};
use super::store::{MAX_CLAIMS, MEMBER_TTL, Roster, StoredClaim};
use crate::sealing::Instance;

/// Replica, as the others know it.
#[derive(Debug, Clone)]
pub(crate) struct Replica {
    pub(crate) instance: Instance,
    pub(crate) record: MemberRecord,
    /// Fires when it is no member any more: what waits for it waits in vain.
    pub(super) gone: CancellationToken,
}

/// Knowledge of one replica about its fleet.
pub(super) struct FleetView {
    /// This replica.
    itself: Instance,
    members: HashMap<Instance, Arc<Replica>>,
    /// Members that refused connections, with the time until which they are not tried again.
    unreachable: HashMap<Instance, Instant>,
    /// Members whose records do not open with the keys of this replica.
    unreadable: usize,
    claims: HashMap<String, KnownClaim>,
    last_number: u64,
    /// Sessions that this replica serves without a claim, because the store could not decide.
    unclaimed: HashMap<String, SystemTime>,
    steady: Duration,
    replied_at: Option<Instant>,
}

struct KnownClaim {
    number: u64,
    claim: Claim,
    text: String,
    since: Instant,
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
            unreachable: HashMap::new(),
            unreadable: 0,
            claims: HashMap::new(),
            last_number: 0,
            unclaimed: HashMap::new(),
            steady: Duration::ZERO,
            replied_at: None,
        }
    }

    /// Takes over what the store has returned. Returns whether a session has another owner now.
    pub(super) fn update(&mut self, roster: Roster, records: &Records, now: Instant) -> bool {
        if roster.steady < self.steady {
            // The store was empty or away, and may number its claims anew.
            self.claims.clear();
            self.last_number = 0;
        }
        self.steady = roster.steady;
        self.replied_at = Some(now);
        let mut members = HashMap::new();
        self.unreadable = 0;
        for (name, text) in &roster.members {
            match records.open_member(name, text) {
                Some((instance, record)) => {
                    let known = self.members.remove(&instance);
                    let gone = known.map(|known| known.gone.clone()).unwrap_or_default();
                    members.insert(instance, Arc::new(Replica { instance, record, gone }));
                }
                None => self.unreadable += 1,
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
        self.unreachable
            .retain(|instance, until| *until > now && self.members.contains_key(instance));
        if roster.claim_count < self.claims.len() {
            // Some have expired.
            self.claims.clear();
            self.last_number = 0;
        }
        let mut has_changed = false;
        for claim in roster.claims {
            has_changed |= self.learn(claim, records, now);
        }
        has_changed
    }

    /// Forgets a claim that the store does not have any more.
    pub(super) fn forget_claim(&mut self, session: &str) {
        self.claims.remove(session);
    }

    /// Takes over one claim. Returns whether it is that of another replica.
    pub(super) fn learn(&mut self, claim: StoredClaim, records: &Records, now: Instant) -> bool {
        let StoredClaim { number, session, text } = claim;
        self.last_number = self.last_number.max(number);
        let Some(claim) = records.open_claim(&session, &text) else { return false };
        let is_later = self.claims.get(&session).is_none_or(|known| known.number < number);
        if !is_later || (self.claims.len() >= MAX_CLAIMS && !self.claims.contains_key(&session)) {
            return false;
        }
        self.unclaimed.remove(&session);
        self.claims.insert(session, KnownClaim { number, claim, text, since: now });
        claim != Claim::Owner(self.itself)
    }

    /// Returns the number of the last known claim.
    pub(super) fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Returns the owner of a session whose id this process has sealed.
    pub(super) fn owner(&self, session: &str, sealed_by: Instance, now: Instant) -> Owner {
        if self.unclaimed.contains_key(session) {
            return Owner::Itself;
        }
        match self.claims.get(session).map(|known| known.claim) {
            Some(Claim::Ended) => Owner::Ended,
            Some(Claim::Owner(instance)) => self.owned_by(instance, now),
            None => self.owned_by(sealed_by, now),
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
        let is_refused = self.unreachable.get(&instance).is_some_and(|until| *until > now);
        self.members.get(&instance).filter(|_| !is_refused).map(Arc::clone)
    }

    /// Records that a member refuses connections. For some time its sessions count as without an
    /// owner.
    pub(super) fn set_unreachable(&mut self, instance: Instance, now: Instant) {
        if self.members.contains_key(&instance) {
            self.unreachable.insert(instance, now + MEMBER_TTL);
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
    pub(super) fn take_unclaimed(&mut self, session: &str, until: SystemTime) -> bool {
        let has_space = self.unclaimed.len() < MAX_UNCLAIMED;
        if has_space {
            self.unclaimed.insert(session.to_owned(), until);
        }
        has_space
    }

    /// Returns the sessions that this replica serves without a claim, with the expiry of their ids.
    pub(super) fn unclaimed(&self) -> Vec<(String, SystemTime)> {
        self.unclaimed.iter().map(|(session, until)| (session.clone(), *until)).collect()
    }

    /// Ends the service without a claim: the claim decides from now on.
    pub(super) fn drop_unclaimed(&mut self, session: &str) {
        self.unclaimed.remove(session);
    }

    /// Returns the members, this one included.
    pub(super) fn members(&self) -> impl ExactSizeIterator<Item = &Arc<Replica>> {
        self.members.values()
    }

    /// Returns the time of the last reply of the store.
    pub(super) fn replied_at(&self) -> Option<Instant> {
        self.replied_at
    }

    /// Returns whether there are other members and none can be read: this replica has another key.
    pub(super) fn has_foreign_key(&self) -> bool {
        self.unreadable > 0 && self.members.keys().all(|instance| *instance == self.itself)
    }

    /// Returns the number of members whose records do not open with the keys of this replica.
    pub(super) fn unreadable(&self) -> usize {
        self.unreadable
    }
}

/// Time for which the store must have been steady before a missing record says that its member has
/// ended: every living member has written its record several times by then.
pub(super) const STEADY: Duration = Duration::from_secs(10);
/// Most sessions that are served without a claim.
const MAX_UNCLAIMED: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealing::SealingKeys;

    struct World {
        keys: Vec<SealingKeys>,
        records: Vec<Records>,
    }

    impl World {
        fn new() -> Self {
            let first = SealingKeys::random();
            let keys = vec![first.clone(), first.of_another_process(), first.of_another_process()];
            Self { records: keys.iter().map(Records::new).collect(), keys }
        }

        fn instance(&self, at: usize) -> Instance {
            self.keys[at].instance()
        }

        fn member(&self, at: usize, draining: bool) -> (String, String) {
            let record = MemberRecord {
                name: format!("m{at}"),
                address: "127.0.0.1:1".into(),
                version: String::new(),
                configuration: String::new(),
                draining,
                sessions: 0,
                lists: None,
                started: 0,
            };
            let name = self.instance(at).to_string();
            let text = self.records[at].seal_member(&name, &record);
            (name, text)
        }

        fn roster(&self, steady: u64, members: &[usize]) -> Roster {
            let members = members.iter().map(|at| self.member(*at, false)).collect();
            Roster { steady: Duration::from_secs(steady), members, ..Roster::default() }
        }

        fn claim(&self, number: u64, by: usize, is_ended: bool) -> StoredClaim {
            let text = self.records[by].seal_claim("s", is_ended);
            StoredClaim { number, session: "s".into(), text }
        }
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
        view.update(world.roster(100, &[0, 1]), records, now);
        assert_eq!(owner(&view, &world), "m1");
        for (steady, expected) in [(0, "m1"), (9, "m1"), (10, "Gone")] {
            view.update(world.roster(steady, &[0]), records, now);
            assert_eq!(owner(&view, &world), expected, "steady for {steady} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_refuses_or_stops_is_no_owner() {
        let (world, now) = (World::new(), Instant::now());
        let mut view = FleetView::new(world.instance(0));
        view.update(world.roster(100, &[0, 1]), &world.records[0], now);
        view.set_unreachable(world.instance(1), now);
        assert_eq!(owner(&view, &world), "Gone");
        tokio::time::advance(MEMBER_TTL).await;
        assert_eq!(owner(&view, &world), "m1", "it is tried again");
        let mut roster = world.roster(100, &[0]);
        roster.members.push(world.member(1, true));
        view.update(roster, &world.records[0], now);
        assert_eq!(owner(&view, &world), "Gone");
        let reached = view.reachable(world.instance(1), Instant::now());
        assert!(reached.is_some(), "its calls can be reached");
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_claim_decides_and_a_forged_one_counts_for_nothing() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        view.update(world.roster(100, &[0, 1, 2]), records, now);
        assert!(view.learn(world.claim(5, 2, false), records, now));
        assert_eq!(owner(&view, &world), "m2");
        assert!(!view.learn(world.claim(4, 1, false), records, now), "an old one");
        assert_eq!(owner(&view, &world), "m2");
        let forged = StoredClaim { number: 9, session: "s".into(), text: "x".into() };
        assert!(!view.learn(forged, records, now));
        assert_eq!((owner(&view, &world), view.last_number()), ("m2".to_owned(), 9));
        assert!(!view.learn(world.claim(10, 0, false), records, now), "its own");
        assert_eq!(owner(&view, &world), "Itself");
        assert!(view.learn(world.claim(11, 1, true), records, now));
        assert_eq!(owner(&view, &world), "Ended");
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_a_store_that_was_empty_are_read_anew() {
        let (world, now) = (World::new(), Instant::now());
        let records = &world.records[0];
        let mut view = FleetView::new(world.instance(0));
        let roster = |steady, number, by| Roster {
            claims: vec![world.claim(number, by, false)],
            claim_count: 1,
            ..world.roster(steady, &[0, 1, 2])
        };
        view.update(roster(100, 50, 1), records, now);
        assert_eq!((owner(&view, &world), view.last_number()), ("m1".to_owned(), 50));
        view.update(world.roster(0, &[0, 1, 2]), records, now);
        assert_eq!(view.last_number(), 0, "from the first one on");
        view.update(roster(1, 1, 2), records, now);
        assert_eq!((owner(&view, &world), view.last_number()), ("m2".to_owned(), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_served_without_a_claim_is_served_until_there_is_one() {
        let (world, now) = (World::new(), Instant::now());
        let mut view = FleetView::new(world.instance(0));
        assert!(view.take_unclaimed("s", SystemTime::UNIX_EPOCH) && view.unclaimed().len() == 1);
        assert_eq!(owner(&view, &world), "Itself");
        view.update(world.roster(100, &[0, 1, 2]), &world.records[0], now);
        view.learn(world.claim(1, 2, false), &world.records[0], now);
        assert_eq!((owner(&view, &world), view.unclaimed().len()), ("m2".to_owned(), 0));
    }

    #[test]
    fn what_is_served_without_a_claim_is_bounded() {
        let world = World::new();
        let mut view = FleetView::new(world.instance(0));
        let mut take =
            |number: usize| view.take_unclaimed(&number.to_string(), SystemTime::UNIX_EPOCH);
        assert!((0..MAX_UNCLAIMED).all(&mut take) && !take(MAX_UNCLAIMED));
    }

    #[tokio::test(start_paused = true)]
    async fn records_under_another_key_are_counted() {
        let (world, other) = (World::new(), World::new());
        let mut view = FleetView::new(world.instance(0));
        let mut roster = world.roster(100, &[0]);
        roster.members.push(other.member(1, false));
        view.update(roster.clone(), &world.records[0], Instant::now());
        assert!(view.has_foreign_key() && view.unreadable() == 1);
        roster.members.push(world.member(2, false));
        view.update(roster, &world.records[0], Instant::now());
        assert!(!view.has_foreign_key(), "another member has the same key");
    }
}
