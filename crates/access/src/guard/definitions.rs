//! Checks of definitions and instructions before they are published: invisible text and redaction.
//!
//! Every string of a definition is checked, in any member: descriptions, titles, schemas,
//! annotations, URIs of icons, `_meta`. Text that a client has to send back unchanged cannot be
//! rewritten: the item's name or URI, the names of a prompt's arguments, and names of members
//! (which are names of arguments in a tool's schema). An item that would need redaction there is
//! not published.
//!
//! Invariant: log lines about an item do not contain the redacted text.

use std::sync::Arc;

use super::{HiddenText, UpstreamGuard, clean, invisible_text};
use weir_base::json::{self, Object};
use weir_base::text::invisible_chars::visible_form;
use weir_mcp::definition::arguments::PromptArguments;
use weir_mcp::definition::item::{Item, ItemDefect};
use weir_mcp::kind::Kind;

/// Findings in one definition.
#[derive(Default)]
struct DefinitionFindings {
    hidden: Option<char>,
    is_redacted: bool,
    /// True if the name of a member contains redacted text.
    in_member_name: bool,
}

/// Checks listed definitions of a kind: some items are rewritten, others are marked with a
/// defect.
pub(super) fn inspect_definitions(guard: &UpstreamGuard, kind: Kind, items: &mut [Item]) {
    let is_idle = guard.rules.hidden_text == HiddenText::Pass && guard.rules.redact.is_empty();
    if is_idle {
        return;
    }
    let (mut hidden, mut redacted) = (Vec::new(), Vec::new());
    for item in items.iter_mut().filter(|item| item.defect.is_none()) {
        let found = inspect_item(guard, item);
        if let Some(letter) = found.hidden {
            hidden.push(format!("{:?} ({})", item.key, visible_form(letter)));
        }
        if found.is_redacted {
            redacted.push(format!("{:?}", item.key));
        }
    }
    let items = hidden.len() + redacted.len();
    let found: Vec<_> = [&hidden[..], &redacted[..]].concat();
    if !guard.stats.is_new(kind, &found) || items == 0 {
        return;
    }
    guard.stats.count(|counts| counts.definitions += items as u64);
    let upstream = &guard.upstream;
    for (mut found, message) in
        [(hidden, "definitions contain hidden text"), (redacted, "definitions redacted")]
    {
        let items = found.len();
        if items > 0 {
            found.truncate(MAX_LOGGED_ITEMS);
            let first = found.join(", ");
            tracing::warn!(%upstream, %kind, items, first, "{message}");
        }
    }
}

/// Checks the instructions of an upstream.
pub(super) fn inspect_instructions(guard: &UpstreamGuard, text: Arc<str>) -> Option<Arc<str>> {
    let setting = guard.rules.hidden_text;
    let mut hidden = None;
    let Some(clean) = clean(&text, setting, &guard.rules.redact, false, &mut hidden) else {
        return Some(text);
    };
    let upstream = &guard.upstream;
    if let Some(letter) = hidden.map(visible_form) {
        tracing::warn!(%upstream, letter, "instructions contain hidden text");
    }
    if clean.redacted {
        tracing::warn!(%upstream, "instructions redacted");
    }
    match (hidden, setting) {
        (Some(_), HiddenText::Refuse) => None,
        _ => Some(clean.text.map_or(text, Arc::from)),
    }
}

/// Rewrites the item's definition, or marks it with a defect. Afterwards the item's key
/// contains no redacted text.
fn inspect_item(guard: &UpstreamGuard, item: &mut Item) -> DefinitionFindings {
    let (setting, patterns) = (guard.rules.hidden_text, &*guard.rules.redact);
    let (text, mut found) = (item.definition.to_bytes(), DefinitionFindings::default());
    if patterns.is_empty() && !invisible_text::may_contain_hidden(&text) {
        return found;
    }
    let text = std::str::from_utf8(&text).expect("an Object is always valid UTF-8");
    let new = json::rewrite_strings(text, |string| {
        let mut hidden = None;
        let clean = clean(&string.text(), setting, patterns, string.is_name, &mut hidden)?;
        found.hidden = found.hidden.or(hidden);
        found.is_redacted |= clean.redacted;
        found.in_member_name |= clean.redacted && string.is_name;
        clean.text
    });
    let mut hidden_in_key = None;
    let key = clean(&item.key, setting, patterns, false, &mut hidden_in_key);
    let redacted_key = key.filter(|key| key.redacted).and_then(|key| key.text);
    let new = new.map(Object::parse);
    item.defect = match (found.hidden, setting, new) {
        _ if redacted_key.is_some() || found.in_member_name => Some(ItemDefect::Redacted),
        (Some(_), HiddenText::Refuse, _) => Some(ItemDefect::HiddenText),
        (_, _, None) => None,
        // The name or URI cannot be rewritten: the upstream would not recognize it.
        (_, _, Some(_)) if hidden_in_key.is_some() && rewrites(setting) => {
            Some(ItemDefect::HiddenText)
        }
        (_, _, Some(Err(_))) => Some(ItemDefect::HiddenText),
        (_, _, Some(Ok(new))) if found.is_redacted && renames_arguments(item, &new) => {
            Some(ItemDefect::Redacted)
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

/// Returns whether this setting rewrites invisible text.
fn rewrites(setting: HiddenText) -> bool {
    matches!(setting, HiddenText::Escape | HiddenText::Strip)
}

/// Returns whether the new definition renames a prompt's arguments.
fn renames_arguments(item: &Item, new: &Object) -> bool {
    item.kind == Kind::Prompt
        && PromptArguments::read(&item.definition) != PromptArguments::read(new)
}

/// Most items that a log line names.
const MAX_LOGGED_ITEMS: usize = 10;
