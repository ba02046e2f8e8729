//! Front matter of a prompt file: YAML between two lines of `---`.
//!
//! Parsed with a small budget and without aliases, anchors and merge keys: prompts do not need
//! them, and without them a small file cannot expand. An unknown key is an error, since it is
//! usually a misspelled one.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};

use super::message_parser::MessageRole;
use super::template::Mistake;

/// Parsed front matter.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FrontMatter {
    pub(super) name: Option<Spanned<String>>,
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    pub(super) version: Option<String>,
    #[serde(default)]
    pub(super) arguments: Vec<ArgumentDeclaration>,
    #[serde(default)]
    pub(super) messages: Vec<Spanned<FrontMatterMessage>>,
}

/// Declaration of an argument.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArgumentDeclaration {
    pub(super) name: Spanned<String>,
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    #[serde(default)]
    pub(super) required: bool,
    pub(super) default: Option<String>,
    #[serde(default)]
    pub(super) values: Values,
}

/// Message in the front matter; it has exactly one of the four contents.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FrontMatterMessage {
    #[serde(default)]
    pub(super) role: MessageRole,
    pub(super) text: Option<String>,
    pub(super) image: Option<String>,
    pub(super) audio: Option<String>,
    pub(super) embed: Option<String>,
}

/// Values offered for an argument: a list, or a mapping from value to meaning.
#[derive(Debug, Default)]
pub(super) struct Values(pub(super) Vec<(String, Option<String>)>);

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Values, D::Error> {
        struct ValuesVisitor;
        impl<'de> Visitor<'de> for ValuesVisitor {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of values, or a mapping from value to description")
            }

            // Elements are deserialized as strings, which keeps `1.10` and `no` as they are
            // written.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push((value, None));
                }
                Ok(Values(values))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut mapping: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some(entry) = mapping.next_entry()? {
                    values.push(entry);
                }
                Ok(Values(values))
            }
        }
        deserializer.deserialize_any(ValuesVisitor)
    }
}

/// Splits a file into the front matter and the body with the number of its first line.
pub(super) fn split(source: &str) -> Result<(FrontMatter, &str, usize), Mistake> {
    let mut at = 0;
    for (index, line) in source.split_inclusive('\n').enumerate() {
        let is_mark = line.trim_end() == "---";
        if index == 0 && !is_mark {
            break;
        }
        if index > 0 && is_mark {
            let body = &source[at + line.len()..];
            return Ok((parse(&source[..at])?, body, index + 2));
        }
        at += line.len();
    }
    let what = if at == 0 { NO_FRONT_MATTER } else { OPEN_FRONT_MATTER };
    Err(Mistake::new(1, what))
}

/// Parses the YAML including the mark before it, so that its line numbers are those of the file.
fn parse(yaml: &str) -> Result<FrontMatter, Mistake> {
    let has_keys = yaml
        .lines()
        .skip(1)
        .any(|line| !line.trim_start().is_empty() && !line.trim_start().starts_with('#'));
    if !has_keys {
        return Ok(FrontMatter::default());
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: 1,
            max_depth: 8,
            flow_nesting_limit: 8,
            max_events: 20_000,
            max_nodes: 10_000,
            max_aliases: 0,
            max_anchors: 0,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
    };
    serde_saphyr::from_str_with_options(yaml, options).map_err(|error| {
        let location = error.location();
        let line = location.map_or(1, |location| usize::try_from(location.line()).unwrap_or(1));
        Mistake::new(line.max(1), describe(error.without_snippet()))
    })
}

/// Returns the parser's message without the position, which a [`Mistake`] states itself, and
/// without advice for programmers.
fn describe(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::Budget { .. } => {
            "anchors, aliases, or more than a front matter may hold".to_owned()
        }
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("key `{key}` stands here twice")
        }
        serde_saphyr::Error::Unexpected { expected: "string scalar", .. } => {
            "expected a text: put it in quotes if it begins with `[`, `{` or another sign"
                .to_owned()
        }
        serde_saphyr::Error::Unexpected { expected: "mapping start", .. } => {
            "expected a key and a value, such as `description: Reviews a change`".to_owned()
        }
        other => {
            let text = other.to_string();
            let place = other
                .location()
                .map(|at| format!(" at line {}, column {}", at.line(), at.column()));
            place.and_then(|place| text.strip_suffix(&place)).unwrap_or(&text).to_owned()
        }
    }
}

const NO_FRONT_MATTER: &str = "\
there is no front matter: begin the file with a line `---`, a line such as \
`description: Reviews a change` and another line `---`; the prompt follows";

const OPEN_FRONT_MATTER: &str = "the front matter is never closed by a second line of `---`";

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(source: &str) -> (usize, String) {
        let mistake = split(source).unwrap_err();
        (mistake.line, mistake.what)
    }

    #[test]
    fn the_body_begins_behind_the_second_mark() {
        let (matter, body, line) = split("---\nname: a\n---\nb\n---\nc").unwrap();
        assert_eq!((matter.name.unwrap().value.as_str(), body, line), ("a", "b\n---\nc", 4));
        let (matter, body, line) = split("---\n# nothing\n---\n").unwrap();
        assert!(matter.name.is_none());
        assert_eq!((body, line), ("", 4));
    }

    #[test]
    fn values_are_a_list_or_a_mapping_and_stay_as_written() {
        let source = "---\narguments:\n- {name: a, values: [1.10, no, x]}\n- name: b\n  values:\n    0x1: one\n    true:\n---\n";
        let (matter, ..) = split(source).unwrap();
        let values: Vec<_> =
            matter.arguments.into_iter().map(|argument| argument.values.0).collect();
        let plain = |value: &str| (value.to_owned(), None);
        assert_eq!(values[0], [plain("1.10"), plain("no"), plain("x")]);
        assert_eq!(values[1], [("0x1".to_owned(), Some("one".to_owned())), plain("true")]);
    }

    #[test]
    fn front_matter_that_is_missing_or_open_is_reported() {
        let missing = "there is no front matter: begin the file with a line `---`, a line such as \
                       `description: Reviews a change` and another line `---`; the prompt follows";
        assert_eq!(mistake("text"), (1, missing.to_owned()));
        assert_eq!(mistake(""), (1, missing.to_owned()));
        assert!(split("---\ndescription: Reviews a change\n---\nReview it.\n").is_ok());
        assert_eq!(
            mistake("---\nname: a\n"),
            (1, "the front matter is never closed by a second line of `---`".to_owned())
        );
    }

    #[test]
    fn a_mistake_in_the_yaml_is_reported_with_the_line_of_the_file() {
        let unknown = "unknown field `titel`, expected one of name, title, description, version, arguments, messages";
        let budget = "anchors, aliases, or more than a front matter may hold";
        let text = "expected a text: put it in quotes if it begins with `[`, `{` or another sign";
        let mapping = "expected a key and a value, such as `description: Reviews a change`";
        for (source, line, what) in [
            ("---\nname: a\ntitel: b\n---\n", 3, unknown),
            ("---\nname: a\nname: b\n---\n", 3, "key `name` stands here twice"),
            ("---\nname: [a\n---\n", 2, text),
            ("---\n\nHello!\n---\n", 3, mapping),
            ("---\nmessages:\n- Hello!\n---\n", 3, mapping),
            ("---\narguments:\n- title: x\n---\n", 3, "missing field `name`"),
            ("---\nname: &a x\n---\n", 2, budget),
            ("---\nversion: {a: b}\n---\n", 2, text),
        ] {
            assert_eq!(mistake(source), (line, what.to_owned()));
        }
    }
}
