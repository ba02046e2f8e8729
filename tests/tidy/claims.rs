//! Check of `tests/claims.toml`, which names the tests that show each sentence of the documents
//! about Weir's behavior: each sentence has a row, and the sentences and tests of all rows exist.
//! Whether a test shows its sentence is for a reviewer to judge.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Deserialize;

use super::documents::documents;
use super::files::{code_of, read, sources};
use super::test_names::{functions, test_files, tests_of};
use super::{bounds, fail_if_any, faults};

/// The table of sentences and the tests that show them.
const CLAIMS: &str = "tests/claims.toml";

/// The documents in which each sentence has a row.
const DOCUMENTS: [&str; 21] = [
    "README.md",
    "SECURITY.md",
    "deploy/README.md",
    "docs/access-control.md",
    "docs/cli.md",
    "docs/clients.md",
    "docs/configuration.md",
    "docs/identity-providers.md",
    "docs/limitations.md",
    "docs/limits.md",
    "docs/operations.md",
    "docs/prompt-library.md",
    "docs/release.md",
    "docs/reliability.md",
    "docs/replicas.md",
    "docs/resource-uris.md",
    "docs/sign-in.md",
    "docs/start.md",
    "docs/troubleshooting.md",
    "docs/uninstall.md",
    "docs/writing-servers.md",
];

/// Documents of `docs` without rows: figures, which are measured.
const FIGURES: [&str; 2] = ["docs/performance.md", "docs/sizing.md"];

/// Reasons for which a sentence needs no row.
const REASONS: [&str; 7] =
    ["navigation", "example", "meaning", "advice", "elsewhere", "unpromised", "measured"];

/// Beginnings of sentences that are generated from the type and the default of a key or an
/// argument.
const GENERATED: [&str; 3] = ["*", "One of `", "Default: `"];

/// Parts of a line of code that logs a message, or names one to log.
const LOG_LINES: [&str; 5] = ["debug!(", "info!(", "warn!(", "error!(", "let text = "];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    claim: Vec<Claim>,
    /// Sentences without a row, by document and reason; a part of each.
    exempt: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

/// A statement of a document.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    #[serde(rename = "in")]
    document: String,
    /// A part of its sentence that occurs nowhere else in the document.
    says: String,
    shown_by: Vec<String>,
    /// True if a test that shows it runs in the nightly run only.
    #[serde(default)]
    nightly: bool,
}

/// The sentences of a document, each once.
struct Sentences {
    /// All sentences, joined.
    text: String,
    places: Vec<Range<usize>>,
}

impl Sentences {
    fn of(document: &str) -> Self {
        let mut sentences = Self { text: String::new(), places: Vec::new() };
        let mut seen = BTreeSet::new();
        for sentence in sentences_of(document) {
            if seen.insert(sentence.clone()) {
                let start = sentences.text.len();
                sentences.text.push_str(&sentence);
                sentences.places.push(start..sentences.text.len());
                sentences.text.push(' ');
            }
        }
        sentences
    }

    /// The first place of `part`, and the number of places.
    fn find(&self, part: &str) -> (Range<usize>, usize) {
        let start = self.text.find(part).unwrap_or_default();
        (start..start + part.len(), self.text.matches(part).count())
    }
}

#[test]
fn every_sentence_has_its_row_and_every_row_its_sentence_and_its_tests() {
    let table: Table = toml::from_str(&read(CLAIMS)).expect("the table of claims can be read");
    let (mut tests, mut nightly) = (BTreeSet::new(), BTreeSet::new());
    for file in test_files() {
        let text = read(&file);
        tests.extend(tests_of(&text));
        nightly.extend(night_only(&text));
    }
    let mut problems = Vec::new();
    for Claim { document, says, shown_by, nightly: is_said } in &table.claim {
        let mut object = |what: &str| problems.push(format!("{document}: {what}: {says}"));
        if !DOCUMENTS.contains(&document.as_str()) {
            object("not one of the documents");
        }
        if shown_by.is_empty() {
            object("no test shows");
        }
        for lost in shown_by.iter().filter(|test| !tests.contains(*test)) {
            object(&format!("no test {lost}, for"));
        }
        match (is_said, shown_by.iter().any(|test| nightly.contains(test))) {
            (true, false) => object("`nightly`, and each of its tests runs by day"),
            (false, true) => object("a test runs by night only, write `nightly = true`"),
            _ => {}
        }
    }
    // A row of a claim says `nightly`; a row of a fault names its tests only.
    let named: BTreeSet<_> = table.claim.iter().flat_map(|claim| &claim.shown_by).collect();
    let faults = faults::tests_of_rows();
    let is_nightly = |test: &&String| test.ends_with(faults::NIGHTLY);
    let says_so = |test: &&String| named.contains(test) && !faults.contains(*test);
    let silent = nightly.iter().filter(|test| !is_nightly(test) && !says_so(test));
    problems.extend(
        silent.map(|test| {
            format!("{test} does nothing by day, and neither its name nor a row says so")
        }),
    );
    let running = tests.iter().filter(|test| is_nightly(test) && !nightly.contains(*test));
    problems.extend(running.map(|test| format!("{test} does not return at once by day")));
    let pages = documents().into_iter().map(|page| page.display().to_string());
    let is_page = |page: &String| page.starts_with("docs/") && page.matches('/').count() == 1;
    let is_known =
        |page: &String| FIGURES.contains(&page.as_str()) || DOCUMENTS.contains(&page.as_str());
    let unknown = pages.filter(is_page).filter(|page| !is_known(page));
    problems.extend(unknown.map(|page| format!("{page} is not one of the documents")));
    problems.extend(DOCUMENTS.iter().flat_map(|name| check_document(name, &table)));
    fail_if_any(&problems);
}

/// Checks that each sentence of a document either has a row or is exempt, and that rows and
/// exemptions have their sentences.
fn check_document(name: &str, table: &Table) -> Vec<String> {
    let (whole, mut problems) = (read(name), Vec::new());
    let tested = match name {
        bounds::LIMITS => bounds::rows_with_tests(),
        faults::FAULTS => faults::rows_with_tests(),
        _ => BTreeSet::new(),
    };
    let sentences = Sentences::of(&whole);
    let mut places_of = |parts: Vec<&String>| {
        let mut places = Vec::new();
        for part in parts {
            let part = folded(part);
            let (place, mut times) = sentences.find(&part);
            if times > 0 {
                places.push(place);
            } else {
                // The sentence may be in an example or a heading.
                times = folded(&whole).matches(&part).count();
            }
            if times != 1 {
                problems.push(format!("{name} says {times} times, not once: {part}"));
            }
        }
        places
    };
    let rows = table.claim.iter().filter(|claim| claim.document == name);
    let shown = places_of(rows.map(|claim| &claim.says).collect());
    let reasons = table.exempt.get(name).into_iter().flatten();
    let exempt = places_of(reasons.clone().flat_map(|(_, parts)| parts).collect());
    let unknown = reasons.filter(|(reason, _)| !REASONS.contains(&reason.as_str()));
    problems.extend(unknown.map(|(reason, _)| format!("{name}: '{reason}' is no reason")));
    for place in &sentences.places {
        let sentence = &sentences.text[place.clone()];
        let is_among = |places: &[Range<usize>]| {
            places.iter().any(|other| other.start < place.end && place.start < other.end)
        };
        match (tested.contains(sentence) || is_among(&shown), is_among(&exempt)) {
            (false, false) => problems.push(format!("{name}: no row for: {sentence}")),
            (true, true) => problems.push(format!("{name}: a row, and exempt: {sentence}")),
            _ => {}
        }
    }
    problems
}

#[test]
fn log_messages_of_the_operations_page_are_those_of_the_program() {
    let page = read("docs/operations.md");
    let (_, section) = page.split_once("### Messages to search for").expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let messages = section.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next());
    let program: String = sources().map(|file| code_of(&read(file)).to_owned()).collect();
    let is_logged = |message: &str| {
        let literal = format!("\"{message}\"");
        let is_log = |line: &&str| LOG_LINES.iter().any(|start| line.contains(start));
        let mut lines = program
            .lines()
            .filter(|line| line.contains(&literal) && !line.trim_start().starts_with("//"));
        lines.any(|line| is_log(&line) || line.trim() == literal)
    };
    let lost = messages.filter(|message| !is_logged(message)).map(str::to_owned);
    fail_if_any(&lost.collect::<Vec<_>>());
}

/// Tests of a file that return at once unless it is night.
fn night_only(text: &str) -> Vec<String> {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let by_day = lines.windows(3).filter(|lines| {
        let condition = lines[1].to_lowercase();
        condition.starts_with("if ") && condition.contains("night") && lines[2] == "return;"
    });
    by_day.flat_map(|lines| functions(lines[0])).collect()
}

/// The sentences of Markdown: in paragraphs and items of lists, text up to a full stop, a question
/// mark, an exclamation mark or the end of the paragraph; in tables, each row. Headings, headings
/// of tables, fenced examples and lines of HTML are not sentences, and neither is text that is
/// generated from a type or a default.
fn sentences_of(text: &str) -> Vec<String> {
    let (mut sentences, mut paragraph) = (Vec::new(), String::new());
    let mut is_fenced = false;
    let mut lines = text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let is_fence = line.starts_with("```");
        let item = line.strip_prefix("- ").or_else(|| {
            let (number, rest) = line.split_once(". ")?;
            number.parse::<u8>().ok().map(|_| rest)
        });
        let begins_anew = is_fence
            || item.is_some()
            || line.is_empty()
            || ["#", "|", "<"].iter().any(|mark| line.starts_with(mark));
        if begins_anew {
            split(&std::mem::take(&mut paragraph), &mut sentences);
        }
        is_fenced ^= is_fence;
        if is_fenced || is_fence || line.starts_with(['#', '<']) {
            continue;
        }
        if line.starts_with('|') {
            let is_rule = |line: &str| line.starts_with("| ---") || line.starts_with("|---");
            if !is_rule(line) && !lines.peek().is_some_and(|next| is_rule(next)) {
                sentences.push(folded(line));
            }
            continue;
        }
        paragraph.push_str(item.unwrap_or(line));
        paragraph.push(' ');
    }
    split(&paragraph, &mut sentences);
    let is_heading = |sentence: &str| {
        let inner = sentence.strip_prefix("**").and_then(|rest| rest.strip_suffix("**"));
        inner.is_some_and(|inner| !inner.contains("**"))
    };
    let is_generated = |sentence: &str| {
        !sentence.starts_with("**") && GENERATED.iter().any(|start| sentence.starts_with(start))
    };
    sentences.retain(|sentence| !is_heading(sentence) && !is_generated(sentence));
    sentences
}

/// Splits a paragraph into its sentences. A sentence ends before a word that does not begin with a
/// small letter, and not in code.
fn split(paragraph: &str, into: &mut Vec<String>) {
    let mut sentence = String::new();
    let mut words = paragraph.split_whitespace().peekable();
    while let Some(word) = words.next() {
        sentence.push_str(word);
        let bare = word.trim_end_matches([')', '*', '"', '`', '_', '”']);
        let is_code = sentence.matches('`').count() % 2 == 1;
        let goes_on = |next: &&str| next.starts_with(char::is_lowercase);
        let is_end =
            bare.ends_with(['.', '?', '!']) && !is_code && !words.peek().is_some_and(goes_on);
        if is_end || words.peek().is_none() {
            into.push(std::mem::take(&mut sentence));
        } else {
            sentence.push(' ');
        }
    }
}

/// A text with one space for each run of white space.
fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn sentences_are_those_of_prose_and_rows_of_tables() {
    let text = "# A heading.\n\n<!-- A note. -->\n**Name.** It goes on, see `a. B` and\n`c`. (It ends!) 5 is\nmore:\n\n\
                ```sh\nIt is an example.\n```\n- An item. See e.g. this.\n\n| what | who |\n|---|---|\n| `a` | b. C |\n\n\
                *number* · default: `5`\n";
    let expected = [
        "It goes on, see `a. B` and `c`.",
        "(It ends!)",
        "5 is more:",
        "An item.",
        "See e.g. this.",
        "| `a` | b. C |",
    ];
    assert_eq!(sentences_of(text), expected);
}

#[test]
fn a_test_that_returns_by_day_is_known() {
    let text = "async fn all_day() {\n    work();\n}\n\nasync fn by_night_only() {\n    if !is_night() {\n        \
                return;\n    }\n    work();\n}\n";
    assert_eq!(night_only(text), ["by_night_only"]);
}
