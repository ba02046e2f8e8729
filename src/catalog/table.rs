//! The merged list of one kind, as one role sees it.
//!
//! Promises: the order is total and the same in every naming mode — by the upstream's name in the file,
//! then by public key, both bytewise — so that a place in it means the same in every table. A key stands
//! in it once: where several upstreams list it, the first in the file keeps it.
//!
//! Knows nothing of: why an item is in a part and another is not.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::Outlet;
use super::pages::Pages;
use super::view::Target;
use crate::cpu_bound;
use crate::mcp::name::UpstreamName;

/// Sorted rows, and the way from a key to its row.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Arc<Target>>,
    /// Which rows are whose, in order; upstreams without a row are not in it.
    sections: Vec<(UpstreamName, Range<usize>)>,
    index: HashSet<ByKey>,
    pages: Pages,
}

impl Table {
    /// Merges the parts of all upstreams, which stand in the order of the file, each sorted by key.
    pub(super) fn merge(outlets: &[Outlet], parts: &[Vec<Arc<Target>>]) -> Self {
        let count = parts.iter().map(Vec::len).sum();
        let mut index = HashSet::with_capacity(count);
        for target in parts.iter().flatten() {
            // `insert` keeps what is there: the first in the file.
            index.insert(ByKey(Arc::clone(target)));
        }
        let unique = index.len() == count;
        let keeps = |target: &Arc<Target>| {
            let keeper = index.get(&*target.key);
            unique || keeper.is_some_and(|keeper| Arc::ptr_eq(&keeper.0, target))
        };

        let mut by_name: Vec<_> = outlets.iter().map(|outlet| &outlet.name).zip(parts).collect();
        by_name.sort_by_key(|(name, _)| *name);
        let mut rows = Vec::with_capacity(index.len());
        let mut sections = Vec::new();
        for (name, part) in by_name {
            let start = rows.len();
            rows.extend(part.iter().filter(|target| keeps(target)).cloned());
            if rows.len() > start {
                sections.push((name.clone(), start..rows.len()));
            }
        }
        Self { rows, sections, index, pages: Pages::default() }
    }

    /// The row of this key.
    pub(super) fn find(&self, key: &str) -> Option<&Arc<Target>> {
        self.index.get(key).map(|found| &found.0)
    }

    /// All rows.
    pub(super) fn rows(&self) -> &[Arc<Target>] {
        &self.rows
    }

    /// How many rows stand before what is behind a place, whether or not something stands there.
    pub(super) fn place_after(&self, upstream: &UpstreamName, key: &str) -> usize {
        self.rows.partition_point(|row| (&row.upstream, &*row.key) <= (upstream, key))
    }

    /// Its pages, as they are sent.
    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The rows of one upstream.
    pub(super) fn of(&self, upstream: &UpstreamName) -> &[Arc<Target>] {
        match self.sections.binary_search_by(|(name, _)| name.cmp(upstream)) {
            Ok(at) => &self.rows[self.sections[at].1.clone()],
            Err(_) => &[],
        }
    }
}

impl Drop for Table {
    /// The last one that has it may be a request, or a stream that compares it with a newer one.
    fn drop(&mut self) {
        let (rows, index) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.index));
        cpu_bound::discard(rows.len(), (rows, index));
    }
}

impl PartialEq for Table {
    /// The rest follows from the rows. Unchanged rows are the same `Arc`, which `Arc<T: Eq>` sees
    /// without looking inside.
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

/// The tables of one kind that are in use. Views that show the same share one, whatever rules they come from.
#[derive(Default, Clone)]
pub(super) struct Tables {
    /// By a hash of where the rows are in memory: an item that many see is there once.
    by_rows: HashMap<u64, Vec<Weak<Table>>>,
    /// From how many on those that nobody has any more are looked for.
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

/// A target that is found by its public key.
struct ByKey(Arc<Target>);

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
