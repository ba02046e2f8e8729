//! The TOML as written: a document with places, and a reader that does not stop at the first mistake.
//!
//! A [`Table`] is read key by key. What is wrong goes to the [`Ledger`] with its place, and the reader goes
//! on with the default: ten mistakes give ten places. Asking for a key is what makes it known: a key that
//! nobody has asked for by the end of its table is an error, so the list of keys cannot fall behind the code.
//!
//! Knows nothing of: which keys exist and what they mean.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::report::{Complaint, Problem, Report, Severity, Source, Span, did_you_mean};

/// A value and its place.
pub(super) type Value<'t> = Spanned<DeValue<'t>>;
/// What a parser makes of a value.
pub(super) type Parsed<T> = Result<T, Complaint>;

/// Parses `text` and has `read` walk its top table. Returns what `read` made of it together with the
/// warnings, or every problem when one of them is an error.
pub(super) fn read<R>(
    text: &str,
    origin: &Path,
    read: impl FnOnce(&Table<'_>) -> R,
) -> Result<(R, Vec<Problem>), Report> {
    let name = origin.display().to_string();
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let source = Source::blanked_blindly(name, text);
        let mut problems: Vec<_> = errors.iter().map(|e| syntax_problem(e, &source)).collect();
        problems.sort_by_key(|p| p.span.as_ref().map(|span| span.start));
        return Err(Report::new(problems));
    }
    let ledger = Ledger::default();
    let result = Table::root(&ledger, document.get_ref()).walk(read);
    let problems = ledger.settle(name, text);
    match problems.iter().any(|p| p.severity == Severity::Error) {
        true => Err(Report::new(problems)),
        false => Ok((result, problems)),
    }
}

fn syntax_problem(error: &toml::de::Error, source: &Arc<Source>) -> Problem {
    let (what, remedy) = match error.message().split_once(", expected ") {
        Some((what, "nothing")) => (what, "if it is text, put it in quotes".to_owned()),
        Some((what, expected)) => (what, format!("expected {expected}")),
        None if error.message() == "duplicate key" => {
            ("duplicate key", "remove one of the two".to_owned())
        }
        None => (error.message(), "correct it here".to_owned()),
    };
    let what = format!("not TOML: {what}");
    Problem {
        severity: Severity::Error,
        key: String::new(),
        what,
        remedy,
        span: error.span(),
        source: source.clone(),
    }
}

// === Ledger ===

/// What was found while the document was walked.
#[derive(Default)]
pub(super) struct Ledger {
    findings: RefCell<Vec<Finding>>,
    secrets: RefCell<Vec<Span>>,
    /// Every key that was asked for, for the test that the example shows them all.
    #[cfg(test)]
    pub(super) asked: RefCell<std::collections::BTreeSet<String>>,
}

struct Finding {
    severity: Severity,
    key: String,
    span: Option<Span>,
    complaint: Complaint,
}

impl Ledger {
    fn add(&self, severity: Severity, key: String, span: Option<Span>, complaint: Complaint) {
        let span = complaint.at.clone().or(span);
        self.findings.borrow_mut().push(Finding { severity, key, span, complaint });
    }

    /// Turns the findings into problems, in the order of the file.
    fn settle(self, name: String, text: &str) -> Vec<Problem> {
        let source = Source::blanked(name, text, &self.secrets.into_inner());
        let mut findings = self.findings.into_inner();
        findings.sort_by_key(|f| f.span.as_ref().map(|s| s.start));
        let problem = |f: Finding| Problem {
            severity: f.severity,
            key: f.key,
            what: f.complaint.what,
            remedy: f.complaint.remedy,
            span: f.span,
            source: source.clone(),
        };
        findings.into_iter().map(problem).collect()
    }
}

// === Table ===

/// One table of the file while it is being read. A table that is not written reads as an empty one.
pub(super) struct Table<'a> {
    ledger: &'a Ledger,
    /// As it appears in messages: `upstreams.house.timeouts`.
    path: String,
    /// Where its name stands; none for the top table and for one that is not written.
    span: Option<Span>,
    entries: Option<&'a DeTable<'a>>,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Table<'a> {
    pub(super) fn root(ledger: &'a Ledger, entries: &'a DeTable<'a>) -> Self {
        Self {
            ledger,
            path: String::new(),
            span: None,
            entries: Some(entries),
            asked: RefCell::default(),
        }
    }

    /// Reads the table and then reports the keys that `read` did not ask for.
    pub(super) fn walk<R>(self, read: impl FnOnce(&Self) -> R) -> R {
        let result = read(&self);
        let asked = self.asked.into_inner();
        for (key, value) in self.entries.into_iter().flat_map(DeTable::iter) {
            if !asked.contains(&key.get_ref().as_ref()) {
                // A misspelled `headers` holds as many secrets as a well spelled one.
                hide(self.ledger, value);
                let remedy = did_you_mean(key.get_ref(), asked.iter().copied())
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
    pub(super) fn read<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&'a Value<'a>) -> Parsed<T>,
    ) -> Option<T> {
        let (_, value) = self.entry(key)?;
        parse(value).map_err(|complaint| self.object(key, complaint)).ok()
    }

    /// Reads a list; entries that `parse` does not accept are reported and left out.
    pub(super) fn list<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&'a Value<'a>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        let entries = self.read(key, |value| match value.get_ref() {
            DeValue::Array(entries) => Ok(entries),
            other => Err(wrong_type("a list", other, "put it in brackets: [\"…\"]")),
        })?;
        let accept = |value: &'a Value<'a>| {
            let place = |c: Complaint| {
                if c.at.is_some() { c } else { c.at(value.span()) }
            };
            parse(value).map_err(|complaint| self.object(key, place(complaint))).ok()
        };
        Some(entries.iter().filter_map(accept).collect())
    }

    /// Reads a table with keys of a known set, written or not.
    pub(super) fn table<R>(&self, key: &'static str, read: impl FnOnce(&Table<'a>) -> R) -> R {
        let entry = self.entry(key).and_then(|(name, value)| self.as_table(key, name, value));
        let (span, entries) = entry.unzip();
        self.child(key, span, entries).walk(read)
    }

    /// Reads a table of tables whose names are free, in the order of the file; what is no table is reported
    /// and left out.
    pub(super) fn tables<R>(
        &self,
        key: &'static str,
        mut read: impl FnMut(Name<'a>, &Table<'a>) -> R,
    ) -> Vec<R> {
        let parent = self.child(key, None, None);
        let entries = self.map(key, |name, value| Ok((name, value)));
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
    pub(super) fn map<T>(
        &self,
        key: &'static str,
        parse: impl Fn(Name<'a>, &'a Value<'a>) -> Parsed<T>,
    ) -> Vec<T> {
        let table = self.entry(key).and_then(|(name, value)| self.as_table(key, name, value));
        let mut entries: Vec<_> = table.into_iter().flat_map(|(_, table)| table).collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let path = join(&self.path, key);
        let accept = |(name, value): (Name<'a>, &'a Value<'a>)| {
            let complain = |c| {
                self.ledger.add(Severity::Error, join(&path, name.get_ref()), Some(value.span()), c)
            };
            parse(name, value).map_err(complain).ok()
        };
        entries.into_iter().filter_map(accept).collect()
    }

    /// Returns a value as it is written, for a second look at its places.
    pub(super) fn written(&self, key: &'static str) -> Option<&'a Value<'a>> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Whether the key is written.
    pub(super) fn has(&self, key: &'static str) -> bool {
        self.entry(key).is_some()
    }

    /// Reports an error about a key, at its value or else at the table.
    pub(super) fn object(&self, key: &str, complaint: Complaint) {
        self.ledger.add(Severity::Error, join(&self.path, key), self.place(key), complaint);
    }

    /// Reports an error about the table itself.
    pub(super) fn object_to_all(&self, complaint: Complaint) {
        self.ledger.add(Severity::Error, self.path.clone(), self.span.clone(), complaint);
    }

    /// Reports something that is probably not meant, about a key.
    pub(super) fn warn(&self, key: &str, complaint: Complaint) {
        self.ledger.add(Severity::Warning, join(&self.path, key), self.place(key), complaint);
    }

    /// Keeps whatever is written under the key out of all drawings.
    pub(super) fn hide(&self, key: &'static str) {
        if let Some((_, value)) = self.entry(key) {
            hide(self.ledger, value);
        }
    }

    fn entry(&self, key: &'static str) -> Option<(Name<'a>, &'a Value<'a>)> {
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
        let complaint = wrong_type("a table", value.get_ref(), &remedy).at(value.span());
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
pub(super) type Name<'a> = &'a Spanned<DeString<'a>>;

pub(super) fn wrong_type(wanted: &str, found: &DeValue<'_>, remedy: &str) -> Complaint {
    let article = if matches!(found, DeValue::Integer(_) | DeValue::Array(_)) { "an" } else { "a" };
    Complaint::new(format!("expected {wanted}, found {article} {}", found.type_str()), remedy)
}

fn hide(ledger: &Ledger, value: &Value<'_>) {
    match value.get_ref() {
        DeValue::Table(entries) => entries.iter().for_each(|(_, value)| hide(ledger, value)),
        DeValue::Array(entries) => entries.iter().for_each(|value| hide(ledger, value)),
        DeValue::Boolean(_) => {}
        _ => ledger.secrets.borrow_mut().push(value.span()),
    }
}

fn join(path: &str, key: &str) -> String {
    let bare =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let key = if bare { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}
