//! Sizes of files, folders and documents.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::fail_if_any;
use super::files::{Crate, FOLDERS, PROGRAM, code_of, crates, is_test, read, rust_files, sources};

/// Maximum length of a file, without its tests.
const MAX_LINES: usize = 500;

/// Maximum number of source files in a folder; in the source folder of a library, with its root.
const MAX_FILES: usize = 16;
const MAX_ROOT_FILES: usize = 18;

/// Maximum length of the documents that a newcomer reads first.
const MAX_BYTES: [(&str, usize); 2] = [("README.md", 10_000), ("ARCHITECTURE.md", 30 * 1024)];

#[test]
fn no_file_is_too_long_to_read() {
    let folders = FOLDERS.into_iter().filter(|folder| *folder != "tests");
    let files = folders.flat_map(rust_files);
    let long = files.filter(|file| !is_test(file)).filter_map(|file| {
        let lines = code_of(&read(&file)).lines().count();
        (lines > MAX_LINES).then(|| format!("{} has {lines} lines", file.display()))
    });
    fail_if_any(&long.collect::<Vec<_>>());
}

#[test]
fn no_folder_has_more_files_than_a_reader_overlooks() {
    let crates = crates();
    let libraries = crates.iter().filter(|one| one.name != PROGRAM);
    let roots: Vec<_> = libraries.map(Crate::sources).collect();
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for file in sources() {
        *counts.entry(file.parent().expect("a folder").to_owned()).or_default() += 1;
    }
    let large = counts.into_iter().filter(|(folder, count)| {
        let is_root = roots.contains(folder);
        *count > if is_root { MAX_ROOT_FILES } else { MAX_FILES }
    });
    let problems = large.map(|(folder, count)| format!("{} has {count} files", folder.display()));
    fail_if_any(&problems.collect::<Vec<_>>());
}

#[test]
fn documents_to_begin_with_are_short() {
    let sizes = MAX_BYTES.into_iter().map(|(name, most)| (name, read(name).len(), most));
    let too_long = sizes.filter(|(_, length, most)| length > most);
    let problems = too_long.map(|(name, length, most)| format!("{name}: {length} of {most} bytes"));
    fail_if_any(&problems.collect::<Vec<_>>());
}
