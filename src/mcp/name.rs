//! Names: an upstream's, an item's, and the public one that joins them.
//!
//! Promises: joining is injective. An upstream's name (and so its prefix) has no `_` in it and the
//! separator begins with one, so no two pairs of prefix and item name give the same public name as long
//! as it fits. A name over the length limit keeps its prefix and its tail and gains a short hash of the
//! whole, stable over restarts. Whether a shortened name clashes is seen by whoever holds the table;
//! routing goes by that table, never by splitting a name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::hex::hex;
use crate::sha256::sha256;

/// An upstream's name or prefix: `[a-z][a-z0-9-]{0,31}`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamName(Arc<str>);

/// The text is not `[a-z][a-z0-9-]{0,31}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name is a lower-case letter and up to 31 more of a-z, 0-9 and -")]
pub struct BadName;

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
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let starts_well = text.starts_with(|c: char| c.is_ascii_lowercase());
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if starts_well && text.len() <= 32 && text.chars().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(BadName)
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

/// How public names are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming {
    /// What stands between prefix and name; `None` leaves names as they are (one upstream only).
    separator: Option<String>,
    max_length: usize,
}

/// Hexadecimal digits of the hash in a shortened name.
const HASH_DIGITS: usize = 8;

impl Naming {
    /// `<prefix><separator><name>`, always, in at most `max_length` bytes.
    ///
    /// `max_length` must leave room for a prefix, the separator and a hash; the config sees to it.
    pub fn prefixed(separator: &str, max_length: usize) -> Self {
        debug_assert!(separator.starts_with('_'), "else joining is not injective");
        Self { separator: Some(separator.to_owned()), max_length }
    }

    /// Names as they are.
    pub fn plain() -> Self {
        Self { separator: None, max_length: usize::MAX }
    }

    /// Whether a public name may belong to an item under this prefix. Shortening and renaming keep the
    /// prefix, so `false` is certain; `true` is only where to look.
    pub fn may_belong(&self, prefix: &UpstreamName, public: &str) -> bool {
        let Some(separator) = &self.separator else {
            return true;
        };
        public.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with(separator))
    }

    /// The public name of an upstream's item.
    pub fn join(&self, prefix: &UpstreamName, name: &str) -> String {
        let Some(separator) = &self.separator else {
            return name.to_owned();
        };
        let joined = format!("{prefix}{separator}{name}");
        if joined.len() <= self.max_length {
            return joined;
        }
        let hash = sha256(&joined);
        let hash = hex(&hash[..HASH_DIGITS / 2]);
        let head = format!("{prefix}{separator}{hash}_");
        // The tail tells more than the head: long names share their beginnings.
        let room = self.max_length.saturating_sub(head.len());
        let mut start = name.len().saturating_sub(room);
        while !name.is_char_boundary(start) {
            start += 1;
        }
        head + &name[start..]
    }
}

impl Default for Naming {
    fn default() -> Self {
        Self::prefixed("__", 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> UpstreamName {
        text.parse().expect(text)
    }

    #[test]
    fn an_upstreams_name_is_short_and_plain() {
        for good in ["a", "git-hub2", &"a".repeat(32)] {
            assert!(good.parse::<UpstreamName>().is_ok(), "{good}");
        }
        for bad in ["", "A", "1a", "-a", "a_b", "a.b", "ä", &"a".repeat(33)] {
            assert_eq!(bad.parse::<UpstreamName>(), Err(BadName), "{bad}");
        }
    }

    #[test]
    fn a_long_name_keeps_its_prefix_and_its_tail() {
        let naming = Naming::default();
        let long = format!("{}_the_end", "x".repeat(100));
        let joined = naming.join(&name("hub"), &long);
        assert_eq!(joined, "hub__05a5fc01_".to_owned() + &joined[14..]);
        assert!(joined.len() == 64 && joined.ends_with("xx_the_end"), "{joined}");
        assert_ne!(joined, naming.join(&name("hub"), &format!("y{long}")));
        let umlauts = naming.join(&name("hub"), &"ä".repeat(50));
        assert!(umlauts.len() <= 64 && umlauts.ends_with('ä'));
    }

    #[test]
    fn plain_names_stay_as_they_are() {
        assert_eq!(Naming::plain().join(&name("a"), "b"), "b");
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
        fn a_name_that_fits_comes_back(prefix in "[a-z][a-z0-9-]{0,31}", item in "[A-Za-z0-9_.-]{1,30}") {
            let joined = Naming::default().join(&name(&prefix), &item);
            // For people only: the house never splits a name.
            prop_assert_eq!(joined.split_once("__"), Some((prefix.as_str(), item.as_str())));
        }

        #[test]
        fn s28_a_name_may_belong_to_its_own_prefix_and_to_no_other(
            a in "[a-z][a-z0-9-]{0,8}", b in "[a-z][a-z0-9-]{0,8}", item in ".{0,200}",
        ) {
            let naming = Naming::default();
            let joined = naming.join(&name(&a), &item);
            prop_assert!(naming.may_belong(&name(&a), &joined));
            prop_assert_eq!(naming.may_belong(&name(&b), &joined), a == b);
            prop_assert!(Naming::plain().may_belong(&name(&a), &item));
        }

        #[test]
        fn every_name_keeps_to_the_limit(prefix in "[a-z][a-z0-9-]{0,31}", item in ".{0,200}") {
            let joined = Naming::default().join(&name(&prefix), &item);
            prop_assert!(joined.len() <= 64);
            prop_assert!(joined.starts_with(&prefix));
        }
    }
}
