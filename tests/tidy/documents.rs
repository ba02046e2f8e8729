//! Documents: their tables and code spans, and that links between them lead somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::fail_if_any;
use super::files::{read, root};

/// The documents: those at the root, in `docs`, and beside what they describe.
pub(super) fn documents() -> Vec<PathBuf> {
    let mut documents = Vec::new();
    for folder in ["", "benches", "deploy", "docs", "docs/decisions", "examples"] {
        for entry in fs::read_dir(root().join(folder)).expect("the folder is there") {
            let path = entry.expect("the folder can be read").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                documents.push(path.strip_prefix(root()).expect("it is below the root").to_owned());
            }
        }
    }
    assert!(!documents.is_empty(), "there are documents");
    documents.sort();
    documents
}

/// The parts of a text that stand in backquotes.
pub(super) fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The rows of all tables of a document, without their headings.
pub(super) fn table_rows(text: &str) -> Vec<String> {
    let is_rule = |line: &str| line.starts_with("|--") || line.starts_with("| --");
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let is_row = |number: &usize| {
        let next = lines.get(number + 1).copied().unwrap_or_default();
        lines[*number].starts_with('|') && !is_rule(lines[*number]) && !is_rule(next)
    };
    (0..lines.len()).filter(is_row).map(|number| lines[number].to_owned()).collect()
}

/// Markdown without its fenced examples and its code spans.
fn without_code(text: &str) -> String {
    let prose: String = text.split("```").step_by(2).collect();
    prose.split('`').step_by(2).collect()
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
