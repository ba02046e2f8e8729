//! A result that passes, abridged: all of it but the middle of its long strings.
//!
//! Whether a result is malformed, and whether it hides something, is only told where nothing is rewritten or refused. Then
//! it passes as it arrives, and somebody reads along: what a string holds beyond its beginning is looked at as it comes, and
//! kept only if there is something to find in it.
//!
//! Promises: in what is kept [`Watch::judge`](super::Watch) finds what it would in the whole. A part of a string is left out
//! only where it begins and ends between two characters that are plain, and only if nothing is hidden in it, no escape or
//! byte is wrong, and whatever `guard::output` asks of the string is asked of what is kept, too.
//!
//! Knows nothing of: what a result is made of, but for the names of the members whose strings have a form.

use std::mem;

use super::{HiddenText, invisible_text};
use crate::json;

/// So much of a long string is kept at its beginning, and hardly more at its end.
pub(super) const WINDOW_BYTES: usize = 4 * 1024;

/// The members that hold base64: digits of it are left out, four at a time.
const BASE64: [&[u8]; 2] = [b"data", b"blob"];
/// The members that have another form, of which nothing is left out.
const FORMED: [&[u8]; 2] = [b"uri", b"mimeType"];

/// A text in JSON that is fed piece by piece.
pub(super) struct Abridged {
    kept: Vec<u8>,
    window_bytes: usize,
    looks_for_hidden: bool,
    place: Place,
    /// Where the contents of the string before lie in what is kept.
    before: (usize, usize),
    /// Of the string that we are in: what is asked of it, and where it begins in what is kept.
    form: Form,
    begin: usize,
    /// What has come of it and is not looked at yet.
    window: Vec<u8>,
    is_beginning: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    Inside,
    /// Behind a backslash in a string.
    Escaped,
}

/// What is asked of a string, beside that it is one and hides nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Free,
    Base64,
    /// More than a part of it can tell.
    Whole,
}

impl Abridged {
    /// Nothing yet. Keeps so many bytes of a long string's beginning; hidden text only where it is looked for.
    pub(super) fn new(window_bytes: usize, hidden_text: HiddenText) -> Self {
        Self {
            kept: Vec::new(),
            window_bytes,
            looks_for_hidden: hidden_text != HiddenText::Pass,
            place: Place::Outside,
            before: (0, 0),
            form: Form::Free,
            begin: 0,
            window: Vec::new(),
            is_beginning: true,
        }
    }

    /// How many bytes it takes by now.
    pub(super) fn len(&self) -> usize {
        self.kept.len() + self.window.len()
    }

    /// Reads the next bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match self.place {
                Place::Outside => {
                    let quote = memchr::memchr(b'"', bytes);
                    let taken = quote.map_or(bytes.len(), |at| at + 1);
                    self.kept.extend_from_slice(&bytes[..taken]);
                    if quote.is_some() {
                        self.open();
                    }
                    taken
                }
                Place::Inside | Place::Escaped => {
                    let taken = self.rest_of_string(bytes);
                    self.take(&bytes[..taken]);
                    if taken == bytes.len() {
                        return;
                    }
                    self.close();
                    taken + 1
                }
            };
            bytes = &bytes[taken..];
        }
    }

    /// What is kept of the whole.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.kept.append(&mut self.window);
        self.kept
    }

    /// How many of these bytes are of the string that we are in, without the quote at its end.
    fn rest_of_string(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if mem::replace(&mut self.place, Place::Inside) == Place::Escaped {
                at += 1;
                continue;
            }
            match memchr::memchr2(b'"', b'\\', &bytes[at..]) {
                None => return bytes.len(),
                Some(more) if bytes[at + more] == b'"' => return at + more,
                Some(more) => {
                    self.place = Place::Escaped;
                    at += more + 1;
                }
            }
        }
        bytes.len()
    }

    /// A string begins behind what is kept.
    fn open(&mut self) {
        self.place = Place::Inside;
        self.begin = self.kept.len();
        self.is_beginning = true;
        let (begin, end) = self.before;
        // Between a name and its string stand the one's last quote, a colon, and the other's first quote.
        let between = self.kept.get(end + 1..self.begin - 1).unwrap_or_default();
        let name = &self.kept[begin..end];
        self.form = match between.trim_ascii() == b":" {
            true if BASE64.contains(&name) => Form::Base64,
            // One that is written with escapes may be any of them.
            true if FORMED.contains(&name) || name.contains(&b'\\') => Form::Whole,
            _ => Form::Free,
        };
    }

    /// The string ends, and its quote is what comes next.
    fn close(&mut self) {
        self.kept.append(&mut self.window);
        self.before = (self.begin, self.kept.len());
        self.place = Place::Outside;
        self.kept.push(b'"');
    }

    /// Takes what comes of a string.
    fn take(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let is_long = text.len() >= self.window_bytes && !self.is_beginning;
            // Where it lies, if nothing of it came before.
            let place = if is_long && self.window.is_empty() { cut(text) } else { 0 };
            if place > 0 {
                self.look(&text[..place]);
                text = &text[place..];
                continue;
            }
            let (held, more) = (self.window.len(), text.len().min(self.window_bytes));
            self.window.extend_from_slice(&text[..more]);
            let cut = if self.window.len() < self.window_bytes { 0 } else { cut(&self.window) };
            if cut <= held {
                // No place to cut in what is new.
                text = &text[more..];
                continue;
            }
            let mut window = mem::take(&mut self.window);
            self.look(&window[..cut]);
            window.clear();
            self.window = window;
            text = &text[cut - held..];
        }
    }

    /// Keeps a part of a string, or leaves it out.
    fn look(&mut self, part: &[u8]) {
        let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() | (*byte == b'+') | (*byte == b'/');
        let left_out = match self.form {
            _ if mem::take(&mut self.is_beginning) => 0,
            Form::Base64 if part.iter().all(is_digit) => part.len() / 4 * 4,
            Form::Free if self.is_nothing(part) => part.len(),
            _ => 0,
        };
        self.kept.extend_from_slice(&part[left_out..]);
    }

    /// Whether there is nothing to find in a part of a string.
    fn is_nothing(&self, part: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(part) else { return false };
        if !invisible_text::may_hide(part) && has_plain_escapes(part) {
            return true;
        }
        let quoted = format!("\"{text}\"");
        let Some(meant) = json::decode_string(&quoted) else { return false };
        // Without an escape these are wrong in a string, and not all that read one mind.
        let is_wrong = part.iter().any(|byte| *byte < b' ');
        let hides = || invisible_text::look(&meant, HiddenText::Flag, false).is_some();
        !(is_wrong || self.looks_for_hidden && hides())
    }
}

/// Whether of what begins with a backslash all is a short escape, and no line break or tab stands there without one.
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

/// The last place where a string's text can be cut: between two characters that are plain and stand for themselves. 0 if
/// there is none near the end.
fn cut(text: &[u8]) -> usize {
    let mut from = text.len().saturating_sub(NEAR_BYTES);
    // To where a character begins.
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
            Some(place) if is_plain && !is_escaped(text, from + at) => return from + place,
            _ => behind = is_plain.then_some(at),
        }
    }
    0
}

/// Whether the character there may be part of an escape, and no backslash itself.
fn is_escaped(text: &[u8], at: usize) -> bool {
    // The longest has six bytes, of which the backslash is the first.
    let before = &text[at.saturating_sub(5)..at];
    before.ends_with(b"\\") || before.windows(2).any(|pair| pair == b"\\u")
}

/// How far from the end a place to cut is looked for.
const NEAR_BYTES: usize = 1024;
