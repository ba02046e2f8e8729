//! One prompt file: front matter and body put together to a [`Prompt`].
//!
//! Every mistake that can be found without a client's arguments is found here, all of them at once and
//! each with its line, so that a prompt that is served can be filled.
//! Knows nothing of: the folder; the bytes of other files come from a closure.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use serde_saphyr::Spanned;

use super::attachment::Form;
use super::definition::define;
use super::front_matter::{self, WrittenArgument, WrittenMessage};
use super::message_parser::{self, Role, Written};
use super::prompt::{Argument, Content, Message, Prompt};
use super::template::{Flaw, MAX_FLAWS, MAX_TAGS, Template, is_name};

/// Gives the content block of a file that a prompt names, or says what is wrong with it.
pub(super) type Attach<'a> = dyn FnMut(Form, &str) -> Result<Box<RawValue>, String> + 'a;

/// Parses a file; `stem` is its name without the extension, for a prompt that does not state its own.
pub(super) fn parse(
    stem: &str,
    bytes: &[u8],
    attach: &mut Attach<'_>,
) -> Result<Prompt, Vec<Flaw>> {
    let source = text_of(bytes).map_err(|flaw| vec![flaw])?;
    let (matter, body, body_line) = front_matter::split(&source).map_err(|flaw| vec![flaw])?;
    let mut flaws = Vec::new();

    let (name, name_line) = match &matter.name {
        Some(name) => (name.value.as_str(), line_of(name)),
        None => (stem, 1),
    };
    if !is_name(name) {
        flaws.push(Flaw {
            line: name_line,
            what: format!("`{name}` cannot be the name of a prompt: {NAME_RULE}"),
        });
    }
    check_arguments(&matter.arguments, &mut flaws);
    let definition = define(name, &matter);
    if matter.description.as_ref().is_some_and(|text| text.len() > MAX_DESCRIPTION_BYTES) {
        flaws.push(Flaw {
            line: 1,
            what: format!("the description is larger than {} KiB", MAX_DESCRIPTION_BYTES >> 10),
        });
    } else if definition.len() > MAX_DEFINITION_BYTES {
        flaws.push(Flaw {
            line: 1,
            what: format!(
                "the front matter makes a definition larger than {} KiB",
                MAX_DEFINITION_BYTES >> 10
            ),
        });
    }

    let declared: Vec<&str> =
        matter.arguments.iter().map(|argument| argument.name.value.as_str()).collect();
    let mut composer = Composer {
        declared: &declared,
        attach,
        attached_bytes: 0,
        tags: MAX_TAGS,
        flaws: &mut flaws,
        messages: Vec::new(),
    };
    let pieces = message_parser::cut(body, body_line, composer.flaws);
    if matter.messages.len() + pieces.len() > MAX_MESSAGES {
        composer.flaw(1, format!("there are more than {MAX_MESSAGES} messages"));
    } else {
        matter.messages.iter().for_each(|message| composer.add_written(message));
        pieces.into_iter().for_each(|piece| composer.add(piece.role, piece.line, piece.content));
    }
    let messages = composer.messages;
    if messages.is_empty() && flaws.is_empty() {
        flaws.push(Flaw { line: 1, what: "there is no text, and so no message".to_owned() });
    }
    if !flaws.is_empty() {
        flaws.sort_by_key(|flaw| flaw.line);
        flaws.truncate(MAX_FLAWS);
        return Err(flaws);
    }
    let name = name.to_owned();
    let arguments = matter.arguments.into_iter().map(into_argument).collect();
    Ok(Prompt { name, description: matter.description, definition, arguments, messages })
}

/// The text as its writer sees it: no byte order mark, and a line ends with one character.
fn text_of(bytes: &[u8]) -> Result<String, Flaw> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        Flaw { line, what: "this is not UTF-8".to_owned() }
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n"))
}

fn check_arguments(arguments: &[WrittenArgument], flaws: &mut Vec<Flaw>) {
    let mut declared = BTreeSet::new();
    for argument in arguments {
        let (name, line) = (&argument.name.value, line_of(&argument.name));
        if !is_name(name) {
            flaws.push(Flaw {
                line,
                what: format!("`{name}` cannot be the name of an argument: {NAME_RULE}"),
            });
        }
        if !declared.insert(name) {
            flaws.push(Flaw { line, what: format!("argument `{name}` is declared twice") });
        }
        if argument.required && argument.default.is_some() {
            flaws.push(Flaw {
                line,
                what: format!("argument `{name}` is required, so its default would never be used"),
            });
        }
    }
}

fn into_argument(written: WrittenArgument) -> Argument {
    Argument {
        name: written.name.value,
        required: written.required,
        // A default without a text is none.
        default: written.default.filter(|text| !text.is_empty()),
        values: written.values.0.into_iter().map(|(value, _)| value).collect(),
    }
}

fn line_of<T>(spanned: &Spanned<T>) -> usize {
    usize::try_from(spanned.referenced.line()).unwrap_or(1).max(1)
}

// === Composer ===

/// Gathers the messages of one prompt.
struct Composer<'a, 'b> {
    declared: &'a [&'a str],
    attach: &'a mut Attach<'b>,
    attached_bytes: usize,
    /// How many tags its texts may still have.
    tags: usize,
    flaws: &'a mut Vec<Flaw>,
    messages: Vec<Message>,
}

impl Composer<'_, '_> {
    fn add_written(&mut self, message: &Spanned<WrittenMessage>) {
        let line = line_of(message);
        let WrittenMessage { role, text, image, audio, embed } = &message.value;
        let files = [(Form::Image, image), (Form::Audio, audio), (Form::Resource, embed)];
        let files = files
            .into_iter()
            .filter_map(|(form, path)| Some(Written::File { form, path: path.as_deref()? }));
        // A block of YAML ends with a line break that is not meant.
        let text = text.as_deref().map(|text| Written::Text(text.trim_end()));
        let mut contents = text.into_iter().chain(files);
        match (contents.next(), contents.next()) {
            (Some(content), None) => {
                let before = self.flaws.len();
                self.add(*role, line, content);
                // How the YAML folds the lines of a text is not known here: the message's line it is.
                self.flaws[before..].iter_mut().for_each(|flaw| flaw.line = line);
            }
            _ => self
                .flaw(line, "a message has one of `text`, `image`, `audio` and `embed`".to_owned()),
        }
    }

    fn add(&mut self, role: Role, line: usize, content: Written<'_>) {
        let content = match content {
            Written::Text(text) => {
                let (declared, tags) = (self.declared, &mut self.tags);
                Content::Text(Template::parse(text, line, declared, tags, self.flaws))
            }
            Written::File { form, path } => match (self.attach)(form, path) {
                Err(what) => return self.flaw(line, what),
                Ok(block) => {
                    self.attached_bytes += block.get().len();
                    if self.attached_bytes > MAX_ATTACHED_BYTES {
                        let what = format!(
                            "with `{path}` the prompt's files are larger than {} MiB as they are sent",
                            MAX_ATTACHED_BYTES >> 20
                        );
                        return self.flaw(line, what);
                    }
                    Content::Rendered(block)
                }
            },
        };
        self.messages.push(Message { role, content });
    }

    fn flaw(&mut self, line: usize, what: String) {
        self.flaws.push(Flaw { line, what });
    }
}

const NAME_RULE: &str = "1 to 128 of the letters A-Z and a-z, digits, `_`, `-` and `.`";
const MAX_MESSAGES: usize = 200;
/// As in the gateway's limits for any upstream: what is larger would be left out there, without a line.
const MAX_DESCRIPTION_BYTES: usize = 16 << 10;
const MAX_DEFINITION_BYTES: usize = 64 << 10;
/// Half of what an answer may be, so that the texts have the other half.
const MAX_ATTACHED_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &str) -> Result<Prompt, Vec<Flaw>> {
        parse("stem", source.as_bytes(), &mut |form, path| match path {
            "none.png" => Err(format!("`{path}`: there is no such file")),
            _ => Ok(serde_json::value::to_raw_value(&format!("{form:?} {path}")).unwrap()),
        })
    }

    fn definition(source: &str) -> String {
        String::from_utf8(read(source).unwrap().definition.to_vec()).unwrap()
    }

    fn flaws(source: &str) -> Vec<(usize, String)> {
        read(source).unwrap_err().into_iter().map(|flaw| (flaw.line, flaw.what)).collect()
    }

    #[test]
    fn the_file_is_the_name_of_a_prompt_that_states_none() {
        assert_eq!(definition("---\n---\ntext"), r#"{"name":"stem"}"#);
        assert_eq!(definition("\u{feff}---\r\nname: other\r\n---\r\ntext"), r#"{"name":"other"}"#);
    }

    #[test]
    fn a_definition_tells_everything_that_a_client_can_show() {
        let source = "---\ntitle: T\ndescription: D\nversion: 1.10\narguments:\n- name: a\n  title: A\n  description: The a.\n  required: true\n\
                      - name: b\n  default: x\n  values: {x: the first, y: }\n---\n{{a}}{{b}}";
        assert_eq!(
            definition(source),
            r#"{"name":"stem","title":"T","description":"D","arguments":[{"name":"a","title":"A","description":"The a.","required":true},{"name":"b","description":"Values: x (the first), y. Default: x.","required":false}],"_meta":{"weir/version":"1.10"}}"#
        );
    }

    #[test]
    fn messages_of_the_front_matter_come_before_the_body() {
        let prompt = read("---\nmessages:\n- text: one\n- {role: assistant, image: a.png}\n---\nthree\n![x](b.png)").unwrap();
        let told: Vec<String> = prompt
            .messages
            .iter()
            .map(|message| format!("{:?} {:?}", message.role, message.content))
            .collect();
        assert_eq!(told.len(), 4);
        assert!(
            told[0].contains("one")
                && told[1].contains("Assistant")
                && told[1].contains("Image a.png"),
            "{told:?}"
        );
        assert!(
            told[2].contains("three")
                && told[3].contains("User")
                && told[3].contains("Image b.png"),
            "{told:?}"
        );
    }

    #[test]
    fn every_mistake_is_reported_with_its_line() {
        let source = "---\nname: a b\narguments:\n- name: x\n  required: true\n  default: y\n- name: x\nmessages:\n- text: '{{z}}'\n- role: user\n---\n\
                      {{y}}\n![x](none.png)\n";
        assert_eq!(
            flaws(source),
            [
                (2, format!("`a b` cannot be the name of a prompt: {NAME_RULE}")),
                (4, "argument `x` is required, so its default would never be used".to_owned()),
                (7, "argument `x` is declared twice".to_owned()),
                (9, "`{{z}}`: there is no argument `z` in the front matter; write `\\{{` for two literal braces".to_owned()),
                (10, "a message has one of `text`, `image`, `audio` and `embed`".to_owned()),
                (12, "`{{y}}`: there is no argument `y` in the front matter; write `\\{{` for two literal braces".to_owned()),
                (13, "`none.png`: there is no such file".to_owned()),
            ]
        );
    }

    #[test]
    fn a_prompt_without_text_and_a_file_that_is_no_text_are_refused() {
        assert_eq!(flaws("---\n---\n \n"), [(1, "there is no text, and so no message".to_owned())]);
        let flaws = parse("stem", b"---\n---\n\n\xff", &mut |_, _| Err(String::new())).unwrap_err();
        assert_eq!(flaws, [Flaw { line: 4, what: "this is not UTF-8".to_owned() }]);
    }

    #[test]
    fn what_a_prompt_may_hold_is_bounded() {
        let many = format!("---\n---\n{}", "![x](a.png)\n".repeat(MAX_MESSAGES + 1));
        assert_eq!(flaws(&many), [(1, "there are more than 200 messages".to_owned())]);
        let long =
            format!("---\ndescription: {}\n---\ntext", "x".repeat(MAX_DESCRIPTION_BYTES + 1));
        assert_eq!(flaws(&long), [(1, "the description is larger than 16 KiB".to_owned())]);
    }

    #[test]
    fn a_definition_is_bounded() {
        let titled = |length: usize| format!("---\ntitle: {}\n---\ntext", "x".repeat(length));
        let rest = definition(&titled(1)).len() - 1;
        assert_eq!(definition(&titled(MAX_DEFINITION_BYTES - rest)).len(), 64 << 10);
        let what = "the front matter makes a definition larger than 64 KiB";
        assert_eq!(flaws(&titled(MAX_DEFINITION_BYTES - rest + 1)), [(1, what.to_owned())]);
    }

    #[test]
    fn the_files_of_a_prompt_are_bounded_as_they_are_sent() {
        // Four blocks that fill the bound, the quotes of the JSON included.
        let block = serde_json::value::to_raw_value(&"x".repeat((1 << 20) - 2)).unwrap();
        let read = |count: usize| {
            let source = format!("---\n---\n{}", "![x](a.png)\n".repeat(count));
            parse("stem", source.as_bytes(), &mut |_, _| Ok(block.clone()))
        };
        assert_eq!(read(4).unwrap().messages.len(), 4);
        let what = "with `a.png` the prompt's files are larger than 4 MiB as they are sent";
        assert_eq!(read(5).unwrap_err(), [Flaw { line: 7, what: what.to_owned() }]);
    }

    #[test]
    fn a_file_takes_time_in_proportion_to_its_size_whatever_is_in_it() {
        let body = "---\narguments:\n- name: a\n---\n";
        let tags =
            ["{{a}}", "{{a}}\n", "{{", "{{a", "{{b}}", "{{#a}}", "{{#a}}{{/a}}", "{{#a}} \n"];
        let texts = ["\\", "\\{{", "\\\\{{a}}", "}}", " ", "\n", "[", "```\n", "![x](a.png)\n"];
        let roles = ["<!-- role: user -->\n", "<!-- role: user -->\nx\n"];
        let in_body = tags.into_iter().chain(texts).chain(roles).map(|unit| (body, unit));
        let lists = [("---\n", "# c\n"), ("---\narguments:\n", "- name: a\n")];
        let scalars =
            [("---\ndescription: ", "x"), ("---\ndescription: |\n", "  x\n"), ("---\n", "[")];
        let messages = [("---\nmessages:\n", "- text: x\n"), ("---\nmessages:\n- text: ", "{{a}}")];
        for (head, unit) in in_body.chain(lists).chain(scalars).chain(messages) {
            let took = |bytes: usize| {
                let mut source = head.to_owned();
                source.extend(std::iter::repeat_n(unit, (bytes - head.len()) / unit.len()));
                let begin = std::time::Instant::now();
                let _ = read(&source);
                let _ = read(&format!("{source}\n---\ntext"));
                begin.elapsed()
            };
            // The quickest of some, since other tests run beside this one.
            let quickest = |bytes| (0..3).map(|_| took(bytes)).min().unwrap();
            // What was quadratic is shown at the largest size of a file.
            let size = if unit == "{{a}}" { 1 << 20 } else { 256 << 10 };
            let (small, large) = (quickest(size / 16), quickest(size));
            // 16 times as much takes 16 times as long; a step for each pair of bytes would take 256 times.
            let slack = std::time::Duration::from_millis(100);
            assert!(large < 64 * small + slack, "{unit:?}: {small:?}, then {large:?}");
        }
    }
}
