//! Names of upstreams, and the public names of their prompts and tools.
//!
//! A public name is `<prefix><separator><name>`. Where that is too long, or has characters that
//! clients and model providers do not take, it is `<prefix><separator><the part of the name
//! that fits>_<hash>`.
//!
//! Invariants: a public name depends on the prefix and the original name only, so it is the same
//! after a restart and in any order of a list; two pairs of prefix and name have different public
//! names, except that an upstream can list a name that looks like the altered form of another of
//! its names, which the catalog reports as a clash; a name that fits is not altered, so altering is
//! idempotent. Prefixes have no `_` and the separator begins with one. Routing looks public names
//! up in a table and never splits them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use strum::{IntoStaticStr, VariantArray};

use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// An upstream's name or prefix: `[a-z][a-z0-9-]{0,31}`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamName(Arc<str>);

/// Error for a text that is not `[a-z][a-z0-9-]{0,31}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name is a lower-case letter and up to 31 more of a-z, 0-9 and -")]
pub struct InvalidName;

impl UpstreamName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as a text that is shared with it.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl FromStr for UpstreamName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let starts_well = text.starts_with(|c: char| c.is_ascii_lowercase());
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if starts_well && text.len() <= 32 && text.chars().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidName)
        }
    }
}

impl fmt::Display for UpstreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for UpstreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Scheme of public names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming {
    /// Separator between prefix and name; `None` for names without a prefix (one upstream only).
    separator: Option<String>,
    characters: Characters,
    /// In bytes.
    max_length: usize,
}

/// Character set of public names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Characters {
    /// `A-Z`, `a-z`, `0-9`, `_` and `-`: all known model providers accept these in the name of a
    /// tool.
    Portable,
    /// Any character that the upstream uses.
    Any,
}

impl Characters {
    fn have(self, c: char) -> bool {
        self == Self::Any || c.is_ascii_alphanumeric() || c == '_' || c == '-'
    }
}

/// Reason for which a public name is not prefix, separator and name alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Altered {
    /// Not all providers accept the characters of the name.
    Characters,
    /// The public name would be too long.
    Length,
}

impl fmt::Display for Altered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Characters => "it has other characters than A-Z, a-z, 0-9, _ and -",
            Self::Length => "it is too long",
        })
    }
}

/// Hexadecimal digits of the hash in an altered name.
const HASH_DIGITS: usize = 8;

/// Length that an altered name needs behind prefix and separator: four characters of the name, `_`,
/// and the hash.
pub const ALTERED_LENGTH: usize = 4 + 1 + HASH_DIGITS;

impl Naming {
    /// Creates a scheme with a prefix and `separator`, or without a prefix, for names of at most
    /// `max_length` bytes.
    ///
    /// `max_length` must leave [`ALTERED_LENGTH`] behind the longest prefix; the configuration is
    /// checked for it.
    pub fn new(separator: Option<&str>, characters: Characters, max_length: usize) -> Self {
        debug_assert!(
            separator.is_none_or(|it| it.starts_with('_')),
            "else joining is not injective"
        );
        Self { separator: separator.map(str::to_owned), characters, max_length }
    }

    /// Whether a public name may belong to an item under this prefix. Altering and renaming keep
    /// the prefix, so `false` is certain; `true` only says where to look.
    pub fn may_belong(&self, prefix: &UpstreamName, public: &str) -> bool {
        let Some(separator) = &self.separator else {
            return true;
        };
        public.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with(separator))
    }

    /// The part of public names in front of an upstream's own name; may be empty.
    pub fn beginning(&self, prefix: &UpstreamName) -> String {
        match &self.separator {
            Some(separator) => format!("{prefix}{separator}"),
            None => String::new(),
        }
    }

    /// The reason for which a name is altered in its public name; `None` if it is not.
    pub fn altered(&self, prefix: &UpstreamName, name: &str) -> Option<Altered> {
        let before = self.separator.as_ref().map_or(0, |it| prefix.as_str().len() + it.len());
        if !name.chars().all(|c| self.characters.have(c)) {
            return Some(Altered::Characters);
        }
        (before + name.len() > self.max_length).then_some(Altered::Length)
    }

    /// The public name of an upstream's item.
    pub fn join(&self, prefix: &UpstreamName, name: &str) -> String {
        let joined = self.beginning(prefix) + name;
        if self.altered(prefix, name).is_none() {
            return joined;
        }
        let hash = hex(&sha256(&joined)[..HASH_DIGITS / 2]);
        let mut public = self.beginning(prefix);
        let mut result = String::with_capacity(name.len());
        for c in name.chars() {
            if self.characters.have(c) {
                result.push(c);
            } else if !result.ends_with('_') {
                result.push('_');
            }
        }
        // The end is more distinctive than the beginning: long names share their beginnings.
        let available = self.max_length.saturating_sub(public.len() + 1 + HASH_DIGITS);
        let mut start = result.len().saturating_sub(available);
        while !result.is_char_boundary(start) {
            start += 1;
        }
        // Nothing is left of a name that has only characters outside of the set.
        let result = result[start..].trim_matches('_');
        if !result.is_empty() {
            public += result;
            public.push('_');
        }
        public + &hash
    }
}

impl Default for Naming {
    /// Claude Code puts `mcp__weir__` (11 characters) before a name and providers accept 64. Other
    /// clients count the name of their entry, `weir`, and that of the tool together and accept 60.
    fn default() -> Self {
        Self::new(Some("__"), Characters::Portable, 64 - "mcp__weir__".len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> UpstreamName {
        text.parse().expect(text)
    }

    fn joined(own: &str) -> String {
        Naming::default().join(&name("hub"), own)
    }

    /// Whether providers take it, with what Claude Code puts before it.
    fn fits_providers(public: &str) -> bool {
        let is_portable = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        format!("mcp__weir__{public}").len() <= 64 && public.chars().all(is_portable)
    }

    #[test]
    fn an_upstreams_name_is_short_and_plain() {
        for good in ["a", "git-hub2", &"a".repeat(32)] {
            assert!(good.parse::<UpstreamName>().is_ok(), "{good}");
        }
        for bad in ["", "A", "1a", "-a", "a_b", "a.b", "ä", &"a".repeat(33)] {
            assert_eq!(bad.parse::<UpstreamName>(), Err(InvalidName), "{bad}");
        }
    }

    #[test]
    fn a_long_name_keeps_its_prefix_and_its_end() {
        let long = format!("{}_the_end", "x".repeat(100));
        assert_eq!(joined(&long), format!("hub__{}_the_end_05a5fc01", "x".repeat(31)));
        assert_eq!(joined(&long).len(), 53);
        assert_ne!(joined(&long), joined(&format!("y{long}")));
        assert_eq!(joined(&"x".repeat(48)), format!("hub__{}", "x".repeat(48)));
    }

    // A changed expectation here breaks what clients have stored: roles of theirs, approvals,
    // prompts.
    #[test]
    fn names_of_other_characters_get_stable_names_of_their_own() {
        for (own, expected) in [
            ("a_b", "hub__a_b"),
            ("a-b", "hub__a-b"),
            ("a.b", "hub__a_b_1b1ee3d3"),
            ("a/b", "hub__a_b_"),
            ("a b", "hub__a_b_"),
            ("a. /b", "hub__a_b_"),
            (".a.", "hub__a_"),
            ("größe", "hub__gr_e_"),
            ("日本", "hub__9cf28156"),
            ("日本.read", "hub__read_"),
            ("\u{202e}x\n", "hub__x_"),
        ] {
            let public = joined(own);
            assert!(public.starts_with(expected) && fits_providers(&public), "{own:?}: {public}");
            let altered = Naming::default().altered(&name("hub"), own);
            assert_eq!(altered.is_none(), public == format!("hub__{own}"));
        }
    }

    #[test]
    fn names_of_any_character_stay_where_the_operator_says_so() {
        let naming = Naming::new(Some("__"), Characters::Any, 64);
        assert_eq!(naming.join(&name("hub"), "a.b/ö x"), "hub__a.b/ö x");
        let umlauts = naming.join(&name("hub"), &"ä".repeat(50));
        assert!(umlauts.len() <= 64 && umlauts.contains("ää_"), "{umlauts}");
        let bare = Naming::new(None, Characters::Any, 128);
        assert_eq!(
            (bare.join(&name("a"), "b c"), bare.beginning(&name("a"))),
            ("b c".into(), String::new())
        );
    }

    #[test]
    fn names_without_a_prefix_fit_as_well() {
        let naming = Naming::new(None, Characters::Portable, 53);
        assert_eq!(naming.join(&name("a"), "b"), "b");
        assert!(naming.join(&name("a"), "b.c").starts_with("b_c_"));
        assert!(fits_providers(&naming.join(&name("a"), &"é".repeat(128))));
    }

    #[test]
    fn the_longest_prefix_leaves_room_for_some_of_the_name() {
        let naming =
            Naming::new(Some("________"), Characters::Portable, Naming::default().max_length);
        let public = naming.join(&name(&"p".repeat(32)), &"x".repeat(99));
        assert!(public.len() == 53 && public.contains("_xxxx_"), "{public}");
    }

    proptest! {
        #[test]
        fn s28_joining_is_injective(
            a in "[a-z][a-z0-9-]{0,8}", x in "[a-z_-]{1,12}",
            b in "[a-z][a-z0-9-]{0,8}", y in "[a-z_-]{1,12}",
        ) {
            let naming = Naming::default();
            let same = naming.join(&name(&a), &x) == naming.join(&name(&b), &y);
            prop_assert_eq!(same, (a, x) == (b, y));
        }

        #[test]
        fn s28_altering_is_injective_and_idempotent_and_fits(
            prefix in "[a-z][a-z0-9-]{0,31}",
            own in prop::collection::btree_set("([a.:/ ]{1,5}|[ab_]{80,82}|.{1,128})", 1..12),
        ) {
            let (naming, prefix) = (Naming::default(), name(&prefix));
            let beginning = naming.beginning(&prefix);
            let mut seen = std::collections::BTreeSet::new();
            for own in &own {
                let public = naming.join(&prefix, own);
                prop_assert!(fits_providers(&public), "{:?}: {}", own, public);
                let rest = public.strip_prefix(&beginning).expect("the prefix stays");
                prop_assert_eq!(&naming.join(&prefix, rest), &public);
                prop_assert!(seen.insert(public));
            }
        }

        #[test]
        fn a_name_that_fits_comes_back(prefix in "[a-z][a-z0-9-]{0,20}", item in "[A-Za-z0-9_-]{1,30}") {
            prop_assert_eq!(Naming::default().join(&name(&prefix), &item), format!("{prefix}__{item}"));
        }

        #[test]
        fn s28_a_name_may_belong_to_its_own_prefix_and_to_no_other(
            a in "[a-z][a-z0-9-]{0,8}", b in "[a-z][a-z0-9-]{0,8}", item in ".{0,200}",
        ) {
            let naming = Naming::default();
            let joined = naming.join(&name(&a), &item);
            prop_assert!(naming.may_belong(&name(&a), &joined));
            prop_assert_eq!(naming.may_belong(&name(&b), &joined), a == b);
            prop_assert!(Naming::new(None, Characters::Any, 128).may_belong(&name(&a), &item));
        }
    }
}
