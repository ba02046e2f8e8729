//! Insertion of an entry into a client's file.
//!
//! Invariants: everything except the entry is preserved byte for byte, including comments and
//! order; a file that cannot be parsed is not changed; an entry that exists already is not written.

use jsonc_parser::cst::{CstInputValue, CstRootNode};
use toml_edit::{DocumentMut, InlineTable, Item, Table};

use crate::cli::clients::connect::EntryLocation;
use crate::cli::clients::connect::entry::PLACEHOLDER;
use crate::cli::clients::document::{self, DocumentValue, Format, JsonDialect};
use crate::cli::exit::Failure;

/// Returns the text with an entry inserted; `None` if it contains the entry already. Another entry
/// of the same name is replaced only if `may_replace` returns true.
pub(super) fn insert(
    text: &str,
    place: &EntryLocation<'_>,
    entry: &DocumentValue,
    may_replace: &dyn Fn(&DocumentValue) -> bool,
) -> Result<Option<String>, Failure> {
    let whole = document::parse(text, place.client.format, JsonDialect::TOLERANT, place.path)?;
    for (table, key) in
        [(Some(&whole), place.client.key), (whole.get(place.client.key), place.name)]
    {
        let members = table.into_iter().flat_map(DocumentValue::members);
        if members.filter(|(name, _)| name == key).count() > 1 {
            return Err(Failure::NoConfig(format!(
                "{}: `{key}` occurs twice, and it depends on the client which one counts, so \
                 nothing was written; remove one of them by hand",
                place.path.display(),
            )));
        }
    }
    let section = whole.get(place.client.key);
    let is_table_or_empty = whole.is_table() || whole == DocumentValue::Null;
    if !is_table_or_empty || section.is_some_and(|section| !section.is_table()) {
        return Err(not_a_table(place));
    }
    match section.and_then(|section| section.get(place.name)) {
        Some(old) if contains_entry(old, entry) => return Ok(None),
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
    match place.client.format {
        Format::Json => into_json(text, place, entry).map(Some),
        Format::Toml => into_toml(text, place, entry).map(Some),
    }
}

fn not_a_table(place: &EntryLocation<'_>) -> Failure {
    Failure::NoConfig(format!(
        "{}: `{}` is not a table of servers, so nothing was written; correct it by hand",
        place.path.display(),
        place.client.key
    ))
}

/// Returns whether `old` contains everything of `entry`: it may have more members, and a real key
/// in place of the placeholder.
fn contains_entry(old: &DocumentValue, entry: &DocumentValue) -> bool {
    match (old, entry) {
        (DocumentValue::Table(_), DocumentValue::Table(members)) => {
            let contains_entry = |(key, value): &(String, DocumentValue)| {
                old.get(key).is_some_and(|old| contains_entry(old, value))
            };
            members.iter().all(contains_entry)
        }
        (DocumentValue::List(old), DocumentValue::List(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| contains_entry(old, new))
        }
        (DocumentValue::Text(old), DocumentValue::Text(new)) => match new.split_once(PLACEHOLDER) {
            Some((before, after)) => old.starts_with(before) && old.ends_with(after),
            None => old == new,
        },
        _ => old == entry,
    }
}

fn into_json(
    text: &str,
    place: &EntryLocation<'_>,
    entry: &DocumentValue,
) -> Result<String, Failure> {
    let root = CstRootNode::parse(text, &document::json_options())
        .map_err(|error| document::not_json(place.path, &error))?;
    let section = root.object_value_or_set().object_value_or_set(place.client.key);
    match section.get(place.name) {
        Some(old) => old.set_value(to_json(entry)),
        None => {
            section.append(place.name, to_json(entry));
        }
    }
    let new = root.to_string();
    // A new file ends with a line break; an old one keeps its end.
    let is_new = text.trim().is_empty();
    Ok(if is_new { format!("{}\n", new.trim_end()) } else { new })
}

fn to_json(value: &DocumentValue) -> CstInputValue {
    match value {
        DocumentValue::Null => CstInputValue::Null,
        DocumentValue::Bool(yes) => CstInputValue::Bool(*yes),
        DocumentValue::Number(number) => CstInputValue::Number(number.clone()),
        DocumentValue::Text(text) => CstInputValue::String(text.clone()),
        DocumentValue::List(list) => CstInputValue::Array(list.iter().map(to_json).collect()),
        DocumentValue::Table(members) => {
            let members = members.iter().map(|(key, value)| (key.clone(), to_json(value)));
            CstInputValue::Object(members.collect())
        }
    }
}

fn into_toml(
    text: &str,
    place: &EntryLocation<'_>,
    entry: &DocumentValue,
) -> Result<String, Failure> {
    let mut document: DocumentMut =
        text.parse().map_err(|error| document::not_toml(place.path, text, &error))?;
    let is_first = document.is_empty();
    let section = document.entry(place.client.key);
    let section = section.or_insert_with(|| Item::Table(document::implicit_table()));
    let mut table = Table::new();
    for (key, value) in entry.members() {
        table.insert(key, Item::Value(to_toml(value)));
    }
    let section = section.as_table_like_mut().ok_or_else(|| not_a_table(place))?;
    match section.get_mut(place.name).and_then(Item::as_table_mut) {
        // Comments above the old entry are preserved.
        Some(old) => {
            *table.decor_mut() = old.decor().clone();
            table.set_position(old.position());
            *old = table;
        }
        None => {
            if !is_first {
                table.decor_mut().set_prefix("\n");
            }
            section.insert(place.name, Item::Table(table));
        }
    }
    let new = document.to_string();
    // `toml_edit` writes `\n`, therefore `\r\n` is restored.
    Ok(if text.contains("\r\n") { new.replace('\n', "\r\n") } else { new })
}

fn to_toml(value: &DocumentValue) -> toml_edit::Value {
    match value {
        DocumentValue::Null => "".into(),
        DocumentValue::Bool(yes) => (*yes).into(),
        DocumentValue::Number(number) | DocumentValue::Text(number) => number.as_str().into(),
        DocumentValue::List(list) => list.iter().map(to_toml).collect::<toml_edit::Array>().into(),
        DocumentValue::Table(members) => {
            let members = members.iter().map(|(key, value)| (key.as_str(), to_toml(value)));
            members.collect::<InlineTable>().into()
        }
    }
}
