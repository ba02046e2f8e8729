//! The document while it is read, table by table.
//!
//! A [`Table`] is read key by key. What is wrong goes to the [`Ledger`] with its place, and the reader goes
//! on with the default: ten mistakes give ten places. Asking for a key is what makes it known: a key that
//! nobody has asked for by the end of its table is an error, so the list of keys cannot fall behind the code.
//!
//! Knows nothing of: which keys exist and what they mean.

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use crate::config::reader::diagnostics::Ledger;
pub(crate) use crate::config::reader::diagnostics::{Parsed, Value};
use crate::config::reader::report::{Complaint, Severity, Span, did_you_mean};
use crate::config::reader::rule_locations::Places;

// === Table ===

/// One table of the file while it is being read. A table that is not written reads as an empty one.
pub(crate) struct Table<'a> {
    ledger: &'a Ledger,
    /// As it appears in messages: `upstreams.house.timeouts`.
    path: String,
    /// Where its name stands; none for the top table and for one that is not written.
    span: Option<Span>,
    entries: Option<&'a DeTable<'a>>,
    asked: RefCell<Vec<&'a str>>,
}

impl<'a> Table<'a> {
    pub(crate) fn root(ledger: &'a Ledger, entries: &'a DeTable<'a>) -> Self {
        Self {
            ledger,
            path: String::new(),
            span: None,
            entries: Some(entries),
            asked: RefCell::default(),
        }
    }

    /// Reads the table and then reports the keys that `read` did not ask for.
    pub(crate) fn walk<R>(self, read: impl FnOnce(&Self) -> R) -> R {
        let result = read(&self);
        let asked = self.asked.into_inner();
        for (key, value) in self.entries.into_iter().flat_map(DeTable::iter) {
            if !asked.contains(&key.get_ref().as_ref()) {
                // A misspelled `headers` holds as many secrets as a well spelled one.
                self.ledger.hide(value);
                let remedy = habit(key.get_ref(), &asked)
                    .or_else(|| did_you_mean(key.get_ref(), asked.iter().copied()))
                    .unwrap_or_else(|| format!("known here: {}", asked.join(", ")));
                let complaint = Complaint::new("no such key", remedy);
                self.ledger.add(
                    Severity::Error,
                    join(&self.path, key.get_ref()),
                    Some(key.span()),
                    complaint,
                );
            }
        }
        result
    }

    /// Reads one value, if it is written and `parse` accepts it.
    pub(crate) fn read<T>(
        &self,
        key: &'a str,
        parse: impl Fn(&Value<'_>) -> Parsed<T>,
    ) -> Option<T> {
        let (_, value) = self.entry(key)?;
        self.ledger.judge(value, parse)?.map_err(|complaint| self.object(key, complaint)).ok()
    }

    /// Reads a list; entries that `parse` does not accept are reported and left out.
    pub(crate) fn list<T>(
        &self,
        key: &'a str,
        parse: impl Fn(&Value<'_>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        let (_, value) = self.entry(key)?;
        let Some(entries) = value.get_ref().as_array() else {
            self.object(key, wrong_type("a list", value.get_ref(), "put it in brackets: [\"…\"]"));
            return None;
        };
        Some(self.entries(Severity::Error, key, entries, parse))
    }

    /// Reads a list, or a single entry in its place.
    pub(crate) fn one_or_list<T>(
        &self,
        key: &'a str,
        parse: impl Fn(&Value<'_>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        match self.written(key)?.get_ref() {
            DeValue::Array(_) => self.list(key, parse),
            // What cannot be read is told, and is no entry.
            _ => Some(self.read(key, parse).into_iter().collect()),
        }
    }

    /// Reads a list of tables, and keeps where each stands; what is no table is reported and left out.
    pub(crate) fn rows<R>(&self, key: &'a str, mut read: impl FnMut(&Table<'a>) -> R) -> Vec<R> {
        let Some(value) = self.written(key) else { return Vec::new() };
        let Some(rows) = value.get_ref().as_array() else {
            let remedy =
                format!("write [[{}]] above each, with two brackets", join(&self.path, key));
            self.object(key, wrong_type("a list of tables", value.get_ref(), remedy));
            return Vec::new();
        };
        let read = |row: &'a Value<'a>| {
            let Some(entries) = row.get_ref().as_table() else {
                let remedy = format!("write [[{}]] and its keys below", join(&self.path, key));
                let complaint = wrong_type("a table", row.get_ref(), remedy).at(row.span());
                self.object(key, complaint);
                return None;
            };
            Some(self.child(key, Some(row.span()), Some(entries)).walk(&mut read))
        };
        let places: Vec<_> = rows.iter().map(|row| row.span().start).collect();
        self.ledger.keep_places(&join(&self.path, key), &places);
        rows.iter().filter_map(read).collect()
    }

    /// Reads a list as [`Table::list`] does, and keeps where each entry stands.
    pub(crate) fn list_with_places<T>(
        &self,
        key: &'a str,
        parse: impl Fn(&Value<'_>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        let entries = self.list(key, |value| Ok((parse(value)?, value.span().start)))?;
        let (entries, places): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        self.ledger.keep_places(&join(&self.path, key), &places);
        Some(entries)
    }

    /// Keeps where the value of a key stands, if it is written.
    pub(crate) fn keep_place(&self, key: &'a str) {
        if let Some(value) = self.written(key) {
            self.ledger.keep_place(join(&self.path, key), value.span().start);
        }
    }

    /// Returns the places that were kept anywhere in the document.
    pub(crate) fn places(&self) -> Places {
        self.ledger.places()
    }

    /// Looks at a list once more: what `parse` does not accept is probably not meant, but no error.
    pub(crate) fn warn_each(&self, key: &'a str, parse: impl Fn(&Value<'_>) -> Parsed<()>) {
        if let Some(entries) = self.written(key).and_then(|value| value.get_ref().as_array()) {
            self.entries(Severity::Warning, key, entries, parse);
        }
    }

    /// Looks at a value once more: what `parse` does not accept is probably not meant, but no error.
    pub(crate) fn warn_of(&self, key: &'a str, parse: impl Fn(&Value<'_>) -> Parsed<()>) {
        let Some((_, value)) = self.entry(key) else { return };
        if let Some(Err(complaint)) = self.ledger.judge(value, parse) {
            let path = join(&self.path, key);
            self.ledger.add(Severity::Warning, path, Some(value.span()), complaint);
        }
    }

    fn entries<T>(
        &self,
        severity: Severity,
        key: &str,
        entries: &DeArray<'_>,
        parse: impl Fn(&Value<'_>) -> Parsed<T>,
    ) -> Vec<T> {
        let accept = |value: &Value<'_>| {
            let complain = |complaint| {
                self.ledger.add(severity, join(&self.path, key), Some(value.span()), complaint)
            };
            self.ledger.judge(value, &parse)?.map_err(complain).ok()
        };
        entries.iter().filter_map(accept).collect()
    }

    /// Reads a table with keys of a known set, written or not.
    pub(crate) fn table<R>(&self, key: &'a str, read: impl FnOnce(&Table<'a>) -> R) -> R {
        let entry = self.entry(key).and_then(|(name, value)| self.as_table(key, name, value));
        let (span, entries) = entry.unzip();
        self.child(key, span, entries).walk(read)
    }

    /// Reads a table of tables whose names are free, in the order of the file; what is no table is reported
    /// and left out.
    pub(crate) fn tables<R>(
        &self,
        key: &'a str,
        mut read: impl FnMut(Name<'a>, &Table<'a>) -> R,
    ) -> Vec<R> {
        let parent = self.child(key, None, None);
        let entries = self.sorted(key);
        let read = |(name, value): (Name<'a>, &'a Value<'a>)| {
            let (span, entries) = parent.as_table(name.get_ref(), name, value)?;
            Some(
                parent
                    .child(name.get_ref(), Some(span), Some(entries))
                    .walk(|table| read(name, table)),
            )
        };
        entries.into_iter().filter_map(read).collect()
    }

    /// Reads a table whose keys are free, in the order of the file; entries that `parse` does not accept
    /// are reported and left out.
    pub(crate) fn map<T>(
        &self,
        key: &'a str,
        parse: impl Fn(Name<'a>, &Value<'_>) -> Parsed<T>,
    ) -> Vec<T> {
        let path = join(&self.path, key);
        let accept = |(name, value): (Name<'a>, &'a Value<'a>)| {
            let complain = |c| {
                self.ledger.add(Severity::Error, join(&path, name.get_ref()), Some(value.span()), c)
            };
            self.ledger.judge(value, |value| parse(name, value))?.map_err(complain).ok()
        };
        self.sorted(key).into_iter().filter_map(accept).collect()
    }

    /// The keys of the table itself, in the order of the file, where they are free.
    pub(crate) fn names(&self) -> Vec<Name<'a>> {
        let mut names: Vec<_> = self.entries.into_iter().flat_map(DeTable::keys).collect();
        names.sort_by_key(|name| name.span().start);
        names
    }

    fn sorted(&self, key: &'a str) -> Vec<(Name<'a>, &'a Value<'a>)> {
        let table = self.entry(key).and_then(|(name, value)| self.as_table(key, name, value));
        let mut entries: Vec<_> = table.into_iter().flat_map(|(_, table)| table).collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        entries
    }

    /// Returns a value as it is written, for a second look at its places.
    pub(crate) fn written(&self, key: &'a str) -> Option<&'a Value<'a>> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Returns a string as it stands in the file, fit to be repeated in a complaint.
    pub(crate) fn quote(&self, key: &'a str) -> String {
        self.entry(key).map(|(_, value)| self.ledger.written(value)).unwrap_or_default()
    }

    /// Returns a string that is a part of a value as it stands in the file.
    pub(crate) fn quote_value(&self, value: &Value<'_>) -> String {
        self.ledger.written(value)
    }

    /// Where relative paths in the value of a key start: in the folder of its own file.
    pub(crate) fn folder(&self, key: &str) -> &'a Path {
        self.ledger.folder(self.place(key).map_or(0, |span| span.start))
    }

    /// Whether all variables under the key could be replaced.
    pub(crate) fn is_known(&self, key: &'a str) -> bool {
        self.entry(key).is_none_or(|(_, value)| self.ledger.is_known(value))
    }

    /// Forgives the table the variables that cannot be replaced: nobody uses what it says.
    pub(crate) fn excuse(&self) {
        self.entries.into_iter().flatten().for_each(|(_, value)| self.ledger.excuse(value));
    }

    /// Whether the key is written.
    pub(crate) fn has(&self, key: &'a str) -> bool {
        self.entry(key).is_some()
    }

    /// Reports an error about a key, at its value or else at the table. Nobody looks at its words again: they
    /// must not repeat values, which may have come out of variables.
    pub(crate) fn object(&self, key: &str, complaint: Complaint) {
        self.ledger.add(Severity::Error, join(&self.path, key), self.place(key), complaint);
    }

    /// Reports an error about the table itself.
    pub(crate) fn object_to_all(&self, complaint: Complaint) {
        self.ledger.add(Severity::Error, self.path.clone(), self.span.clone(), complaint);
    }

    /// Looks at the names of a table of tables once more: what is told of one is probably not meant.
    pub(crate) fn warn_of_names(&self, key: &'a str, judge: impl Fn(&str) -> Option<Complaint>) {
        if !self.written(key).is_some_and(|value| value.get_ref().is_table()) {
            return;
        }
        for (name, _) in self.sorted(key) {
            if let Some(complaint) = judge(name.get_ref()) {
                let path = join(&join(&self.path, key), name.get_ref());
                self.ledger.add(Severity::Warning, path, Some(name.span()), complaint);
            }
        }
    }

    /// Reports something that is probably not meant, about a key.
    pub(crate) fn warn(&self, key: &str, complaint: Complaint) {
        self.ledger.add(Severity::Warning, join(&self.path, key), self.place(key), complaint);
    }

    /// Keeps whatever is written under the key out of all drawings.
    pub(crate) fn hide(&self, key: &'a str) {
        if let Some((_, value)) = self.entry(key) {
            self.ledger.hide(value);
        }
    }

    /// Keeps what is written under the key out of all drawings, but the values of some keys of it.
    pub(crate) fn hide_but(&self, key: &'a str, shown: &[&str]) {
        match self.written(key).and_then(|value| value.get_ref().as_table()) {
            None => self.hide(key),
            Some(table) => {
                let hidden =
                    table.iter().filter(|(name, _)| !shown.contains(&name.get_ref().as_ref()));
                hidden.for_each(|(_, value)| self.ledger.hide(value));
            }
        }
    }

    /// Keeps what is written under the key out of all drawings, unless it is a table, whose reader sees to it.
    pub(crate) fn hide_unless_table(&self, key: &'a str) {
        if self.written(key).is_some_and(|value| !value.get_ref().is_table()) {
            self.hide(key);
        }
    }

    fn entry(&self, key: &'a str) -> Option<(Name<'a>, &'a Value<'a>)> {
        if !self.asked.borrow().contains(&key) {
            self.asked.borrow_mut().push(key);
            #[cfg(test)]
            self.ledger.asked.borrow_mut().insert(join(&self.path, key));
        }
        self.entries?.get_key_value(key)
    }

    fn as_table(
        &self,
        key: &str,
        name: Name<'a>,
        value: &'a Value<'a>,
    ) -> Option<(Span, &'a DeTable<'a>)> {
        if let DeValue::Table(entries) = value.get_ref() {
            return Some((name.span(), entries));
        }
        let remedy = format!("write [{}] and its keys below", join(&self.path, key));
        let complaint = wrong_type("a table", value.get_ref(), remedy).at(value.span());
        self.object(key, complaint);
        None
    }

    fn child(&self, key: &str, span: Option<Span>, entries: Option<&'a DeTable<'a>>) -> Table<'a> {
        Table {
            ledger: self.ledger,
            path: join(&self.path, key),
            span,
            entries,
            asked: RefCell::default(),
        }
    }

    fn place(&self, key: &str) -> Option<Span> {
        let value = self.entries.and_then(|entries| entries.get(key));
        value.map(Spanned::span).or_else(|| self.span.clone())
    }
}

/// A key and its place.
pub(crate) type Name<'a> = &'a Spanned<DeString<'a>>;

pub(crate) fn wrong_type(
    wanted: &str,
    found: &DeValue<'_>,
    remedy: impl Into<Cow<'static, str>>,
) -> Complaint {
    let article = if matches!(found, DeValue::Integer(_) | DeValue::Array(_)) { "an" } else { "a" };
    Complaint::new(format!("expected {wanted}, found {article} {}", found.type_str()), remedy)
}

/// Puts a key behind the path of its table, in quotes where TOML wants them.
pub(crate) fn join(path: &str, key: &str) -> String {
    let bare =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let key = if bare { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// What to write for a key that other programs' configurations have, where this table has the like of it.
fn habit(key: &str, asked: &[&str]) -> Option<String> {
    let (here, remedy) = match key {
        "mcpServers" | "mcp_servers" | "servers" | "context_servers" | "upstream" => {
            ("upstreams", "write [upstreams.<name>]")
        }
        "disabled" => ("enabled", "write `enabled = false`"),
        "type" => ("transport", "leave it out: `command` or `url` says it"),
        _ => return None,
    };
    asked.contains(&here).then(|| remedy.into())
}
