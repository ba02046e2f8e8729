//! What one upstream lists now, against what was approved of it.
//!
//! Knows nothing of: what is done about a difference.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;

use super::digest::Digest;
use crate::json;
use crate::mcp::definition::item::Item;

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

impl Change {
    /// The name that the item had, if it was renamed.
    pub(super) fn former_name(&self) -> Option<&str> {
        match self {
            Self::Renamed(was) => Some(was),
            _ => None,
        }
    }
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
    let of = |(key, value): (&str, Bytes)| (key.into(), hasher.hash_one(value));
    item.definition.members().take(MAX_MEMBERS).map(of).collect()
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
    let mut missing: VecDeque<&String> = missing.collect();
    // Looked for only where a name is missing that a new item may have had.
    let by_key = LazyCell::new(|| {
        let mut by_key: HashMap<&str, &Item> = HashMap::with_capacity(items.len());
        for item in items {
            by_key.entry(&item.key).or_insert(item);
        }
        by_key
    });
    let mut effort = MAX_EFFORT;
    let mut found = Vec::new();
    for (key, seen) in listed {
        let change = match approved.get(key) {
            Some(digest) if *digest == seen.digest => continue,
            Some(digest) => {
                let was = was.and_then(|was| was.get(key)).filter(|was| was.digest == *digest);
                Change::Changed(was.map(|was| changed(was, seen)).unwrap_or_default())
            }
            None if missing.is_empty() || effort == 0 => Change::New,
            None => {
                let item = by_key.get(&**key);
                let at = item.and_then(|it| former_name(it, &missing, approved, &mut effort));
                let former = at.and_then(|at| missing.remove(at));
                former.map_or(Change::New, |name| Change::Renamed(name.clone()))
            }
        };
        found.push((key.clone(), change));
    }
    found.extend(missing.into_iter().map(|key| (key.clone(), Change::Missing)));
    found
}

/// Which of the names that are missing this item had: under that name it is what was approved. What is tried in vain is
/// taken off the `effort`, in bytes.
fn former_name(
    item: &Item,
    missing: &VecDeque<&String>,
    approved: &BTreeMap<String, Digest>,
    effort: &mut usize,
) -> Option<usize> {
    let mut definition = item.definition.clone();
    for (at, name) in missing.iter().take(MAX_FORMER).enumerate() {
        if *effort == 0 {
            return None;
        }
        definition.set(item.kind.key_member(), json::quote(name));
        let text = definition.to_bytes();
        if approved.get(*name) == Some(&Digest::of(&text)) {
            return Some(at);
        }
        *effort = effort.saturating_sub(text.len());
    }
    None
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
/// How many bytes of definitions are hashed in vain for one list.
const MAX_EFFORT: usize = 1 << 20;
