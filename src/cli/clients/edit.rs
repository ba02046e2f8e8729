//! Changes of one entry in the text of a client's file.
//!
//! Invariants: everything except the entry is preserved byte for byte, including comments, order
//! and ends of lines; the new text is read again, and the meaning of everything else is compared
//! with that of the old text; a file that cannot be parsed is not changed.

mod json;
mod toml;
mod yaml;

use std::path::Path;

use super::McpClient;
use super::document::{self, DocumentValue, Format, JsonDialect};
use crate::cli::exit::Failure;

/// Location of an entry.
pub(crate) struct EntryLocation<'a> {
    pub(crate) client: &'static McpClient,
    pub(crate) name: &'a str,
    pub(crate) path: &'a Path,
}

/// Result of an insertion.
pub(crate) enum Insertion {
    /// The text contains the entry already.
    Present,
    /// New text.
    Text(String),
    /// No text has the entry and leaves everything else as it is.
    Impossible,
}

/// Entry that was removed from a text.
pub(crate) struct RemovedEntry {
    /// Text without the entry.
    pub(crate) text: String,
    /// Text of the entry, comments included.
    pub(crate) entry: String,
}

/// Inserts an entry. Another entry of the same name is replaced only if `may_replace` returns true;
/// `placeholder` stands for any text of an entry that is there.
pub(crate) fn insert(
    text: &str,
    place: &EntryLocation<'_>,
    entry: &DocumentValue,
    placeholder: &str,
    may_replace: &dyn Fn(&DocumentValue) -> bool,
) -> Result<Insertion, Failure> {
    let whole = parse(text, place)?;
    let section = place.client.section(&whole);
    check_unique(&whole, &section, place)?;
    let table = at(&whole, &section);
    if !is_table_or_empty(&whole) || table.is_some_and(|table| !is_table_or_empty(table)) {
        return Err(not_a_table(place));
    }
    let old = table.and_then(|table| table.get(place.name));
    match old {
        Some(old) if contains_entry(old, entry, placeholder) => return Ok(Insertion::Present),
        Some(old) if !may_replace(old) => {
            return Err(Failure::Usage(format!(
                "{} has a server `{}` already that is not Weir: choose another with --name, or \
                 replace it with --force",
                place.path.display(),
                place.name
            )));
        }
        _ => {}
    }
    let candidates = match place.client.format {
        Format::Json => json::insert(text, &section, place.name, json::NewValue::Of(entry)),
        Format::Toml => toml::insert(text, &section, place.name, entry),
        Format::Yaml => yaml::insert(text, &section, place.name, entry),
    };
    let check = EditCheck { old: &whole, section: &section, place };
    let found = candidates.into_iter().find(|new| check.passes(new, Some(entry)));
    Ok(found.map_or(Insertion::Impossible, Insertion::Text))
}

/// Removes an entry from the section of this path; `None` if it is not there.
pub(crate) fn remove(
    text: &str,
    place: &EntryLocation<'_>,
    section: &[&str],
) -> Result<Option<RemovedEntry>, Failure> {
    let whole = parse(text, place)?;
    check_unique(&whole, section, place)?;
    if at(&whole, section).and_then(|table| table.get(place.name)).is_none() {
        return Ok(None);
    }
    let removed = match place.client.format {
        Format::Json => json::remove(text, section, place.name),
        Format::Toml => toml::remove(text, section, place.name),
        Format::Yaml => yaml::remove(text, section, place.name),
    };
    let check = EditCheck { old: &whole, section, place };
    match removed.filter(|removed| check.passes(&removed.text, None)) {
        Some(removed) => Ok(Some(removed)),
        None => Err(impossible(place, "removed from")),
    }
}

/// Puts the text of a removed entry back.
pub(crate) fn put_back(
    text: &str,
    place: &EntryLocation<'_>,
    section: &[&str],
    entry: &str,
) -> Result<String, Failure> {
    let whole = parse(text, place)?;
    check_unique(&whole, section, place)?;
    let candidates = match place.client.format {
        Format::Json => json::insert(text, section, place.name, json::NewValue::Text(entry)),
        Format::Toml => toml::put_back(text, section, place.name, entry),
        Format::Yaml => yaml::put_back(text, section, place.name, entry),
    };
    let check = EditCheck { old: &whole, section, place };
    let mut fitting = candidates.into_iter().filter(|new| check.passes_with_any(new));
    fitting.next().ok_or_else(|| impossible(place, "put back into"))
}

/// Adds a name to the client's list of the servers that may be used; `None` if there is no list, or
/// if it has the name.
pub(crate) fn allow(text: &str, place: &EntryLocation<'_>) -> Result<Option<String>, Failure> {
    let Some(path) = place.client.allow_list else { return Ok(None) };
    let whole = parse(text, place)?;
    let Some(DocumentValue::List(names)) = at(&whole, &path) else { return Ok(None) };
    let name = DocumentValue::Text(place.name.to_owned());
    if names.contains(&name) {
        return Ok(None);
    }
    let new = json::append_name(text, path, place.name);
    let rest = |new: &str| without_name(&parse(new, place).ok()?, path, &name);
    match new.filter(|new| rest(new).as_ref() == Some(&whole)) {
        Some(new) => Ok(Some(new)),
        None => Err(impossible(place, "added to the list in")),
    }
}

/// Takes a name out of the client's list of the servers that may be used; `None` if it is not
/// there.
pub(crate) fn disallow(text: &str, place: &EntryLocation<'_>) -> Result<Option<String>, Failure> {
    let Some(path) = place.client.allow_list else { return Ok(None) };
    let whole = parse(text, place)?;
    let name = DocumentValue::Text(place.name.to_owned());
    if !at(&whole, &path).is_some_and(|list| list.elements().contains(&name)) {
        return Ok(None);
    }
    let rest = without_name(&whole, path, &name);
    let new = json::remove_name(text, path, place.name);
    match new.filter(|new| parse(new, place).ok() == rest) {
        Some(new) => Ok(Some(new)),
        None => Err(impossible(place, "removed from the list in")),
    }
}

/// Finds the line of an entry in the section of this path, from 1.
pub(crate) fn line_of(text: &str, format: Format, section: &[&str], name: &str) -> Option<usize> {
    let start = match format {
        Format::Json => json::start_of(text, section, name),
        Format::Toml => toml::start_of(text, section, name),
        Format::Yaml => yaml::start_of(text, section, name),
    };
    Some(text.get(..start?)?.matches('\n').count() + 1)
}

/// Finds the value of a path.
pub(crate) fn at<'v>(document: &'v DocumentValue, path: &[&str]) -> Option<&'v DocumentValue> {
    path.iter().try_fold(document, |value, key| value.get(key))
}

fn parse(text: &str, place: &EntryLocation<'_>) -> Result<DocumentValue, Failure> {
    document::parse(text, place.client.format, JsonDialect::TOLERANT, place.path)
}

/// Fails if a key on the way to the entry occurs twice: it depends on the client which one counts.
fn check_unique(
    document: &DocumentValue,
    section: &[&str],
    place: &EntryLocation<'_>,
) -> Result<(), Failure> {
    let mut table = Some(document);
    for key in section.iter().chain([&place.name]) {
        let members = table.map(DocumentValue::members).unwrap_or_default();
        if members.iter().filter(|(name, _)| name == key).count() > 1 {
            return Err(Failure::NoConfig(format!(
                "{}: `{key}` occurs twice, and it depends on the client which one counts, so \
                 nothing was written; remove one of them by hand",
                place.path.display(),
            )));
        }
        table = table.and_then(|table| table.get(key));
    }
    Ok(())
}

fn is_table_or_empty(value: &DocumentValue) -> bool {
    value.is_table() || *value == DocumentValue::Null
}

fn not_a_table(place: &EntryLocation<'_>) -> Failure {
    Failure::NoConfig(format!(
        "{}: `{}` is not a table of servers, so nothing was written; correct it by hand",
        place.path.display(),
        place.client.key
    ))
}

fn impossible(place: &EntryLocation<'_>, what: &str) -> Failure {
    Failure::NoConfig(format!(
        "`{}` cannot be {what} {} without a change of something else there, so nothing was \
         written; do it by hand",
        place.name,
        place.path.display()
    ))
}

/// Returns whether `old` contains everything of `entry`: it may have more members, and a real text
/// in place of the placeholder.
fn contains_entry(old: &DocumentValue, entry: &DocumentValue, placeholder: &str) -> bool {
    let contains =
        |old: &DocumentValue, entry: &DocumentValue| contains_entry(old, entry, placeholder);
    match (old, entry) {
        (DocumentValue::Table(_), DocumentValue::Table(members)) => {
            members.iter().all(|(key, value)| old.get(key).is_some_and(|old| contains(old, value)))
        }
        (DocumentValue::List(old), DocumentValue::List(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| contains(old, new))
        }
        (DocumentValue::Text(old), DocumentValue::Text(new)) => match new.split_once(placeholder) {
            Some((before, after)) => old.starts_with(before) && old.ends_with(after),
            None => old == new,
        },
        _ => old == entry,
    }
}

/// Returns whether a text is another one with an insertion at one place.
fn is_insertion(old: &str, new: &str) -> bool {
    let head = old.bytes().zip(new.bytes()).take_while(|(a, b)| a == b).count();
    let tail = old.bytes().rev().zip(new.bytes().rev()).take_while(|(a, b)| a == b).count();
    head + tail >= old.len()
}

/// Comparison of an edited text with the document that it is made from.
struct EditCheck<'a> {
    old: &'a DocumentValue,
    section: &'a [&'a str],
    place: &'a EntryLocation<'a>,
}

impl EditCheck<'_> {
    /// Returns whether a text has this entry, or none, and otherwise the meaning of the old one.
    fn passes(&self, text: &str, expected: Option<&DocumentValue>) -> bool {
        let Ok(new) = parse(text, self.place) else { return false };
        let entry = at(&new, self.section).and_then(|table| table.get(self.place.name));
        entry == expected && self.is_equal_elsewhere(&new)
    }

    /// Returns whether a text has any entry, and otherwise the meaning of the old one.
    fn passes_with_any(&self, text: &str) -> bool {
        let Ok(new) = parse(text, self.place) else { return false };
        let entry = at(&new, self.section).and_then(|table| table.get(self.place.name));
        entry.is_some_and(DocumentValue::is_table) && self.is_equal_elsewhere(&new)
    }

    fn is_equal_elsewhere(&self, new: &DocumentValue) -> bool {
        let rest = |document| without(document, self.section, self.place.name);
        rest(self.old) == rest(new)
    }
}

/// Document without an entry, and without the tables that only contained it.
fn without(document: &DocumentValue, section: &[&str], name: &str) -> DocumentValue {
    let mut members = document.members().to_vec();
    match section {
        [] => members.retain(|(key, _)| key != name),
        [first, rest @ ..] => {
            for (key, value) in &mut members {
                if key == first {
                    *value = without(value, rest, name);
                }
            }
            let is_empty = |value: &DocumentValue| value.members().is_empty();
            members.retain(|(key, value)| key != first || !is_empty(value));
        }
    }
    DocumentValue::Table(members)
}

/// Document without a name in the list of a path; `None` if there is no list.
fn without_name(
    document: &DocumentValue,
    path: [&str; 2],
    name: &DocumentValue,
) -> Option<DocumentValue> {
    let mut document = document.clone();
    let [first, second] = path;
    let list = document.get_mut(first)?.get_mut(second)?;
    let DocumentValue::List(names) = list else { return None };
    names.retain(|it| it != name);
    Some(document)
}
