//! Diagnostics of reading the configuration, with a source map.
//!
//! Several files are read as one document. Their texts form one virtual text, one file after the
//! other, so that one [`Span`] identifies file and location, and the order of spans is the order of
//! reading: the main file, then the included ones. [`Diagnostics`] maps a span back to its file.
//!
//! Invariants: a problem is rendered on its own file, without its secrets; an error does not repeat
//! the value of a variable.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::DeValue;

use crate::reader::partly_secret::PartlySecret;
use crate::reader::report::{
    ConfigProblem, ConfigReport, RedactedSource, Severity, Span, ValueError,
};
use crate::reader::rule_locations::{RuleLocations, is_below};
use crate::reader::secret_names::{is_harmless_key, is_like_a_secret, may_hold_secrets};
use weir_base::secrets::secret::Secret;

/// Value with its span.
pub(crate) type SpannedValue<'t> = Spanned<DeValue<'t>>;
/// Result of a parser of one value.
pub(crate) type Parsed<T> = Result<T, ValueError>;

/// One file of the configuration.
pub(crate) struct ConfigFile {
    /// Name in problems.
    pub(crate) name: String,
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Folder from which its relative paths start.
    pub(crate) folder: PathBuf,
    pub(crate) text: String,
}

/// Collector of diagnostics while the document is read.
#[derive(Default)]
pub(crate) struct Diagnostics {
    /// Files, in the order of their spans.
    source_files: Vec<SourceFile>,
    entries: RefCell<Vec<Diagnostic>>,
    secrets: RefCell<Vec<Span>>,
    /// Values of which parts may be secret.
    partly_secret: RefCell<Vec<PartlySecret>>,
    /// Strings with variables as they are in the file, by the start of their spans.
    source_texts: RefCell<BTreeMap<usize, String>>,
    /// Contents of the secret files in strings, by the start of their spans.
    file_contents: RefCell<BTreeMap<usize, Vec<Secret>>>,
    /// Diagnostics of strings whose variables cannot be replaced, by the start of their spans.
    unresolved: RefCell<BTreeMap<usize, Vec<Diagnostic>>>,
    /// Locations of rules, for later explanations.
    locations: RefCell<RuleLocations>,
    /// Every key that was read, for the test that the example shows all keys.
    #[cfg(test)]
    pub(crate) known_keys: RefCell<std::collections::BTreeSet<String>>,
}

/// Position of one file in the virtual text.
struct SourceFile {
    start: usize,
    folder: PathBuf,
    name: String,
    /// Starts of its lines.
    lines: Vec<usize>,
    format: Cell<FileFormat>,
}

/// Format of a file, as detected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Toml,
    /// Invalid TOML, in which secrets cannot be located reliably.
    Broken,
    /// JSON, of which only the text before the first brace is rendered.
    Json,
}

struct Diagnostic {
    severity: Severity,
    key: String,
    span: Option<Span>,
    error: ValueError,
}

impl Diagnostic {
    fn new(severity: Severity, key: String, span: Option<Span>, error: ValueError) -> Self {
        let span = error.at.clone().or(span);
        Self { severity, key, span, error }
    }
}

impl Diagnostics {
    /// Adds the next file, and returns its start in the virtual text.
    pub(crate) fn add_file(&mut self, file: &ConfigFile) -> usize {
        let start = self.source_files.last().map_or(0, |source| source.end());
        let ends = file.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(ends.map(|(at, _)| at + 1));
        self.source_files.push(SourceFile {
            start,
            folder: file.folder.clone(),
            name: file.name.clone(),
            // The last entry is the end of the file, which belongs to no line.
            lines: lines.chain([file.text.len() + 1]).collect(),
            format: Cell::new(FileFormat::Toml),
        });
        start
    }

    /// Sets the detected format of a file.
    pub(crate) fn set_format(&self, start: usize, format: FileFormat) {
        if let Some(source) = self.source_file(start) {
            source.format.set(format);
        }
    }

    /// True if a file is not valid TOML, so that missing keys cannot be detected.
    pub(crate) fn is_broken(&self) -> bool {
        self.source_files.iter().any(|source| source.format.get() != FileFormat::Toml)
    }

    /// Returns the folder from which relative paths at a position start.
    pub(crate) fn base_folder(&self, at: usize) -> &Path {
        self.source_file(at).map_or(Path::new(""), |source| &source.folder)
    }

    /// Formats a position as `conf.d/a.toml:12`.
    pub(crate) fn line(&self, at: usize) -> String {
        let Some(source) = self.source_file(at) else { return String::new() };
        let line = source.lines.partition_point(|start| *start <= at - source.start);
        format!("{}:{line}", source.name)
    }

    /// Records the location of a key, by its path.
    pub(crate) fn record_location(&self, path: String, at: usize) {
        self.locations.borrow_mut().record(path, self.line(at));
    }

    /// Records the locations of a list's entries, by its path.
    pub(crate) fn record_locations(&self, path: &str, entries: &[usize]) {
        let mut locations = self.locations.borrow_mut();
        let entries = entries.iter().enumerate();
        entries.for_each(|(at, entry)| locations.record_entry(path, at, self.line(*entry)));
    }

    /// Returns the recorded locations.
    pub(crate) fn locations(&self) -> RuleLocations {
        self.locations.borrow().clone()
    }

    fn source_file(&self, at: usize) -> Option<&SourceFile> {
        self.source_files
            .get(self.source_files.partition_point(|source| source.start <= at).checked_sub(1)?)
    }

    pub(crate) fn error(&self, key: String, span: Option<Span>, error: ValueError) {
        self.add(Severity::Error, key, span, error);
    }

    pub(crate) fn add(
        &self,
        severity: Severity,
        key: String,
        span: Option<Span>,
        error: ValueError,
    ) {
        self.entries.borrow_mut().push(Diagnostic::new(severity, key, span, error));
    }

    /// Marks a value, with everything in it, as secret in all rendered problems.
    pub(crate) fn redact(&self, value: &SpannedValue<'_>) {
        let plain = plain_values(value).into_iter();
        let secrets = plain.filter(|value| !matches!(value.get_ref(), DeValue::Boolean(_)));
        self.secrets.borrow_mut().extend(secrets.map(Spanned::span));
    }

    /// Marks what may be a secret in a value whose meaning is unknown, because of its key: `path`
    /// ends with the key, and `meant` is the known key that is most like it. A misspelled `headers`
    /// contains secrets, too. In a table of unknown meaning each text may be one, and everywhere a
    /// text that looks like a random one.
    pub(crate) fn redact_unknown(&self, path: &str, value: &SpannedValue<'_>, meant: Option<&str>) {
        let key = path.rsplit('.').next().unwrap_or(path);
        let is_harmless = is_harmless_key(meant.unwrap_or(key));
        let is_secret = may_hold_secrets(path) || meant.is_some_and(is_like_a_secret);
        self.redact_by_name(is_secret, (is_harmless, !value.get_ref().is_table()), value);
    }

    fn redact_by_name(
        &self,
        is_secret: bool,
        (is_harmless, is_direct): (bool, bool),
        value: &SpannedValue<'_>,
    ) {
        match value.get_ref() {
            _ if is_secret => self.redact(value),
            DeValue::Table(entries) => {
                for (name, value) in entries {
                    let is_secret = is_like_a_secret(name.get_ref());
                    self.redact_by_name(is_secret, (is_harmless, false), value);
                }
            }
            DeValue::Array(entries) => {
                let how = (is_harmless, is_direct);
                entries.iter().for_each(|value| self.redact_by_name(false, how, value));
            }
            DeValue::String(text) if !is_harmless && (!is_direct || looks_random(text)) => {
                self.redact(value);
            }
            _ => {}
        }
    }

    /// Marks user information and query of a malformed URL as secret in all rendered problems.
    pub(crate) fn redact_url(&self, value: &SpannedValue<'_>) {
        match value.get_ref() {
            DeValue::String(_) => {
                self.partly_secret.borrow_mut().push(PartlySecret::BadUrl(value.span()));
            }
            _ => self.redact_by_name(false, (false, false), value),
        }
    }

    /// Marks what may be a secret in the path of a URL.
    pub(crate) fn redact_path(&self, value: &SpannedValue<'_>) {
        if value.get_ref().is_str() {
            self.partly_secret.borrow_mut().push(PartlySecret::Url(value.span()));
        }
    }

    /// Marks what may be a secret in the strings of a command line, whose first word may be the
    /// program.
    pub(crate) fn redact_arguments(&self, value: &SpannedValue<'_>, begins_with_program: bool) {
        let strings = plain_values(value).into_iter().filter(|it| it.get_ref().is_str());
        let spans = strings.map(Spanned::span).collect();
        let arguments = PartlySecret::Arguments(spans, begins_with_program);
        self.partly_secret.borrow_mut().push(arguments);
    }

    // === Variables ===

    /// Records a string with variables as it is in the file.
    pub(crate) fn record_source_text(&self, at: usize, written: String) {
        self.source_texts.borrow_mut().insert(at, written);
    }

    /// Records the contents of the secret files in a string.
    pub(crate) fn record_file_contents(&self, at: usize, contents: Vec<Secret>) {
        self.file_contents.borrow_mut().insert(at, contents);
    }

    /// Returns the contents of the secret files in the strings of a value.
    pub(crate) fn file_contents(&self, value: &SpannedValue<'_>) -> Vec<Secret> {
        let contents = self.file_contents.borrow();
        let of = |value: &&SpannedValue<'_>| contents.get(&value.span().start);
        plain_values(value).iter().filter_map(of).flatten().cloned().collect()
    }

    /// Records why the variables of a string cannot be replaced; the string is not parsed then.
    pub(crate) fn record_unresolved(&self, span: Span, key: &str, why: Vec<ValueError>) {
        let at = span.start;
        let entry = |it| Diagnostic::new(Severity::Error, key.to_owned(), Some(span.clone()), it);
        self.unresolved.borrow_mut().insert(at, why.into_iter().map(entry).collect());
    }

    /// True if the variables of all strings in a value were replaced.
    pub(crate) fn is_resolved(&self, value: &SpannedValue<'_>) -> bool {
        let unresolved = self.unresolved.borrow();
        plain_values(value).iter().all(|value| !unresolved.contains_key(&value.span().start))
    }

    /// Drops the diagnostics about variables in a value that cannot be replaced.
    pub(crate) fn ignore_unresolved(&self, value: &SpannedValue<'_>) {
        let mut unresolved = self.unresolved.borrow_mut();
        for value in plain_values(value) {
            unresolved.entry(value.span().start).and_modify(Vec::clear);
        }
    }

    /// Turns the errors about missing values in a table into warnings. Returns what is missing in
    /// one line, with places and remedies; `None` if nothing is.
    pub(crate) fn collect_unresolved(&self, table: &str) -> Option<String> {
        let mut unresolved = self.unresolved.borrow_mut();
        let mut entries = self.entries.borrow_mut();
        let all = unresolved.values_mut().flatten().chain(entries.iter_mut());
        let is_missing = |it: &&mut Diagnostic| {
            it.severity == Severity::Error && it.error.missing.is_some() && is_below(&it.key, table)
        };
        let mut missing: Vec<_> = all.filter(is_missing).collect();
        missing.sort_by_key(|it| it.span.as_ref().map(|span| span.start));
        let mut lines: Vec<(&str, String)> = Vec::new();
        for Diagnostic { severity, span, error, .. } in missing {
            *severity = Severity::Warning;
            let at = self.line(span.as_ref().map_or(0, |span| span.start));
            let remedy = error.missing.as_deref().unwrap_or_default();
            // One variable may be missing in several places.
            if !lines.iter().any(|(what, _)| *what == error.what) {
                lines.push((&*error.what, format!("{}: {remedy} ({at})", error.what)));
            }
        }
        let more = lines.len().saturating_sub(MAX_UNRESOLVED);
        lines.truncate(MAX_UNRESOLVED);
        let text = lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("; ");
        match more {
            0 => Some(text).filter(|text| !text.is_empty()),
            more => Some(format!("{text}; and {more} more")),
        }
    }

    /// Returns a string as it is in the file, which messages may repeat.
    pub(crate) fn source_text(&self, value: &SpannedValue<'_>) -> String {
        let written = self.source_texts.borrow().get(&value.span().start).cloned();
        written.unwrap_or_else(|| value.get_ref().as_str().unwrap_or_default().to_owned())
    }

    /// True if a string contains the value of a variable.
    pub(crate) fn contains_variable(&self, value: &SpannedValue<'_>) -> bool {
        self.source_texts.borrow().contains_key(&value.span().start)
    }

    /// Parses a value. Returns `None` if its variables could not be replaced, which is reported
    /// separately.
    ///
    /// The value of a variable may be a secret, and errors may quote values. Therefore an error
    /// whose text was formatted while parsing is made again, from the string as it is in the file.
    pub(crate) fn parse_value<T>(
        &self,
        value: &SpannedValue<'_>,
        parse: impl Fn(&SpannedValue<'_>) -> Parsed<T>,
    ) -> Option<Parsed<T>> {
        if self.unresolved.borrow().contains_key(&value.span().start) {
            return None;
        }
        let error = match parse(value) {
            Err(error) if self.contains_variable(value) && !error.is_static() => error,
            parsed => return Some(parsed),
        };
        let written = Spanned::new(value.span(), DeValue::String(self.source_text(value).into()));
        let error = parse(&written).err().unwrap_or_else(|| ValueError {
            at: error.at,
            ..ValueError::new(
                "what the variable stands for cannot be used here",
                "correct the variable, or write the value itself",
            )
        });
        Some(Err(error))
    }

    // === Results ===

    /// Converts the diagnostics to problems, in the order of the files. `files` are the added
    /// files.
    pub(crate) fn into_problems<'f>(
        self,
        files: impl IntoIterator<Item = &'f ConfigFile>,
    ) -> Vec<ConfigProblem> {
        let (broken, secrets) = (self.is_broken(), self.secrets.take());
        let partly_secret = self.partly_secret.take();
        let to_source = |(source, file): (&SourceFile, &ConfigFile)| {
            let (name, text) = (file.name.clone(), file.text.as_str());
            match source.format.get() {
                FileFormat::Toml if !broken => {
                    let here = |s: &&Span| (source.start..source.end()).contains(&s.start);
                    let local = |s: &Span| s.start - source.start..s.end - source.start;
                    let parts = partly_secret
                        .iter()
                        .flat_map(|value| value.find(source.start..source.end(), text));
                    let secrets = secrets.iter().filter(here).map(local);
                    RedactedSource::redacted(name, text, &secrets.chain(parts).collect::<Vec<_>>())
                }
                FileFormat::Toml | FileFormat::Broken => {
                    RedactedSource::redacted_invalid_toml(name, text)
                }
                FileFormat::Json => {
                    let brace = text.find('{').map_or(0, |at| at + 1);
                    RedactedSource::redacted(name, text.get(..brace).unwrap_or_default(), &[])
                }
            }
        };
        let sources: Vec<Arc<RedactedSource>> =
            self.source_files.iter().zip(files).map(to_source).collect();
        let mut entries: Vec<_> = self.unresolved.take().into_values().flatten().collect();
        entries.extend(self.entries.take());
        entries.sort_by_key(|f| f.span.as_ref().map(|s| s.start));
        let problem = |f: Diagnostic| {
            let at = f.span.as_ref().map_or(0, |span| span.start);
            let index =
                self.source_files.partition_point(|source| source.start <= at).saturating_sub(1);
            let start = self.source_files.get(index).map_or(0, |source| source.start);
            Some(ConfigProblem {
                severity: f.severity,
                key: f.key,
                what: f.error.what.into_owned(),
                remedy: f.error.remedy.into_owned(),
                is_missing_value: f.error.missing.is_some(),
                span: f.span.map(|span| span.start - start..span.end - start),
                source: sources.get(index)?.clone(),
            })
        };
        entries.into_iter().filter_map(problem).collect()
    }

    /// Converts the diagnostics to a report.
    pub(crate) fn into_report<'f>(
        self,
        files: impl IntoIterator<Item = &'f ConfigFile>,
    ) -> ConfigReport {
        ConfigReport::new(self.into_problems(files))
    }
}

/// Returns whether a text could be a key or a token.
fn looks_random(text: &str) -> bool {
    text.len() >= 20
        && !text.contains("://")
        && !text.contains(char::is_whitespace)
        && text.contains(|c: char| c.is_ascii_digit())
        && text.contains(|c: char| c.is_ascii_alphabetic())
}

/// Returns the values in a value that are neither tables nor lists.
fn plain_values<'v, 't>(value: &'v SpannedValue<'t>) -> Vec<&'v SpannedValue<'t>> {
    match value.get_ref() {
        DeValue::Table(entries) => {
            entries.iter().flat_map(|(_, value)| plain_values(value)).collect()
        }
        DeValue::Array(entries) => entries.iter().flat_map(plain_values).collect(),
        _ => vec![value],
    }
}

impl SourceFile {
    /// Returns the position after its text.
    fn end(&self) -> usize {
        self.start + self.lines.last().copied().unwrap_or(0)
    }
}

/// Maximum number of missing values that one line names.
const MAX_UNRESOLVED: usize = 4;
