//! What the documents say of Weir's behavior is shown by tests: `tests/claims.toml` names them, and this holds that the
//! sentences and the tests are there. Whether a test shows its sentence is for a reviewer to judge.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{fail_if_any, functions, read, rust_files};

/// Where it stands which sentence is shown by which tests.
const CLAIMS: &str = "tests/claims.toml";

/// How many statements of these documents are shown at least: one that is taken out of the table is missed.
const SHOWN: [(&str, usize); 9] = [
    ("README.md", 188),
    ("SECURITY.md", 104),
    ("deploy/README.md", 19),
    ("docs/cli.md", 126),
    ("docs/identity-providers.md", 52),
    ("docs/limits.md", 17),
    ("docs/prompt-library.md", 72),
    ("docs/reliability.md", 2),
    ("docs/resource-uris.md", 41),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    claim: Vec<Claim>,
}

/// A statement of a document.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    #[serde(rename = "in")]
    document: String,
    /// A part of its sentence that stands nowhere else in the document.
    says: String,
    shown_by: Vec<String>,
}

#[test]
fn every_claim_of_the_documents_is_there_and_is_shown_by_a_test_that_is_there() {
    let table: Table = toml::from_str(&read(CLAIMS)).expect("the table of claims can be read");
    let mut tests = BTreeSet::new();
    for file in ["src", "tests"].iter().flat_map(|folder| rust_files(folder)) {
        tests.extend(functions(&read(&file)));
    }
    let (mut texts, mut counts) = (BTreeMap::new(), BTreeMap::<_, usize>::new());
    let mut problems = Vec::new();
    for Claim { document, says, shown_by } in &table.claim {
        *counts.entry(document.as_str()).or_insert(0) += 1;
        let text = texts.entry(document).or_insert_with(|| folded(&read(document)));
        let times = text.matches(folded(says).as_str()).count();
        if times != 1 {
            problems.push(format!("{document} says {times} times, not once: {says}"));
        }
        if shown_by.is_empty() {
            problems.push(format!("{document}: no test shows: {says}"));
        }
        let lost = shown_by.iter().filter(|test| !tests.contains(*test));
        problems.extend(lost.map(|test| format!("{document}: no test {test}, for: {says}")));
    }
    for (document, least) in SHOWN {
        let count = counts.get(document).copied().unwrap_or_default();
        if count < least {
            problems.push(format!("{CLAIMS} has {count} statements of {document}, not {least}"));
        }
    }
    fail_if_any(&problems);
}

/// A text with one space for each run of white space.
fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
