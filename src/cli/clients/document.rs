//! A client's file as it is written: JSON with comments and trailing commas, or TOML.
//!
//! Both become the same [`Value`], which keeps the order of the file. What cannot be read is told with line
//! and column, and never with the text that stands there: it may be a secret.
//!
//! Knows nothing of: which keys there are.

use std::path::Path;

use jsonc_parser::ast;
use jsonc_parser::{CollectOptions, ParseOptions};
use toml_edit::{DocumentMut, Item, TableLike};

use crate::cli::exit::Failure;
use crate::regular_file;

/// What a file is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Format {
    /// JSON, with comments and trailing commas.
    Json,
    /// TOML.
    Toml,
}

/// A value of either format.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cli) enum Value {
    /// Nothing.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A number, as it is written.
    Number(String),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A table, in the order of the file.
    Table(Vec<(String, Value)>),
}

impl Value {
    /// A member of a table. Of two with the same name, clients take the last.
    pub(in crate::cli) fn get(&self, key: &str) -> Option<&Self> {
        self.members().iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The members of a table; none of anything else.
    pub(in crate::cli) fn members(&self) -> &[(String, Self)] {
        match self {
            Self::Table(members) => members,
            _ => &[],
        }
    }

    /// The elements of a list; none of anything else.
    pub(in crate::cli) fn elements(&self) -> &[Self] {
        match self {
            Self::List(elements) => elements,
            _ => &[],
        }
    }

    /// A string, or what a client would make a string of.
    pub(in crate::cli) fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) | Self::Number(text) => Some(text.clone()),
            Self::Bool(yes) => Some(yes.to_string()),
            Self::Null | Self::List(_) | Self::Table(_) => None,
        }
    }

    /// Whether it is a table.
    pub(in crate::cli) fn is_table(&self) -> bool {
        matches!(self, Self::Table(_))
    }
}

/// The text of a file, and whether it began with a byte order mark, which is not part of it.
pub(in crate::cli) struct Written {
    /// Without the mark.
    pub(in crate::cli) text: String,
    /// Whether there was one.
    pub(in crate::cli) has_mark: bool,
}

/// Reads a file. That it is not there is the caller's business: nothing is returned then.
pub(in crate::cli) fn read(path: &Path) -> Result<Option<Written>, Failure> {
    let place = path.display();
    let file = match regular_file::open_or_inherited(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let bytes = regular_file::read_all(file, MAX_BYTES).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => Failure::NoConfig(format!(
            "{place} is larger than 64 MiB: check that it is the client's file"
        )),
        _ => unreadable(path, &error),
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::NoConfig(format!("{place} is not UTF-8 at byte {at}: save it as UTF-8"))
    })?;
    let (has_mark, text) = match text.strip_prefix('\u{feff}') {
        Some(rest) => (true, rest.to_owned()),
        None => (false, text),
    };
    Ok(Some(Written { text, has_mark }))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage(format!(
        "{} cannot be read: {error}; check the path and its permissions",
        path.display()
    ))
}

/// Parses a text. `path` is named where it is not what it should be.
pub(in crate::cli) fn parse(text: &str, format: Format, path: &Path) -> Result<Value, Failure> {
    match format {
        Format::Json => parse_json(text).map_err(|error| not_json(path, &error)),
        Format::Toml => {
            let document: DocumentMut =
                text.parse().map_err(|error| not_toml(path, text, &error))?;
            Ok(from_table(document.as_table()))
        }
    }
}

/// Tells which format a text of an unknown client is in.
pub(in crate::cli) fn format_of(path: &Path, text: &str) -> Format {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Format::Toml,
        Some("json" | "jsonc") => Format::Json,
        _ if text.trim_start().starts_with(['{', '/']) => Format::Json,
        _ => Format::Toml,
    }
}

/// How JSON is read: as the clients that read the most, and no further.
pub(in crate::cli) fn json_options() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

fn parse_json(text: &str) -> Result<Value, jsonc_parser::errors::ParseError> {
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &json_options())?;
    Ok(parsed.value.map_or(Value::Null, from_json))
}

/// The parser bounds the depth, so this recursion ends.
fn from_json(value: ast::Value<'_>) -> Value {
    match value {
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::BooleanLit(literal) => Value::Bool(literal.value),
        ast::Value::NumberLit(literal) => Value::Number(literal.value.to_owned()),
        ast::Value::StringLit(literal) => Value::Text(literal.value.into_owned()),
        ast::Value::Array(array) => {
            Value::List(array.elements.into_iter().map(from_json).collect())
        }
        ast::Value::Object(object) => {
            let members = object.properties.into_iter();
            let members = members.map(|one| (one.name.into_string(), from_json(one.value)));
            Value::Table(members.collect())
        }
    }
}

fn from_table(table: &dyn TableLike) -> Value {
    let members = table.iter().map(|(key, item)| (key.to_owned(), from_item(item)));
    Value::Table(members.collect())
}

fn from_item(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(value) => from_toml(value),
        Item::Table(table) => from_table(table),
        Item::ArrayOfTables(tables) => {
            Value::List(tables.iter().map(|table| from_table(table)).collect())
        }
    }
}

fn from_toml(value: &toml_edit::Value) -> Value {
    use toml_edit::Value as Toml;
    match value {
        Toml::String(text) => Value::Text(text.value().clone()),
        Toml::Integer(number) => Value::Number(number.value().to_string()),
        Toml::Float(number) => Value::Number(number.value().to_string()),
        Toml::Boolean(yes) => Value::Bool(*yes.value()),
        Toml::Datetime(moment) => Value::Text(moment.value().to_string()),
        Toml::Array(array) => Value::List(array.iter().map(from_toml).collect()),
        Toml::InlineTable(table) => from_table(table),
    }
}

/// What is said of a file that is not JSON.
pub(in crate::cli) fn not_json(path: &Path, error: &jsonc_parser::errors::ParseError) -> Failure {
    let what = error.kind().to_string();
    let mut letters = what.chars();
    let what: String =
        letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect();
    Failure::NoConfig(format!(
        "{}:{}:{}: not JSON: {what}; correct it there and run this again",
        path.display(),
        error.line_display(),
        error.column_display()
    ))
}

/// What is said of a file that is not TOML.
pub(in crate::cli) fn not_toml(path: &Path, text: &str, error: &toml_edit::TomlError) -> Failure {
    let at = error.span().map_or(0, |span| span.start);
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    let what = error.message().lines().next().unwrap_or_default();
    Failure::NoConfig(format!(
        "{}:{line}:{column}: not TOML: {what}; correct it there and run this again",
        path.display()
    ))
}

/// Claude Code keeps its history in the same file as its servers.
const MAX_BYTES: u64 = 64 << 20;
