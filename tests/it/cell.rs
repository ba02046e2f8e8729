//! The matrix: which revision and wire stand on either side of the house.
//!
//! Most of what Weir promises holds for every pair, so a test names the behaviour and [`matrix`] names
//! the pairs.

use std::fmt;

use weir::mcp::revision::{Era, Revision};

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Lines over a byte stream.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// The deprecated HTTP+SSE pair of 2024-11-05.
    Sse,
}

/// What one side speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) revision: Revision,
    pub(crate) wire: Wire,
}

/// A client's side and an upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) client: Side,
    pub(crate) upstream: Side,
}

/// The newest revision of each era over each wire.
pub(crate) const SIDES: [Side; 4] = [
    Side::new(Revision::NEWEST, Wire::Http),
    Side::new(Revision::NEWEST, Wire::Stdio),
    Side::new(Revision::NEWEST_LEGACY, Wire::Http),
    Side::new(Revision::NEWEST_LEGACY, Wire::Stdio),
];

pub(crate) const MODERN_HTTP: Side = SIDES[0];
pub(crate) const MODERN_STDIO: Side = SIDES[1];
pub(crate) const LEGACY_HTTP: Side = SIDES[2];
pub(crate) const LEGACY_STDIO: Side = SIDES[3];

pub(crate) const LEGACY_SSE: Side = Side::new(Revision::NEWEST_LEGACY, Wire::Sse);

/// Every side of a client.
pub(crate) const CLIENTS: [Side; 5] = [SIDES[0], SIDES[1], SIDES[2], SIDES[3], LEGACY_SSE];

/// What an upstream may speak: one that is asked over HTTP+SSE, too.
pub(crate) const UPSTREAMS: [Side; 5] = [
    MODERN_HTTP,
    MODERN_STDIO,
    LEGACY_HTTP,
    LEGACY_STDIO,
    Side::new(Revision::V2024_11_05, Wire::Sse),
];

/// Every client's side with every upstream's.
pub(crate) fn matrix() -> impl Iterator<Item = Cell> {
    CLIENTS
        .into_iter()
        .flat_map(|client| UPSTREAMS.into_iter().map(move |upstream| Cell { client, upstream }))
}

impl Side {
    pub(crate) const fn new(revision: Revision, wire: Wire) -> Self {
        Self { revision, wire }
    }

    pub(crate) fn is_modern(self) -> bool {
        self.revision.era() == Era::Modern
    }

    pub(crate) fn is_http(self) -> bool {
        self.wire == Wire::Http
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {:?}", self.revision, self.wire)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a client of {} and an upstream of {}", self.client, self.upstream)
    }
}
