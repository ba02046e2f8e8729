//! Entries in the text of a JSON file, with comments and trailing commas.

use std::ops::Range;

use jsonc_parser::CollectOptions;
use jsonc_parser::ast::{Object, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::cst::{CstInputValue, CstRootNode};

use super::{RemovedEntry, is_insertion};
use crate::cli::clients::document::{DocumentValue, json_options};

/// Value of an entry that is inserted.
pub(super) enum NewValue<'a> {
    Of(&'a DocumentValue),
    /// Text that was removed before.
    Text(&'a str),
}

/// Returns texts with an entry behind the others, on lines of its own or in their line, or in place
/// of the one of its name.
pub(super) fn insert(text: &str, section: &[&str], name: &str, value: NewValue<'_>) -> Vec<String> {
    let line = match &value {
        NewValue::Of(value) => value.to_line(),
        NewValue::Text(text) => (*text).to_owned(),
    };
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &json_options());
    let parsed = parsed.ok().and_then(|parsed| parsed.value);
    let is_there = parsed
        .as_ref()
        .and_then(|root| find_object(root, section))
        .is_some_and(|table| table.get(name).is_some());
    let Some(new) = insert_lines(text, section, name, value) else { return Vec::new() };
    if is_there || is_insertion(text, &new) {
        return vec![new];
    }
    // It would break an object into lines.
    let in_line = parsed.and_then(|root| insert_in_line(text, &root, section, name, &line));
    in_line.into_iter().chain([new]).collect()
}

/// Inserts an entry behind the last member of its section, in the line of that; a section that is
/// missing is inserted as well.
fn insert_in_line(
    text: &str,
    root: &Value<'_>,
    section: &[&str],
    name: &str,
    value: &str,
) -> Option<String> {
    let mut depths = (0..=section.len()).rev();
    let found = depths.find_map(|depth| {
        let (there, missing) = section.split_at(depth);
        find_object(root, there).map(|table| (table, missing))
    });
    let (table, missing) = found?;
    let quote = |text: &str| DocumentValue::Text(text.to_owned()).to_line();
    let mut member = format!("{}: {value}", quote(name));
    for key in missing.iter().rev() {
        member = format!("{}: {{{member}}}", quote(key));
    }
    if missing.first().is_some_and(|key| table.get(key).is_some()) {
        return None;
    }
    let last = table.properties.last()?.range.end;
    let (at, before, behind) = match comma_behind(text, last) {
        Some(comma) => (comma + 1, "", ","),
        None => (last, ",", ""),
    };
    let (head, rest) = (text.get(..at)?, text.get(at..)?);
    Some(format!("{head}{before} {member}{behind}{rest}"))
}

/// Inserts an entry behind the others, or replaces the one of its name.
fn insert_lines(text: &str, section: &[&str], name: &str, value: NewValue<'_>) -> Option<String> {
    let root = CstRootNode::parse(text, &json_options()).ok()?;
    let mut table = root.object_value_or_set();
    for key in section {
        table = table.object_value_or_set(key);
    }
    let marker = unused_text(text);
    let (input, later) = match value {
        NewValue::Of(value) => (to_json(value), None),
        NewValue::Text(later) => (CstInputValue::String(marker.clone()), Some(later)),
    };
    match table.get(name) {
        Some(old) => old.set_value(input),
        None => {
            table.append(name, input);
        }
    }
    let new = root.to_string();
    let new = match later {
        Some(later) => new.replacen(&format!("\"{marker}\""), later, 1),
        None => new,
    };
    // A new file ends with a line break; an old one keeps its end.
    let is_new = text.trim().is_empty();
    Some(if is_new { format!("{}\n", new.trim_end()) } else { new })
}

/// Finds the place of an entry.
pub(super) fn start_of(text: &str, section: &[&str], name: &str) -> Option<usize> {
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &json_options());
    let parsed = parsed.ok()?.value?;
    let mut members = find_object(&parsed, section)?.properties.iter().rev();
    members.find(|member| member.name.as_str() == name).map(|member| member.range.start)
}

/// Removes an entry with its comma. Comments outside it stay.
pub(super) fn remove(text: &str, section: &[&str], name: &str) -> Option<RemovedEntry> {
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &json_options());
    let parsed = parsed.ok()?.value?;
    let table = find_object(&parsed, section)?;
    let index = table.properties.iter().position(|property| property.name.as_str() == name)?;
    let value = table.properties.get(index)?.value.range();
    let items: Vec<_> = table.properties.iter().map(|it| it.range.start..it.range.end).collect();
    let entry = text.get(value.start..value.end)?.to_owned();
    let text = match only_item(text, table) {
        Some(inside) => format!("{}{}", text.get(..inside.start)?, text.get(inside.end..)?),
        None => cut_item(text, &items, index)?,
    };
    Some(RemovedEntry { text, entry })
}

/// Returns the place between the braces of an object that has one item and otherwise only spaces.
fn only_item(text: &str, object: &Object<'_>) -> Option<Range<usize>> {
    let [item] = &object.properties[..] else { return None };
    let inside = object.range.start + 1..object.range.end.checked_sub(1)?;
    let before = text.get(inside.start..item.range.start)?.trim();
    let behind = text.get(item.range.end..inside.end)?.trim();
    (before.is_empty() && ["", ","].contains(&behind)).then_some(inside)
}

/// Appends a name to a list.
pub(super) fn append_name(text: &str, [first, second]: [&str; 2], name: &str) -> Option<String> {
    let root = CstRootNode::parse(text, &json_options()).ok()?;
    let list = root.object_value()?.object_value(first)?.array_value(second)?;
    list.append(CstInputValue::String(name.to_owned()));
    Some(root.to_string())
}

/// Removes a name from a list.
pub(super) fn remove_name(text: &str, [first, second]: [&str; 2], name: &str) -> Option<String> {
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &json_options());
    let parsed = parsed.ok()?.value?;
    let table = find_object(&parsed, &[first])?;
    let list = table.properties.iter().find(|property| property.name.as_str() == second)?;
    let Value::Array(list) = &list.value else { return None };
    let is_name = |value: &Value<'_>| matches!(value, Value::StringLit(text) if text.value == name);
    let index = list.elements.iter().position(is_name)?;
    let items = list.elements.iter().map(|value| value.range());
    let items: Vec<_> = items.map(|range| range.start..range.end).collect();
    cut_item(text, &items, index)
}

fn find_object<'v, 'a>(root: &'v Value<'a>, path: &[&str]) -> Option<&'v Object<'a>> {
    let mut value = root;
    for key in path {
        let Value::Object(object) = value else { return None };
        let property = object.properties.iter().rev().find(|it| it.name.as_str() == *key)?;
        value = &property.value;
    }
    match value {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

/// Cuts an item out of a list or an object, and one comma beside it; a line that has nothing else
/// goes with it.
fn cut_item(text: &str, items: &[Range<usize>], index: usize) -> Option<String> {
    let item = items.get(index)?.clone();
    let mut end = item.end;
    let mut cuts = Vec::new();
    match comma_behind(text, item.end) {
        // Comments before the comma stay.
        Some(comma) if comma == item.end => end = comma + 1,
        Some(comma) => cuts.push(comma..comma + 1),
        None => {
            let before = index.checked_sub(1).and_then(|before| items.get(before));
            let comma = before.and_then(|before| comma_behind(text, before.end));
            cuts.extend(comma.map(|comma| comma..comma + 1));
        }
    }
    let (head, rest) = (text.get(..item.start)?, text.get(end..)?);
    let spaces = |text: &str| text.len() - text.trim_start_matches([' ', '\t']).len();
    let indentation = head.len() - head.trim_end_matches([' ', '\t']).len();
    let starts_line = head.len() == indentation || head[..head.len() - indentation].ends_with('\n');
    let behind = &rest[spaces(rest)..];
    let line_end = ["\r\n", "\n"].iter().find(|end| behind.starts_with(**end));
    let has_later_cut = cuts.iter().any(|cut| cut.start >= end);
    let cut = match line_end {
        Some(line_end) if starts_line && !has_later_cut => {
            item.start - indentation..end + spaces(rest) + line_end.len()
        }
        // On a line with other items, one space remains between its neighbors.
        _ if starts_line || indentation == 0 => item.start..end + spaces(rest),
        _ => item.start - indentation..end,
    };
    cuts.push(cut);
    cuts.sort_by_key(|cut| cut.start);
    let mut new = String::new();
    let mut at = 0;
    for cut in cuts {
        new.push_str(text.get(at..cut.start)?);
        at = cut.end;
    }
    new.push_str(text.get(at..)?);
    Some(new)
}

/// Finds the comma that is next, apart from spaces and comments.
fn comma_behind(text: &str, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let rest = text.get(at..)?;
        let trimmed = rest.trim_start();
        at += rest.len() - trimmed.len();
        if trimmed.starts_with("//") {
            at += trimmed.find('\n')?;
        } else if trimmed.starts_with("/*") {
            at += trimmed.find("*/")? + 2;
        } else {
            return trimmed.starts_with(',').then_some(at);
        }
    }
}

/// Text that is nowhere in another one.
fn unused_text(text: &str) -> String {
    let numbered = (0..).map(|number: usize| format!("weir-entry-{number}"));
    let mut unused = numbered.filter(|marker| !text.contains(marker.as_str()));
    unused.next().unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, name: &str, new: &str) {
        let removed = remove(old, &["s"], name).expect("it can be removed");
        assert_eq!(removed.text, new, "{old}");
    }

    #[test]
    fn an_entry_goes_with_its_comma_and_no_comment_goes() {
        check("{\"s\": {\"a\": 1}}", "a", "{\"s\": {}}");
        check("{\"s\": { \"a\": 1, \"b\": 2 }}", "a", "{\"s\": { \"b\": 2 }}");
        check("{\"s\": { \"a\": 1, \"b\": 2 }}", "b", "{\"s\": { \"a\": 1 }}");
        let lines =
            "{\n  \"s\": {\n    // of a\n    \"a\": 1, // one\n    \"b\": 2, /* two */\n  },\n}\n";
        check(
            lines,
            "a",
            "{\n  \"s\": {\n    // of a\n    // one\n    \"b\": 2, /* two */\n  },\n}\n",
        );
        check(
            lines,
            "b",
            "{\n  \"s\": {\n    // of a\n    \"a\": 1, // one\n    /* two */\n  },\n}\n",
        );
        let strict = "{\r\n\t\"s\": {\r\n\t\t\"a\": 1,\r\n\t\t\"b\": {\r\n\t\t\t\"c\": 2\r\n\t\t}\r\n\t}\r\n}";
        check(
            strict,
            "a",
            "{\r\n\t\"s\": {\r\n\t\t\"b\": {\r\n\t\t\t\"c\": 2\r\n\t\t}\r\n\t}\r\n}",
        );
        check(strict, "b", "{\r\n\t\"s\": {\r\n\t\t\"a\": 1\r\n\t}\r\n}");
        check("{\"s\": {\"a\": 1 /* x, */ , \"b\": 2}}", "a", "{\"s\": {/* x, */  \"b\": 2}}");
    }

    #[test]
    fn a_removed_text_is_put_back_with_its_comments() {
        let old = "{\n  \"s\": {\n    \"a\": { // why\n      \"x\": 1 },\n    \"b\": 2\n  }\n}\n";
        let removed = remove(old, &["s"], "a").expect("it can be removed");
        let new = insert(&removed.text, &["s"], "a", NewValue::Text(&removed.entry)).remove(0);
        let expected =
            "{\n  \"s\": {\n    \"b\": 2,\n    \"a\": { // why\n      \"x\": 1 }\n  }\n}\n";
        assert_eq!(new, expected);
    }

    #[test]
    fn entries_in_one_line_stay_there() {
        let entry = DocumentValue::Table(vec![("u".to_owned(), DocumentValue::Bool(true))]);
        for (old, new) in [
            ("{\"s\": { \"a\": 1 }} // x", "{\"s\": { \"a\": 1, \"n\": {\"u\": true} }} // x"),
            ("{\"s\": {\"a\": 1,}}", "{\"s\": {\"a\": 1, \"n\": {\"u\": true},}}"),
            ("{\"x\": 1}", "{\"x\": 1, \"s\": {\"n\": {\"u\": true}}}"),
        ] {
            assert_eq!(insert(old, &["s"], "n", NewValue::Of(&entry)).remove(0), new);
        }
    }

    #[test]
    fn a_name_is_added_to_a_list_and_taken_out() {
        let path = ["mcp", "allowed"];
        let old = "{ \"mcp\": { \"allowed\": [\"a\", \"b\"] } } // end\n";
        let new = append_name(old, path, "c").expect("it can be added");
        assert_eq!(new, "{ \"mcp\": { \"allowed\": [\"a\", \"b\", \"c\"] } } // end\n");
        assert_eq!(remove_name(&new, path, "c").as_deref(), Some(old));
        let first = remove_name(&new, path, "a");
        assert_eq!(first.as_deref(), Some("{ \"mcp\": { \"allowed\": [\"b\", \"c\"] } } // end\n"));
    }
}
