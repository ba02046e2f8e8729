//! Inspection of a result that is forwarded while it arrives, from an abridged copy.
//!
//! If no finding leads to rewriting or refusing a result, the result is forwarded as it arrives,
//! and its findings are only reported. For this, the inspector keeps everything except the middle
//! of long strings: a part of a string beyond its beginning is checked as it arrives, and kept only
//! if it contains something to find.
//!
//! Invariants: [`ResponseInspector`](super::ResponseInspector) finds the same in the copy as in the
//! whole result. A part of a string is skipped only if it begins and ends between two plain
//! characters, contains nothing invisible and no invalid escape or byte, and if every check of
//! `guard::result_check` on the string is done on the copy, too.
//!
//! Decision: docs/decisions/0015-guard.md

use std::mem;

use super::{HiddenText, invisible_text};
use weir_base::json;

/// Bytes kept of the beginning of a long string, and about as much of its end.
pub(super) const WINDOW_BYTES: usize = 4 * 1024;

/// Members with base64, whose digits are skipped in groups of four.
const BASE64_MEMBERS: [&[u8]; 2] = [b"data", b"blob"];
/// Members with another format, of which nothing is skipped.
const VERBATIM_MEMBERS: [&[u8]; 2] = [b"uri", b"mimeType"];

/// Incremental abridgement of JSON text.
pub(super) struct StreamingInspector {
    output: Vec<u8>,
    window_bytes: usize,
    checks_hidden: bool,
    position: Position,
    /// Span of the previous string's contents in the output.
    previous: (usize, usize),
    /// Format of the current string, and its start in the output.
    format: StringFormat,
    string_start: usize,
    /// Received bytes of the string that are not checked yet.
    window: Vec<u8>,
    is_beginning: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Outside,
    Inside,
    /// Behind a backslash in a string.
    Escaped,
}

/// Required format of a string, besides being valid and without invisible text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StringFormat {
    Any,
    Base64,
    /// A format that cannot be checked in parts.
    Verbatim,
}

impl StreamingInspector {
    /// Creates an inspector that keeps `window_bytes` of the beginning of a long string.
    pub(super) fn new(window_bytes: usize, hidden_text: HiddenText) -> Self {
        Self {
            output: Vec::new(),
            window_bytes,
            checks_hidden: hidden_text != HiddenText::Pass,
            position: Position::Outside,
            previous: (0, 0),
            format: StringFormat::Any,
            string_start: 0,
            window: Vec::new(),
            is_beginning: true,
        }
    }

    /// Returns the size of the copy so far.
    pub(super) fn len(&self) -> usize {
        self.output.len() + self.window.len()
    }

    /// Processes the next bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match self.position {
                Position::Outside => {
                    let quote = memchr::memchr(b'"', bytes);
                    let taken = quote.map_or(bytes.len(), |at| at + 1);
                    self.output.extend_from_slice(&bytes[..taken]);
                    if quote.is_some() {
                        self.open_string();
                    }
                    taken
                }
                Position::Inside | Position::Escaped => {
                    let taken = self.rest_of_string(bytes);
                    self.push(&bytes[..taken]);
                    if taken == bytes.len() {
                        return;
                    }
                    self.close_string();
                    taken + 1
                }
            };
            bytes = &bytes[taken..];
        }
    }

    /// Returns the abridged copy.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.output.append(&mut self.window);
        self.output
    }

    /// Returns the number of bytes that belong to the current string, without the quote at its end.
    fn rest_of_string(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if mem::replace(&mut self.position, Position::Inside) == Position::Escaped {
                at += 1;
                continue;
            }
            match memchr::memchr2(b'"', b'\\', &bytes[at..]) {
                None => return bytes.len(),
                Some(more) if bytes[at + more] == b'"' => return at + more,
                Some(more) => {
                    self.position = Position::Escaped;
                    at += more + 1;
                }
            }
        }
        bytes.len()
    }

    /// Starts a string at the end of the output.
    fn open_string(&mut self) {
        self.position = Position::Inside;
        self.string_start = self.output.len();
        self.is_beginning = true;
        let (string_start, end) = self.previous;
        // Between a member's name and its string are the last quote of the name, a colon, and the
        // first quote of the string.
        let between = self.output.get(end + 1..self.string_start - 1).unwrap_or_default();
        let name = &self.output[string_start..end];
        self.format = match between.trim_ascii() == b":" {
            true if BASE64_MEMBERS.contains(&name) => StringFormat::Base64,
            // A name with escapes may be any of them.
            true if VERBATIM_MEMBERS.contains(&name) || name.contains(&b'\\') => {
                StringFormat::Verbatim
            }
            _ => StringFormat::Any,
        };
    }

    /// Ends the string, before its closing quote.
    fn close_string(&mut self) {
        self.output.append(&mut self.window);
        self.previous = (self.string_start, self.output.len());
        self.position = Position::Outside;
        self.output.push(b'"');
    }

    /// Processes received bytes of a string.
    fn push(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let is_long = text.len() >= self.window_bytes && !self.is_beginning;
            // Cut in place, if nothing of the string is buffered.
            let position = if is_long && self.window.is_empty() { cut_point(text) } else { 0 };
            if position > 0 {
                self.keep_or_skip(&text[..position]);
                text = &text[position..];
                continue;
            }
            let (before_len, more) = (self.window.len(), text.len().min(self.window_bytes));
            self.window.extend_from_slice(&text[..more]);
            let cut_point =
                if self.window.len() < self.window_bytes { 0 } else { cut_point(&self.window) };
            if cut_point <= before_len {
                // The new bytes have no cut point.
                text = &text[more..];
                continue;
            }
            let mut window = mem::take(&mut self.window);
            self.keep_or_skip(&window[..cut_point]);
            window.clear();
            self.window = window;
            text = &text[cut_point - before_len..];
        }
    }

    /// Keeps a part of a string, or skips it.
    fn keep_or_skip(&mut self, part: &[u8]) {
        let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() | (*byte == b'+') | (*byte == b'/');
        let skipped = match self.format {
            _ if mem::take(&mut self.is_beginning) => 0,
            StringFormat::Base64 if part.iter().all(is_digit) => part.len() / 4 * 4,
            StringFormat::Any if self.is_unremarkable(part) => part.len(),
            _ => 0,
        };
        self.output.extend_from_slice(&part[skipped..]);
    }

    /// Returns whether a part of a string contains nothing to find.
    fn is_unremarkable(&self, part: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(part) else { return false };
        if !invisible_text::may_contain_hidden(part) && has_plain_escapes(part) {
            return true;
        }
        let quoted = format!("\"{text}\"");
        let Some(meant) = json::decode_string(&quoted) else { return false };
        // Unescaped control characters are invalid in a string, and not every parser rejects them.
        let is_wrong = part.iter().any(|byte| *byte < b' ');
        let hides = || invisible_text::inspect(&meant, HiddenText::Flag, false).is_some();
        !(is_wrong || self.checks_hidden && hides())
    }
}

/// Returns whether all escapes are short ones, and no line break or tab is unescaped.
fn has_plain_escapes(part: &[u8]) -> bool {
    if memchr::memchr3(b'\t', b'\n', b'\r', part).is_some() {
        return false;
    }
    let mut rest = part;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        if !rest.get(at + 1).is_some_and(|byte| b"\"\\/nrt".contains(byte)) {
            return false;
        }
        rest = &rest[at + 2..];
    }
    true
}

/// Returns the last position where a string's text can be cut: between two plain, unescaped
/// characters. 0 if there is none near the end.
fn cut_point(text: &[u8]) -> usize {
    let mut from = text.len().saturating_sub(CUT_SEARCH_BYTES);
    // Move to the start of a character.
    while from < text.len() && text[from] & 0xC0 == 0x80 {
        from += 1;
    }
    let whole = match std::str::from_utf8(&text[from..]) {
        Ok(near) => near,
        Err(error) => {
            let whole = &text[from..from + error.valid_up_to()];
            std::str::from_utf8(whole).expect("it is valid up to there")
        }
    };
    let mut behind = None;
    for (at, letter) in whole.char_indices().rev() {
        let is_plain = letter != '\\' && invisible_text::is_plain(letter);
        match behind {
            Some(position) if is_plain && !is_escaped(text, from + at) => return from + position,
            _ => behind = is_plain.then_some(at),
        }
    }
    0
}

/// Returns whether the character at `at` may be a part of an escape, other than the backslash
/// itself.
fn is_escaped(text: &[u8], at: usize) -> bool {
    // The longest escape has six bytes, of which the backslash is the first.
    let previous = &text[at.saturating_sub(5)..at];
    previous.ends_with(b"\\") || previous.windows(2).any(|pair| pair == b"\\u")
}

/// Distance from the end within which a cut point is searched.
const CUT_SEARCH_BYTES: usize = 1024;
