//! Membership: the replicas of a fleet, as one of them knows them.
//!
//! Pure: it reads records that the store has returned, and takes the time as an argument.
//!
//! Invariants: a replica whose record is missing has ended only if the store has been steady for
//! [`STEADY`], so that a store that is empty or was away ends no replica. A replica that cannot be
//! reached has not ended. What waits for a replica that shows no sign of life ends
//! ([`Replica::gone`]), however long it may take otherwise.

pub(super) mod addresses;
pub(super) mod signs;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::records::{Records, ReplicaRecord};
use crate::store::{HEARTBEAT, Roster};
use signs::Signs;
use weir_base::secrets::sealing::{InstanceId, KeyId};
use weir_base::secrets::sha256::sha256;

/// Replicas that one replica knows.
pub(crate) struct Membership {
    /// This replica.
    itself: InstanceId,
    /// All replicas, this one included, by their processes.
    replicas: HashMap<InstanceId, Arc<Replica>>,
    signs: Signs,
    /// Numbers of replicas whose records do not open with the keys of this one, by the names of the
    /// keys with which they are sealed.
    unreadable: BTreeMap<String, usize>,
    /// Time for which the store has been steady.
    steady: Duration,
    /// Time of the last reply of the store.
    replied_at: Option<Instant>,
}

/// Replica, as the others know it.
#[derive(Debug, Clone)]
pub struct Replica {
    /// Number of its process.
    pub instance: InstanceId,
    /// Record that it keeps in the store.
    pub record: ReplicaRecord,
    /// Fires when it has ended, or is silent: what waits for it waits in vain.
    pub(crate) gone: CancellationToken,
}

/// Whereabouts of a process that has something for a client.
#[derive(Debug)]
pub enum Whereabouts {
    /// It is this one.
    ThisReplica,
    /// Another replica.
    Other(Arc<Replica>),
    /// A replica that cannot be reached at present, or one that this replica cannot know of. It has
    /// what it had once it is reached.
    Unreachable,
    /// It has ended, and all that it had.
    Ended,
}

/// Lists of the other replicas, as they show them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListsElsewhere {
    /// Hash of them; it changes within two heartbeats after one of them.
    pub digest: u64,
    /// True if all of them are those of this replica.
    pub are_same: bool,
}

impl Membership {
    pub(crate) fn new(itself: InstanceId) -> Self {
        Self {
            itself,
            replicas: HashMap::new(),
            signs: Signs::default(),
            unreadable: BTreeMap::new(),
            steady: Duration::ZERO,
            replied_at: None,
        }
    }

    /// Takes over the records that the store has returned. Returns whether the store was empty or
    /// away since the last time.
    pub(crate) fn update(&mut self, roster: &Roster, records: &Records, now: Instant) -> bool {
        let was_away = roster.steady < self.steady;
        self.steady = roster.steady;
        self.replied_at = Some(now);
        let mut replicas = HashMap::new();
        self.unreadable.clear();
        for (name, text) in &roster.replicas {
            match records.open_replica(name, text) {
                Some((instance, record)) => {
                    self.signs.read(instance, text);
                    let known = self.replicas.remove(&instance);
                    let gone = known.map(|known| known.gone.clone()).unwrap_or_default();
                    replicas.insert(instance, Arc::new(Replica { instance, record, gone }));
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
            for (instance, replica) in self.replicas.drain() {
                replicas.entry(instance).or_insert(replica);
            }
        }
        self.replicas.values().for_each(|replica| replica.gone.cancel());
        self.replicas = replicas;
        self.signs.retain(|instance| self.replicas.contains_key(instance));
        was_away
    }

    // === Replicas ===

    /// Returns the replicas, this one included.
    pub(crate) fn replicas(&self) -> impl ExactSizeIterator<Item = &Arc<Replica>> {
        self.replicas.values()
    }

    /// Returns the other replicas, also those that are about to stop or cannot be reached.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.replicas.values().filter(|replica| replica.instance != self.itself)
    }

    /// Returns whether there is such a replica, which may not be reachable.
    pub(crate) fn has(&self, instance: InstanceId) -> bool {
        self.replicas.contains_key(&instance)
    }

    /// Returns a replica that can be reached, also one that is about to stop.
    pub(crate) fn reachable(&self, instance: InstanceId, now: Instant) -> Option<Arc<Replica>> {
        let is_reachable = !self.signs.is_unreachable(instance, now);
        self.replicas.get(&instance).filter(|_| is_reachable).map(Arc::clone)
    }

    /// Finds a process that has something for a client.
    pub(crate) fn find(&self, is_it: impl Fn(InstanceId) -> bool, now: Instant) -> Whereabouts {
        if is_it(self.itself) {
            return Whereabouts::ThisReplica;
        }
        let is_recent = self.replied_at.is_some_and(|at| now < at + RECENT);
        match self.replicas.keys().find(|instance| is_it(**instance)) {
            Some(instance) => {
                self.reachable(*instance, now).map_or(Whereabouts::Unreachable, Whereabouts::Other)
            }
            None if self.is_steady() && is_recent => Whereabouts::Ended,
            None => Whereabouts::Unreachable,
        }
    }

    /// Returns the replica that runs an upstream, except this one.
    pub(crate) fn runner_of(&self, upstream: &str) -> Option<Arc<Replica>> {
        let number = |it: &&Arc<Replica>| it.record.running.get(upstream).copied();
        let runner = self.replicas().filter(|it| number(it).is_some()).max_by_key(number)?;
        (runner.instance != self.itself).then(|| Arc::clone(runner))
    }

    /// Returns the owner of the connection of a client to an upstream; `None` if it is this
    /// replica. All replicas that know the same of each other return the same one.
    pub(crate) fn owner_of_connection(
        &self,
        client: &str,
        upstream: &str,
        now: Instant,
    ) -> Option<InstanceId> {
        let serving = self.replicas().filter(|it| !it.record.draining);
        let serving = serving.filter(|it| !self.is_passed_over(it.instance, now));
        // The one with the highest hash: when another one joins or leaves, only its own move.
        let rank = |it: &InstanceId| sha256(format!("{it}/{upstream}/{client}"));
        let owner = serving.map(|it| it.instance).max_by_key(rank)?;
        (owner != self.itself).then_some(owner)
    }

    /// Removes the replicas that a successor has replaced, and returns them.
    pub(crate) fn take_replaced(&mut self) -> Vec<Arc<Replica>> {
        let replaced = addresses::replaced(self);
        replaced.iter().for_each(|it| _ = self.replicas.remove(&it.instance));
        replaced
    }

    /// Returns whether all replicas read ids of sessions with numbers.
    pub(crate) fn all_read_numbers(&self) -> bool {
        self.replied_at.is_some() && self.replicas().all(|it| it.record.reads_numbers)
    }

    /// Returns the lists of the other replicas; `own` is the hash of those of this one.
    pub(crate) fn lists_elsewhere(&self, own: u64) -> ListsElsewhere {
        // Their order is that of a hash table, so it must not count.
        let digest = self.others().fold(0, |sum: u64, replica| {
            let mut hasher = DefaultHasher::new();
            (replica.instance, &replica.record.lists).hash(&mut hasher);
            sum.wrapping_add(hasher.finish())
        });
        let own = Some(shown_lists(own));
        ListsElsewhere { digest, are_same: self.others().all(|it| it.record.lists == own) }
    }

    // === Signs of life ===

    /// Records that a replica cannot be reached. For some time its sessions count as without an
    /// owner.
    pub(crate) fn set_unreachable(&mut self, instance: InstanceId, now: Instant) {
        if self.has(instance) {
            self.signs.set_unreachable(instance, now);
        }
    }

    /// Returns whether the client connections of a replica are opened elsewhere.
    pub(crate) fn is_passed_over(&self, instance: InstanceId, now: Instant) -> bool {
        self.signs.is_passed_over(instance, now)
    }

    /// Has the client connections of a replica that cannot be reached opened elsewhere.
    pub(crate) fn pass_over(&mut self, instance: InstanceId) {
        self.signs.pass_over(instance);
    }

    /// Counts the time in which replicas have shown no sign of life, and ends what waits for those
    /// that are silent. Returns the replicas that are to be asked for one.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Arc<Replica>> {
        let mut asked = Vec::new();
        for (instance, replica) in &mut self.replicas {
            if *instance == self.itself {
                continue;
            }
            if self.signs.miss(*instance) {
                replica.gone.cancel();
                // It has not ended, and may answer again.
                let gone = CancellationToken::new();
                *replica = Arc::new(Replica { gone, ..Replica::clone(replica) });
                self.signs.set_unreachable(*instance, now);
                self.signs.pass_over(*instance);
            }
            if self.signs.is_to_be_asked(*instance) {
                asked.push(Arc::clone(replica));
            }
        }
        asked
    }

    /// Records that a replica has answered.
    pub(crate) fn set_answered(&mut self, instance: InstanceId) {
        self.signs.set_answered(instance);
    }

    /// Returns whether a replica has renewed its record of late, so that its process lives.
    pub(crate) fn is_renewed(&self, instance: InstanceId) -> bool {
        self.signs.is_renewed(instance)
    }

    // === Store ===

    /// Returns whether a missing record says that its replica has ended.
    pub(crate) fn is_steady(&self) -> bool {
        self.steady >= STEADY
    }

    /// Returns whether the store has ever replied.
    pub(crate) fn is_known(&self) -> bool {
        self.replied_at.is_some()
    }

    /// Returns whether the store has replied a moment ago.
    pub(crate) fn is_store_up(&self, now: Instant) -> bool {
        self.replied_at.is_some_and(|at| now < at + 3 * HEARTBEAT)
    }

    /// Returns whether there are other replicas and none can be read: this one has another key.
    pub(crate) fn has_foreign_key(&self) -> bool {
        !self.unreadable.is_empty() && self.others().next().is_none()
    }

    /// Returns the numbers of replicas whose records do not open with the keys of this one, by the
    /// names of the keys with which they are sealed.
    pub(crate) fn unreadable(&self) -> impl Iterator<Item = (&str, usize)> {
        self.unreadable.iter().map(|(key, count)| (&**key, *count))
    }
}

/// Returns the hash of the lists of a replica as its record shows it.
pub(crate) fn shown_lists(lists: u64) -> String {
    format!("{lists:016x}")
}

/// Time for which the store must have been steady before a missing record says that its replica has
/// ended: every living one has written its record several times by then.
pub(crate) const STEADY: Duration = Duration::from_secs(10);
/// Age of the knowledge from which a missing replica has ended. One that is missing in older
/// knowledge may have started since.
const RECENT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::signs::{ASKED_AFTER, MAX_MISSED, MAX_UNANSWERED, TICK};
    use crate::store::RECORD_TTL;
    use crate::testing::sealed_world::SealedWorld;
    use tokio::time::advance;

    /// Membership of replica 0, which knows itself and replica 1.
    fn known() -> (SealedWorld, Membership, InstanceId) {
        let world = SealedWorld::new();
        let mut membership = Membership::new(world.instance(0));
        read(&mut membership, &world, &world.roster(100, &[0, 1]));
        let other = world.instance(1);
        (world, membership, other)
    }

    fn read(membership: &mut Membership, world: &SealedWorld, roster: &Roster) {
        membership.update(roster, &world.records[0], Instant::now());
    }

    fn renew(membership: &mut Membership, world: &SealedWorld) {
        read(membership, world, &world.roster(100, &[0, 1]));
    }

    /// Counts ticks, and returns how often the others were asked in the last one.
    async fn ticks(membership: &mut Membership, count: u32) -> usize {
        let mut asked = 0;
        for _ in 0..count {
            advance(TICK).await;
            asked = membership.tick(Instant::now()).len();
        }
        asked
    }

    fn gone(membership: &Membership, replica: InstanceId) -> CancellationToken {
        membership.replicas[&replica].gone.clone()
    }

    fn found(membership: &Membership, replica: InstanceId) -> String {
        match membership.find(|it| it == replica, Instant::now()) {
            Whereabouts::Other(_) => "Other".to_owned(),
            found => format!("{found:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ids_have_numbers_once_all_replicas_read_them() {
        let world = SealedWorld::new();
        let mut membership = Membership::new(world.instance(0));
        assert!(!membership.all_read_numbers(), "it knows no other replica yet");
        let mut roster = world.roster(100, &[0, 1]);
        let (name, text) = world.replica(2, false);
        let (_, record) = world.records[0].open_replica(&name, &text).expect("a replica");
        let earlier = ReplicaRecord { reads_numbers: false, ..record };
        roster.replicas.push((name.clone(), world.records[2].seal_replica(&name, &earlier)));
        read(&mut membership, &world, &roster);
        assert!(!membership.all_read_numbers());
        renew(&mut membership, &world);
        assert!(membership.all_read_numbers());
    }

    #[tokio::test(start_paused = true)]
    async fn records_under_another_key_are_counted() {
        let (world, other) = (SealedWorld::new(), SealedWorld::new());
        let mut membership = Membership::new(world.instance(0));
        let mut roster = world.roster(100, &[0]);
        roster.replicas.push(other.replica(1, false));
        read(&mut membership, &world, &roster);
        assert!(membership.has_foreign_key() && membership.unreadable().count() == 1);
        roster.replicas.push(world.replica(2, false));
        read(&mut membership, &world, &roster);
        assert!(!membership.has_foreign_key(), "another replica has the same key");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_a_silent_replica_ends_and_the_replica_has_not_ended() {
        let (_, mut membership, other) = known();
        let waits = gone(&membership, other);
        assert_eq!(ticks(&mut membership, ASKED_AFTER - 1).await, 0);
        assert_eq!(ticks(&mut membership, 1).await, 1, "it is asked");
        assert_eq!(ticks(&mut membership, MAX_MISSED - ASKED_AFTER - 1).await, 1);
        assert!(!waits.is_cancelled());
        ticks(&mut membership, 1).await;
        assert!(waits.is_cancelled() && !gone(&membership, other).is_cancelled());
        assert!(TICK * MAX_MISSED < RECORD_TTL);
        assert_eq!(found(&membership, other), "Unreachable");
        assert!(membership.is_passed_over(other, Instant::now()));
        membership.set_answered(other);
        assert_eq!(found(&membership, other), "Other");
        assert_eq!(ticks(&mut membership, 1).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_and_a_renewed_record_are_signs_of_life() {
        let (world, mut membership, other) = known();
        let waits = gone(&membership, other);
        for _ in 0..100 {
            ticks(&mut membership, MAX_MISSED - 1).await;
            membership.set_answered(other);
        }
        for _ in 0..10 {
            ticks(&mut membership, 2).await;
            renew(&mut membership, &world);
        }
        assert!(!waits.is_cancelled());
        // One that lives and is not reached for longer.
        assert_eq!(ticks(&mut membership, 1).await, 1, "it is asked anyway");
        for _ in 0..MAX_UNANSWERED {
            ticks(&mut membership, 1).await;
            renew(&mut membership, &world);
        }
        assert!(waits.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_stood_still_itself_takes_no_other_for_silent() {
        let (_, mut membership, other) = known();
        let waits = gone(&membership, other);
        advance(RECORD_TTL * 100).await;
        ticks(&mut membership, 1).await;
        assert!(!waits.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_has_ended_only_if_recent_knowledge_says_so() {
        let (world, mut membership, other) = known();
        assert_eq!(found(&membership, other), "Other");
        membership.set_unreachable(other, Instant::now());
        assert_eq!(found(&membership, other), "Unreachable");
        for (steady, expected) in [(9, "Unreachable"), (10, "Ended")] {
            read(&mut membership, &world, &world.roster(steady, &[0]));
            assert_eq!(found(&membership, other), expected, "steady for {steady} s");
        }
        advance(RECENT).await;
        assert_eq!(found(&membership, other), "Unreachable", "it may have started since");
        assert_eq!(found(&membership, world.instance(0)), "ThisReplica");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_opened_elsewhere_if_their_replica_refuses_or_lives_apart() {
        let (world, mut membership, other) = known();
        let is_passed_over = |known: &Membership| known.is_passed_over(other, Instant::now());
        membership.set_unreachable(other, Instant::now());
        assert!(!is_passed_over(&membership), "it may stand still");
        renew(&mut membership, &world);
        assert!(is_passed_over(&membership), "it lives");
        membership.set_unreachable(other, Instant::now());
        assert!(is_passed_over(&membership));
        membership.set_answered(other);
        membership.set_unreachable(other, Instant::now());
        membership.pass_over(other);
        assert!(is_passed_over(&membership), "it refuses");
        advance(RECORD_TTL).await;
        assert!(!is_passed_over(&membership), "it is tried again");
    }
}
