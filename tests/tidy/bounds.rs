//! Limits: each row of `docs/limits.md` names a key or a constant that exists, and
//! `tests/bounds.toml` its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::documents::{quoted, table_rows};
use super::fail_if_any;
use super::files::{is_source, read};
use super::test_names::all_tests;

/// Table for operators: limit, default, and its keys or its constants with their file.
pub(super) const LIMITS: &str = "docs/limits.md";
/// Tests of each limit.
const TESTS: &str = "tests/bounds.toml";
/// Number of limits, so that one that is left out is noticed.
const BOUNDS: usize = 117;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    bound: Vec<Bound>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    /// The keys, or the constants and their file, as in the row of the document.
    limit: Vec<String>,
    shown_by: Vec<String>,
}

fn bounds() -> Vec<Bound> {
    let table: Table = toml::from_str(&read(TESTS)).expect("the tests of limits can be read");
    table.bound
}

/// Rows of the document that have tests.
pub(super) fn rows_with_tests() -> BTreeSet<String> {
    let tested: BTreeSet<_> = bounds().into_iter().map(|bound| bound.limit).collect();
    let rows = table_rows(&read(LIMITS));
    rows.into_iter().filter(|row| tested.contains(&quoted(last_cell(row)))).collect()
}

fn last_cell(row: &str) -> &str {
    row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default()
}

#[test]
fn every_bound_is_a_key_or_a_constant_that_is_there_and_is_shown_by_a_test_that_is_there() {
    let page = read("docs/configuration.md");
    let keys: BTreeSet<_> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .filter_map(|line| line.split('`').nth(1))
        .collect();
    let tests = all_tests();
    let mut problems = Vec::new();
    let mut shown_by = BTreeMap::new();
    for Bound { limit, shown_by: tests } in bounds() {
        let name = limit.join(", ");
        if shown_by.insert(limit, tests).is_some() {
            problems.push(format!("{TESTS} has {name} twice"));
        }
    }
    let rows = table_rows(&read(LIMITS));
    if rows.len() != BOUNDS {
        problems.push(format!("{LIMITS} has {} rows, not {BOUNDS}", rows.len()));
    }
    for row in &rows {
        let named = quoted(last_cell(row));
        match named.split_last() {
            Some((file, constants)) if is_source(Path::new(file)) => {
                let text = read(file);
                let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
                let code: Vec<_> = text.lines().map(code).collect();
                let is_lost = |name: &&String| {
                    !code.iter().any(|line| line.contains(&format!("const {name}: ")))
                };
                let lost = constants.iter().filter(is_lost);
                problems.extend(lost.map(|name| format!("{row}: {file} has no constant {name}")));
                if constants.is_empty() {
                    problems.push(format!("{row}: there is no constant"));
                }
            }
            Some(_) => {
                let lost = named.iter().filter(|key| !keys.contains(key.as_str()));
                problems.extend(lost.map(|key| format!("{row}: there is no key {key}")));
            }
            None => problems.push(format!("{row}: there is no key and no constant")),
        }
        let shown = shown_by.remove(&named).unwrap_or_default();
        let lost = shown.iter().filter(|test| !tests.contains(*test));
        problems.extend(lost.map(|test| format!("{row}: there is no test {test}")));
        if shown.is_empty() {
            problems.push(format!("{row}: {TESTS} has no test of it"));
        }
    }
    let rest = shown_by.into_keys();
    problems.extend(rest.map(|limit| format!("{LIMITS} has no row of {}", limit.join(", "))));
    fail_if_any(&problems);
}
