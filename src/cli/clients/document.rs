//! Parser of clients' files: JSON with comments and trailing commas, TOML or YAML.
//!
//! All formats become a [`DocumentValue`] in the order of the file. Errors contain the line and
//! the column, but never the text at that place, because it may be a secret.

mod yaml;

use std::path::Path;

use jsonc_parser::ast;
use jsonc_parser::{CollectOptions, ParseOptions};
use toml_edit::{DocumentMut, Table};

use crate::cli::exit::Failure;
use crate::cli::files::PreparedFile;
use weir_base::files::regular_file;

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON, with comments and trailing commas.
    Json,
    /// TOML.
    Toml,
    /// YAML, one document.
    Yaml,
}

/// Extensions of JSON that a client's parser reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JsonDialect {
    /// Comments.
    pub(crate) comments: bool,
    /// Commas behind the last member or element.
    pub(crate) trailing_commas: bool,
}

impl JsonDialect {
    /// JSON of RFC 8259.
    pub(crate) const STRICT: Self = Self { comments: false, trailing_commas: false };
    /// All extensions.
    pub(crate) const TOLERANT: Self = Self { comments: true, trailing_commas: true };
}

/// Value of any format.
#[derive(Clone, Debug)]
pub(crate) enum DocumentValue {
    /// Null of JSON and YAML.
    Null,
    /// Boolean.
    Bool(bool),
    /// Number, as it is written.
    Number(String),
    /// String.
    Text(String),
    /// List.
    List(Vec<DocumentValue>),
    /// Table, in the order of the file.
    Table(Vec<(String, DocumentValue)>),
}

/// The order of a table means nothing in any format: in TOML it is that of the first header of each
/// table. Members of one name are compared in their order.
impl PartialEq for DocumentValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(one), Self::Bool(other)) => one == other,
            (Self::Number(one), Self::Number(other)) | (Self::Text(one), Self::Text(other)) => {
                one == other
            }
            (Self::List(one), Self::List(other)) => one == other,
            (Self::Table(one), Self::Table(other)) => {
                let sorted = |members: &[(String, Self)]| {
                    let mut all: Vec<_> = (0..members.len()).collect();
                    all.sort_by_key(|at| &members[*at].0);
                    all
                };
                one.len() == other.len()
                    && sorted(one).into_iter().zip(sorted(other)).all(|(a, b)| one[a] == other[b])
            }
            _ => false,
        }
    }
}

impl DocumentValue {
    /// Returns a member of a table. Of two members with one name, clients use the last.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.members().iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns a member of a table to change it, as [`Self::get`] does.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Table(members) = self else { return None };
        members.iter_mut().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns the members of a table; empty for other values.
    pub(crate) fn members(&self) -> &[(String, Self)] {
        match self {
            Self::Table(members) => members,
            _ => &[],
        }
    }

    /// Returns the elements of a list; empty for other values.
    pub(crate) fn elements(&self) -> &[Self] {
        match self {
            Self::List(elements) => elements,
            _ => &[],
        }
    }

    /// Returns a string, or the string form of a number or boolean.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) | Self::Number(text) => Some(text.clone()),
            Self::Bool(yes) => Some(yes.to_string()),
            Self::Null | Self::List(_) | Self::Table(_) => None,
        }
    }

    /// Formats the value on one line, as JSON, which is also YAML.
    pub(crate) fn to_line(&self) -> String {
        let quoted = |text: &String| serde_json::to_string(text).unwrap_or_default();
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(yes) => yes.to_string(),
            Self::Number(number) => number.clone(),
            Self::Text(text) => quoted(text),
            Self::List(list) => {
                format!("[{}]", list.iter().map(Self::to_line).collect::<Vec<_>>().join(", "))
            }
            Self::Table(members) => {
                let members = members.iter();
                let members = members.map(|(key, it)| format!("{}: {}", quoted(key), it.to_line()));
                format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Returns whether the value is a table.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self, Self::Table(_))
    }
}

/// Text of a file, without its byte order mark.
pub(crate) struct FileText {
    /// Text without the mark.
    pub(crate) text: String,
    /// The file begins with a mark.
    pub(crate) has_mark: bool,
}

/// Reads a file; `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<FileText>, Failure> {
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
    Ok(Some(FileText { text, has_mark }))
}

/// Replaces the text of a file, or creates the file; a byte order mark is preserved.
pub(crate) fn replace(path: &Path, old: Option<&FileText>, new: &str) -> Result<(), Failure> {
    prepare(path, old, new)?.finish()
}

/// Prepares what [`replace`] does.
pub(crate) fn prepare(
    path: &Path,
    old: Option<&FileText>,
    new: &str,
) -> Result<PreparedFile, Failure> {
    let mark = if old.is_some_and(|old| old.has_mark) { "\u{feff}" } else { "" };
    let old = old.map(|old| format!("{mark}{}", old.text));
    PreparedFile::replacing(path, old.as_deref(), &format!("{mark}{new}"))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage(format!(
        "{} cannot be read: {error}; check the path and its permissions",
        path.display()
    ))
}

/// Parses a text. Errors name `path`.
pub(crate) fn parse(
    text: &str,
    format: Format,
    dialect: JsonDialect,
    path: &Path,
) -> Result<DocumentValue, Failure> {
    match format {
        Format::Json => parse_json(text, dialect).map_err(|error| not_json(path, &error)),
        Format::Toml => {
            let document: DocumentMut =
                text.parse().map_err(|error| not_toml(path, text, &error))?;
            let table = document.as_table().clone();
            Ok(from_toml(&table.into_inline_table().into()))
        }
        Format::Yaml => yaml::parse(text).map_err(|error| yaml::not_yaml(path, &error)),
    }
}

/// Detects the format of an unknown client's text.
pub(crate) fn detect_format(path: &Path, text: &str) -> Format {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Format::Toml,
        Some("json" | "jsonc") => Format::Json,
        Some("yaml" | "yml") => Format::Yaml,
        _ if text.trim_start().starts_with(['{', '/']) => Format::Json,
        _ if text.parse::<DocumentMut>().is_ok() => Format::Toml,
        _ if yaml::parse(text).is_ok_and(|document| document.is_table()) => Format::Yaml,
        _ => Format::Toml,
    }
}

/// Options of the JSON parser: as tolerant as the most tolerant client.
pub(crate) fn json_options() -> ParseOptions {
    options_of(JsonDialect::TOLERANT)
}

fn options_of(dialect: JsonDialect) -> ParseOptions {
    ParseOptions {
        allow_comments: dialect.comments,
        allow_trailing_commas: dialect.trailing_commas,
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

fn parse_json(
    text: &str,
    dialect: JsonDialect,
) -> Result<DocumentValue, jsonc_parser::errors::ParseError> {
    let options = options_of(dialect);
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &options)?;
    Ok(parsed.value.map_or(DocumentValue::Null, from_json))
}

/// Converts JSON. The parser bounds the depth of the recursion.
fn from_json(value: ast::Value<'_>) -> DocumentValue {
    match value {
        ast::Value::NullKeyword(_) => DocumentValue::Null,
        ast::Value::BooleanLit(literal) => DocumentValue::Bool(literal.value),
        ast::Value::NumberLit(literal) => DocumentValue::Number(literal.value.to_owned()),
        ast::Value::StringLit(literal) => DocumentValue::Text(literal.value.into_owned()),
        ast::Value::Array(array) => {
            DocumentValue::List(array.elements.into_iter().map(from_json).collect())
        }
        ast::Value::Object(object) => {
            let members = object.properties.into_iter();
            let members = members.map(|one| (one.name.into_string(), from_json(one.value)));
            DocumentValue::Table(members.collect())
        }
    }
}

fn from_toml(value: &toml_edit::Value) -> DocumentValue {
    use toml_edit::Value as Toml;
    match value {
        Toml::String(text) => DocumentValue::Text(text.value().clone()),
        Toml::Integer(number) => DocumentValue::Number(number.value().to_string()),
        Toml::Float(number) => DocumentValue::Number(number.value().to_string()),
        Toml::Boolean(yes) => DocumentValue::Bool(*yes.value()),
        Toml::Datetime(moment) => DocumentValue::Text(moment.value().to_string()),
        Toml::Array(array) => DocumentValue::List(array.iter().map(from_toml).collect()),
        Toml::InlineTable(table) => {
            let members = table.iter().map(|(key, value)| (key.to_owned(), from_toml(value)));
            DocumentValue::Table(members.collect())
        }
    }
}

/// Creates a table that is written only as the beginning of its members' headers.
pub(crate) fn implicit_table() -> Table {
    let mut table = Table::new();
    table.set_implicit(true);
    table
}

/// Failure for a file that is not JSON.
pub(crate) fn not_json(path: &Path, error: &jsonc_parser::errors::ParseError) -> Failure {
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

/// Failure for a file that is not TOML.
pub(crate) fn not_toml(path: &Path, text: &str, error: &toml_edit::TomlError) -> Failure {
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

/// Largest file that is read: Claude Code stores its history in the same file as its servers.
const MAX_BYTES: u64 = 64 << 20;
