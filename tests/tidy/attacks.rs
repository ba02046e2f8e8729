//! Attacks: each row of a table names the file with its tests.

use std::collections::BTreeSet;

use super::fail_if_any;
use super::files::read;
use super::test_names::{test_files, tests_of};

/// The table of attacks and the tests that show each row.
const ROWS: &str = "tests/it/security.rs";

/// The rows that a test's name begins with: `s02` and `s03` in `s02_s03_what_is_listed`.
fn rows_of(name: &str) -> Vec<String> {
    let row = |part: &str| {
        let digits = part.strip_prefix('s')?;
        let is_row = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
        is_row.then(|| format!("S-{digits}"))
    };
    name.split('_').map_while(row).collect()
}

#[test]
fn every_row_of_what_an_attacker_would_try_has_its_tests_where_the_table_says() {
    let text = read(ROWS);
    let mut told = BTreeSet::new();
    for row in text.lines().filter_map(|line| line.strip_prefix("//! | S-")) {
        let cells: Vec<_> = row.split(" | ").collect();
        for name in cells[0].split(", ").map(|name| format!("S-{}", name.trim_start_matches("S-")))
        {
            let files = cells[2].split('`').skip(1).step_by(2);
            told.extend(files.map(|file| (name.clone(), file.to_owned())));
        }
    }
    let mut found = BTreeSet::new();
    for file in test_files() {
        let rows: Vec<_> = tests_of(&read(&file)).iter().flat_map(|test| rows_of(test)).collect();
        found.extend(rows.into_iter().map(|row| (row, file.display().to_string())));
    }
    assert!(!told.is_empty() && !found.is_empty(), "there are attacks and their tests");
    let missing = told.difference(&found);
    let missing = missing.map(|(row, file)| format!("{file} has no test of {row}"));
    let untold = found.difference(&told);
    let untold = untold.map(|(row, file)| format!("{ROWS} does not tell of {row} in {file}"));
    fail_if_any(&missing.chain(untold).collect::<Vec<_>>());
}
