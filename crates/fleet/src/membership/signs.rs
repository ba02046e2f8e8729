//! Signs of life of the other members, and members that cannot be reached at present.
//!
//! A member shows that it lives with each record that it renews. One that has not done so for a
//! while, or that could not be reached, is asked ([`crate::replica_client::probes`]).
//!
//! Invariants: a member that cannot be reached has not ended: only a record that is missing in a
//! steady store says so. What waits for a member that shows no sign of life for [`MAX_MISSED`]
//! ticks ends, however long it may take otherwise. Silence is counted in ticks, so that a replica
//! that stood still itself, or is on a busy machine, does not take the others for silent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{FleetView, Replica};
use crate::Whereabouts;
use crate::store::MEMBER_TTL;
use weir_base::secrets::sealing::Instance;

/// Signs of life of all members.
#[derive(Default)]
pub(super) struct Signs(HashMap<Instance, MemberSigns>);

#[derive(Default)]
struct MemberSigns {
    /// Record that was read last.
    text: String,
    /// Whether it has renewed its record since the first one was read.
    is_renewed: bool,
    /// Ticks since the last sign of life.
    missed: u32,
    /// Ticks since it has answered.
    unanswered: u32,
    unreachable: Option<Unreachable>,
}

/// State of a member that could not be reached.
struct Unreachable {
    /// Time until which it is not tried again.
    until: Instant,
    /// Whether it keeps its clients' connections no longer, as far as this replica can tell: it
    /// refuses connections, or is silent; or it lives, and only this replica does not reach it.
    is_passed_over: bool,
}

impl Signs {
    /// Takes over the record of a member.
    pub(super) fn read(&mut self, instance: Instance, text: &str) {
        let signs = self.0.entry(instance).or_default();
        if signs.text == text {
            return;
        }
        signs.is_renewed = !signs.text.is_empty();
        text.clone_into(&mut signs.text);
        signs.missed = 0;
        if let Some(unreachable) = &mut signs.unreachable {
            unreachable.is_passed_over = true;
        }
    }

    /// Forgets those that are no members any more.
    pub(super) fn retain(&mut self, is_member: impl Fn(&Instance) -> bool) {
        self.0.retain(|instance, _| is_member(instance));
    }

    pub(super) fn is_unreachable(&self, instance: Instance, now: Instant) -> bool {
        self.unreachable(instance, now).is_some()
    }

    pub(super) fn set_unreachable(&mut self, instance: Instance, now: Instant) {
        let signs = self.0.entry(instance).or_default();
        let known = signs.unreachable.take().filter(|it| it.until > now);
        let is_passed_over = known.is_some_and(|it| it.is_passed_over);
        signs.unreachable = Some(Unreachable { until: now + MEMBER_TTL, is_passed_over });
    }

    fn pass_over(&mut self, instance: Instance) {
        let signs = self.0.get_mut(&instance);
        if let Some(unreachable) = signs.and_then(|it| it.unreachable.as_mut()) {
            unreachable.is_passed_over = true;
        }
    }

    fn unreachable(&self, instance: Instance, now: Instant) -> Option<&Unreachable> {
        self.0.get(&instance)?.unreachable.as_ref().filter(|it| it.until > now)
    }

    /// Counts a tick without an answer; returns whether the member has been silent for too long.
    fn miss(&mut self, instance: Instance) -> bool {
        let signs = self.0.entry(instance).or_default();
        signs.missed += 1;
        signs.unanswered += 1;
        signs.missed.is_multiple_of(MAX_MISSED) || signs.unanswered.is_multiple_of(MAX_UNANSWERED)
    }

    fn is_to_be_asked(&self, instance: Instance) -> bool {
        self.0.get(&instance).is_some_and(|signs| {
            signs.missed >= ASKED_AFTER
                || signs.unanswered >= ASKED_ANYWAY_AFTER
                || signs.unreachable.is_some()
        })
    }
}

impl FleetView {
    /// Finds a process that has something for a client.
    pub(crate) fn find(&self, is_it: impl Fn(Instance) -> bool, now: Instant) -> Whereabouts {
        if is_it(self.itself) {
            return Whereabouts::Itself;
        }
        let is_recent = self.replied_at.is_some_and(|at| now < at + RECENT);
        match self.members.keys().find(|instance| is_it(**instance)) {
            Some(instance) => {
                self.reachable(*instance, now).map_or(Whereabouts::Unreachable, Whereabouts::Member)
            }
            None if self.is_steady() && is_recent => Whereabouts::Ended,
            None => Whereabouts::Unreachable,
        }
    }

    /// Returns whether the client connections of a member are opened elsewhere.
    pub(crate) fn is_passed_over(&self, instance: Instance, now: Instant) -> bool {
        self.signs.unreachable(instance, now).is_some_and(|it| it.is_passed_over)
    }

    /// Has the client connections of a member that cannot be reached opened elsewhere.
    pub(crate) fn pass_over(&mut self, instance: Instance) {
        self.signs.pass_over(instance);
    }

    /// Counts the time in which members have shown no sign of life, and ends what waits for those
    /// that are silent. Returns the members that are to be asked for one.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Arc<Replica>> {
        let mut asked = Vec::new();
        for (instance, member) in &mut self.members {
            if *instance == self.itself {
                continue;
            }
            if self.signs.miss(*instance) {
                member.gone.cancel();
                // It has not ended, and may answer again.
                let gone = CancellationToken::new();
                *member = Arc::new(Replica { gone, ..Replica::clone(member) });
                self.signs.set_unreachable(*instance, now);
                self.signs.pass_over(*instance);
            }
            if self.signs.is_to_be_asked(*instance) {
                asked.push(Arc::clone(member));
            }
        }
        asked
    }

    /// Records that a member has answered.
    pub(crate) fn set_answered(&mut self, instance: Instance) {
        if let Some(signs) = self.signs.0.get_mut(&instance) {
            (signs.missed, signs.unanswered, signs.unreachable) = (0, 0, None);
        }
    }

    /// Returns whether a member has renewed its record of late, so that its process lives.
    pub(crate) fn is_renewed(&self, instance: Instance) -> bool {
        self.signs.0.get(&instance).is_some_and(|it| it.is_renewed && it.missed < MAX_MISSED)
    }
}

/// Interval in which signs of life are looked for.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// Ticks without a sign of life after which a member is asked. It renews its record once a second.
const ASKED_AFTER: u32 = 3;
/// Ticks without a sign of life after which nothing waits for a member any more: less than the five
/// seconds after which its record would expire.
const MAX_MISSED: u32 = 9;
/// Ticks after which a member is asked that renews its record: the way to it may be interrupted.
const ASKED_ANYWAY_AFTER: u32 = 10;
/// Ticks without an answer after which nothing waits for such a member any more.
const MAX_UNANSWERED: u32 = 30;
/// Age of the knowledge from which a missing member has ended. One that is missing in older
/// knowledge may have started since.
const RECENT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Owner;
    use crate::membership::tests::{World, heartbeat};
    use tokio::time::advance;

    /// Counts ticks, and returns how often the others were asked in the last one.
    async fn ticks(view: &mut FleetView, count: u32) -> usize {
        let mut asked = 0;
        for _ in 0..count {
            advance(TICK).await;
            asked = view.tick(Instant::now()).len();
        }
        asked
    }

    async fn world() -> (World, FleetView, Instance) {
        let world = World::new();
        let mut view = FleetView::new(world.instance(0));
        renew(&mut view, &world);
        let member = world.instance(1);
        (world, view, member)
    }

    fn renew(view: &mut FleetView, world: &World) {
        heartbeat(view, world.roster(100, &[0, 1]), &world.records[0], Instant::now());
    }

    fn gone(view: &FleetView, member: Instance) -> CancellationToken {
        view.members[&member].gone.clone()
    }

    fn found(view: &FleetView, member: Instance) -> String {
        match view.find(|it| it == member, Instant::now()) {
            Whereabouts::Member(_) => "Member".to_owned(),
            found => format!("{found:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_a_silent_member_ends_and_the_member_has_not_ended() {
        let (_, mut view, member) = world().await;
        let waits = gone(&view, member);
        assert_eq!(ticks(&mut view, ASKED_AFTER - 1).await, 0);
        assert_eq!(ticks(&mut view, 1).await, 1, "it is asked");
        assert_eq!(ticks(&mut view, MAX_MISSED - ASKED_AFTER - 1).await, 1);
        assert!(!waits.is_cancelled());
        ticks(&mut view, 1).await;
        assert!(waits.is_cancelled() && !gone(&view, member).is_cancelled());
        assert!(TICK * MAX_MISSED < MEMBER_TTL);
        assert_eq!(found(&view, member), "Unreachable");
        assert!(view.is_passed_over(member, Instant::now()));
        view.set_answered(member);
        assert_eq!(found(&view, member), "Member");
        assert_eq!(ticks(&mut view, 1).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_and_a_renewed_record_are_signs_of_life() {
        let (world, mut view, member) = world().await;
        let waits = gone(&view, member);
        for _ in 0..100 {
            ticks(&mut view, MAX_MISSED - 1).await;
            view.set_answered(member);
        }
        for _ in 0..10 {
            ticks(&mut view, 2).await;
            renew(&mut view, &world);
        }
        assert!(!waits.is_cancelled());
        // One that lives and is not reached for longer.
        assert_eq!(ticks(&mut view, 1).await, 1, "it is asked anyway");
        for _ in 0..MAX_UNANSWERED {
            ticks(&mut view, 1).await;
            renew(&mut view, &world);
        }
        assert!(waits.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_stood_still_itself_takes_no_other_for_silent() {
        let (_, mut view, member) = world().await;
        let waits = gone(&view, member);
        advance(MEMBER_TTL * 100).await;
        ticks(&mut view, 1).await;
        assert!(!waits.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_has_ended_only_if_recent_knowledge_says_so() {
        let (world, mut view, member) = world().await;
        assert_eq!(found(&view, member), "Member");
        view.set_unreachable(member, Instant::now());
        assert_eq!(found(&view, member), "Unreachable");
        assert!(matches!(view.owned_by(member, Instant::now()), Owner::Gone), "it is taken over");
        for (steady, expected) in [(9, "Unreachable"), (10, "Ended")] {
            heartbeat(&mut view, world.roster(steady, &[0]), &world.records[0], Instant::now());
            assert_eq!(found(&view, member), expected, "steady for {steady} s");
        }
        advance(RECENT).await;
        assert_eq!(found(&view, member), "Unreachable", "it may have started since");
        assert_eq!(found(&view, world.instance(0)), "Itself");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_opened_elsewhere_if_their_member_refuses_or_lives_apart() {
        let (world, mut view, member) = world().await;
        let is_passed_over = |view: &FleetView| view.is_passed_over(member, Instant::now());
        view.set_unreachable(member, Instant::now());
        assert!(!is_passed_over(&view), "it may stand still");
        renew(&mut view, &world);
        assert!(is_passed_over(&view), "it lives");
        view.set_unreachable(member, Instant::now());
        assert!(is_passed_over(&view));
        view.set_answered(member);
        view.set_unreachable(member, Instant::now());
        view.pass_over(member);
        assert!(is_passed_over(&view), "it refuses");
        advance(MEMBER_TTL).await;
        assert!(!is_passed_over(&view), "it is tried again");
    }
}
