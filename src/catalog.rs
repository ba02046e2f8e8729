//! What each role may see of all upstreams.
//!
//! The catalog turns per-upstream [`Snapshot`]s into one [`View`] per role. A view holds an item only
//! if its role may use it, so looking a name up is routing and authorization at once, and "forbidden"
//! cannot be told from "unknown".
//!
//! On the way a snapshot becomes a *shelf*: what leaves its upstream at all, under public names, each
//! item rendered once. A role's *part* is what its filter lets through of a shelf. The parts of all
//! upstreams merge into a *table*, and the tables of all kinds are the view. A publish filters its own
//! upstream's items anew and merges the tables of its own kind; nothing else is touched.
//!
//! Invariant: a view changes exactly when something its role can see has changed. What is hidden from a
//! role neither wakes who watches its view, nor takes a URI from another upstream in it.
//!
//! Concurrency: there is one writer at a time, behind a lock. Who reads a view never waits for it: a
//! view is a value behind an `Arc`, replaced whole. Equal tables are one. What takes as long as a list is done by
//! [`bulk`], so that a list of a million items holds nobody up.
//!
//! Knows nothing of: clients, transports, protocol eras, and how a role is written down.

mod cursor;
mod export_rules;
mod exports;
mod instructions;
mod pages;
mod table;
pub mod template;
#[cfg(test)]
mod tests;
mod uri;
mod view;

pub use cursor::{BadCursor, Cursor};
pub use export_rules::Outlet;
pub use exports::{Problem, Problems, Reason};
pub use view::{Page, Route, Target, View};

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::cpu_bound;
use crate::mcp::capabilities::{Capabilities, Tasks};
use crate::mcp::definition::item::Item;
use crate::mcp::kind::Kind;
use crate::mcp::name::{Naming, UpstreamName};
use crate::mcp::uri::CanonicalUri;
use exports::Shelf;
use instructions::Instructions;
use table::{Table, Tables};

/// Decides what one role may see. It is asked while the catalog is locked: it must neither wait nor
/// call the catalog.
pub trait Filter: Send + Sync + 'static {
    /// Whether the role may use this item, by its upstream's own name or URI.
    fn allows(&self, kind: Kind, upstream: &UpstreamName, key: &str) -> bool;
    /// Whether the role may use a resource that its upstream does not list.
    fn allows_uri(&self, upstream: &UpstreamName, uri: &CanonicalUri<'_>) -> bool;
    /// Whether the role may use anything at all of this upstream. Where it may not, `allows` is not
    /// asked.
    fn reaches(&self, upstream: &UpstreamName) -> bool;
}

/// How the merged lists are made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How public names are made.
    pub naming: Naming,
    /// One per upstream, in the order of the file.
    pub outlets: Vec<Outlet>,
    /// How many items a page holds at most.
    pub page_items: usize,
    /// How many bytes of items a page holds at most; a larger item has a page to itself.
    pub page_bytes: usize,
    /// Whether views hand on what upstreams tell models about their use.
    pub instructions: bool,
}

/// All that one upstream lists of one kind.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The items, as listed.
    pub items: Vec<Item>,
    /// When the upstream's own time to live ends, if it gave one.
    pub fresh_until: Option<Instant>,
    /// Whether the upstream says that its list is not the same for everybody.
    pub is_private: bool,
    /// Where the upstream lists more than is read: what that is bounded by.
    pub cut: Option<Arc<str>>,
}

/// What an upstream says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Introduction {
    /// What it can do beyond lists.
    pub capabilities: Capabilities,
    /// What it tells models about its use.
    pub instructions: Option<Arc<str>>,
}

/// The snapshots of all upstreams, and the views that are in use.
pub struct Catalog {
    settings: Arc<Settings>,
    /// By role name. Apart from the writer's lock, so that entering never waits for a rebuild.
    in_use: RwLock<HashMap<Box<str>, Feed>>,
    writer: Mutex<Writer>,
}

/// Where a role's view is handed out.
type Feed = Arc<watch::Sender<Arc<View>>>;

/// What the single writer works on. Everything per upstream is in the order of the file.
#[derive(Default)]
struct Writer {
    sources: Vec<Source>,
    viewers: Vec<Viewer>,
    /// Per kind.
    tables: [Tables; 4],
}

/// What is known of one upstream.
#[derive(Default)]
struct Source {
    /// Per kind; `None` until it is listed for the first time.
    shelves: [Option<Shelf>; 4],
    /// Per kind: what the catalog before this one showed of it, until it is listed here. What stays as it was is the
    /// same in both, so that who has seen it there sees no change.
    former: [Vec<Arc<Target>>; 4],
    introduction: Introduction,
    /// Whether it is left out of all views for now.
    is_hidden: bool,
}

impl Writer {
    /// How many items there are in all.
    fn len(&self) -> usize {
        self.sources.iter().map(Source::len).sum()
    }

    /// How much work it is to merge so many items of one upstream with what all others list: one of those takes about a
    /// thirtieth of the time of a new one.
    fn weight_of(&self, items: usize) -> usize {
        items + self.len() / 32
    }
}

impl Source {
    /// How many items it shows, of all kinds.
    fn len(&self) -> usize {
        self.shelves.iter().flatten().map(|shelf| shelf.targets.len()).sum()
    }

    /// What it shows of a kind; `None` where that is not known, or nothing at all is shown.
    fn shelf(&self, kind: Kind) -> Option<&Shelf> {
        self.shelves[kind.index()].as_ref().filter(|_| !self.is_hidden)
    }
}

impl Catalog {
    /// A catalog of upstreams of which none has been listed.
    pub fn new(settings: Settings) -> Self {
        let sources = settings.outlets.iter().map(|_| Source::default()).collect();
        Self {
            settings: Arc::new(settings),
            in_use: RwLock::default(),
            writer: Mutex::new(Writer { sources, viewers: Vec::new(), tables: Default::default() }),
        }
    }

    /// A catalog by other settings, of which no upstream has been listed either. What will be shown as it is here is
    /// shared with this one.
    pub fn then(&self, settings: Settings) -> Self {
        let next = Self::new(settings);
        {
            let (mine, theirs) = (self.write(), &mut *next.write());
            for (outlet, source) in next.settings.outlets.iter().zip(&mut theirs.sources) {
                let was = self.settings.outlets.iter().position(|was| was.name == outlet.name);
                let Some(was) = was.map(|at| &mine.sources[at]) else { continue };
                cpu_bound::run(was.len(), || {
                    source.former = std::array::from_fn(|kind| match &was.shelves[kind] {
                        Some(shelf) => shelf.targets.clone(),
                        None => was.former[kind].clone(),
                    });
                });
            }
            theirs.tables = mine.tables.clone();
        }
        next
    }

    /// Replaces what an upstream lists of one kind, and wakes who watches a view that shows it.
    pub fn publish(&self, upstream: &UpstreamName, kind: Kind, snapshot: Snapshot) {
        let Some(at) = self.place_of(upstream) else { return };
        let writer = &mut *self.write();
        cpu_bound::run(writer.weight_of(snapshot.items.len()), || {
            self.put(writer, at, kind, snapshot)
        });
    }

    fn put(&self, writer: &mut Writer, at: usize, kind: Kind, snapshot: Snapshot) {
        let upstream = &self.settings.outlets[at].name;
        let source = &mut writer.sources[at];
        let former = std::mem::take(&mut source.former[kind.index()]);
        let place = &mut source.shelves[kind.index()];
        let old = place.as_ref().map_or(&former, |shelf| &shelf.targets);
        let shelf = Shelf::stock(&self.settings, at, kind, snapshot, old);
        let reported = place.as_ref().is_some_and(|old| old.problems == shelf.problems);
        if !reported && !shelf.problems.is_empty() {
            let problems = &shelf.problems;
            tracing::warn!(%upstream, %kind, %problems, "some items are left out of the list");
        }
        *place = Some(shelf);
        for viewer in &mut writer.viewers {
            let tables = &mut writer.tables[kind.index()];
            viewer.follow(&self.settings, &writer.sources, tables, at, kind);
        }
    }

    /// Leaves an upstream out of all views, which say that they miss it, or puts it back with what it listed last.
    pub fn hide(&self, upstream: &UpstreamName, is_hidden: bool) {
        let Some(at) = self.place_of(upstream) else { return };
        let writer = &mut *self.write();
        if std::mem::replace(&mut writer.sources[at].is_hidden, is_hidden) == is_hidden {
            return;
        }
        cpu_bound::run(writer.weight_of(writer.sources[at].len()), || {
            for viewer in &mut writer.viewers {
                for kind in Kind::ALL {
                    let tables = &mut writer.tables[kind.index()];
                    viewer.follow(&self.settings, &writer.sources, tables, at, kind);
                }
            }
        });
    }

    /// Takes what an upstream says of itself, each time that it has connected.
    pub fn introduce(&self, upstream: &UpstreamName, introduction: Introduction) {
        let Some(at) = self.place_of(upstream) else { return };
        let writer = &mut *self.write();
        if writer.sources[at].introduction == introduction {
            return;
        }
        writer.sources[at].introduction = introduction;
        for viewer in &writer.viewers {
            let view = View::clone(&viewer.feed.borrow());
            viewer.show(&self.settings, &writer.sources, view);
        }
    }

    /// The view of a role, made at its first use and kept up to date. The filter that came with the
    /// first use of a role's name holds.
    ///
    /// The receiver has seen the present view: it hears of what changes from now on.
    pub fn view(&self, role: &str, filter: &Arc<dyn Filter>) -> watch::Receiver<Arc<View>> {
        if let Some(feed) = self.feed(role) {
            return feed.subscribe();
        }
        let writer = &mut *self.write();
        // Somebody else may have come first while this one waited for the lock.
        if let Some(feed) = self.feed(role) {
            return feed.subscribe();
        }
        let items = writer.len();
        let Writer { sources, tables, .. } = &mut *writer;
        let viewer = cpu_bound::run(items, || Viewer::new(&self.settings, sources, tables, filter));
        let feed = Arc::clone(&viewer.feed);
        writer.viewers.push(viewer);
        let mut in_use = self.in_use.write().unwrap_or_else(PoisonError::into_inner);
        in_use.insert(role.into(), Arc::clone(&feed));
        feed.subscribe()
    }

    /// What is left out of the lists at present, and why: by upstream in the order of the file, and by
    /// kind. Only where there is something to tell.
    pub fn problems(&self) -> Vec<(UpstreamName, Kind, Problems)> {
        let writer = self.write();
        let mut found = Vec::new();
        for (outlet, source) in self.settings.outlets.iter().zip(&writer.sources) {
            for (kind, shelf) in Kind::ALL.into_iter().zip(&source.shelves) {
                let problems = shelf.iter().map(|shelf| &shelf.problems);
                let problems = problems.filter(|problems| !problems.is_empty());
                found.extend(problems.map(|them| (outlet.name.clone(), kind, them.clone())));
            }
        }
        found
    }

    fn feed(&self, role: &str) -> Option<Feed> {
        self.in_use.read().unwrap_or_else(PoisonError::into_inner).get(role).cloned()
    }

    /// The writer's lock. A panic under it can only come from a filter; each step leaves the state whole,
    /// so that the next writer can go on, and what was cut off is a view that stays as it was.
    fn write(&self) -> MutexGuard<'_, Writer> {
        cpu_bound::lock(&self.writer)
    }

    fn place_of(&self, upstream: &UpstreamName) -> Option<usize> {
        let place = self.settings.outlets.iter().position(|outlet| outlet.name == *upstream);
        if place.is_none() {
            tracing::error!(%upstream, "an upstream without an outlet was published");
        }
        place
    }
}

impl Drop for Catalog {
    /// The last one that has it may be a request.
    fn drop(&mut self) {
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        let items = writer.sources.iter().map(Source::len).sum();
        cpu_bound::discard(items, std::mem::take(writer));
    }
}

// === Viewer ===

/// A role whose view is in use.
struct Viewer {
    filter: Arc<dyn Filter>,
    /// Per upstream: whether the role may use anything of it.
    reaches: Vec<bool>,
    /// Per kind, per upstream: what the filter lets through.
    parts: [Vec<Vec<Arc<Target>>>; 4],
    feed: Feed,
}

impl Viewer {
    fn new(
        settings: &Arc<Settings>,
        sources: &[Source],
        tables: &mut [Tables; 4],
        filter: &Arc<dyn Filter>,
    ) -> Self {
        let outlets = &settings.outlets;
        let reaches = outlets.iter().map(|outlet| filter.reaches(&outlet.name)).collect();
        let view = View::empty(Arc::clone(settings), Arc::clone(filter));
        let mut viewer = Self {
            filter: Arc::clone(filter),
            reaches,
            parts: std::array::from_fn(|_| vec![Vec::new(); outlets.len()]),
            feed: Arc::new(watch::Sender::new(Arc::new(view.clone()))),
        };
        let mut view = view;
        for kind in Kind::ALL {
            for at in 0..outlets.len() {
                viewer.parts[kind.index()][at] = viewer.part(sources, at, kind);
            }
            let table = Table::merge(outlets, &viewer.parts[kind.index()]);
            view.tables[kind.index()] = tables[kind.index()].share(table);
        }
        viewer.show(settings, sources, view);
        viewer
    }

    /// Takes up what one upstream newly lists of one kind.
    fn follow(
        &mut self,
        settings: &Settings,
        sources: &[Source],
        tables: &mut Tables,
        at: usize,
        kind: Kind,
    ) {
        // Nothing in this view may depend on an upstream that it does not reach: not even its times.
        if !self.reaches[at] {
            return;
        }
        let mut view = View::clone(&self.feed.borrow());
        let part = self.part(sources, at, kind);
        let parts = &mut self.parts[kind.index()];
        if part != parts[at] {
            parts[at] = part;
            let table = Table::merge(&settings.outlets, parts);
            // What changed may be hidden behind another upstream's URI all the same.
            if table != *view.tables[kind.index()] {
                view.tables[kind.index()] = tables.share(table);
            }
        }
        self.show(settings, sources, view);
    }

    /// What the role may see of one shelf.
    fn part(&self, sources: &[Source], at: usize, kind: Kind) -> Vec<Arc<Target>> {
        let Some(shelf) = sources[at].shelf(kind) else { return Vec::new() };
        if !self.reaches[at] {
            return Vec::new();
        }
        let allowed =
            |target: &&Arc<Target>| self.filter.allows(kind, &target.upstream, &target.own);
        shelf.targets.iter().filter(allowed).cloned().collect()
    }

    /// Puts into a view what the upstreams say of themselves of which it shows something, and of each only
    /// what it can do for what is shown.
    fn introduce(&self, settings: &Settings, sources: &[Source], view: &mut View) {
        let mut capabilities = Capabilities::default();
        let mut instructions = Instructions::new(&settings.naming);
        for (outlet, source) in settings.outlets.iter().zip(sources) {
            let shows =
                Kind::ALL.map(|kind| !view.tables[kind.index()].of(&outlet.name).is_empty());
            let [prompts, tools, resources, templates] = shows;
            if !shows.contains(&true) {
                continue;
            }
            let Introduction { capabilities: declared, instructions: text } = &source.introduction;
            let mut declared = declared.clone().carried();
            declared.completions &= prompts || templates;
            declared.subscribe &= resources || templates;
            if !tools {
                declared.tasks = Tasks::default();
            }
            capabilities.join(&declared);
            if let Some(text) = text.as_ref().filter(|_| settings.instructions) {
                instructions.add(outlet, prompts || tools, text);
            }
        }
        view.capabilities = Arc::new(capabilities);
        view.instructions = instructions.finish();
    }

    /// Completes a view by what hangs on the state of upstreams and not on their items, and puts it in
    /// the old one's place. Who watches is woken only if the role can see the difference; a list's time
    /// to live alone is none.
    fn show(&self, settings: &Settings, sources: &[Source], mut view: View) {
        for kind in Kind::ALL {
            let at = kind.index();
            let reached = || {
                let all = settings.outlets.iter().zip(sources).zip(&self.reaches);
                all.filter(|(_, reaches)| **reaches)
                    .map(|((outlet, source), _)| (&outlet.name, source.shelf(kind)))
            };
            // What was cut short misses something, too.
            let is_whole =
                |shelf: Option<&Shelf>| shelf.is_some_and(|it| it.problems.cut.is_none());
            let missing =
                reached().filter(|(_, shelf)| !is_whole(*shelf)).map(|(name, _)| name.clone());
            let mut missing: Vec<_> = missing.collect();
            missing.sort();
            view.missing[at] = missing.into();
            let shelves = || reached().filter_map(|(_, shelf)| shelf);
            view.fresh_until[at] = shelves().filter_map(|shelf| shelf.fresh_until).min();
            view.is_private[at] = shelves().any(|shelf| shelf.is_private);
        }
        self.introduce(settings, sources, &mut view);
        // Readers wait while a view is replaced: comparing it, and dropping the old one, is done before and after.
        let old = Arc::clone(&self.feed.borrow());
        let (visible, view) = (!view.looks_like(&old), Arc::new(view));
        self.feed.send_if_modified(|shown| {
            *shown = view;
            visible
        });
    }
}
