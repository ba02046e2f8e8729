//! Signs of life of the other replicas, and replicas that cannot be reached at present.
//!
//! A replica shows that it lives with each record that it renews. One that has not done so for a
//! while, or that could not be reached, is asked ([`crate::replica_client::probes`]).
//!
//! Invariants: what waits for a replica that shows no sign of life for [`MAX_MISSED`] ticks ends.
//! Silence is counted in ticks, so that a replica that stood still itself, or is on a busy machine,
//! does not take the others for silent.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::RECORD_TTL;
use weir_base::secrets::sealing::InstanceId;

/// Signs of life of all replicas.
#[derive(Default)]
pub(crate) struct Signs(HashMap<InstanceId, ReplicaSigns>);

#[derive(Default)]
struct ReplicaSigns {
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

/// State of a replica that could not be reached.
struct Unreachable {
    /// Time until which it is not tried again.
    until: Instant,
    /// Whether it keeps its clients' connections no longer, as far as this replica can tell: it
    /// refuses connections, or is silent; or it lives, and only this replica does not reach it.
    is_passed_over: bool,
}

impl Signs {
    /// Takes over the record of a replica.
    pub(super) fn read(&mut self, instance: InstanceId, text: &str) {
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

    /// Forgets those that are no replicas any more.
    pub(super) fn retain(&mut self, is_replica: impl Fn(&InstanceId) -> bool) {
        self.0.retain(|instance, _| is_replica(instance));
    }

    pub(super) fn is_unreachable(&self, instance: InstanceId, now: Instant) -> bool {
        self.unreachable(instance, now).is_some()
    }

    pub(super) fn set_unreachable(&mut self, instance: InstanceId, now: Instant) {
        let signs = self.0.entry(instance).or_default();
        let known = signs.unreachable.take().filter(|it| it.until > now);
        let is_passed_over = known.is_some_and(|it| it.is_passed_over);
        signs.unreachable = Some(Unreachable { until: now + RECORD_TTL, is_passed_over });
    }

    /// Returns whether a replica that cannot be reached keeps its clients' connections no longer.
    pub(super) fn is_passed_over(&self, instance: InstanceId, now: Instant) -> bool {
        self.unreachable(instance, now).is_some_and(|it| it.is_passed_over)
    }

    pub(super) fn pass_over(&mut self, instance: InstanceId) {
        let signs = self.0.get_mut(&instance);
        if let Some(unreachable) = signs.and_then(|it| it.unreachable.as_mut()) {
            unreachable.is_passed_over = true;
        }
    }

    fn unreachable(&self, instance: InstanceId, now: Instant) -> Option<&Unreachable> {
        self.0.get(&instance)?.unreachable.as_ref().filter(|it| it.until > now)
    }

    /// Counts a tick without an answer; returns whether the replica has been silent for too long.
    pub(super) fn miss(&mut self, instance: InstanceId) -> bool {
        let signs = self.0.entry(instance).or_default();
        signs.missed += 1;
        signs.unanswered += 1;
        signs.missed.is_multiple_of(MAX_MISSED) || signs.unanswered.is_multiple_of(MAX_UNANSWERED)
    }

    pub(super) fn is_to_be_asked(&self, instance: InstanceId) -> bool {
        self.0.get(&instance).is_some_and(|signs| {
            signs.missed >= ASKED_AFTER
                || signs.unanswered >= ASKED_ANYWAY_AFTER
                || signs.unreachable.is_some()
        })
    }

    /// Records that a replica has answered.
    pub(super) fn set_answered(&mut self, instance: InstanceId) {
        if let Some(signs) = self.0.get_mut(&instance) {
            (signs.missed, signs.unanswered, signs.unreachable) = (0, 0, None);
        }
    }

    /// Returns whether a replica has renewed its record of late.
    pub(super) fn is_renewed(&self, instance: InstanceId) -> bool {
        self.0.get(&instance).is_some_and(|it| it.is_renewed && it.missed < MAX_MISSED)
    }
}

/// Interval in which signs of life are looked for.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// Ticks without a sign of life after which a replica is asked. It renews its record once a second.
pub(super) const ASKED_AFTER: u32 = 3;
/// Ticks without a sign of life after which nothing waits for a replica any more: less than the
/// five seconds after which its record would expire.
pub(super) const MAX_MISSED: u32 = 9;
/// Ticks after which a replica is asked that renews its record: the way to it may be interrupted.
const ASKED_ANYWAY_AFTER: u32 = 10;
/// Ticks without an answer after which nothing waits for such a replica any more.
pub(super) const MAX_UNANSWERED: u32 = 30;
