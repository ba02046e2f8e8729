//! Entries in the text of a TOML file.

use std::ops::Range;

use toml_edit::{Document, DocumentMut, InlineTable, Item, Table, Value};

use super::{RemovedEntry, is_insertion};
use crate::cli::clients::document::{DocumentValue, implicit_table};

/// Returns texts with an entry behind the others of its section, at the end of the file, or in
/// place of the one of its name.
pub(super) fn insert(
    text: &str,
    section: &[&str],
    name: &str,
    entry: &DocumentValue,
) -> Vec<String> {
    let mut table = Table::new();
    for (key, value) in entry.members() {
        table.insert(key, Item::Value(to_toml(value)));
    }
    let Some(block) = table_text(section, name, table.clone()) else { return Vec::new() };
    let block = with_line_ends_of(text, &block);
    match pieces(text, section, name).as_deref() {
        None => {
            let among_others = insert_table(text, section, name, table);
            let among_others = among_others.filter(|new| is_insertion(text, new));
            among_others.into_iter().chain([append(text, &block)]).collect()
        }
        Some([first, rest @ ..]) => {
            // What is below the first piece is removed first, so that its place stays right.
            let mut new = text.to_owned();
            rest.iter().rev().for_each(|piece| new.replace_range(piece.clone(), ""));
            new.replace_range(first.clone(), &block);
            vec![new]
        }
        Some([]) => Vec::new(),
    }
}

/// Removes an entry: the lines of its tables, or the line of its key. Comments between them stay.
pub(super) fn remove(text: &str, section: &[&str], name: &str) -> Option<RemovedEntry> {
    let pieces = pieces(text, section, name)?;
    let mut entry = String::new();
    for piece in &pieces {
        entry.push_str(text.get(piece.clone())?);
    }
    let mut new = text.to_owned();
    for piece in pieces.iter().rev() {
        let (head, rest) = (text.get(..piece.start)?, text.get(piece.end..)?);
        // One of the empty lines around the piece goes as well.
        let is_apart = head.is_empty() || head.ends_with("\n\n") || head.ends_with("\n\r\n");
        let empty = ["\r\n", "\n"].iter().find(|end| rest.starts_with(**end));
        let end = piece.end + empty.filter(|_| is_apart).map_or(0, |end| end.len());
        let is_last = rest.is_empty();
        new.replace_range(piece.start..end, "");
        if is_last && is_apart {
            let end = if head.ends_with("\r\n") { 2 } else { 1 };
            new.truncate(new.len().saturating_sub(end));
        }
    }
    Some(RemovedEntry { text: new, entry })
}

/// Returns texts with the lines of a removed entry at the end, or with its value in its section.
pub(super) fn put_back(text: &str, section: &[&str], name: &str, entry: &str) -> Vec<String> {
    if entry.trim_start().starts_with('[') {
        // A comment at the end was above it.
        let is_below_comment =
            text.ends_with('\n') && text.lines().next_back().is_some_and(|it| it.starts_with('#'));
        let new = if is_below_comment { format!("{text}{entry}") } else { append(text, entry) };
        return vec![new];
    }
    let value = || entry.parse::<DocumentMut>().ok()?.remove(name);
    let new = || {
        let mut document: DocumentMut = text.parse().ok()?;
        section_of(&mut document, section)?.insert(name, value()?);
        let new = document.to_string();
        is_insertion(text, &new).then_some(new)
    };
    new().into_iter().collect()
}

/// Finds the place of an entry.
pub(super) fn start_of(text: &str, section: &[&str], name: &str) -> Option<usize> {
    Some(pieces(text, section, name)?.first()?.start)
}

/// Finds the lines of an entry, from the first to the last; `None` if it is not there, or if it is
/// among other values of a line.
fn pieces(text: &str, section: &[&str], name: &str) -> Option<Vec<Range<usize>>> {
    let document = Document::parse(text).ok()?;
    let mut table = document.as_item();
    for key in section {
        table = table.get(*key)?;
    }
    let (key, item) = table.as_table_like()?.get_key_value(name)?;
    let mut spans = Vec::new();
    match item {
        Item::Value(value) => spans.push(key.span()?.start..value.span()?.end),
        Item::Table(table) => collect_spans(table, &mut spans)?,
        Item::None | Item::ArrayOfTables(_) => return None,
    }
    spans.sort_by_key(|span| span.start);
    spans.into_iter().map(|span| whole_lines(text, span)).collect()
}

/// Collects the places of a table and of the tables in it: each from its header to its last value.
fn collect_spans(table: &Table, spans: &mut Vec<Range<usize>>) -> Option<()> {
    if !table.is_implicit() || !table.is_empty() && table.span().is_some() {
        let header = table.span()?;
        let end = last_value(table).unwrap_or(header.end).max(header.end);
        spans.push(header.start..end);
    }
    for (_, item) in table.iter() {
        match item {
            Item::Table(inner) if !inner.is_dotted() => collect_spans(inner, spans)?,
            Item::ArrayOfTables(_) => return None,
            _ => {}
        }
    }
    Some(())
}

/// End of the last value below a table's own header.
fn last_value(table: &Table) -> Option<usize> {
    let end = |item: &Item| match item {
        Item::Value(value) => value.span().map(|span| span.end),
        Item::Table(inner) if inner.is_dotted() => last_value(inner),
        _ => None,
    };
    table.iter().filter_map(|(_, item)| end(item)).max()
}

/// Extends a place to the lines that it is on; `None` if something else is before it.
fn whole_lines(text: &str, span: Range<usize>) -> Option<Range<usize>> {
    let head = text.get(..span.start)?;
    let start = head.rfind('\n').map_or(0, |at| at + 1);
    let is_alone = head.get(start..)?.trim().is_empty();
    let end = text.get(span.end..)?.find('\n').map_or(text.len(), |at| span.end + at + 1);
    is_alone.then_some(start..end)
}

/// Inserts a table behind the others of its section.
fn insert_table(text: &str, section: &[&str], name: &str, mut table: Table) -> Option<String> {
    let mut document: DocumentMut = text.parse().ok()?;
    if !document.is_empty() {
        table.decor_mut().set_prefix("\n");
    }
    section_of(&mut document, section)?.insert(name, Item::Table(table));
    Some(document.to_string())
}

fn section_of<'d>(
    document: &'d mut DocumentMut,
    section: &[&str],
) -> Option<&'d mut dyn toml_edit::TableLike> {
    let mut item = document.as_item_mut();
    for key in section {
        let table = item.as_table_like_mut()?;
        item = table.entry(key).or_insert_with(|| Item::Table(implicit_table()));
    }
    item.as_table_like_mut()
}

/// Text of a table alone.
fn table_text(section: &[&str], name: &str, table: Table) -> Option<String> {
    let mut document = DocumentMut::new();
    section_of(&mut document, section)?.insert(name, Item::Table(table));
    Some(document.to_string())
}

/// Appends lines, apart from those above.
fn append(text: &str, lines: &str) -> String {
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let last = if text.is_empty() || text.ends_with('\n') { "" } else { end };
    let space = if text.trim().is_empty() { "" } else { end };
    format!("{text}{last}{space}{lines}")
}

fn with_line_ends_of(text: &str, lines: &str) -> String {
    if text.contains("\r\n") { lines.replace('\n', "\r\n") } else { lines.to_owned() }
}

fn to_toml(value: &DocumentValue) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "\
# Mine.
model = \"x\" # fast

# Of a.
[s.a]
command = \"a\" # why
# inside
args = [
    \"[s.b]\", # no table
]

[s.a.env]
X = \"1\"

# Of b.
[s.b]
url = \"https://b.example\"
[other]
y = 1
";

    #[test]
    fn an_entry_goes_and_the_comments_around_it_stay() {
        let removed = remove(OLD, &["s"], "a").expect("it can be removed");
        let expected = "# Mine.\nmodel = \"x\" # fast\n\n# Of a.\n\n# Of b.\n[s.b]\nurl = \
                        \"https://b.example\"\n[other]\ny = 1\n";
        assert_eq!(removed.text, expected);
        let back = put_back(&removed.text, &["s"], "a", &removed.entry).remove(0);
        assert!(back.starts_with(expected) && back.contains("command = \"a\" # why\n# inside\n"));
        let removed = remove(OLD, &["s"], "b").expect("it can be removed");
        assert_eq!(removed.text, OLD.replace("[s.b]\nurl = \"https://b.example\"\n", ""));
    }

    #[test]
    fn an_entry_in_one_line_goes_and_comes_back() {
        let old = "[s]\r\na = { command = \"a\" } # why\r\nb = { command = \"b\" }\r\n";
        let removed = remove(old, &["s"], "a").expect("it can be removed");
        assert_eq!(removed.text, "[s]\r\nb = { command = \"b\" }\r\n");
        let inline = "s = { a = { command = \"a\" }, b = {} }\n";
        assert!(remove(inline, &["s"], "a").is_none(), "it is among others");
    }

    #[test]
    fn the_last_entry_leaves_no_empty_line_behind() {
        let old = "x = 1\n\n[s.a]\ncommand = \"a\"\n";
        let removed = remove(old, &["s"], "a").expect("it can be removed");
        assert_eq!(removed.text, "x = 1\n");
        let entry =
            DocumentValue::Table(vec![("command".to_owned(), DocumentValue::Text("a".to_owned()))]);
        assert!(insert("x = 1\n", &["s"], "a", &entry).contains(&old.to_owned()));
    }
}
