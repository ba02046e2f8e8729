//! The protocol's revisions and the two eras that they fall into.

use std::fmt;
use std::str::FromStr;

use strum::{IntoStaticStr, VariantArray};

/// A published revision of the protocol. Ordered by date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
pub enum Revision {
    /// 2024-11-05: the first; HTTP as a pair of endpoints.
    #[strum(serialize = "2024-11-05")]
    V2024_11_05,
    /// 2025-03-26: Streamable HTTP, batches.
    #[strum(serialize = "2025-03-26")]
    V2025_03_26,
    /// 2025-06-18: no batches, elicitation, the version header.
    #[strum(serialize = "2025-06-18")]
    V2025_06_18,
    /// 2025-11-25: the last with a handshake.
    #[strum(serialize = "2025-11-25")]
    V2025_11_25,
    /// 2026-07-28: stateless.
    #[strum(serialize = "2026-07-28")]
    V2026_07_28,
}

/// Generation of the protocol: with a handshake and a session, or stateless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Era {
    /// 2024-11-05 to 2025-11-25: `initialize`, sessions, requests from the server.
    Legacy,
    /// From 2026-07-28: each request carries its own context.
    Modern,
}

impl Revision {
    /// All revisions, oldest first.
    pub const ALL: [Self; Self::VARIANTS.len()] =
        *Self::VARIANTS.as_array().expect("the length is its own");

    /// The newest revision with a handshake.
    pub const NEWEST_LEGACY: Self = Self::V2025_11_25;

    /// The newest revision.
    pub const NEWEST: Self = Self::V2026_07_28;

    /// The era that the revision belongs to.
    pub fn era(self) -> Era {
        if self < Self::V2026_07_28 { Era::Legacy } else { Era::Modern }
    }

    /// The date that names the revision in the protocol.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether the revision has batches: several messages in one array (spec 2025-03-26, base
    /// protocol: receiving batches is a MUST; removed in 2025-06-18; 2024-11-05 leaves it to
    /// JSON-RPC).
    pub fn has_batches(self) -> bool {
        self < Self::V2025_06_18
    }
}

/// Error for a text that names no known revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol revision")]
pub struct UnknownRevision;

impl FromStr for Revision {
    type Err = UnknownRevision;

    fn from_str(text: &str) -> Result<Self, UnknownRevision> {
        Self::ALL.into_iter().find(|revision| revision.as_str() == text).ok_or(UnknownRevision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_ordered_by_date_and_read_as_written() {
        assert!(Revision::ALL.is_sorted());
        for revision in Revision::ALL {
            assert_eq!(revision.as_str().parse(), Ok(revision));
        }
        assert_eq!("2025-01-01".parse::<Revision>(), Err(UnknownRevision));
    }

    #[test]
    fn only_the_newest_is_modern() {
        let modern: Vec<_> = Revision::ALL.into_iter().filter(|r| r.era() == Era::Modern).collect();
        assert_eq!(modern, [Revision::NEWEST]);
    }
}
