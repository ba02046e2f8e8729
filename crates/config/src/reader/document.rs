//! Merged document: the main file and the included files as one TOML table.
//!
//! Each file is parsed by itself, then the files are merged in the order of reading: tables are
//! merged, and a key that two files define is a mistake at its second location. Then the variables
//! of all strings are replaced. The only keys known here are `include`, `file` as a source of a
//! secret, and `args` and `url` of an upstream, which may contain secret files.

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Sources;
use crate::reader::diagnostics::{ConfigFile, Diagnostics, FileFormat, SpannedValue};
use crate::reader::include;
use crate::reader::report::{ConfigProblem, ConfigReport, Severity, ValueError};
use crate::reader::rule_locations::join;
use crate::reader::secret_file;
use crate::reader::table_reader::TableReader;
use crate::reader::variables::{self, Environment};
use weir_base::secrets::secret::Secret;

/// Values that strings of the document may contain.
#[derive(Clone, Copy)]
pub(crate) struct StringValues<'v> {
    pub(crate) environment: &'v Environment,
    /// Names of the upstreams whose secret files are read; `None` means all.
    pub(crate) only: Option<&'v [String]>,
}

/// Reads `main` and the files that it includes, and applies `read` to the top table. Returns the
/// result of `read` with the warnings, or all problems if one of them is an error.
pub(crate) fn read<R>(
    main: &ConfigFile,
    values: StringValues<'_>,
    read: impl FnOnce(&TableReader<'_>) -> R,
) -> Result<(R, Vec<ConfigProblem>), ConfigReport> {
    let (result, problems) = read_with_mistakes(main, values, read)?;
    match problems.iter().any(|p| p.severity == Severity::Error) {
        true => Err(ConfigReport::new(problems)),
        false => Ok((result, problems)),
    }
}

/// Reads like [`read`], but also returns the result if there are mistakes. Fails only if a file is
/// missing or is not TOML.
pub(crate) fn read_with_mistakes<R>(
    main: &ConfigFile,
    values: StringValues<'_>,
    read: impl FnOnce(&TableReader<'_>) -> R,
) -> Result<(R, Vec<ConfigProblem>), ConfigReport> {
    let (mut diagnostics, mut root, included) = open(main, values)?;
    root.remove("include");
    let files = || std::iter::once(main).chain(&included);

    for file in &included {
        let start = diagnostics.add_file(file);
        if let Some(mut table) = parse(file, start, &diagnostics) {
            refuse_include(&mut table, &diagnostics);
            merge(&mut root, table, "", &diagnostics);
        }
    }
    if diagnostics.is_broken() {
        return Err(diagnostics.into_report(files()));
    }
    for (name, value) in root.iter_mut() {
        expand(value, name.get_ref(), &diagnostics, values);
    }
    let result = TableReader::root(&diagnostics, &root).read_checked(read);
    let problems = diagnostics.into_problems(files());
    Ok((result, problems))
}

/// Reads what can be read of files that are not TOML, and reports nothing.
pub(crate) fn read_recovered<R>(
    main: &ConfigFile,
    values: StringValues<'_>,
    read: impl FnOnce(&TableReader<'_>) -> R,
) -> R {
    fn recovered(file: &ConfigFile, start: usize) -> DeTable<'_> {
        shift(DeTable::parse_recoverable(&file.text).0.into_inner(), start)
    }
    let mut diagnostics = Diagnostics::default();
    diagnostics.add_file(main);
    let mut root = recovered(main, 0);
    if let Some(value) = root.get_mut("include") {
        expand(value, "include", &diagnostics, values);
    }
    let included = include::read(main, &root, &diagnostics);
    root.remove("include");
    for file in &included {
        let start = diagnostics.add_file(file);
        merge(&mut root, recovered(file, start), "", &diagnostics);
    }
    for (name, value) in root.iter_mut() {
        expand(value, name.get_ref(), &diagnostics, values);
    }
    TableReader::root(&diagnostics, &root).read_checked(read)
}

/// Parses the main file, and reads the files that it includes.
fn open<'f>(
    main: &'f ConfigFile,
    values: StringValues<'_>,
) -> Result<(Diagnostics, DeTable<'f>, Vec<ConfigFile>), ConfigReport> {
    let mut diagnostics = Diagnostics::default();
    diagnostics.add_file(main);
    let Some(mut root) = parse(main, 0, &diagnostics) else {
        return Err(diagnostics.into_report([main]));
    };
    if let Some(value) = root.get_mut("include") {
        expand(value, "include", &diagnostics, values);
    }
    let included = include::read(main, &root, &diagnostics);
    Ok((diagnostics, root, included))
}

/// Lists the files of a configuration, and the files of its secrets, whether they exist or not.
pub(crate) fn sources(
    main: &ConfigFile,
    environment: &Environment,
) -> Result<Sources, ConfigReport> {
    let (_, mut root, included) = open(main, StringValues { environment, only: Some(&[]) })?;
    // The files of `[server.tls]` are watched separately, all of them together.
    if let Some(DeValue::Table(server)) = root.get_mut("server").map(Spanned::get_mut) {
        server.remove("tls");
    }
    let mut secrets = Vec::new();
    find_secrets(&root, "", &main.folder, environment, &mut secrets);
    for file in &included {
        // An invalid file names no secrets.
        if let Ok(table) = DeTable::parse(&file.text) {
            find_secrets(table.get_ref(), "", &file.folder, environment, &mut secrets);
        }
    }
    secrets.sort();
    secrets.dedup();
    let files = std::iter::once(main).chain(&included).map(|file| file.path.clone());
    Ok(Sources { files: files.collect(), secrets })
}

/// Finds every `file = "…"` and `${file:…}` below the table `name`, and the files beside the
/// private key of `tls`. Relative paths start from `folder`.
fn find_secrets(
    table: &DeTable<'_>,
    name: &str,
    folder: &Path,
    environment: &Environment,
    found: &mut Vec<PathBuf>,
) {
    for (key, value) in table {
        let key = key.get_ref().as_ref();
        let is_path = key == "file" || name == "tls" && ["ca", "cert"].contains(&key);
        match value.get_ref() {
            DeValue::Table(table) => find_secrets(table, key, folder, environment, found),
            DeValue::Array(list) => list.iter().for_each(|value| match value.get_ref() {
                DeValue::Table(table) => find_secrets(table, key, folder, environment, found),
                DeValue::String(text) => find_files(text, false, folder, environment, found),
                _ => {}
            }),
            DeValue::String(text) => find_files(text, is_path, folder, environment, found),
            _ => {}
        }
    }
}

/// Finds the secret files in a string, which may be the path of one itself.
fn find_files(
    text: &str,
    is_path: bool,
    folder: &Path,
    environment: &Environment,
    found: &mut Vec<PathBuf>,
) {
    let mut note = |path: &str, _: &str| {
        found.push(folder.join(path));
        Ok(Secret::from(""))
    };
    match variables::expand(text, environment, &mut note) {
        Ok(None) if is_path => found.push(folder.join(text)),
        Ok(Some(expanded)) if is_path => found.push(folder.join(expanded)),
        // Reading the configuration reports an error.
        Ok(_) | Err(_) => {}
    }
}

// === Parsing ===

/// Parses a file whose text begins at `start`; syntax errors are reported.
fn parse<'f>(file: &'f ConfigFile, start: usize, diagnostics: &Diagnostics) -> Option<DeTable<'f>> {
    let text = file.text.as_str();
    if text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
        let at = start + text.find('{').unwrap_or(0);
        let what = "this is JSON, and the configuration is TOML";
        let remedy = "`weir init --from FILE` makes one from the configuration of an MCP client";
        diagnostics.error(String::new(), Some(at..at + 1), ValueError::new(what, remedy));
        diagnostics.set_format(start, FileFormat::Json);
        return None;
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut last = None;
    for error in &errors {
        // The parser reports one unclosed bracket several times; only the first report is used.
        let this = (error.span(), error.message());
        if last.replace(this.clone()) == Some(this) {
            continue;
        }
        let span = error.span().map(|span| span.start + start..span.end + start);
        diagnostics.error(String::new(), span.or(Some(start..start)), syntax(error));
    }
    if !errors.is_empty() {
        diagnostics.set_format(start, FileFormat::Broken);
        return None;
    }
    Some(shift(document.into_inner(), start))
}

fn syntax(error: &toml::de::Error) -> ValueError {
    let (what, remedy) = match error.message().split_once(", expected ") {
        Some((what, "nothing")) => (what, "if it is text, put it in quotes".to_owned()),
        Some((what, expected)) => (what, format!("expected {expected}")),
        None if error.message() == "duplicate key" => {
            ("duplicate key", "remove one of the two".to_owned())
        }
        None => (error.message(), "correct it here".to_owned()),
    };
    ValueError::new(format!("not TOML: {what}"), remedy)
}

/// Moves all spans by `start`.
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

/// Refuses `include` in an included file, so that the main file names all files.
fn refuse_include(table: &mut DeTable<'_>, diagnostics: &Diagnostics) {
    if let Some((name, _)) = table.remove_entry("include") {
        let what = "an included file cannot include others";
        let remedy = "name them in the include of the main file";
        diagnostics.error("include".to_owned(), Some(name.span()), ValueError::new(what, remedy));
    }
}

/// Merges a later file: tables are merged, any other key may be defined only once.
fn merge<'t>(into: &mut DeTable<'t>, from: DeTable<'t>, path: &str, diagnostics: &Diagnostics) {
    for (name, value) in from {
        let path = join(path, name.get_ref());
        let first = into.get_key_value(name.get_ref().as_ref()).map(|(first, _)| first.span());
        let Some(first) = first else {
            into.insert(name, value);
            continue;
        };
        let existing = into.get_mut(name.get_ref().as_ref()).map(Spanned::get_mut);
        match (existing, value.get_ref()) {
            (Some(DeValue::Table(into)), DeValue::Table(_)) => {
                if let DeValue::Table(from) = value.into_inner() {
                    merge(into, from, &path, diagnostics);
                }
            }
            _ => {
                // The value is dropped here, so no later reader redacts its secrets.
                diagnostics.redact_unknown(&path, &value, None);
                let what = format!("{} defines this already", diagnostics.line(first.start));
                let error = ValueError::new(what, "remove one of the two");
                diagnostics.error(path, Some(name.span()), error);
            }
        }
    }
}

// === Variables ===

/// Replaces the variables of every string in `value`.
fn expand(
    value: &mut SpannedValue<'_>,
    path: &str,
    diagnostics: &Diagnostics,
    values: StringValues<'_>,
) {
    let span = value.span();
    match value.get_mut() {
        DeValue::Table(table) => {
            for (name, value) in table.iter_mut() {
                expand(value, &join(path, name.get_ref()), diagnostics, values);
            }
        }
        DeValue::Array(list) => {
            for value in list.iter_mut() {
                expand(value, path, diagnostics, values);
            }
        }
        DeValue::String(text) => {
            let folder = diagnostics.base_folder(span.start);
            let mut contents = Vec::new();
            let mut read = |file: &str, written: &str| -> Result<Secret, ValueError> {
                let content = read_file(path, &folder.join(file), written, values.only)?;
                contents.push(content.clone());
                Ok(content)
            };
            match variables::expand(text, values.environment, &mut read) {
                Ok(None) => {}
                Ok(Some(expanded)) => {
                    let written = std::mem::replace(text, expanded.into());
                    diagnostics.record_source_text(span.start, written.into_owned());
                    diagnostics.record_file_contents(span.start, contents);
                }
                Err(errors) => diagnostics.record_unresolved(span, path, errors),
            }
        }
        _ => {}
    }
}

/// Reads a secret file that the string under a key contains, if it may contain one.
fn read_file(
    key: &str,
    file: &Path,
    written: &str,
    only: Option<&[String]>,
) -> Result<Secret, ValueError> {
    let mut parts = key.splitn(3, '.');
    let upstream = match [parts.next(), parts.next(), parts.next()] {
        [Some("upstreams"), Some(upstream), Some("args" | "url")] => upstream,
        _ => {
            let what = "${file:…} is replaced in args and url of an upstream only";
            let remedy = "write { file = \"…\" } where a secret is read, or else a variable";
            return Err(ValueError::new(what, remedy));
        }
    };
    match only.is_none_or(|only| only.iter().any(|name| name == upstream)) {
        true => secret_file::read(file, written),
        // No error of it is reported.
        false => Err(ValueError::new("this file is not read", "nothing uses it").missing("")),
    }
}
