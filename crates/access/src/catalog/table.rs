//! Table: the merged list of one kind, as one role sees it.
//!
//! Invariants: the order is total and the same in every naming mode — by the upstream's name in the
//! file, then by public key, both bytewise — so that a position means the same in every table. A
//! key occurs once: if several upstreams list it, the first in the file owns it.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::ExportRules;
use super::item::ExportedItem;
use super::pages::Pages;
use weir_base::tasks::cpu_bound;
use weir_mcp::name::UpstreamName;
use weir_mcp::uri::equivalence_form;

/// Sorted rows with an index by key.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Arc<ExportedItem>>,
    /// The range of rows of each upstream, in order; upstreams without a row are omitted.
    sections: Vec<(UpstreamName, Range<usize>)>,
    index: HashSet<ByKey>,
    /// The rows whose key is not in the form that equivalent URIs share, by this form; `None` if
    /// there are several.
    by_equivalence_form: HashMap<Box<str>, Option<Arc<ExportedItem>>>,
    pages: Pages,
}

impl Table {
    /// Merges the visible items of all upstreams, in the order of the file, each sorted by key.
    pub(super) fn merge(exports: &[ExportRules], visible_items: &[Vec<Arc<ExportedItem>>]) -> Self {
        let count = visible_items.iter().map(Vec::len).sum();
        let mut index = HashSet::with_capacity(count);
        for target in visible_items.iter().flatten() {
            // `insert` does not replace: the first upstream in the file owns the key.
            index.insert(ByKey(Arc::clone(target)));
        }
        let unique = index.len() == count;
        let keeps = |target: &Arc<ExportedItem>| {
            let keeper = index.get(&*target.key);
            unique || keeper.is_some_and(|keeper| Arc::ptr_eq(&keeper.0, target))
        };

        let mut by_name: Vec<_> =
            exports.iter().map(|export| &export.name).zip(visible_items).collect();
        by_name.sort_by_key(|(name, _)| *name);
        let mut rows = Vec::with_capacity(index.len());
        let mut sections = Vec::new();
        for (name, visible) in by_name {
            let start = rows.len();
            rows.extend(visible.iter().filter(|target| keeps(target)).cloned());
            if rows.len() > start {
                sections.push((name.clone(), start..rows.len()));
            }
        }
        let mut by_equivalence_form = HashMap::new();
        for row in &rows {
            if let Some(form) = &row.equivalence_form {
                let found = by_equivalence_form.entry(form.clone());
                found.and_modify(|known| *known = None).or_insert_with(|| Some(Arc::clone(row)));
            }
        }
        Self { rows, sections, index, by_equivalence_form, pages: Pages::default() }
    }

    /// The row with this key.
    pub(super) fn find(&self, key: &str) -> Option<&Arc<ExportedItem>> {
        self.index.get(key).map(|found| &found.0)
    }

    /// The only row with a URI that is equivalent to this one.
    pub(super) fn find_equivalent(&self, uri: &str) -> Option<&Arc<ExportedItem>> {
        let form = equivalence_form(uri)?;
        match (self.find(&form), self.by_equivalence_form.get(&*form)) {
            (Some(row), None) => Some(row),
            (None, Some(row)) => row.as_ref(),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }

    /// All rows.
    pub(super) fn rows(&self) -> &[Arc<ExportedItem>] {
        &self.rows
    }

    /// Index of the first row after a position, whether or not there is a row at the position.
    #[inline]
    pub(super) fn place_after(&self, upstream: &UpstreamName, key: &str) -> usize {
        self.rows.partition_point(|row| (&row.upstream, &*row.key) <= (upstream, key))
    }

    /// The cached pages of the table.
    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The rows of one upstream.
    pub(super) fn of(&self, upstream: &UpstreamName) -> &[Arc<ExportedItem>] {
        match self.sections.binary_search_by(|(name, _)| name.cmp(upstream)) {
            Ok(at) => &self.rows[self.sections[at].1.clone()],
            Err(_) => &[],
        }
    }
}

impl Drop for Table {
    // The last owner may be a request, or a stream that compares the table with a newer one;
    // neither must spend the time to free it.
    fn drop(&mut self) {
        let Self { rows, index, by_equivalence_form, .. } = self;
        let (rows, index) = (std::mem::take(rows), std::mem::take(index));
        cpu_bound::discard(rows.len(), (rows, index, std::mem::take(by_equivalence_form)));
    }
}

impl PartialEq for Table {
    // The rest follows from the rows. Unchanged rows are the same `Arc`, which `Arc<T: Eq>`
    // compares by pointer.
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

/// Tables of one kind in use. Views with the same rows share a table, whatever their rules are.
#[derive(Default, Clone)]
pub(super) struct Tables {
    /// By a hash of the rows' addresses: an item is in memory once, however many views have it.
    by_rows: HashMap<u64, Vec<Weak<Table>>>,
    /// Number of entries from which on unused tables are removed.
    sweep_at: usize,
}

impl Tables {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_rows.len()
    }

    /// The table, or an equal one that is in use.
    pub(super) fn share(&mut self, table: Table) -> Arc<Table> {
        if self.by_rows.len() >= self.sweep_at {
            self.by_rows.retain(|_, tables| tables.iter().any(|table| table.strong_count() > 0));
            self.sweep_at = 2 * self.by_rows.len() + 16;
        }
        let mut hasher = DefaultHasher::new();
        table.rows.iter().for_each(|row| Arc::as_ptr(row).hash(&mut hasher));
        let tables = self.by_rows.entry(hasher.finish()).or_default();
        tables.retain(|table| table.strong_count() > 0);
        let is_equal = |other: &Arc<Table>| **other == table;
        if let Some(other) = tables.iter().filter_map(Weak::upgrade).find(is_equal) {
            return other;
        }
        let table = Arc::new(table);
        tables.push(Arc::downgrade(&table));
        table
    }
}

/// An item that is hashed by its public key.
struct ByKey(Arc<ExportedItem>);

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        &self.0.key
    }
}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (*self.0.key).hash(state);
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}
