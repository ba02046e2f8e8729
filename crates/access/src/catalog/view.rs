//! View of one role: an immutable snapshot of all that the role may use.
//!
//! Invariants: it answers from memory and never waits; no name, URI or cursor yields an item that
//! the role may not use; for prompts, tools and listed resources "listed" and "callable" are the
//! same set. Items that a client of a revision cannot use are omitted from its pages (see
//! [`ExportedItem::is_for`]).

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use super::cursor::Cursor;
use super::item::ExportedItem;
use super::pages::{PageKey, RenderedPage};
use super::table::Table;
use super::{ExportRules, Filter, Settings, template, uri};
use weir_base::json;
use weir_base::tasks::cpu_bound;
use weir_mcp::capabilities::Capabilities;
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::name::UpstreamName;
use weir_mcp::pattern::AllowDeny;
use weir_mcp::uri::{CanonicalUri, NotCanonical};

/// Everything that one role may use. Only the catalog creates one.
#[derive(Clone)]
pub struct RoleView {
    /// Per kind.
    pub(super) tables: [Arc<Table>; 4],
    /// Per kind: upstreams that the role reaches and whose list is unknown, hidden or truncated, by
    /// name.
    pub(super) missing: [Arc<[UpstreamName]>; 4],
    /// Per kind: the earliest end of the times to live of its lists.
    pub(super) fresh_until: [Option<Instant>; 4],
    /// Per kind: whether one of these lists differs between clients.
    pub(super) is_private: [bool; 4],
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) instructions: Option<Arc<str>>,
    settings: Arc<Settings>,
    /// For URIs that no upstream lists; everything else was filtered when the tables were built.
    filter: Arc<dyn Filter>,
}

impl RoleView {
    pub(super) fn empty(settings: Arc<Settings>, filter: Arc<dyn Filter>) -> Self {
        Self {
            tables: Default::default(),
            missing: std::array::from_fn(|_| Arc::from([])),
            fresh_until: [None; 4],
            is_private: [false; 4],
            capabilities: Arc::default(),
            instructions: None,
            settings,
            filter,
        }
    }

    /// The page that begins after `after`. No upstream is contacted.
    ///
    /// A cursor is only a position in the order: its item, or the whole upstream, may have
    /// vanished, or may never have been visible here.
    pub fn page(&self, kind: Kind, after: Option<&Cursor>, form: DefinitionForm) -> CatalogPage {
        let table = &self.tables[kind.index()];
        let place = |cursor: &Cursor| table.place_after(&cursor.upstream, &cursor.key);
        let page = self.rendered_page(table, after.map_or(0, place), form);
        CatalogPage {
            items: page.items.clone(),
            next: page.next.as_ref().map(|(next, _)| next.clone()),
            partial: self.missing(kind).to_vec(),
            fresh_for: self.fresh_until[kind.index()]
                .map(|until| until.saturating_duration_since(Instant::now())),
            is_private: self.is_private[kind.index()],
        }
    }

    /// Number of items on the first page of a list, and on all its pages.
    pub fn first_page_size(&self, kind: Kind, form: DefinitionForm) -> (usize, usize) {
        let table = &self.tables[kind.index()];
        let count = |rows: &[Arc<ExportedItem>]| rows.iter().filter(|row| row.is_for(form)).count();
        let page = self.rendered_page(table, 0, form);
        let end = page.next.as_ref().map_or(table.rows().len(), |(_, start)| *start);
        (count(&table.rows()[..end]), count(table.rows()))
    }

    fn rendered_page(
        &self,
        table: &Table,
        start: usize,
        form: DefinitionForm,
    ) -> Arc<RenderedPage> {
        let (max_items, max_bytes) = (self.settings.page_items.max(1), self.settings.page_bytes);
        let key = PageKey { form, start, max_items, max_bytes };
        table.pages().get(key, || render(table.rows(), key))
    }

    /// All listed items of a kind, in the order of the list.
    pub fn items(&self, kind: Kind) -> &[Arc<ExportedItem>] {
        self.tables[kind.index()].rows()
    }

    /// The item with this public key, for get, call and completion.
    pub fn resolve(&self, kind: Kind, key: &str) -> Option<Arc<ExportedItem>> {
        self.tables[kind.index()].find(key).cloned()
    }

    /// The item for a URI, for reading and subscribing: the listed resource; else the only listed
    /// one whose URI is equivalent; else the URI itself, if it is canonical, at the one upstream
    /// with a template that matches it; else at the only upstream that lists something with its
    /// scheme and authority.
    ///
    /// A URI that is not listed must pass the rules of its upstream and of the role in each of its
    /// readings. Upstreams where it does not are excluded before routing, so that hidden items have
    /// no influence and cannot be probed.
    pub fn resolve_uri(&self, uri: &str) -> Option<Arc<ExportedItem>> {
        let upstream = match self.route(uri) {
            UriRoute::Listed(target) => return Some(target),
            UriRoute::Template(template) => template.upstream.clone(),
            UriRoute::Origin(upstream) => upstream,
            UriRoute::NotCanonical(_) | UriRoute::Several(_) | UriRoute::None => return None,
        };
        Some(Arc::new(ExportedItem {
            kind: Kind::Resource,
            upstream,
            own: uri.into(),
            key: uri.into(),
            equivalence_form: None,
            json: Bytes::new(),
            older_json: None,
            param_headers: None,
            needs_task: false,
            prompt_arguments: None,
        }))
    }

    /// The route of a URI, as [`RoleView::resolve_uri`] takes it.
    pub fn route(&self, uri: &str) -> UriRoute {
        let listed = &self.tables[Kind::Resource.index()];
        if let Some(listed) = listed.find(uri).or_else(|| listed.find_equivalent(uri)) {
            return UriRoute::Listed(Arc::clone(listed));
        }
        let canonical = match CanonicalUri::parse(uri) {
            Ok(canonical) => canonical,
            Err(why) => return UriRoute::NotCanonical(why),
        };
        let exports = self.settings.exports.iter();
        let candidates: Vec<_> =
            exports.filter(|export| self.may_request(export, &canonical)).collect();
        let mut matching: Vec<_> =
            candidates.iter().filter_map(|export| self.template_for(export, uri)).collect();
        match (matching.pop(), matching.is_empty()) {
            (Some(template), true) => return UriRoute::Template(Arc::clone(template)),
            (Some(template), false) => {
                let several = matching.into_iter().chain([template]);
                return UriRoute::Several(several.map(|it| it.upstream.clone()).collect());
            }
            (None, _) => {}
        }
        let Some(origin) = uri::UriOrigin::of(uri) else { return UriRoute::None };
        let with_origin = candidates.into_iter().filter(|export| self.has_origin(export, &origin));
        let mut with_origin: Vec<_> = with_origin.map(|export| export.name.clone()).collect();
        match (with_origin.pop(), with_origin.is_empty()) {
            (Some(upstream), true) => UriRoute::Origin(upstream),
            (Some(upstream), false) => {
                UriRoute::Several(with_origin.into_iter().chain([upstream]).collect())
            }
            (None, _) => UriRoute::None,
        }
    }

    /// Combined capabilities of the upstreams with an item in this view; of two settings for the
    /// same name, those of the first upstream in the file. Capabilities that Weir does not forward
    /// are omitted.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Combined instructions of the upstreams with an item in this view.
    pub fn instructions(&self) -> Option<&str> {
        self.instructions.as_deref()
    }

    /// Number of items of an upstream and kind.
    pub fn count(&self, kind: Kind, upstream: &UpstreamName) -> usize {
        self.tables[kind.index()].of(upstream).len()
    }

    /// Upstreams that this role can reach and that have not been listed yet, are hidden, or list
    /// more than is read.
    pub fn missing(&self, kind: Kind) -> &[UpstreamName] {
        &self.missing[kind.index()]
    }

    /// Whether what this view shows under a topic, in this form, differs from what `older` shows.
    pub fn differs(&self, older: &Self, topic: ListTopic, form: DefinitionForm) -> bool {
        let of_topic = Kind::ALL.into_iter().filter(|kind| kind.topic() == topic);
        of_topic.map(Kind::index).any(|at| {
            let (new, old) = (&self.tables[at], &older.tables[at]);
            // Cheap, because each open stream calls it: unchanged tables and rows are compared by
            // pointer, and nothing is copied.
            let [new_rows, old_rows] =
                [new, old].map(|table| table.rows().iter().filter(|row| row.is_for(form)));
            !Arc::ptr_eq(new, old) && cpu_bound::run(new.rows().len(), || !new_rows.eq(old_rows))
        })
    }

    /// Whether the two views are the same for a client, except for their times to live.
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        self.tables.iter().zip(&other.tables).all(|(a, b)| same_table(a, b))
            && self.missing == other.missing
            && self.capabilities == other.capabilities
            && self.instructions == other.instructions
    }

    /// The export rules of an upstream.
    pub(super) fn export_rules(&self, upstream: &UpstreamName) -> Option<&ExportRules> {
        self.settings.exports.iter().find(|export| export.name == *upstream)
    }

    /// The role's rules for resources.
    pub(super) fn resource_rules(&self) -> &AllowDeny {
        self.filter.resources()
    }

    /// Whether a URI that no upstream lists may be requested from this upstream.
    fn may_request(&self, export: &ExportRules, uri: &CanonicalUri<'_>) -> bool {
        let shows = |kind: Kind| !self.tables[kind.index()].of(&export.name).is_empty();
        (shows(Kind::Resource) || shows(Kind::Template))
            && export.allows_uri(uri)
            && self.filter.allows_uri(&export.name, uri)
    }

    fn template_for(&self, export: &ExportRules, uri: &str) -> Option<&Arc<ExportedItem>> {
        // A budget per upstream: expensive templates of one must not use up that of the others.
        let mut steps = template::MAX_STEPS;
        let templates = self.tables[Kind::Template.index()].of(&export.name);
        templates.iter().find(|target| template::matches(&target.key, uri, &mut steps))
    }

    fn has_origin(&self, export: &ExportRules, origin: &uri::UriOrigin<'_>) -> bool {
        let listed = |kind: Kind| self.tables[kind.index()].of(&export.name);
        origin.has_origin_in(listed(Kind::Resource)) || origin.has_origin_in(listed(Kind::Template))
    }
}

/// Equal tables mostly share their `Arc`.
fn same_table(a: &Arc<Table>, b: &Arc<Table>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// Renders a page from these rows.
fn render(rows: &[Arc<ExportedItem>], key: PageKey) -> RenderedPage {
    let all = rows.iter().enumerate().skip(key.start);
    let mut behind = all.filter(|(_, row)| row.is_for(key.form)).peekable();
    // One comma is counted per item; the surplus byte avoids a special case.
    let (mut on_page, mut bytes) = (Vec::new(), 0);
    while on_page.len() < key.max_items
        && let Some((_, row)) = behind.peek()
    {
        let new_bytes = bytes + row.json_as(key.form).len() + 1;
        if !on_page.is_empty() && new_bytes > key.max_bytes {
            break;
        }
        bytes = new_bytes;
        on_page.extend(behind.next());
    }
    let mut items = BytesMut::with_capacity(bytes + 2);
    items.put_u8(b'[');
    for (number, (_, row)) in on_page.iter().enumerate() {
        if number > 0 {
            items.put_u8(b',');
        }
        items.put_slice(row.json_as(key.form));
    }
    items.put_u8(b']');
    let last = on_page.last().filter(|_| behind.peek().is_some());
    let next = last
        .map(|(at, row)| (Cursor { upstream: row.upstream.clone(), key: row.key.clone() }, at + 1));
    RenderedPage { items: json::on_one_line(items.freeze()), next }
}

// === UriRoute ===

/// Route of a URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UriRoute {
    /// To the listed resource.
    Listed(Arc<ExportedItem>),
    /// To the upstream of this template, which matches it; no upstream lists the URI.
    Template(Arc<ExportedItem>),
    /// To the only upstream that lists something with its scheme and authority; no upstream lists
    /// the URI and no template matches it.
    Origin(UpstreamName),
    /// Ambiguous: all of these upstreams match.
    Several(Vec<UpstreamName>),
    /// Rejected: no upstream lists it, and readers could take it for different resources.
    NotCanonical(NotCanonical),
    /// No upstream matches.
    None,
}

// === CatalogPage ===

/// Page of a merged list.
#[derive(Debug)]
pub struct CatalogPage {
    /// The items as a JSON array.
    pub items: Bytes,
    /// Cursor of the next page; `None` on the last.
    pub next: Option<Cursor>,
    /// Upstreams that are missing from the list.
    pub partial: Vec<UpstreamName>,
    /// Time to live of the list, if upstreams gave one.
    pub fresh_for: Option<Duration>,
    /// Whether an upstream says that its items differ between clients.
    pub is_private: bool,
}
