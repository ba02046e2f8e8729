//! Crates: which one may use which, and where their dependencies come from.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use toml::Table;

use super::fail_if_any;
use super::files::{Crate, PROGRAM, all_code, crates, is_source, read};

/// For each library, lowest first, the libraries that it uses; ARCHITECTURE.md has the picture.
/// The program may use all of them.
const PICTURE: [(&str, &[&str]); 11] = [
    ("base", &[]),
    ("mcp", &["base"]),
    ("oauth", &["base"]),
    ("fleet", &["base"]),
    ("prompts", &["base"]),
    ("record", &["base", "mcp"]),
    ("access", &["base", "fleet", "mcp"]),
    ("upstream", &["base", "mcp", "oauth", "prompts"]),
    // Of `oauth` the number of a sign-in, of `fleet` the lists of other replicas.
    ("gateway", &["access", "base", "fleet", "mcp", "oauth", "record", "upstream"]),
    ("downstream", &["access", "base", "fleet", "gateway", "mcp", "record", "upstream"]),
    ("config", &["access", "base", "downstream", "fleet", "mcp", "oauth", "record", "upstream"]),
];

/// Packages of others that one crate keeps from all others: no other crate uses them outside of its
/// tests.
const KEPT: [(&str, &str); 4] = [
    ("clap", PROGRAM),
    ("rcgen", "fleet"),
    ("redis", "fleet"),
    ("rustls-native-certs", "upstream"),
];

/// The crate that knows no HTTP, and the packages with which it could.
const WITHOUT_HTTP: (&str, [&str; 3]) = ("gateway", ["hyper", "hyper-util", "http-body-util"]);

/// Manifests of packages beside the crates that use the versions of the workspace. The examples do
/// not: `./dev run` builds two of them, with few features.
const OTHER_MANIFESTS: [&str; 1] = ["fuzz/Cargo.toml"];

/// Tables of a manifest, or of one of its targets, that name packages.
const TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

fn manifest(path: impl AsRef<std::path::Path>) -> Table {
    let path = path.as_ref();
    toml::from_str(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn table<'a>(manifest: &'a Table, name: &str) -> Option<&'a Table> {
    manifest.get(name)?.as_table()
}

/// Names in one table of dependencies.
fn names(manifest: &Table, name: &str) -> BTreeSet<String> {
    table(manifest, name).into_iter().flat_map(|table| table.keys().cloned()).collect()
}

/// The libraries of Weir among packages.
fn libraries(names: &BTreeSet<String>) -> BTreeSet<String> {
    names.iter().filter_map(|name| name.strip_prefix("weir-")).map(str::to_owned).collect()
}

#[test]
fn crates_use_each_other_as_in_the_picture() {
    let mut picture: BTreeMap<_, _> = PICTURE.into_iter().collect();
    let mut problems = Vec::new();
    for library in crates().into_iter().filter(|library| library.name != PROGRAM) {
        let Crate { name, .. } = &library;
        let Some(allowed) = picture.remove(name.as_str()) else {
            problems.push(format!("{name} is not in the picture"));
            continue;
        };
        let allowed: BTreeSet<_> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let manifest = manifest(library.manifest());
        let used = libraries(&names(&manifest, "dependencies"));
        let unplanned = used.difference(&allowed);
        problems.extend(unplanned.map(|used| format!("{name} may not use {used}")));
        let idle = allowed.difference(&used);
        problems.extend(idle.map(|other| format!("{name} may use {other}, and does not")));
        // A crate may be a dependency of its own tests: with another feature.
        let in_tests = libraries(&names(&manifest, "dev-dependencies"));
        let unplanned = in_tests.difference(&allowed).filter(|used| *used != name);
        problems.extend(unplanned.map(|used| format!("tests of {name} may not use {used}")));
    }
    problems.extend(picture.into_keys().map(|name| format!("there is no crate {name}")));
    fail_if_any(&problems);
}

#[test]
fn the_picture_is_read_from_below() {
    for (number, (name, used)) in PICTURE.iter().enumerate() {
        let lower: Vec<_> = PICTURE[..number].iter().map(|(name, _)| *name).collect();
        assert!(used.iter().all(|used| lower.contains(used)), "{name} uses lower crates");
        assert!(used.is_sorted(), "{name}");
    }
}

#[test]
fn some_packages_are_used_by_one_crate() {
    let used: BTreeMap<_, _> = crates()
        .into_iter()
        .map(|one| (names(&manifest(one.manifest()), "dependencies"), one.name))
        .map(|(used, name)| (name, used))
        .collect();
    let mut problems = Vec::new();
    for (package, keeper) in KEPT {
        let users = used.iter().filter(|(_, used)| used.contains(package));
        let users: Vec<_> = users.map(|(name, _)| name.as_str()).collect();
        if users != [keeper] {
            problems.push(format!("{package} is for {keeper}: {} use it", users.join(", ")));
        }
    }
    let (name, packages) = WITHOUT_HTTP;
    let known = packages.iter().filter(|package| used[name].contains(**package));
    problems.extend(known.map(|package| format!("{name} uses {package}")));
    fail_if_any(&problems);
}

#[test]
fn packages_come_from_the_table_of_the_workspace() {
    let root = manifest("Cargo.toml");
    let workspace = table(&root, "workspace").expect("a workspace");
    let mut idle = names(workspace, "dependencies");
    assert!(!idle.is_empty(), "the workspace has a table of packages");
    let manifests = crates().into_iter().map(|one| one.manifest());
    let manifests = manifests.chain(OTHER_MANIFESTS.into_iter().map(Into::into));
    let mut problems = Vec::new();
    for path in manifests {
        let manifest = manifest(&path);
        let targets = table(&manifest, "target").into_iter().flatten();
        let targets = targets.filter_map(|(_, target)| target.as_table());
        let tables = std::iter::once(&manifest).chain(targets);
        for (name, entry) in
            tables.flat_map(|one| TABLES.map(|name| table(one, name))).flatten().flatten()
        {
            let inherits = entry.get("workspace").and_then(toml::Value::as_bool) == Some(true);
            // The program is the root of the workspace.
            if !inherits && name != PROGRAM {
                problems.push(format!("{}: {name} is not of the workspace", path.display()));
            }
            idle.remove(name);
        }
    }
    problems.extend(idle.into_iter().map(|name| format!("no crate uses {name}")));
    fail_if_any(&problems);
}

/// A feature of a dependency would be in the program as well.
#[test]
fn only_tests_use_what_is_for_tests_of_other_crates() {
    let mut problems = Vec::new();
    for one in crates() {
        let manifest = manifest(one.manifest());
        let of_tests = |entry: &toml::Value| {
            let features = entry.get("features").and_then(toml::Value::as_array);
            features.is_some_and(|all| all.iter().any(|one| one.as_str() == Some("testing")))
        };
        let entries = table(&manifest, "dependencies").into_iter().flatten();
        let found = entries.filter(|(_, entry)| of_tests(entry));
        problems.extend(found.map(|(name, _)| format!("{} has `testing` of {name}", one.name)));
        let features = table(&manifest, "features").into_iter().flatten();
        let others = features.filter(|(name, of)| {
            *name != "testing" || of.as_array().is_none_or(|of| !of.is_empty())
        });
        problems.extend(others.map(|(name, _)| format!("{} has a feature {name}", one.name)));
    }
    fail_if_any(&problems);
}

#[test]
fn every_crate_has_the_lints_of_the_workspace() {
    let without = crates().into_iter().filter(|one| {
        let manifest = manifest(one.manifest());
        let lints = table(&manifest, "lints").and_then(|lints| lints.get("workspace")?.as_bool());
        lints != Some(true)
    });
    fail_if_any(&without.map(|one| format!("{} has not", one.name)).collect::<Vec<_>>());
}

#[test]
fn an_item_is_private_or_visible_to_its_parent_or_its_crate_or_all() {
    // Split, so that this file does not find itself.
    let narrow = Regex::new(&[r"\bpub\s*\(\s*", r"in\b"].concat()).expect("a pattern");
    let files = all_code().filter(|file| is_source(file) || file.starts_with("tests"));
    let found = files.filter(|file| narrow.is_match(&read(file)));
    let found = found.map(|file| format!("{}: a visibility with a path", file.display()));
    fail_if_any(&found.collect::<Vec<_>>());
}
