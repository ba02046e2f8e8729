//! Last lists of one upstream in memory, and their publication in a catalog.

use std::sync::Arc;

use crate::Inspectors;
use weir_access::catalog::{Catalog, ListSnapshot, UpstreamInfo, template};
use weir_base::tasks::cpu_bound;
use weir_base::tasks::sync::{Mutex, MutexGuard};
use weir_mcp::definition::item::{Item, ItemDefect};
use weir_mcp::definition::shape;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_oauth::SignInNumber;
use weir_upstream::health::author_notes::Occurrences;

/// Last lists of one upstream: all items of each kind that were read. When approvals or the
/// configuration change, they are published again without a request to the upstream.
#[derive(Default)]
pub(crate) struct LastLists(Mutex<LastListsState>);

#[derive(Default, Clone)]
pub(crate) struct LastListsState {
    pub(crate) info: Option<UpstreamInfo>,
    /// By [`Kind::index`].
    pub(crate) snapshots: [Option<Arc<ListSnapshot>>; 4],
    /// Whether the upstream is hidden from the lists because it has been down for too long.
    pub(crate) is_hidden: bool,
    /// Sign-in for which they were read.
    pub(crate) sign_in: Option<SignInNumber>,
}

impl Clone for LastLists {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.lock().clone()))
    }
}

impl Drop for LastLists {
    fn drop(&mut self) {
        std::mem::take(&mut self.lock().snapshots).into_iter().for_each(discard);
    }
}

impl LastLists {
    /// Publishes everything that is known about the upstream.
    pub(crate) fn republish(
        &self,
        name: &UpstreamName,
        catalog: &Catalog,
        inspectors: &Inspectors,
    ) {
        let LastListsState { info, snapshots, is_hidden, .. } = self.lock().clone();
        catalog.hide(name, is_hidden);
        info.into_iter().for_each(|it| publish_info(name, catalog, inspectors, it));
        for (kind, snapshot) in Kind::ALL.into_iter().zip(snapshots) {
            if let Some(snapshot) = snapshot {
                publish_list(name, catalog, inspectors, kind, &snapshot);
            }
        }
    }

    /// Forgets the lists unless they were read for this sign-in. Returns whether they were read for
    /// another one.
    pub(crate) fn begin(&self, sign_in: Option<SignInNumber>) -> bool {
        let is_other = std::mem::replace(&mut self.lock().sign_in, sign_in) != sign_in;
        if is_other {
            self.lock().info = None;
            let old = std::mem::take(&mut self.lock().snapshots);
            // Outside of the lock, because dropping a long list takes time.
            old.into_iter().for_each(discard);
        }
        is_other
    }

    /// Replaces the list of a kind.
    pub(crate) fn replace(&self, kind: Kind, snapshot: Arc<ListSnapshot>) {
        let old = self.lock().snapshots[kind.index()].replace(snapshot);
        // Outside of the lock, because dropping a long list takes time.
        discard(old);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LastListsState> {
        self.0.lock()
    }
}

/// Publishes a list in a catalog after the content checks. This is the only path into a catalog:
/// unapproved items, items that the guard rejects and items that some client could not read are
/// removed. Pinning compares the original definitions; redaction follows, and the check of shapes
/// is last, so that it applies to the published text.
///
/// Returns the tools whose `inputSchema` had to be repaired.
pub(crate) fn publish_list(
    name: &UpstreamName,
    catalog: &Catalog,
    inspectors: &Inspectors,
    kind: Kind,
    snapshot: &ListSnapshot,
) -> Occurrences {
    // The cost depends on the bytes: few large definitions take as long as many small ones.
    let bytes = snapshot.items.iter().map(|item| item.definition.text_len()).sum();
    cpu_bound::run_on_bytes(bytes, || {
        let mut snapshot = snapshot.clone();
        let has_definition = |item: &Item| item.defect.is_none_or(ItemDefect::has_definition);
        let (items, excluded) = snapshot.items.into_iter().partition(has_definition);
        snapshot.items = inspectors.pins.filter_approved(name, kind, items);
        snapshot.items.extend::<Vec<_>>(excluded);
        inspectors.guard.inspect_definitions(name, kind, &mut snapshot.items);
        let repaired_schemas = conform(kind, &mut snapshot.items);
        catalog.publish(name, kind, snapshot);
        repaired_schemas
    })
}

/// Repairs definitions that clients of some revision would reject, or marks them as defective, and
/// so it does with templates that no client could use. Returns the tools whose `inputSchema` it has
/// repaired.
fn conform(kind: Kind, items: &mut [Item]) -> Occurrences {
    let mut repaired_schemas = Occurrences::default();
    for item in items.iter_mut().filter(|item| item.defect.is_none()) {
        match shape::conform(kind, &item.key, &item.definition) {
            Ok(None) => {}
            Ok(Some(mended)) => {
                if kind == Kind::Tool && shape::is_schema_repaired(&item.definition, &mended) {
                    repaired_schemas.add(item.key.as_bytes());
                }
                item.add_alterations(&shape::describe_repairs(&item.definition, &mended));
                item.definition = mended;
            }
            Err(bad) => item.defect = Some(bad.into()),
        }
        if kind == Kind::Template && item.defect.is_none() && !template::is_usable(&item.key) {
            item.defect = Some(ItemDefect::NoUsableUri);
        }
    }
    repaired_schemas
}

fn discard(snapshot: Option<Arc<ListSnapshot>>) {
    if let Some(snapshot) = snapshot {
        cpu_bound::discard(snapshot.items.len(), snapshot);
    }
}

/// Publishes the capabilities and instructions of an upstream after the content checks.
pub(crate) fn publish_info(
    name: &UpstreamName,
    catalog: &Catalog,
    inspectors: &Inspectors,
    info: UpstreamInfo,
) {
    let UpstreamInfo { capabilities, instructions } = info;
    let instructions = inspectors.pins.filter_instructions(name, instructions);
    let instructions = inspectors.guard.inspect_instructions(name, instructions);
    catalog.set_upstream_info(name, UpstreamInfo { capabilities, instructions });
}
