//! Parser of a prompt file's body: splits the text below the front matter into messages.
//!
//! An MCP message has one content block, whereas authors write one text: so a file that is named
//! alone on a line ends the text before it, becomes a message of its own, and the text continues
//! after it, all in the same role. Within a fenced code block every line is text.

use serde::{Deserialize, Serialize};

use super::attachment::{self, AttachmentKind};
use super::template::Mistake;

/// Role of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MessageRole {
    #[default]
    User,
    Assistant,
}

/// Content of one message; `line` is its first line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MessageSource<'a> {
    pub(super) role: MessageRole,
    pub(super) line: usize,
    pub(super) content: PromptContent<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PromptContent<'a> {
    Text(&'a str),
    File { kind: AttachmentKind, path: &'a str },
}

/// Splits a body whose first line is `first_line` of its file.
pub(super) fn parse<'a>(
    body: &'a str,
    first_line: usize,
    mistakes: &mut Vec<Mistake>,
) -> Vec<MessageSource<'a>> {
    let mut parser = BodyParser {
        body,
        messages: Vec::new(),
        role: MessageRole::User,
        text: 0,
        text_line: first_line,
    };
    let mut fence: Option<(&str, usize)> = None;
    // Line of a role marker without content so far.
    let mut pending_role = None;
    let mut at = 0;
    for (index, line) in body.split_inclusive('\n').enumerate() {
        let number = first_line + index;
        let (start, end) = (at, at + line.len());
        at = end;
        if let Some((opened, _)) = fence {
            if closes(line, opened) {
                fence = None;
            }
            continue;
        }
        if let Some(opened) = fence_of(line) {
            fence = Some((opened, number));
            continue;
        }
        let Some(directive) = directive(line) else {
            continue;
        };
        parser.end_text(start);
        (parser.text, parser.text_line) = (end, number + 1);
        match directive {
            Directive::File { kind, path } => {
                let content = PromptContent::File { kind, path };
                parser.messages.push(MessageSource { role: parser.role, line: number, content });
            }
            Directive::Role(name) => {
                report_empty_role(&parser.messages, pending_role, mistakes);
                pending_role = Some(number);
                match name {
                    "user" => parser.role = MessageRole::User,
                    "assistant" => parser.role = MessageRole::Assistant,
                    _ => {
                        let what = format!("role `{name}` is neither `user` nor `assistant`");
                        mistakes.push(Mistake::new(number, what));
                    }
                }
            }
        }
    }
    parser.end_text(body.len());
    report_empty_role(&parser.messages, pending_role, mistakes);
    if let Some((_, line)) = fence {
        mistakes.push(Mistake::new(line, "this code fence is never closed"));
    }
    parser.messages
}

fn report_empty_role(
    messages: &[MessageSource<'_>],
    marker: Option<usize>,
    mistakes: &mut Vec<Mistake>,
) {
    if let Some(line) = marker
        && messages.last().is_none_or(|last| last.line < line)
    {
        mistakes.push(Mistake::new(line, "no text follows this role"));
    }
}

struct BodyParser<'a> {
    body: &'a str,
    messages: Vec<MessageSource<'a>>,
    role: MessageRole,
    /// Start of the text that is being collected.
    text: usize,
    text_line: usize,
}

impl BodyParser<'_> {
    /// Ends the text at `end` and trims blank lines around it.
    fn end_text(&mut self, end: usize) {
        let text = self.body[self.text..end].trim_end();
        let blank = text.len() - text.trim_start().len();
        // The first line keeps its indentation.
        let start = text[..blank].rfind('\n').map_or(0, |newline| newline + 1);
        if !text.is_empty() {
            let line = self.text_line + text[..start].matches('\n').count();
            self.messages.push(MessageSource {
                role: self.role,
                line,
                content: PromptContent::Text(&text[start..]),
            });
        }
    }
}

// === Lines ===

enum Directive<'a> {
    Role(&'a str),
    File { kind: AttachmentKind, path: &'a str },
}

fn directive(line: &str) -> Option<Directive<'_>> {
    let line = unindented(line)?;
    if let Some(comment) = line.strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->")) {
        let (key, value) = comment.split_once(':')?;
        return match key.trim() {
            "role" => Some(Directive::Role(value.trim())),
            "embed" => Some(Directive::File { kind: AttachmentKind::Resource, path: value.trim() }),
            _ => None,
        };
    }
    let (kind, link) = match line.strip_prefix('!') {
        Some(image) => (AttachmentKind::Image, image),
        None => (AttachmentKind::Audio, line),
    };
    let (_, path) = link.strip_prefix('[')?.strip_suffix(')')?.split_once("](")?;
    // A URL is for the reader of the text: nothing is ever fetched.
    let is_file = !path.contains("](") && !path.contains("://") && !path.starts_with("data:");
    (is_file && (kind == AttachmentKind::Image || attachment::is_audio(path)))
        .then_some(Directive::File { kind, path })
}

/// Returns the marks that open a fenced code block, if this line does.
fn fence_of(line: &str) -> Option<&str> {
    let line = unindented(line)?;
    let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let length = line.len() - line.trim_start_matches(mark).len();
    (length >= 3 && !(mark == '`' && line[length..].contains('`'))).then(|| &line[..length])
}

fn closes(line: &str, opened: &str) -> bool {
    unindented(line).is_some_and(|line| {
        line.len() >= opened.len()
            && line.starts_with(opened)
            && line.trim_start_matches(&opened[..1]).is_empty()
    })
}

/// Trims the line; `None` if it is indented so far that Markdown treats it as code.
fn unindented(line: &str) -> Option<&str> {
    let content = line.trim_start_matches(' ');
    (line.len() - content.len() < 4).then(|| content.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: &[(MessageRole, usize, PromptContent<'_>)]) {
        let mut mistakes = Vec::new();
        let messages = parse(body, 10, &mut mistakes);
        let messages: Vec<_> = messages
            .into_iter()
            .map(|message| (message.role, message.line, message.content))
            .collect();
        assert_eq!(messages, expected);
        assert_eq!(mistakes, []);
    }

    fn mistakes(body: &str) -> Vec<(usize, String)> {
        let mut mistakes = Vec::new();
        parse(body, 10, &mut mistakes);
        mistakes.into_iter().map(|mistake| (mistake.line, mistake.what)).collect()
    }

    use MessageRole::{Assistant, User};
    use PromptContent::{File, Text};

    #[test]
    fn a_body_without_markers_is_one_message_of_the_user() {
        check("\n  a\nb\n\n", &[(User, 11, Text("  a\nb"))]);
        check(" \n\n", &[]);
    }

    #[test]
    fn a_role_marker_begins_another_message() {
        check(
            "a\n\n<!-- role: assistant -->\n\nb\n<!--role:user-->\nc",
            &[(User, 10, Text("a")), (Assistant, 14, Text("b")), (User, 16, Text("c"))],
        );
        check("<!-- role: assistant -->\na", &[(Assistant, 11, Text("a"))]);
    }

    #[test]
    fn a_file_alone_on_its_line_is_a_message_between_the_texts() {
        check(
            "a\n![x](i/p.png)\n[y](s.mp3)\n<!-- embed: t.txt -->\nb ![x](p.png)",
            &[
                (User, 10, Text("a")),
                (User, 11, File { kind: AttachmentKind::Image, path: "i/p.png" }),
                (User, 12, File { kind: AttachmentKind::Audio, path: "s.mp3" }),
                (User, 13, File { kind: AttachmentKind::Resource, path: "t.txt" }),
                (User, 14, Text("b ![x](p.png)")),
            ],
        );
    }

    #[test]
    fn links_comments_and_addresses_stay_text() {
        for body in [
            "[a](b.md)",
            "<!-- a note -->",
            "<!-- note: a -->",
            "![a](https://example.com/a.png)",
            "    ![a](b.png)",
        ] {
            check(&format!("x\n{body}"), &[(User, 10, Text(&format!("x\n{body}")))]);
        }
    }

    #[test]
    fn within_a_code_fence_every_line_is_text() {
        let body = "~~~md\n```\n![x](p.png)\n<!-- role: assistant -->\n~~~~";
        check(body, &[(User, 10, Text(body))]);
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        assert_eq!(
            mistakes("a\n<!-- role: system -->\n<!-- role: user -->\n"),
            [
                (11, "role `system` is neither `user` nor `assistant`".to_owned()),
                (11, "no text follows this role".to_owned()),
                (12, "no text follows this role".to_owned()),
            ]
        );
        assert_eq!(
            mistakes("a\n```\n<!-- role: user -->"),
            [(11, "this code fence is never closed".to_owned())]
        );
    }
}
