//! Markdown page that describes all keys: docs/configuration.md.

use serde_json::Value;

use super::keys;
use crate::keys::{DefaultValue, Described, KeySpec, ValueShape, enabled};
use crate::secrets::SecretSource;

/// Returns the page.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for key in SecretSource::keys() {
        let item =
            format!("- `{}` ({}): {}", key.name, kind(&key.shape), key.documentation.description);
        page += &format!("\n{}\n", wrapped(&item, "  "));
        page += &indented(&key.documentation.example);
    }
    for key in keys() {
        section(&key, &mut page);
    }
    page
}

/// Appends the section of a top-level table or key.
fn section(key: &KeySpec, page: &mut String) {
    let Some(keys) = key.shape.keys() else { return entry(key, key.name, 2, page) };
    let (title, path) = match &key.shape {
        ValueShape::Map { .. } => {
            (format!("[{}.<name>]", key.name), format!("{}.<name>", key.name))
        }
        ValueShape::List { .. } => (format!("[[{}]]", key.name), key.name.to_owned()),
        _ => (format!("[{}]", key.name), key.name.to_owned()),
    };
    *page += &format!("\n## `{title}`\n\n{}\n", wrapped(&key.documentation.description, ""));
    if !key.documentation.details.is_empty() {
        *page += &format!("\n{}\n", wrapped(&key.documentation.details, ""));
    }
    *page += &example(&key.documentation.example);
    for key in keys {
        entry(key, &format!("{path}.{}", key.name), 3, page);
    }
}

fn entry(key: &KeySpec, path: &str, depth: usize, page: &mut String) {
    let default = match (&key.default, key.described_at) {
        (_, Some("defaults")) => {
            format!(" · inherited from [`defaults.{0}`](#defaults{0})", key.name)
        }
        (_, Some("guard")) => " · inherited from [`[guard]`](#guard)".to_owned(),
        (_, Some(table)) => format!(" · as in [`[{table}.<name>]`](#{table}name)"),
        (DefaultValue::Required, _) => " · required".to_owned(),
        (DefaultValue::None, _) if is_table(&key.shape) => String::new(),
        (DefaultValue::None, _) => " · no default".to_owned(),
        (DefaultValue::Value(value), _) => format!(" · default: `{}`", toml(value)),
        (DefaultValue::Described(text), _) => format!(" · default: {text}"),
    };
    let marks = "#".repeat(depth);
    let (type_line, description) =
        (format!("*{}*{default}", kind(&key.shape)), wrapped(&key.documentation.description, ""));
    *page += &format!("\n{marks} `{path}`\n\n{}\n\n{description}\n", wrapped(&type_line, ""));
    *page += &example(&key.documentation.example);
    let (path, shape) = match &key.shape {
        ValueShape::Map { of, .. } => (format!("{path}.<name>"), &**of),
        shape => (path.to_owned(), shape),
    };
    if let (ValueShape::Table(keys), None) = (shape, key.described_at) {
        for key in keys {
            entry(key, &format!("{path}.{}", key.name), depth + 1, page);
        }
    }
}

fn is_table(shape: &ValueShape) -> bool {
    matches!(shape, ValueShape::Table(_))
}

fn example(lines: &str) -> String {
    if lines.is_empty() { String::new() } else { format!("\n```toml\n{}\n```\n", enabled(lines)) }
}

/// Wraps the lines of a text at [`MAX_COLUMNS`]; `indent` begins the new lines.
pub(crate) fn wrapped(text: &str, indent: &str) -> String {
    text.lines().map(|line| wrapped_line(line, indent)).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str, indent: &str) -> String {
    let columns = |text: &str| text.chars().count();
    if columns(line) <= MAX_COLUMNS {
        return line.to_owned();
    }
    let (mut lines, mut last) = (Vec::new(), String::new());
    for part in split_outside_code(line) {
        if last.is_empty() {
            last = part;
        } else if columns(&last) + 1 + columns(&part) <= MAX_COLUMNS {
            last += &format!(" {part}");
        } else {
            lines.push(std::mem::replace(&mut last, format!("{indent}{part}")));
        }
    }
    lines.push(last);
    lines.join("\n")
}

/// Splits a line at its spaces, except for those in code spans.
pub(crate) fn split_outside_code(line: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match parts.last_mut() {
            Some(part) if part.matches('`').count() % 2 == 1 => *part += &format!(" {word}"),
            _ => parts.push(word.to_owned()),
        }
    }
    parts
}

/// Formats an example below an entry of a list.
fn indented(lines: &str) -> String {
    example(lines).lines().map(|line| format!("{}\n", format!("  {line}").trim_end())).collect()
}

/// Describes the type of a value.
fn kind(shape: &ValueShape) -> String {
    match shape {
        ValueShape::Boolean => "`true` or `false`".to_owned(),
        ValueShape::Count(bounds) => format!("number, {} to {}", bounds.start(), bounds.end()),
        ValueShape::Duration => "[duration](#how-values-are-written)".to_owned(),
        ValueShape::Size => "[size](#how-values-are-written)".to_owned(),
        ValueShape::Choice(words) => {
            let words: Vec<_> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
            format!("one of {}", words.join(", "))
        }
        ValueShape::Text(what, _) => (*what).to_owned(),
        ValueShape::DateTime => "date and time".to_owned(),
        ValueShape::Secret(_) => "[secret](#secrets)".to_owned(),
        ValueShape::List { of, count } => {
            let count = match count {
                (0, None) => String::new(),
                (min, None) => format!(" of at least {min}"),
                (min, Some(max)) => format!(" of {min} to {max}"),
            };
            format!("list{count}, each: {}", kind(of))
        }
        ValueShape::OneOrList(of) => format!("{}, or a list of such", kind(of)),
        ValueShape::Map { of, .. } => format!("table, each value: {}", kind(of)),
        ValueShape::Table(_) => "table".to_owned(),
    }
}

/// Formats a default as TOML.
pub(crate) fn toml(value: &Value) -> String {
    match value {
        Value::Array(list) => {
            format!("[{}]", list.iter().map(toml).collect::<Vec<_>>().join(", "))
        }
        // All default tables are empty.
        plain => plain.to_string(),
    }
}

const INTRODUCTION: &str = include_str!("introduction.md");

/// Maximum width of a line of the page.
const MAX_COLUMNS: usize = 120;
