//! Words and widths: what documents and comments do not say, how a doc comment begins, how long a
//! line is.

use std::path::Path;

use regex::{Captures, Regex};

use super::documents::documents;
use super::fail_if_any;
use super::files::{all_code, code_of, is_source, is_test, read};

/// Words of a private language that Weir's code and documents once had.
const WORDS: [&str; 17] = [
    "courier",
    "courier's",
    "door",
    "doors",
    "ear",
    "ears",
    "guest",
    "guests",
    "heard",
    "hears",
    "house",
    "librarian",
    "room",
    "rooms",
    "somebody",
    "told",
    "whoever",
];

/// Phrases that are no sentence of a document or comment.
const PHRASES: [&str; 2] = ["Knows nothing of", "what is shown"];

/// Places in which a word has its ordinary meaning, or is a name that users depend on.
const LEGITIMATE: [(&str, &str); 4] = [
    ("CHANGELOG.md", "door"),
    // A file that the test server writes, and a value of the JSON output of `weir explain`.
    ("examples/evil_upstream/main.rs", "heard"),
    ("src/cli/explain/report.rs", "told"),
    ("tests/tidy/words.rs", ""),
];

/// Beginnings that no doc comment has: the first word names the thing.
const BEGINNINGS: [&str; 5] = ["What", "Who", "Whose", "Where", "How"];

const MAX_CODE_COLUMNS: usize = 100;
/// Maximum length of a string that does not excuse a wide line.
const MAX_STRING_BYTES: usize = 40;
const MAX_DOCUMENT_COLUMNS: usize = 120;
const MAX_CELL_CHARS: usize = 200;

/// The words of a line, those of identifiers as well: `next_door` and `NextDoor` have two.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in line.chars() {
        if !c.is_alphabetic() || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        if c.is_alphabetic() {
            words.last_mut().expect("there is one").extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The number of lines of a file that belong to the program; its tests follow them.
fn program_lines(file: &Path, text: &str) -> usize {
    let is_program = is_source(file) && !is_test(file);
    if is_program { code_of(text).lines().count() } else { 0 }
}

fn is_legitimate(file: &str, word: &str) -> bool {
    LEGITIMATE
        .iter()
        .any(|(place, allowed)| *place == file && (*allowed == word || allowed.is_empty()))
}

fn private_words(file: &str, line: &str) -> Vec<String> {
    let words = words(line).into_iter().filter(|word| WORDS.contains(&word.as_str()));
    let phrases = PHRASES.iter().filter(|phrase| line.contains(**phrase));
    let found = words.chain(phrases.map(|phrase| (*phrase).to_owned()));
    found.filter(|word| !is_legitimate(file, word)).collect()
}

#[test]
fn the_private_language_does_not_come_back() {
    let mut problems = Vec::new();
    for file in all_code() {
        let (name, text) = (file.display().to_string(), read(&file));
        let program = program_lines(&file, &text);
        for (number, line) in text.lines().enumerate() {
            // Tests name servers, tools and themselves as they like; their comments speak plainly.
            let is_whole = number < program || line.trim_start().starts_with("//");
            let comment = line.split_once(" // ").map_or("", |(_, comment)| comment);
            for word in private_words(&name, if is_whole { line } else { comment }) {
                problems.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    for document in documents().iter().map(|document| document.display().to_string()) {
        for (number, line) in read(&document).lines().enumerate() {
            for word in private_words(&document, line) {
                problems.push(format!("{document}:{}: {word}", number + 1));
            }
        }
    }
    fail_if_any(&problems);
}

#[test]
fn a_doc_comment_begins_with_the_thing() {
    let mut problems = Vec::new();
    for file in all_code() {
        let text = read(&file);
        let lines: Vec<_> = text.lines().map(str::trim_start).collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(doc) = line.strip_prefix("/// ").or(line.strip_prefix("//! ")) else {
                continue;
            };
            let is_first = at == 0 || !lines[at - 1].starts_with(&line[..3]);
            let word = doc.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
            if is_first && (BEGINNINGS.contains(&word) || doc.starts_with("The same")) {
                problems.push(format!("{}:{}: {doc}", file.display(), at + 1));
            }
        }
    }
    fail_if_any(&problems);
}

#[test]
fn lines_of_code_fit_into_their_columns() {
    let long_only = |found: &Captures| {
        let is_long = found[0].len() > MAX_STRING_BYTES;
        if is_long { String::new() } else { found[0].to_owned() }
    };
    let string = Regex::new(r#""(\\.|[^"\\])*("|\\?$)"#).expect("a pattern");
    let mut problems = Vec::new();
    for file in all_code() {
        let (name, text) = (file.display().to_string(), read(&file));
        let program = program_lines(&file, &text);
        for (number, line) in text.lines().enumerate() {
            // Tests compare texts whole, and the formatter breaks neither strings nor links.
            let is_comment = line.trim_start().starts_with("//");
            let width = if is_comment { line.into() } else { string.replace_all(line, long_only) };
            let width = width.chars().count();
            let is_checked = is_comment || number < program;
            if width > MAX_CODE_COLUMNS && is_checked && !line.contains("://") {
                problems.push(format!("{name}:{}: {width} columns", number + 1));
            }
        }
    }
    fail_if_any(&problems);
}

#[test]
fn lines_of_documents_fit_into_their_columns() {
    let mut problems = Vec::new();
    for document in documents() {
        let mut is_code = false;
        for (number, line) in read(&document).lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            let place = format!("{}:{}", document.display(), number + 1);
            if line.starts_with('|') {
                let cells =
                    line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).chars().count());
                let long = cells.filter(|chars| *chars > MAX_CELL_CHARS);
                problems.extend(long.map(|chars| format!("{place}: a cell of {chars} characters")));
            } else if !is_code && !line.contains("](") && !line.contains("://") {
                let width = line.chars().count();
                if width > MAX_DOCUMENT_COLUMNS {
                    problems.push(format!("{place}: {width} columns"));
                }
            }
        }
    }
    fail_if_any(&problems);
}

#[test]
fn words_are_found_in_identifiers_too() {
    assert_eq!(
        words("next_door NextDoor // the DOOR's"),
        ["next", "door", "next", "door", "the", "door", "s"]
    );
    assert!(private_words("src/x.rs", "// the gateway").is_empty());
    assert_eq!(private_words("src/x.rs", "let open_ear = 1; // told"), ["ear", "told"]);
    assert!(is_legitimate(&Path::new("tests/tidy/words.rs").display().to_string(), "ear"));
}
