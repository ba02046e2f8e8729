//! The merged list of one kind, as one role sees it.
//!
//! Promises: the order is total and the same in every naming mode — by the upstream's name in the file,
//! then by public key, both bytewise — so that a place in it means the same in every table. A key stands
//! in it once: where several upstreams list it, the first in the file keeps it.
//!
//! Knows nothing of: why an item is in a part and another is not.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use super::Outlet;
use super::view::Target;
use crate::mcp::name::UpstreamName;

/// Sorted rows, and the way from a key to its row.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Arc<Target>>,
    /// Which rows are whose, in order; upstreams without a row are not in it.
    sections: Vec<(UpstreamName, Range<usize>)>,
    index: HashSet<ByKey>,
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
        Self { rows, sections, index }
    }

    /// The row of this key.
    pub(super) fn find(&self, key: &str) -> Option<&Arc<Target>> {
        self.index.get(key).map(|found| &found.0)
    }

    /// All rows.
    pub(super) fn rows(&self) -> &[Arc<Target>] {
        &self.rows
    }

    /// The rows behind a place, whether or not something stands there.
    pub(super) fn rows_after(&self, upstream: &UpstreamName, key: &str) -> &[Arc<Target>] {
        let start = self.rows.partition_point(|row| (&row.upstream, &*row.key) <= (upstream, key));
        &self.rows[start..]
    }

    /// The rows of one upstream.
    pub(super) fn of(&self, upstream: &UpstreamName) -> &[Arc<Target>] {
        match self.sections.binary_search_by(|(name, _)| name.cmp(upstream)) {
            Ok(at) => &self.rows[self.sections[at].1.clone()],
            Err(_) => &[],
        }
    }
}

impl PartialEq for Table {
    /// The rest follows from the rows. Unchanged rows are the same `Arc`, which `Arc<T: Eq>` sees
    /// without looking inside.
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
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
