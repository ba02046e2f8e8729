//! Faults and goals: each has its row in `docs/reliability.md`, and `tests/faults.toml` names its
//! tests.

use std::collections::{BTreeMap, BTreeSet};

use super::documents::table_rows;
use super::fail_if_any;
use super::files::{read, rust_files};
use super::test_names::{all_tests, functions};

/// Table for operators: row, promise, measured.
pub(super) const FAULTS: &str = "docs/reliability.md";
/// Tests of each row.
const TESTS: &str = "tests/faults.toml";

/// Rows of faults and goals: a letter, the first and the last number of each range.
const RANGES: [(&str, u32, u32); 6] =
    [("F-", 1, 15), ("F-", 20, 37), ("F-", 40, 53), ("F-", 60, 75), ("F-", 80, 101), ("G", 1, 20)];

/// Beginnings of promises that have no tests, because they promise nothing.
const WITHOUT_TESTS: [&str; 2] = ["Not applicable", "Not tested"];

/// End of the name of a test that does nothing by day.
pub(super) const NIGHTLY: &str = "_nightly";
/// Beginning of the measurements of a row all of whose tests do nothing by day.
const NIGHTLY_ONLY: &str = "nightly only";

fn tests_by_row() -> BTreeMap<String, Vec<String>> {
    toml::from_str(&read(TESTS)).expect("the tests of faults can be read")
}

/// Name, promise and measurements of a row of the document, unless it is a row of another table.
fn cells_of(row: &str) -> Option<[&str; 3]> {
    let (name, rest) = row.strip_prefix("| ")?.split_once(" | ")?;
    let number = name.strip_prefix("F-").or_else(|| name.strip_prefix('G'))?;
    let is_row = number.parse::<u32>().is_ok();
    let (promise, measured) = rest.split_once(" | ")?;
    is_row.then_some([name, promise, measured])
}

/// Tests of all rows.
pub(super) fn tests_of_rows() -> BTreeSet<String> {
    tests_by_row().into_values().flatten().collect()
}

/// Rows of the document that have tests.
pub(super) fn rows_with_tests() -> BTreeSet<String> {
    let tests = tests_by_row();
    let has_tests = |row: &String| {
        let name = cells_of(row).map(|[name, ..]| name);
        name.and_then(|name| tests.get(name)).is_some_and(|tests| !tests.is_empty())
    };
    table_rows(&read(FAULTS)).into_iter().filter(has_tests).collect()
}

/// Rows that a test's name begins with: `F-20` and `F-25` of `f20_f25_nothing_is_left`.
fn rows_of(test: &str) -> Vec<String> {
    let row = |part: &str| {
        let (letter, digits) = part.split_at_checked(1)?;
        let is_number = |digits: &str| digits.parse::<u32>().is_ok();
        match letter {
            // Letters behind a number are parts of a row: `f37b`.
            "f" => {
                let digits = digits.trim_end_matches(char::is_alphabetic);
                is_number(digits).then(|| format!("F-{digits}"))
            }
            "g" => is_number(digits).then(|| format!("G{digits}")),
            _ => None,
        }
    };
    test.split('_').map_while(row).collect()
}

#[test]
fn every_fault_and_every_goal_has_its_row_and_every_test_in_it_is_there() {
    let (tests, there) = (tests_by_row(), all_tests());
    let wanted: BTreeSet<_> = RANGES
        .iter()
        .flat_map(|(letter, first, last)| {
            (*first..=*last).map(move |number| match *letter {
                "F-" => format!("F-{number:02}"),
                letter => format!("{letter}{number}"),
            })
        })
        .collect();
    let mut problems = Vec::new();
    let rows = table_rows(&read(FAULTS));
    let mut found = BTreeSet::new();
    for [name, promise, measured] in rows.iter().filter_map(|row| cells_of(row)) {
        if !found.insert(name.to_owned()) {
            problems.push(format!("{FAULTS} has {name} twice"));
        }
        let promises_nothing = WITHOUT_TESTS.iter().any(|start| promise.starts_with(start));
        if tests.get(name).is_some_and(Vec::is_empty) != promises_nothing {
            problems.push(format!("{name}: a promise has tests in {TESTS}, and no other row has"));
        }
        let is_nightly = |tests: &Vec<String>| {
            !tests.is_empty() && tests.iter().all(|test| test.ends_with(NIGHTLY))
        };
        if tests.get(name).is_some_and(is_nightly) != measured.starts_with(NIGHTLY_ONLY) {
            problems.push(format!(
                "{name}: '{NIGHTLY_ONLY}' is for a row all of whose tests do nothing by day"
            ));
        }
    }
    let named: BTreeSet<_> = tests.keys().cloned().collect();
    for (file, rows) in [(FAULTS, &found), (TESTS, &named)] {
        let lost = wanted.difference(rows);
        problems.extend(lost.map(|row| format!("{file} has no row {row}")));
        let unknown = rows.difference(&wanted);
        problems.extend(unknown.map(|row| format!("{file} has a row {row}, which is none")));
    }
    for (row, tests) in &tests {
        let lost = tests.iter().filter(|test| !there.contains(*test));
        problems.extend(lost.map(|test| format!("{row}: there is no test {test}")));
    }
    let is_named =
        |row: &String, test: &String| tests.get(row).is_some_and(|tests| tests.contains(test));
    // Functions, because a test in `tests/faults` may be made by a macro.
    let functions = rust_files("tests/faults").into_iter().flat_map(|file| functions(&read(&file)));
    let all: BTreeSet<_> = there.iter().cloned().chain(functions).collect();
    for test in &all {
        let rows = rows_of(test).into_iter().filter(|row| !is_named(row, test));
        problems.extend(rows.map(|row| format!("{TESTS} does not name {test} in {row}")));
    }
    fail_if_any(&problems);
}

#[test]
fn name_of_a_test_begins_with_its_rows() {
    assert_eq!(rows_of("f20_f25_nothing_is_left"), ["F-20", "F-25"]);
    assert_eq!(rows_of("f37b_g2_f100_the_first_counts"), ["F-37", "G2", "F-100"]);
    assert_eq!(rows_of("files_and_folders_are_bounded"), [""; 0]);
}
