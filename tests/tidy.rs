//! Checks of the repository's structure: layers, headers, sizes, and that the documents match the
//! code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

#[path = "tidy/bounds.rs"]
mod bounds;
#[path = "tidy/claims.rs"]
mod claims;
#[path = "tidy/faults.rs"]
mod faults;
#[path = "tidy/structure.rs"]
mod structure;
#[path = "tidy/words.rs"]
mod words;

/// The top-level modules by layer, lowest first. A module may use modules of lower layers only.
const LAYERS: [&[&str]; 8] = [
    &["fairness", "jitter", "suppressible_waker", "sync"],
    &[
        "allowed_addresses",
        "backoff",
        "boot_clock",
        "coalescing_queue",
        "cpu_bound",
        "folder_watch",
        "hex",
        "http_connection",
        "invisible_chars",
        "json",
        "line_codec",
        "memory_budget",
        "metrics",
        "pem",
        "quota",
        "quote",
        "rate_limit",
        "regular_file",
        "request_scope",
        "secret",
        "sha256",
        "sse",
        "timestamp",
    ],
    &["ended_sessions", "jsonrpc", "private_file", "sealing"],
    &["fleet", "mcp", "oauth"],
    &["audit", "catalog", "guard", "pins", "policy", "upstream"],
    &["gateway"],
    &["admin", "downstream"],
    &["app", "cli", "config"],
];

/// The exceptions: a module, and the module of its own layer that it may use.
const SAME_LAYER: [(&str, &str); 8] = [
    ("ended_sessions", "sealing"),
    ("sealing", "private_file"),
    ("sse", "memory_budget"),
    ("line_codec", "memory_budget"),
    ("admin", "downstream"),
    ("app", "config"),
    ("cli", "app"),
    ("cli", "config"),
];

/// The folders with code in Rust.
const FOLDERS: [&str; 6] = ["src", "tests", "benches", "examples", "fuzz", "xtask"];

/// Maximum length of a file, without its tests.
const MAX_LINES: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Rust file below a folder, relative to the root.
fn rust_files(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path.strip_prefix(root()).expect("it is below the root").to_owned());
            }
        }
    }
    files.sort();
    files
}

/// True for files that contain tests only.
fn is_test(file: &Path) -> bool {
    let parts = file.iter().map(|part| part.to_string_lossy().into_owned());
    parts.into_iter().any(|part| ["tests", "tests.rs", "testing.rs"].contains(&part.as_str()))
}

/// A source file without its tests.
fn code_of(text: &str) -> &str {
    let starts = ["mod tests {", "pub(super) mod tests {"];
    let tests = starts.iter().find_map(|start| text.find(&format!("#[cfg(test)]\n{start}")));
    &text[..tests.unwrap_or(text.len())]
}

/// The top-level module that a file belongs to.
fn module_of(file: &Path) -> String {
    let inside = file.strip_prefix("src").expect("a source file");
    let first = inside.iter().next().expect("a file has a name").to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

fn fail_if_any(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn every_file_says_what_it_is() {
    let files = FOLDERS.iter().flat_map(|folder| rust_files(folder));
    let bare = files.filter(|file| !read(file).starts_with("//! "));
    fail_if_any(&bare.map(|file| format!("{} has no header", file.display())).collect::<Vec<_>>());
}

#[test]
fn every_module_has_a_layer() {
    let crate_roots = ["lib", "main"];
    let modules = rust_files("src").into_iter().map(|file| module_of(&file));
    let unplaced = modules
        .filter(|module| !crate_roots.contains(&module.as_str()) && layer_of(module).is_none());
    fail_if_any(&unplaced.map(|module| format!("{module} has no layer")).collect::<Vec<_>>());
}

#[test]
fn modules_use_lower_layers_only() {
    let mut problems = Vec::new();
    for file in rust_files("src") {
        let module = module_of(&file);
        let Some(layer) = layer_of(&module) else { continue };
        let text = read(&file);
        let lines = code_of(&text).lines().map(|line| line.split("//").next().unwrap_or_default());
        let code = lines.collect::<Vec<_>>().join("\n");
        let paths = paths_in(&code, &module_path(&file));
        let used: BTreeSet<_> =
            paths.into_iter().filter_map(|path| path.into_iter().next()).collect();
        for used in used {
            let is_lower = layer_of(&used).is_some_and(|other| other < layer);
            let is_exception = SAME_LAYER.contains(&(module.as_str(), used.as_str()));
            if used != module && !is_lower && !is_exception {
                problems.push(format!("{}: {module} uses {used}", file.display()));
            }
        }
    }
    fail_if_any(&problems);
}

/// The module that a source file is: `mcp`, `name` for `src/mcp/name.rs`.
fn module_path(file: &Path) -> Vec<String> {
    let inside = file.strip_prefix("src").expect("a source file").with_extension("");
    inside.iter().map(|part| part.to_string_lossy().into_owned()).collect()
}

/// The paths, from the root of the crate, that `text` of `module` names by `crate::` or `super::`.
fn paths_in(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let is_start = |at: &usize| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let starts = ["crate::", "super::"].into_iter().flat_map(|start| text.match_indices(start));
    let starts: BTreeSet<_> = starts.map(|(at, _)| at).filter(is_start).collect();
    let mut paths = Vec::new();
    let mut end = 0;
    for at in starts {
        // The rest of a path, and the items of a group, are parts of it.
        let is_part = text[..at].ends_with("::") || at < end;
        if !is_part {
            let after = text[at..].trim_start_matches("super::").trim_start_matches("crate::");
            end = if after.starts_with('{') {
                text.len() - after.len() + group(after).len()
            } else {
                at
            };
            paths.extend(expand(module, &text[at..]).into_iter().map(|(path, _)| path));
        }
    }
    paths
}

/// The group in braces with which `text` begins.
fn group(text: &str) -> &str {
    let mut depth = 0;
    let end = text.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '{') - i32::from(*c == '}');
        depth == 0
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// The paths, from the root of the crate, that a path or group in `module` stands for, each with
/// the name that it gives to its item.
fn expand(module: &[String], text: &str) -> Vec<(Vec<String>, String)> {
    let text = text.trim_start();
    if text.starts_with('{') {
        let (mut depth, inner) = (0, &group(text)[1..]);
        let items = inner.split(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && c == ','
        });
        let items = items.filter(|item| !item.trim().is_empty());
        return items.flat_map(|item| expand(module, item)).collect();
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = match name {
        "crate" => Vec::new(),
        "super" => module[..module.len().saturating_sub(1)].to_vec(),
        "self" | "" => module.to_vec(),
        name => module.iter().cloned().chain([name.to_owned()]).collect(),
    };
    match rest.strip_prefix("::") {
        Some(rest) => expand(&path, rest),
        None => {
            let other = rest.trim_start().strip_prefix("as ").map(|name| name.trim().to_owned());
            let name = other.or_else(|| path.last().cloned()).unwrap_or_default();
            vec![(path, name)]
        }
    }
}

#[test]
fn no_file_is_too_long_to_read() {
    let folders = FOLDERS.into_iter().filter(|folder| *folder != "tests");
    let files = folders.flat_map(rust_files);
    let long = files.filter(|file| !is_test(file)).filter_map(|file| {
        let lines = code_of(&read(&file)).lines().count();
        (lines > MAX_LINES).then(|| format!("{} has {lines} lines", file.display()))
    });
    fail_if_any(&long.collect::<Vec<_>>());
}

#[test]
fn tests_neither_sleep_nor_are_skipped() {
    // Split, so that this file does not find itself.
    let skipped = [r"#\[(?:cfg_attr\([^\]]*\b)?ign", r"ore\b|#\[should_", "panic"].concat();
    let sleeping = [r"\bthread::(?:\{[^}]*\b)?sl", r"eep\b"].concat();
    let (skipped, sleeping) = (Regex::new(&skipped), Regex::new(&sleeping));
    let (skipped, sleeping) = (skipped.expect("a pattern"), sleeping.expect("a pattern"));
    let found = FOLDERS.into_iter().flat_map(rust_files).flat_map(|file| {
        let text = read(&file);
        // Servers of examples and benchmarks are slow when they are asked to be.
        let may_sleep = !file.starts_with("src") && !file.starts_with("tests");
        let sleeps = sleeping.find(&text).filter(|_| !may_sleep);
        let found = skipped.find(&text).into_iter().chain(sleeps);
        found.map(|word| format!("{}: {}", file.display(), word.as_str())).collect::<Vec<_>>()
    });
    fail_if_any(&found.collect::<Vec<_>>());
}

#[test]
fn tests_of_a_file_are_last() {
    // Other checks end where the tests begin.
    let item =
        Regex::new(r"(?m)^(?:pub|use|mod|struct|enum|trait|impl|const|static|fn|async fn)\b");
    let item = item.expect("a pattern");
    let files = rust_files("src").into_iter().filter(|file| {
        let text = read(file);
        let tests = &text[code_of(&text).len()..];
        item.find_iter(tests).count() > 1
    });
    fail_if_any(&files.map(|file| format!("{} goes on", file.display())).collect::<Vec<_>>());
}

/// The document that describes the modules.
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// The modules that ARCHITECTURE.md describes: those at the top level, and those with a folder of
/// their own, as paths below `src` without an extension.
fn described_modules() -> BTreeSet<String> {
    let files = rust_files("src").into_iter().filter(|file| !is_test(file));
    let paths = files.filter_map(|file| file.strip_prefix("src").ok().map(Path::to_owned));
    let mut modules = BTreeSet::new();
    for path in paths.filter(|path| !["lib.rs", "main.rs"].map(Path::new).contains(&&**path)) {
        let folders = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        modules.extend(folders.map(|folder| folder.display().to_string()));
        if path.iter().count() == 1 {
            modules.insert(path.with_extension("").display().to_string());
        }
    }
    modules
}

#[test]
fn the_architecture_names_every_module() {
    let text = read(ARCHITECTURE);
    // A module is named in the first cell of a row, perhaps with others.
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let names: BTreeSet<_> = cells
        .flat_map(|cell| cell.split(", "))
        .map(|name| name.trim_matches('`').to_owned())
        .collect();
    let modules = described_modules();
    let missing = modules.difference(&names);
    let missing = missing.map(|module| format!("{ARCHITECTURE} does not name {module}"));
    let is_path = |name: &&String| {
        name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'/'))
    };
    let gone = names.difference(&modules).filter(is_path);
    let gone = gone.map(|name| format!("{ARCHITECTURE} names {name}, which is no module"));
    fail_if_any(&missing.chain(gone).collect::<Vec<_>>());
}

/// Markdown without its fenced examples and its code spans.
fn without_code(text: &str) -> String {
    let prose: String = text.split("```").step_by(2).collect();
    prose.split('`').step_by(2).collect()
}

/// The documents: those at the root, in `docs`, and beside what they describe.
fn documents() -> Vec<PathBuf> {
    let mut documents = Vec::new();
    for folder in ["", "benches", "deploy", "docs", "docs/decisions", "examples"] {
        for entry in fs::read_dir(root().join(folder)).expect("the folder is there") {
            let path = entry.expect("the folder can be read").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                documents.push(path.strip_prefix(root()).expect("it is below the root").to_owned());
            }
        }
    }
    documents.sort();
    documents
}

/// The anchors of the headings of a document, each the first of its name.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose: String = text.split("```").step_by(2).collect();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let headings = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let is_part = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    let anchor = |text: String| text.chars().filter(is_part).collect::<String>().replace(' ', "-");
    headings.map(anchor).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut problems = Vec::new();
    for document in documents() {
        let text = without_code(&read(&document));
        let folder = document.parent().unwrap_or(Path::new(""));
        // A link with its target elsewhere would not be checked below.
        if let Some(line) = text.lines().find(|line| line.starts_with('[') && line.contains("]: "))
        {
            problems.push(format!("{}: a reference link: {line}", document.display()));
        }
        for link in text.split("](").skip(1) {
            let target = link.split(')').next().unwrap_or_default();
            let (target, anchor) = target.split_once('#').unwrap_or((target, ""));
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let path = if target.is_empty() { document.clone() } else { folder.join(target) };
            if !root().join(&path).exists() {
                problems.push(format!("{}: {target} is not there", document.display()));
            } else if !anchor.is_empty() && !anchors(&read(&path)).contains(anchor) {
                problems.push(format!("{}: {target}#{anchor} is not there", document.display()));
            }
        }
    }
    fail_if_any(&problems);
}

/// Files that may open others without `regular_file`: paths that the kernel provides or a command's
/// argument names, and those that the prompt library checks itself.
const OPENERS: [&str; 8] = [
    "src/cli/query/call.rs",
    "src/downstream/http/connection/listener.rs",
    "src/admin/listener.rs",
    "src/admin/process.rs",
    "src/regular_file.rs",
    "src/upstream/connect.rs",
    "src/upstream/process/reaper.rs",
    "src/upstream/library/beneath.rs",
];

#[test]
fn files_of_the_configuration_and_the_state_are_opened_in_one_place() {
    let ways = Regex::new(
        r"\b(?:File::(?:open|options)|fs::(?:\{[^}]*\b)?(?:read|read_to_string)|OpenOptions|openat)\b",
    );
    let ways = ways.expect("a pattern");
    let mut problems = Vec::new();
    for file in rust_files("src").into_iter().filter(|file| !is_test(file)) {
        let text = read(&file);
        let found = ways.find(code_of(&text)).map(|way| way.as_str());
        let may = OPENERS.iter().any(|opener| file == Path::new(opener));
        if let Some(way) = found.filter(|_| !may) {
            problems.push(format!("{}: {way} would wait for a named pipe", file.display()));
        }
    }
    fail_if_any(&problems);
}

/// The table of attacks and the tests that show each row.
const ROWS: &str = "tests/it/security.rs";

/// The rows that a test's name begins with: `s02` and `s03` in `s02_s03_what_is_listed`.
fn rows_of(name: &str) -> Vec<String> {
    let row = |part: &str| {
        let digits = part.strip_prefix('s')?;
        let is_row = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
        is_row.then(|| format!("S-{digits}"))
    };
    name.split('_').map_while(row).collect()
}

#[test]
fn every_row_of_what_an_attacker_would_try_has_its_tests_where_the_table_says() {
    let text = read(ROWS);
    let mut told = BTreeSet::new();
    for row in text.lines().filter_map(|line| line.strip_prefix("//! | S-")) {
        let cells: Vec<_> = row.split(" | ").collect();
        for name in cells[0].split(", ").map(|name| format!("S-{}", name.trim_start_matches("S-")))
        {
            let files = cells[2].split('`').skip(1).step_by(2);
            told.extend(files.map(|file| (name.clone(), file.to_owned())));
        }
    }
    let mut found = BTreeSet::new();
    for file in ["src", "tests"].iter().flat_map(|folder| rust_files(folder)) {
        let rows: Vec<_> = tests_of(&read(&file)).iter().flat_map(|test| rows_of(test)).collect();
        found.extend(rows.into_iter().map(|row| (row, file.display().to_string())));
    }
    let missing = told.difference(&found);
    let missing = missing.map(|(row, file)| format!("{file} has no test of {row}"));
    let untold = found.difference(&told);
    let untold = untold.map(|(row, file)| format!("{ROWS} does not tell of {row} in {file}"));
    fail_if_any(&missing.chain(untold).collect::<Vec<_>>());
}

#[test]
fn what_is_served_is_found_in_one_table() {
    let table = Path::new("src/downstream/http/routes.rs");
    let path = Regex::new(r"\buri(?:\(\))?\s*\.path(?:_and_query)?\(").expect("a pattern");
    let mut lookups = 0;
    let mut problems = Vec::new();
    for file in rust_files("src/downstream").into_iter().filter(|file| file != table) {
        let text = read(&file);
        let code = code_of(&text);
        for found in path.find_iter(code) {
            if code[..found.start()].ends_with("Route::find(&state.settings, parts.") {
                lookups += 1;
            } else {
                let number = code[..found.start()].lines().count();
                problems.push(format!("{}:{number} looks at a path by itself", file.display()));
            }
        }
    }
    fail_if_any(&problems);
    assert!(lookups > 0, "paths are looked up");
}

/// The names of all functions of a file.
fn functions(text: &str) -> Vec<String> {
    let names = text.split("fn ").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        rest[..end.unwrap_or(rest.len())].to_owned()
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// The tests of a file.
fn tests_of(text: &str) -> Vec<String> {
    let (mut tests, mut is_test) = (Vec::new(), false);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text = lines.collect::<Vec<_>>().join("\n");
    for attribute in text.split("#[").skip(1) {
        is_test |= ["test]", "tokio::test"].iter().any(|test| attribute.starts_with(test));
        if attribute.contains("fn ") && std::mem::take(&mut is_test) {
            tests.extend(functions(attribute).into_iter().take(1));
        }
    }
    tests
}

/// The tests of the crate.
fn all_tests() -> BTreeSet<String> {
    let files = ["src", "tests"].iter().flat_map(|folder| rust_files(folder));
    files.flat_map(|file| tests_of(&read(&file))).collect()
}

/// The parts of a text that stand in backquotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The rows of all tables of a document, without their headings.
fn table_rows(text: &str) -> Vec<String> {
    let is_rule = |line: &str| line.starts_with("|--") || line.starts_with("| --");
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let is_row = |number: &usize| {
        let next = lines.get(number + 1).copied().unwrap_or_default();
        lines[*number].starts_with('|') && !is_rule(lines[*number]) && !is_rule(next)
    };
    (0..lines.len()).filter(is_row).map(|number| lines[number].to_owned()).collect()
}
