//! Values of the configuration of which parts may be secret, and are not shown in reports.
//!
//! Of a command line, reports show what helps to find a mistake and is no secret: names of options
//! and of variables, paths, addresses and short numbers. Any other word may be a password.

use std::ops::Range;

use super::secret_names::secrets_of_url;
use weir_base::secrets::secret_shape::{HEADER_OPTIONS, is_secret_segment, names_a_secret};

/// Value of which parts may be secret: which ones depends on its text.
pub(super) enum PartlySecret {
    /// Malformed URL.
    BadUrl(Range<usize>),
    /// URL, whose path may contain a token.
    Url(Range<usize>),
    /// Strings of a command line, and whether the first word is the program.
    Arguments(Vec<Range<usize>>, bool),
}

impl PartlySecret {
    /// Returns the secret parts in the text of a file, if the value is in that file, whose place in
    /// the virtual text is `file`.
    pub(super) fn find(&self, file: Range<usize>, text: &str) -> Vec<Range<usize>> {
        let local = |span: &Range<usize>| {
            let is_here = file.contains(&span.start);
            is_here.then(|| span.start - file.start..span.end - file.start)
        };
        match self {
            Self::BadUrl(span) => {
                local(span).map(|url| secrets_of_url(text, url)).unwrap_or_default()
            }
            Self::Url(span) => {
                local(span).map(|url| secrets_of_path(text, &url)).unwrap_or_default()
            }
            Self::Arguments(spans, begins_with_program) => {
                let spans: Vec<_> = spans.iter().filter_map(local).collect();
                secrets_of_arguments(text, &spans, *begins_with_program)
            }
        }
    }
}

/// Returns the parts of strings in a text that are not shown. Each span is one string with its
/// quotes; with `begins_with_program`, the first word of the first one is shown.
fn secrets_of_arguments(
    text: &str,
    strings: &[Range<usize>],
    begins_with_program: bool,
) -> Vec<Range<usize>> {
    let (mut found, mut before, mut is_program) = (Vec::new(), "", begins_with_program);
    for span in strings {
        let Some((start, content)) = content_of(text, span) else {
            // An escape may stand for any character.
            found.push(span.clone());
            (before, is_program) = ("", false);
            continue;
        };
        if HEADER_OPTIONS.contains(&before) {
            let value = content.find(':').map_or(0, |colon| colon + 1);
            found.extend(without_references(content, value).map(|it| shifted(it, start)));
            before = "";
            continue;
        }
        for (at, word) in words(content) {
            if !std::mem::take(&mut is_program) {
                let hidden = secrets_of_word(before, word);
                found.extend(hidden.into_iter().map(|it| shifted(it, start + at)));
            }
            before = word;
        }
    }
    found
}

/// Returns the segments of a URL's path that look like secrets. The span may have quotes.
fn secrets_of_path(text: &str, span: &Range<usize>) -> Vec<Range<usize>> {
    let Some(url) = text.get(span.clone()) else { return Vec::new() };
    let ends_url = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '?' | '#');
    let start = url.find("://").map_or(1, |at| at + "://".len()).min(url.len());
    let end = url[start..].find(ends_url).map_or(url.len(), |length| start + length);
    let segments = pieces(&url[start..end], '/').skip(1);
    let secrets = segments.filter(|(_, segment)| is_secret_segment(segment));
    let local = secrets.map(|(at, segment)| start + at..start + at + segment.len());
    local.map(|it| shifted(it, span.start)).collect()
}

/// Returns whether a text has a part between slashes, quotes or spaces that looks like a secret.
pub(super) fn has_secret_segment(text: &str) -> bool {
    text.split(|c: char| c.is_whitespace() || "/\"'".contains(c)).any(is_secret_segment)
}

/// Returns the content of a string with quotes, and its place; `None` if it contains escapes.
fn content_of<'t>(text: &'t str, span: &Range<usize>) -> Option<(usize, &'t str)> {
    let written = text.get(span.clone())?;
    let quotes = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|it| written.starts_with(it));
    let quotes = quotes.unwrap_or_default();
    let content = written.strip_prefix(quotes)?;
    let content = content.strip_suffix(quotes).unwrap_or(content);
    let has_escape = quotes.starts_with('"') && content.contains('\\');
    (!has_escape).then_some((span.start + quotes.len(), content))
}

/// Returns the hidden parts of one word, behind the word `before`.
fn secrets_of_word(before: &str, word: &str) -> Vec<Range<usize>> {
    let option = before.strip_prefix('-').map(|option| option.trim_start_matches('-'));
    if option.is_some_and(|option| !option.contains('=') && names_a_secret(option)) {
        return without_references(word, 0).collect();
    }
    if let Some(scheme) = word.find("://") {
        // Reports hide user information and query of each URL.
        let name = word.find('=').filter(|equals| *equals < scheme);
        return secrets_of_path(word, &(name.map_or(0, |equals| equals + 1)..word.len()));
    }
    let hidden = match (word.find('='), word.strip_prefix('-')) {
        (Some(equals), _) => equals + 1,
        (None, Some(option)) if option.starts_with('-') => word.len(),
        // A value may follow a short option at once.
        (None, Some(option)) => match option.chars().all(|c| c.is_ascii_lowercase()) {
            true if option.len() <= MAX_SHORT_OPTIONS => word.len(),
            _ => word.ceil_char_boundary(2),
        },
        (None, None) => 0,
    };
    match is_shown(&word[hidden..]) {
        true => Vec::new(),
        false => without_references(word, hidden).collect(),
    }
}

/// Returns whether a value is a path, the name of a package or a short number.
fn is_shown(value: &str) -> bool {
    let is_number = value.len() <= MAX_NUMBER_DIGITS && value.bytes().all(|b| b.is_ascii_digit());
    let is_path = value.contains('/') || value.starts_with(['@', '.']);
    is_number || is_path && !value.contains(['=', ':', '$']) && !has_secret_segment(value)
}

/// Returns the parts from `start` on that are no reference to a variable or a file.
fn without_references(text: &str, start: usize) -> impl Iterator<Item = Range<usize>> {
    let (mut parts, mut at) = (Vec::new(), start);
    while let Some(reference) = text[at..].find("${").map(|found| at + found) {
        parts.push(at..reference);
        let name = &text[reference + 2..];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_path = |c: char| is_name(c) || "./-".contains(c);
        let length = match name.strip_prefix("file:") {
            Some(path) => 5 + path.find(|c| !is_path(c)).unwrap_or(path.len()),
            None => name.find(|c| !is_name(c)).unwrap_or(name.len()),
        };
        at = reference + 2 + length;
        at += usize::from(text[at..].starts_with('}'));
    }
    parts.push(at..text.len());
    parts.into_iter().filter(|part| !part.is_empty())
}

fn words(content: &str) -> impl Iterator<Item = (usize, &str)> {
    pieces(content, ' ').filter(|(_, word)| !word.is_empty())
}

/// Splits a text, and returns each piece with its place.
fn pieces(text: &str, separator: char) -> impl Iterator<Item = (usize, &str)> {
    let mut next = 0;
    text.split(separator).map(move |piece| {
        let at = next;
        next = at + piece.len() + separator.len_utf8();
        (at, piece)
    })
}

fn shifted(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

/// Letters of short options that stand together, and digits of a number that is no secret.
const MAX_SHORT_OPTIONS: usize = 4;
const MAX_NUMBER_DIGITS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments as a report shows them.
    fn shown(arguments: &[&str]) -> String {
        let (mut text, mut spans) = (String::new(), Vec::new());
        for argument in arguments {
            let start = text.len();
            text += argument;
            spans.push(start..text.len());
            text += " ";
        }
        let mut bytes = text.trim_end().as_bytes().to_vec();
        for secret in secrets_of_arguments(&text, &spans, false) {
            bytes[secret].fill(b'*');
        }
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn of_arguments_options_paths_and_references_are_shown() {
        for (arguments, expected) in [
            (&["\"-y\"", "\"@scope/package\""][..], r#""-y" "@scope/package""#),
            (&["\"hunter2\""][..], r#""*******""#),
            (&["'--token'", "'/a/hunter2'"][..], "'--token' '**********'"),
            (&["\"--token=hunter2\""][..], r#""--token=*******""#),
            (&["\"KEY=hunter2\"", "\"--port=8080\""][..], r#""KEY=*******" "--port=8080""#),
            (&["\"-phunter2\"", "\"-rf\""][..], r#""-p*******" "-rf""#),
            (&["\"--header\"", "\"X-A: hunter2\""][..], r#""--header" "X-A:********""#),
            (&["\"--key=${KEY:-hunter2}\""][..], r#""--key=${KEY**********""#),
            (&["\"--key=a${file:secrets/a}b\""][..], r#""--key=*${file:secrets/a}*""#),
            (&["\"--token hunter2\""][..], r#""--token *******""#),
            (&["\"a\\u0062c\""][..], "**********"),
            (&["\"./server.js\"", "\"8080\""][..], r#""./server.js" "8080""#),
            (&["\"https://h/mcp/0123456789abcdef\""][..], r#""https://h/mcp/****************""#),
        ] {
            assert_eq!(shown(arguments), expected);
        }
    }

    #[test]
    fn the_program_of_a_command_is_shown_and_its_arguments_are_judged() {
        let text = "'npx hunter2 -y'";
        let whole = 0..text.len();
        let hidden = secrets_of_arguments(text, std::slice::from_ref(&whole), true);
        assert_eq!(hidden, Vec::from([Range { start: 5, end: 12 }]));
    }
}
