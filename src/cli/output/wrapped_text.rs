//! Text whose lines break between words, at the width of a terminal.
//!
//! Invariants: no line is wider than requested, unless a single word is, or a quoted line; colors
//! change no word.

use std::borrow::Cow;

use super::command_hints;

/// Builder of the text.
pub(crate) struct WrappedText {
    columns: usize,
    colored: bool,
    text: String,
}

impl WrappedText {
    /// Creates an empty text of this width.
    pub(crate) fn new(columns: usize, colored: bool) -> Self {
        Self { columns, colored, text: String::new() }
    }

    /// Returns whether lines are wrapped at all.
    pub(crate) fn is_wrapped(&self) -> bool {
        self.columns < usize::MAX
    }

    /// Returns whether texts stand beside other columns instead of below them.
    pub(crate) fn is_wide(&self) -> bool {
        self.columns >= WIDE_COLUMNS
    }

    /// Adds a line that begins with `head`, which is `width` columns wide, and wraps it if needed;
    /// its further lines are indented. Commands of Weir in the text get the user's file.
    pub(crate) fn add(&mut self, head: &str, width: usize, text: &str, indent: usize) {
        self.text.push_str(head);
        let mut at = width;
        let mut is_first = true;
        for word in command_hints::complete(text).split(' ') {
            let length = columns_of(word);
            if !is_first && at + 1 + length > self.columns
                || is_first && at + length > self.columns && at > indent
            {
                self.end_line();
                self.text.push_str(&" ".repeat(indent));
                at = indent;
            } else if !is_first {
                self.text.push(' ');
                at += 1;
            }
            self.text.push_str(word);
            at += length;
            is_first = false;
        }
        self.end_line();
    }

    /// Adds an indented line.
    pub(crate) fn add_indented(&mut self, indent: usize, text: &str) {
        self.add(&" ".repeat(indent), indent, text, indent);
    }

    /// Adds a line of a message: its further lines are indented more than it is, and those of a
    /// label at carets as the label is. A line that is quoted from a file is not wrapped.
    pub(crate) fn add_line(&mut self, line: &str) {
        let plain = without_colors(line);
        let trimmed = plain.trim_start();
        let behind_number = trimmed.trim_start_matches(|c: char| c.is_ascii_digit());
        if behind_number.len() < trimmed.len() && behind_number.trim_start().starts_with('|') {
            self.text.push_str(line);
            return self.end_line();
        }
        let margin = plain.len() - trimmed.len();
        let carets = plain.rfind('^').filter(|_| trimmed.starts_with('|'));
        let label = carets.map(|at| columns_of(&plain[..at]) + 2);
        // A label at the edge would have no space.
        let indent = label.filter(|label| *label <= self.columns / 2).unwrap_or(margin + 2);
        self.add("", 0, line, indent);
    }

    /// Adds an empty line.
    pub(crate) fn add_gap(&mut self) {
        self.text.push('\n');
    }

    /// Colors a word.
    pub(crate) fn colorize(&self, word: &str, color: TextColor) -> String {
        match self.colored {
            true => format!("\u{1b}[{}m{word}\u{1b}[0m", color as u8),
            false => word.to_owned(),
        }
    }

    /// Returns the text, which ends with a line break.
    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn end_line(&mut self) {
        self.text.truncate(self.text.trim_end_matches(' ').len());
        self.text.push('\n');
    }
}

/// Columns of a text, whose colors take none.
fn columns_of(text: &str) -> usize {
    without_colors(text).chars().count()
}

/// Text without the escape sequences of its colors.
fn without_colors(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('m').map_or("", |(_, rest)| rest));
    (first + &rest.collect::<String>()).into()
}

/// Color of a word, with its number in the escape sequences of terminals.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum TextColor {
    Dim = 2,
    Red = 31,
    Green = 32,
    Yellow = 33,
}

/// Least width at which texts stand beside other columns.
const WIDE_COLUMNS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(columns: usize) -> String {
        let mut text = WrappedText::new(columns, false);
        text.add("down  notes  ", 13, "it cannot be started: no such program: /opt/notes", 13);
        text.add_indented(2, "left out: one");
        text.finish()
    }

    #[test]
    fn lines_break_between_words_and_only_a_word_is_wider() {
        assert_eq!(
            check(30),
            "down  notes  it cannot be\n             started: no such\n             \
             program:\n             /opt/notes\n  left out: one\n"
        );
        assert_eq!(check(usize::MAX).lines().count(), 2);
        assert_eq!(check(1).lines().filter(|line| line.contains("/opt/notes")).count(), 1);
    }

    #[test]
    fn a_drawn_mistake_breaks_between_words_and_its_source_not_at_all() {
        let mut text = WrappedText::new(40, false);
        for line in [
            "\u{1b}[33mwarning\u{1b}[0m: clients.ann: no client has this role at all",
            "  --> weir.toml:12:3",
            "   |",
            "12 |   role = \"a name that is much longer than the terminal\"",
            "   |   ^^^^ correct the name of the role here",
            "  = help: `weir keys` and some more words after it",
        ] {
            text.add_line(line);
        }
        assert_eq!(
            text.finish(),
            "\u{1b}[33mwarning\u{1b}[0m: clients.ann: no client has this\n  \
             role at all\n  --> weir.toml:12:3\n   |\n\
             12 |   role = \"a name that is much longer than the terminal\"\n   \
             |   ^^^^ correct the name of the role\n            here\n  \
             = help: `weir keys` and some more\n    words after it\n"
        );
    }

    #[test]
    fn a_color_is_left_out_where_there_are_none() {
        let word = |colored| WrappedText::new(80, colored).colorize("ok", TextColor::Green);
        assert_eq!([word(true), word(false)], ["\u{1b}[32mok\u{1b}[0m", "ok"]);
    }
}
