//! Exported items of one upstream and kind: export rules, renaming and clash resolution applied.
//!
//! Invariants: each public key occurs once; an item that did not change since the previous list is
//! the same `Arc`, so that views share it and detect that it is unchanged; an item shares no memory
//! with the message that listed it, which may be much larger.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::item::ExportedItem;
use super::{ExportRules, Settings};
use crate::json::{self, Object};
use crate::mcp::definition::arguments::PromptArguments;
use crate::mcp::definition::downgrade;
use crate::mcp::definition::item::{Item, ItemDefect, MAX_URI_BYTES};
use crate::mcp::definition::param_headers::ParamHeaders;
use crate::mcp::kind::Kind;
use crate::mcp::name::Naming;

/// All items of one kind that were read from one upstream.
#[derive(Debug, Clone)]
pub struct ListSnapshot {
    /// The items, as listed.
    pub items: Vec<Item>,
    /// End of the time to live that the upstream gave, if it gave one.
    pub fresh_until: Option<Instant>,
    /// Whether the upstream says that its list differs between clients.
    pub is_private: bool,
    /// The limit that truncated the list, if the upstream lists more than is read.
    pub cut: Option<Arc<str>>,
}

/// Exported items of one upstream and kind.
pub(super) struct ExportedItems {
    /// Sorted by public key, bytewise; each key once.
    pub(super) items: Vec<Arc<ExportedItem>>,
    pub(super) fresh_until: Option<Instant>,
    pub(super) is_private: bool,
    pub(super) problems: ExportProblems,
    /// Hash of the upstream, the kind, the names and the lengths of the definitions: equal in
    /// processes that have read equal lists.
    pub(super) digest: u64,
}

impl ExportedItems {
    /// Builds the exported items of the upstream at index `at` from its list; `old` are its
    /// previous items, sorted.
    pub(super) fn build(
        settings: &Settings,
        at: usize,
        kind: Kind,
        snapshot: ListSnapshot,
        old: &[Arc<ExportedItem>],
    ) -> Self {
        let export = &settings.exports[at];
        let mut problems = ExportProblems::default();
        let mut items: Vec<(Box<str>, Item)> = Vec::with_capacity(snapshot.items.len());
        for item in snapshot.items.into_iter().filter(|item| export.allows(kind, &item.key)) {
            let key = export.public_key(&settings.naming, kind, &item.key);
            match item.defect {
                Some(defect) => problems.add(ExclusionReason::Defect(defect), &key, item),
                None => items.push((key, item)),
            }
        }
        // A stable sort: of two items with the same name, the one that was listed first stays
        // first.
        items.sort_by(|(a, _), (b, _)| a.cmp(b));

        let mut items = items.into_iter().peekable();
        let mut old = old.iter().peekable();
        let mut exported = Vec::with_capacity(items.len());
        let mut scratch = Vec::new();
        while let Some((key, item)) = items.next() {
            let next_rival = || items.next_if(|(other, _)| *other == key).map(|(_, item)| item);
            let rivals: Vec<Item> = std::iter::from_fn(next_rival).collect();
            let clash = rivals.iter().any(|rival| rival.key != item.key);
            // Both lists are sorted, so one pass over the old one finds all previous items.
            while old.next_if(|target| target.key < key).is_some() {}
            let before = old.peek().copied().filter(|target| target.key == key);
            if clash {
                problems.add(ExclusionReason::Clash, &key, item);
            } else if key.len() > MAX_KEY_BYTES {
                problems.add(ExclusionReason::TooLong, &key, item);
            } else {
                let naming = &settings.naming;
                exported.push(render(naming, export, kind, &key, item, before, &mut scratch));
            }
            let reason = if clash { ExclusionReason::Clash } else { ExclusionReason::Duplicate };
            rivals.into_iter().for_each(|rival| problems.add(reason, &key, rival));
        }
        let ListSnapshot { fresh_until, is_private, cut, .. } = snapshot;
        problems.cut = cut;
        let digest = digest(export, kind, &exported);
        Self { items: exported, fresh_until, is_private, problems, digest }
    }
}

fn digest(export: &ExportRules, kind: Kind, items: &[Arc<ExportedItem>]) -> u64 {
    // Without random keys, unlike those of hash maps.
    let mut hasher = DefaultHasher::new();
    (export.name.as_str(), kind.index()).hash(&mut hasher);
    items.iter().for_each(|item| (&*item.key, item.json.len()).hash(&mut hasher));
    hasher.finish()
}

/// Renders an item for lists, or reuses the previous item if nothing has changed.
fn render(
    naming: &Naming,
    export: &ExportRules,
    kind: Kind,
    key: &str,
    item: Item,
    before: Option<&Arc<ExportedItem>>,
    scratch: &mut Vec<u8>,
) -> Arc<ExportedItem> {
    let mut definition = item.definition;
    if kind.has_name() && *key != *item.key {
        definition.set(kind.key_member(), json::quote(key));
        if let Some((name, _)) = export.altered(naming, kind, &item.key)
            && !has_title(&definition)
        {
            definition.set("title", json::quote(name));
        }
    }
    scratch.clear();
    definition.write_to(scratch);
    let same = |json: &[u8]| {
        let is_same = |before: &&Arc<ExportedItem>| {
            before.own == item.key && before.json == json && before.needs_task == item.needs_task
        };
        before.filter(is_same)
    };
    // Usually nothing has changed, and then nothing is copied.
    if let Some(before) = same(scratch) {
        return Arc::clone(before);
    }
    // A copy, because a slice would keep the whole message that contained the item in memory.
    let json = json::on_one_line(Bytes::copy_from_slice(scratch));
    if let Some(before) = same(&json) {
        return Arc::clone(before);
    }
    let older_json =
        downgrade::definition(kind, &definition).map(|older| json::on_one_line(older.to_bytes()));
    let param_headers = match kind {
        // Invalid annotations count as none: if the upstream's revision has annotations, a tool
        // with invalid ones has a defect and does not get here.
        Kind::Tool => ParamHeaders::read(&definition).unwrap_or_default(),
        Kind::Prompt | Kind::Resource | Kind::Template => None,
    };
    let prompt_arguments =
        (kind == Kind::Prompt).then(|| PromptArguments::read(&definition)).flatten();
    let (upstream, needs_task) = (export.name.clone(), item.needs_task);
    let (own, key) = (item.key, key.into());
    Arc::new(ExportedItem {
        kind,
        upstream,
        own,
        key,
        json,
        older_json,
        param_headers,
        needs_task,
        prompt_arguments,
    })
}

/// Whether the definition has a title.
///
/// Spec 2025-06-18, schema, BaseMetadata.title: clients prefer `annotations.title` of a tool to its
/// name, and `title` to both, so a title set here would hide it.
fn has_title(definition: &Object) -> bool {
    let annotations = || definition.get_object("annotations");
    definition.has("title") || annotations().is_some_and(|it| it.has("title"))
}

/// The longest public key, in bytes, so that a cursor with it stays within its own limit.
const MAX_KEY_BYTES: usize = MAX_URI_BYTES;

// === Problems ===

/// Problems of one list: excluded items with their reasons. At most [`ExportProblems::MAX`] are
/// recorded, the others are counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportProblems {
    /// The first problems: defective items, then the others in the order of the public keys.
    pub first: Vec<ExportProblem>,
    /// Number of further problems.
    pub more: usize,
    /// The limit that truncated the list, if the upstream lists more than is read.
    pub cut: Option<Arc<str>>,
}

/// An excluded item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportProblem {
    /// The upstream's own name or URI.
    pub own: Box<str>,
    /// The public name or URI that it would have.
    pub key: Box<str>,
    /// Reason for the exclusion.
    pub reason: ExclusionReason,
}

/// Reason for which an item is excluded from a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExclusionReason {
    /// The upstream lists it twice; the first one is used.
    Duplicate,
    /// Another item of the upstream would have the same public name; both are excluded.
    Clash,
    /// The public name exceeds the maximum length.
    TooLong,
    /// No client could use it.
    Defect(ItemDefect),
}

impl ExportProblems {
    /// Maximum number of recorded problems.
    pub const MAX: usize = 100;

    /// Whether there are no problems.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.cut.is_none()
    }

    fn add(&mut self, reason: ExclusionReason, key: &str, item: Item) {
        if self.first.len() < Self::MAX {
            self.first.push(ExportProblem { own: item.key, key: key.into(), reason });
        } else {
            self.more += 1;
        }
    }
}

impl fmt::Display for ExportProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.first.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "; " })?;
        }
        if self.more > 0 {
            write!(f, "; and {} more", self.more)?;
        }
        if let Some(cut) = &self.cut {
            let separator = if self.first.is_empty() { "" } else { "; " };
            write!(f, "{separator}the upstream lists more than is read: {cut}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ExportProblem {
    // Names come from an upstream: they are quoted, so that none can break a line of a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, key, reason } = self;
        match reason {
            ExclusionReason::Duplicate => {
                write!(f, "{own:?} is listed twice, the first one is used")
            }
            ExclusionReason::Clash => {
                write!(f, "{own:?} would be {key:?} like another, rename one of them")
            }
            ExclusionReason::TooLong => {
                write!(f, "{own:?} has a name of more than {MAX_KEY_BYTES} bytes")
            }
            ExclusionReason::Defect(defect) => write!(f, "{own:?} cannot be used: {defect}"),
        }
    }
}
