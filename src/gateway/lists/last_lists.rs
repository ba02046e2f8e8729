//! What one upstream last said and listed, and the one way from there into a catalog.
//!
//! Knows nothing of: when it is listed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::debug;

use crate::catalog::{Catalog, Introduction, Snapshot};
use crate::cpu_bound;
use crate::gateway::Sentries;
use crate::mcp::definition::item::Item;
use crate::mcp::definition::shape;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;

/// What one upstream last said and listed, whole: so what is approved, or is no longer, and what another configuration
/// lets out, can be published without asking anybody.
#[derive(Default)]
pub(crate) struct Held(Mutex<Known>);

#[derive(Default, Clone)]
pub(crate) struct Known {
    pub(crate) introduction: Option<Introduction>,
    /// By [`Kind::index`].
    pub(crate) snapshots: [Option<Arc<Snapshot>>; 4],
    /// Whether it is left out of the lists, since it has been away for too long.
    pub(crate) is_hidden: bool,
}

impl Clone for Held {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.lock().clone()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        std::mem::take(&mut self.lock().snapshots).into_iter().for_each(discard);
    }
}

impl Held {
    /// Publishes all that is known of an upstream.
    pub(crate) fn publish(&self, name: &UpstreamName, catalog: &Catalog, sentries: &Sentries) {
        let Known { introduction, snapshots, is_hidden } = self.lock().clone();
        catalog.hide(name, is_hidden);
        introduction.into_iter().for_each(|it| introduce(name, catalog, sentries, it));
        for (kind, snapshot) in Kind::ALL.into_iter().zip(snapshots) {
            snapshot.into_iter().for_each(|it| publish(name, catalog, sentries, kind, &it));
        }
    }

    /// Takes what was listed of a kind in the place of what was listed before.
    pub(crate) fn keep(&self, kind: Kind, snapshot: Arc<Snapshot>) {
        let old = self.lock().snapshots[kind.index()].replace(snapshot);
        // Not under the lock.
        discard(old);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one way into a catalog: what is not approved, what is refused and what some client could not read does not get
/// there. Approved is what the upstream lists; what is redacted and mended comes after that, and the shape last, so that
/// it is that of what is published.
pub(crate) fn publish(
    name: &UpstreamName,
    catalog: &Catalog,
    sentries: &Sentries,
    kind: Kind,
    snapshot: &Snapshot,
) {
    // Few large definitions take as long as many small ones.
    let bytes = snapshot.items.iter().map(|item| item.definition.text_bytes()).sum();
    cpu_bound::run_on_bytes(bytes, || {
        let mut snapshot = snapshot.clone();
        snapshot.items = sentries.pins.screen(name, kind, snapshot.items);
        sentries.guard.publish(name, kind, &mut snapshot.items);
        conform(name, kind, &mut snapshot.items);
        catalog.publish(name, kind, snapshot);
    });
}

/// Mends the definitions that readers of the protocol's revisions would not take, or marks them to be left out.
fn conform(name: &UpstreamName, kind: Kind, items: &mut [Item]) {
    for item in items.iter_mut().filter(|item| item.flaw.is_none()) {
        match shape::conform(kind, &item.key, &item.definition) {
            Ok(None) => {}
            Ok(Some(mended)) => {
                debug!(upstream = %name, %kind, item = ?item.key, "definition mended");
                item.definition = mended;
            }
            Err(bad) => item.flaw = Some(bad.into()),
        }
    }
}

fn discard(snapshot: Option<Arc<Snapshot>>) {
    if let Some(snapshot) = snapshot {
        cpu_bound::discard(snapshot.items.len(), snapshot);
    }
}

pub(crate) fn introduce(
    name: &UpstreamName,
    catalog: &Catalog,
    sentries: &Sentries,
    introduction: Introduction,
) {
    let Introduction { capabilities, instructions } = introduction;
    let instructions = sentries.pins.introduce(name, instructions);
    let instructions = sentries.guard.introduce(name, instructions);
    catalog.introduce(name, Introduction { capabilities, instructions });
}
