//! Spellings of one secret: a matcher that reads a text byte by byte.
//!
//! A character may be written as it is, with the escapes of JSON (`\/`, `\"`, `\\`, `\u0041`), also
//! of JSON within JSON (`\\u0041`), and percent-encoded (`%41`), which JSON may escape again.
//!
//! Invariants: each byte takes a constant time on average, whatever came before (the matcher is
//! that of Knuth, Morris and Pratt). The beginning of a secret that is remembered has a bounded
//! length. A match begins and ends between two characters of the text, so that JSON in which it is
//! replaced stays valid.

use std::collections::VecDeque;

use memchr::memmem::Finder;
use zeroize::Zeroizing;

/// Secret that is searched for.
pub(super) struct SecretPattern {
    pub(super) finder: Finder<'static>,
    bytes: Zeroizing<Vec<u8>>,
    /// Length of the longest border of each beginning: a shorter beginning with which it ends.
    borders: Vec<u32>,
    has_backslash: bool,
    has_percent: bool,
}

impl SecretPattern {
    /// Prepares the search for a secret, which is not empty.
    pub(super) fn new(secret: &str) -> Self {
        let bytes: Vec<u8> = secret.bytes().map(fold).collect();
        let (mut borders, mut border) = (vec![0], 0_u32);
        for byte in bytes.iter().skip(1) {
            while border > 0 && bytes[border as usize] != *byte {
                border = borders[border as usize - 1];
            }
            border += u32::from(bytes[border as usize] == *byte);
            borders.push(border);
        }
        Self {
            finder: Finder::new(secret).into_owned(),
            has_backslash: bytes.contains(&b'\\'),
            has_percent: bytes.contains(&b'%'),
            bytes: Zeroizing::new(bytes),
            borders,
        }
    }

    /// Bytes of the secret, in the form in which they are compared.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns the byte by which another one is compared: forms write `+` for a space.
fn fold(byte: u8) -> u8 {
    if byte == b' ' { b'+' } else { byte }
}

/// State of the search for one secret.
#[derive(Default)]
pub(super) struct SpellingMatcher {
    escape: Escape,
    /// Beginning of the secret with which the text ends, without and with percent-encoding.
    plain: Beginning,
    decoded: Beginning,
    /// Characters of a percent-encoded byte that has begun.
    percent: VecDeque<Character>,
}

/// Escape of JSON that has begun.
#[derive(Default, Clone, Copy)]
enum Escape {
    #[default]
    None,
    /// Number of backslashes.
    Backslashes(u8),
    /// `u` and its digits so far, behind backslashes.
    Code { backslashes: u8, digits: [u8; 4], count: u8 },
}

/// Byte of the text, as one or several bytes of the body write it.
#[derive(Clone, Copy)]
struct Character {
    byte: u8,
    /// Number of bytes that write it, and without the characters before it that are no part of it
    /// if the secret begins here.
    length: u8,
    length_if_first: u8,
}

impl SpellingMatcher {
    /// Reads the next byte. Returns the number of bytes with which the secret is written, if it
    /// ends here.
    pub(super) fn push(&mut self, pattern: &SecretPattern, byte: u8) -> Option<usize> {
        match std::mem::take(&mut self.escape) {
            Escape::None if byte == b'\\' => self.escape = Escape::Backslashes(1),
            Escape::None => return self.take(pattern, byte, 1, 1),
            Escape::Backslashes(_) if byte == b'\\' && pattern.has_backslash => {
                return self.take(pattern, b'\\', 2, 2);
            }
            Escape::Backslashes(count) if byte == b'\\' => {
                // An even number of them is no escape of what follows, or one within JSON.
                let count = (count + 1) % MAX_BACKSLASHES;
                if count == 0 {
                    self.forget();
                }
                self.escape = Escape::Backslashes(count);
            }
            Escape::Backslashes(backslashes) => match byte {
                // Behind an even number of them it may be the beginning of the secret itself.
                b'u' if backslashes % 2 == 1 || self.matched() > 0 || pattern.bytes[0] != b'u' => {
                    self.escape = Escape::Code { backslashes, digits: [0; 4], count: 0 };
                }
                b'/' | b'"' => {
                    return self.take(pattern, byte, backslashes + 1, backslashes % 2 + 1);
                }
                _ => {
                    self.forget();
                    if backslashes.is_multiple_of(2) {
                        return self.take(pattern, byte, 1, 1);
                    }
                }
            },
            Escape::Code { backslashes, mut digits, count } => {
                if !byte.is_ascii_hexdigit() {
                    self.read_as_text(pattern, backslashes, &digits[..count.into()]);
                    return self.push(pattern, byte);
                }
                digits[usize::from(count)] = byte;
                if count < 3 {
                    self.escape = Escape::Code { backslashes, digits, count: count + 1 };
                    return None;
                }
                let code = digits.iter().fold(0, |code, digit| code * 16 + hex_value(*digit));
                let Some(character) = char::from_u32(code) else {
                    self.read_as_text(pattern, backslashes, &digits);
                    return None;
                };
                let (mut length, mut length_if_first) = (backslashes + 5, backslashes % 2 + 5);
                let mut found = None;
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    found = self.take(pattern, byte, length, length_if_first);
                    (length, length_if_first) = (0, 0);
                }
                return found;
            }
        }
        None
    }

    /// Reads `u` and digits that are no escape.
    fn read_as_text(&mut self, pattern: &SecretPattern, backslashes: u8, digits: &[u8]) {
        self.forget();
        if backslashes.is_multiple_of(2) {
            for byte in std::iter::once(&b'u').chain(digits) {
                self.take(pattern, *byte, 1, 1);
            }
        }
    }

    /// Takes the next character of the text.
    fn take(
        &mut self,
        pattern: &SecretPattern,
        byte: u8,
        length: u8,
        length_if_first: u8,
    ) -> Option<usize> {
        let character = Character { byte, length, length_if_first };
        let plain = self.plain.extend(pattern, character);
        let decoded = self.take_encoded(pattern, character);
        // Of `%30` the last character is the beginning, if the rest is not encoded.
        plain.or(decoded)
    }

    /// Takes the next character of a text that may be percent-encoded.
    fn take_encoded(&mut self, pattern: &SecretPattern, next: Character) -> Option<usize> {
        if self.percent.is_empty() && next.byte != b'%' {
            return self.decoded.extend(pattern, next);
        }
        if self.percent.is_empty() || next.byte.is_ascii_hexdigit() {
            self.percent.push_back(next);
        } else {
            // The secret may begin with a digit that is no part of an encoding.
            self.decoded.clear();
            for digit in std::mem::take(&mut self.percent).into_iter().skip(1) {
                self.decoded.extend(pattern, digit);
            }
            return self.take_encoded(pattern, next);
        }
        let [sign, high, low] = *self.percent.make_contiguous() else { return None };
        self.percent.clear();
        let rest = high.length + low.length;
        let character = Character {
            byte: (hex_value(high.byte) * 16 + hex_value(low.byte)) as u8,
            length: sign.length + rest,
            length_if_first: sign.length_if_first + rest,
        };
        // It may have been encoded twice.
        if character.byte == b'%' && !pattern.has_percent && character.length < MAX_ENCODED_BYTES {
            self.percent.push_back(character);
            return None;
        }
        self.decoded.extend(pattern, character)
    }

    /// Forgets what was read: it is not followed by the rest of a secret.
    fn forget(&mut self) {
        self.plain.clear();
        self.decoded.clear();
        self.percent.clear();
    }

    /// Returns whether the text does not end with the beginning of a spelling.
    pub(super) fn is_idle(&self) -> bool {
        let is_escape = !matches!(self.escape, Escape::None);
        !is_escape && self.percent.is_empty() && self.plain.is_empty() && self.decoded.is_empty()
    }

    /// Returns the number of bytes at the end of the text that may belong to the secret.
    pub(super) fn pending(&self) -> usize {
        let escape = match self.escape {
            Escape::None => 0,
            Escape::Backslashes(count) => count,
            Escape::Code { backslashes, count, .. } => backslashes + 1 + count,
        };
        let percent: usize = self.percent.iter().map(|it| usize::from(it.length)).sum();
        usize::from(escape) + self.plain.length.max(self.decoded.length + percent)
    }

    /// Returns the number of characters of the secret with which the text ends.
    pub(super) fn matched(&self) -> usize {
        self.plain.lengths.len().max(self.decoded.lengths.len())
    }
}

/// Beginning of a secret with which a text ends.
#[derive(Default)]
struct Beginning {
    /// Number of bytes that write each of its characters, and their sum.
    lengths: VecDeque<u8>,
    length: usize,
}

impl Beginning {
    /// Takes the next character, and returns the length of the secret if it is complete.
    fn extend(&mut self, pattern: &SecretPattern, next: Character) -> Option<usize> {
        let byte = fold(next.byte);
        while pattern.bytes[self.lengths.len()] != byte {
            if self.is_empty() {
                return None;
            }
            self.shorten(pattern);
        }
        let length = if self.is_empty() { next.length_if_first } else { next.length };
        self.lengths.push_back(length);
        self.length += usize::from(length);
        if self.lengths.len() == pattern.bytes.len() {
            // A secret may consist of equal characters, so the search never goes back.
            let length = self.length;
            self.clear();
            return Some(length);
        }
        while self.length > MAX_BYTES_PER_CHARACTER * pattern.bytes.len() {
            self.shorten(pattern);
        }
        None
    }

    /// Shortens the beginning to the longest one with which the text ends, too.
    fn shorten(&mut self, pattern: &SecretPattern) {
        let Some(last) = self.lengths.len().checked_sub(1) else { return };
        while self.lengths.len() > pattern.borders[last] as usize {
            self.length -= usize::from(self.lengths.pop_front().unwrap_or_default());
        }
    }

    fn clear(&mut self) {
        self.lengths.clear();
        self.length = 0;
    }

    fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }
}

fn hex_value(digit: u8) -> u32 {
    char::from(digit).to_digit(16).unwrap_or_default()
}

/// Most backslashes of an escape, plus one: JSON within JSON within JSON has seven.
pub(super) const MAX_BACKSLASHES: u8 = 8;
/// Most bytes of a percent sign that was percent-encoded itself.
const MAX_ENCODED_BYTES: u8 = 64;
/// Most bytes that are remembered for each character of the secret, on average: `\u0041` has six.
const MAX_BYTES_PER_CHARACTER: usize = 8;
