//! Parser of one prompt file: builds a [`Prompt`] from front matter and body.
//!
//! Every mistake that can be found without a client's arguments is found here, all of them in one
//! pass and each with its line, so that a served prompt can be filled. The bytes of other files
//! come from a closure.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use serde_saphyr::Spanned;

use super::attachment::AttachmentKind;
use super::definition::define;
use super::front_matter::{self, ArgumentDeclaration, FrontMatterMessage};
use super::message_parser::{self, MessageRole, PromptContent};
use super::prompt::{Argument, Content, Prompt, PromptMessage};
use super::template::{MAX_MISTAKES, MAX_TAGS, Mistake, Template, is_name};

/// Returns the content block of a file that a prompt names, or an error text.
pub(super) type Attach<'a> = dyn FnMut(AttachmentKind, &str) -> Result<Box<RawValue>, String> + 'a;

/// Parses a file. Its name without extension is the default name of the prompt.
pub(super) fn parse(
    file: &str,
    bytes: &[u8],
    attach: &mut Attach<'_>,
) -> Result<Prompt, Vec<Mistake>> {
    let source = decode(bytes).map_err(|mistake| vec![mistake])?;
    let (front, body, body_line) = front_matter::split(&source).map_err(|mistake| vec![mistake])?;
    let mut mistakes = Vec::new();

    let (name, name_line) = match &front.name {
        Some(name) => (name.value.as_str(), line_of(name)),
        None => (file.strip_suffix(".md").unwrap_or(file), 1),
    };
    if !is_name(name) {
        let what = format!("`{name}` cannot be the name of a prompt: {NAME_RULE}");
        mistakes.push(Mistake::new(name_line, what));
    }
    check_arguments(&front.arguments, &mut mistakes);
    let definition = define(name, &front);
    if front.description.as_ref().is_some_and(|text| text.len() > MAX_DESCRIPTION_BYTES) {
        let what = format!("the description is larger than {} KiB", MAX_DESCRIPTION_BYTES >> 10);
        mistakes.push(Mistake::new(1, what));
    } else if definition.len() > MAX_DEFINITION_BYTES {
        let most = MAX_DEFINITION_BYTES >> 10;
        let what = format!("the front matter makes a definition larger than {most} KiB");
        mistakes.push(Mistake::new(1, what));
    }

    let declared: Vec<&str> =
        front.arguments.iter().map(|argument| argument.name.value.as_str()).collect();
    let mut composer = Composer {
        declared: &declared,
        attach,
        attached_bytes: 0,
        tags: MAX_TAGS,
        mistakes: &mut mistakes,
        messages: Vec::new(),
    };
    let pieces = message_parser::parse(body, body_line, composer.mistakes);
    if front.messages.len() + pieces.len() > MAX_MESSAGES {
        composer.mistake(1, format!("there are more than {MAX_MESSAGES} messages"));
    } else {
        front.messages.iter().for_each(|message| composer.add_front_matter_message(message));
        pieces.into_iter().for_each(|piece| composer.add(piece.role, piece.line, piece.content));
    }
    let messages = composer.messages;
    if messages.is_empty() && mistakes.is_empty() {
        mistakes.push(Mistake::new(1, "there is no text, and so no message"));
    }
    if !mistakes.is_empty() {
        mistakes.sort_by_key(|mistake| mistake.line);
        mistakes.truncate(MAX_MISTAKES);
        return Err(mistakes);
    }
    let (file, name) = (file.to_owned(), name.to_owned());
    let arguments = front.arguments.into_iter().map(into_argument).collect();
    Ok(Prompt { file, name, description: front.description, definition, arguments, messages })
}

/// Decodes the text: removes a byte order mark and normalizes line ends.
fn decode(bytes: &[u8]) -> Result<String, Mistake> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        Mistake::new(line, "this is not UTF-8")
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n"))
}

fn check_arguments(arguments: &[ArgumentDeclaration], mistakes: &mut Vec<Mistake>) {
    let mut declared = BTreeSet::new();
    for argument in arguments {
        let (name, line) = (&argument.name.value, line_of(&argument.name));
        if !is_name(name) {
            let what = format!("`{name}` cannot be the name of an argument: {NAME_RULE}");
            mistakes.push(Mistake::new(line, what));
        }
        if !declared.insert(name) {
            mistakes.push(Mistake::new(line, format!("argument `{name}` is declared twice")));
        }
        if argument.required && argument.default.is_some() {
            let what = format!("argument `{name}` is required, so its default would never be used");
            mistakes.push(Mistake::new(line, what));
        }
    }
}

fn into_argument(declaration: ArgumentDeclaration) -> Argument {
    Argument {
        name: declaration.name.value,
        required: declaration.required,
        // An empty default counts as none.
        default: declaration.default.filter(|text| !text.is_empty()),
        values: declaration.values.0.into_iter().map(|(value, _)| value).collect(),
    }
}

fn line_of<T>(spanned: &Spanned<T>) -> usize {
    usize::try_from(spanned.referenced.line()).unwrap_or(1).max(1)
}

// === Composer ===

/// Collects the messages of one prompt.
struct Composer<'a, 'b> {
    declared: &'a [&'a str],
    attach: &'a mut Attach<'b>,
    attached_bytes: usize,
    /// Tags that its texts may still contain.
    tags: usize,
    mistakes: &'a mut Vec<Mistake>,
    messages: Vec<PromptMessage>,
}

impl Composer<'_, '_> {
    fn add_front_matter_message(&mut self, message: &Spanned<FrontMatterMessage>) {
        let line = line_of(message);
        let FrontMatterMessage { role, text, image, audio, embed } = &message.value;
        let files = [
            (AttachmentKind::Image, image),
            (AttachmentKind::Audio, audio),
            (AttachmentKind::Resource, embed),
        ];
        let files = files
            .into_iter()
            .filter_map(|(kind, path)| Some(PromptContent::File { kind, path: path.as_deref()? }));
        // A YAML block ends with a line break that is not part of the text.
        let text = text.as_deref().map(|text| PromptContent::Text(text.trim_end()));
        let mut contents = text.into_iter().chain(files);
        match (contents.next(), contents.next()) {
            (Some(content), None) => {
                let before = self.mistakes.len();
                self.add(*role, line, content);
                // The YAML parser may have folded the lines of a text, so mistakes get the
                // message's line.
                self.mistakes[before..].iter_mut().for_each(|mistake| mistake.line = line);
            }
            _ => self.mistake(line, "a message has one of `text`, `image`, `audio` and `embed`"),
        }
    }

    fn add(&mut self, role: MessageRole, line: usize, content: PromptContent<'_>) {
        let content = match content {
            PromptContent::Text(text) => {
                let (declared, tags) = (self.declared, &mut self.tags);
                Content::Text(Template::parse(text, line, declared, tags, self.mistakes))
            }
            PromptContent::File { kind, path } => match (self.attach)(kind, path) {
                Err(what) => return self.mistake(line, what),
                Ok(block) => {
                    self.attached_bytes += block.get().len();
                    if self.attached_bytes > MAX_ATTACHED_BYTES {
                        let what = format!(
                            "with `{path}` the prompt's files are larger than {} MiB \
                             as they are sent",
                            MAX_ATTACHED_BYTES >> 20
                        );
                        return self.mistake(line, what);
                    }
                    Content::Rendered(block)
                }
            },
        };
        self.messages.push(PromptMessage { role, content });
    }

    fn mistake(&mut self, line: usize, what: impl Into<String>) {
        self.mistakes.push(Mistake::new(line, what));
    }
}

const NAME_RULE: &str = "1 to 128 of the letters A-Z and a-z, digits, `_`, `-` and `.`";
const MAX_MESSAGES: usize = 200;
/// Same as the gateway's limits for any upstream: a larger item would be left out there, without a
/// line number.
const MAX_DESCRIPTION_BYTES: usize = 16 << 10;
const MAX_DEFINITION_BYTES: usize = 64 << 10;
/// Half of the maximum response size, which leaves the other half for texts.
const MAX_ATTACHED_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &str) -> Result<Prompt, Vec<Mistake>> {
        parse("stem.md", source.as_bytes(), &mut |kind, path| match path {
            "none.png" => Err(format!("`{path}`: there is no such file")),
            _ => Ok(serde_json::value::to_raw_value(&format!("{kind:?} {path}")).unwrap()),
        })
    }

    fn definition(source: &str) -> String {
        String::from_utf8(read(source).unwrap().definition.to_vec()).unwrap()
    }

    fn mistakes(source: &str) -> Vec<(usize, String)> {
        read(source).unwrap_err().into_iter().map(|mistake| (mistake.line, mistake.what)).collect()
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
        let shown: Vec<String> = prompt
            .messages
            .iter()
            .map(|message| format!("{:?} {:?}", message.role, message.content))
            .collect();
        assert_eq!(shown.len(), 4);
        assert!(
            shown[0].contains("one")
                && shown[1].contains("Assistant")
                && shown[1].contains("Image a.png"),
            "{shown:?}"
        );
        assert!(
            shown[2].contains("three")
                && shown[3].contains("User")
                && shown[3].contains("Image b.png"),
            "{shown:?}"
        );
    }

    #[test]
    fn every_mistake_is_reported_with_its_line() {
        let source = "---\nname: a b\narguments:\n- name: x\n  required: true\n  default: y\n- name: x\nmessages:\n- text: '{{z}}'\n- role: user\n---\n\
                      {{y}}\n![x](none.png)\n";
        assert_eq!(
            mistakes(source),
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
        assert_eq!(
            mistakes("---\n---\n \n"),
            [(1, "there is no text, and so no message".to_owned())]
        );
        let mistakes =
            parse("stem.md", b"---\n---\n\n\xff", &mut |_, _| Err(String::new())).unwrap_err();
        assert_eq!(mistakes, [Mistake { line: 4, what: "this is not UTF-8".to_owned() }]);
    }

    #[test]
    fn what_a_prompt_may_hold_is_bounded() {
        let many = format!("---\n---\n{}", "![x](a.png)\n".repeat(MAX_MESSAGES + 1));
        assert_eq!(mistakes(&many), [(1, "there are more than 200 messages".to_owned())]);
        let long =
            format!("---\ndescription: {}\n---\ntext", "x".repeat(MAX_DESCRIPTION_BYTES + 1));
        assert_eq!(mistakes(&long), [(1, "the description is larger than 16 KiB".to_owned())]);
    }

    #[test]
    fn a_definition_is_bounded() {
        let titled = |length: usize| format!("---\ntitle: {}\n---\ntext", "x".repeat(length));
        let rest = definition(&titled(1)).len() - 1;
        assert_eq!(definition(&titled(MAX_DEFINITION_BYTES - rest)).len(), 64 << 10);
        let what = "the front matter makes a definition larger than 64 KiB";
        assert_eq!(mistakes(&titled(MAX_DEFINITION_BYTES - rest + 1)), [(1, what.to_owned())]);
    }

    #[test]
    fn the_files_of_a_prompt_are_bounded_as_they_are_sent() {
        // Four blocks that reach the bound, including the JSON quotes.
        let block = serde_json::value::to_raw_value(&"x".repeat((1 << 20) - 2)).unwrap();
        let read = |count: usize| {
            let source = format!("---\n---\n{}", "![x](a.png)\n".repeat(count));
            parse("stem.md", source.as_bytes(), &mut |_, _| Ok(block.clone()))
        };
        assert_eq!(read(4).unwrap().messages.len(), 4);
        let what = "with `a.png` the prompt's files are larger than 4 MiB as they are sent";
        assert_eq!(read(5).unwrap_err(), [Mistake { line: 7, what: what.to_owned() }]);
    }

    /// Processor time of this thread, which does not grow while other threads have the processor.
    fn processor_time() -> std::time::Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.try_into().expect("a time since the thread began")
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
                let begin = processor_time();
                let _ = read(&source);
                let _ = read(&format!("{source}\n---\ntext"));
                processor_time() - begin
            };
            // The fastest of several runs: the first one allocates.
            let quickest = |bytes| (0..3).map(|_| took(bytes)).min().unwrap();
            // Quadratic time would show at the largest file size.
            let size = if unit == "{{a}}" { 1 << 20 } else { 256 << 10 };
            let (small, large) = (quickest(size / 16), quickest(size));
            // 16 times the input takes 16 times as long; quadratic time would take 256 times as
            // long.
            let slack = std::time::Duration::from_millis(100);
            assert!(large < 64 * small + slack, "{unit:?}: {small:?}, then {large:?}");
        }
    }
}
