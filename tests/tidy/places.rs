//! Code that stands in certain files only: words of an era, opening of files, looking at paths of
//! requests, sleeping.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;

use super::fail_if_any;
use super::files::{all_code, code_of, read, rust_files, sources};

/// Files that may use the words of one protocol era; no other source file does.
const FILES_OF_AN_ERA: [&str; 8] = [
    "crates/downstream/src/era.rs",
    "crates/downstream/src/legacy.rs",
    "crates/downstream/src/modern.rs",
    "crates/downstream/src/session.rs",
    "crates/mcp/src/methods.rs",
    "crates/upstream/src/session/legacy.rs",
    "crates/upstream/src/session/modern.rs",
    "crates/upstream/src/session/negotiation.rs",
];

/// Words that only one era has: methods, and the beginning of a header, in small letters.
const WORDS_OF_AN_ERA: [&str; 3] = ["\"initialize\"", "\"mcp-session-id", "\"server/discover\""];

/// Files that may open others without `regular_file`: folders, paths that the kernel provides or a
/// command's argument names, and those that the prompt library checks itself.
const OPENERS: [&str; 8] = [
    "crates/base/src/files/private_file.rs",
    "crates/base/src/files/regular_file.rs",
    "crates/downstream/src/http/connection/listener.rs",
    "crates/prompts/src/beneath.rs",
    "crates/prompts/src/folder.rs",
    "crates/upstream/src/process/reaper.rs",
    "src/admin/process.rs",
    "src/cli/query/call.rs",
];

/// The table of routes, and the folder in which nothing else looks at the path of a request.
const ROUTES: &str = "crates/downstream/src/http/routes.rs";
const DOWNSTREAM: &str = "crates/downstream/src";

/// Returns whether a file is in a list. It is no longer among those without a use.
fn is_listed(file: &Path, list: &[&str], idle: &mut BTreeSet<String>) -> bool {
    let name = file.display().to_string();
    idle.remove(&name);
    list.contains(&name.as_str())
}

fn all_of(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|file| (*file).to_owned()).collect()
}

#[test]
fn eras_stay_in_their_files() {
    let (mut problems, mut idle) = (Vec::new(), all_of(&FILES_OF_AN_ERA));
    for file in sources() {
        let text = read(&file);
        let code = code_of(&text).to_lowercase();
        for word in WORDS_OF_AN_ERA.iter().filter(|word| code.contains(**word)) {
            if !is_listed(&file, &FILES_OF_AN_ERA, &mut idle) {
                problems.push(format!("{} knows {word}", file.display()));
            }
        }
    }
    problems.extend(idle.into_iter().map(|file| format!("{file} knows no word of an era")));
    fail_if_any(&problems);
}

#[test]
fn files_of_the_configuration_and_the_state_are_opened_in_one_place() {
    let ways = Regex::new(
        r"\b(?:File::(?:open|options)|fs::(?:\{[^}]*\b)?(?:open|read|read_to_string)|OpenOptions|openat)\b",
    );
    let ways = ways.expect("a pattern");
    let (mut problems, mut idle) = (Vec::new(), all_of(&OPENERS));
    for file in sources() {
        let text = read(&file);
        let Some(way) = ways.find(code_of(&text)) else { continue };
        if !is_listed(&file, &OPENERS, &mut idle) {
            let way = way.as_str();
            problems.push(format!("{}: {way} would wait for a named pipe", file.display()));
        }
    }
    problems.extend(idle.into_iter().map(|file| format!("{file} opens no file")));
    fail_if_any(&problems);
}

#[test]
fn what_is_served_is_found_in_one_table() {
    let path = Regex::new(r"\buri(?:\(\))?\s*\.path(?:_and_query)?\(").expect("a pattern");
    let mut lookups = 0;
    let mut problems = Vec::new();
    let files = rust_files(DOWNSTREAM);
    assert!(files.iter().any(|file| file == Path::new(ROUTES)), "{ROUTES} is there");
    for file in files.into_iter().filter(|file| file != Path::new(ROUTES)) {
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

#[test]
fn tests_neither_sleep_nor_are_skipped() {
    // Split, so that this file does not find itself.
    let skipped = [r"#\[(?:cfg_attr\([^\]]*\b)?ign", r"ore\b|#\[should_", "panic"].concat();
    let sleeping = [r"\bthread::(?:\{[^}]*\b)?sl", r"eep\b"].concat();
    let (skipped, sleeping) = (Regex::new(&skipped), Regex::new(&sleeping));
    let (skipped, sleeping) = (skipped.expect("a pattern"), sleeping.expect("a pattern"));
    let found = all_code().flat_map(|file| {
        let text = read(&file);
        // Servers of examples and benchmarks are slow when they are asked to be.
        let is_ours = ["src", "crates", "tests"].iter().any(|folder| file.starts_with(folder));
        let sleeps = sleeping.find(&text).filter(|_| is_ours);
        let found = skipped.find(&text).into_iter().chain(sleeps);
        found.map(|word| format!("{}: {}", file.display(), word.as_str())).collect::<Vec<_>>()
    });
    fail_if_any(&found.collect::<Vec<_>>());
}
