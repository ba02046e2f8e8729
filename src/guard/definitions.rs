//! Definitions and instructions before they are published: hidden text, and what is redacted.
//!
//! Both are looked for in every string of a definition, whatever member it stands in: descriptions, titles, schemas, annotations,
//! URIs of icons, `_meta`. What a client has to send back as its upstream knows it cannot be rewritten: the item's name or
//! URI, the names of a prompt's arguments, the names of members (which are arguments' names in a tool's schema). An item
//! where something would have to be redacted there is left out.
//!
//! Promises: what is logged about an item says nothing of it that is to be redacted.

use std::sync::Arc;

use super::{HiddenText, Post, clean, invisible_text};
use crate::json::{self, Object};
use crate::mcp::definition::arguments::Declared;
use crate::mcp::definition::item::{Flaw, Item};
use crate::mcp::kind::Kind;

/// What was found in one definition.
#[derive(Default)]
struct Found {
    hidden: Option<char>,
    is_redacted: bool,
    /// Whether something is redacted in the name of a member.
    in_name: bool,
}

impl Post {
    /// Looks at what is listed of a kind: some items are rewritten, others get a flaw.
    pub(super) fn publish(&self, kind: Kind, items: &mut [Item]) {
        let is_idle = self.rules.hidden_text == HiddenText::Pass && self.rules.redact.is_empty();
        if is_idle {
            return;
        }
        let (mut hidden, mut redacted) = (Vec::new(), Vec::new());
        for item in items.iter_mut().filter(|item| item.flaw.is_none()) {
            let found = self.look_at(item);
            if let Some(letter) = found.hidden {
                hidden.push(format!("{:?} ({})", item.key, invisible_text::shown(letter)));
            }
            if found.is_redacted {
                redacted.push(format!("{:?}", item.key));
            }
        }
        let items = hidden.len() + redacted.len();
        let found: Vec<_> = [&hidden[..], &redacted[..]].concat();
        if !self.tally.is_news(kind, &found) || items == 0 {
            return;
        }
        self.tally.count(|counts| counts.definitions += items as u64);
        let upstream = &self.upstream;
        for (mut found, message) in
            [(hidden, "definitions hold hidden text"), (redacted, "definitions redacted")]
        {
            let items = found.len();
            if items > 0 {
                found.truncate(MAX_TOLD);
                let first = found.join(", ");
                tracing::warn!(%upstream, %kind, items, first, "{message}");
            }
        }
    }

    /// Looks at what an upstream tells models about its use.
    pub(super) fn introduce(&self, text: Arc<str>) -> Option<Arc<str>> {
        let setting = self.rules.hidden_text;
        let mut hidden = None;
        let Some(clean) = clean(&text, setting, &self.rules.redact, false, &mut hidden) else {
            return Some(text);
        };
        let upstream = &self.upstream;
        if let Some(letter) = hidden.map(invisible_text::shown) {
            tracing::warn!(%upstream, letter, "the instructions hold hidden text");
        }
        if clean.redacted {
            tracing::warn!(%upstream, "instructions redacted");
        }
        match (hidden, setting) {
            (Some(_), HiddenText::Refuse) => None,
            _ => Some(clean.text.map_or(text, Arc::from)),
        }
    }

    /// Rewrites the item's definition, or gives it a flaw. Whatever it is called from then on says nothing that is to be
    /// redacted.
    fn look_at(&self, item: &mut Item) -> Found {
        let (setting, patterns) = (self.rules.hidden_text, &*self.rules.redact);
        let (text, mut found) = (item.definition.to_bytes(), Found::default());
        if patterns.is_empty() && !invisible_text::may_hide(&text) {
            return found;
        }
        let text = std::str::from_utf8(&text).expect("an Object is always valid UTF-8");
        let new = json::rewrite_strings(text, |string| {
            let mut hidden = None;
            let clean = clean(&string.text(), setting, patterns, string.is_name, &mut hidden)?;
            found.hidden = found.hidden.or(hidden);
            found.is_redacted |= clean.redacted;
            found.in_name |= clean.redacted && string.is_name;
            clean.text
        });
        let mut hidden_in_key = None;
        let key = clean(&item.key, setting, patterns, false, &mut hidden_in_key);
        let redacted_key = key.filter(|key| key.redacted).and_then(|key| key.text);
        let new = new.map(Object::parse);
        item.flaw = match (found.hidden, setting, new) {
            _ if redacted_key.is_some() || found.in_name => Some(Flaw::Redacted),
            (Some(_), HiddenText::Refuse, _) => Some(Flaw::HiddenText),
            (_, _, None) => None,
            // What an item is asked for by cannot be rewritten: its upstream would not know it.
            (_, _, Some(_)) if hidden_in_key.is_some() && rewrites(setting) => {
                Some(Flaw::HiddenText)
            }
            (_, _, Some(Err(_))) => Some(Flaw::HiddenText),
            (_, _, Some(Ok(new))) if found.is_redacted && has_other_arguments(item, &new) => {
                Some(Flaw::Redacted)
            }
            (_, _, Some(Ok(new))) => {
                item.definition = new;
                None
            }
        };
        if let Some(key) = redacted_key {
            item.key = key.into();
        }
        found
    }
}

/// Whether hidden text is written in another way under this setting.
fn rewrites(setting: HiddenText) -> bool {
    matches!(setting, HiddenText::Escape | HiddenText::Strip)
}

/// Whether the arguments of a prompt have other names in its new definition.
fn has_other_arguments(item: &Item, new: &Object) -> bool {
    item.kind == Kind::Prompt && Declared::read(&item.definition) != Declared::read(new)
}

/// How many items one line of the log names.
const MAX_TOLD: usize = 10;
