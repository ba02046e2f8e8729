//! What was found while the configuration was read, and where.
//!
//! Several files are read as one document. Their texts are thought of as laid out one behind the other, so that
//! one [`Span`] says file and place, and the order of places is the order of reading: the main file, then the
//! included ones. The [`Ledger`] leads back from a span to its file.
//!
//! Promises: a problem is drawn on its own file, without its secrets; a complaint does not repeat what came out
//! of a variable.
//! Knows nothing of: which keys exist and what they mean.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::DeValue;

use crate::config::reader::report::{Complaint, Problem, Report, Severity, Source, Span};
use crate::config::reader::rule_locations::Places;

/// A value and its place.
pub(crate) type Value<'t> = Spanned<DeValue<'t>>;
/// What a parser makes of a value.
pub(crate) type Parsed<T> = Result<T, Complaint>;

/// A file of the configuration.
pub(crate) struct File {
    /// As it is named in problems.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Where its relative paths start.
    pub(crate) folder: PathBuf,
    pub(crate) text: String,
}

/// What was found while the document was read.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The files, in the order of their places.
    sheets: Vec<Sheet>,
    findings: RefCell<Vec<Finding>>,
    secrets: RefCell<Vec<Span>>,
    /// What stands in the file where the document holds what its variables stand for, by place.
    written: RefCell<BTreeMap<usize, String>>,
    /// Strings whose variables cannot be replaced, by place, and what is to be told of each.
    unknown: RefCell<BTreeMap<usize, Vec<Finding>>>,
    /// What can be explained later by where it stands.
    places: RefCell<Places>,
    /// Every key that was asked for, for the test that the example shows them all.
    #[cfg(test)]
    pub(crate) asked: RefCell<std::collections::BTreeSet<String>>,
}

/// One file, from the place where its text begins.
struct Sheet {
    start: usize,
    folder: PathBuf,
    name: String,
    /// The places where its lines begin.
    lines: Vec<usize>,
    form: Cell<Form>,
}

/// What a file turned out to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Toml,
    /// Nobody can tell for sure which part of it is a secret.
    Broken,
    /// Nothing of it is drawn but its first byte.
    Json,
}

struct Finding {
    severity: Severity,
    key: String,
    span: Option<Span>,
    complaint: Complaint,
}

impl Finding {
    fn new(severity: Severity, key: String, span: Option<Span>, complaint: Complaint) -> Self {
        let span = complaint.at.clone().or(span);
        Self { severity, key, span, complaint }
    }
}

impl Ledger {
    /// Takes the next file in, and returns the place where it begins.
    pub(crate) fn open(&mut self, file: &File) -> usize {
        let start = self.sheets.last().map_or(0, |sheet| sheet.end());
        let ends = file.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(ends.map(|(at, _)| at + 1));
        self.sheets.push(Sheet {
            start,
            folder: file.folder.clone(),
            name: file.name.clone(),
            // The last one stands for the end, which belongs to no line.
            lines: lines.chain([file.text.len() + 1]).collect(),
            form: Cell::new(Form::Toml),
        });
        start
    }

    /// Notes what a file turned out to be.
    pub(crate) fn set_form(&self, start: usize, form: Form) {
        if let Some(sheet) = self.sheet(start) {
            sheet.form.set(form);
        }
    }

    /// Whether a file is not even TOML, so that nobody knows what is missing.
    pub(crate) fn is_broken(&self) -> bool {
        self.sheets.iter().any(|sheet| sheet.form.get() != Form::Toml)
    }

    /// Where the relative paths at a place start.
    pub(crate) fn folder(&self, at: usize) -> &Path {
        self.sheet(at).map_or(Path::new(""), |sheet| &sheet.folder)
    }

    /// Returns the place as `conf.d/a.toml:12`.
    pub(crate) fn line(&self, at: usize) -> String {
        let Some(sheet) = self.sheet(at) else { return String::new() };
        let line = sheet.lines.partition_point(|start| *start <= at - sheet.start);
        format!("{}:{line}", sheet.name)
    }

    /// Keeps the place of a key, by its path.
    pub(crate) fn keep_place(&self, path: String, at: usize) {
        self.places.borrow_mut().keep(path, self.line(at));
    }

    /// Keeps the places of a list's entries, by its path.
    pub(crate) fn keep_places(&self, path: &str, entries: &[usize]) {
        let mut places = self.places.borrow_mut();
        let entries = entries.iter().enumerate();
        entries.for_each(|(at, entry)| places.keep_entry(path, at, self.line(*entry)));
    }

    /// Returns the places that were kept.
    pub(crate) fn places(&self) -> Places {
        self.places.borrow().clone()
    }

    fn sheet(&self, at: usize) -> Option<&Sheet> {
        self.sheets.get(self.sheets.partition_point(|sheet| sheet.start <= at).checked_sub(1)?)
    }

    pub(crate) fn add(
        &self,
        severity: Severity,
        key: String,
        span: Option<Span>,
        complaint: Complaint,
    ) {
        self.findings.borrow_mut().push(Finding::new(severity, key, span, complaint));
    }

    /// Keeps a value, and whatever it holds, out of all drawings.
    pub(crate) fn hide(&self, value: &Value<'_>) {
        match value.get_ref() {
            DeValue::Table(entries) => entries.iter().for_each(|(_, value)| self.hide(value)),
            DeValue::Array(entries) => entries.iter().for_each(|value| self.hide(value)),
            DeValue::Boolean(_) => {}
            _ => self.secrets.borrow_mut().push(value.span()),
        }
    }

    // === Variables ===

    /// Notes what stands in the file where the document holds what its variables stand for.
    pub(crate) fn keep_written(&self, at: usize, written: String) {
        self.written.borrow_mut().insert(at, written);
    }

    /// Notes why the variables of a string cannot be replaced: nobody can judge it.
    pub(crate) fn keep_unknown(&self, span: Span, key: &str, why: Vec<Complaint>) {
        let at = span.start;
        let finding = |it| Finding::new(Severity::Error, key.to_owned(), Some(span.clone()), it);
        self.unknown.borrow_mut().insert(at, why.into_iter().map(finding).collect());
    }

    /// Whether the variables of all strings in a value could be replaced.
    pub(crate) fn is_known(&self, value: &Value<'_>) -> bool {
        match value.get_ref() {
            DeValue::Table(entries) => entries.iter().all(|(_, value)| self.is_known(value)),
            DeValue::Array(entries) => entries.iter().all(|value| self.is_known(value)),
            _ => !self.unknown.borrow().contains_key(&value.span().start),
        }
    }

    /// Tells nothing of the variables in a value that cannot be replaced.
    pub(crate) fn excuse(&self, value: &Value<'_>) {
        match value.get_ref() {
            DeValue::Table(entries) => entries.iter().for_each(|(_, value)| self.excuse(value)),
            DeValue::Array(entries) => entries.iter().for_each(|value| self.excuse(value)),
            _ => {
                let mut unknown = self.unknown.borrow_mut();
                unknown.entry(value.span().start).and_modify(Vec::clear);
            }
        }
    }

    /// Returns a string as it stands in the file, fit to be repeated.
    pub(crate) fn written(&self, value: &Value<'_>) -> String {
        let written = self.written.borrow().get(&value.span().start).cloned();
        written.unwrap_or_else(|| value.get_ref().as_str().unwrap_or_default().to_owned())
    }

    /// Whether a string holds what came out of a variable.
    pub(crate) fn is_replaced(&self, value: &Value<'_>) -> bool {
        self.written.borrow().contains_key(&value.span().start)
    }

    /// Parses a value. Returns none if its variables are not known, which is told elsewhere.
    ///
    /// What came out of a variable may be a secret, and complaints like to quote. So a complaint whose words
    /// were put together while parsing is made again, from what stands in the file.
    pub(crate) fn judge<T>(
        &self,
        value: &Value<'_>,
        parse: impl Fn(&Value<'_>) -> Parsed<T>,
    ) -> Option<Parsed<T>> {
        if self.unknown.borrow().contains_key(&value.span().start) {
            return None;
        }
        let complaint = match parse(value) {
            Err(complaint) if self.is_replaced(value) && !complaint.is_fixed() => complaint,
            parsed => return Some(parsed),
        };
        let written = Spanned::new(value.span(), DeValue::String(self.written(value).into()));
        let complaint = parse(&written).err().unwrap_or_else(|| Complaint {
            at: complaint.at,
            ..Complaint::new(
                "what the variable stands for cannot be used here",
                "correct the variable, or write the value itself",
            )
        });
        Some(Err(complaint))
    }

    // === The end ===

    /// Turns the findings into problems, in the order of the files. `files` are those that were taken in.
    pub(crate) fn settle<'f>(self, files: impl IntoIterator<Item = &'f File>) -> Vec<Problem> {
        let (broken, secrets) = (self.is_broken(), self.secrets.take());
        let draw = |(sheet, file): (&Sheet, &File)| {
            let (name, text) = (file.name.clone(), file.text.as_str());
            match sheet.form.get() {
                Form::Toml if !broken => {
                    let here = |s: &&Span| (sheet.start..sheet.end()).contains(&s.start);
                    let local = |s: &Span| s.start - sheet.start..s.end - sheet.start;
                    let secrets: Vec<_> = secrets.iter().filter(here).map(local).collect();
                    Source::blanked(name, text, &secrets)
                }
                Form::Toml | Form::Broken => Source::blanked_blindly(name, text),
                Form::Json => {
                    let brace = text.find('{').map_or(0, |at| at + 1);
                    Source::blanked(name, text.get(..brace).unwrap_or_default(), &[])
                }
            }
        };
        let sources: Vec<Arc<Source>> = self.sheets.iter().zip(files).map(draw).collect();
        let mut findings: Vec<_> = self.unknown.take().into_values().flatten().collect();
        findings.extend(self.findings.take());
        findings.sort_by_key(|f| f.span.as_ref().map(|s| s.start));
        let problem = |f: Finding| {
            let at = f.span.as_ref().map_or(0, |span| span.start);
            let index = self.sheets.partition_point(|sheet| sheet.start <= at).saturating_sub(1);
            let start = self.sheets.get(index).map_or(0, |sheet| sheet.start);
            Some(Problem {
                severity: f.severity,
                key: f.key,
                what: f.complaint.what.into_owned(),
                remedy: f.complaint.remedy.into_owned(),
                span: f.span.map(|span| span.start - start..span.end - start),
                source: sources.get(index)?.clone(),
            })
        };
        findings.into_iter().filter_map(problem).collect()
    }

    /// Turns the findings into a report.
    pub(crate) fn report<'f>(self, files: impl IntoIterator<Item = &'f File>) -> Report {
        Report::new(self.settle(files))
    }
}

impl Sheet {
    /// The place behind its text.
    fn end(&self) -> usize {
        self.start + self.lines.last().copied().unwrap_or(0)
    }
}
