//! Imports between the modules of one folder: none in a cycle, and none between the modules of
//! `access` that `gateway` connects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::fail_if_any;
use super::files::sources;
use super::files::{Crate, bare, crates, is_crate_root, is_test, module_path, root, rust_files};
use super::paths::{expand, paths_in};

/// Folder of the modules that do not know each other, and these modules.
const ACCESS: &str = "crates/access/src";
const STRANGERS: [&str; 4] = ["catalog", "guard", "pins", "policy"];

/// Imports between the modules of one folder: for each module, the siblings that it names.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Files with the items of the module whose children are in a folder.
fn owners(folder: &Path) -> Vec<PathBuf> {
    let candidates = [folder.with_extension("rs"), folder.join("lib.rs")];
    candidates.into_iter().filter(|file| root().join(file).exists()).collect()
}

fn imports_in(folder: &Path) -> Imports {
    let parent = module_path(folder);
    let mut modules: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let files = rust_files(folder).into_iter();
    for file in files.filter(|file| !is_test(file) && !is_crate_root(file)) {
        let below = file.strip_prefix(folder).expect("it is below");
        let first = below.iter().next().expect("a name").to_string_lossy();
        modules.entry(first.trim_end_matches(".rs").to_owned()).or_default().push(file);
    }
    // A name that the folder's own file imports leads to the module that has it.
    let below = |path: &[String]| path.strip_prefix(&*parent).map(<[String]>::to_vec);
    let mut origins: BTreeMap<String, String> = BTreeMap::new();
    let texts: String = owners(folder).iter().map(|file| bare(file)).collect();
    for statement in texts.split(';').filter_map(|part| part.split_once("use ")) {
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

/// Source folders of the crates, and folders below them with a module each.
fn folders() -> BTreeSet<PathBuf> {
    let of = |file: PathBuf| file.parent().expect("a file is in a folder").to_owned();
    let roots = crates().iter().map(Crate::sources).collect::<BTreeSet<_>>();
    let folders: BTreeSet<_> =
        sources().map(of).filter(|folder| !owners(folder).is_empty()).collect();
    assert!(roots.is_subset(&folders), "every crate has modules");
    assert!(folders.len() > roots.len(), "modules have folders");
    folders
}

#[test]
fn modules_of_one_folder_do_not_import_each_other_in_a_cycle() {
    let mut problems = Vec::new();
    let mut found = 0;
    for folder in folders() {
        let imports = imports_in(&folder);
        found += imports.values().map(BTreeSet::len).sum::<usize>();
        for (module, used) in cyclic(imports) {
            let used: Vec<_> = used.into_iter().collect();
            problems.push(format!("{}: {module} imports {}", folder.display(), used.join(", ")));
        }
    }
    fail_if_any(&problems);
    assert!(found > 0, "modules import each other");
}

#[test]
fn modules_that_the_gateway_connects_do_not_name_each_other() {
    let imports = imports_in(Path::new(ACCESS));
    let mut problems = Vec::new();
    for module in STRANGERS {
        let used = imports.get(module).unwrap_or_else(|| panic!("{ACCESS} has no {module}"));
        let known = used.iter().filter(|name| STRANGERS.contains(&name.as_str()));
        problems.extend(known.map(|name| format!("{ACCESS}: {module} names {name}")));
    }
    fail_if_any(&problems);
}

#[test]
fn a_cycle_of_imports_is_found() {
    let imports = |pairs: &[(&str, &str)]| -> Imports {
        pairs
            .iter()
            .map(|(from, to)| ((*from).to_owned(), BTreeSet::from([(*to).to_owned()])))
            .collect()
    };
    assert!(cyclic(imports(&[("a", "b"), ("b", "c")])).is_empty());
    assert_eq!(cyclic(imports(&[("a", "b"), ("b", "a")])).len(), 2);
}
