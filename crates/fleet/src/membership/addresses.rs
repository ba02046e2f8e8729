//! Addresses at which several replicas say that they are reached. A request for one of these comes
//! to another, whose certificate does not fit: the replica is never reached.
//!
//! The record of a replica that was killed has the address of its successor until it expires, so
//! only records count that are renewed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{FleetView, Replica};
use weir_base::secrets::sealing::Instance;

/// Problem of a replica whose address an earlier one has.
pub(crate) const TAKEN: &str = "another replica of the fleet has the address of this one: set \
                                `advertise` under [fleet] to an address of its own";

type ByAddress<'a> = BTreeMap<&'a str, Vec<&'a Replica>>;

/// Returns the members that share an address, by addresses.
fn shared(view: &FleetView, counts: impl Fn(Instance) -> bool) -> ByAddress<'_> {
    let mut members = ByAddress::new();
    for member in view.members().filter(|it| !it.record.draining && counts(it.instance)) {
        members.entry(&member.record.address).or_default().push(member);
    }
    members.retain(|_, members| members.len() > 1);
    members
}

/// Returns whether one member may be the successor of another one, which was killed: both have the
/// same name or address.
pub(crate) fn may_be_replaced(view: &FleetView) -> bool {
    view.members().any(|member| has_namesake(view, member, |_| true))
}

/// Returns the members whose record is not renewed beside that of a successor, which is.
pub(crate) fn replaced(view: &FleetView) -> Vec<Arc<Replica>> {
    let is_renewed = |instance| view.is_renewed(instance);
    let silent = view.members().filter(|it| !is_renewed(it.instance));
    silent.filter(|it| has_namesake(view, it, is_renewed)).map(Arc::clone).collect()
}

/// Returns whether another member, which counts, has the same name or address.
fn has_namesake(view: &FleetView, member: &Replica, counts: impl Fn(Instance) -> bool) -> bool {
    let (own, instance) = (&member.record, member.instance);
    view.members()
        .filter(|it| it.instance != instance && counts(it.instance))
        .any(|it| it.record.name == own.name || it.record.address == own.address)
}

/// Describes the addresses that members share.
pub(crate) fn conflicts(view: &FleetView) -> Vec<String> {
    let shared = shared(view, |instance| view.is_renewed(instance));
    let described = shared.into_iter().map(|(address, members)| {
        let mut names: Vec<_> =
            members.iter().map(|it| format!("{} ({})", it.record.name, it.instance)).collect();
        names.sort_unstable();
        let names = names.join(" and ");
        format!("{names} have the same address {address}: set `advertise` under [fleet]")
    });
    described.collect()
}

/// Returns whether an earlier member has the address of this one.
pub(crate) fn is_taken(view: &FleetView, itself: Instance) -> bool {
    let age = |it: &&Replica| (it.record.started, it.instance.to_string());
    let shared = shared(view, |instance| view.is_renewed(instance));
    shared.into_values().any(|members| {
        members.iter().any(|it| it.instance == itself)
            && members.iter().min_by_key(|it| age(it)).is_some_and(|it| it.instance != itself)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::tests::{World, heartbeat};
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_record_that_is_not_renewed_beside_a_successor_is_replaced_and_a_living_one_is_not() {
        let (world, now) = (World::new(), Instant::now());
        let names = |found: Vec<Arc<Replica>>| {
            found.into_iter().map(|it| it.record.name.clone()).collect::<Vec<_>>()
        };
        // Of members 1 and 2, which have the same address, these renew their records.
        for (renewed, expected) in
            [(&[1, 2][..], &[][..]), (&[2], &["m1"]), (&[1], &["m2"]), (&[], &[])]
        {
            let mut view = FleetView::new(world.instance(0));
            let first = world.roster(100, &[1, 2]);
            heartbeat(&mut view, first.clone(), &world.records[0], now);
            assert!(may_be_replaced(&view));
            let mut later = world.roster(101, renewed);
            let silent = first.members.into_iter().filter(|(name, _)| {
                !renewed.iter().any(|at| world.instance(*at).to_string() == *name)
            });
            later.members.extend(silent);
            heartbeat(&mut view, later, &world.records[0], now);
            assert_eq!(names(view.take_replaced()), expected, "{renewed:?}");
            assert_eq!(view.members().len(), 2 - expected.len(), "{renewed:?}");
        }
        let mut alone = FleetView::new(world.instance(0));
        heartbeat(&mut alone, world.roster(100, &[1]), &world.records[0], now);
        assert!(!may_be_replaced(&alone) && alone.take_replaced().is_empty());
    }
}
