//! Addresses at which several replicas say that they are reached. A request for one of these comes
//! to another, whose certificate does not fit: the replica is never reached.
//!
//! The record of a replica that was killed has the address of its successor until it expires, so
//! only records count that are renewed.

use std::collections::BTreeMap;

use super::{FleetView, Replica};
use crate::sealing::Instance;

/// Problem of a replica whose address an earlier one has.
pub(in crate::fleet) const TAKEN: &str = "another replica of the fleet has the address of this one: set \
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

/// Returns whether members may share an address, some of which may have ended.
pub(in crate::fleet) fn may_be_shared(view: &FleetView) -> bool {
    !shared(view, |_| true).is_empty()
}

/// Describes the addresses that members share.
pub(in crate::fleet) fn conflicts(view: &FleetView) -> Vec<String> {
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
pub(in crate::fleet) fn is_taken(view: &FleetView, itself: Instance) -> bool {
    let age = |it: &&Replica| (it.record.started, it.instance.to_string());
    let shared = shared(view, |instance| view.is_renewed(instance));
    shared.into_values().any(|members| {
        members.iter().any(|it| it.instance == itself)
            && members.iter().min_by_key(|it| age(it)).is_some_and(|it| it.instance != itself)
    })
}
