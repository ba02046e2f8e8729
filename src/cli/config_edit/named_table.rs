//! Edits of one named table, such as `[clients.ann]`, in the text of a file.
//!
//! Invariants: the new text differs from the old one only in the meaning of the table; if that is
//! impossible, there is no new text. Comments are preserved, except inside a removed table, and so
//! are the ends of all other lines.

use std::ops::Range;

use toml::Table as Meaning;
use toml_edit::{Document, DocumentMut, Item, Key, Table, Value};

use super::line_ends;
use crate::cli::clients::document::implicit_table;

/// Table with a name that the user chose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedTable<'a> {
    /// Table that contains it, such as `clients`.
    pub(crate) section: &'static str,
    pub(crate) name: &'a str,
}

/// Text of a changed file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EditedFile {
    pub(crate) text: String,
    /// Lines that were written or removed.
    pub(crate) lines: String,
}

impl NamedTable<'_> {
    /// Returns whether a text contains the table, or this key of it.
    pub(crate) fn is_in(&self, text: &str, key: Option<&str>) -> bool {
        let Ok(document) = text.parse::<DocumentMut>() else { return false };
        let table = document.get(self.section).and_then(|section| section.get(self.name));
        table.is_some_and(|table| key.is_none_or(|key| table.get(key).is_some()))
    }

    /// Adds the table behind the others of its section, or at the end; `None` if the text contains
    /// it already, or if other settings would change.
    pub(crate) fn add(&self, text: &str, table: &Table) -> Option<EditedFile> {
        if self.is_in(text, None) {
            return None;
        }
        let plain = text.replace("\r\n", "\n");
        let lines = self.format(table);
        let behind_others = self.insert(&plain, table).filter(|new| is_insertion(&plain, new));
        let texts = behind_others.into_iter().chain([append(&plain, &lines)]);
        let mut edited = texts.map(|text| EditedFile { text, lines: lines.clone() });
        edited.find_map(|edited| self.finish(text, edited, |_, written| written))
    }

    /// Changes values of the table. `change` returns them as the output shows them; `None` if it
    /// cannot change them, or if other settings would change.
    pub(crate) fn change(
        &self,
        text: &str,
        change: impl FnOnce(&mut Item) -> Option<Table>,
    ) -> Option<EditedFile> {
        let mut document: DocumentMut = text.replace("\r\n", "\n").parse().ok()?;
        let table = document.get_mut(self.section)?.get_mut(self.name)?;
        let lines = self.format(&change(table)?);
        let edited = EditedFile { text: document.to_string(), lines };
        self.finish(text, edited, |was, written| {
            let mut is = was?;
            is.extend(written?);
            Some(is)
        })
    }

    /// Removes the table line by line; the lines above and below are unchanged. `None` if other
    /// settings would change.
    pub(crate) fn remove(&self, text: &str) -> Option<EditedFile> {
        let plain = text.replace("\r\n", "\n");
        let lines: Vec<&str> = plain.split_inclusive('\n').collect();
        let is_own = self.own_lines(&plain, &lines)?;
        let (mut remaining, mut removed) = (String::new(), String::new());
        let mut at = 0;
        while at < lines.len() {
            if !is_own[at] {
                remaining.push_str(lines[at]);
                at += 1;
                continue;
            }
            while at < lines.len() && is_own[at] {
                removed.push_str(lines[at]);
                at += 1;
            }
            // One of the empty lines around the table is removed as well.
            let is_apart = remaining.is_empty() || remaining.ends_with("\n\n");
            if is_apart && lines.get(at).is_some_and(|line| line.trim().is_empty()) {
                at += 1;
            }
        }
        // The file must not end with an empty line that it did not have.
        if plain.ends_with('\n') && !plain.ends_with("\n\n") {
            while remaining.ends_with("\n\n") {
                remaining.pop();
            }
        }
        if removed.is_empty() {
            return None;
        }
        self.finish(text, EditedFile { text: remaining, lines: removed }, |_, _| None)
    }

    /// Meaning of a table of this name.
    pub(crate) fn meaning_of(&self, table: &Table) -> Meaning {
        let document = self.format(table).parse().ok();
        document.and_then(|mut document| self.take(&mut document)).unwrap_or_default()
    }

    /// Formats a table of this name alone; the comment above it is that of its decor.
    pub(crate) fn format(&self, table: &Table) -> String {
        let mut table = table.clone();
        let comment = comment_above(&table);
        table.decor_mut().set_prefix(comment);
        let mut section = implicit_table();
        section.insert(self.name, Item::Table(table));
        let mut document = DocumentMut::new();
        document.insert(self.section, Item::Table(section));
        document.to_string()
    }

    /// Inserts the table behind the others of its section, if there are any.
    fn insert(&self, plain: &str, table: &Table) -> Option<String> {
        let mut document: DocumentMut = plain.parse().ok()?;
        let section = document.get_mut(self.section)?.as_table_mut()?;
        let mut table = table.clone();
        let comment = comment_above(&table);
        table.decor_mut().set_prefix(format!("\n{comment}"));
        section.insert(self.name, Item::Table(table));
        Some(document.to_string())
    }

    /// Returns for each line whether it belongs to the table.
    fn own_lines(&self, plain: &str, lines: &[&str]) -> Option<Vec<bool>> {
        let document = Document::parse(plain).ok()?;
        let mut found = TablePositions::default();
        found.collect(document.as_table(), Some(&[self.section, self.name]));
        found.headers.sort_unstable();
        let line_of = |at: usize| plain.get(..at).map_or(0, |before| before.matches('\n').count());
        let mut is_own = vec![false; lines.len()];
        // Comments before the next table belong to that table.
        let is_blank = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
        for (index, (start, _)) in found.headers.iter().enumerate().filter(|(_, it)| it.1) {
            let first = line_of(*start);
            let end = found.headers.get(index + 1).map_or(lines.len(), |(next, _)| line_of(*next));
            let own = lines.get(first..end)?;
            let last = first + own.iter().rposition(|line| !is_blank(line))?;
            is_own[first..=last].fill(true);
        }
        for Range { start, end } in found.values {
            is_own[line_of(start)..=line_of(end.saturating_sub(1))].fill(true);
        }
        Some(is_own)
    }

    /// Restores the ends of the lines, and makes sure that nothing but the table has changed, and
    /// the table to what `expected` makes of its former meaning and of the shown lines.
    fn finish(
        &self,
        old: &str,
        edited: EditedFile,
        expected: impl Fn(Option<Meaning>, Option<Meaning>) -> Option<Meaning>,
    ) -> Option<EditedFile> {
        let text = line_ends::restore(old, &edited.text);
        let edited = EditedFile { text, ..edited };
        let mut old: Meaning = old.parse().ok()?;
        let mut new: Meaning = edited.text.parse().ok()?;
        let (was, is) = (self.take(&mut old), self.take(&mut new));
        let written = edited.lines.parse().ok().and_then(|mut lines| self.take(&mut lines));
        (old == new && is == expected(was, written)).then_some(edited)
    }

    /// Takes the table out of a document, and the section if it was the only table there.
    fn take(&self, document: &mut Meaning) -> Option<Meaning> {
        let section = document.get_mut(self.section)?.as_table_mut()?;
        let table = section.remove(self.name);
        if section.is_empty() {
            document.remove(self.section);
        }
        table?.try_into().ok()
    }
}

/// Sets a value of a table, and preserves the text around it.
pub(crate) fn set_value(table: &mut Item, key: &str, value: impl Into<Value>) -> Option<()> {
    let mut value = value.into();
    if let Some(old) = table.get_mut(key).and_then(Item::as_value_mut) {
        *value.decor_mut() = old.decor().clone();
        *old = value;
        return Some(());
    }
    if let Some(inline) = table.as_inline_table_mut() {
        // The space before the brace follows the last value.
        let last = inline.iter_mut().last().map(|(_, last)| last.decor_mut());
        let space = last.and_then(|decor| {
            let space = decor.suffix().and_then(|space| space.as_str()).map(str::to_owned);
            decor.set_suffix("");
            space
        });
        *value.decor_mut() = toml_edit::Decor::new(" ", space.unwrap_or_default());
    }
    table.as_table_like_mut()?.insert(key, Item::Value(value));
    Some(())
}

/// Positions of tables and values in the text of a document.
#[derive(Default)]
struct TablePositions {
    /// Starts of the headers of all tables, and whether the table is the named one or within it.
    headers: Vec<(usize, bool)>,
    /// Values of the named table, from the key to the end of the value.
    values: Vec<Range<usize>>,
}

impl TablePositions {
    /// Collects the positions below a table. `path` leads from it to the named table; it is empty
    /// in that table, and missing elsewhere.
    fn collect(&mut self, table: &Table, path: Option<&[&str]>) {
        for (name, item) in table.iter() {
            let path = match path {
                Some([]) => path,
                Some([next, path @ ..]) if *next == name => Some(path),
                _ => None,
            };
            let is_own = path.is_some_and(<[&str]>::is_empty);
            match item {
                Item::Table(table) => self.collect_table(table, path, is_own),
                Item::ArrayOfTables(tables) => {
                    tables.iter().for_each(|table| self.collect_table(table, path, is_own));
                }
                Item::Value(value) if is_own => {
                    let key = table.key(name).and_then(Key::span);
                    let places = key.zip(value.span());
                    self.values.extend(places.map(|(key, value)| key.start..value.end));
                }
                Item::Value(_) | Item::None => {}
            }
        }
    }

    fn collect_table(&mut self, table: &Table, path: Option<&[&str]>, is_own: bool) {
        // Dotted keys and the beginnings of longer headers have no header.
        if let Some(span) = table.span().filter(|_| !table.is_implicit()) {
            self.headers.push((span.start, is_own));
        }
        self.collect(table, path);
    }
}

/// Comment lines in front of a table's header.
fn comment_above(table: &Table) -> String {
    let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
    prefix.trim_start_matches('\n').to_owned()
}

/// Appends lines to a text, with an empty line between them.
fn append(text: &str, lines: &str) -> String {
    let gap = match text {
        "" => "",
        text if text.ends_with("\n\n") => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    format!("{text}{gap}{lines}")
}

/// Returns whether a text consists of another one and lines at one place in it.
fn is_insertion(old: &str, new: &str) -> bool {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let is_same = |(old, new): &(&&str, &&str)| old == new;
    let head = old.iter().zip(&new).take_while(is_same).count();
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(is_same).count();
    head + tail >= old.len()
}
