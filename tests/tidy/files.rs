//! Files that the checks read: the sources of each crate, and all code in Rust.
//!
//! Invariant: a function that returns files asserts that each folder has some.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use super::fail_if_any;

/// The folders with code in Rust.
pub(super) const FOLDERS: [&str; 7] =
    ["src", "crates", "tests", "benches", "examples", "fuzz", "xtask"];

/// The package of the program, whose sources are in `src`.
pub(super) const PROGRAM: &str = "weir";

/// Files of a source folder that are no module.
const CRATE_ROOTS: [&str; 2] = ["lib.rs", "main.rs"];

/// A crate of Weir: the program, or a library in `crates`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Crate {
    /// Name without the prefix `weir-`; of the program, `weir`.
    pub(super) name: String,
    /// Folder of its package, relative to the root.
    pub(super) folder: PathBuf,
}

impl Crate {
    /// Folder of its sources.
    pub(super) fn sources(&self) -> PathBuf {
        self.folder.join("src")
    }

    /// Manifest of its package.
    pub(super) fn manifest(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }

    /// Every Rust file of its sources, tests included.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        rust_files(self.sources())
    }
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(super) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Rust file below a folder, relative to the root.
pub(super) fn rust_files(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let folder = folder.as_ref();
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path.strip_prefix(root()).expect("it is below the root").to_owned());
            }
        }
    }
    assert!(!files.is_empty(), "{} has no Rust file", folder.display());
    files.sort();
    files
}

/// The program and the libraries, in order of their names.
pub(super) fn crates() -> Vec<Crate> {
    let folder = Path::new("crates");
    let entries = fs::read_dir(root().join(folder)).expect("the folder is there");
    let names = entries.map(|entry| {
        entry.expect("the folder can be read").file_name().to_string_lossy().into_owned()
    });
    let names: BTreeSet<_> = names.collect();
    assert!(!names.is_empty(), "{} is empty", folder.display());
    let libraries = names.into_iter().map(|name| Crate { folder: folder.join(&name), name });
    let program = Crate { name: PROGRAM.to_owned(), folder: PathBuf::new() };
    std::iter::once(program).chain(libraries).collect()
}

/// Every source file of every crate, tests included.
pub(super) fn source_files() -> Vec<PathBuf> {
    crates().iter().flat_map(Crate::files).collect()
}

/// Every source file of every crate that is not a test.
pub(super) fn sources() -> impl Iterator<Item = PathBuf> {
    source_files().into_iter().filter(|file| !is_test(file))
}

/// Every Rust file of the repository.
pub(super) fn all_code() -> impl Iterator<Item = PathBuf> {
    FOLDERS.into_iter().flat_map(rust_files)
}

/// The source folder that a file is in: `src`, or `crates/NAME/src`.
fn source_folder(file: &Path) -> Option<PathBuf> {
    let depth = if file.starts_with("crates") { 3 } else { 1 };
    let folder: PathBuf = file.iter().take(depth).collect();
    (folder.ends_with("src") && file != folder).then_some(folder)
}

/// Returns whether a file belongs to the sources of a crate.
pub(super) fn is_source(file: &Path) -> bool {
    source_folder(file).is_some()
}

/// Returns whether a source file is the root of its crate.
pub(super) fn is_crate_root(file: &Path) -> bool {
    let folder = source_folder(file).expect("a source file");
    CRATE_ROOTS.iter().any(|root| file == folder.join(root))
}

/// The module that a source file is: `transport`, `http` for `crates/NAME/src/transport/http.rs`.
/// Root files of a crate, and its source folder, are the empty path.
pub(super) fn module_path(file: &Path) -> Vec<String> {
    let Some(folder) = source_folder(file) else { return Vec::new() };
    if is_crate_root(file) {
        return Vec::new();
    }
    let inside = file.strip_prefix(folder).expect("it is below").with_extension("");
    inside.iter().map(|part| part.to_string_lossy().into_owned()).collect()
}

/// Returns whether a file contains tests only.
pub(super) fn is_test(file: &Path) -> bool {
    let parts = file.iter().map(|part| part.to_string_lossy().into_owned());
    parts
        .into_iter()
        .any(|part| ["tests", "tests.rs", "testing", "testing.rs"].contains(&part.as_str()))
}

/// A source file without its tests.
pub(super) fn code_of(text: &str) -> &str {
    let starts = ["mod tests {", "pub(super) mod tests {", "pub(crate) mod tests {"];
    let tests = starts.iter().find_map(|start| text.find(&format!("#[cfg(test)]\n{start}")));
    &text[..tests.unwrap_or(text.len())]
}

/// A source file without its tests and comments.
pub(super) fn bare(file: &Path) -> String {
    let text = read(file);
    let lines = code_of(&text).lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_file_says_what_it_is() {
    let headless = all_code().filter(|file| !read(file).starts_with("//! "));
    let problems = headless.map(|file| format!("{} has no header", file.display()));
    fail_if_any(&problems.collect::<Vec<_>>());
}

#[test]
fn tests_of_a_file_are_last() {
    // Other checks end where the tests begin.
    let item =
        Regex::new(r"(?m)^(?:pub|use|mod|struct|enum|trait|impl|const|static|fn|async fn)\b");
    let item = item.expect("a pattern");
    let files = source_files().into_iter().filter(|file| {
        let text = read(file);
        let tests = &text[code_of(&text).len()..];
        item.find_iter(tests).count() > 1
    });
    fail_if_any(&files.map(|file| format!("{} goes on", file.display())).collect::<Vec<_>>());
}

#[test]
fn files_belong_to_their_crates() {
    let module = |file: &str| module_path(Path::new(file)).join("::");
    assert_eq!(module("src/cli/query/call.rs"), "cli::query::call");
    assert_eq!(module("crates/upstream/src/lib.rs"), "");
    assert_eq!(module("crates/upstream/src/transport/http.rs"), "transport::http");
    assert_eq!(module("crates/upstream/src"), "");
    assert!(is_source(Path::new("crates/mcp/src/uri.rs")) && is_source(Path::new("src/app.rs")));
    assert!(!is_source(Path::new("crates/mcp/tests/it.rs")));
    assert!(!is_source(Path::new("tests/tidy.rs")));
    for Crate { name, folder } in crates() {
        let source = source_files()
            .into_iter()
            .find(|file| source_folder(file) == Some(folder.join("src")) && is_crate_root(file));
        assert!(source.is_some(), "{name} has a root");
    }
}
