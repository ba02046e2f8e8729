//! Putting an entry into a client's file, and leaving the rest of the file as it is.
//!
//! Promises: whatever is not the entry stays byte for byte, comments and order included; a file that cannot be
//! read is not touched; an entry that is there already is not written again.

use jsonc_parser::cst::{CstInputValue, CstRootNode};
use toml_edit::{DocumentMut, InlineTable, Item, Table};

use super::Place;
use super::entry::PLACEHOLDER;
use crate::cli::clients::document::{self, Format, Value};
use crate::cli::exit::Failure;

/// What came of it.
#[derive(Debug)]
pub(super) enum Inserted {
    /// The entry is there already.
    Same,
    /// The file's new text.
    Text(String),
}

/// Puts an entry into a text. Another entry of the same name is replaced only if `may_replace` says so.
pub(super) fn insert(
    text: &str,
    place: &Place<'_>,
    entry: &Value,
    may_replace: &dyn Fn(&Value) -> bool,
) -> Result<Inserted, Failure> {
    let whole = document::parse(text, place.client.format, place.path)?;
    for (table, key) in
        [(Some(&whole), place.client.key), (whole.get(place.client.key), place.name)]
    {
        let members = table.into_iter().flat_map(Value::members);
        if members.filter(|(name, _)| name == key).count() > 1 {
            return Err(Failure::NoConfig(format!(
                "{}: `{key}` stands there twice, and which of the two counts is up to the client, so \
                 nothing was written; remove one of them by hand",
                place.path.display(),
            )));
        }
    }
    let section = whole.get(place.client.key);
    let is_fit = whole.is_table() || whole == Value::Null;
    if !is_fit || section.is_some_and(|section| !section.is_table()) {
        return Err(Failure::NoConfig(format!(
            "{}: `{}` is no table of servers there, so nothing was written; correct it by hand",
            place.path.display(),
            place.client.key
        )));
    }
    match section.and_then(|section| section.get(place.name)) {
        Some(old) if says(old, entry) => return Ok(Inserted::Same),
        Some(old) if !may_replace(old) => {
            return Err(Failure::Usage(format!(
                "{} has a server `{}` already that is not Weir: choose another with --name, or replace \
                 it with --force",
                place.path.display(),
                place.name
            )));
        }
        _ => {}
    }
    let text = match place.client.format {
        Format::Json => into_json(text, place, entry)?,
        Format::Toml => into_toml(text, place, entry)?,
    };
    Ok(Inserted::Text(text))
}

/// Whether an entry says what another says: it may say more, and a key that was written into it stays.
fn says(old: &Value, entry: &Value) -> bool {
    match (old, entry) {
        (Value::Table(_), Value::Table(members)) => {
            let says =
                |(key, value): &(String, Value)| old.get(key).is_some_and(|old| says(old, value));
            members.iter().all(says)
        }
        (Value::List(old), Value::List(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| says(old, new))
        }
        (Value::Text(old), Value::Text(new)) => match new.split_once(PLACEHOLDER) {
            Some((before, after)) => old.starts_with(before) && old.ends_with(after),
            None => old == new,
        },
        _ => old == entry,
    }
}

fn into_json(text: &str, place: &Place<'_>, entry: &Value) -> Result<String, Failure> {
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
    // A new file ends as text files do; an old one ends as it did.
    let is_new = text.trim().is_empty();
    Ok(if is_new { format!("{}\n", new.trim_end()) } else { new })
}

fn to_json(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(yes) => CstInputValue::Bool(*yes),
        Value::Number(number) => CstInputValue::Number(number.clone()),
        Value::Text(text) => CstInputValue::String(text.clone()),
        Value::List(list) => CstInputValue::Array(list.iter().map(to_json).collect()),
        Value::Table(members) => {
            let members = members.iter().map(|(key, value)| (key.clone(), to_json(value)));
            CstInputValue::Object(members.collect())
        }
    }
}

fn into_toml(text: &str, place: &Place<'_>, entry: &Value) -> Result<String, Failure> {
    let mut document: DocumentMut =
        text.parse().map_err(|error| document::not_toml(place.path, text, &error))?;
    let is_first = document.is_empty();
    let section = document.entry(place.client.key).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let mut table = Table::new();
    for (key, value) in entry.members() {
        table.insert(key, Item::Value(to_toml(value)));
    }
    let Some(section) = section.as_table_like_mut() else {
        return Err(Failure::NoConfig(format!(
            "{}: `{}` is no table",
            place.path.display(),
            place.client.key
        )));
    };
    match section.get_mut(place.name).and_then(Item::as_table_mut) {
        // What stands above the old entry stays above the new one.
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
    // The editor writes line ends of one kind, and not the one of Windows.
    Ok(if text.contains("\r\n") { new.replace('\n', "\r\n") } else { new })
}

fn to_toml(value: &Value) -> toml_edit::Value {
    match value {
        Value::Null => "".into(),
        Value::Bool(yes) => (*yes).into(),
        Value::Number(number) | Value::Text(number) => number.as_str().into(),
        Value::List(list) => list.iter().map(to_toml).collect::<toml_edit::Array>().into(),
        Value::Table(members) => {
            let members = members.iter().map(|(key, value)| (key.as_str(), to_toml(value)));
            members.collect::<InlineTable>().into()
        }
    }
}
