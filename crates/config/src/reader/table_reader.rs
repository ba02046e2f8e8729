//! Reader for one table of the document.
//!
//! A [`TableReader`] is read key by key. Each mistake is added to the [`Diagnostics`] with its
//! span, and reading continues with the default, so that all mistakes are reported at once. Reading
//! a key makes it a known key: keys that were not read by the end of their table are errors, so the
//! list of known keys always matches the code.
//!
//! Decision: docs/decisions/0020-configuration-and-schema.md

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use crate::reader::diagnostics::Diagnostics;
pub(crate) use crate::reader::diagnostics::{Parsed, SpannedValue};
use crate::reader::report::{Severity, Span, ValueError, did_you_mean, nearest};
use crate::reader::rule_locations::{RuleLocations, join};
use weir_base::secrets::secret::Secret;

// === Table ===

/// Reader of one table. A missing table reads as an empty one.
pub(crate) struct TableReader<'a> {
    diagnostics: &'a Diagnostics,
    /// Path in messages, like `upstreams.files.timeouts`.
    path: String,
    /// Span of its name; `None` for the top table and for a missing table.
    span: Option<Span>,
    entries: Option<&'a DeTable<'a>>,
    known_keys: RefCell<Vec<&'a str>>,
}

impl<'a> TableReader<'a> {
    pub(crate) fn root(diagnostics: &'a Diagnostics, entries: &'a DeTable<'a>) -> Self {
        Self {
            diagnostics,
            path: String::new(),
            span: None,
            entries: Some(entries),
            known_keys: RefCell::default(),
        }
    }

    /// Reads the table with `read`, then reports the keys that `read` has not read.
    pub(crate) fn read_checked<R>(self, read: impl FnOnce(&Self) -> R) -> R {
        let result = read(&self);
        let known_keys = self.known_keys.into_inner();
        for (key, value) in self.entries.into_iter().flat_map(DeTable::iter) {
            if !known_keys.contains(&key.get_ref().as_ref()) {
                let path = join(&self.path, key.get_ref());
                let meant = nearest(key.get_ref(), known_keys.iter().copied());
                self.diagnostics.redact_unknown(&path, value, meant);
                let remedy = foreign_key_remedy(key.get_ref(), &known_keys)
                    .or_else(|| did_you_mean(key.get_ref(), known_keys.iter().copied()))
                    .unwrap_or_else(|| format!("known here: {}", known_keys.join(", ")));
                let error = ValueError::new("no such key", remedy);
                self.diagnostics.error(path, Some(key.span()), error);
            }
        }
        result
    }

    /// Reads one value. Returns `None` if the key is missing or `parse` fails, which is reported.
    pub(crate) fn read<T>(
        &self,
        key: &'a str,
        parse: impl Fn(&SpannedValue<'_>) -> Parsed<T>,
    ) -> Option<T> {
        let (_, value) = self.entry(key)?;
        self.diagnostics.parse_value(value, parse)?.map_err(|error| self.error(key, error)).ok()
    }

    /// Reads a list; entries for which `parse` fails are reported and left out.
    pub(crate) fn list<T>(
        &self,
        key: &'a str,
        parse: impl Fn(&SpannedValue<'_>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        let (_, value) = self.entry(key)?;
        let Some(entries) = value.get_ref().as_array() else {
            self.error(key, wrong_type("a list", value.get_ref(), "put it in brackets: [\"…\"]"));
            return None;
        };
        Some(self.entries(Severity::Error, key, entries, parse))
    }

    /// Reads a list, or a single entry in its place.
    pub(crate) fn one_or_list<T>(
        &self,
        key: &'a str,
        parse: impl Fn(&SpannedValue<'_>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        match self.get(key)?.get_ref() {
            DeValue::Array(_) => self.list(key, parse),
            // An invalid value is reported, and is left out.
            _ => Some(self.read(key, parse).into_iter().collect()),
        }
    }

    /// Reads a list of tables, and records their locations; other entries are reported and left
    /// out.
    pub(crate) fn table_list<R>(
        &self,
        key: &'a str,
        mut read: impl FnMut(&TableReader<'a>) -> R,
    ) -> Vec<R> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let Some(rows) = value.get_ref().as_array() else {
            let remedy =
                format!("write [[{}]] above each, with two brackets", join(&self.path, key));
            self.error(key, wrong_type("a list of tables", value.get_ref(), remedy));
            return Vec::new();
        };
        let read = |row: &'a SpannedValue<'a>| {
            let Some(entries) = row.get_ref().as_table() else {
                let remedy = format!("write [[{}]] and its keys below", join(&self.path, key));
                let error = wrong_type("a table", row.get_ref(), remedy).at(row.span());
                self.error(key, error);
                return None;
            };
            Some(self.child(key, Some(row.span()), Some(entries)).read_checked(&mut read))
        };
        let places: Vec<_> = rows.iter().map(|row| row.span().start).collect();
        self.diagnostics.record_locations(&join(&self.path, key), &places);
        rows.iter().filter_map(read).collect()
    }

    /// Reads a list like [`TableReader::list`], and records the locations of its entries.
    pub(crate) fn list_with_locations<T>(
        &self,
        key: &'a str,
        parse: impl Fn(&SpannedValue<'_>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        let entries = self.list(key, |value| Ok((parse(value)?, value.span().start)))?;
        let (entries, places): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        self.diagnostics.record_locations(&join(&self.path, key), &places);
        Some(entries)
    }

    /// Records the location of a key's value, if the key is set.
    pub(crate) fn record_location(&self, key: &'a str) {
        if let Some(value) = self.get(key) {
            self.diagnostics.record_location(join(&self.path, key), value.span().start);
        }
    }

    /// Returns the locations that were recorded in the whole document.
    pub(crate) fn locations(&self) -> RuleLocations {
        self.diagnostics.locations()
    }

    /// Adds a warning for each entry of a list for which `parse` fails.
    pub(crate) fn warn_entries(
        &self,
        key: &'a str,
        parse: impl Fn(&SpannedValue<'_>) -> Parsed<()>,
    ) {
        if let Some(entries) = self.get(key).and_then(|value| value.get_ref().as_array()) {
            self.entries(Severity::Warning, key, entries, parse);
        }
    }

    /// Adds a warning if `parse` fails for the value of a key.
    pub(crate) fn warn_value(&self, key: &'a str, parse: impl Fn(&SpannedValue<'_>) -> Parsed<()>) {
        let Some((_, value)) = self.entry(key) else { return };
        if let Some(Err(error)) = self.diagnostics.parse_value(value, parse) {
            let path = join(&self.path, key);
            self.diagnostics.add(Severity::Warning, path, Some(value.span()), error);
        }
    }

    fn entries<T>(
        &self,
        severity: Severity,
        key: &str,
        entries: &DeArray<'_>,
        parse: impl Fn(&SpannedValue<'_>) -> Parsed<T>,
    ) -> Vec<T> {
        let accept = |value: &SpannedValue<'_>| {
            let report = |error| {
                self.diagnostics.add(severity, join(&self.path, key), Some(value.span()), error)
            };
            self.diagnostics.parse_value(value, &parse)?.map_err(report).ok()
        };
        entries.iter().filter_map(accept).collect()
    }

    /// Reads a table with known keys; a missing table reads as an empty one.
    pub(crate) fn table<R>(&self, key: &'a str, read: impl FnOnce(&TableReader<'a>) -> R) -> R {
        let entry = self.entry(key).and_then(|(name, value)| self.as_table(key, name, value));
        let (span, entries) = entry.unzip();
        self.child(key, span, entries).read_checked(read)
    }

    /// Checks values of a table, whose reader reports unknown keys and a wrong type.
    pub(crate) fn check_table(&self, key: &'a str, check: impl FnOnce(&TableReader<'a>)) {
        let entry = self.entry(key).map(|(name, value)| (name.span(), value.get_ref().as_table()));
        let (span, entries) = entry.unzip();
        check(&self.child(key, span, entries.flatten()));
    }

    /// Reads a table of tables with free names, in the order of the file; other entries are
    /// reported and left out.
    pub(crate) fn named_tables<R>(
        &self,
        key: &'a str,
        mut read: impl FnMut(SpannedName<'a>, &TableReader<'a>) -> R,
    ) -> Vec<R> {
        let parent = self.child(key, None, None);
        let entries = self.sorted_entries(key);
        let read = |(name, value): (SpannedName<'a>, &'a SpannedValue<'a>)| {
            let (span, entries) = parent.as_table(name.get_ref(), name, value)?;
            Some(
                parent
                    .child(name.get_ref(), Some(span), Some(entries))
                    .read_checked(|table| read(name, table)),
            )
        };
        entries.into_iter().filter_map(read).collect()
    }

    /// Reads a table with free keys, in the order of the file; entries for which `parse` fails are
    /// reported and left out.
    pub(crate) fn map<T>(
        &self,
        key: &'a str,
        parse: impl Fn(SpannedName<'a>, &SpannedValue<'_>) -> Parsed<T>,
    ) -> Vec<T> {
        let path = join(&self.path, key);
        let accept = |(name, value): (SpannedName<'a>, &'a SpannedValue<'a>)| {
            let key = join(&path, name.get_ref());
            self.diagnostics.record_location(key.clone(), value.span().start);
            let report = |c| self.diagnostics.error(key, Some(value.span()), c);
            self.diagnostics.parse_value(value, |value| parse(name, value))?.map_err(report).ok()
        };
        self.sorted_entries(key).into_iter().filter_map(accept).collect()
    }

    /// Returns the keys of the table, in the order of the file, for a table with free keys.
    pub(crate) fn keys(&self) -> Vec<SpannedName<'a>> {
        let mut names: Vec<_> = self.entries.into_iter().flat_map(DeTable::keys).collect();
        names.sort_by_key(|name| name.span().start);
        names
    }

    fn sorted_entries(&self, key: &'a str) -> Vec<(SpannedName<'a>, &'a SpannedValue<'a>)> {
        let table = self.entry(key).and_then(|(name, value)| self.as_table(key, name, value));
        let mut entries: Vec<_> = table.into_iter().flat_map(|(_, table)| table).collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        entries
    }

    /// Returns the unparsed value of a key.
    pub(crate) fn get(&self, key: &'a str) -> Option<&'a SpannedValue<'a>> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Returns a string as it is in the file, which error texts may repeat.
    pub(crate) fn source_text(&self, key: &'a str) -> String {
        self.entry(key).map(|(_, value)| self.diagnostics.source_text(value)).unwrap_or_default()
    }

    /// Returns a string inside a value as it is in the file.
    pub(crate) fn source_text_of(&self, value: &SpannedValue<'_>) -> String {
        self.diagnostics.source_text(value)
    }

    /// Returns the folder from which relative paths in the value of a key start: that of its file.
    pub(crate) fn base_folder(&self, key: &str) -> &'a Path {
        self.diagnostics.base_folder(self.span_of(key).map_or(0, |span| span.start))
    }

    /// True if all variables in the value of the key were replaced.
    pub(crate) fn is_resolved(&self, key: &'a str) -> bool {
        self.entry(key).is_none_or(|(_, value)| self.diagnostics.is_resolved(value))
    }

    /// Drops the errors about variables that cannot be replaced, for a table that is not used.
    pub(crate) fn ignore_unresolved(&self) {
        self.entries
            .into_iter()
            .flatten()
            .for_each(|(_, value)| self.diagnostics.ignore_unresolved(value));
    }

    /// Turns the errors about missing values in the table into warnings. Returns what is missing,
    /// if something is.
    pub(crate) fn collect_unresolved(&self) -> Option<String> {
        self.diagnostics.collect_unresolved(&self.path)
    }

    /// Returns the contents of the secret files in the value of the key.
    pub(crate) fn file_contents(&self, key: &'a str) -> Vec<Secret> {
        self.get(key).map(|value| self.diagnostics.file_contents(value)).unwrap_or_default()
    }

    /// True if the key is set.
    pub(crate) fn has(&self, key: &'a str) -> bool {
        self.entry(key).is_some()
    }

    /// True if the value of the key is a list without entries.
    pub(crate) fn is_empty_list(&self, key: &'a str) -> bool {
        self.get(key).and_then(|v| v.get_ref().as_array()).is_some_and(|list| list.is_empty())
    }

    /// Reports an error about a key, at its value or else at the table. Its texts are not redacted:
    /// they must not contain values, which may come from variables.
    pub(crate) fn error(&self, key: &str, error: ValueError) {
        self.diagnostics.error(join(&self.path, key), self.span_of(key), error);
    }

    /// Reports an error about the table itself.
    pub(crate) fn table_error(&self, error: ValueError) {
        self.diagnostics.error(self.path.clone(), self.span.clone(), error);
    }

    /// Adds a warning for each name of a table of tables for which `check` returns an error.
    pub(crate) fn warn_names(&self, key: &'a str, check: impl Fn(&str) -> Option<ValueError>) {
        if !self.get(key).is_some_and(|value| value.get_ref().is_table()) {
            return;
        }
        for (name, _) in self.sorted_entries(key) {
            if let Some(error) = check(name.get_ref()) {
                let path = join(&join(&self.path, key), name.get_ref());
                self.diagnostics.add(Severity::Warning, path, Some(name.span()), error);
            }
        }
    }

    /// Reports a warning about a key.
    pub(crate) fn warning(&self, key: &str, error: ValueError) {
        self.diagnostics.add(Severity::Warning, join(&self.path, key), self.span_of(key), error);
    }

    /// Marks the value of the key as secret in all rendered problems.
    pub(crate) fn redact(&self, key: &'a str) {
        if let Some((_, value)) = self.entry(key) {
            self.diagnostics.redact(value);
        }
    }

    /// Marks what may be a secret in the URL of the key, which is malformed.
    pub(crate) fn redact_url(&self, key: &'a str) {
        if let Some((_, value)) = self.entry(key) {
            self.diagnostics.redact_url(value);
        }
    }

    /// Marks what may be a secret in the path of the URL of the key.
    pub(crate) fn redact_path(&self, key: &'a str) {
        if let Some((_, value)) = self.entry(key) {
            self.diagnostics.redact_path(value);
        }
    }

    /// Marks what may be a secret in the command line of the key, whose first word may be the
    /// program.
    pub(crate) fn redact_arguments(&self, key: &'a str, begins_with_program: bool) {
        if let Some((_, value)) = self.entry(key) {
            self.diagnostics.redact_arguments(value, begins_with_program);
        }
    }

    /// Marks the value of the key as secret, except for some keys in it.
    pub(crate) fn redact_except(&self, key: &'a str, visible: &[&str]) {
        match self.get(key).and_then(|value| value.get_ref().as_table()) {
            None => self.redact(key),
            Some(table) => {
                let hidden =
                    table.iter().filter(|(name, _)| !visible.contains(&name.get_ref().as_ref()));
                hidden.for_each(|(_, value)| self.diagnostics.redact(value));
            }
        }
    }

    /// Marks the value of the key as secret, unless it is a table, whose reader redacts its values.
    pub(crate) fn redact_unless_table(&self, key: &'a str) {
        if self.get(key).is_some_and(|value| !value.get_ref().is_table()) {
            self.redact(key);
        }
    }

    fn entry(&self, key: &'a str) -> Option<(SpannedName<'a>, &'a SpannedValue<'a>)> {
        if !self.known_keys.borrow().contains(&key) {
            self.known_keys.borrow_mut().push(key);
            #[cfg(test)]
            self.diagnostics.known_keys.borrow_mut().insert(join(&self.path, key));
        }
        self.entries?.get_key_value(key)
    }

    fn as_table(
        &self,
        key: &str,
        name: SpannedName<'a>,
        value: &'a SpannedValue<'a>,
    ) -> Option<(Span, &'a DeTable<'a>)> {
        if let DeValue::Table(entries) = value.get_ref() {
            return Some((name.span(), entries));
        }
        let remedy = format!("write [{}] and its keys below", join(&self.path, key));
        let error = wrong_type("a table", value.get_ref(), remedy).at(value.span());
        self.error(key, error);
        None
    }

    fn child(
        &self,
        key: &str,
        span: Option<Span>,
        entries: Option<&'a DeTable<'a>>,
    ) -> TableReader<'a> {
        TableReader {
            diagnostics: self.diagnostics,
            path: join(&self.path, key),
            span,
            entries,
            known_keys: RefCell::default(),
        }
    }

    fn span_of(&self, key: &str) -> Option<Span> {
        let value = self.entries.and_then(|entries| entries.get(key));
        value.map(Spanned::span).or_else(|| self.span.clone())
    }
}

/// Key with its span.
pub(crate) type SpannedName<'a> = &'a Spanned<DeString<'a>>;

pub(crate) fn wrong_type(
    wanted: &str,
    found: &DeValue<'_>,
    remedy: impl Into<Cow<'static, str>>,
) -> ValueError {
    let article = if matches!(found, DeValue::Integer(_) | DeValue::Array(_)) { "an" } else { "a" };
    ValueError::new(format!("expected {wanted}, found {article} {}", found.type_str()), remedy)
}

/// Returns the remedy for a key of other programs' configurations, if this table has an equivalent.
fn foreign_key_remedy(key: &str, known_keys: &[&str]) -> Option<String> {
    let (here, remedy) = match key {
        "mcpServers" | "mcp_servers" | "servers" | "context_servers" | "upstream" => {
            ("upstreams", "write [upstreams.<name>]")
        }
        "disabled" => ("enabled", "write `enabled = false`"),
        "type" => ("transport", "leave it out: `command` or `url` says it"),
        _ => return None,
    };
    known_keys.contains(&here).then(|| remedy.into())
}
