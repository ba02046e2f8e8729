//! The committed list of unreached checks, compared with the result of a run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

use crate::suite::{Verdicts, script};

/// Reasons by row, by run.
type List = BTreeMap<String, BTreeMap<String, String>>;

/// Fails unless the failures are exactly those that the list has for this run.
pub(crate) fn compare(run: &str, verdicts: &Verdicts) {
    let listed = read().remove(run).unwrap_or_default();
    let passed: Vec<_> = listed.keys().filter(|row| !verdicts.contains_key(*row)).collect();
    let failed: Vec<_> = verdicts.iter().filter(|(row, _)| !listed.contains_key(*row)).collect();
    if std::env::var_os("WEIR_WRITE_UNREACHED").is_some() {
        return write(run, &passed, &failed);
    }

    let mut report = String::new();
    for row in &passed {
        writeln!(report, "  passes now, take it out: {row:?}").unwrap();
    }
    for (row, failure) in &failed {
        writeln!(report, "  does not pass: {row:?}\n    {failure}").unwrap();
    }
    for (row, _) in listed.iter().filter(|(_, reason)| reason.starts_with('?')) {
        writeln!(report, "  is listed without a reason: {row:?}").unwrap();
    }
    assert!(
        report.is_empty(),
        "\n[{run:?}] of tests/conformance/unreached.toml has {} rows, {} do not pass:\n{report}",
        listed.len(),
        verdicts.len(),
    );
}

/// Runs that the list contains.
pub(crate) fn runs() -> Vec<String> {
    read().into_keys().collect()
}

fn read() -> List {
    toml::from_str(&std::fs::read_to_string(script("unreached.toml")).unwrap()).unwrap()
}

/// Replaces a run's rows in the list by the found failures; a new row has the failure's text
/// instead of a reason.
fn write(run: &str, passed: &[&String], failed: &[(&String, &String)]) {
    // The runs are threads of one process.
    static WRITING: Mutex<()> = Mutex::new(());
    let _writing = WRITING.lock().unwrap();
    let mut list = read();
    let rows = list.entry(run.to_owned()).or_default();
    rows.retain(|row, _| !passed.contains(&row));
    rows.extend(failed.iter().map(|(row, failure)| ((*row).clone(), format!("? {failure}"))));
    list.retain(|_, rows| !rows.is_empty());
    let text = format!("{HEADER}\n{}", toml::to_string(&list).unwrap());
    std::fs::write(script("unreached.toml"), text).unwrap();
}

const HEADER: &str = r#"# Checks that do not pass, by run: "scenario/check" or "values/step" = "why".
# The header of main.rs describes how to update this file.
"#;
