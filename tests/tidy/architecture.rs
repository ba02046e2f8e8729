//! The document that describes the crates and their modules names each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::documents::quoted;
use super::fail_if_any;
use super::files::{Crate, crates, is_test, module_path, read};

/// The document that describes the modules.
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Modules by crate, as paths with slashes.
type Modules = BTreeMap<String, BTreeSet<String>>;

/// All modules of a crate without its tests, those with a folder only included.
fn modules(one: &Crate) -> BTreeSet<String> {
    let files = one.files().into_iter().filter(|file| !is_test(file));
    let paths = files.map(|file| module_path(&file));
    let with_parents = paths.flat_map(|path| {
        let parts = 1..=path.len();
        parts.map(|parts| path[..parts].join("/")).collect::<Vec<_>>()
    });
    let modules: BTreeSet<_> = with_parents.collect();
    assert!(!modules.is_empty(), "{} has modules", one.name);
    modules
}

/// The modules that the tables of each crate name. The tables of a crate stand under a heading that
/// is its name in backquotes; the first cell of a row names modules, perhaps several.
fn described(text: &str) -> Modules {
    let mut found = Modules::new();
    let mut name = None;
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            name = crate_of(heading.trim_start_matches('#').trim());
            found.extend(name.clone().map(|name| (name, BTreeSet::new())));
        } else if let (Some(name), Some(cell)) = (&name, line.strip_prefix("| `")) {
            let cell = format!("`{}", cell.split(" | ").next().unwrap_or_default());
            let paths = quoted(&cell).into_iter().filter(|path| is_path(path));
            found.entry(name.clone()).or_default().extend(paths);
        }
    }
    found
}

/// The crate that a heading names: ``gateway`` or ``weir-gateway``.
fn crate_of(heading: &str) -> Option<String> {
    let name = heading.strip_prefix('`')?.split('`').next()?;
    is_path(name.strip_prefix("weir-").unwrap_or(name))
        .then(|| name.strip_prefix("weir-").unwrap_or(name).to_owned())
}

fn is_path(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'/'))
}

#[test]
fn the_architecture_names_every_crate_and_module() {
    let mut described = described(&read(ARCHITECTURE));
    let mut problems = Vec::new();
    for one in crates() {
        let Some(named) = described.remove(&one.name) else {
            problems.push(format!("{ARCHITECTURE} has no heading `{}`", one.name));
            continue;
        };
        let modules = modules(&one);
        let roots = modules.iter().filter(|path| Path::new(path).iter().count() == 1);
        let missing = roots.filter(|module| !named.contains(*module));
        problems.extend(
            missing.map(|module| format!("{ARCHITECTURE} does not name {module} of {}", one.name)),
        );
        let gone = named.difference(&modules);
        problems
            .extend(gone.map(|name| format!("{ARCHITECTURE}: {} has no module {name}", one.name)));
    }
    let unknown = described.into_keys();
    problems.extend(unknown.map(|name| format!("{ARCHITECTURE}: there is no crate {name}")));
    fail_if_any(&problems);
}

#[test]
fn modules_are_named_in_the_first_cells_of_a_crates_tables() {
    let text = "# Crates\n| `no` | here |\n### `gateway`\nIt has `none`.\n| module | |\n|---|---|\n\
                | `request` | `admit` |\n| `a/b`, `c` | |\n| `Type` of `d` |\n## `weir-mcp`: data\n\
                | `uri` | |\n## Tasks\n| `tokio` | |\n";
    let modules: Vec<_> = described(text).into_iter().collect();
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected: [(String, BTreeSet<String>); 2] = [
        ("gateway".to_owned(), set(&["a/b", "c", "d", "request"])),
        ("mcp".to_owned(), set(&["uri"])),
    ];
    assert_eq!(modules, expected);
}
