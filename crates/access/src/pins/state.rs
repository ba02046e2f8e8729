//! Comparison of an upstream's current list with the approved digests.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;

use super::digest::Digest;
use weir_base::json;
use weir_mcp::definition::item::Item;

/// Digest of a listed item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedItem {
    pub(super) digest: Digest,
    /// Members with a short hash each, to name the changed ones.
    members: Box<[(Box<str>, u64)]>,
    /// Short hash of the text, to recognize an unchanged item without digesting it.
    bytes: u64,
}

/// Items that one upstream lists of one kind, by its own names.
pub(super) type ListedItems = BTreeMap<String, ListedItem>;

/// Difference of one item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The item was not approved.
    New,
    /// The item was approved in another form; with the changed members, if they are known.
    Changed(Vec<String>),
    /// The item was approved, and is not listed.
    Missing,
    /// The item was approved under this other name.
    Renamed(String),
}

impl Change {
    /// Returns the former name of a renamed item.
    pub fn former_name(&self) -> Option<&str> {
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

/// Digests a list; items unchanged since `before` are not digested again.
pub(super) fn digest_list(
    items: &[Item],
    before: Option<&ListedItems>,
    hasher: &RandomState,
) -> ListedItems {
    let digest_list = |item: &Item| {
        let text = item.definition.to_bytes();
        let bytes = hasher.hash_one(&text);
        let known = before.and_then(|before| before.get(&*item.key));
        let seen = match known.filter(|known| known.bytes == bytes) {
            Some(known) => known.clone(),
            None => ListedItem { digest: Digest::of(&text), members: members(item, hasher), bytes },
        };
        (item.key.to_string(), seen)
    };
    let mut listed = ListedItems::new();
    // Of two items of the same name the first one is published, so it is the one that is compared.
    for (key, seen) in items.iter().map(digest_list) {
        listed.entry(key).or_insert(seen);
    }
    listed
}

/// Returns the digest of a listed item; a second item of the same name is digested now.
pub(super) fn digest(item: &Item, listed: &ListedItems, hasher: &RandomState) -> Digest {
    let text = item.definition.to_bytes();
    let known = listed.get(&*item.key).filter(|seen| seen.bytes == hasher.hash_one(&text));
    known.map_or_else(|| Digest::of(&text), |seen| seen.digest)
}

fn members(item: &Item, hasher: &RandomState) -> Box<[(Box<str>, u64)]> {
    let of = |(key, value): (&str, Bytes)| (key.into(), hasher.hash_one(value));
    item.definition.members().take(MAX_MEMBERS).map(of).collect()
}

/// Returns the differences by the item's own name. `was` is the list at the time of the approval,
/// if it is known; `items` are the listed items.
pub(super) fn differences(
    listed: &ListedItems,
    approved: &BTreeMap<String, Digest>,
    was: Option<&ListedItems>,
    items: &[Item],
) -> Vec<(String, Change)> {
    let missing = approved.keys().filter(|key| !listed.contains_key(*key));
    let mut missing: VecDeque<&String> = missing.collect();
    // Built only if a name is missing that a new item may have had.
    let by_key = LazyCell::new(|| {
        let mut by_key: HashMap<&str, &Item> = HashMap::with_capacity(items.len());
        for item in items {
            by_key.entry(&item.key).or_insert(item);
        }
        by_key
    });
    let mut bytes_left = MAX_WASTED_BYTES;
    let mut found = Vec::new();
    for (key, seen) in listed {
        let change = match approved.get(key) {
            Some(digest) if *digest == seen.digest => continue,
            Some(digest) => {
                let was = was.and_then(|was| was.get(key)).filter(|was| was.digest == *digest);
                Change::Changed(was.map(|was| changed_members(was, seen)).unwrap_or_default())
            }
            None if missing.is_empty() || bytes_left == 0 => Change::New,
            None => {
                let item = by_key.get(&**key);
                let at = item.and_then(|it| former_name(it, &missing, approved, &mut bytes_left));
                let former = at.and_then(|at| missing.remove(at));
                former.map_or(Change::New, |name| Change::Renamed(name.clone()))
            }
        };
        found.push((key.clone(), change));
    }
    found.extend(missing.into_iter().map(|key| (key.clone(), Change::Missing)));
    found
}

/// Returns which of the missing names this item had: under that name its digest is the approved
/// one. Failed attempts reduce `bytes_left`, in bytes.
fn former_name(
    item: &Item,
    missing: &VecDeque<&String>,
    approved: &BTreeMap<String, Digest>,
    bytes_left: &mut usize,
) -> Option<usize> {
    let mut definition = item.definition.clone();
    for (at, name) in missing.iter().take(MAX_FORMER_NAMES).enumerate() {
        if *bytes_left == 0 {
            return None;
        }
        definition.set(item.kind.key_member(), json::quote(name));
        let text = definition.to_bytes();
        if approved.get(*name) == Some(&Digest::of(&text)) {
            return Some(at);
        }
        *bytes_left = bytes_left.saturating_sub(text.len());
    }
    None
}

/// Returns the members that differ.
fn changed_members(was: &ListedItem, is: &ListedItem) -> Vec<String> {
    let differs = |(name, hash): &&(Box<str>, u64), other: &ListedItem| {
        !other.members.iter().any(|(known, it)| known == name && it == hash)
    };
    let new = is.members.iter().filter(|member| differs(member, was));
    let gone = |(name, _): &&(Box<str>, u64)| !is.members.iter().any(|(known, _)| known == name);
    let gone = was.members.iter().filter(gone);
    new.chain(gone).map(|(name, _)| name.to_string()).take(MAX_NAMED_MEMBERS).collect()
}

/// Most members of an item that are stored.
const MAX_MEMBERS: usize = 32;
/// Most changed members that are named.
const MAX_NAMED_MEMBERS: usize = 8;
/// Most missing names that are tried for a new item: each costs a hash of it.
const MAX_FORMER_NAMES: usize = 64;
/// Most bytes of definitions that are hashed in failed attempts per list.
const MAX_WASTED_BYTES: usize = 1 << 20;
