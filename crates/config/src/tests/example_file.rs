//! Generator of config.example.toml, from the descriptions of the keys.
//!
//! A key is a line with its default, or a disabled one with its example. Its comment is the first
//! sentence of its documentation. The example of a table stands in the file as it is written,
//! disabled lines included: its keys get their comments, and those that it lacks are added.

use super::super::keys::{DefaultValue, Described, KeySpec, ValueShape};
use super::super::schema::keys;
use super::super::schema::page::{split_outside_code, toml, wrapped};
use super::super::secrets::SecretSource;
use crate::testing::example_value;

/// Returns the file.
pub(super) fn example_file() -> String {
    let mut out = INTRODUCTION.to_owned();
    for source in SecretSource::keys() {
        let line = format!("# - {}: {}", example_value(&source), first_sentence(&source));
        out += &format!("{}\n", wrapped(&line, "#   "));
    }
    for key in keys() {
        if let Some((_, title)) = PARTS.iter().find(|(first, _)| *first == key.name) {
            let rule = "─".repeat(29);
            out += &format!("\n# {rule} {title} {rule}\n");
        }
        out += &match key.shape.keys() {
            Some(keys) => section(&key, keys, key.name),
            None => format!("\n{}", line(&key, "")),
        };
    }
    out
}

/// Returns a table with a header, and the tables in it that have one.
fn section(table: &KeySpec, keys: &[KeySpec], path: &str) -> String {
    let text = without_links(&table.documentation.description);
    let body = match &table.shape {
        ValueShape::Table(_) if !is_section(table) => format!("[{path}]\n{}", lines(keys, "")),
        _ => completed(&table.documentation.example, keys),
    };
    let inner = keys.iter().filter(|key| is_section(key));
    let inner = inner.filter_map(|key| Some((key, key.shape.keys()?)));
    let inner = inner.map(|(key, keys)| section(key, keys, &format!("{path}.{}", key.name)));
    format!("\n{}\n{body}{}", wrapped(&format!("# {text}"), "# "), inner.collect::<String>())
}

/// True if the key is a table with a header of its own, which its example has.
fn is_section(key: &KeySpec) -> bool {
    key.documentation.example.starts_with("#[")
}

/// Completes the example of a table: its keys get comments where they have none, and the keys that
/// it does not show are added to the first table.
pub(super) fn completed(example: &str, keys: &[KeySpec]) -> String {
    let mut shown: Vec<&str> = Vec::new();
    let mut out: Vec<String> = Vec::new();
    for text in example.lines() {
        let path = text.split_once(" = ").map(|(path, _)| path.trim_start_matches('#'));
        let key = path.and_then(|path| find(keys, path)).filter(|_| !text.contains("  # "));
        let is_new = path.is_some_and(|path| !shown.contains(&path));
        shown.extend(path);
        out.push(match key {
            Some(key) if is_new => commented(text, &comment(key)),
            _ => format!("{text}\n"),
        });
    }
    let is_shown =
        |key: &KeySpec| shown.iter().any(|path| path.split('.').next() == Some(key.name));
    let missing = keys.iter().filter(|key| !is_shown(key) && !is_section(key));
    let missing = missing.filter(|key| key.described_at.is_none()).map(|key| line(key, ""));
    let missing = missing.collect::<String>();
    let missing = match example.starts_with('#') {
        true => {
            missing.lines().map(|line| format!("#{}\n", line.trim_start_matches('#'))).collect()
        }
        false => missing,
    };
    let end = out.iter().position(|line| line == "\n").unwrap_or(out.len());
    out.insert(end, missing);
    out.concat()
}

/// Finds the key of a dotted path.
fn find<'k>(keys: &'k [KeySpec], path: &str) -> Option<&'k KeySpec> {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let key = keys.iter().find(|key| key.name == name)?;
    if rest.is_empty() { Some(key) } else { find(key.shape.keys()?, rest) }
}

fn lines(keys: &[KeySpec], path: &str) -> String {
    let here = keys.iter().filter(|key| key.described_at.is_none() && !is_section(key));
    here.map(|key| line(key, path)).collect()
}

/// Returns the line of a key, or the lines of a table without a header.
pub(super) fn line(key: &KeySpec, path: &str) -> String {
    let name = format!("{path}{}", key.name);
    if let ValueShape::Table(keys) = &key.shape {
        let pair = |key: &KeySpec| Some(format!("{} = {}", key.name, default_value(key)?));
        let pairs = keys.iter().map(pair).collect::<Option<Vec<_>>>();
        let inline = pairs.map(|pairs| format!("{name} = {{ {} }}", pairs.join(", ")));
        return match inline.filter(|inline| inline.len() < COMMENT_COLUMN + 4) {
            Some(inline) => commented(&inline, &comment(key)),
            None => format!("# {}\n{}", first_sentence(key), lines(keys, &format!("{name}."))),
        };
    }
    match default_value(key).as_deref() {
        Some(default @ ("[]" | "{}")) if !key.documentation.example.is_empty() => {
            let comment = format!("{}, such as `{}`", comment(key), example_value(key));
            commented(&format!("{name} = {default}"), &comment)
        }
        Some(default) => commented(&format!("{name} = {default}"), &comment(key)),
        None => commented(&format!("#{name} = {}", example_value(key)), &comment(key)),
    }
}

fn default_value(key: &KeySpec) -> Option<String> {
    match &key.default {
        DefaultValue::Value(default) => Some(toml(default)),
        _ => None,
    }
}

/// Puts a comment behind a line, or above it if there is no space.
fn commented(line: &str, comment: &str) -> String {
    let columns = line.chars().count();
    let behind = format!("{line}  # {comment}");
    if columns < COMMENT_COLUMN {
        let indent = " ".repeat(COMMENT_COLUMN);
        wrapped(&format!("{line:<COMMENT_COLUMN$}# {comment}"), &format!("{indent}# ")) + "\n"
    } else if behind == wrapped(&behind, "") {
        behind + "\n"
    } else {
        format!("{}\n{line}\n", wrapped(&format!("# {comment}"), "# "))
    }
}

/// Returns the comment of a key: the words of a choice or the bounds of a number, the first
/// sentence of the documentation, and the description of a default.
fn comment(key: &KeySpec) -> String {
    let values = match &key.shape {
        ValueShape::Choice(words) => Some(words.join(" | ")),
        ValueShape::Count(bounds) => Some(format!("{} to {}", bounds.start(), bounds.end())),
        ValueShape::List { of, .. } => match &**of {
            ValueShape::Choice(words) => Some(words.join(", ")),
            _ => None,
        },
        _ => None,
    };
    let values = values.map(|values| format!("{values}: ")).unwrap_or_default();
    let default = match &key.default {
        DefaultValue::Described(default) => format!("; default: {default}"),
        _ => String::new(),
    };
    format!("{values}{}{default}", first_sentence(key))
}

/// Returns the first sentence of the documentation, or its beginning if it is long.
fn first_sentence(key: &KeySpec) -> String {
    let words = split_outside_code(&key.documentation.description);
    let (mut sentence, mut beginning) = (String::new(), None);
    for word in words {
        sentence += &format!(" {word}");
        let is_in_parentheses = sentence.matches('(').count() > sentence.matches(')').count();
        if word.ends_with([':', ';']) && !is_in_parentheses && sentence.len() > MIN_BEGINNING {
            beginning.get_or_insert(sentence.clone());
        }
        if word.ends_with('.') {
            break;
        }
    }
    let text = match beginning {
        Some(beginning) if sentence.len() > MAX_SENTENCE => beginning,
        _ => sentence,
    };
    let text = text.trim_matches([' ', '.', ':', ';']);
    let text = text.strip_prefix("The ").unwrap_or(text);
    match text.chars().nth(1) {
        Some(second) if second.is_lowercase() || second == ' ' => {
            text[..1].to_lowercase() + &text[1..]
        }
        _ => text.to_owned(),
    }
}

/// Replaces links of Markdown by their texts and targets.
fn without_links(text: &str) -> String {
    let mut parts = text.split('[');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once("](").and_then(|(text, rest)| Some((text, rest.split_once(')')?))) {
            Some((text, (target, rest))) => out += &format!("{text} (docs/{target}){rest}"),
            None => out += &format!("[{part}"),
        }
    }
    out
}

const INTRODUCTION: &str = include_str!("example_introduction.toml");

/// Parts of the file, each with its first key.
const PARTS: [(&str, &str); 5] = [
    ("server", "client side"),
    ("defaults", "upstream MCP servers"),
    ("guard", "content checks"),
    ("auth", "access control"),
    ("log", "operation"),
];

/// Column of a comment behind a line.
const COMMENT_COLUMN: usize = 37;
/// Longest sentence that is a comment as a whole, and the shortest beginning of a longer one.
const MAX_SENTENCE: usize = 90;
const MIN_BEGINNING: usize = 20;
