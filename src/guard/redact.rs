//! What the operator does not want to be passed on, by patterns.
//!
//! Promises: time grows with the text and not with what is written in it (no pattern can be made to run away);
//! what was put in a secret's place is never looked at again; at most [`MAX_MATCHES`] are replaced one by one in a
//! string, and the rest of such a string is replaced whole.
//!
//! Knows nothing of: JSON, and where the text came from.

use std::fmt;

use regex::{Regex, RegexBuilder};

/// How large a pattern may become when it is compiled, in bytes.
const MAX_COMPILED: usize = 1 << 20;
/// The longest pattern, in bytes.
pub(super) const MAX_PATTERN: usize = 1_024;
/// How many matches are replaced one by one in one string. Finding the next may cost reading all that is left, so
/// that without a limit the time could grow with the square of the text.
pub(super) const MAX_MATCHES: usize = 1_000;

/// Something that is not passed on.
#[derive(Clone)]
pub struct Pattern {
    name: String,
    mark: String,
    regex: Regex,
}

/// Why a text is no pattern; fit for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// Longer than is taken.
    #[error("a pattern of more than {MAX_PATTERN} bytes")]
    TooLong,
    /// Compiled it would be too large.
    #[error("a pattern that takes too much memory")]
    TooLarge,
    /// It is no regular expression; the text says what is wrong with it, and does not quote it.
    #[error("not a regular expression")]
    Syntax(String),
    /// It matches the empty text, which stands everywhere.
    #[error("a pattern that matches the empty text")]
    Empty,
}

impl Pattern {
    /// Compiles a pattern; what matches becomes `[redacted:<name>]`.
    pub fn new(name: &str, pattern: &str) -> Result<Self, BadPattern> {
        if pattern.len() > MAX_PATTERN {
            return Err(BadPattern::TooLong);
        }
        let mut builder = RegexBuilder::new(pattern);
        let regex = builder.size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED).build();
        let regex = regex.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => BadPattern::TooLarge,
            other => BadPattern::Syntax(reason(&other.to_string())),
        })?;
        let mark = format!("[redacted:{name}]");
        if regex.is_match("") {
            return Err(BadPattern::Empty);
        }
        Ok(Self { name: name.to_owned(), mark, regex })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What stands in the place of what it matches.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }
}

/// The last line of what is said about a pattern; those before it draw the pattern.
fn reason(text: &str) -> String {
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.regex.as_str() == other.regex.as_str()
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?}", self.name, self.regex.as_str())
    }
}

/// Puts marks in the place of all that matches; `None` if nothing does. Marks that stand there already are left
/// alone.
pub(super) fn redact(text: &str, patterns: &[Pattern]) -> Option<String> {
    let mut out: Option<String> = None;
    for pattern in patterns {
        let present = out.as_deref().unwrap_or(text);
        if let Some(new) = replace(present, pattern, patterns) {
            out = Some(new);
        }
    }
    out
}

fn replace(text: &str, pattern: &Pattern, all: &[Pattern]) -> Option<String> {
    // Most texts have no match, and this is all that happens.
    if !pattern.regex.is_match(text) {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut matches) = (text, 0);
    while !rest.is_empty() {
        let (plain, mark) = until_mark(rest, all);
        let mut copied = 0;
        for found in pattern.regex.find_iter(plain).filter(|found| !found.is_empty()) {
            out.push_str(&plain[copied..found.start()]);
            out.push_str(&pattern.mark);
            copied = found.end();
            matches += 1;
            if matches == MAX_MATCHES {
                return Some(out);
            }
        }
        out.push_str(&plain[copied..]);
        out.push_str(mark);
        rest = &rest[plain.len() + mark.len()..];
    }
    (matches > 0).then_some(out)
}

/// The text before the first mark, and that mark.
fn until_mark<'t>(text: &'t str, all: &[Pattern]) -> (&'t str, &'t str) {
    for (at, _) in text.match_indices("[redacted:") {
        if let Some(pattern) = all.iter().find(|pattern| text[at..].starts_with(&*pattern.mark)) {
            return (&text[..at], &text[at..at + pattern.mark.len()]);
        }
    }
    (text, "")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::guard) fn pattern(name: &str, pattern: &str) -> Pattern {
        Pattern::new(name, pattern).expect(pattern)
    }

    fn redacted(text: &str, patterns: &[(&str, &str)]) -> Option<String> {
        let patterns: Vec<_> = patterns.iter().map(|(name, it)| pattern(name, it)).collect();
        redact(text, &patterns)
    }

    #[test]
    fn what_matches_is_replaced_by_its_name() {
        let keys = [("aws", "AKIA[0-9A-Z]{16}"), ("mail", r"[a-z.]+@[a-z.]+")];
        assert_eq!(redacted("nothing here", &keys), None);
        assert_eq!(
            redacted("AKIAIOSFODNN7EXAMPLE, AKIAIOSFODNN7EXAMPLE by a.b@example.org", &keys)
                .as_deref(),
            Some("[redacted:aws], [redacted:aws] by [redacted:mail]")
        );
        // What stands there already stays, whatever it says.
        assert_eq!(redacted("[redacted:aws]", &keys), None);
        assert_eq!(redacted("[redacted:all]", &[("all", ".+")]), None);
        assert_eq!(
            redacted("[redacted:red] red", &[("x", "red\\b"), ("red", "blue")]).as_deref(),
            Some("[redacted:red] [redacted:x]")
        );
    }

    #[test]
    fn a_string_full_of_matches_is_replaced_whole_from_some_point() {
        let text = "x".repeat(MAX_MATCHES + 5);
        let expected = "[redacted:k]".repeat(MAX_MATCHES);
        assert_eq!(redacted(&text, &[("k", "x")]), Some(expected));
    }

    #[test]
    fn what_is_no_pattern_is_told() {
        let refused = |pattern: &str| Pattern::new("k", pattern).map(|_| ()).unwrap_err();
        assert!(matches!(refused("a("), BadPattern::Syntax(_)));
        assert!(matches!(refused("(?=a)"), BadPattern::Syntax(_)));
        assert_eq!(refused("a*"), BadPattern::Empty);
        assert_eq!(refused(r"\w{1000}{1000}"), BadPattern::TooLarge);
        assert_eq!(refused(&"a".repeat(MAX_PATTERN + 1)), BadPattern::TooLong);
    }

    #[test]
    fn patterns_that_run_away_elsewhere_do_not_here() {
        // Each of them takes longer than the age of the world where matching tries one way after the other.
        let text = "a".repeat(64 * 1024);
        for evil in [
            "(a+)+$b",
            "(a|aa)+!",
            "(a|a?)+!",
            "(.*a){20}!",
            "^(([a-z])+.)+[A-Z]([a-z])+$",
            "(x+x+)+y",
        ] {
            let began = std::time::Instant::now();
            assert_eq!(redacted(&text, &[("k", evil)]), None, "{evil}");
            // Without optimization, on a machine with other things to do.
            assert!(began.elapsed().as_millis() < 1_000, "{evil}: {:?}", began.elapsed());
        }
    }
}
