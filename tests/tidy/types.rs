//! Names of types, the files of their functions, and what a module exports again.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use super::fail_if_any;
use super::files::{bare, sources};

/// Names that Rust programs give to a type of each module; every other name is unique in the
/// workspace.
const GENERIC: [&str; 7] = ["Args", "Error", "Event", "Inner", "Settings", "Shared", "State"];

/// Types with inherent functions in several files, each with a subject of its own.
const IN_SEVERAL_FILES: [&str; 4] =
    ["Dispatcher", "LegacyDialect", "ModernDialect", "UpstreamWriter"];

/// Pattern of the definition of a struct, an enum, a trait or a union.
const DEFINITION: &str = r"(?:pub(?:\([a-z: ]+\))? )?(?:unsafe )?(?:struct|enum|trait|union)";

#[test]
fn a_type_has_a_name_of_its_own() {
    let definition =
        Regex::new(&format!(r"(?m)^(?:type|pub(?:\([a-z: ]+\))? type|\s*{DEFINITION}) (\w+)"));
    let definition = definition.expect("a pattern");
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

/// Returns a function that finds the types of the inherent impls in a text.
fn inherent_impls() -> impl Fn(&str) -> Vec<String> {
    let start = Regex::new(r"(?m)^\s*(?:unsafe )?impl\b").expect("a pattern");
    let of_trait = Regex::new(r"\sfor\s").expect("a pattern");
    let name = Regex::new(r"^\s*(?:dyn )?(?:\w+::)*(\w+)").expect("a pattern");
    move |text| {
        let starts = start.find_iter(text);
        let headers = starts.filter_map(|start| text[start.end()..].split('{').next());
        let subjects = headers.map(after_parameters).filter(|subject| !of_trait.is_match(subject));
        subjects.filter_map(|subject| Some(name.captures(subject)?[1].to_owned())).collect()
    }
}

/// The rest of the header of an impl after its generic parameters.
fn after_parameters(header: &str) -> &str {
    let mut depth = 0;
    for (at, character) in header.char_indices() {
        match character {
            '<' => depth += 1,
            '>' if !header[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &header[if at == 0 { 0 } else { at + 1 }..];
        }
    }
    header
}

#[test]
fn inherent_impls_stand_with_their_type() {
    let definition = Regex::new(&format!(r"(?m)^\s*{DEFINITION} (\w+)")).expect("a pattern");
    let inherent_impls = inherent_impls();
    let (mut elsewhere, mut count) = (BTreeSet::new(), 0);
    for file in sources() {
        let text = bare(&file);
        let defined = definition.captures_iter(&text).map(|found| found[1].to_owned());
        let defined: BTreeSet<_> = defined.collect();
        let owners = inherent_impls(&text);
        count += owners.len();
        let owners = owners.into_iter().filter(|owner| !defined.contains(owner));
        elsewhere.extend(owners.map(|owner| (owner, file.display().to_string())));
    }
    assert!(count > 0, "inherent impls are found");
    let allowed = |(owner, _): &&(String, String)| IN_SEVERAL_FILES.contains(&owner.as_str());
    let problems = elsewhere.iter().filter(|it| !allowed(it)).map(|(owner, file)| {
        format!("{file} has inherent functions of {owner}, which another file defines")
    });
    let mut problems: Vec<_> = problems.collect();
    let is_left = |name: &str| elsewhere.iter().any(|(owner, _)| owner == name);
    let needless = IN_SEVERAL_FILES.into_iter().filter(|name| !is_left(name));
    problems.extend(needless.map(|name| format!("{name} needs no exception")));
    fail_if_any(&problems);
}

#[test]
fn inherent_impls_are_told_from_those_of_traits() {
    let text = "impl One {}\nimpl<F, P: Fn(u8) -> P> Two<'_, F>\nwhere\n    for<'a> F: Of<&'a u8>,\n{}\n\
                impl fmt::Debug for No {}\nimpl<T> From<T> for No<T> {}\nimpl super::Three {\n}\n\
                fn f() -> impl Fn() {}\n    impl<const N: usize> Four<N> {}\n";
    assert_eq!(inherent_impls()(text), ["One", "Two", "Three", "Four"]);
}

/// A glob would hide which module an import leads to.
#[test]
fn nothing_is_exported_again_by_a_glob() {
    let glob = Regex::new(r"(?m)^\s*pub(?:\([a-z: ]+\))? use [^;]*\*").expect("a pattern");
    let files = sources().filter(|file| glob.is_match(&bare(file)));
    let problems = files.map(|file| format!("{} exports a glob", file.display()));
    fail_if_any(&problems.collect::<Vec<_>>());
}
