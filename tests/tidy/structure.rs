//! Structure of the crate: names of types, imports between sibling modules, sizes of folders, files
//! of an era.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

use super::{code_of, expand, fail_if_any, is_test, module_path, paths_in, read, root, rust_files};

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
    "src/mcp/methods.rs",
    "src/upstream/session/legacy.rs",
    "src/upstream/session/modern.rs",
    "src/upstream/session/negotiation.rs",
];

/// Words that only one era has: methods, and the beginning of a header, in small letters.
const WORDS_OF_AN_ERA: [&str; 3] = ["\"initialize\"", "\"mcp-session-id", "\"server/discover\""];

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
        Regex::new(r"(?m)^(?:type|pub(?:\([a-z: ]+\))? type|\s*(?:pub(?:\([a-z: ]+\))? )?(?:unsafe )?(?:struct|enum|trait|union)) (\w+)")
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

/// A glob would hide which module an import leads to.
#[test]
fn nothing_is_exported_again_by_a_glob() {
    let glob = Regex::new(r"(?m)^\s*pub(?:\([a-z: ]+\))? use [^;]*\*").expect("a pattern");
    let files = sources().filter(|file| glob.is_match(&bare(file)));
    fail_if_any(
        &files.map(|file| format!("{} exports a glob", file.display())).collect::<Vec<_>>(),
    );
}

/// The documents that a newcomer reads first have a size limit.
#[test]
fn documents_to_begin_with_are_short() {
    let too_long = [("README.md", 10_000), ("ARCHITECTURE.md", 30 * 1024)]
        .into_iter()
        .map(|(name, most)| (name, read(name).len(), most))
        .filter(|(_, length, most)| length > most);
    let problems = too_long.map(|(name, length, most)| format!("{name}: {length} of {most} bytes"));
    fail_if_any(&problems.collect::<Vec<_>>());
}

#[test]
fn locks_come_from_one_module() {
    let others = sources().filter(|file| file != Path::new("src/sync.rs"));
    let files = others.filter(|file| bare(file).contains("PoisonError"));
    fail_if_any(
        &files.map(|file| format!("{}: use crate::sync", file.display())).collect::<Vec<_>>(),
    );
}

// === Imports ===

/// Imports between the modules of one folder: for each module, the siblings that it names.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn imports_in(folder: &Path) -> Imports {
    let inside = folder.strip_prefix("src").expect("a source folder");
    let parent: Vec<_> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let owner = folder.with_extension("rs");
    let mut modules: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in rust_files(&folder.to_string_lossy()).into_iter().filter(|file| !is_test(file)) {
        let below = file.strip_prefix(folder).expect("it is below");
        let first = below.iter().next().expect("a name").to_string_lossy();
        modules.entry(first.trim_end_matches(".rs").to_owned()).or_default().push(file);
    }
    // A name that the folder's own file imports leads to the module that has it.
    let below = |path: &[String]| path.strip_prefix(&*parent).map(<[String]>::to_vec);
    let mut origins: BTreeMap<String, String> = BTreeMap::new();
    for statement in bare(&owner).split(';').filter_map(|part| part.split_once("use ")) {
        let path = statement.1.trim().trim_start_matches("self::");
        for (path, name) in expand(&parent, path) {
            match below(&path).as_deref() {
                Some([module, _, ..]) if modules.contains_key(module) => {
                    origins.insert(name, module.clone())
                }
                _ => None,
            };
        }
    }
    let mut imports = Imports::new();
    for (module, files) in &modules {
        let used = imports.entry(module.clone()).or_default();
        for file in files {
            let paths = paths_in(&bare(file), &module_path(file));
            let names = paths.iter().filter_map(|path| below(path)?.into_iter().next());
            let names = names.map(|name| origins.get(&name).cloned().unwrap_or(name));
            used.extend(names.filter(|name| modules.contains_key(name)));
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
        let code = code_of(&text).to_lowercase();
        let known = WORDS_OF_AN_ERA.iter().filter(|word| code.contains(**word));
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
    let text = "use super::{a::B, c};\nuse crate::x::d::E;\nlet f = super::g::h::<I>();\n\
                use crate::{\n    j::{self, K},\n    x::{l as m, super::n},\n};\nuse super::super::o;";
    let paths = paths_in(text, &["x", "y"].map(str::to_owned));
    let paths: Vec<_> = paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["x::a::B", "x::c", "x::d::E", "x::g::h", "j", "j::K", "x::l", "n", "o"]);
    let names = expand(&["x".to_owned()], "{a::B as C, d::{E}}").into_iter().map(|(_, name)| name);
    assert_eq!(names.collect::<Vec<_>>(), ["C", "E"]);
    let imports = |pairs: &[(&str, &str)]| -> Imports {
        pairs
            .iter()
            .map(|(from, to)| ((*from).to_owned(), BTreeSet::from([(*to).to_owned()])))
            .collect()
    };
    assert!(cyclic(imports(&[("a", "b"), ("b", "c")])).is_empty());
    assert_eq!(cyclic(imports(&[("a", "b"), ("b", "a")])).len(), 2);
}
