//! Tidiness is a test: floors, headers, sizes, and that the documents name what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms by floor. A room may use rooms of lower floors only.
const FLOORS: [&[&str]; 7] = [
    &["event_stream", "hex", "hidden", "json", "line", "meter", "moment", "secret", "trail"],
    &["rpc"],
    &["mcp"],
    &["audit", "catalog", "guard", "pins", "policy", "upstream"],
    &["gateway"],
    &["downstream", "ops"],
    &["app", "cli", "config"],
];

/// Two floors are not flat: who may use whom there.
const NEIGHBORS: [(&str, &str); 4] =
    [("ops", "downstream"), ("app", "config"), ("cli", "app"), ("cli", "config")];

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
