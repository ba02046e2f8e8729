//! What leaves one upstream of one kind, under public names.
//!
//! Promises: a shelf holds no two items under one public key; an item that did not change since the
//! last shelf is the same `Arc`, so that views share it and see that it is the same; a target shares no
//! memory with the message that listed it, which may be much larger.
//!
//! Knows nothing of: roles.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::view::Target;
use super::{Outlet, Settings, Snapshot};
use crate::json::{self, Object};
use crate::mcp::definition::arguments::Declared;
use crate::mcp::definition::downgrade;
use crate::mcp::definition::item::{Flaw, Item, MAX_URI_BYTES};
use crate::mcp::definition::param_headers::Mirror;
use crate::mcp::kind::Kind;
use crate::mcp::name::Naming;

/// What one upstream shows of one kind.
pub(super) struct Shelf {
    /// Sorted by public key, bytewise; each key once.
    pub(super) targets: Vec<Arc<Target>>,
    pub(super) fresh_until: Option<Instant>,
    pub(super) is_private: bool,
    pub(super) problems: Problems,
}

impl Shelf {
    /// Makes the shelf of the outlet at `at` from what its upstream lists; `old` is what it showed before, sorted.
    pub(super) fn stock(
        settings: &Settings,
        at: usize,
        kind: Kind,
        snapshot: Snapshot,
        old: &[Arc<Target>],
    ) -> Self {
        let outlet = &settings.outlets[at];
        let mut problems = Problems::default();
        let mut items: Vec<(Box<str>, Item)> = Vec::with_capacity(snapshot.items.len());
        for item in snapshot.items.into_iter().filter(|item| outlet.lets_out(kind, &item.key)) {
            let key = outlet.public_key(&settings.naming, kind, &item.key);
            match item.flaw {
                Some(flaw) => problems.note(Reason::Flaw(flaw), &key, item),
                None => items.push((key, item)),
            }
        }
        // Stable: of the same name twice, the one that was listed first stays in front.
        items.sort_by(|(a, _), (b, _)| a.cmp(b));

        let mut items = items.into_iter().peekable();
        let mut old = old.iter().peekable();
        let mut targets = Vec::with_capacity(items.len());
        let mut scratch = Vec::new();
        while let Some((key, item)) = items.next() {
            let next_rival = || items.next_if(|(other, _)| *other == key).map(|(_, item)| item);
            let rivals: Vec<Item> = std::iter::from_fn(next_rival).collect();
            let clash = rivals.iter().any(|rival| rival.key != item.key);
            // Both lists are sorted: one walk along the old one finds them all.
            while old.next_if(|target| target.key < key).is_some() {}
            let before = old.peek().copied().filter(|target| target.key == key);
            if clash {
                problems.note(Reason::Clash, &key, item);
            } else if key.len() > MAX_KEY_BYTES {
                problems.note(Reason::TooLong, &key, item);
            } else {
                let naming = &settings.naming;
                targets.push(render(naming, outlet, kind, &key, item, before, &mut scratch));
            }
            let reason = if clash { Reason::Clash } else { Reason::Duplicate };
            rivals.into_iter().for_each(|rival| problems.note(reason, &key, rival));
        }
        let Snapshot { fresh_until, is_private, cut, .. } = snapshot;
        problems.cut = cut;
        Self { targets, fresh_until, is_private, problems }
    }
}

/// Renders an item for lists, or takes over what was made of it before.
fn render(
    naming: &Naming,
    outlet: &Outlet,
    kind: Kind,
    key: &str,
    item: Item,
    before: Option<&Arc<Target>>,
    scratch: &mut Vec<u8>,
) -> Arc<Target> {
    let mut definition = item.definition;
    if kind.has_name() && *key != *item.key {
        definition.set(kind.key_member(), json::quote(key));
        if let Some((name, _)) = outlet.altered(naming, kind, &item.key)
            && !has_title(&definition)
        {
            definition.set("title", json::quote(name));
        }
    }
    scratch.clear();
    definition.write_to(scratch);
    let same = |json: &[u8]| {
        let is_same = |before: &&Arc<Target>| {
            before.own == item.key && before.json == json && before.needs_task == item.needs_task
        };
        before.filter(is_same)
    };
    // Most often nothing has changed, and nothing is copied.
    if let Some(before) = same(scratch) {
        return Arc::clone(before);
    }
    // A copy of its own: a slice would keep the whole message that the item came in.
    let json = json::on_one_line(Bytes::copy_from_slice(scratch));
    if let Some(before) = same(&json) {
        return Arc::clone(before);
    }
    let older =
        downgrade::definition(kind, &definition).map(|older| json::on_one_line(older.to_bytes()));
    let mirror = match kind {
        // Bad marks are none: who has to keep to them does not list such a tool at all.
        Kind::Tool => Mirror::read(&definition).unwrap_or_default(),
        Kind::Prompt | Kind::Resource | Kind::Template => None,
    };
    let declared = (kind == Kind::Prompt).then(|| Declared::read(&definition)).flatten();
    let (upstream, needs_task) = (outlet.name.clone(), item.needs_task);
    let (own, key) = (item.key, key.into());
    Arc::new(Target { kind, upstream, own, key, json, older, mirror, needs_task, declared })
}

/// Whether clients have something better to show than the name.
///
/// Spec 2025-06-18, schema, BaseMetadata.title: of a tool `annotations.title` stands in front of its name, and
/// `title` in front of both, so a title set here would hide it.
fn has_title(definition: &Object) -> bool {
    let annotations = || definition.get_object("annotations");
    definition.has("title") || annotations().is_some_and(|it| it.has("title"))
}

/// The longest public key, in bytes: with it a cursor stays within its own limit.
const MAX_KEY_BYTES: usize = MAX_URI_BYTES;

// === Problems ===

/// Why items of one list are left out; at most [`Problems::MAX`] are kept, the others are counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    /// The first ones: those of no use, then the others in the order of the public keys.
    pub first: Vec<Problem>,
    /// How many more there are.
    pub more: usize,
    /// Where the upstream lists more than was read: what that is bounded by.
    pub cut: Option<Arc<str>>,
}

/// Why one item is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The upstream's own name or URI.
    pub own: Box<str>,
    /// The name or URI that clients would see.
    pub key: Box<str>,
    /// What is wrong with it.
    pub reason: Reason,
}

/// What keeps an item out of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The upstream lists it twice; the first is kept.
    Duplicate,
    /// Another item of the upstream would have the same public name; neither is shown.
    Clash,
    /// The public name is longer than any that is taken.
    TooLong,
    /// Nobody could use it.
    Flaw(Flaw),
}

impl Problems {
    /// How many are kept.
    pub const MAX: usize = 100;

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.cut.is_none()
    }

    fn note(&mut self, reason: Reason, key: &str, item: Item) {
        if self.first.len() < Self::MAX {
            self.first.push(Problem { own: item.key, key: key.into(), reason });
        } else {
            self.more += 1;
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.first.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "; " })?;
        }
        if self.more > 0 {
            write!(f, "; and {} more", self.more)?;
        }
        if let Some(cut) = &self.cut {
            let separator = if self.first.is_empty() { "" } else { "; " };
            write!(f, "{separator}the upstream lists more than is read: {cut}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    /// Names come from an upstream: they are quoted, so that none can break a line of a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, key, reason } = self;
        match reason {
            Reason::Duplicate => write!(f, "{own:?} is listed twice, the first is kept"),
            Reason::Clash => write!(f, "{own:?} would be {key:?} like another, rename one of them"),
            Reason::TooLong => write!(f, "{own:?} has a name of more than {MAX_KEY_BYTES} bytes"),
            Reason::Flaw(flaw) => write!(f, "{own:?} is of no use: {flaw}"),
        }
    }
}
