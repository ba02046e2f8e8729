//! Search for secrets in a text that may repeat them, in each spelling of JSON and of URLs.
//!
//! Most texts are searched once for each secret, as they are, and once for escapes. Only around an
//! escape, and around the end of a piece, each character is read.
//!
//! Invariants: the search takes a time that is linear in the text, whatever a server sends and
//! however the text is divided. It finds the same in each division.

use std::ops::Range;
use std::sync::Arc;

use memchr::memmem::Finder;
use memchr::{memchr2, memrchr};

use super::secret_spelling::{MAX_BACKSLASHES, SecretPattern, SpellingMatcher};
use crate::secrets::secret::Secret;

/// Secrets that are searched for together.
pub struct SecretPatterns {
    patterns: Vec<SecretPattern>,
    /// Whether a byte can be part of a spelling of one of them, and whether one can begin with it.
    is_part: [bool; 256],
    is_first: [bool; 256],
    /// Texts of which each escape in a spelling contains one.
    escapes: Vec<Finder<'static>>,
    /// Characters of the longest one.
    longest: usize,
}

impl Default for SecretPatterns {
    fn default() -> Self {
        Self::new([])
    }
}

/// Bytes that repeat a secret. They may begin in an earlier piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repetition {
    /// Place in the last piece behind their end.
    pub end: usize,
    /// Number of bytes.
    pub length: usize,
}

impl SecretPatterns {
    /// Prepares the search for these secrets. An empty one is not found.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let secrets = secrets.into_iter().filter(|secret| !secret.is_empty());
        let patterns: Vec<_> = secrets.map(SecretPattern::new).collect();
        let mut is_contained = [false; 256];
        for byte in patterns.iter().flat_map(SecretPattern::bytes) {
            is_contained[usize::from(*byte)] = true;
        }
        let contains = |byte: u8| is_contained[usize::from(byte)];
        let (mut is_part, mut is_first) = (is_contained, [false; 256]);
        for byte in 0..=u8::MAX {
            let at = usize::from(byte);
            let begins_escape = matches!(byte, b'\\' | b'%');
            is_part[at] |= begins_escape || byte == b'u' || byte.is_ascii_hexdigit();
            is_first[at] =
                begins_escape || patterns.iter().any(|it| it.bytes().first() == Some(&byte));
        }
        // Behind a backslash of a secret anything may be escaped.
        let escapes = [("%", true), (r"\", contains(b'\\')), (r"\u00", !contains(b'\\'))];
        let quotes = [(r"\/", contains(b'/')), (r#"\""#, contains(b'"'))];
        let escapes = escapes.into_iter().chain(quotes).filter(|(_, is_possible)| *is_possible);
        let escapes = escapes.map(|(text, _)| Finder::new(text).into_owned()).collect();
        let longest = patterns.iter().map(|it| it.bytes().len()).max().unwrap_or_default();
        Self { patterns, is_part, is_first, escapes, longest }
    }

    /// Prepares the search for the secrets of a request, or of a server.
    pub fn of_request(secrets: &[Secret]) -> Self {
        Self::new(secrets.iter().map(Secret::expose))
    }

    /// Returns whether a whole text repeats a secret.
    pub fn are_in(&self, text: &[u8]) -> bool {
        let mut matchers: Vec<_> = self.matchers().collect();
        self.patterns.iter().any(|pattern| pattern.finder.find(text).is_some())
            || text.iter().any(|byte| self.push(&mut matchers, *byte).is_some())
    }

    /// Returns a whole text in which `***` is written for each secret, and for each beginning of
    /// one that has at least [`MIN_BEGINNING`] characters.
    pub fn redact(&self, text: &str) -> String {
        self.redact_to_end(text, MIN_BEGINNING)
    }

    /// Like [`Self::redact`] for a text whose end is missing: `***` is also written for a shorter
    /// beginning of a secret at its end.
    pub fn redact_cut(&self, text: &str) -> String {
        self.redact_to_end(text, 1)
    }

    fn redact_to_end(&self, text: &str, shortest: usize) -> String {
        let (mut shown, mut end) = (String::new(), 0);
        for place in self.places_to_end(text, shortest) {
            shown.push_str(&text[end..place.start]);
            shown.push_str("***");
            end = place.end;
        }
        shown + &text[end..]
    }

    /// Returns the places of a whole text for which [`Self::redact`] writes `***`: in their order,
    /// without overlaps, and between characters.
    pub fn places_in(&self, text: &str) -> Vec<Range<usize>> {
        self.places_to_end(text, MIN_BEGINNING)
    }

    /// Returns the places of secrets in a text, and of each beginning of one at its end that has at
    /// least `shortest` characters.
    fn places_to_end(&self, text: &str, shortest: usize) -> Vec<Range<usize>> {
        let mut hidden: Vec<Range<usize>> = Vec::new();
        for pattern in &self.patterns {
            // As it is, also where JSON would read an escape.
            let found = pattern.finder.find_iter(text.as_bytes());
            hidden.extend(found.map(|at| at..at + pattern.bytes().len()));
            let mut matcher = SpellingMatcher::default();
            for (at, byte) in text.bytes().enumerate() {
                let (matched, pending) = (matcher.matched(), matcher.pending());
                let found = matcher.push(pattern, byte);
                if let Some(length) = found {
                    hidden.push(at + 1 - length..at + 1);
                } else if matched >= MIN_BEGINNING && matcher.matched() <= matched {
                    hidden.push(at - pending..at);
                }
            }
            if matcher.matched() >= shortest {
                hidden.push(text.len() - matcher.pending()..text.len());
            }
        }
        hidden.sort_unstable_by_key(|range| range.start);
        let mut places: Vec<Range<usize>> = Vec::new();
        for range in hidden {
            let end = text.ceil_char_boundary(range.end);
            match places.last_mut() {
                Some(last) if range.start < last.end => last.end = last.end.max(end),
                last => {
                    let begin = last.map_or(0, |last| last.end);
                    places.push(text.floor_char_boundary(range.start).max(begin)..end);
                }
            }
        }
        places
    }

    fn matchers(&self) -> impl Iterator<Item = SpellingMatcher> {
        self.patterns.iter().map(|_| SpellingMatcher::default())
    }

    /// Reads the next byte with a matcher for each secret. Returns the length of the longest one
    /// that ends here.
    fn push(&self, matchers: &mut [SpellingMatcher], byte: u8) -> Option<usize> {
        let pairs = self.patterns.iter().zip(matchers);
        pairs.filter_map(|(pattern, matcher)| matcher.push(pattern, byte)).max()
    }

    /// Finds the first place from `from` on of this kind: the secret of this number as it is, or,
    /// beyond these numbers, what an escape in a spelling contains.
    fn find(&self, kind: usize, text: &[u8], from: usize) -> Option<usize> {
        let finder = match self.patterns.get(kind) {
            Some(pattern) => &pattern.finder,
            None => &self.escapes[kind - self.patterns.len()],
        };
        finder.find(&text[from..]).map(|at| from + at)
    }

    /// Returns whether there is a place of any kind from `from` on. The end of the text is none.
    fn has_place(&self, text: &[u8], from: usize) -> bool {
        let is_found = |kind| self.find(kind, text, from).is_some();
        let secrets = self.patterns.len();
        // Most texts have neither a backslash nor a percent sign.
        let has_escape = || memchr2(b'\\', b'%', &text[from..]).is_some();
        (0..secrets).any(is_found) || has_escape() && (secrets..self.kinds()).any(is_found)
    }

    fn kinds(&self) -> usize {
        self.patterns.len() + self.escapes.len()
    }

    /// Returns the place from `from` on behind which each byte before `end` can be part of a
    /// secret.
    fn run_begin(&self, text: &[u8], from: usize, end: usize) -> usize {
        let is_part = |byte: &&u8| self.is_part[usize::from(**byte)];
        end - text[from..end].iter().rev().take_while(is_part).count()
    }
}

/// Search of a text that comes in pieces, for secrets of visible ASCII.
pub struct SecretSearch {
    patterns: Arc<SecretPatterns>,
    /// Matcher of each secret, once there was a place to look at.
    matchers: Vec<SpellingMatcher>,
}

impl SecretSearch {
    /// Creates the search for these secrets.
    pub fn new(patterns: Arc<SecretPatterns>) -> Self {
        Self { patterns, matchers: Vec::new() }
    }

    /// Reads the next piece, and returns the repetitions that end in it.
    pub fn read(&mut self, piece: &[u8]) -> Vec<Repetition> {
        let (mut found, mut at) = (Vec::new(), 0);
        if self.patterns.patterns.is_empty() {
            return found;
        }
        if !self.is_idle() {
            at = self.follow(piece, 0..0, &mut found);
        }
        if self.patterns.has_place(piece, at) {
            at = self.follow_places(piece, at, &mut found);
        }
        let begin = self.tail_begin(piece, at);
        if begin < piece.len() {
            self.follow(piece, begin..piece.len(), &mut found);
        }
        found
    }

    /// Returns the number of bytes at the end of the text that may be the beginning of a secret.
    pub fn pending(&self) -> usize {
        self.matchers.iter().map(SpellingMatcher::pending).max().unwrap_or_default()
    }

    /// Looks at each place from `from` on. Returns the place behind what was read.
    fn follow_places(&mut self, piece: &[u8], from: usize, found: &mut Vec<Repetition>) -> usize {
        let patterns = Arc::clone(&self.patterns);
        // Those of each kind are found once, so that one kind does not repeat the search of others.
        let places = (0..patterns.kinds()).map(|kind| patterns.find(kind, piece, from));
        let (mut places, mut at): (Vec<_>, _) = (places.collect(), from);
        while let Some(place) = places.iter().flatten().min().copied() {
            let begin = patterns.run_begin(piece, at, place);
            at = self.follow(piece, begin..place + 1, found);
            for (kind, place) in places.iter_mut().enumerate() {
                if place.is_some_and(|place| place < at) {
                    *place = patterns.find(kind, piece, at);
                }
            }
        }
        at
    }

    /// Reads each character of a range, and behind it until no secret can have begun. Returns the
    /// place behind the last one.
    fn follow(&mut self, piece: &[u8], range: Range<usize>, found: &mut Vec<Repetition>) -> usize {
        if self.matchers.is_empty() {
            self.matchers = self.patterns.matchers().collect();
        }
        let Range { start: mut at, end } = range;
        while at < piece.len() {
            if self.is_idle() {
                let mut rest = piece[at..end.max(at)].iter();
                match rest.position(|byte| self.patterns.is_first[usize::from(*byte)]) {
                    Some(skipped) => at += skipped,
                    None => return at.max(end),
                }
            }
            let length = self.patterns.push(&mut self.matchers, piece[at]);
            at += 1;
            found.extend(length.map(|length| Repetition { end: at, length }));
        }
        at
    }

    /// Returns the place from `from` on at which the beginning of a secret can begin with which the
    /// piece ends. What begins before it contains an escape, and was read.
    fn tail_begin(&self, piece: &[u8], from: usize) -> usize {
        // Most pieces end with a byte that no token has.
        if piece.last().is_none_or(|byte| !self.patterns.is_part[usize::from(*byte)]) {
            return piece.len();
        }
        let longest = self.patterns.longest + MAX_ESCAPE_BYTES;
        let mut begin = from.max(piece.len().saturating_sub(longest));
        // Not within an escape.
        let before = &piece[from.max(begin.saturating_sub(MAX_ESCAPE_BYTES))..begin];
        if let Some(backslash) = memrchr(b'\\', before) {
            begin -= before.len() - backslash;
            let others = piece[from..begin].iter().rev().take_while(|byte| **byte == b'\\');
            begin -= others.count();
        }
        self.patterns.run_begin(piece, begin, piece.len())
    }

    fn is_idle(&self) -> bool {
        self.matchers.iter().all(SpellingMatcher::is_idle)
    }
}

/// Characters of the beginning of a secret that is hidden without its rest.
const MIN_BEGINNING: usize = 16;
/// Longest escape, with its backslashes.
const MAX_ESCAPE_BYTES: usize = MAX_BACKSLASHES as usize + 5;
