//! Sequences for terminals that say how text looks, and not what it is.

use std::borrow::Cow;

/// Removes the sequences that only set colors and styles (`ESC [ … m`) or clear the rest of a line
/// (`ESC [ … K`), which many programs write: one within a word must not hide it from a search.
pub fn without_styles(text: &str) -> Cow<'_, str> {
    if !text.contains(BEGIN) {
        return Cow::Borrowed(text);
    }
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(BEGIN) {
        let behind = at + BEGIN.len();
        let parameters =
            rest[behind..].trim_start_matches(|c: char| c.is_ascii_digit() || c == ';' || c == ':');
        match parameters.strip_prefix(['m', 'K']) {
            Some(next) => {
                plain.push_str(&rest[..at]);
                rest = next;
            }
            None => {
                plain.push_str(&rest[..behind]);
                rest = &rest[behind..];
            }
        }
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// Beginning of a sequence.
const BEGIN: &str = "\u{1b}[";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_sets_a_style_or_clears_a_line_is_removed() {
        assert_eq!(without_styles("\u{1b}[01;31m\u{1b}[Ka\u{1b}[m\u{1b}[Kb"), "ab");
        assert_eq!(without_styles("\u{1b}[2Ja\u{1b}[38:5:1mb"), "\u{1b}[2Jab");
        assert_eq!(without_styles("plain \u{1b}["), "plain \u{1b}[");
    }
}
