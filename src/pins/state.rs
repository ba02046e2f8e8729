//! What one upstream lists now, against what was approved of it.
//!
//! Knows nothing of: what is done about a difference.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use super::digest::Digest;
use crate::json;
use crate::mcp::item::Item;

/// An item as it was last listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) digest: Digest,
    /// Its members and a short hash of each: what changed is told by them.
    members: Box<[(Box<str>, u64)]>,
    /// A short hash of the whole, by which it is known again without reading it.
    bytes: u64,
}

/// All that one upstream lists of one kind, by its own names.
pub(super) type Listed = BTreeMap<String, Seen>;

/// What is different about one item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It was not approved.
    New,
    /// It was approved when it was another; which of its members changed, where that is known.
    Changed(Vec<String>),
    /// It was approved, and is not there.
    Missing,
    /// It is one that was approved but for its name, which was this.
    Renamed(String),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => f.write_str("new"),
            Self::Changed(_) => f.write_str("changed"),
            Self::Missing => f.write_str("missing"),
            Self::Renamed(_) => f.write_str("renamed"),
        }
    }
}

/// Reads what is listed; what has not changed since `before` is not read.
pub(super) fn read(items: &[Item], before: Option<&Listed>, hasher: &RandomState) -> Listed {
    let read = |item: &Item| {
        let text = item.definition.to_bytes();
        let bytes = hasher.hash_one(&text);
        let known = before.and_then(|before| before.get(&*item.key));
        let seen = match known.filter(|known| known.bytes == bytes) {
            Some(known) => known.clone(),
            None => Seen { digest: Digest::of(&text), members: members(item, hasher), bytes },
        };
        (item.key.to_string(), seen)
    };
    let mut listed = Listed::new();
    // Of the same name twice the first is shown, and so is the one that counts.
    for (key, seen) in items.iter().map(read) {
        listed.entry(key).or_insert(seen);
    }
    listed
}

/// The digest of an item that was read; another of the same name is read now.
pub(super) fn digest(item: &Item, listed: &Listed, hasher: &RandomState) -> Digest {
    let text = item.definition.to_bytes();
    let known = listed.get(&*item.key).filter(|seen| seen.bytes == hasher.hash_one(&text));
    known.map_or_else(|| Digest::of(&text), |seen| seen.digest)
}

fn members(item: &Item, hasher: &RandomState) -> Box<[(Box<str>, u64)]> {
    let of = |key: &str| (key.into(), hasher.hash_one(item.definition.get(key)));
    item.definition.keys().take(MAX_MEMBERS).map(of).collect()
}

/// What is different, by the item's own name. `was` is what stood in the place of what was approved, if that is
/// known; `items` are what is listed.
pub(super) fn differences(
    listed: &Listed,
    approved: &BTreeMap<String, Digest>,
    was: Option<&Listed>,
    items: &[Item],
) -> Vec<(String, Change)> {
    let missing = approved.keys().filter(|key| !listed.contains_key(*key));
    let mut missing: Vec<&String> = missing.collect();
    let mut found = Vec::new();
    for (key, seen) in listed {
        let change = match approved.get(key) {
            Some(digest) if *digest == seen.digest => continue,
            Some(digest) => {
                let was = was.and_then(|was| was.get(key)).filter(|was| was.digest == *digest);
                Change::Changed(was.map(|was| changed(was, seen)).unwrap_or_default())
            }
            None => match items.iter().find(|item| *item.key == **key) {
                Some(item) => match former_name(item, &missing, approved) {
                    Some(at) => Change::Renamed(missing.remove(at).clone()),
                    None => Change::New,
                },
                None => Change::New,
            },
        };
        found.push((key.clone(), change));
    }
    found.extend(missing.into_iter().map(|key| (key.clone(), Change::Missing)));
    found
}

/// Which of the names that are missing this item had: under that name it is what was approved.
fn former_name(
    item: &Item,
    missing: &[&String],
    approved: &BTreeMap<String, Digest>,
) -> Option<usize> {
    let mut definition = item.definition.clone();
    missing.iter().take(MAX_FORMER).position(|name| {
        definition.set(item.kind.key_member(), json::quote(name));
        approved.get(*name) == Some(&Digest::of(&definition.to_bytes()))
    })
}

/// The members that differ.
fn changed(was: &Seen, is: &Seen) -> Vec<String> {
    let differs = |(name, hash): &&(Box<str>, u64), other: &Seen| {
        !other.members.iter().any(|(known, it)| known == name && it == hash)
    };
    let new = is.members.iter().filter(|member| differs(member, was));
    let gone = |(name, _): &&(Box<str>, u64)| !is.members.iter().any(|(known, _)| known == name);
    let gone = was.members.iter().filter(gone);
    new.chain(gone).map(|(name, _)| name.to_string()).take(MAX_TOLD).collect()
}

/// How many members of an item are remembered.
const MAX_MEMBERS: usize = 32;
/// How many members of an item are named.
const MAX_TOLD: usize = 8;
/// How many missing names are tried for a new item: each costs a hash of it.
const MAX_FORMER: usize = 64;
