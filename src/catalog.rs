//! What each policy may see of all upstreams. (API skeleton: bodies to be written by the catalog's author.)

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::mcp::item::Item;
use crate::mcp::kind::{Kind, Topic};
use crate::mcp::name::{Naming, UpstreamName};
use crate::mcp::pattern::Rules;

/// Decides what one role may see.
pub trait Filter: Send + Sync + 'static {
    /// Whether the role may use this item, by its upstream's own name or URI.
    fn allows(&self, kind: Kind, upstream: &UpstreamName, key: &str) -> bool;
    /// Whether the role may use anything at all of this upstream.
    fn reaches(&self, upstream: &UpstreamName) -> bool;
}

/// How one upstream's items are shown.
#[derive(Debug, Clone)]
pub struct Outlet {
    pub name: UpstreamName,
    pub prefix: UpstreamName,
    pub prompts: Rules,
    pub tools: Rules,
    /// Resources and templates.
    pub resources: Rules,
    /// (kind, own name, new name): changes the item's part of the public name.
    pub rename: Vec<(Kind, String, String)>,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub naming: Naming,
    /// In the order of the file.
    pub outlets: Vec<Outlet>,
    pub page_items: usize,
    pub page_bytes: usize,
}

/// All that one upstream lists of one kind.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub items: Vec<Item>,
    /// When the upstream's own time to live ends, if it gave one.
    pub fresh_until: Option<tokio::time::Instant>,
}

/// Something that was left out of the lists, and why; for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub upstream: UpstreamName,
    pub kind: Kind,
    pub text: String,
}

pub struct Catalog {}

impl Catalog {
    pub fn new(_settings: Settings) -> Self {
        unimplemented!()
    }
    pub fn publish(&self, _upstream: &UpstreamName, _kind: Kind, _snapshot: Snapshot) {
        unimplemented!()
    }
    /// Whether the upstream completes arguments.
    pub fn set_completions(&self, _upstream: &UpstreamName, _completions: bool) {
        unimplemented!()
    }
    pub fn problems(&self) -> Vec<Problem> {
        unimplemented!()
    }
    /// The view of a role, made at its first use and kept up to date.
    pub fn view(&self, _role: &str, _filter: &Arc<dyn Filter>) -> watch::Receiver<Arc<View>> {
        unimplemented!()
    }
}

#[derive(Debug)]
pub struct View {}

impl View {
    /// Cuts the page that begins after `after`. No upstream is contacted.
    pub fn page(&self, _kind: Kind, _after: Option<&Cursor>) -> Page {
        unimplemented!()
    }
    /// The item of this public key, for get, call and completion.
    pub fn resolve(&self, _kind: Kind, _key: &str) -> Option<Arc<Target>> {
        unimplemented!()
    }
    /// The upstream that a URI belongs to: listed, matched by a template, or the only one of its scheme and authority.
    pub fn resolve_uri(&self, _uri: &str) -> Option<Arc<Target>> {
        unimplemented!()
    }
    /// Whether a visible upstream completes arguments.
    pub fn completions(&self) -> bool {
        unimplemented!()
    }
    /// Upstreams that this role can reach and that have not been listed yet.
    pub fn missing(&self, _kind: Kind) -> &[UpstreamName] {
        unimplemented!()
    }
    /// Whether what this view shows under a topic differs from what `older` shows.
    pub fn differs(&self, _older: &View, _topic: Topic) -> bool {
        unimplemented!()
    }
}

/// An item that its holder may reach: only a view hands one out.
#[derive(Debug)]
pub struct Target {
    pub kind: Kind,
    pub upstream: UpstreamName,
    /// The upstream's own name or URI.
    pub own: Box<str>,
    /// The public name or URI.
    pub key: Box<str>,
    /// The definition under the public name, as it stands in lists.
    pub json: Bytes,
}

pub struct Page {
    /// The items' JSON, joined by commas.
    pub items: Bytes,
    pub count: usize,
    /// Where the next page begins; `None` on the last.
    pub next: Option<Cursor>,
    /// Upstreams that the list misses.
    pub partial: Vec<UpstreamName>,
    /// How long the list may be kept, if upstreams said so.
    pub fresh_for: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unreadable cursor")]
pub struct BadCursor;

impl Cursor {
    pub fn parse(_text: &str, _kind: Kind) -> Result<Self, BadCursor> {
        unimplemented!()
    }
    pub fn encode(&self, _kind: Kind) -> String {
        unimplemented!()
    }
}
