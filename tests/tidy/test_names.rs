//! Names of functions and tests.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::files::{read, rust_files};

/// Folders with tests of the program and the libraries.
const TESTED: [&str; 3] = ["src", "crates", "tests"];

/// The files that may have tests of the program and the libraries.
pub(super) fn test_files() -> impl Iterator<Item = PathBuf> {
    TESTED.into_iter().flat_map(rust_files)
}

/// The names of all functions of a file.
pub(super) fn functions(text: &str) -> Vec<String> {
    let names = text.split("fn ").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        rest[..end.unwrap_or(rest.len())].to_owned()
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// The tests of a file.
pub(super) fn tests_of(text: &str) -> Vec<String> {
    let (mut tests, mut is_test) = (Vec::new(), false);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text = lines.collect::<Vec<_>>().join("\n");
    for attribute in text.split("#[").skip(1) {
        is_test |= ["test]", "tokio::test"].iter().any(|test| attribute.starts_with(test));
        if attribute.contains("fn ") && std::mem::take(&mut is_test) {
            tests.extend(functions(attribute).into_iter().take(1));
        }
    }
    tests
}

/// The tests of the program and the libraries.
pub(super) fn all_tests() -> BTreeSet<String> {
    let tests: BTreeSet<_> = test_files().flat_map(|file| tests_of(&read(&file))).collect();
    assert!(!tests.is_empty(), "there are tests");
    tests
}
