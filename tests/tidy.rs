//! Tidiness is a test: floors, headers, sizes, and that the documents name what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/claims.rs"]
mod claims;

/// The rooms by floor. A room may use rooms of lower floors only.
const FLOORS: [&[&str]; 7] = [
    &[
        "cpu_bound",
        "fairness",
        "folder_watch",
        "hex",
        "invisible_chars",
        "jitter",
        "json",
        "line_codec",
        "memory_budget",
        "metrics",
        "regular_file",
        "request_scope",
        "secret",
        "sha256",
        "sse",
        "timestamp",
    ],
    &["jsonrpc"],
    &["mcp"],
    &["audit", "catalog", "guard", "pins", "policy", "upstream"],
    &["gateway"],
    &["admin", "downstream"],
    &["app", "cli", "config"],
];

/// Three floors are not flat: who may use whom there.
const NEIGHBORS: [(&str, &str); 6] = [
    ("sse", "memory_budget"),
    ("line_codec", "memory_budget"),
    ("admin", "downstream"),
    ("app", "config"),
    ("cli", "app"),
    ("cli", "config"),
];

/// The longest file, its tests not counted.
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

/// Whether a file holds tests only.
fn is_test(file: &Path) -> bool {
    let parts = file.iter().map(|part| part.to_string_lossy().into_owned());
    parts.into_iter().any(|part| ["tests", "tests.rs", "testing.rs"].contains(&part.as_str()))
}

/// A source file without its tests.
fn code_of(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

fn room_of(file: &Path) -> String {
    let inside = file.strip_prefix("src").expect("a source file");
    let first = inside.iter().next().expect("a file has a name").to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

fn floor_of(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

fn fail_if_any(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn every_file_says_what_it_is() {
    let folders = ["src", "tests", "benches", "examples"];
    let files = folders.iter().flat_map(|folder| rust_files(folder));
    let bare = files.filter(|file| !read(file).starts_with("//! "));
    fail_if_any(&bare.map(|file| format!("{} has no header", file.display())).collect::<Vec<_>>());
}

#[test]
fn every_room_has_a_floor() {
    let lobby = ["lib", "main"];
    let rooms = rust_files("src").into_iter().map(|file| room_of(&file));
    let homeless = rooms.filter(|room| !lobby.contains(&room.as_str()) && floor_of(room).is_none());
    fail_if_any(&homeless.map(|room| format!("{room} is on no floor")).collect::<Vec<_>>());
}

#[test]
fn rooms_use_lower_floors_only() {
    let mut problems = Vec::new();
    for file in rust_files("src") {
        let room = room_of(&file);
        let Some(floor) = floor_of(&room) else { continue };
        let text = read(&file);
        for (number, line) in code_of(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for used in rooms_in(code) {
                let below = floor_of(&used).is_some_and(|other| other < floor);
                let is_neighbor = NEIGHBORS.contains(&(room.as_str(), used.as_str()));
                if used != room && !below && !is_neighbor {
                    problems.push(format!("{}:{}: {room} uses {used}", file.display(), number + 1));
                }
            }
        }
    }
    fail_if_any(&problems);
}

/// The rooms that a line names by `crate::room` or `crate::{room, …}`.
fn rooms_in(line: &str) -> Vec<String> {
    let mut rooms = Vec::new();
    for rest in line.split("crate::").skip(1) {
        let names = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default(),
            None => rest,
        };
        for name in names.split(',') {
            let end = name.trim().find(|c: char| !c.is_alphanumeric() && c != '_');
            let name = name.trim();
            rooms.push(name[..end.unwrap_or(name.len())].to_owned());
            if !rest.starts_with('{') {
                break;
            }
        }
    }
    rooms.retain(|room| !room.is_empty());
    rooms
}

#[test]
fn eras_stay_in_their_files() {
    // Only the dialects and what they alone use know an era's own words.
    let words =
        ["\"initialize\"", "\"Mcp-Session-Id\"", "\"mcp-session-id\"", "\"server/discover\""];
    let knows = |file: &Path| {
        let name = file.to_string_lossy();
        ["legacy", "modern", "session", "probe", "sse", "era"]
            .iter()
            .any(|word| name.contains(word))
    };
    let files = rust_files("src").into_iter().filter(|file| !knows(file) && !is_test(file));
    let found = files.flat_map(|file| {
        let text = read(&file);
        let code = code_of(&text).to_owned();
        let found = words.iter().filter(|word| code.contains(**word));
        found.map(|word| format!("{} knows {word}", file.display())).collect::<Vec<_>>()
    });
    fail_if_any(&found.collect::<Vec<_>>());
}

#[test]
fn no_file_is_too_long_to_read() {
    let long = rust_files("src").into_iter().filter(|file| !is_test(file)).filter_map(|file| {
        let lines = code_of(&read(&file)).lines().count();
        (lines > MAX_LINES).then(|| format!("{} has {lines} lines", file.display()))
    });
    fail_if_any(&long.collect::<Vec<_>>());
}

#[test]
fn tests_neither_sleep_nor_are_skipped() {
    // Split, so that this file does not find itself.
    let banned = [["#[ign", "ore"], ["#[should_", "panic"], ["thread::sl", "eep"]]
        .map(|parts| parts.concat());
    let files = ["src", "tests"].iter().flat_map(|folder| rust_files(folder));
    let found = files.flat_map(|file| {
        let text = read(&file);
        let found = banned.iter().filter(|word| text.contains(word.as_str()));
        found.map(|word| format!("{}: {word}", file.display())).collect::<Vec<_>>()
    });
    fail_if_any(&found.collect::<Vec<_>>());
}

#[test]
fn the_architecture_names_every_file() {
    let text = read("ARCHITECTURE.md");
    let mut missing: BTreeMap<String, ()> = BTreeMap::new();
    for file in rust_files("src").into_iter().filter(|file| !is_test(file)) {
        let name = file.file_name().expect("a file has a name").to_string_lossy().into_owned();
        if !text.contains(&name) {
            missing.insert(format!("ARCHITECTURE.md does not name {}", file.display()), ());
        }
    }
    fail_if_any(&missing.into_keys().collect::<Vec<_>>());
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut problems = Vec::new();
    for document in
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
    {
        let text = read(document);
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            let outside =
                target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if !outside && !root().join(target).exists() {
                problems.push(format!("{document}: {target} is not there"));
            }
        }
    }
    fail_if_any(&problems);
}

/// Where a file may be opened without `regular_file`: what the kernel provides, what a command's argument names, and
/// what the prompt library checks by itself.
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
    let ways = ["File::open(", "fs::read(", "fs::read_to_string(", "OpenOptions", "File::options("];
    let mut problems = Vec::new();
    for file in rust_files("src").into_iter().filter(|file| !is_test(file)) {
        let text = read(&file);
        let found = ways.iter().find(|way| code_of(&text).contains(**way));
        let may = OPENERS.iter().any(|opener| file == Path::new(opener));
        if let Some(way) = found.filter(|_| !may) {
            problems.push(format!("{}: {way} would wait for a named pipe", file.display()));
        }
    }
    fail_if_any(&problems);
}

/// Where it stands which test shows which row of what an attacker would try.
const ROWS: &str = "tests/it/security.rs";

/// The rows that a test's name begins with: `s02` and `s03` in `s02_s03_what_is_listed`.
fn rows_of(line: &str) -> Vec<String> {
    let name = line.trim_start().trim_start_matches("async ").strip_prefix("fn ");
    let row = |part: &str| {
        let digits = part.strip_prefix('s')?;
        let is_row = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
        is_row.then(|| format!("S-{digits}"))
    };
    name.unwrap_or_default().split('_').map_while(row).collect()
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
        let rows: Vec<_> = read(&file).lines().flat_map(rows_of).collect();
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
    let mut lookups = 0;
    let mut problems = Vec::new();
    for file in rust_files("src/downstream").into_iter().filter(|file| file != table) {
        for line in code_of(&read(&file)).lines() {
            lookups += line.matches("Route::find(").count();
            if line.contains("uri.path()") && !line.contains("Route::find(") {
                problems.push(format!("{} looks at a path by itself: {line}", file.display()));
            }
        }
    }
    fail_if_any(&problems);
    assert!(lookups > 0, "paths are looked up");
}

/// Where it stands which fault and which goal is shown by which test.
const FAULTS: &str = "docs/reliability.md";

/// The rows of faults and goals: a letter, and from where to where. Between them there are none.
const FAULT_ROWS: [(&str, u32, u32); 6] =
    [("F-", 1, 15), ("F-", 20, 37), ("F-", 40, 53), ("F-", 60, 75), ("F-", 80, 101), ("G", 1, 19)];

/// Where it stands what is bounded, by what, and which tests show it.
const LIMITS: &str = "docs/limits.md";
/// How many bounds there are: one that is left out is missed.
const BOUNDS: usize = 79;

#[test]
fn every_bound_is_a_key_or_a_constant_that_is_there_and_is_shown_by_a_test_that_is_there() {
    let page = read("docs/configuration.md");
    let keys: BTreeSet<_> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .filter_map(|line| line.split('`').nth(1))
        .collect();
    let mut tests = BTreeSet::new();
    for file in ["src", "tests"].iter().flat_map(|folder| rust_files(folder)) {
        tests.extend(functions(&read(&file)));
    }
    let (mut problems, mut bounds) = (Vec::new(), 0);
    for row in read(LIMITS).lines().filter_map(|line| line.strip_prefix("| ")).skip(1) {
        let cells: Vec<_> = row.trim_end_matches(" |").split(" | ").collect();
        let [bound, _, what, shown] = cells[..] else {
            problems.push(format!("{LIMITS} has a row of {} cells: {row}", cells.len()));
            continue;
        };
        bounds += 1;
        let quoted = |text: &str| -> Vec<String> {
            text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let named = quoted(what);
        match named.last().filter(|last| last.starts_with("src/")) {
            Some(file) => {
                let text = read(file);
                let lost = named.iter().take(named.len() - 1);
                let lost = lost.filter(|name| !text.contains(&format!("const {name}: ")));
                problems.extend(lost.map(|name| format!("{bound}: {file} has no constant {name}")));
            }
            None => {
                let lost = named.iter().filter(|key| !keys.contains(key.as_str()));
                problems.extend(lost.map(|key| format!("{bound}: there is no key {key}")));
            }
        }
        let shown = quoted(shown);
        let lost = shown.iter().filter(|test| !tests.contains(*test));
        problems.extend(lost.map(|test| format!("{bound}: there is no test {test}")));
        if named.is_empty() || shown.is_empty() {
            problems.push(format!("{bound}: there is no key, no constant or no test"));
        }
    }
    if bounds != BOUNDS {
        problems.push(format!("{LIMITS} has {bounds} rows, not {BOUNDS}"));
    }
    fail_if_any(&problems);
}

/// The names of all functions of a file.
fn functions(text: &str) -> Vec<String> {
    let names = text.split("fn ").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        rest[..end.unwrap_or(rest.len())].to_owned()
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_fault_and_every_goal_has_its_row_and_every_test_in_it_is_there() {
    let text = read(FAULTS);
    let mut rows = BTreeSet::new();
    let mut named = BTreeSet::new();
    for row in text.lines().filter_map(|line| line.strip_prefix("| ")) {
        let cells: Vec<_> = row.split(" | ").collect();
        let [name, _, tests, ..] = cells[..] else { continue };
        rows.insert(name.to_owned());
        let quoted = tests.split('`').skip(1).step_by(2).map(str::to_owned);
        named.extend(quoted.filter(|name| !name.contains(['.', '/', ' ', '-'])));
    }
    let wanted = FAULT_ROWS.iter().flat_map(|(letter, first, last)| {
        (*first..=*last).map(move |number| match *letter {
            "F-" => format!("F-{number:02}"),
            letter => format!("{letter}{number}"),
        })
    });
    let missing = wanted.filter(|row| !rows.contains(row));
    let missing = missing.map(|row| format!("{FAULTS} has no row {row}"));
    let mut there = BTreeSet::new();
    for file in ["src", "tests"].iter().flat_map(|folder| rust_files(folder)) {
        there.extend(functions(&read(&file)));
    }
    let lost =
        named.difference(&there).map(|name| format!("{FAULTS} names {name}, which is no test"));
    let is_row = |name: &String| {
        let digits = name.strip_prefix(['f', 'g']).unwrap_or_default();
        digits.starts_with(|first: char| first.is_ascii_digit())
    };
    let shown = rust_files("tests/faults").into_iter().flat_map(|file| functions(&read(&file)));
    let untold = shown.filter(|name| is_row(name) && !named.contains(name));
    let untold = untold.map(|name| format!("{FAULTS} does not tell of {name}"));
    fail_if_any(&missing.chain(lost).chain(untold).collect::<Vec<_>>());
}
