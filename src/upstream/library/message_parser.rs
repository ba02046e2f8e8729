//! The part of a prompt file below the front matter, cut into messages.
//!
//! A message of the protocol has one content, and a writer thinks in one text: so a file named alone on
//! a line ends the text before it, becomes a message of its own and lets the text go on after it, all in
//! the same role. Within a fenced code block every line is just text.
//! Knows nothing of: arguments, the disk.

use serde::{Deserialize, Serialize};

use super::attachment::{self, Form};
use super::template::Flaw;

/// Who says a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    #[default]
    User,
    Assistant,
}

/// The content of one message, as written; `line` is where it begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) role: Role,
    pub(super) line: usize,
    pub(super) content: Written<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written<'a> {
    Text(&'a str),
    File { form: Form, path: &'a str },
}

/// Cuts a body whose first line is `first_line` of its file.
pub(super) fn cut<'a>(body: &'a str, first_line: usize, flaws: &mut Vec<Flaw>) -> Vec<Piece<'a>> {
    let mut cutter =
        Cutter { body, pieces: Vec::new(), role: Role::User, text: 0, text_line: first_line };
    let mut fence: Option<(&str, usize)> = None;
    // The line of the role marker that nothing has followed yet.
    let mut unanswered = None;
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
        cutter.end_text(start);
        (cutter.text, cutter.text_line) = (end, number + 1);
        match directive {
            Directive::File { form, path } => {
                let content = Written::File { form, path };
                cutter.pieces.push(Piece { role: cutter.role, line: number, content });
            }
            Directive::Role(name) => {
                report_unanswered(&cutter.pieces, unanswered, flaws);
                unanswered = Some(number);
                match name {
                    "user" => cutter.role = Role::User,
                    "assistant" => cutter.role = Role::Assistant,
                    _ => flaws.push(Flaw {
                        line: number,
                        what: format!("role `{name}` is neither `user` nor `assistant`"),
                    }),
                }
            }
        }
    }
    cutter.end_text(body.len());
    report_unanswered(&cutter.pieces, unanswered, flaws);
    if let Some((_, line)) = fence {
        flaws.push(Flaw { line, what: "this code fence is never closed".to_owned() });
    }
    cutter.pieces
}

fn report_unanswered(pieces: &[Piece<'_>], marker: Option<usize>, flaws: &mut Vec<Flaw>) {
    if let Some(line) = marker
        && pieces.last().is_none_or(|last| last.line < line)
    {
        flaws.push(Flaw { line, what: "no text follows this role".to_owned() });
    }
}

struct Cutter<'a> {
    body: &'a str,
    pieces: Vec<Piece<'a>>,
    role: Role,
    /// Where the text that is being gathered begins.
    text: usize,
    text_line: usize,
}

impl Cutter<'_> {
    /// Ends the text at `end`, without the blank lines around it.
    fn end_text(&mut self, end: usize) {
        let text = self.body[self.text..end].trim_end();
        let blank = text.len() - text.trim_start().len();
        // The first line keeps its indent.
        let start = text[..blank].rfind('\n').map_or(0, |newline| newline + 1);
        if !text.is_empty() {
            let line = self.text_line + text[..start].matches('\n').count();
            self.pieces.push(Piece {
                role: self.role,
                line,
                content: Written::Text(&text[start..]),
            });
        }
    }
}

// === Lines ===

enum Directive<'a> {
    Role(&'a str),
    File { form: Form, path: &'a str },
}

fn directive(line: &str) -> Option<Directive<'_>> {
    let line = unindented(line)?;
    if let Some(comment) = line.strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->")) {
        let (key, value) = comment.split_once(':')?;
        return match key.trim() {
            "role" => Some(Directive::Role(value.trim())),
            "embed" => Some(Directive::File { form: Form::Resource, path: value.trim() }),
            _ => None,
        };
    }
    let (form, link) = match line.strip_prefix('!') {
        Some(image) => (Form::Image, image),
        None => (Form::Audio, line),
    };
    let (_, path) = link.strip_prefix('[')?.strip_suffix(')')?.split_once("](")?;
    // An address is for the reader of the text to follow: nothing is ever fetched.
    let is_file = !path.contains("](") && !path.contains("://") && !path.starts_with("data:");
    (is_file && (form == Form::Image || attachment::is_audio(path)))
        .then_some(Directive::File { form, path })
}

/// The marks that open a fenced code block, if this line does.
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

/// The line without the spaces around it; none if it is indented so far that Markdown sees code.
fn unindented(line: &str) -> Option<&str> {
    let content = line.trim_start_matches(' ');
    (line.len() - content.len() < 4).then(|| content.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: &[(Role, usize, Written<'_>)]) {
        let mut flaws = Vec::new();
        let pieces = cut(body, 10, &mut flaws);
        let pieces: Vec<_> =
            pieces.into_iter().map(|piece| (piece.role, piece.line, piece.content)).collect();
        assert_eq!(pieces, expected);
        assert_eq!(flaws, []);
    }

    fn flaws(body: &str) -> Vec<(usize, String)> {
        let mut flaws = Vec::new();
        cut(body, 10, &mut flaws);
        flaws.into_iter().map(|flaw| (flaw.line, flaw.what)).collect()
    }

    use Role::{Assistant, User};
    use Written::{File, Text};

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
                (User, 11, File { form: Form::Image, path: "i/p.png" }),
                (User, 12, File { form: Form::Audio, path: "s.mp3" }),
                (User, 13, File { form: Form::Resource, path: "t.txt" }),
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
            flaws("a\n<!-- role: system -->\n<!-- role: user -->\n"),
            [
                (11, "role `system` is neither `user` nor `assistant`".to_owned()),
                (11, "no text follows this role".to_owned()),
                (12, "no text follows this role".to_owned()),
            ]
        );
        assert_eq!(
            flaws("a\n```\n<!-- role: user -->"),
            [(11, "this code fence is never closed".to_owned())]
        );
    }
}
