//! Markdown page that describes all keys: docs/configuration.md.

use serde_json::Value;

use super::shape::ValueShape;
use super::{DefaultValue, KeySpec, keys, secret};

/// Returns the page.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for key in secret() {
        let item = format!("- `{}` ({}): {}", key.name, kind(&key.shape), key.description);
        page += &format!("\n{}\n", wrapped(&item, "  "));
        page += &indented(key.example);
    }
    for key in keys() {
        section(&key, &mut page);
    }
    page
}

/// Appends the section of a top-level table or key.
fn section(key: &KeySpec, page: &mut String) {
    let (title, path, keys) = match &key.shape {
        ValueShape::Table { keys, .. } => (format!("[{}]", key.name), key.name.to_owned(), keys),
        ValueShape::Map { of, .. } => match &**of {
            ValueShape::Table { keys, .. } => {
                let path = format!("{}.<name>", key.name);
                (format!("[{path}]"), path, keys)
            }
            _ => return entry(key, key.name, 2, page),
        },
        ValueShape::List { of, .. } => match &**of {
            ValueShape::Table { keys, .. } => {
                (format!("[[{}]]", key.name), key.name.to_owned(), keys)
            }
            _ => return entry(key, key.name, 2, page),
        },
        _ => return entry(key, key.name, 2, page),
    };
    *page += &format!("\n## `{title}`\n\n{}\n", wrapped(key.description, ""));
    if let Some((_, more)) = MORE_TEXT.iter().find(|(name, _)| *name == key.name) {
        *page += &format!("\n{}\n", wrapped(more, ""));
    }
    *page += &example(key.example);
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
        (format!("*{}*{default}", kind(&key.shape)), wrapped(key.description, ""));
    *page += &format!("\n{marks} `{path}`\n\n{}\n\n{description}\n", wrapped(&type_line, ""));
    *page += &example(key.example);
    let (path, shape) = match &key.shape {
        ValueShape::Map { of, .. } => (format!("{path}.<name>"), &**of),
        shape => (path.to_owned(), shape),
    };
    if let (ValueShape::Table { keys, .. }, None) = (shape, key.described_at) {
        for key in keys {
            entry(key, &format!("{path}.{}", key.name), depth + 1, page);
        }
    }
}

fn is_table(shape: &ValueShape) -> bool {
    matches!(shape, ValueShape::Table { .. })
}

fn example(lines: &str) -> String {
    if lines.is_empty() { String::new() } else { format!("\n```toml\n{lines}\n```\n") }
}

/// Wraps the lines of a text at [`MAX_COLUMNS`]; `indent` begins the new lines.
fn wrapped(text: &str, indent: &str) -> String {
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
fn split_outside_code(line: &str) -> Vec<String> {
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
        ValueShape::Table { .. } => "table".to_owned(),
    }
}

/// Formats a default as TOML.
pub(in crate::config) fn toml(value: &Value) -> String {
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

/// Additional text of a table, for the page only.
const MORE_TEXT: [(&str, &str); 4] = [
    (
        "defaults",
        "A `prompts_dir` has no connection: of the following keys its own table may contain only \
         `timeouts.call`, `timeouts.call_max`, `timeouts.reset_on_progress`, `retry`, \
         `limits.concurrency`, `limits.waiting` and `limits.wait`.",
    ),
    (
        "upstreams",
        "`args`, `env`, `pass_env` and `cwd` go with `command`; `headers`, `auth` and `transport` \
         go with `url`. [The prompt library](prompt-library.md) describes the contents of a \
         `prompts_dir`.\n\n```toml\n[upstreams.library]\nprompts_dir = \
         \"./prompts\"\n\n[upstreams.fetch]\ncommand = \"uvx\"\nargs = \
         [\"mcp-server-fetch\"]\n\n[upstreams.github]\nurl = \
         \"https://api.githubcopilot.com/mcp/\"\nauth = { type = \"bearer\", token = \
         \"${GITHUB_TOKEN}\" }\n```",
    ),
    (
        "roles",
        "A key that is not set allows nothing. `*` in a pattern matches any run of characters, \
         including `/`; the name of the upstream is that of its table, and the name of the item is \
         the one that the upstream itself uses, before `prefix` and `rename`.\n\nThe role `local` \
         always exists and may use everything; clients without a key get it by default. Write \
         `[roles.local]` to restrict it.",
    ),
    (
        "clients",
        "A client sends its key as `Authorization: Bearer <key>`. `weir keys add NAME --role ROLE` \
         makes a client and its key. Any other long random string works, too; the configuration \
         contains only its SHA-256:\n\n```sh\nkey=$(openssl rand -hex 32); echo \"$key\"; printf \
         %s \"$key\" | sha256sum\n```",
    ),
];
