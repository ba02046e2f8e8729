//! Commands that change the files of a configuration, and the edits that they share.
//!
//! Invariants: a command changes the one table that it names, and the meaning of everything else
//! is compared after the edit; a file that is read-only, or that was changed in the meantime, is
//! not replaced.

pub(super) mod keys;
mod line_ends;
mod named_table;
pub(super) mod upstreams;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Table as Meaning;

use super::clients::document::{self, FileText};
use super::exit::Failure;
use super::{files, loading};
use named_table::NamedTable;
use weir_config::Config;

/// Files of one configuration, the main file first.
struct EditableFiles(Vec<PathBuf>);

impl EditableFiles {
    /// Finds the files, whatever mistakes their values have.
    fn open(main: &Path) -> Result<Self, Failure> {
        let sources = Config::sources(main, &loading::options(true)).map_err(Failure::Config)?;
        Ok(Self(sources.files))
    }

    /// Files of a configuration that is not written yet.
    fn new_file(main: PathBuf) -> Self {
        Self(vec![main])
    }

    fn main(&self) -> &Path {
        self.0.first().map(PathBuf::as_path).unwrap_or(Path::new(""))
    }

    /// Finds one of the files by any path to it.
    fn find(&self, file: &Path) -> Result<PathBuf, Failure> {
        let real = std::fs::canonicalize(file).ok();
        let is_it = |one: &&PathBuf| {
            **one == *file || real.is_some() && std::fs::canonicalize(one).ok() == real
        };
        self.0.iter().find(is_it).cloned().ok_or_else(|| {
            Failure::Usage(format!(
                "{} is not part of the configuration: create it, and add it to the `include` of {}",
                file.display(),
                self.main().display()
            ))
        })
    }

    /// Returns all tables of a section, each as the files together have it.
    fn tables(&self, section: &str) -> Result<BTreeMap<String, Meaning>, Failure> {
        let mut tables: BTreeMap<String, Meaning> = BTreeMap::new();
        for file in &self.0 {
            // Reading the configuration reports a file that is not TOML.
            let mut document: Meaning = read(file)?.text.parse().unwrap_or_default();
            let section = document.remove(section).and_then(|it| it.try_into::<Meaning>().ok());
            for (name, table) in section.unwrap_or_default() {
                let table = table.try_into::<Meaning>().unwrap_or_default();
                tables.entry(name).or_default().extend(table);
            }
        }
        Ok(tables)
    }

    /// Returns the files that contain a table, or this key of it, with their texts.
    fn containing(
        &self,
        table: &NamedTable<'_>,
        key: Option<&str>,
    ) -> Result<Vec<(PathBuf, FileText)>, Failure> {
        let mut found = Vec::new();
        for file in &self.0 {
            let text = read(file)?;
            if table.is_in(&text.text, key) {
                found.push((file.clone(), text));
            }
        }
        Ok(found)
    }
}

/// Reads one of the files.
fn read(file: &Path) -> Result<FileText, Failure> {
    document::read(file)?.ok_or_else(|| Failure::Usage(format!("{} is gone", file.display())))
}

/// Replaces the text of one of the files, and returns the path of a copy of the former one.
fn replace_with_copy(file: &Path, old: &FileText, new: &str) -> Result<PathBuf, Failure> {
    let copy = files::back_up_file(file)?;
    let replaced = document::replace(file, Some(old), new);
    // The copy of a file that was not changed has no use.
    replaced.inspect_err(|_| _ = std::fs::remove_file(&copy))?;
    Ok(copy)
}

/// Describes how a running Weir applies a changed file.
fn reload_hint(watches: bool) -> &'static str {
    match watches {
        true => "a running Weir applies the file within seconds",
        false => {
            "`weir reload` makes a running Weir apply the file, since `watch` under [server] is off"
        }
    }
}
