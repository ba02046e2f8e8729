//! Normal form of URIs that no upstream lists.
//!
//! Servers parse URIs with different libraries: one strips a TAB, one reads `\` as `/`, one decodes
//! percent escapes before it looks for `..`. A rule is compared with text. So that the text means
//! the same resource to all of them, a URI that is not listed byte for byte is routed only as a
//! [`CanonicalUri`], which has one spelling per resource. Users: `docs/resource-uris.md`.
//!
//! Invariants: parsing a canonical URI with a WHATWG parser (pydantic's `AnyUrl`, Node's and Rust's
//! `Url`) and writing it again gives the same text; decoding it adds no segment, no separator and
//! no further escape; [`CanonicalUri::readings`] and [`LooseForms`] cover all known differences
//! that are left between readers (query or not, case, port …).
//!
//! Decision: docs/decisions/0029-resource-uris.md

mod equivalence;
mod host;
mod loose;
mod readings;

use std::borrow::Cow;
use std::sync::OnceLock;

use unicode_normalization::{UnicodeNormalization, is_nfc};

pub use equivalence::equivalence_form;
pub(crate) use loose::LooseForms;

use crate::definition::item::MAX_URI_BYTES;
use weir_base::text::invisible_chars::is_invisible;

/// URI in the one spelling that all readers agree on.
#[derive(Debug, Clone)]
pub struct CanonicalUri<'a> {
    text: &'a str,
    /// The URI as seen by readers that ignore a part of it; the whole text is the first.
    readings: Vec<Cow<'a, str>>,
    /// The readings without a port, if there is one, and with the path `/` or without it, if the
    /// URI has no other path.
    others: Vec<String>,
    /// The loose forms of all of them, computed once: the rules of each upstream are compared
    /// with them.
    loose: OnceLock<Vec<LooseForms>>,
}

/// Reason for which a URI is not canonical.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotCanonical {
    /// Longer than any URI that is accepted.
    #[error("it is longer than {MAX_URI_BYTES} bytes")]
    TooLong,
    /// There is no scheme, or it has capital letters.
    #[error("it does not begin with a scheme in lower case")]
    Scheme,
    /// Nothing follows the scheme.
    #[error("nothing follows its scheme")]
    Empty,
    /// A character that RFC 3986 does not allow there.
    #[error("the character {0:?} must be percent-encoded")]
    Character(char),
    /// A percent sign without two hexadecimal digits in upper case.
    #[error("a `%` is not followed by two hexadecimal digits in upper case")]
    Escape,
    /// An escape of a character that must be written as itself.
    #[error("`%{0:02X}` must be written as the character that it stands for")]
    Superfluous(u8),
    /// An escape that no URI of an unlisted resource may have.
    #[error("it must not contain `%{0:02X}` there")]
    Forbidden(u8),
    /// An escape of an escape.
    #[error("`%25` is followed by two hexadecimal digits, so that it could be decoded twice")]
    DoubleEncoded,
    /// The escapes do not stand for UTF-8.
    #[error("its percent escapes do not stand for UTF-8")]
    NotUtf8,
    /// The decoded text is not in Unicode's normalization form C.
    #[error("its decoded text is not in Unicode's normalization form C")]
    NotNormalized,
    /// A character that some readers take for a separator, or an invisible one.
    #[error("it must not contain the character U+{:04X}", u32::from(*.0))]
    Ambiguous(char),
    /// An empty segment, or one of dots and spaces.
    #[error("its path has an empty segment, or one such as `.` or `..`")]
    Segment,
    /// User information, an odd spelling of the host, or a default port.
    #[error("its host or port is not written in the normal form of its scheme")]
    Authority,
    /// `https:` and the like without `//host/`, or `file:` in another form than `file:///path`.
    #[error("it has no `//`, host and path as its scheme asks for (`file:///path` has no host)")]
    Form,
}

impl<'a> CanonicalUri<'a> {
    /// Accepts a URI in normal form only. Linear in its length, which is bounded.
    pub fn parse(text: &'a str) -> Result<Self, NotCanonical> {
        if text.len() > MAX_URI_BYTES {
            return Err(NotCanonical::TooLong);
        }
        let parts = UriParts::of(text)?;
        check_characters(&parts)?;
        let letters = decode(&parts)?;
        check_letters(&letters)?;
        if let Some(authority) = parts.authority {
            host::check(parts.scheme, authority)?;
        }
        check_form(&parts)?;
        readings::check_segments(&parts, &letters)?;
        let (readings, others) = readings::of(text, &parts, &letters);
        Ok(Self { text, readings, others, loose: OnceLock::new() })
    }

    /// The URI as it was written.
    pub(crate) fn as_str(&self) -> &'a str {
        self.text
    }

    /// The URI as seen by readers that ignore the fragment, the query, parameters (`;x`) or
    /// trailing slashes. The first is the whole URI; there are at most twenty. A rule must allow
    /// each of them.
    pub fn readings(&self) -> impl Iterator<Item = &str> {
        self.readings.iter().map(|reading| &**reading)
    }

    /// All spellings that no rule may deny: the [`readings`](Self::readings), with and without the
    /// port, and with and without the path `/`.
    pub(crate) fn spellings(&self) -> impl Iterator<Item = &str> {
        self.readings().chain(self.others.iter().map(String::as_str))
    }

    /// The loose forms of the [`spellings`](Self::spellings), in their order.
    pub(crate) fn loose(&self) -> &[LooseForms] {
        self.loose.get_or_init(|| self.spellings().map(LooseForms::of).collect())
    }
}

// === Parts ===

/// The parts of a URI (RFC 3986, section 3), still percent-encoded.
struct UriParts<'a> {
    scheme: &'a str,
    authority: Option<&'a str>,
    path: &'a str,
    /// With its `?`.
    query: &'a str,
    /// With its `#`.
    fragment: &'a str,
    /// Byte offset of the path in the whole text.
    path_start: usize,
}

impl<'a> UriParts<'a> {
    fn of(text: &'a str) -> Result<Self, NotCanonical> {
        let (scheme, rest) = text.split_once(':').ok_or(NotCanonical::Scheme)?;
        let allowed =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '+' | '-' | '.');
        if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.chars().all(allowed) {
            return Err(NotCanonical::Scheme);
        }
        let (rest, fragment) = rest.split_at(rest.find('#').unwrap_or(rest.len()));
        let (rest, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let (authority, path) = match rest.strip_prefix("//") {
            None => (None, rest),
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (Some(authority), path)
            }
        };
        if path.is_empty() && authority.unwrap_or_default().is_empty() {
            return Err(NotCanonical::Empty);
        }
        let path_start = text.len() - fragment.len() - query.len() - path.len();
        Ok(Self { scheme, authority, path, query, fragment, path_start })
    }

    /// Whether the scheme is special in WHATWG's URL standard.
    fn is_special(&self) -> bool {
        host::is_special(self.scheme)
    }
}

/// RFC 3986, appendix A: which characters may stand in which part.
fn check_characters(parts: &UriParts<'_>) -> Result<(), NotCanonical> {
    let in_path = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(c, '-' | '.' | '_' | '~' | '%' | ':' | '@' | '/')
            || matches!(c, '!' | '$' | '&' | '\'' | '(' | ')' | '*' | '+' | ',' | ';' | '=')
    };
    let bad = |c: &char| !in_path(*c);
    let in_tail = |text: &str| text.chars().skip(1).find(|c| bad(c) && *c != '?');
    // WHATWG parsers write this one as `%27`, in these schemes' queries only.
    let quote = parts.query.chars().find(|c| *c == '\'' && parts.is_special());
    let found = parts.path.chars().find(bad);
    let found = found.or_else(|| in_tail(parts.query)).or_else(|| in_tail(parts.fragment));
    match found.or(quote) {
        Some(c) => Err(NotCanonical::Character(c)),
        None => Ok(()),
    }
}

// === Letters ===

/// A decoded character with its byte offset in the URI.
struct DecodedChar {
    at: usize,
    c: char,
}

/// Decodes the whole URI.
fn decode(parts: &UriParts<'_>) -> Result<Vec<DecodedChar>, NotCanonical> {
    let authority = parts.authority.unwrap_or_default();
    let mut letters = Vec::new();
    let mut at = parts.path_start - authority.len();
    for (part, is_tail) in
        [(authority, false), (parts.path, false), (parts.query, true), (parts.fragment, true)]
    {
        decode_part(part, at, is_tail, &mut letters)?;
        at += part.len();
    }
    Ok(letters)
}

fn decode_part(
    part: &str,
    start: usize,
    is_tail: bool,
    letters: &mut Vec<DecodedChar>,
) -> Result<(), NotCanonical> {
    let bytes = part.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'%' {
            let c = part[at..].chars().next().unwrap_or_default();
            letters.push(DecodedChar { at: start + at, c });
            at += c.len_utf8();
            continue;
        }
        let from = at;
        let mut run = Vec::new();
        while bytes.get(at) == Some(&b'%') {
            run.push(escaped(&bytes[at + 1..], is_tail)?);
            at += 3;
        }
        let text = std::str::from_utf8(&run).map_err(|_| NotCanonical::NotUtf8)?;
        let found = text.char_indices();
        letters.extend(found.map(|(byte, c)| DecodedChar { at: start + from + 3 * byte, c }));
    }
    Ok(())
}

/// The byte that an escape stands for; `after` is what follows its `%`.
fn escaped(after: &[u8], is_tail: bool) -> Result<u8, NotCanonical> {
    let digit = |at: usize| match after.get(at) {
        Some(c @ b'0'..=b'9') => Ok(c - b'0'),
        Some(c @ b'A'..=b'F') => Ok(c - b'A' + 10),
        _ => Err(NotCanonical::Escape),
    };
    let byte = digit(0)? << 4 | digit(1)?;
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            Err(NotCanonical::Superfluous(byte))
        }
        // Values of a query are written so (RFC 6570, section 3.2.8).
        b'/' if is_tail => Ok(byte),
        b'/' | b'\\' | 0..0x20 | 0x7f => Err(NotCanonical::Forbidden(byte)),
        b'%' => match after.get(2..4) {
            Some(next) if next.iter().all(u8::is_ascii_hexdigit) => {
                Err(NotCanonical::DoubleEncoded)
            }
            _ => Ok(byte),
        },
        _ => Ok(byte),
    }
}

/// Rejects characters that readers interpret differently.
fn check_letters(letters: &[DecodedChar]) -> Result<(), NotCanonical> {
    let others = letters.iter().map(|letter| letter.c).filter(|c| !c.is_ascii());
    for c in others.clone() {
        // These have no compatibility mapping, but become a slash when text is converted to a code
        // page: the last two are the byte of a backslash in the Japanese and Korean ones.
        let looks_like_a_slash = matches!(
            c,
            '\u{2044}' | '\u{2215}' | '\u{2216}' | '\u{29f5}' | '\u{29f8}' | '\u{a5}' | '\u{20a9}'
        );
        let mut folded = std::iter::once(c).nfkc();
        if is_invisible(c) || looks_like_a_slash || folded.any(|c| matches!(c, '/' | '\\' | '%')) {
            return Err(NotCanonical::Ambiguous(c));
        }
    }
    if others.clone().next().is_none() {
        return Ok(());
    }
    let text: String = letters.iter().map(|letter| letter.c).collect();
    if !is_nfc(&text) {
        return Err(NotCanonical::NotNormalized);
    }
    // Compatibility forms of digits may make an escape of a decoded `%25`, such as `%２Ｆ`.
    let folded: String = text.nfkc().collect();
    let is_escape = |bytes: &[u8]| bytes[0] == b'%' && bytes[1..].iter().all(u8::is_ascii_hexdigit);
    match folded.as_bytes().windows(3).any(is_escape) {
        true => Err(NotCanonical::DoubleEncoded),
        false => Ok(()),
    }
}

/// Checks the form that WHATWG's URL standard requires of special schemes; other schemes may have
/// any form.
fn check_form(parts: &UriParts<'_>) -> Result<(), NotCanonical> {
    let has_host = parts.authority.is_some_and(|authority| !authority.is_empty());
    let is_file = parts.scheme == "file";
    let is_good = !parts.is_special()
        || (parts.authority.is_some() && parts.path.starts_with('/') && has_host != is_file);
    if is_good { Ok(()) } else { Err(NotCanonical::Form) }
}

#[cfg(test)]
mod tests;
