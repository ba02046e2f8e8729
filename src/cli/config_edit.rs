//! Commands that change the files of a configuration, and the edits that they share.
//!
//! Invariants: a command changes the one table that it names, and the meaning of everything else
//! is compared after the edit; a file that is read-only, or that was changed in the meantime, is
//! not replaced, and no other one of the same change either.

pub(super) mod keys;
mod line_ends;
mod named_table;
pub(super) mod upstreams;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Table as Meaning;

use super::clients::document::{self, FileText};
use super::exit::Failure;
use super::files::PreparedFile;
use super::output::render::sanitize_line;
use super::{files, loading};
use named_table::{EditedFile, NamedTable};
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

/// Edit of one of the files.
struct FileEdit {
    file: PathBuf,
    old: FileText,
    edited: EditedFile,
}

/// Prepares the new texts of all files: one that cannot be written is found before any is replaced.
fn prepare_all(edits: &[FileEdit]) -> Result<Vec<PreparedFile>, Failure> {
    let prepare =
        |edit: &FileEdit| document::prepare(&edit.file, Some(&edit.old), &edit.edited.text);
    edits.iter().map(prepare).collect()
}

/// Replaces the texts of all files or, if one cannot be written, of none, after a copy of each.
/// Returns the paths of the copies.
fn replace_with_copies(edits: &[FileEdit]) -> Result<Vec<PathBuf>, Failure> {
    let prepared = prepare_all(edits)?;
    let mut copies = Vec::new();
    // The copy of a file that was not changed has no use.
    let remove = |copies: &[PathBuf]| copies.iter().for_each(|it| _ = std::fs::remove_file(it));
    for edit in edits {
        match files::back_up_file(&edit.file) {
            Ok(copy) => copies.push(copy),
            Err(failure) => {
                remove(&copies);
                return Err(failure);
            }
        }
    }
    for (index, file) in prepared.into_iter().enumerate() {
        if let Err(failure) = file.finish() {
            remove(&copies[index..]);
            return Err(stopped_halfway(failure, &edits[..index], &copies[..index]));
        }
    }
    Ok(copies)
}

/// Describes what was done before a file could not be replaced. `copies` are those of the files
/// that were, if there are any.
fn stopped_halfway(failure: Failure, done: &[FileEdit], copies: &[PathBuf]) -> Failure {
    if done.is_empty() {
        return failure;
    }
    let join = |paths: Vec<String>| paths.join(" and ");
    let files = join(done.iter().map(|edit| shown(&edit.file)).collect());
    let copies = match copies {
        [] => String::new(),
        copies => format!(" (copied to {})", join(copies.iter().map(|it| shown(it)).collect())),
    };
    let text = format!(
        "{failure}; only a part was done: {files} was changed before that{copies}; correct this \
         and run the command again, or change the rest by hand"
    );
    match failure {
        Failure::Output(_) => Failure::Output(std::io::Error::other(text)),
        _ => Failure::Usage(text),
    }
}

/// Shows a path on one line.
fn shown(path: &Path) -> String {
    sanitize_line(&path.display().to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_stops_halfway_says_what_was_done() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.toml");
        std::fs::write(&file, "old").expect("written");
        let edit = |text: &str| {
            let edited = EditedFile { text: text.to_owned(), lines: String::new() };
            FileEdit { file: file.clone(), old: read(&file).expect("it is there"), edited }
        };
        // The second edit finds the file changed.
        let edits = [edit("one"), edit("two")];
        let failure = replace_with_copies(&edits).expect_err("it was changed").to_string();
        assert!(failure.contains("it was changed in the meantime"), "{failure}");
        let done = format!("only a part was done: {} was changed before that", file.display());
        assert!(failure.contains(&done), "{failure}");
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "one");
        let files = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(files, 2, "the file, and the copy of what was replaced");
    }
}
