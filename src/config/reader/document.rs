//! The configuration as written: the main file and those it includes, as one document.
//!
//! Each file is parsed by itself, then they are merged in the order of reading: tables grow together, and a
//! key that two files define is a mistake at its second place. Then the variables of all strings are replaced.
//!
//! Knows nothing of: which keys exist and what they mean, but `include`, and `file` where a secret is told to be.

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::Sources;
use crate::config::reader::diagnostics::{File, Form, Ledger, Value};
use crate::config::reader::include;
use crate::config::reader::report::{Complaint, Problem, Report, Severity};
use crate::config::reader::table_reader::{Table, join};
use crate::config::reader::variables::{self, Environment};

/// Reads `main` with what it includes, and has `read` walk the top table. Returns what `read` made of it
/// together with the warnings, or every problem when one of them is an error.
pub(crate) fn read<R>(
    main: &File,
    environment: &Environment,
    read: impl FnOnce(&Table<'_>) -> R,
) -> Result<(R, Vec<Problem>), Report> {
    let (result, problems) = read_with_mistakes(main, environment, read)?;
    match problems.iter().any(|p| p.severity == Severity::Error) {
        true => Err(Report::new(problems)),
        false => Ok((result, problems)),
    }
}

/// Reads the same whatever mistakes are in it, and returns them. Fails where a file is not there or no TOML.
pub(crate) fn read_with_mistakes<R>(
    main: &File,
    environment: &Environment,
    read: impl FnOnce(&Table<'_>) -> R,
) -> Result<(R, Vec<Problem>), Report> {
    let mut ledger = Ledger::default();
    ledger.open(main);
    let Some(mut root) = parse(main, 0, &ledger) else { return Err(ledger.report([main])) };
    if let Some(value) = root.get_mut("include") {
        expand(value, "include", &ledger, environment);
    }
    let included = include::read(main, &root, &ledger);
    root.remove("include");
    let files = || std::iter::once(main).chain(&included);

    for file in &included {
        let start = ledger.open(file);
        if let Some(mut table) = parse(file, start, &ledger) {
            refuse_include(&mut table, &ledger);
            merge(&mut root, table, "", &ledger);
        }
    }
    if ledger.is_broken() {
        return Err(ledger.report(files()));
    }
    for (name, value) in root.iter_mut() {
        expand(value, name.get_ref(), &ledger, environment);
    }
    let result = Table::root(&ledger, &root).walk(read);
    let problems = ledger.settle(files());
    Ok((result, problems))
}

/// Names the files of a configuration, and those that its secrets are told to be in, whether they are there or not.
pub(crate) fn sources(main: &File, environment: &Environment) -> Result<Sources, Report> {
    let mut ledger = Ledger::default();
    ledger.open(main);
    let Some(mut root) = parse(main, 0, &ledger) else { return Err(ledger.report([main])) };
    if let Some(value) = root.get_mut("include") {
        expand(value, "include", &ledger, environment);
    }
    let included = include::read(main, &root, &ledger);
    // What secures connections is looked at by itself, all of it together.
    if let Some(DeValue::Table(server)) = root.get_mut("server").map(Spanned::get_mut) {
        server.remove("tls");
    }
    let mut secrets = Vec::new();
    find_secrets(&root, &main.folder, environment, &mut secrets);
    for file in &included {
        // One that is no TOML names nothing.
        if let Ok(table) = DeTable::parse(&file.text) {
            find_secrets(table.get_ref(), &file.folder, environment, &mut secrets);
        }
    }
    secrets.sort();
    secrets.dedup();
    let files = std::iter::once(main).chain(&included).map(|file| file.path.clone());
    Ok(Sources { files: files.collect(), secrets })
}

/// Finds every `file = "…"` below a table whose relative paths start from `folder`.
fn find_secrets(
    table: &DeTable<'_>,
    folder: &Path,
    environment: &Environment,
    found: &mut Vec<PathBuf>,
) {
    let mut look = |value: &DeValue<'_>| match value {
        DeValue::Table(table) => find_secrets(table, folder, environment, found),
        DeValue::Array(list) => {
            let tables = list.iter().filter_map(|value| value.get_ref().as_table());
            tables.for_each(|table| find_secrets(table, folder, environment, found));
        }
        _ => {}
    };
    table.iter().for_each(|(_, value)| look(value.get_ref()));
    let Some(DeValue::String(text)) = table.get("file").map(Spanned::get_ref) else { return };
    match variables::expand(text, environment) {
        Ok(None) => found.push(folder.join(&**text)),
        Ok(Some(expanded)) => found.push(folder.join(expanded)),
        // Who reads the configuration tells of it.
        Err(_) => {}
    }
}

// === Parsing ===

/// Parses a file whose text begins at `start`; what is not TOML is told.
fn parse<'f>(file: &'f File, start: usize, ledger: &Ledger) -> Option<DeTable<'f>> {
    let text = file.text.as_str();
    if text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
        let at = start + text.find('{').unwrap_or(0);
        let what = "this is JSON, and the configuration is TOML";
        let remedy = "`weir init --from FILE` makes one from the configuration of an MCP client";
        ledger.add(Severity::Error, String::new(), Some(at..at + 1), Complaint::new(what, remedy));
        ledger.set_form(start, Form::Json);
        return None;
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut last = None;
    for error in &errors {
        // The parser says of one open bracket as often that it is open as it had hopes of its end.
        let this = (error.span(), error.message());
        if last.replace(this.clone()) == Some(this) {
            continue;
        }
        let span = error.span().map(|span| span.start + start..span.end + start);
        ledger.add(Severity::Error, String::new(), span.or(Some(start..start)), syntax(error));
    }
    if !errors.is_empty() {
        ledger.set_form(start, Form::Broken);
        return None;
    }
    Some(shift(document.into_inner(), start))
}

fn syntax(error: &toml::de::Error) -> Complaint {
    let (what, remedy) = match error.message().split_once(", expected ") {
        Some((what, "nothing")) => (what, "if it is text, put it in quotes".to_owned()),
        Some((what, expected)) => (what, format!("expected {expected}")),
        None if error.message() == "duplicate key" => {
            ("duplicate key", "remove one of the two".to_owned())
        }
        None => (error.message(), "correct it here".to_owned()),
    };
    Complaint::new(format!("not TOML: {what}"), remedy)
}

/// Moves all places behind `start`.
fn shift(table: DeTable<'_>, start: usize) -> DeTable<'_> {
    fn moved<T>(spanned: Spanned<T>, start: usize, change: impl FnOnce(T) -> T) -> Spanned<T> {
        let span = spanned.span();
        Spanned::new(span.start + start..span.end + start, change(spanned.into_inner()))
    }
    fn value(old: DeValue<'_>, start: usize) -> DeValue<'_> {
        match old {
            DeValue::Table(table) => DeValue::Table(shift(table, start)),
            DeValue::Array(list) => {
                let list = list.into_iter();
                DeValue::Array(list.map(|one| moved(one, start, |one| value(one, start))).collect())
            }
            plain => plain,
        }
    }
    let entries = table.into_iter();
    let moved = entries.map(|(name, old)| {
        (moved(name, start, |name| name), moved(old, start, |old| value(old, start)))
    });
    moved.collect()
}

// === Merging ===

/// Files form one layer, so that whoever looks for a file finds it in the main one.
fn refuse_include(table: &mut DeTable<'_>, ledger: &Ledger) {
    if let Some((name, _)) = table.remove_entry("include") {
        let what = "an included file cannot include others";
        let remedy = "name them in the include of the main file";
        ledger.add(
            Severity::Error,
            "include".to_owned(),
            Some(name.span()),
            Complaint::new(what, remedy),
        );
    }
}

/// Adds a later file: tables grow together, anything else may be defined once.
fn merge<'t>(into: &mut DeTable<'t>, from: DeTable<'t>, path: &str, ledger: &Ledger) {
    for (name, value) in from {
        let path = join(path, name.get_ref());
        let first = into.get_key_value(name.get_ref().as_ref()).map(|(first, _)| first.span());
        let Some(first) = first else {
            into.insert(name, value);
            continue;
        };
        let held = into.get_mut(name.get_ref().as_ref()).map(Spanned::get_mut);
        match (held, value.get_ref()) {
            (Some(DeValue::Table(into)), DeValue::Table(_)) => {
                if let DeValue::Table(from) = value.into_inner() {
                    merge(into, from, &path, ledger);
                }
            }
            _ => {
                // It is not read any more, so nobody else will hide what it holds.
                ledger.hide(&value);
                let what = format!("{} defines this already", ledger.line(first.start));
                let complaint = Complaint::new(what, "remove one of the two");
                ledger.add(Severity::Error, path, Some(name.span()), complaint);
            }
        }
    }
}

// === Variables ===

/// Replaces the variables of every string in `value`.
fn expand(value: &mut Value<'_>, path: &str, ledger: &Ledger, environment: &Environment) {
    let span = value.span();
    match value.get_mut() {
        DeValue::Table(table) => {
            for (name, value) in table.iter_mut() {
                expand(value, &join(path, name.get_ref()), ledger, environment);
            }
        }
        DeValue::Array(list) => {
            for value in list.iter_mut() {
                expand(value, path, ledger, environment);
            }
        }
        DeValue::String(text) => match variables::expand(text, environment) {
            Ok(None) => {}
            Ok(Some(expanded)) => {
                let written = std::mem::replace(text, expanded.into());
                ledger.keep_written(span.start, written.into_owned());
            }
            Err(complaints) => ledger.keep_unknown(span, path, complaints),
        },
        _ => {}
    }
}
