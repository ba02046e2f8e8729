//! Text template of a prompt with placeholders for its arguments.
//!
//! A [`Template`] is parsed once, when the file is read, so that a mistake reaches the author and
//! never the client. Filling copies the argument texts without examining them: an argument is never
//! expanded, whatever braces it contains.
//!
//! The whole language: `{{name}}`, `{{#name}}…{{/name}}` (included if the argument has a text) and
//! `\{{` for two literal braces. Parsing takes linear time.

use std::collections::BTreeMap;

/// Parsed text: fixed parts, arguments and sections.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Argument(String),
    Section { argument: String, parts: Vec<Part> },
}

/// Author's mistake, at a line of the file (counted from 1).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) line: usize,
    pub(super) what: String,
}

impl Mistake {
    pub(super) fn new(line: usize, what: impl Into<String>) -> Mistake {
        Mistake { line, what: what.into() }
    }
}

/// Error: the filled text would exceed the bound.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Template {
    /// Parses a text whose first line is `first_line` of its file, subtracts its tags from the
    /// `tags` that the prompt may still have, and records every mistake. The template is valid only
    /// if none was added.
    pub(super) fn parse(
        text: &str,
        first_line: usize,
        declared: &[&str],
        tags: &mut usize,
        mistakes: &mut Vec<Mistake>,
    ) -> Template {
        let (parts, open) = (Vec::new(), Vec::new());
        Parser { text, first_line, declared, tags, mistakes, at: 0, parts, open }.run()
    }

    /// Appends the filled text to `out`, which may not grow beyond `max` bytes: a short template
    /// that names one long argument many times must not exhaust the memory.
    pub(super) fn fill(
        &self,
        given: &BTreeMap<&str, &str>,
        out: &mut String,
        max: usize,
    ) -> Result<(), TooLong> {
        fill_parts(&self.parts, given, out, max)
    }
}

fn fill_parts(
    parts: &[Part],
    given: &BTreeMap<&str, &str>,
    out: &mut String,
    max: usize,
) -> Result<(), TooLong> {
    for part in parts {
        let text = match part {
            Part::Text(text) => text.as_str(),
            Part::Argument(name) => given.get(name.as_str()).copied().unwrap_or_default(),
            Part::Section { argument, parts } => {
                if given.contains_key(argument.as_str()) {
                    fill_parts(parts, given, out, max)?;
                }
                continue;
            }
        };
        if text.len() > max.saturating_sub(out.len()) {
            return Err(TooLong);
        }
        out.push_str(text);
    }
    Ok(())
}

/// Whether this is a valid name of an argument (or of a prompt).
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_NAME_BYTES
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

// === Parser ===

struct Parser<'a> {
    text: &'a str,
    first_line: usize,
    declared: &'a [&'a str],
    tags: &'a mut usize,
    mistakes: &'a mut Vec<Mistake>,
    at: usize,
    parts: Vec<Part>,
    /// Open sections, outermost first, each with the parts before it.
    open: Vec<OpenSection>,
}

struct OpenSection {
    argument: String,
    at: usize,
    before: Vec<Part>,
}

impl Parser<'_> {
    fn run(mut self) -> Template {
        // After the last reported mistake the parts are not needed either.
        while self.mistakes.len() < MAX_MISTAKES
            && let Some(found) = self.text[self.at..].find(OPEN)
        {
            let braces = self.at + found;
            let literal = &self.text[self.at..braces];
            // As in a shell: each pair of backslashes is one backslash, and an unpaired one makes
            // the braces literal.
            let backslashes = literal.len() - literal.trim_end_matches('\\').len();
            self.push_text(self.at, braces - backslashes.div_ceil(2));
            self.at = braces + OPEN.len();
            if backslashes % 2 == 1 {
                self.push_text(braces, self.at);
            } else {
                self.tag(braces);
            }
        }
        self.push_text(self.at, self.text.len());
        while let Some(open) = self.open.pop() {
            self.mistake(
                open.at,
                format!("`{{{{#{}}}}}` is never closed with `{{{{/{0}}}}}`", open.argument),
            );
        }
        Template { parts: self.parts }
    }

    /// Parses one tag; `self.at` is the position after its opening braces.
    fn tag(&mut self, braces: usize) {
        let Some(tags) = self.tags.checked_sub(1) else {
            self.at = self.text.len();
            return self
                .mistake(braces, format!("a prompt has at most {MAX_TAGS} tags of arguments"));
        };
        *self.tags = tags;
        // Searched only up to the tag's own end: otherwise a long line would be scanned again for
        // each tag in it.
        let rest = &self.text[self.at..];
        let Some(length) = rest.find(CLOSE).filter(|length| !rest[..*length].contains('\n')) else {
            return self.mistake(braces, format!("`{{{{` without `}}}}` on its line; {LITERAL}"));
        };
        let inside = self.text[self.at..self.at + length].trim();
        self.at += length + CLOSE.len();
        let (mark, name) = match inside.strip_prefix(['#', '/']) {
            Some(rest) => (inside.chars().next(), rest.trim_start()),
            None => (None, inside),
        };
        if !self.declared.contains(&name) {
            let what = if is_name(name) {
                format!(
                    "`{{{{{inside}}}}}`: there is no argument `{name}` in the front matter; \
                     {LITERAL}"
                )
            } else {
                let shown: String = inside.chars().take(MAX_NAME_BYTES).collect();
                format!("`{{{{{shown}}}}}` does not name an argument; {LITERAL}")
            };
            return self.mistake(braces, what);
        }
        match mark {
            None => self.parts.push(Part::Argument(name.to_owned())),
            Some('#') => {
                self.remove_tag_line(braces);
                self.open_section(name, braces);
            }
            Some(_) => {
                self.remove_tag_line(braces);
                self.close_section(name, braces);
            }
        }
    }

    fn open_section(&mut self, name: &str, at: usize) {
        if self.open.len() == MAX_DEPTH {
            self.mistake(at, format!("sections are nested more than {MAX_DEPTH} deep"));
        } else {
            let before = std::mem::take(&mut self.parts);
            self.open.push(OpenSection { argument: name.to_owned(), at, before });
        }
    }

    fn close_section(&mut self, name: &str, at: usize) {
        match self.open.pop_if(|open| open.argument == name) {
            Some(open) => {
                let parts = std::mem::replace(&mut self.parts, open.before);
                self.parts.push(Part::Section { argument: open.argument, parts });
            }
            None => self.mistake(
                at,
                format!("`{{{{/{name}}}}}` closes a section that is not the last one opened"),
            ),
        }
    }

    /// Removes the line of a section tag that is alone on it, so that an omitted section leaves no
    /// blank line.
    fn remove_tag_line(&mut self, braces: usize) {
        let before = &self.text[..braces];
        let indent = before.len() - before.trim_end_matches([' ', '\t']).len();
        let rest = &self.text[self.at..];
        let blank = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        let starts_line = braces == indent || before.as_bytes()[braces - indent - 1] == b'\n';
        let ends_line = rest.len() == blank || rest.as_bytes()[blank] == b'\n';
        if !(starts_line && ends_line) {
            return;
        }
        self.at = (self.at + blank + 1).min(self.text.len());
        if let Some(Part::Text(text)) = self.parts.last_mut() {
            text.truncate(text.trim_end_matches([' ', '\t']).len());
        }
    }

    fn push_text(&mut self, from: usize, to: usize) {
        let text = &self.text[from..to];
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Text(last)) => last.push_str(text),
            _ => self.parts.push(Part::Text(text.to_owned())),
        }
    }

    fn mistake(&mut self, at: usize, what: String) {
        if self.mistakes.len() < MAX_MISTAKES {
            let line = self.first_line + self.text[..at].matches('\n').count();
            self.mistakes.push(Mistake::new(line, what));
        }
    }
}

const OPEN: &str = "{{";
const CLOSE: &str = "}}";
const LITERAL: &str = "write `\\{{` for two literal braces";

/// Maximum length of a name, as in the gateway's limits.
const MAX_NAME_BYTES: usize = 128;
/// Maximum tags of one prompt. Each becomes a part in memory, which takes several times the bytes
/// of its text.
pub(super) const MAX_TAGS: usize = 1000;
/// Maximum nesting of sections; filling recurses at most this deep.
const MAX_DEPTH: usize = 8;
/// Maximum reported mistakes: enough for an author, and a bound on counting lines in a file full of
/// braces.
pub(super) const MAX_MISTAKES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DECLARED: [&str; 2] = ["code", "focus"];

    fn parse(text: &str) -> Result<Template, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        let template = Template::parse(text, 1, &DECLARED, &mut MAX_TAGS.clone(), &mut mistakes);
        if mistakes.is_empty() { Ok(template) } else { Err(mistakes) }
    }

    fn fill(text: &str, given: &[(&str, &str)]) -> String {
        let mut out = String::new();
        let given = given.iter().copied().collect();
        parse(text).unwrap().fill(&given, &mut out, 1 << 20).unwrap();
        out
    }

    fn mistakes(text: &str) -> Vec<(usize, String)> {
        parse(text).unwrap_err().into_iter().map(|mistake| (mistake.line, mistake.what)).collect()
    }

    #[test]
    fn an_argument_stands_where_its_name_stood() {
        assert_eq!(
            fill("a {{code}} b {{ focus }}{{code}}", &[("code", "X"), ("focus", "Y")]),
            "a X b YX"
        );
    }

    #[test]
    fn the_text_of_an_argument_is_never_expanded() {
        let given = [("code", "{{focus}} \\{{ {{#focus}}"), ("focus", "{{code}}")];
        assert_eq!(fill("{{code}}|{{focus}}", &given), "{{focus}} \\{{ {{#focus}}|{{code}}");
    }

    #[test]
    fn an_argument_that_is_not_given_leaves_nothing() {
        assert_eq!(fill("[{{code}}]", &[]), "[]");
    }

    #[test]
    fn a_backslash_makes_braces_literal_and_two_make_a_backslash() {
        assert_eq!(
            fill(r"\{{code}} \\{{code}} \\\{{code}} a\b", &[("code", "X")]),
            r"{{code}} \X \{{code}} a\b"
        );
    }

    #[test]
    fn a_section_shows_only_when_its_argument_is_given() {
        let text = "a{{#focus}}, mind {{focus}}{{/focus}}.";
        assert_eq!(fill(text, &[("focus", "speed")]), "a, mind speed.");
        assert_eq!(fill(text, &[]), "a.");
    }

    #[test]
    fn a_section_tag_alone_on_its_line_takes_the_line_with_it() {
        let text = "a\n  {{#focus}}  \nmind {{focus}}\n{{/focus}}\nb";
        assert_eq!(fill(text, &[("focus", "speed")]), "a\nmind speed\nb");
        assert_eq!(fill(text, &[]), "a\nb");
    }

    #[test]
    fn sections_nest() {
        let text = "{{#code}}1{{#focus}}2{{/focus}}3{{/code}}";
        assert_eq!(fill(text, &[("code", "x")]), "13");
        assert_eq!(fill(text, &[("code", "x"), ("focus", "y")]), "123");
        assert_eq!(fill(text, &[("focus", "y")]), "");
    }

    #[test]
    fn every_mistake_is_reported_with_its_line() {
        let found = mistakes("{{code}}\n{{unknown}} {{ a b }}\n{{code\n}}\n{{/focus}}\n{{#focus}}");
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 2, 3, 5, 6]);
        assert!(
            found[0].1.starts_with("`{{unknown}}`: there is no argument `unknown`"),
            "{}",
            found[0].1
        );
        assert!(found[1].1.starts_with("`{{a b}}` does not name an argument"), "{}", found[1].1);
        assert_eq!(found[4].1, "`{{#focus}}` is never closed with `{{/focus}}`");
    }

    #[test]
    fn a_short_template_cannot_fill_the_memory() {
        let template = parse(&"{{code}}".repeat(1000)).unwrap();
        let long = "x".repeat(100);
        let mut out = String::new();
        assert_eq!(
            template.fill(&BTreeMap::from([("code", long.as_str())]), &mut out, 5000),
            Err(TooLong)
        );
        assert!(out.len() <= 5000);
    }

    #[test]
    fn the_tags_of_a_prompt_are_bounded() {
        assert!(parse(&"{{code}}".repeat(MAX_TAGS)).is_ok());
        let too_many = format!("{}\n{{{{code}}}}{{{{code}}}}", "{{code}}".repeat(MAX_TAGS));
        assert_eq!(
            mistakes(&too_many),
            [(2, "a prompt has at most 1000 tags of arguments".into())]
        );
    }

    #[test]
    fn sections_nest_up_to_eight_deep() {
        let nested =
            |depth: usize| format!("{}x{}", "{{#code}}".repeat(depth), "{{/code}}".repeat(depth));
        assert_eq!(fill(&nested(8), &[("code", "y")]), "x");
        assert_eq!(mistakes(&nested(9))[0], (1, "sections are nested more than 8 deep".to_owned()));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in r"([{}#/\\ \n\t]|code|focus|é){0,40}") {
            if let Ok(template) = parse(&text) {
                let _ = template.fill(&BTreeMap::from([("code", "{{")]), &mut String::new(), 1000);
            }
        }

        #[test]
        fn a_text_without_braces_comes_out_as_it_went_in(text in r"[^{]*") {
            prop_assert_eq!(fill(&text, &[]), text);
        }

        #[test]
        fn what_an_argument_says_occurs_verbatim(code in r"([{}#/\\\n]|code|focus|\PC){0,30}", focus in ".*") {
            let filled = fill("<{{code}}|{{#focus}}{{focus}}{{/focus}}>", &[("code", &code), ("focus", &focus)]);
            prop_assert_eq!(filled, format!("<{code}|{focus}>"));
        }
    }
}
