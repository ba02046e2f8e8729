//! Keys of a fleet: what each may still have to open, and which step of a rotation is in the wrong
//! order.
//!
//! Each replica shows the names of its keys in its record. The store keeps the time at which a
//! replica was last seen that seals with a key. What a key has sealed ends with its session, at
//! most `server.session_max_age` later.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::membership::Membership;
use crate::store::KeyUsage;
use weir_base::secrets::sealing::{KeyId, SealingKeys};

/// State of one key of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyStatus {
    /// Name of the key.
    pub id: KeyId,
    /// Replicas that seal with it.
    pub sealing: Vec<String>,
    /// Replicas that do not have it.
    pub missing: Vec<String>,
    /// Time since a replica sealed with it, or since the store keeps such times if none did.
    pub unused: Duration,
    /// Time after which all that it has sealed has ended; zero if it has.
    pub needed: Duration,
}

/// Returns the state of each key of a configuration.
pub(crate) fn status(
    keys: &SealingKeys,
    membership: &Membership,
    usage: &KeyUsage,
    session_max_age: Duration,
) -> Vec<KeyStatus> {
    let names = |is_one: &dyn Fn(&[String]) -> bool| {
        let records = membership.replicas().map(|replica| &replica.record);
        // Without names, it is of an older version.
        let some = records.filter(|it| !it.keys.is_empty() && is_one(&it.keys));
        let mut names: Vec<_> = some.map(|it| it.name.clone()).collect();
        names.sort();
        names
    };
    let status = |id: KeyId| {
        let name = id.to_string();
        let unused = usage.unused.get(&name).copied().unwrap_or(usage.known);
        KeyStatus {
            id,
            sealing: names(&|keys| keys[0] == name),
            missing: names(&|keys| !keys.contains(&name)),
            unused,
            needed: session_max_age.saturating_sub(unused),
        }
    };
    keys.ids().map(status).collect()
}

/// Describes what is wrong with the order of steps of a rotation among the replicas.
pub(crate) fn conflicts(membership: &Membership) -> Vec<String> {
    let mut conflicts = BTreeSet::new();
    for sealing in membership.replicas() {
        let Some(key) = sealing.record.keys.first() else { continue };
        for other in membership.replicas() {
            if !other.record.keys.is_empty() && !other.record.keys.contains(key) {
                conflicts.insert(format!(
                    "{} seals with key {key}, which {} does not have: add it to `keys` there, as \
                     the last line",
                    sealing.record.name, other.record.name
                ));
            }
        }
    }
    conflicts.extend(membership.unreadable().map(|(key, count)| {
        format!(
            "{count} of the replicas have other keys (they seal with key {key}): give all of them \
             the same `keys` under [fleet]"
        )
    }));
    conflicts.into_iter().collect()
}

/// Describes what would go wrong if a replica started with these keys now.
pub(crate) fn problems(
    keys: &SealingKeys,
    membership: &Membership,
    usage: &KeyUsage,
    session_max_age: Duration,
) -> Vec<String> {
    let own: Vec<_> = keys.ids().map(|id| id.to_string()).collect();
    let mut problems = Vec::new();
    let status = status(keys, membership, usage, session_max_age);
    let first = status.first().filter(|first| !first.missing.is_empty());
    problems.extend(first.map(|first| {
        format!(
            "key {} is the first of fleet.keys, and {} does not have it: add it as the last line \
             on all replicas before it comes first",
            first.id,
            first.missing.join(", ")
        )
    }));
    let dropped = usage.unused.iter().filter(|(key, _)| !own.contains(key));
    let dropped = dropped.map(|(key, unused)| (key, session_max_age.saturating_sub(*unused)));
    problems.extend(dropped.filter(|(_, needed)| !needed.is_zero()).map(|(key, needed)| {
        format!(
            "fleet.keys does not have key {key}, which has sealed sessions that are good for up \
             to {} s more: they end",
            needed.as_secs().max(1)
        )
    }));
    problems
}
