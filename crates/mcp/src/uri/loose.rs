//! Forms under which different spellings of a text are equal, for deny rules.
//!
//! A reader may fold case (file systems, hosts), decode escapes, normalize Unicode or read `+` as a
//! space. A deny rule matches every text that is equal to the named one under any of these. The
//! cost: a rule may deny a little more than it says. Only URIs that no upstream lists are compared
//! this way.

use unicode_normalization::UnicodeNormalization;

use super::host;

/// Two forms of a text or pattern, whose `*` stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LooseForms {
    /// The text with each character folded separately: if a pattern matches a text, its form
    /// matches the form of the text.
    pub(crate) letters: Box<str>,
    /// `letters` with one slash after the scheme and no double slashes; without spaces around a
    /// segment and dots at its end.
    pub(crate) shape: Box<str>,
}

impl LooseForms {
    /// The forms of a text. Linear in its length.
    pub(crate) fn of(text: &str) -> Self {
        let letters = fold(&decode(text));
        let shape = shape(&letters);
        Self { letters: letters.into(), shape: shape.into() }
    }

    /// The forms with `prefix` (an upstream's name and a slash, or nothing) in front.
    pub(crate) fn behind(&self, prefix: &str) -> Self {
        let behind = |form: &str| [prefix, form].concat().into();
        Self { letters: behind(&self.letters), shape: behind(&self.shape) }
    }
}

/// Whether some file systems ignore the character when they compare names.
pub(super) fn is_ignored(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{feff}' | '\u{ad}')
        || matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{180b}'..='\u{180d}')
        || matches!(c, '\u{e0100}'..='\u{e01ef}')
}

/// Decodes percent escapes; text that is not an escape stays.
fn decode(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| *first == b'%');
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.filter(|hex| !hex.starts_with('+')).map(|hex| u8::from_str_radix(hex, 16));
        match byte {
            Some(Ok(byte)) => {
                decoded.push(byte);
                rest = &after[2..];
            }
            _ => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn fold(text: &str) -> String {
    let same = |c: char| match c {
        '\\' => '/',
        // Drive letters are also written `C|`.
        '|' => ':',
        c if c == '+' || c.is_whitespace() => ' ',
        c => c,
    };
    if text.is_ascii() {
        return text.chars().map(|c| same(c.to_ascii_lowercase())).collect();
    }
    let letters = text.chars().filter(|c| !is_ignored(*c)).nfkc();
    // Upper case first, as full case folding does: `ß` is `ss`.
    let letters = letters.flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    letters.nfkc().map(same).collect()
}

fn shape(letters: &str) -> String {
    let Some((head, rest)) = letters.split_once(':') else { return segments(letters) };
    let rest = rest.trim_start_matches('/');
    if rest.starts_with('*') && !letters[head.len() + 1..].starts_with('/') {
        return segments(letters);
    }
    // The upstream's name precedes the scheme.
    let scheme = head.rsplit('/').next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = match (scheme, authority) {
        ("file", "localhost") => "",
        (_, authority) => {
            let port = host::default_port(scheme).map(|port| format!(":{port}"));
            let host = port.and_then(|port| authority.strip_suffix(&*port));
            host.unwrap_or(authority)
        }
    };
    segments(&[head, ":/", authority, path].concat())
}

/// The text without double slashes and without segments that end in dots or spaces.
fn segments(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for (at, segment) in text.split('/').enumerate() {
        let trimmed = segment.trim_end_matches(['.', ' ']);
        let segment =
            if trimmed.ends_with('*') { segment } else { trimmed.trim_start_matches(' ') };
        if at > 0 && !result.ends_with('/') {
            result.push('/');
        }
        result.push_str(segment);
    }
    result
}
