//! Addresses at which several replicas say that they are reached. A request for one of these comes
//! to another, whose certificate does not fit: the replica is never reached.
//!
//! The record of a replica that was killed has the address of its successor until it expires, so
//! only records count that are renewed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Membership, Replica};
use weir_base::secrets::sealing::InstanceId;

/// Problem of a replica whose address an earlier one has.
pub(crate) const TAKEN: &str = "another replica of the fleet has the address of this one: set \
                                `advertise` under [fleet] to an address of its own";

type ByAddress<'a> = BTreeMap<&'a str, Vec<&'a Replica>>;

/// Returns the replicas that share an address, by addresses.
fn shared(membership: &Membership, counts: impl Fn(InstanceId) -> bool) -> ByAddress<'_> {
    let mut replicas = ByAddress::new();
    for replica in membership.replicas().filter(|it| !it.record.draining && counts(it.instance)) {
        replicas.entry(&replica.record.address).or_default().push(replica);
    }
    replicas.retain(|_, replicas| replicas.len() > 1);
    replicas
}

/// Returns whether one replica may be the successor of another one, which was killed: both have the
/// same name or address.
pub(crate) fn may_be_replaced(membership: &Membership) -> bool {
    membership.replicas().any(|replica| has_namesake(membership, replica, |_| true))
}

/// Returns the replicas whose record is not renewed beside that of a successor, which is.
pub(crate) fn replaced(membership: &Membership) -> Vec<Arc<Replica>> {
    let is_renewed = |instance| membership.is_renewed(instance);
    let silent = membership.replicas().filter(|it| !is_renewed(it.instance));
    silent.filter(|it| has_namesake(membership, it, is_renewed)).map(Arc::clone).collect()
}

/// Returns whether another replica, which counts, has the same name or address.
fn has_namesake(
    membership: &Membership,
    replica: &Replica,
    counts: impl Fn(InstanceId) -> bool,
) -> bool {
    let (own, instance) = (&replica.record, replica.instance);
    membership
        .replicas()
        .filter(|it| it.instance != instance && counts(it.instance))
        .any(|it| it.record.name == own.name || it.record.address == own.address)
}

/// Describes the addresses that replicas share.
pub(crate) fn conflicts(membership: &Membership) -> Vec<String> {
    let shared = shared(membership, |instance| membership.is_renewed(instance));
    let described = shared.into_iter().map(|(address, replicas)| {
        let mut names: Vec<_> =
            replicas.iter().map(|it| format!("{} ({})", it.record.name, it.instance)).collect();
        names.sort_unstable();
        let names = names.join(" and ");
        format!("{names} have the same address {address}: set `advertise` under [fleet]")
    });
    described.collect()
}

/// Returns whether an earlier replica has the address of this one.
pub(crate) fn is_taken(membership: &Membership, itself: InstanceId) -> bool {
    let age = |it: &&Replica| (it.record.started, it.instance.to_string());
    let shared = shared(membership, |instance| membership.is_renewed(instance));
    shared.into_values().any(|replicas| {
        replicas.iter().any(|it| it.instance == itself)
            && replicas.iter().min_by_key(|it| age(it)).is_some_and(|it| it.instance != itself)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sealed_world::SealedWorld;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_record_that_is_not_renewed_beside_a_successor_is_replaced_and_a_living_one_is_not() {
        let (world, now) = (SealedWorld::new(), Instant::now());
        let names = |found: Vec<Arc<Replica>>| {
            found.into_iter().map(|it| it.record.name.clone()).collect::<Vec<_>>()
        };
        // Of replicas 1 and 2, which have the same address, these renew their records.
        for (renewed, expected) in
            [(&[1, 2][..], &[][..]), (&[2], &["m1"]), (&[1], &["m2"]), (&[], &[])]
        {
            let mut membership = Membership::new(world.instance(0));
            let first = world.roster(100, &[1, 2]);
            membership.update(&first, &world.records[0], now);
            assert!(may_be_replaced(&membership));
            let mut later = world.roster(101, renewed);
            let silent = first.replicas.into_iter().filter(|(name, _)| {
                !renewed.iter().any(|at| world.instance(*at).to_string() == *name)
            });
            later.replicas.extend(silent);
            membership.update(&later, &world.records[0], now);
            assert_eq!(names(membership.take_replaced()), expected, "{renewed:?}");
            assert_eq!(membership.replicas().len(), 2 - expected.len(), "{renewed:?}");
        }
        let mut alone = Membership::new(world.instance(0));
        alone.update(&world.roster(100, &[1]), &world.records[0], now);
        assert!(!may_be_replaced(&alone) && alone.take_replaced().is_empty());
    }
}
