//! Patterns of rules: `*` matches any run of characters, `/` included; nothing else is special.
//!
//! A URI that no upstream lists is compared more strictly, because its reader may interpret it as
//! another spelling: an allow rule must match each of its readings, and a deny rule that matches
//! one of its spellings denies it (docs/resource-uris.md).
//!
//! Glob crates are not used: they interpret `{path}` and `[::1]`, which occur in URI templates and
//! URIs.

use memchr::memmem;

use super::uri::{CanonicalUri, LooseForms};

/// Pattern that is compared with a whole text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    text: Box<str>,
    /// Positions of the first and the last `*`.
    stars: Option<(usize, usize)>,
    loose: LooseForms,
}

impl Pattern {
    /// Creates a pattern; any text is one.
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), stars: stars(text), loose: LooseForms::of(text) }
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether all of `text` matches. Linear in the text for each literal part.
    pub fn matches(&self, text: &str) -> bool {
        matches_between(&self.text, self.stars, text)
    }

    /// Whether the pattern matches some text that begins with `prefix`.
    pub fn may_match_with_prefix(&self, prefix: &str) -> bool {
        may_match_with_prefix(&self.text, prefix)
    }

    /// Whether the pattern may match some spelling of a URI after `prefix`.
    fn may_match_uris_behind(&self, prefix: &str) -> bool {
        let LooseForms { letters, shape } = &self.loose;
        [&self.text, letters, shape].into_iter().any(|it| may_match_with_prefix(it, prefix))
    }

    /// Whether the pattern certainly matches every text that begins with `prefix`.
    fn matches_all_behind(&self, prefix: &str) -> bool {
        let head = self.text.strip_suffix('*').filter(|head| !head.contains('*'));
        head.is_some_and(|head| prefix.starts_with(head))
    }

    /// Whether the pattern matches one of the spellings of a URI, with `prefix` in front of each.
    pub fn matches_uri(&self, prefix: &str, uri: &CanonicalUri<'_>) -> bool {
        self.matches_any(&spellings(prefix, uri))
    }

    fn matches_any(&self, spellings: &[(String, LooseForms)]) -> bool {
        spellings.iter().any(|(text, loose)| {
            self.matches(text)
                || matches(&self.loose.letters, &loose.letters)
                || matches(&self.loose.shape, &loose.shape)
        })
    }
}

/// All spellings of a URI, with `prefix` in front, with their loose forms.
fn spellings(prefix: &str, uri: &CanonicalUri<'_>) -> Vec<(String, LooseForms)> {
    let loose = uri.loose().iter().map(|loose| loose.behind(prefix));
    uri.spellings().map(|spelling| [prefix, spelling].concat()).zip(loose).collect()
}

fn stars(pattern: &str) -> Option<(usize, usize)> {
    Some((pattern.find('*')?, pattern.rfind('*')?))
}

fn matches(pattern: &str, text: &str) -> bool {
    matches_between(pattern, stars(pattern), text)
}

/// Whether a pattern with its first and last `*` at these positions matches all of `text`.
fn matches_between(pattern: &str, stars: Option<(usize, usize)>, text: &str) -> bool {
    let Some((first, last)) = stars else {
        return *pattern == *text;
    };
    let Some(text) = text.strip_prefix(&pattern[..first]) else {
        return false;
    };
    let Some(text) = text.strip_suffix(&pattern[last + 1..]) else {
        return false;
    };
    let middle = pattern.get(first + 1..last).unwrap_or_default();
    let mut rest = text.as_bytes();
    // Matching each part at its first occurrence leaves the longest rest for the following parts.
    for part in middle.split('*').filter(|part| !part.is_empty()) {
        let Some(at) = memmem::find(rest, part.as_bytes()) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

/// Whether a pattern matches some text that begins with `prefix`.
fn may_match_with_prefix(pattern: &str, prefix: &str) -> bool {
    match pattern.split_once('*') {
        Some((head, _)) if head.len() <= prefix.len() => prefix.starts_with(head),
        _ => pattern.starts_with(prefix),
    }
}

/// Allow and deny patterns. Deny wins; a text that no pattern allows is denied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct AllowDeny {
    /// Patterns that allow a text.
    pub allow: Vec<Pattern>,
    /// Patterns that deny a text even if another pattern allows it.
    pub deny: Vec<Pattern>,
}

/// The patterns that decide about a text: the index of the first match in each list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleMatch {
    /// Index of the first allow pattern that matches.
    pub allowed_by: Option<usize>,
    /// Index of the first deny pattern that matches.
    pub denied_by: Option<usize>,
}

impl RuleMatch {
    /// Whether the text is allowed.
    pub fn allows(self) -> bool {
        self.allowed_by.is_some() && self.denied_by.is_none()
    }
}

impl AllowDeny {
    /// Creates rules from the texts of patterns.
    pub fn new<S: AsRef<str>>(allow: &[S], deny: &[S]) -> Self {
        let patterns = |texts: &[S]| texts.iter().map(|text| Pattern::new(text.as_ref())).collect();
        Self { allow: patterns(allow), deny: patterns(deny) }
    }

    /// Equivalent rules with each pattern once, in a fixed order.
    pub fn in_order(&self) -> Self {
        let in_order = |patterns: &[Pattern]| {
            let mut patterns = patterns.to_vec();
            patterns.sort_unstable();
            patterns.dedup();
            patterns
        };
        Self { allow: in_order(&self.allow), deny: in_order(&self.deny) }
    }

    /// Rules that allow everything.
    pub fn everything() -> Self {
        Self::new(&["*"], &[])
    }

    /// Whether these rules allow every text: there is an allow pattern `*` and no deny pattern.
    pub fn allow_everything(&self) -> bool {
        self.deny.is_empty() && self.allow.iter().any(|pattern| pattern.as_str() == "*")
    }

    /// Whether a deny pattern may match some URI after `prefix`.
    pub fn may_deny_uris_with_prefix(&self, prefix: &str) -> bool {
        self.deny.iter().any(|pattern| pattern.may_match_uris_behind(prefix))
    }

    /// Whether these rules certainly allow every URI after `prefix`.
    pub fn allow_all_uris_behind(&self, prefix: &str) -> bool {
        !self.may_deny_uris_with_prefix(prefix)
            && self.allow.iter().any(|pattern| pattern.matches_all_behind(prefix))
    }

    /// Whether `text` is allowed.
    pub fn allow(&self, text: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(text));
        any(&self.allow) && !any(&self.deny)
    }

    /// The patterns that decide about a URI that no upstream lists, with `prefix` in front of it.
    pub fn decide_uri(&self, prefix: &str, uri: &CanonicalUri<'_>) -> RuleMatch {
        let whole = [prefix, uri.as_str()].concat();
        let first = self.allow.iter().position(|pattern| pattern.matches(&whole));
        let is_allowed = |reading: &str| {
            let text = [prefix, reading].concat();
            self.allow.iter().any(|pattern| pattern.matches(&text))
        };
        let allowed_by = first.filter(|_| uri.readings().skip(1).all(is_allowed));
        if self.deny.is_empty() {
            return RuleMatch { allowed_by, denied_by: None };
        }
        let spellings = spellings(prefix, uri);
        let denied_by = self.deny.iter().position(|pattern| pattern.matches_any(&spellings));
        RuleMatch { allowed_by, denied_by }
    }

    /// The patterns that decide whether `text` is allowed; consistent with [`AllowDeny::allow`].
    pub fn decide(&self, text: &str) -> RuleMatch {
        let first = |patterns: &[Pattern]| patterns.iter().position(|it| it.matches(text));
        RuleMatch { allowed_by: first(&self.allow), denied_by: first(&self.deny) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_star_matches_any_run_and_nothing_else_is_special() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "a", true),
            ("*a", "ba", true),
            ("a*a", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("hub/{path}?[::1]", "hub/{path}?[::1]", true),
            ("hub/?", "hub/x", false),
            ("**", "x", true),
            ("a**b", "ab", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn what_may_stand_behind_a_prefix_decides_whether_rules_let_all_of_it_in() {
        let check = |allow: &[&str], deny: &[&str], expected: bool| {
            let found = AllowDeny::new(allow, deny).allow_all_uris_behind("hub/");
            assert_eq!(found, expected, "{allow:?} {deny:?}");
        };
        for allow in ["*", "hub/*", "h*"] {
            check(&[allow], &[], true);
            check(&["x", allow], &["other/*", "hub"], true);
            for deny in ["*", "hub/x", "h*x", "HUB/x", "hub/*", "*/x"] {
                check(&[allow], &[deny], false);
            }
        }
        for allow in ["hub/x*", "*x", "hub/", "other/*", "h*b*"] {
            check(&[allow], &[], false);
        }
    }

    #[test]
    fn denying_wins_and_silence_denies() {
        let rules = AllowDeny::new(&["a*"], &["ab*"]);
        assert!(rules.allow("ac") && !rules.allow("abc") && !rules.allow("b"));
        assert!(!AllowDeny::default().allow("a"));
        assert!(AllowDeny::everything().allow_everything() && !rules.allow_everything());
    }

    #[test]
    fn rules_for_a_uri_that_is_not_listed_hold_for_all_its_readings() {
        let check = |allow: &[&str], deny: &[&str], uri: &str, expected: bool| {
            let parsed = CanonicalUri::parse(uri).expect(uri);
            let found = AllowDeny::new(allow, deny).decide_uri("u/", &parsed).allows();
            assert_eq!(found, expected, "{allow:?} {deny:?} {uri}");
        };
        check(&["u/file:///*.txt"], &[], "file:///a.txt", true);
        check(&["u/file:///*.txt"], &[], "file:///a.txt?b.txt", true);
        for uri in ["file:///a.key?b.txt", "file:///a.key#b.txt", "file:///a.key;b.txt"] {
            check(&["u/file:///*.txt"], &[], uri, false);
        }
        check(&["u/file:///pub/*"], &[], "file:///pub/", false);
        for deny in [
            "u/db://secret/*",
            "u/DB://Secret/*",
            "u/db:secret/*",
            "u/db:///secret/*",
            "u/db://%73ecret/*",
            "*/secret/*",
            "*secret*",
        ] {
            for uri in ["db://secret/1", "db://SECRET/1", "db:///secret/1", "db://secret:1/1"] {
                check(&["*"], &[deny], uri, false);
            }
            check(&["*"], &[deny], "db://public/1", true);
        }
        check(&["*"], &["u/db:*"], "db://a", false);
        check(&["*"], &["u/db://a/geh\u{e4}lter"], "db://a/GEH%C3%84LTER", false);
        check(&["*"], &["u/https://h:8443/*"], "https://h/a", true);
        // The one path that many readers drop or add.
        for (deny, uri) in [
            ("u/https://h", "https://h/"),
            ("u/https://h?x=1", "https://h/?x=1"),
            ("u/https://h", "https://h:8443/?x=1"),
            ("u/db://secret", "db://secret/"),
            ("u/db://secret", "db://secret/?q#f"),
            ("u/db://secret/", "db://secret"),
            ("u/db://secret/?q", "db://secret?q"),
        ] {
            check(&["*"], &[deny], uri, false);
        }
        check(&["u/https://h"], &[], "https://h/", false);
    }

    #[test]
    fn the_first_pattern_of_each_list_that_matches_decides() {
        let rules = AllowDeny::new(&["x", "a*", "*"], &["y", "ab*", "abc"]);
        let decided = |text| {
            let RuleMatch { allowed_by, denied_by } = rules.decide(text);
            (allowed_by, denied_by)
        };
        assert_eq!(decided("ac"), (Some(1), None));
        assert_eq!(decided("abc"), (Some(1), Some(1)));
        assert_eq!(decided("z"), (Some(2), None));
        assert_eq!(decided("y"), (Some(2), Some(0)));
        assert_eq!(AllowDeny::default().decide("y"), RuleMatch::default());
    }

    proptest! {
        #[test]
        fn what_decides_comes_to_what_is_allowed(
            allow in prop::collection::vec("[ab*]{0,4}", 0..4),
            deny in prop::collection::vec("[ab*]{0,4}", 0..4),
            text in "[ab]{0,6}",
        ) {
            let rules = AllowDeny::new(&allow, &deny);
            let decision = rules.decide(&text);
            prop_assert_eq!(decision.allows(), rules.allow(&text));
            for (by, patterns) in [(decision.allowed_by, &allow), (decision.denied_by, &deny)] {
                let matching = |pattern: &String| Pattern::new(pattern).matches(&text);
                prop_assert_eq!(by, patterns.iter().position(matching));
            }
        }

        #[test]
        fn a_pattern_agrees_with_the_slow_definition(pattern in "[ab*]{0,8}", text in "[ab]{0,10}") {
            fn slow(pattern: &[u8], text: &[u8]) -> bool {
                match (pattern.split_first(), text.split_first()) {
                    (None, None) => true,
                    (Some((b'*', rest)), None) => slow(rest, text),
                    (Some((b'*', rest)), Some((_, after))) => slow(rest, text) || slow(pattern, after),
                    (Some((p, rest)), Some((t, after))) => p == t && slow(rest, after),
                    _ => false,
                }
            }
            prop_assert_eq!(Pattern::new(&pattern).matches(&text), slow(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn removing_an_allowance_never_lets_more_in(
            allow in prop::collection::vec("[ab*]{0,4}", 0..4), text in "[ab]{0,6}",
        ) {
            let none: [String; 0] = [];
            if allow.len() > 1 && AllowDeny::new(&allow[1..], &none).allow(&text) {
                prop_assert!(AllowDeny::new(&allow, &none).allow(&text));
            }
        }
    }
}
