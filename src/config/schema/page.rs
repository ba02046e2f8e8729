//! The keys as a page for people, in Markdown.

use serde_json::Value;

use super::shape::Shape;
use super::{Fallback, Key, keys, secret};

/// Returns the page that tells every key.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for way in secret() {
        page += &format!("\n- `{}` ({}): {}\n", way.name, kind(&way.shape), way.meaning);
        page += &indented(way.example);
    }
    for key in keys() {
        section(&key, &mut page);
    }
    page
}

/// A table of the top, or a key that stands in none.
fn section(key: &Key, page: &mut String) {
    let (title, path, keys) = match &key.shape {
        Shape::Table { keys, .. } => (format!("[{}]", key.name), key.name.to_owned(), keys),
        Shape::Map { of, .. } => match &**of {
            Shape::Table { keys, .. } => {
                let path = format!("{}.<name>", key.name);
                (format!("[{path}]"), path, keys)
            }
            _ => return entry(key, key.name, 2, page),
        },
        Shape::List { of, .. } => match &**of {
            Shape::Table { keys, .. } => (format!("[[{}]]", key.name), key.name.to_owned(), keys),
            _ => return entry(key, key.name, 2, page),
        },
        _ => return entry(key, key.name, 2, page),
    };
    *page += &format!("\n## `{title}`\n\n{}\n", key.meaning);
    if let Some((_, more)) = MORE.iter().find(|(name, _)| *name == key.name) {
        *page += &format!("\n{more}\n");
    }
    *page += &example(key.example);
    for key in keys {
        entry(key, &format!("{path}.{}", key.name), 3, page);
    }
}

fn entry(key: &Key, path: &str, depth: usize, page: &mut String) {
    let fallback = match (&key.fallback, key.told_at) {
        (_, Some("defaults")) => {
            format!(" · inherited from [`defaults.{0}`](#defaults{0})", key.name)
        }
        (_, Some("guard")) => " · inherited from [`[guard]`](#guard)".to_owned(),
        (_, Some(table)) => format!(" · as in [`[{table}.<name>]`](#{table}name)"),
        (Fallback::Required, _) => " · required".to_owned(),
        (Fallback::Nothing, _) if is_table(&key.shape) => String::new(),
        (Fallback::Nothing, _) => " · no default".to_owned(),
        (Fallback::Is(value), _) => format!(" · default: `{}`", toml(value)),
        (Fallback::Told(told), _) => format!(" · default: {told}"),
    };
    let marks = "#".repeat(depth);
    *page +=
        &format!("\n{marks} `{path}`\n\n*{}*{fallback}\n\n{}\n", kind(&key.shape), key.meaning);
    *page += &example(key.example);
    let (path, shape) = match &key.shape {
        Shape::Map { of, .. } => (format!("{path}.<name>"), &**of),
        shape => (path.to_owned(), shape),
    };
    if let (Shape::Table { keys, .. }, None) = (shape, key.told_at) {
        for key in keys {
            entry(key, &format!("{path}.{}", key.name), depth + 1, page);
        }
    }
}

fn is_table(shape: &Shape) -> bool {
    matches!(shape, Shape::Table { .. })
}

fn example(lines: &str) -> String {
    if lines.is_empty() { String::new() } else { format!("\n```toml\n{lines}\n```\n") }
}

/// An example below an entry of a list.
fn indented(lines: &str) -> String {
    example(lines).lines().map(|line| format!("{}\n", format!("  {line}").trim_end())).collect()
}

/// What kind of value it is, in words.
fn kind(shape: &Shape) -> String {
    match shape {
        Shape::Boolean => "`true` or `false`".to_owned(),
        Shape::Count(bounds) => format!("number, {} to {}", bounds.start(), bounds.end()),
        Shape::Duration => "[duration](#how-values-are-written)".to_owned(),
        Shape::Size => "[size](#how-values-are-written)".to_owned(),
        Shape::Choice(words) => {
            let words: Vec<_> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
            format!("one of {}", words.join(", "))
        }
        Shape::Text(what, _) => (*what).to_owned(),
        Shape::Moment => "date and time".to_owned(),
        Shape::Secret(_) => "[secret](#secrets)".to_owned(),
        Shape::List { of, count } => {
            let count = match count {
                (0, None) => String::new(),
                (min, None) => format!(" of at least {min}"),
                (min, Some(max)) => format!(" of {min} to {max}"),
            };
            format!("list{count}, each: {}", kind(of))
        }
        Shape::OneOrList(of) => format!("{}, or a list of such", kind(of)),
        Shape::Map { of, .. } => format!("table, each value: {}", kind(of)),
        Shape::Table { .. } => "table".to_owned(),
    }
}

/// A default as one writes it in TOML.
pub(in crate::config) fn toml(value: &Value) -> String {
    match value {
        Value::Array(list) => {
            format!("[{}]", list.iter().map(toml).collect::<Vec<_>>().join(", "))
        }
        // All defaults that are tables are empty ones.
        plain => plain.to_string(),
    }
}

const INTRODUCTION: &str = include_str!("introduction.md");

/// What is told of a table beside its meaning, for people only.
const MORE: [(&str, &str); 4] = [
    (
        "defaults",
        "A `prompts_dir` is not spoken to: of what follows only `timeouts.call`, `timeouts.call_max`, \
         `timeouts.reset_on_progress`, `retry`, `limits.concurrency`, `limits.waiting` and `limits.wait` may stand in its own table.",
    ),
    (
        "upstreams",
        "`args`, `env`, `pass_env` and `cwd` go with `command`; `headers`, `auth` and `transport` go with `url`. What a \
         `prompts_dir` holds is told in [the prompt library](prompt-library.md).\n\n\
         ```toml\n[upstreams.house]\nprompts_dir = \"./prompts\"\n\n[upstreams.fetch]\ncommand = \"uvx\"\n\
         args = [\"mcp-server-fetch\"]\n\n[upstreams.github]\nurl = \"https://api.githubcopilot.com/mcp/\"\n\
         auth = { type = \"bearer\", token = \"${GITHUB_TOKEN}\" }\n```",
    ),
    (
        "roles",
        "What is not written allows nothing. `*` in a pattern matches any run of characters, `/` included; the name of \
         the upstream is that of its table, and the name of the item the one that the upstream itself uses, before \
         `prefix` and `rename`.\n\nThe role `local` exists without being written and may use everything; it is what \
         callers without a key get. Write `[roles.local]` to narrow it.",
    ),
    (
        "clients",
        "A client sends its key as `Authorization: Bearer <key>`. `weir keys add NAME --role ROLE` makes a client and its \
         key. Any other long random string will do, too; Weir is told only its SHA-256:\n\n```sh\nkey=$(openssl rand -hex 32); echo \"$key\"; printf %s \"$key\" | sha256sum\n```",
    ),
];
