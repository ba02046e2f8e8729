//! Exported items of one upstream and kind: export rules, renaming and clash resolution applied.
//!
//! Invariants: each public key occurs once; an item that did not change since the previous list is
//! the same `Arc`, so that views share it and detect that it is unchanged; an item shares no memory
//! with the message that listed it, which may be much larger.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::item::ExportedItem;
use super::problems::{ExclusionReason, ExportProblems, MAX_KEY_BYTES};
use super::{ExportRules, Settings};
use weir_base::json::{self, Object};
use weir_mcp::definition::arguments::PromptArguments;
use weir_mcp::definition::downgrade;
use weir_mcp::definition::item::{Item, ItemDefect};
use weir_mcp::definition::param_headers::ParamHeaders;
use weir_mcp::kind::Kind;
use weir_mcp::name::Naming;
use weir_mcp::uri::equivalence_form;

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
        for item in snapshot.items {
            if let Some(defect @ ItemDefect::Unnamed(_)) = item.defect {
                let reason = ExclusionReason::Defect(defect);
                problems.others.add(reason, item.key.clone(), &item.key);
                continue;
            }
            if !export.allows(kind, &item.key) {
                continue;
            }
            let key = export.public_key(&settings.naming, kind, &item.key);
            match item.defect {
                Some(ItemDefect::Duplicate) => problems.add(ExclusionReason::Duplicate, &key, item),
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
                let alterations = item.alterations.clone();
                let item = render(naming, export, kind, &key, item, before, &mut scratch);
                problems.add_alterations(alterations, &item);
                exported.push(item);
            }
            for rival in rivals {
                let reason = match clash {
                    true => ExclusionReason::Clash,
                    false => ExclusionReason::Duplicate,
                };
                problems.add(reason, &key, rival);
            }
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
    let equivalence_form = (kind == Kind::Resource).then(|| equivalence_form(key)).flatten();
    let equivalence_form = equivalence_form.filter(|form| form != key).map(Into::into);
    let (own, key) = (item.key, key.into());
    Arc::new(ExportedItem {
        kind,
        upstream,
        own,
        key,
        equivalence_form,
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
