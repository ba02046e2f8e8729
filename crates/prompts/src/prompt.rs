//! One prompt, ready for `prompts/list`, `prompts/get` and `completion/complete`.
//!
//! Parts that do not depend on a client's arguments are rendered when the file is read; a response
//! only combines them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::PromptError;
use super::message_parser::MessageRole;
use super::template::Template;

/// Prompt as read from its file.
#[derive(Debug)]
pub(super) struct Prompt {
    /// Name of the file within the folder. A client does not see it.
    pub(super) file: String,
    pub(super) name: String,
    pub(super) description: Option<String>,
    /// Definition for `prompts/list`.
    pub(super) definition: Bytes,
    pub(super) arguments: Vec<Argument>,
    pub(super) messages: Vec<PromptMessage>,
}

/// Properties of an argument that filling and completion need.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Argument {
    pub(super) name: String,
    pub(super) required: bool,
    pub(super) default: Option<String>,
    pub(super) values: Vec<String>,
}

/// Message before it is filled.
#[derive(Debug)]
pub(super) struct PromptMessage {
    pub(super) role: MessageRole,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Text(Template),
    /// Rendered image, audio or file: there is nothing to fill.
    Rendered(Box<RawValue>),
}

impl Prompt {
    /// Builds the `GetPromptResult`.
    pub(super) fn get(&self, arguments: &BTreeMap<String, String>) -> Result<Bytes, PromptError> {
        let given = self.given(arguments)?;
        let mut messages = Vec::new();
        let mut remaining = MAX_RESPONSE_BYTES;
        for message in &self.messages {
            let content = match &message.content {
                Content::Rendered(block) => ContentBlock::Rendered(block),
                Content::Text(template) => {
                    let mut text = String::new();
                    template.fill(&given, &mut text, remaining).map_err(|_| TOO_LARGE)?;
                    remaining -= text.len();
                    // A message that consists of a section is empty without it.
                    if text.trim().is_empty() {
                        continue;
                    }
                    ContentBlock::Text { kind: "text", text }
                }
            };
            messages.push(RenderedMessage { role: message.role, content });
        }
        let response =
            to_bytes(&GetPromptResult { description: self.description.as_deref(), messages });
        // JSON escapes can make a text six times as long.
        if response.len() > MAX_RESPONSE_BYTES { Err(TOO_LARGE) } else { Ok(response) }
    }

    /// Returns the arguments that have a value. An empty one counts as not given: a client's form
    /// has a field for each argument, and sends the empty ones too. Undeclared arguments are
    /// ignored.
    fn given<'a>(
        &'a self,
        arguments: &'a BTreeMap<String, String>,
    ) -> Result<BTreeMap<&'a str, &'a str>, PromptError> {
        let mut given = BTreeMap::new();
        for argument in &self.arguments {
            let sent = arguments.get(&argument.name).filter(|text| !text.is_empty());
            match sent.or(argument.default.as_ref()) {
                Some(text) => drop(given.insert(argument.name.as_str(), text.as_str())),
                None if argument.required => {
                    return Err(PromptError::MissingArgument { argument: argument.name.clone() });
                }
                None => {}
            }
        }
        Ok(given)
    }

    /// Builds the `CompleteResult` for one argument: values that begin with the prefix come before
    /// those that contain it, each group in the author's order.
    pub(super) fn complete(&self, argument: &str, prefix: &str) -> Result<Bytes, PromptError> {
        let Some(argument) = self.arguments.iter().find(|declared| declared.name == argument)
        else {
            return Err(PromptError::UnknownArgument {
                prompt: self.name.clone(),
                argument: argument.to_owned(),
            });
        };
        let prefix = prefix.to_lowercase();
        let (mut values, mut containing) = (Vec::new(), Vec::new());
        for value in &argument.values {
            match value.to_lowercase().find(&prefix) {
                Some(0) => values.push(value.as_str()),
                Some(_) => containing.push(value.as_str()),
                None => {}
            }
        }
        values.append(&mut containing);
        let total = values.len();
        values.truncate(MAX_COMPLETIONS);
        Ok(to_bytes(&CompleteResult {
            completion: CompletionValues { values, total, has_more: total > MAX_COMPLETIONS },
        }))
    }
}

/// Prompts are equal if every client would get the same responses.
impl PartialEq for Prompt {
    fn eq(&self, other: &Prompt) -> bool {
        // The definition contains the name, the description and the required arguments.
        self.definition == other.definition
            && self.arguments == other.arguments
            && self.messages == other.messages
    }
}

impl PartialEq for PromptMessage {
    fn eq(&self, other: &PromptMessage) -> bool {
        let same = match (&self.content, &other.content) {
            (Content::Text(one), Content::Text(another)) => one == another,
            (Content::Rendered(one), Content::Rendered(another)) => one.get() == another.get(),
            _ => false,
        };
        same && self.role == other.role
    }
}

fn to_bytes(response: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(response).expect("strings, lists and numbers are always JSON"))
}

// === JSON ===

#[derive(Serialize)]
struct GetPromptResult<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    messages: Vec<RenderedMessage<'a>>,
}

#[derive(Serialize)]
struct RenderedMessage<'a> {
    role: MessageRole,
    content: ContentBlock<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ContentBlock<'a> {
    Text {
        #[serde(rename = "type")]
        kind: &'static str,
        text: String,
    },
    Rendered(&'a RawValue),
}

#[derive(Serialize)]
struct CompleteResult<'a> {
    completion: CompletionValues<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CompletionValues<'a> {
    values: Vec<&'a str>,
    total: usize,
    has_more: bool,
}

const TOO_LARGE: PromptError = PromptError::TooLarge { limit_bytes: MAX_RESPONSE_BYTES };

/// Maximum response size, as for a message of any upstream.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// `maxItems` of the schema.
const MAX_COMPLETIONS: usize = 100;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::file;
    use super::*;

    fn prompt(source: &str) -> Prompt {
        file::parse("p.md", source.as_bytes(), &mut |_, _| Err("no files here".to_owned())).unwrap()
    }

    fn arguments(given: &[(&str, &str)]) -> BTreeMap<String, String> {
        given.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn get(source: &str, given: &[(&str, &str)]) -> Result<String, PromptError> {
        prompt(source)
            .get(&arguments(given))
            .map(|response| String::from_utf8(response.to_vec()).unwrap())
    }

    const TWO: &str = "---\ndescription: D\narguments:\n- {name: a, required: true}\n- {name: b, default: dflt}\n- {name: c}\n---\n\
                       {{a}} {{b}}\n<!-- role: assistant -->\n{{#c}}\nmore {{c}}\n{{/c}}";

    #[test]
    fn a_prompt_is_filled_message_by_message() {
        assert_eq!(
            get(TWO, &[("a", "1"), ("b", "2"), ("c", "3")]).unwrap(),
            r#"{"description":"D","messages":[{"role":"user","content":{"type":"text","text":"1 2"}},{"role":"assistant","content":{"type":"text","text":"more 3\n"}}]}"#
        );
    }

    #[test]
    fn an_argument_is_filled_in_within_a_code_fence_too() {
        let source = "---\ndescription: D\narguments:\n- {name: a}\n---\n```\n{{a}}\n```";
        let response = get(source, &[("a", "1")]).unwrap();
        assert!(response.contains(r"```\n1\n```"), "{response}");
    }

    #[test]
    fn an_empty_argument_is_one_that_is_not_given_and_a_blank_message_is_left_out() {
        let expected = r#"{"description":"D","messages":[{"role":"user","content":{"type":"text","text":"1 dflt"}}]}"#;
        assert_eq!(get(TWO, &[("a", "1")]).unwrap(), expected);
        assert_eq!(get(TWO, &[("a", "1"), ("b", ""), ("c", "")]).unwrap(), expected);
    }

    #[test]
    fn a_missing_argument_is_named() {
        for given in [&[("b", "2")][..], &[("a", "")][..]] {
            let refusal = get(TWO, given).unwrap_err();
            assert_eq!(refusal, PromptError::MissingArgument { argument: "a".to_owned() });
            assert_eq!(refusal.to_string(), "missing required argument `a`");
        }
    }

    #[test]
    fn an_argument_that_is_not_declared_is_not_looked_at() {
        assert_eq!(get(TWO, &[("a", "1"), ("zzz", "{{a}}")]), get(TWO, &[("a", "1")]));
    }

    #[test]
    fn an_answer_is_bounded_before_it_is_made() {
        let source = format!("---\narguments: [{{name: a}}]\n---\n{}", "{{a}}".repeat(1000));
        let long = "x".repeat(1 << 20);
        assert_eq!(get(&source, &[("a", &long)]).unwrap_err(), TOO_LARGE);
        let escaped = "\u{1}".repeat(2 << 20);
        assert_eq!(
            get("---\narguments: [{name: a}]\n---\n{{a}}", &[("a", &escaped)]).unwrap_err(),
            TOO_LARGE
        );
    }

    fn check_completion(prefix: &str, expected: &str) {
        let prompt = prompt(
            "---\narguments:\n- {name: lang, values: [TypeScript, Rust, JavaScript, scheme]}\n- name: free\n---\nx",
        );
        let response = prompt.complete("lang", prefix).unwrap();
        assert_eq!(String::from_utf8_lossy(&response), format!(r#"{{"completion":{expected}}}"#));
    }

    #[test]
    fn completions_that_begin_with_the_prefix_come_first() {
        check_completion(
            "sc",
            r#"{"values":["scheme","TypeScript","JavaScript"],"total":3,"hasMore":false}"#,
        );
        check_completion("RUST", r#"{"values":["Rust"],"total":1,"hasMore":false}"#);
        check_completion(
            "",
            r#"{"values":["TypeScript","Rust","JavaScript","scheme"],"total":4,"hasMore":false}"#,
        );
        check_completion("cobol", r#"{"values":[],"total":0,"hasMore":false}"#);
    }

    #[test]
    fn at_most_a_hundred_completions_are_sent() {
        let values: Vec<String> = (0..150).map(|n| format!("v{n}")).collect();
        let prompt = prompt(&format!(
            "---\narguments:\n- {{name: a, values: [{}]}}\n- name: b\n---\nx",
            values.join(",")
        ));
        let response = String::from_utf8(prompt.complete("a", "v").unwrap().to_vec()).unwrap();
        assert!(response.ends_with(r#""v99"],"total":150,"hasMore":true}}"#), "{response}");
        assert_eq!(
            &prompt.complete("b", "").unwrap()[..],
            br#"{"completion":{"values":[],"total":0,"hasMore":false}}"#
        );
        let unknown =
            PromptError::UnknownArgument { prompt: "p".to_owned(), argument: "z".to_owned() };
        assert_eq!(prompt.complete("z", ""), Err(unknown));
    }

    #[test]
    fn a_text_that_is_not_among_the_values_is_accepted() {
        let source = "---\narguments:\n- {name: lang, values: [Rust, Zig]}\n---\n{{lang}}";
        let response = get(source, &[("lang", "COBOL")]).unwrap();
        assert!(response.contains(r#""text":"COBOL""#), "{response}");
    }

    proptest! {
        #[test]
        fn filling_never_panics_and_every_argument_occurs_verbatim(a in r"(\{\{|\}\}|[#/\\]|a|b|\PC|\n){1,20}", b in ".*", c in ".*") {
            let response = get(TWO, &[("a", &a), ("b", &b), ("c", &c)]).unwrap();
            let expected = format!("{a} {}", if b.is_empty() { "dflt" } else { &b });
            if !expected.trim().is_empty() {
                prop_assert!(response.contains(&serde_json::to_string(&expected).unwrap()), "{response}");
            }
            if !c.trim().is_empty() {
                prop_assert!(response.contains(&serde_json::to_string(&format!("more {c}\n")).unwrap()), "{response}");
            }
        }
    }
}
