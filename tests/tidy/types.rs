//! Names of types, and what a module exports again.

use std::collections::BTreeMap;

use regex::Regex;

use super::fail_if_any;
use super::files::{bare, sources};

/// Names that Rust programs give to a type of each module; every other name is unique in the
/// workspace.
const GENERIC: [&str; 7] = ["Args", "Error", "Event", "Inner", "Settings", "Shared", "State"];

#[test]
fn a_type_has_a_name_of_its_own() {
    let definition =
        Regex::new(r"(?m)^(?:type|pub(?:\([a-z: ]+\))? type|\s*(?:pub(?:\([a-z: ]+\))? )?(?:unsafe )?(?:struct|enum|trait|union)) (\w+)")
            .expect("a pattern");
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in sources() {
        for found in definition.captures_iter(&bare(&file)) {
            places.entry(found[1].to_owned()).or_default().push(file.display().to_string());
        }
    }
    assert!(GENERIC.iter().all(|name| places.contains_key(*name)), "types are found");
    let shared = places
        .into_iter()
        .filter(|(name, files)| files.len() > 1 && !GENERIC.contains(&name.as_str()));
    let problems = shared.map(|(name, files)| format!("{name} is defined in {}", files.join(", ")));
    fail_if_any(&problems.collect::<Vec<_>>());
}

/// A glob would hide which module an import leads to.
#[test]
fn nothing_is_exported_again_by_a_glob() {
    let glob = Regex::new(r"(?m)^\s*pub(?:\([a-z: ]+\))? use [^;]*\*").expect("a pattern");
    let files = sources().filter(|file| glob.is_match(&bare(file)));
    let problems = files.map(|file| format!("{} exports a glob", file.display()));
    fail_if_any(&problems.collect::<Vec<_>>());
}
