//! Catalog: the items of all upstreams as each role may see them.
//!
//! The catalog turns one [`ListSnapshot`] per upstream and kind into one [`RoleView`] per role. A
//! view contains an item only if its role may use it, so a lookup is routing and authorization at
//! once, and a client cannot distinguish "forbidden" from "unknown".
//!
//! Steps: a snapshot becomes [`ExportedItems`] (export rules applied, public names, each item
//! rendered once); the role's filter selects its visible items; the visible items of all upstreams
//! merge into one table per kind; the tables of all kinds are the view. Publishing a list filters
//! only that upstream's items and merges only the tables of that kind.
//!
//! Invariant: a view changes exactly when something that its role can see has changed. An item that
//! is hidden from a role neither wakes watchers of its view nor shadows a URI of another upstream.
//!
//! Concurrency: one writer at a time, behind a lock. Readers never wait for the writer's lock,
//! except at the first use of a role, which builds its view: a view is a value behind an `Arc` and
//! is replaced as a whole. Equal tables are shared. Work proportional to a list runs in
//! [`cpu_bound`], so that a list of a million items does not block other tasks.

mod completion;
mod cursor;
mod expansion;
mod export_rules;
mod exports;
mod instructions;
mod item;
mod pages;
mod problems;
mod table;
pub mod template;
#[cfg(test)]
mod tests;
mod uri;
mod view;

pub use completion::Completion;
pub use cursor::{Cursor, InvalidCursor};
pub use export_rules::ExportRules;
pub use exports::ListSnapshot;
pub use item::ExportedItem;
pub use problems::{ExclusionReason, ExportProblem, ExportProblems, ProblemList};
pub use view::{CatalogPage, RoleView, UriRoute};

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use exports::ExportedItems;
use instructions::Instructions;
use table::{Table, Tables};
use weir_base::tasks::cpu_bound;
use weir_base::tasks::sync::{Mutex, MutexGuard, RwLock};
use weir_mcp::capabilities::{Capabilities, Tasks};
use weir_mcp::kind::Kind;
use weir_mcp::name::{Naming, UpstreamName};
use weir_mcp::pattern::AllowDeny;
use weir_mcp::uri::CanonicalUri;

/// Access rules of one role. The catalog calls it while it is locked: an implementation must
/// neither wait nor call the catalog.
pub trait Filter: Send + Sync + 'static {
    /// Whether the role may use the item with this own name or URI of its upstream.
    fn allows(&self, kind: Kind, upstream: &UpstreamName, key: &str) -> bool;
    /// Whether the role may use a resource that its upstream does not list.
    fn allows_uri(&self, upstream: &UpstreamName, uri: &CanonicalUri<'_>) -> bool;
    /// The rules for resources, over `<upstream>/<URI>`.
    fn resources(&self) -> &AllowDeny;
    /// Whether the role may use anything of this upstream. If not, `allows` is not called.
    fn reaches(&self, upstream: &UpstreamName) -> bool;
}

/// Settings of the merged lists.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Scheme of public names.
    pub naming: Naming,
    /// Export rules, one per upstream, in the order of the configuration file.
    pub exports: Vec<ExportRules>,
    /// Maximum number of items on a page.
    pub page_items: usize,
    /// Maximum bytes of the items on a page; a larger item has a page of its own.
    pub page_bytes: usize,
    /// Whether views contain the instructions of upstreams.
    pub instructions: bool,
}

/// Capabilities and instructions that an upstream declares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamInfo {
    /// Capabilities beyond lists.
    pub capabilities: Capabilities,
    /// Instructions to models about its use.
    pub instructions: Option<Arc<str>>,
}

/// The lists of all upstreams, and the views of the roles in use.
pub struct Catalog {
    settings: Arc<Settings>,
    /// By role name. Separate from the writer's lock, so that authentication never waits for a
    /// rebuild.
    in_use: RwLock<HashMap<Box<str>, ViewSender>>,
    writer: Mutex<WriterState>,
}

/// Sender of a role's view.
type ViewSender = Arc<watch::Sender<Arc<RoleView>>>;

/// State of the single writer. Everything per upstream is in the order of the configuration file.
#[derive(Default)]
struct WriterState {
    sources: Vec<CatalogSource>,
    view_builders: Vec<RoleViewBuilder>,
    /// Per kind.
    tables: [Tables; 4],
}

/// State of one upstream.
#[derive(Default)]
struct CatalogSource {
    /// Per kind; `None` until it is listed for the first time.
    exported: [Option<ExportedItems>; 4],
    /// Per kind: the items of the previous catalog, until the kind is listed here. Unchanged items
    /// are shared by both, so that a client that saw them there sees no change.
    previous: [Vec<Arc<ExportedItem>>; 4],
    info: UpstreamInfo,
    /// Whether the upstream is hidden from all views.
    is_hidden: bool,
    /// Per kind: the items that another upstream, which is first in the file, lists as well.
    owned_by_others: [ProblemList; 4],
}

impl WriterState {
    /// Number of items of all upstreams.
    fn len(&self) -> usize {
        self.sources.iter().map(CatalogSource::len).sum()
    }

    /// Cost of merging this many items of one upstream with the items of all others, in new items:
    /// an existing item takes about a thirtieth of the time of a new one.
    fn weight_of(&self, items: usize) -> usize {
        items + self.len() / 32
    }
}

impl CatalogSource {
    /// Number of exported items of all kinds.
    fn len(&self) -> usize {
        self.exported.iter().flatten().map(|exported| exported.items.len()).sum()
    }

    /// Exported items of a kind; `None` if the kind was never listed or the upstream is hidden.
    fn exported(&self, kind: Kind) -> Option<&ExportedItems> {
        self.exported[kind.index()].as_ref().filter(|_| !self.is_hidden)
    }
}

impl Catalog {
    /// Creates a catalog of upstreams that have not been listed yet.
    pub fn new(settings: Settings) -> Self {
        let sources = settings.exports.iter().map(|_| CatalogSource::default()).collect();
        Self {
            settings: Arc::new(settings),
            in_use: RwLock::default(),
            writer: Mutex::new(WriterState { sources, ..WriterState::default() }),
        }
    }

    /// Creates a catalog with other settings, of which no upstream has been listed yet. Items that
    /// will be unchanged are shared with this catalog.
    pub fn with_settings(&self, settings: Settings) -> Self {
        let next = Self::new(settings);
        {
            let (mine, theirs) = (self.lock_writer(), &mut *next.lock_writer());
            for (export, source) in next.settings.exports.iter().zip(&mut theirs.sources) {
                let was = self.settings.exports.iter().position(|was| was.name == export.name);
                let Some(was) = was.map(|index| &mine.sources[index]) else { continue };
                cpu_bound::run(was.len(), || {
                    source.previous = std::array::from_fn(|kind| match &was.exported[kind] {
                        Some(exported) => exported.items.clone(),
                        None => was.previous[kind].clone(),
                    });
                });
            }
            theirs.tables = mine.tables.clone();
        }
        next
    }

    /// Replaces an upstream's list of one kind, and wakes watchers of the views that change.
    pub fn publish(&self, upstream: &UpstreamName, kind: Kind, snapshot: ListSnapshot) {
        let Some(upstream_index) = self.index_of(upstream) else { return };
        let writer = &mut *self.lock_writer();
        cpu_bound::run(writer.weight_of(snapshot.items.len()), || {
            self.replace_list(writer, upstream_index, kind, snapshot)
        });
    }

    fn replace_list(
        &self,
        writer: &mut WriterState,
        upstream_index: usize,
        kind: Kind,
        snapshot: ListSnapshot,
    ) {
        let upstream = &self.settings.exports[upstream_index].name;
        let source = &mut writer.sources[upstream_index];
        let previous = std::mem::take(&mut source.previous[kind.index()]);
        let slot = &mut source.exported[kind.index()];
        let old = slot.as_ref().map_or(&previous, |exported| &exported.items);
        let exported = ExportedItems::build(&self.settings, upstream_index, kind, snapshot, old);
        let reported = slot.as_ref().map(|old| &old.problems);
        let (problems, altered) = (&exported.problems, &exported.problems.altered);
        let text = problems.to_string();
        if !text.is_empty() && reported.is_none_or(|old| old.to_string() != text) {
            tracing::warn!(%upstream, %kind, problems = text, "items excluded from the list");
        }
        if !altered.is_empty() && reported.is_none_or(|old| old.altered != *altered) {
            tracing::info!(%upstream, %kind, %altered, "definitions altered for clients");
        }
        *slot = Some(exported);
        self.refresh_views(writer, upstream_index, kind);
    }

    /// Updates all views after a change of one upstream's list of one kind.
    fn refresh_views(&self, writer: &mut WriterState, upstream_index: usize, kind: Kind) {
        // Public names of prompts and tools differ by the prefix of their upstream.
        if !kind.has_name() {
            problems::find_owned_by_others(&self.settings.exports, &mut writer.sources, kind);
        }
        let WriterState { sources, view_builders, tables } = writer;
        for builder in view_builders {
            let tables = &mut tables[kind.index()];
            builder.refresh_upstream(&self.settings, sources, tables, upstream_index, kind);
        }
    }

    /// Removes the lists, capabilities and instructions of an upstream: all views report it as
    /// missing.
    pub fn clear(&self, upstream: &UpstreamName) {
        self.set_upstream_info(upstream, UpstreamInfo::default());
        let Some(upstream_index) = self.index_of(upstream) else { return };
        let writer = &mut *self.lock_writer();
        cpu_bound::run(writer.len(), || {
            let source = &mut writer.sources[upstream_index];
            (source.previous, source.exported) = Default::default();
            for kind in Kind::ALL {
                self.refresh_views(writer, upstream_index, kind);
            }
        });
    }

    /// Hides an upstream from all views, which report it as missing, or shows it again with its
    /// last lists.
    pub fn hide(&self, upstream: &UpstreamName, is_hidden: bool) {
        let Some(upstream_index) = self.index_of(upstream) else { return };
        let writer = &mut *self.lock_writer();
        if std::mem::replace(&mut writer.sources[upstream_index].is_hidden, is_hidden) == is_hidden
        {
            return;
        }
        cpu_bound::run(writer.weight_of(writer.sources[upstream_index].len()), || {
            Kind::ALL.into_iter().for_each(|kind| self.refresh_views(writer, upstream_index, kind));
        });
    }

    /// Updates the capabilities and instructions of an upstream, each time that it has connected.
    pub fn set_upstream_info(&self, upstream: &UpstreamName, info: UpstreamInfo) {
        let Some(upstream_index) = self.index_of(upstream) else { return };
        let writer = &mut *self.lock_writer();
        if writer.sources[upstream_index].info == info {
            return;
        }
        writer.sources[upstream_index].info = info;
        for builder in &writer.view_builders {
            let view = RoleView::clone(&builder.sender.borrow());
            builder.publish_view(&self.settings, &writer.sources, view);
        }
    }

    /// The view of a role, built at its first use and updated from then on. The filter of the first
    /// call for a role's name stays in use.
    ///
    /// The receiver has seen the current view: it is notified of later changes.
    pub fn view(&self, role: &str, filter: &Arc<dyn Filter>) -> watch::Receiver<Arc<RoleView>> {
        if let Some(sender) = self.sender(role) {
            return sender.subscribe();
        }
        let writer = &mut *self.lock_writer();
        // Another task may have built the view while this one waited for the lock.
        if let Some(sender) = self.sender(role) {
            return sender.subscribe();
        }
        let items = writer.len();
        let WriterState { sources, tables, .. } = &mut *writer;
        let builder =
            cpu_bound::run(items, || RoleViewBuilder::new(&self.settings, sources, tables, filter));
        let sender = Arc::clone(&builder.sender);
        writer.view_builders.push(builder);
        let mut in_use = self.in_use.write();
        in_use.insert(role.into(), Arc::clone(&sender));
        sender.subscribe()
    }

    /// Currently excluded items with the reasons, by upstream in the order of the configuration
    /// file and by kind. Upstreams and kinds without problems are omitted.
    pub fn problems(&self) -> Vec<(UpstreamName, Kind, ExportProblems)> {
        problems::of_all(&self.settings.exports, &self.lock_writer().sources)
    }

    /// Hash of all lists, equal in processes that list the same.
    pub fn digest(&self) -> u64 {
        let writer = self.lock_writer();
        let exported = writer.sources.iter().flat_map(|source| source.exported.iter().flatten());
        exported.fold(0, |digest, exported| digest ^ exported.digest)
    }

    fn sender(&self, role: &str) -> Option<ViewSender> {
        self.in_use.read().get(role).cloned()
    }

    /// Locks the writer. A panic under the lock can only come from a filter; each step leaves the
    /// state consistent, so that the next writer can continue, and the interrupted view stays
    /// unchanged.
    fn lock_writer(&self) -> MutexGuard<'_, WriterState> {
        cpu_bound::lock(&self.writer)
    }

    fn index_of(&self, upstream: &UpstreamName) -> Option<usize> {
        let index = self.settings.exports.iter().position(|export| export.name == *upstream);
        if index.is_none() {
            tracing::error!(%upstream, "list published for an unknown upstream");
        }
        index
    }
}

impl Drop for Catalog {
    // The last owner may be a request, which must not spend the time to free a large catalog.
    fn drop(&mut self) {
        let writer = self.writer.get_mut();
        let items = writer.sources.iter().map(CatalogSource::len).sum();
        cpu_bound::discard(items, std::mem::take(writer));
    }
}

// === RoleViewBuilder ===

/// Builder of the view of one role in use.
struct RoleViewBuilder {
    filter: Arc<dyn Filter>,
    /// Per upstream: whether the role may use anything of it.
    reaches: Vec<bool>,
    /// Per kind, per upstream: the items that the filter allows.
    visible_items: [Vec<Vec<Arc<ExportedItem>>>; 4],
    sender: ViewSender,
}

impl RoleViewBuilder {
    fn new(
        settings: &Arc<Settings>,
        sources: &[CatalogSource],
        tables: &mut [Tables; 4],
        filter: &Arc<dyn Filter>,
    ) -> Self {
        let exports = &settings.exports;
        let reaches = exports.iter().map(|export| filter.reaches(&export.name)).collect();
        let mut view = RoleView::empty(Arc::clone(settings), Arc::clone(filter));
        let mut builder = Self {
            filter: Arc::clone(filter),
            reaches,
            visible_items: std::array::from_fn(|_| vec![Vec::new(); exports.len()]),
            sender: Arc::new(watch::Sender::new(Arc::new(view.clone()))),
        };
        for kind in Kind::ALL {
            for upstream_index in 0..exports.len() {
                builder.visible_items[kind.index()][upstream_index] =
                    builder.visible_items(sources, upstream_index, kind);
            }
            let table = Table::merge(exports, &builder.visible_items[kind.index()]);
            view.tables[kind.index()] = tables[kind.index()].share(table);
        }
        builder.publish_view(settings, sources, view);
        builder
    }

    /// Updates the view after a change of one upstream's list of one kind.
    fn refresh_upstream(
        &mut self,
        settings: &Settings,
        sources: &[CatalogSource],
        tables: &mut Tables,
        upstream_index: usize,
        kind: Kind,
    ) {
        // Nothing in this view may depend on an upstream that the role does not reach, not even its
        // times to live.
        if !self.reaches[upstream_index] {
            return;
        }
        let mut view = RoleView::clone(&self.sender.borrow());
        let visible = self.visible_items(sources, upstream_index, kind);
        let visible_items = &mut self.visible_items[kind.index()];
        if visible != visible_items[upstream_index] {
            visible_items[upstream_index] = visible;
            let table = Table::merge(&settings.exports, visible_items);
            // The changed items may still be shadowed by another upstream's URI.
            if table != *view.tables[kind.index()] {
                view.tables[kind.index()] = tables.share(table);
            }
        }
        self.publish_view(settings, sources, view);
    }

    /// The items of one upstream and kind that the role may see.
    fn visible_items(
        &self,
        sources: &[CatalogSource],
        upstream_index: usize,
        kind: Kind,
    ) -> Vec<Arc<ExportedItem>> {
        let Some(exported) = sources[upstream_index].exported(kind) else { return Vec::new() };
        if !self.reaches[upstream_index] {
            return Vec::new();
        }
        let allowed =
            |target: &&Arc<ExportedItem>| self.filter.allows(kind, &target.upstream, &target.own);
        exported.items.iter().filter(allowed).cloned().collect()
    }

    /// Sets the view's capabilities and instructions: those of the upstreams with a visible item,
    /// and of each upstream only the capabilities that apply to its visible items.
    fn apply_upstream_info(
        &self,
        settings: &Settings,
        sources: &[CatalogSource],
        view: &mut RoleView,
    ) {
        let mut capabilities = Capabilities::default();
        let mut instructions = Instructions::new(&settings.naming);
        for (export, source) in settings.exports.iter().zip(sources) {
            let shows =
                Kind::ALL.map(|kind| !view.tables[kind.index()].of(&export.name).is_empty());
            let [prompts, tools, resources, templates] = shows;
            if !shows.contains(&true) {
                continue;
            }
            let UpstreamInfo { capabilities: declared, instructions: text } = &source.info;
            let mut declared = declared.clone().forwarded();
            declared.completions &= prompts || templates;
            declared.subscribe &= resources || templates;
            if !tools {
                declared.tasks = Tasks::default();
            }
            capabilities.join(&declared);
            if let Some(text) = text.as_ref().filter(|_| settings.instructions) {
                instructions.add(export, prompts || tools, text);
            }
        }
        view.capabilities = Arc::new(capabilities);
        view.instructions = instructions.finish();
    }

    /// Completes a view with the state of upstreams beyond their items, and replaces the current
    /// view. Watchers are woken only if the role can see the difference; a changed time to live
    /// alone does not count.
    fn publish_view(&self, settings: &Settings, sources: &[CatalogSource], mut view: RoleView) {
        for kind in Kind::ALL {
            let kind_index = kind.index();
            let reached = || {
                let all = settings.exports.iter().zip(sources).zip(&self.reaches);
                all.filter(|(_, reaches)| **reaches)
                    .map(|((export, source), _)| (&export.name, source.exported(kind)))
            };
            // A truncated list is incomplete, too.
            let is_whole = |exported: Option<&ExportedItems>| {
                exported.is_some_and(|it| it.problems.cut.is_none())
            };
            let missing = reached()
                .filter(|(_, exported)| !is_whole(*exported))
                .map(|(name, _)| name.clone());
            let mut missing: Vec<_> = missing.collect();
            missing.sort();
            view.missing[kind_index] = missing.into();
            let exported = || reached().filter_map(|(_, exported)| exported);
            view.fresh_until[kind_index] =
                exported().filter_map(|exported| exported.fresh_until).min();
            view.is_private[kind_index] = exported().any(|exported| exported.is_private);
        }
        self.apply_upstream_info(settings, sources, &mut view);
        // The `watch` lock is held only for the swap: the views are compared before it, and the old
        // one is dropped after it.
        let old = Arc::clone(&self.sender.borrow());
        let (is_visible_change, view) = (!view.is_equivalent(&old), Arc::new(view));
        self.sender.send_if_modified(|current| {
            *current = view;
            is_visible_change
        });
    }
}
