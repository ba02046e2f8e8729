//! The test matrix: revision and transport on either side of the gateway.
//!
//! Most promises hold for every pair, so a test names the behaviour and [`matrix`] names the pairs.

use std::fmt;

use weir_mcp::revision::{Era, Revision};

/// Transport of a client or an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Newline-delimited JSON over a byte stream.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// The deprecated HTTP+SSE pair of 2024-11-05.
    Sse,
}

/// Revision and transport of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) revision: Revision,
    pub(crate) transport: Transport,
}

/// One pair of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) client: Side,
    pub(crate) upstream: Side,
}

/// The newest revision of each era over each transport.
pub(crate) const SIDES: [Side; 4] = [
    Side::new(Revision::NEWEST, Transport::Http),
    Side::new(Revision::NEWEST, Transport::Stdio),
    Side::new(Revision::NEWEST_LEGACY, Transport::Http),
    Side::new(Revision::NEWEST_LEGACY, Transport::Stdio),
];

pub(crate) const MODERN_HTTP: Side = SIDES[0];
pub(crate) const MODERN_STDIO: Side = SIDES[1];
pub(crate) const LEGACY_HTTP: Side = SIDES[2];
pub(crate) const LEGACY_STDIO: Side = SIDES[3];

pub(crate) const LEGACY_SSE: Side = Side::new(Revision::NEWEST_LEGACY, Transport::Sse);

/// All sides that a client can have.
pub(crate) const CLIENTS: [Side; 5] = [SIDES[0], SIDES[1], SIDES[2], SIDES[3], LEGACY_SSE];

/// All sides that an upstream can have, HTTP+SSE included.
pub(crate) const UPSTREAMS: [Side; 5] = [
    MODERN_HTTP,
    MODERN_STDIO,
    LEGACY_HTTP,
    LEGACY_STDIO,
    Side::new(Revision::V2024_11_05, Transport::Sse),
];

/// All pairs of a client's side and an upstream's side.
pub(crate) fn matrix() -> impl Iterator<Item = Cell> {
    CLIENTS
        .into_iter()
        .flat_map(|client| UPSTREAMS.into_iter().map(move |upstream| Cell { client, upstream }))
}

impl Side {
    pub(crate) const fn new(revision: Revision, transport: Transport) -> Self {
        Self { revision, transport }
    }

    pub(crate) fn is_modern(self) -> bool {
        self.revision.era() == Era::Modern
    }

    pub(crate) fn is_http(self) -> bool {
        self.transport == Transport::Http
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {:?}", self.revision, self.transport)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a client of {} and an upstream of {}", self.client, self.upstream)
    }
}
