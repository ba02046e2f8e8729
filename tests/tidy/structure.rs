//! Structure of the crate: names of types, imports between sibling modules, sizes of folders, files
//! of an era.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

use super::{code_of, fail_if_any, is_test, read, root, rust_files};

/// Names that Rust programs give to a type of each module; every other name is unique in the crate.
const GENERIC: [&str; 7] = ["Args", "Error", "Event", "Inner", "Settings", "Shared", "State"];

/// The most source files in one folder, and the folders of which each file is a kind of its own.
const MAX_FILES: usize = 16;

/// Files that may use the words of one protocol era; no other source file does.
const FILES_OF_AN_ERA: [&str; 8] = [
    "src/downstream/era.rs",
    "src/downstream/legacy.rs",
    "src/downstream/modern.rs",
    "src/downstream/session.rs",
    "src/mcp/method_label.rs",
    "src/upstream/session/legacy.rs",
    "src/upstream/session/modern.rs",
    "src/upstream/session/negotiation.rs",
];

/// Words that only one era has: methods and headers.
const WORDS_OF_AN_ERA: [&str; 4] =
    ["\"initialize\"", "\"Mcp-Session-Id\"", "\"mcp-session-id\"", "\"server/discover\""];

/// A source file without its tests and comments.
fn bare(file: &Path) -> String {
    let text = read(file);
    let lines = code_of(&text).lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn sources() -> impl Iterator<Item = PathBuf> {
    rust_files("src").into_iter().filter(|file| !is_test(file))
}

#[test]
fn a_type_has_a_name_of_its_own() {
    let definition =
        Regex::new(r"(?m)^(?:pub(?:\([a-z: ]+\))? )?(?:struct|enum|trait|union|type) (\w+)")
            .expect("a pattern");
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in sources() {
        for found in definition.captures_iter(&bare(&file)) {
            places.entry(found[1].to_owned()).or_default().push(file.display().to_string());
        }
    }
    let shared = places
        .into_iter()
        .filter(|(name, files)| files.len() > 1 && !GENERIC.contains(&name.as_str()));
    fail_if_any(
        &shared
            .map(|(name, files)| format!("{name} is defined in {}", files.join(", ")))
            .collect::<Vec<_>>(),
    );
}

// === Imports ===

/// Imports between the modules of one folder: for each module, the siblings that it names.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The names that a `use` or a path lists at the beginning of `rest`, which follows `::`.
fn names_at(rest: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let first = |text: &str| text.len() - text.trim_start_matches(is_name).len();
    if !rest.starts_with('{') {
        return vec![&rest[..first(rest)]];
    }
    let (mut depth, mut names, mut is_start) = (0, Vec::new(), false);
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => {}
            _ if c.is_whitespace() => continue,
            _ if depth == 1 && is_start => names.push(&rest[at..at + first(&rest[at..])]),
            _ => {}
        }
        is_start = depth == 1 && (c == '{' || c == ',');
    }
    names
}

/// Items of the module `parent` that `text` names, which stands `depth` modules below it.
fn names_of_parent<'a>(text: &'a str, depth: usize, parent: &str) -> Vec<&'a str> {
    let absolute = format!("crate::{parent}::");
    let relative = "super::".repeat(depth);
    let mut names = Vec::new();
    for (at, _) in text.match_indices(&absolute) {
        names.extend(names_at(&text[at + absolute.len()..]));
    }
    for (at, _) in text.match_indices(&relative) {
        let rest = &text[at + relative.len()..];
        if !text[..at].ends_with("::") && !rest.starts_with("super::") {
            names.extend(names_at(rest));
        }
    }
    names
}

fn imports_in(folder: &Path) -> Imports {
    let inside = folder.strip_prefix("src").expect("a source folder");
    let parent = inside.to_string_lossy().replace('/', "::");
    let owner = folder.with_extension("rs");
    let mut modules: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in rust_files(&folder.to_string_lossy()).into_iter().filter(|file| !is_test(file)) {
        let below = file.strip_prefix(folder).expect("it is below");
        let first = below.iter().next().expect("a name").to_string_lossy();
        modules.entry(first.trim_end_matches(".rs").to_owned()).or_default().push(file);
    }
    // A name that the folder's own file passes on leads to the module that has it.
    let mut origins: BTreeMap<String, String> = BTreeMap::new();
    for line in bare(&owner).split(';') {
        let Some((_, path)) = line.split_once("use ") else { continue };
        let path = path.trim().trim_start_matches("self::");
        let Some((module, rest)) = path.split_once("::") else { continue };
        if modules.contains_key(module) && line.contains("pub") {
            let names = names_at(rest);
            origins.extend(names.into_iter().map(|name| (name.to_owned(), module.to_owned())));
        }
    }
    let mut imports = Imports::new();
    for (module, files) in &modules {
        let used = imports.entry(module.clone()).or_default();
        for file in files {
            let depth = file.strip_prefix(folder).expect("it is below").iter().count();
            let text = bare(file);
            let names = names_of_parent(&text, depth, &parent);
            let names =
                names.into_iter().map(|name| origins.get(name).map_or(name, String::as_str));
            used.extend(names.filter(|name| modules.contains_key(*name)).map(str::to_owned));
        }
        used.remove(module);
    }
    imports
}

/// Takes away, again and again, modules that import nothing that is left: what remains is in a
/// cycle or leads to one.
fn cyclic(mut imports: Imports) -> Imports {
    loop {
        let left: BTreeSet<_> = imports.keys().cloned().collect();
        let before = imports.len();
        imports.retain(|_, used| used.intersection(&left).next().is_some());
        let left: BTreeSet<_> = imports.keys().cloned().collect();
        for used in imports.values_mut() {
            used.retain(|name| left.contains(name));
        }
        if imports.len() == before {
            return imports;
        }
    }
}

/// Folders of `src` with a module each.
fn folders() -> BTreeSet<PathBuf> {
    let of = |file: PathBuf| file.parent().expect("a file is in a folder").to_owned();
    let all = sources().map(of).filter(|folder| folder != Path::new("src"));
    all.filter(|folder| root().join(folder.with_extension("rs")).exists()).collect()
}

#[test]
fn modules_of_one_folder_do_not_import_each_other_in_a_cycle() {
    let mut problems = Vec::new();
    for folder in folders() {
        for (module, used) in cyclic(imports_in(&folder)) {
            let used: Vec<_> = used.into_iter().collect();
            problems.push(format!("{}: {module} imports {}", folder.display(), used.join(", ")));
        }
    }
    fail_if_any(&problems);
}

#[test]
fn no_folder_has_more_files_than_a_reader_overlooks() {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for file in sources().filter(|file| file.parent() != Some(Path::new("src"))) {
        *counts.entry(file.parent().expect("a folder").to_owned()).or_default() += 1;
    }
    let large = counts.into_iter().filter(|(_, count)| *count > MAX_FILES);
    fail_if_any(
        &large
            .map(|(folder, count)| format!("{} has {count} files", folder.display()))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn eras_stay_in_their_files() {
    let mut problems = Vec::new();
    let mut idle: BTreeSet<_> = FILES_OF_AN_ERA.into_iter().collect();
    for file in sources() {
        let name = file.display().to_string();
        let text = read(&file);
        let known = WORDS_OF_AN_ERA.iter().filter(|word| code_of(&text).contains(**word));
        for word in known {
            if FILES_OF_AN_ERA.contains(&name.as_str()) {
                idle.remove(name.as_str());
            } else {
                problems.push(format!("{name} knows {word}"));
            }
        }
    }
    problems.extend(idle.into_iter().map(|file| format!("{file} knows no word of an era")));
    fail_if_any(&problems);
}

#[test]
fn imports_are_found_however_they_are_written() {
    let text =
        "use super::{a::B, c};\nuse crate::x::d::E;\nlet f = super::g::h(); use super::super::i;";
    assert_eq!(names_of_parent(text, 1, "x"), ["d", "a", "c", "g"]);
    assert_eq!(names_of_parent(text, 2, "w"), ["i"]);
    let imports = |pairs: &[(&str, &str)]| -> Imports {
        pairs
            .iter()
            .map(|(from, to)| ((*from).to_owned(), BTreeSet::from([(*to).to_owned()])))
            .collect()
    };
    assert!(cyclic(imports(&[("a", "b"), ("b", "c")])).is_empty());
    assert_eq!(cyclic(imports(&[("a", "b"), ("b", "a")])).len(), 2);
}
