//! Redaction of text that matches the operator's patterns.
//!
//! Invariants: the time grows with the length of the text only, because the regular expressions do
//! not backtrack. Placeholders are never matched again. At most [`MAX_MATCHES`] matches are
//! replaced one by one in a string, and the rest of such a string is replaced as a whole.

use std::fmt;

use regex::{Regex, RegexBuilder};

/// Largest compiled pattern, in bytes.
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// Longest pattern, in bytes.
pub(super) const MAX_PATTERN_BYTES: usize = 1_024;
/// Matches that are replaced one by one in one string. Finding the next match may read all of the
/// rest, so without a limit the time could grow with the square of the length.
pub(super) const MAX_MATCHES: usize = 1_000;

/// Pattern of text that is redacted.
#[derive(Clone)]
pub struct RedactionPattern {
    name: String,
    mark: String,
    regex: Regex,
}

/// Reason why a pattern is invalid, as a text for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// The pattern exceeds the length limit.
    #[error("a pattern of more than {MAX_PATTERN_BYTES} bytes")]
    TooLong,
    /// The compiled pattern would be too large.
    #[error("a pattern that takes too much memory")]
    TooLarge,
    /// The pattern is not a regular expression; the text describes the error without quoting the
    /// pattern.
    #[error("not a regular expression")]
    Syntax(String),
    /// The pattern matches the empty text.
    #[error("a pattern that matches the empty text")]
    Empty,
}

impl RedactionPattern {
    /// Compiles a pattern; its matches become `[redacted:<name>]`.
    pub fn new(name: &str, pattern: &str) -> Result<Self, BadPattern> {
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(BadPattern::TooLong);
        }
        let mut builder = RegexBuilder::new(pattern);
        let regex =
            builder.size_limit(MAX_COMPILED_BYTES).dfa_size_limit(MAX_COMPILED_BYTES).build();
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

    /// Returns the name of the pattern.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the placeholder of matches.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }
}

/// Returns the last line of an error of `regex`; the lines before it draw the pattern.
fn reason(text: &str) -> String {
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

impl PartialEq for RedactionPattern {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.regex.as_str() == other.regex.as_str()
    }
}

impl fmt::Debug for RedactionPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?}", self.name, self.regex.as_str())
    }
}

/// Replaces all matches by placeholders; `None` if there are none. Existing placeholders stay
/// unchanged.
pub(super) fn redact(text: &str, patterns: &[RedactionPattern]) -> Option<String> {
    let mut out: Option<String> = None;
    for pattern in patterns {
        let present = out.as_deref().unwrap_or(text);
        if let Some(new) = replace(present, pattern, patterns) {
            out = Some(new);
        }
    }
    out
}

fn replace(text: &str, pattern: &RedactionPattern, all: &[RedactionPattern]) -> Option<String> {
    // Fast path: most texts have no match.
    if !pattern.regex.is_match(text) {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut matches) = (text, 0);
    while !rest.is_empty() {
        let (plain, mark) = split_at_mark(rest, all);
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

/// Returns the text before the first placeholder, and that placeholder.
fn split_at_mark<'t>(text: &'t str, all: &[RedactionPattern]) -> (&'t str, &'t str) {
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

    pub(crate) fn pattern(name: &str, pattern: &str) -> RedactionPattern {
        RedactionPattern::new(name, pattern).expect(pattern)
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
        // Existing text stays, whatever it says.
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
    fn invalid_pattern_is_an_error() {
        let refused = |pattern: &str| RedactionPattern::new("k", pattern).map(|_| ()).unwrap_err();
        assert!(matches!(refused("a("), BadPattern::Syntax(_)));
        assert!(matches!(refused("(?=a)"), BadPattern::Syntax(_)));
        assert_eq!(refused("a*"), BadPattern::Empty);
        assert_eq!(refused(r"\w{1000}{1000}"), BadPattern::TooLarge);
        assert_eq!(refused(&"a".repeat(MAX_PATTERN_BYTES + 1)), BadPattern::TooLong);
    }

    #[test]
    fn patterns_that_run_away_elsewhere_do_not_here() {
        // With a backtracking matcher each of them takes longer than the age of the universe.
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
            assert!(began.elapsed().as_secs() < 60, "{evil}: {:?}", began.elapsed());
        }
    }
}
