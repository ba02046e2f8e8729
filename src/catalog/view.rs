//! All that one role may use, at one moment.
//!
//! Promises: it answers from memory and never waits; nothing that its role may not use can be got out of
//! it by any name, URI or cursor; listed and reachable are the same for prompts, tools and listed
//! resources. What a client of a revision cannot use is left out of its pages, and [`Target::is_for`] tells.
//!
//! Knows nothing of: how it came about.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use super::cursor::Cursor;
use super::pages::{Cut, Rendered};
use super::table::Table;
use super::{Filter, Outlet, Settings, template, uri};
use crate::cpu_bound;
use crate::json;
use crate::mcp::capabilities::Capabilities;
use crate::mcp::definition::arguments::Declared;
use crate::mcp::definition::downgrade::Form;
use crate::mcp::definition::param_headers::Mirror;
use crate::mcp::kind::{Kind, Topic};
use crate::mcp::name::UpstreamName;
use crate::mcp::uri::{CanonicalUri, NotCanonical};

/// What one role sees. Only the catalog makes one.
#[derive(Clone)]
pub struct View {
    /// Per kind.
    pub(super) tables: [Arc<Table>; 4],
    /// Per kind: upstreams that the role reaches and that have never been listed, by name.
    pub(super) missing: [Arc<[UpstreamName]>; 4],
    /// Per kind: when the first of the lists that it was made from becomes stale.
    pub(super) fresh_until: [Option<Instant>; 4],
    /// Per kind: whether one of these lists is not the same for everybody.
    pub(super) is_private: [bool; 4],
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) instructions: Option<Arc<str>>,
    settings: Arc<Settings>,
    /// For URIs that nobody lists; everything else was filtered when the tables were made.
    filter: Arc<dyn Filter>,
}

impl View {
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

    /// Cuts the page that begins after `after`. No upstream is contacted.
    ///
    /// A cursor is a place in the order and nothing more: its item, or the whole upstream, may have
    /// vanished, or may never have been visible here.
    pub fn page(&self, kind: Kind, after: Option<&Cursor>, form: Form) -> Page {
        let table = &self.tables[kind.index()];
        let cut = Cut {
            form,
            start: after.map_or(0, |cursor| table.place_after(&cursor.upstream, &cursor.key)),
            most: self.settings.page_items.max(1),
            most_bytes: self.settings.page_bytes,
        };
        let page = table.pages().get(cut, || render(table.rows(), cut));
        Page {
            items: page.items.clone(),
            count: page.count,
            next: page.next.as_ref().map(|(next, _)| next.clone()),
            partial: self.missing(kind).to_vec(),
            fresh_for: self.fresh_until[kind.index()]
                .map(|until| until.saturating_duration_since(Instant::now())),
            is_private: self.is_private[kind.index()],
        }
    }

    /// All that is listed of a kind, in the order of the list.
    pub fn targets(&self, kind: Kind) -> &[Arc<Target>] {
        self.tables[kind.index()].rows()
    }

    /// The item of this public key, for get, call and completion.
    pub fn resolve(&self, kind: Kind, key: &str) -> Option<Arc<Target>> {
        self.tables[kind.index()].find(key).cloned()
    }

    /// The item behind a URI, for reading and subscribing: the listed resource; else the URI itself, if it is
    /// canonical, at the one upstream with a template that matches it; else at the only one that lists something
    /// of its scheme and authority.
    ///
    /// A URI that is not listed must pass the rules of its upstream and of the role in each of its readings.
    /// Upstreams where it does not are left out from the start: what is hidden decides nothing, and so
    /// cannot be felt out either.
    pub fn resolve_uri(&self, uri: &str) -> Option<Arc<Target>> {
        let upstream = match self.route(uri) {
            Route::Listed(target) => return Some(target),
            Route::Template(template) => template.upstream.clone(),
            Route::Origin(upstream) => upstream,
            Route::NotCanonical(_) | Route::Several(_) | Route::None => return None,
        };
        Some(Arc::new(Target {
            kind: Kind::Resource,
            upstream,
            own: uri.into(),
            key: uri.into(),
            json: Bytes::new(),
            older: None,
            mirror: None,
            needs_task: false,
            declared: None,
        }))
    }

    /// The way of a URI, as [`View::resolve_uri`] takes it.
    pub fn route(&self, uri: &str) -> Route {
        if let Some(listed) = self.resolve(Kind::Resource, uri) {
            return Route::Listed(listed);
        }
        let canonical = match CanonicalUri::parse(uri) {
            Ok(canonical) => canonical,
            Err(why) => return Route::NotCanonical(why),
        };
        let outlets = self.settings.outlets.iter();
        let candidates: Vec<_> =
            outlets.filter(|outlet| self.may_ask(outlet, &canonical)).collect();
        let mut matching: Vec<_> =
            candidates.iter().filter_map(|outlet| self.template_for(outlet, uri)).collect();
        match (matching.pop(), matching.is_empty()) {
            (Some(template), true) => return Route::Template(Arc::clone(template)),
            (Some(template), false) => {
                let several = matching.into_iter().chain([template]);
                return Route::Several(several.map(|it| it.upstream.clone()).collect());
            }
            (None, _) => {}
        }
        let Some(origin) = uri::Origin::of(uri) else { return Route::None };
        let alike = candidates.into_iter().filter(|outlet| self.has_origin(outlet, &origin));
        let mut alike: Vec<_> = alike.map(|outlet| outlet.name.clone()).collect();
        match (alike.pop(), alike.is_empty()) {
            (Some(upstream), true) => Route::Origin(upstream),
            (Some(upstream), false) => {
                Route::Several(alike.into_iter().chain([upstream]).collect())
            }
            (None, _) => Route::None,
        }
    }

    /// What the upstreams can do together of which this view shows something; of two settings for the same
    /// thing, those of the first in the file. What is not carried is not among it.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// What the upstreams of which this view shows something tell models about their use.
    pub fn instructions(&self) -> Option<&str> {
        self.instructions.as_deref()
    }

    /// How many items of an upstream there are of a kind.
    pub fn count(&self, kind: Kind, upstream: &UpstreamName) -> usize {
        self.tables[kind.index()].of(upstream).len()
    }

    /// Upstreams that this role can reach and that have not been listed yet, are hidden, or list more than is read.
    pub fn missing(&self, kind: Kind) -> &[UpstreamName] {
        &self.missing[kind.index()]
    }

    /// Whether what this view shows under a topic, in this form, differs from what `older` shows.
    pub fn differs(&self, older: &Self, topic: Topic, form: Form) -> bool {
        let of_topic = Kind::ALL.into_iter().filter(|kind| kind.topic() == topic);
        of_topic.map(Kind::index).any(|at| {
            let (new, old) = (&self.tables[at], &older.tables[at]);
            // Every stream asks: what has not changed is the same `Arc`, table or row, and nothing is copied.
            let [new_rows, old_rows] =
                [new, old].map(|table| table.rows().iter().filter(|row| row.is_for(form)));
            !Arc::ptr_eq(new, old) && cpu_bound::run(new.rows().len(), || !new_rows.eq(old_rows))
        })
    }

    /// Whether a client could not tell the two apart but by the time that they may be kept.
    pub(super) fn looks_like(&self, other: &Self) -> bool {
        self.tables.iter().zip(&other.tables).all(|(a, b)| same_table(a, b))
            && self.missing == other.missing
            && self.capabilities == other.capabilities
            && self.instructions == other.instructions
    }

    /// Whether the URI, which no upstream lists, may be asked of this one.
    fn may_ask(&self, outlet: &Outlet, uri: &CanonicalUri<'_>) -> bool {
        let shows = |kind: Kind| !self.tables[kind.index()].of(&outlet.name).is_empty();
        (shows(Kind::Resource) || shows(Kind::Template))
            && outlet.lets_out_uri(uri)
            && self.filter.allows_uri(&outlet.name, uri)
    }

    fn template_for(&self, outlet: &Outlet, uri: &str) -> Option<&Arc<Target>> {
        // Per upstream: one with outrageous templates must not eat up what the others need.
        let mut steps = template::MAX_STEPS;
        let templates = self.tables[Kind::Template.index()].of(&outlet.name);
        templates.iter().find(|target| template::matches(&target.key, uri, &mut steps))
    }

    fn has_origin(&self, outlet: &Outlet, origin: &uri::Origin<'_>) -> bool {
        let listed = |kind: Kind| self.tables[kind.index()].of(&outlet.name);
        origin.is_among(listed(Kind::Resource)) || origin.is_among(listed(Kind::Template))
    }
}

/// Equal tables mostly share their `Arc`.
fn same_table(a: &Arc<Table>, b: &Arc<Table>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// Renders the page that is cut from these rows.
fn render(rows: &[Arc<Target>], cut: Cut) -> Rendered {
    let all = rows.iter().enumerate().skip(cut.start);
    let mut behind = all.filter(|(_, row)| row.is_for(cut.form)).peekable();
    // Commas count too, one per item: it saves a case and costs a byte.
    let (mut on_page, mut bytes) = (Vec::new(), 0);
    while on_page.len() < cut.most
        && let Some((_, row)) = behind.peek()
    {
        let grown = bytes + row.json_as(cut.form).len() + 1;
        if !on_page.is_empty() && grown > cut.most_bytes {
            break;
        }
        bytes = grown;
        on_page.extend(behind.next());
    }
    let mut items = BytesMut::with_capacity(bytes + 2);
    items.put_u8(b'[');
    for (number, (_, row)) in on_page.iter().enumerate() {
        if number > 0 {
            items.put_u8(b',');
        }
        items.put_slice(row.json_as(cut.form));
    }
    items.put_u8(b']');
    let last = on_page.last().filter(|_| behind.peek().is_some());
    let next = last
        .map(|(at, row)| (Cursor { upstream: row.upstream.clone(), key: row.key.clone() }, at + 1));
    Rendered { items: json::on_one_line(items.freeze()), count: on_page.len(), next }
}

// === Route ===

/// Where a URI leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// To the listed resource.
    Listed(Arc<Target>),
    /// Nobody lists it: to the upstream of this template, which matches it.
    Template(Arc<Target>),
    /// Nobody lists it, and no template matches: to the only upstream that lists something of its scheme and
    /// authority.
    Origin(UpstreamName),
    /// Nowhere, for these would all do.
    Several(Vec<UpstreamName>),
    /// Nowhere: no upstream lists it, and readers could take it for different resources.
    NotCanonical(NotCanonical),
    /// Nowhere.
    None,
}

// === Target ===

/// An item that its holder may reach: only a view hands one out.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// What it is.
    pub kind: Kind,
    /// Whose it is.
    pub upstream: UpstreamName,
    /// The upstream's own name or URI.
    pub own: Box<str>,
    /// The public name or URI.
    pub key: Box<str>,
    /// The definition under the public name, as it stands in lists, on one line; empty for a URI that
    /// nobody lists.
    pub json: Bytes,
    /// The same for clients of older revisions, where they cannot take it as it is.
    pub older: Option<Bytes>,
    /// Which arguments of a tool its callers repeat in headers.
    pub mirror: Option<Mirror>,
    /// Whether it can be called as a task of 2025-11-25 only.
    pub needs_task: bool,
    /// Which arguments a prompt has; `None` if it does not say so in a way that can be read.
    pub declared: Option<Declared>,
}

impl Target {
    /// Whether its upstream lists it; a resource may be asked for that is not listed.
    pub fn is_listed(&self) -> bool {
        !self.json.is_empty()
    }

    /// Whether who reads this form can use it: what it cannot use it does not see.
    pub fn is_for(&self, form: Form) -> bool {
        !self.needs_task || form == Form::WithTasks
    }

    /// The definition in this form.
    fn json_as(&self, form: Form) -> &Bytes {
        match (form, &self.older) {
            (Form::Older | Form::WithTasks, Some(older)) => older,
            (Form::Older | Form::WithTasks | Form::Newest, _) => &self.json,
        }
    }
}

// === Page ===

/// A part of a merged list.
#[derive(Debug)]
pub struct Page {
    /// The items as a JSON array.
    pub items: Bytes,
    /// How many they are.
    pub count: usize,
    /// Where the next page begins; `None` on the last.
    pub next: Option<Cursor>,
    /// Upstreams that the list misses.
    pub partial: Vec<UpstreamName>,
    /// How long the list may be kept, if upstreams said so.
    pub fresh_for: Option<Duration>,
    /// Whether an upstream says that its part is not the same for everybody.
    pub is_private: bool,
}
