//! Entries in the text of a YAML file.
//!
//! An entry is a block of lines below the key of its section. The lines are found by their
//! indentation, without an understanding of everything that YAML allows: the caller reads the new
//! text again and compares it.

use std::fmt::Write;
use std::ops::Range;

use super::RemovedEntry;
use crate::cli::clients::document::DocumentValue;

/// Returns texts with an entry at the beginning of its section, in place of the one of its name, or
/// in a section of its own at the end.
pub(super) fn insert(
    text: &str,
    section: &[&str],
    name: &str,
    entry: &DocumentValue,
) -> Vec<String> {
    let [section] = section else { return Vec::new() };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let block = |indentation: &str| {
        let unit = if indentation.is_empty() { "  " } else { indentation };
        let mut block = String::new();
        write_member(&mut block, name, entry, unit, unit);
        with_line_ends_of(text, &block)
    };
    let Some(header) = find_key(&lines, 0..lines.len(), "", section) else {
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { line_end(text) };
        let header = format!("{section}:{}", line_end(text));
        return vec![format!("{text}{end}{header}{}", block(""))];
    };
    let indentation = indentation_below(&lines, header);
    if let Some(old) = entry_lines(&lines, header, name) {
        return vec![replace_lines(&lines, old, &block(indentation))];
    }
    let below = replace_lines(&lines, header + 1..header + 1, &block(indentation));
    let within = insert_into_braces(&lines, header, name, entry);
    within.into_iter().chain([below]).collect()
}

/// Removes the lines of an entry. Comments above it stay.
pub(super) fn remove(text: &str, section: &[&str], name: &str) -> Option<RemovedEntry> {
    let [section] = section else { return None };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let header = find_key(&lines, 0..lines.len(), "", section)?;
    let old = entry_lines(&lines, header, name)?;
    let entry = lines.get(old.clone())?.concat();
    Some(RemovedEntry { text: replace_lines(&lines, old, ""), entry })
}

/// Finds the place of an entry.
pub(super) fn start_of(text: &str, section: &[&str], name: &str) -> Option<usize> {
    let [section] = section else { return None };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let header = find_key(&lines, 0..lines.len(), "", section)?;
    let first = entry_lines(&lines, header, name)?.start;
    Some(lines.get(..first)?.iter().map(|line| line.len()).sum())
}

/// Returns texts with the lines of a removed entry at the beginning of its section.
pub(super) fn put_back(text: &str, section: &[&str], name: &str, entry: &str) -> Vec<String> {
    let [section] = section else { return Vec::new() };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let end = if entry.ends_with('\n') { "" } else { line_end(text) };
    let block = format!("{entry}{end}");
    match find_key(&lines, 0..lines.len(), "", section) {
        Some(header) if entry_lines(&lines, header, name).is_none() => {
            vec![replace_lines(&lines, header + 1..header + 1, &block)]
        }
        Some(_) => Vec::new(),
        None => {
            let last = if text.is_empty() || text.ends_with('\n') { "" } else { line_end(text) };
            vec![format!("{text}{last}{section}:{}{block}", line_end(text))]
        }
    }
}

/// Lines of an entry, from its key to its last line.
fn entry_lines(lines: &[&str], header: usize, name: &str) -> Option<Range<usize>> {
    let indentation = indentation_below(lines, header);
    let section = header + 1..end_of(lines, header, "");
    let first = find_key(lines, section, indentation, name)?;
    Some(first..end_of(lines, first, indentation))
}

/// Finds the line that begins with a key after this indentation.
fn find_key(
    lines: &[&str],
    mut range: Range<usize>,
    indentation: &str,
    key: &str,
) -> Option<usize> {
    let forms = [key.to_owned(), format!("\"{key}\""), format!("'{key}'")];
    range.find(|at| {
        let rest = lines.get(*at).and_then(|line| line.strip_prefix(indentation));
        let is_key = |form: &String| {
            let behind = rest.and_then(|rest| rest.strip_prefix(form.as_str()));
            let behind = behind.and_then(|behind| behind.trim_start().strip_prefix(':'));
            behind.is_some_and(|behind| behind.is_empty() || behind.starts_with([' ', '\n', '\r']))
        };
        forms.iter().any(is_key)
    })
}

/// Index behind the last line of the block that begins at `first` with this indentation: behind
/// its last line that has more. Comments and empty lines below it belong to what follows.
fn end_of(lines: &[&str], first: usize, indentation: &str) -> usize {
    let mut end = first + 1;
    for (at, line) in lines.iter().enumerate().skip(first + 1) {
        if line.trim().is_empty() {
            continue;
        }
        match indentation_of(line).len() > indentation.len() {
            true => end = at + 1,
            false if line.trim_start().starts_with('#') => {}
            false => break,
        }
    }
    end
}

/// Indentation of the keys below a line; two spaces if there are none.
fn indentation_below<'a>(lines: &[&'a str], header: usize) -> &'a str {
    let own = lines.get(header).map_or("", |line| indentation_of(line));
    let mut below = lines
        .iter()
        .skip(header + 1)
        .filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    let first = below.next().map_or("", |line| indentation_of(line));
    if first.len() > own.len() { first } else { "  " }
}

fn indentation_of(line: &str) -> &str {
    line.get(..line.len() - line.trim_start_matches(' ').len()).unwrap_or_default()
}

fn replace_lines(lines: &[&str], range: Range<usize>, block: &str) -> String {
    let part = |range: Range<usize>| lines.get(range).unwrap_or_default().concat();
    let mut head = part(0..range.start);
    if !head.is_empty() && !head.ends_with('\n') && !block.is_empty() {
        head.push('\n');
    }
    head + block + &part(range.end..lines.len())
}

/// Inserts an entry into a section in braces, as `extensions: {}`.
fn insert_into_braces(
    lines: &[&str],
    header: usize,
    name: &str,
    entry: &DocumentValue,
) -> Option<String> {
    let line = lines.get(header)?;
    let (before, behind) = line.split_once('{')?;
    let is_empty = behind.trim_start().starts_with('}');
    let comma = if is_empty { "" } else { ", " };
    let line = format!("{before}{{{}: {}{comma}{behind}", quote(name), entry.to_line());
    Some(replace_lines(lines, header..header + 1, &line))
}

// === Writing ===

fn write_member(out: &mut String, key: &str, value: &DocumentValue, indentation: &str, unit: &str) {
    let key = scalar(key);
    match value {
        DocumentValue::Table(members) if !members.is_empty() => {
            push_line(out, format_args!("{indentation}{key}:"));
            let deeper = format!("{indentation}{unit}");
            for (key, value) in members {
                write_member(out, key, value, &deeper, unit);
            }
        }
        value => push_line(out, format_args!("{indentation}{key}: {}", flow(value))),
    }
}

fn push_line(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("a string can always be written to");
}

/// Value on one line.
fn flow(value: &DocumentValue) -> String {
    match value {
        DocumentValue::Text(text) => scalar(text),
        value => value.to_line(),
    }
}

/// Text as a scalar, in quotes unless it is a plain word.
fn scalar(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    let is_keyword = KEYWORDS.iter().any(|keyword| text.eq_ignore_ascii_case(keyword));
    if is_word && !is_keyword { text.to_owned() } else { quote(text) }
}

/// Text in double quotes. The escapes of JSON are those of YAML, too.
fn quote(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

fn line_end(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

fn with_line_ends_of(text: &str, lines: &str) -> String {
    if text.contains("\r\n") { lines.replace('\n', "\r\n") } else { lines.to_owned() }
}

/// Words that are no texts in one of the versions of YAML.
const KEYWORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "\
# Mine.
provider: anthropic # fast
extensions:
  # Of Goose.
  developer:
    type: builtin
    description: |
      # no comment
      two lines

  # Of a.
  \"a\":
    enabled: true # why
    args:
    - -y

  # Of b.
  b: {enabled: false}
# Last.
model: x
";

    fn entry() -> DocumentValue {
        let text = |text: &str| DocumentValue::Text(text.to_owned());
        DocumentValue::Table(vec![
            ("enabled".to_owned(), DocumentValue::Bool(true)),
            ("cmd".to_owned(), text("/bin/weir")),
            ("args".to_owned(), DocumentValue::List(vec![text("stdio"), text("--config")])),
        ])
    }

    const BLOCK: &str =
        "  weir:\n    enabled: true\n    cmd: \"/bin/weir\"\n    args: [\"stdio\", \"--config\"]\n";

    #[test]
    fn an_entry_is_one_block_of_lines() {
        let insert = |text: &str| insert(text, &["extensions"], "weir", &entry());
        let expected = OLD.replace("extensions:\n", &format!("extensions:\n{BLOCK}"));
        assert_eq!(insert(OLD), [expected]);
        assert_eq!(insert(""), [format!("extensions:\n{BLOCK}")]);
        assert_eq!(insert("x: 1"), [format!("x: 1\nextensions:\n{BLOCK}")]);
        let flow = insert("extensions: {} # none\n").remove(0);
        assert_eq!(
            flow,
            "extensions: {\"weir\": {\"enabled\": true, \"cmd\": \"/bin/weir\", \"args\": [\"stdio\", \
             \"--config\"]}} # none\n"
        );
        let windows = insert("a: 1\r\nextensions:\r\n    b:\r\n        c: 1\r\n").remove(0);
        assert!(
            windows.contains("extensions:\r\n    weir:\r\n        enabled: true\r\n"),
            "{windows}"
        );
    }

    #[test]
    fn an_entry_goes_and_the_comments_around_it_stay() {
        let removed = remove(OLD, &["extensions"], "a").expect("it can be removed");
        assert_eq!(removed.entry, "  \"a\":\n    enabled: true # why\n    args:\n    - -y\n");
        assert_eq!(removed.text, OLD.replace(&removed.entry, ""));
        let back = put_back(&removed.text, &["extensions"], "a", &removed.entry).remove(0);
        assert_eq!(
            back,
            removed.text.replace("extensions:\n", &format!("extensions:\n{}", removed.entry))
        );
        let removed = remove(OLD, &["extensions"], "developer").expect("it can be removed");
        assert!(removed.entry.ends_with("two lines\n"), "{}", removed.entry);
        assert!(remove(OLD, &["extensions"], "model").is_none());
    }
}
