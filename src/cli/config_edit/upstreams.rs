//! `weir add`, `remove`, `enable` and `disable`: the upstreams in the configuration's files.
//!
//! Invariants: only the table of the named upstream is changed, or nothing; no output contains a
//! secret; a configuration with mistakes can be edited, and new ones are reported.

pub(crate) mod add;
pub(crate) mod change;
pub(crate) mod merge;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::Table as Meaning;

use super::named_table::NamedTable;
use super::{EditableFiles, reload_hint};
use crate::cli::exit::{Failure, ProblemReport, problems};
use crate::cli::loading::options;
use crate::cli::output;
use crate::cli::output::render::sanitize_line;
use weir_config::{Config, ConfigProblem, Severity, nearest};

/// Location of the configuration, and form of the output.
#[derive(Debug, clap::Args)]
struct EditArgs {
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    json: bool,
    /// The configuration file; default: $WEIR_CONFIG, else ./weir.toml, else weir/weir.toml in the
    /// user's configuration folder.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Editor of a configuration's upstreams.
struct UpstreamEditor {
    path: PathBuf,
    files: EditableFiles,
    /// Tables of the upstreams, as the files together have them.
    tables: BTreeMap<String, Meaning>,
    /// Problems before the change.
    problems: Vec<ConfigProblem>,
}

impl UpstreamEditor {
    fn open(path: PathBuf) -> Result<Self, Failure> {
        let files = EditableFiles::open(&path)?;
        let tables = files.tables(SECTION)?;
        let problems = find_problems(&path);
        Ok(Self { path, files, tables, problems })
    }

    /// Opens a configuration, or prepares a new one if there is no file at its path.
    fn open_or_new(path: PathBuf) -> Result<Self, Failure> {
        match std::fs::symlink_metadata(&path) {
            Ok(_) if path.exists() => Self::open(path),
            Ok(_) => Err(Failure::Usage(format!(
                "{} is a link to a file that does not exist: create that file, or remove the link",
                path.display()
            ))),
            Err(_) => {
                let files = EditableFiles::new_file(path.clone());
                Ok(Self { path, files, tables: BTreeMap::new(), problems: Vec::new() })
            }
        }
    }

    fn table(&self, name: &str) -> Result<&Meaning, Failure> {
        self.tables.get(name).ok_or_else(|| {
            let known: Vec<_> = self.tables.keys().map(String::as_str).collect();
            let hint = match (nearest(name, known.iter().copied()), &known[..]) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, []) => "the configuration has none".to_owned(),
                (None, known) => format!("upstreams: {}", known.join(", ")),
            };
            Failure::Usage(sanitize_line(&format!("no upstream `{name}`; {hint}")))
        })
    }

    /// Finds the problems that the change has caused.
    fn new_problems(&self) -> Vec<ConfigProblem> {
        let is_old = |new: &ConfigProblem| {
            let same = |old: &ConfigProblem| {
                (old.severity, &old.key, &old.what) == (new.severity, &new.key, &new.what)
            };
            self.problems.iter().any(same)
        };
        find_problems(&self.path).into_iter().filter(|problem| !is_old(problem)).collect()
    }

    /// Describes how a running Weir applies the change, and what it does then.
    fn next_step(&self, effect: &str) -> String {
        let (listeners, _) = Config::listeners(&self.path, &options(true));
        format!("next: {}{effect}", reload_hint(listeners.server.watch))
    }
}

/// Table of an upstream.
fn table_of(name: &str) -> NamedTable<'_> {
    NamedTable { section: SECTION, name }
}

fn find_problems(path: &Path) -> Vec<ConfigProblem> {
    match Config::check(path, &options(true)) {
        Ok(warnings) => warnings,
        Err(report) => report.problems().to_vec(),
    }
}

/// Prints problems for people. Returns false if one of them is an error.
fn print_problems(problems: &[ConfigProblem]) -> bool {
    problems.iter().for_each(|problem| output::print_stderr(&problem.render(true)));
    let is_usable = problems.iter().all(|problem| problem.severity != Severity::Error);
    if !is_usable {
        output::print_stderr(
            "until that is corrected, a running Weir keeps its former configuration, and Weir does \
             not start with this one",
        );
    }
    is_usable
}

/// JSON form of a change.
#[derive(Serialize)]
struct UpstreamChange<'a, C> {
    upstream: &'a str,
    changed: bool,
    /// Files that were written.
    files: Vec<String>,
    /// Mistakes that the configuration did not have before.
    problems: Vec<ProblemReport>,
    /// Result of the check, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<C>,
}

impl<'a, C> UpstreamChange<'a, C> {
    fn new(upstream: &'a str, files: &[PathBuf], new: &[ConfigProblem], check: Option<C>) -> Self {
        let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        Self { upstream, changed: !files.is_empty(), files, problems: problems(new), check }
    }
}

/// Failure for a table that is written in a way that cannot be edited.
fn not_editable(file: &Path, name: &str, remedy: &str) -> Failure {
    Failure::NoConfig(format!(
        "{}: [upstreams.{}] cannot be changed without touching other settings, so nothing was \
         written; change it by hand: {remedy}",
        file.display(),
        sanitize_line(name)
    ))
}

/// Remedy where a table cannot be added.
const AS_TABLES: &str = "write `upstreams` as tables [upstreams.<name>]";

/// Table that contains the upstreams.
const SECTION: &str = "upstreams";
