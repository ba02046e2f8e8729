//! What there is over HTTP, as one table.
//!
//! Promises: whatever is served is found here and nowhere else, so who walks [`Route::ALL`] has seen every
//! path and every method. Nothing is served without credentials but [`Route::Metadata`].
//!
//! Knows nothing of: what is done at a path.

use hyper::Method;

use super::http_sse;
use super::oauth_metadata::Protection;
use crate::downstream::Settings;

/// Something that is served at a path of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Streamable HTTP, of every revision.
    Endpoint,
    /// The stream of the HTTP+SSE pair.
    PairStream,
    /// Where the messages of its clients go.
    PairMessages,
    /// Where clients learn who issues tokens for the endpoint (RFC 9728); for everybody.
    Metadata,
}

impl Route {
    /// All there are. A path that two of them have is the first one's.
    pub const ALL: [Self; 4] =
        [Self::Endpoint, Self::PairStream, Self::PairMessages, Self::Metadata];

    /// Finds what is at a path.
    pub(super) fn find(settings: &Settings, path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.paths(settings).any(|known| known == path))
    }

    /// Where it is; nowhere if it is switched off.
    pub fn paths(self, settings: &Settings) -> impl Iterator<Item = &str> {
        let path = match self {
            Self::Endpoint => Some(&*settings.path),
            Self::PairStream => settings.legacy_sse.then_some(http_sse::STREAM_PATH),
            Self::PairMessages => settings.legacy_sse.then_some(http_sse::MESSAGES_PATH),
            Self::Metadata => None,
        };
        let metadata = settings.protection.as_ref().filter(|_| self == Self::Metadata);
        let metadata = metadata.map(Protection::paths).unwrap_or_default();
        path.into_iter().chain(metadata.iter().map(String::as_str))
    }

    /// The methods that it takes; each other gets 405.
    pub const fn methods(self) -> &'static [Method] {
        match self {
            Self::Endpoint => &[Method::POST, Method::GET, Method::DELETE],
            Self::PairStream => &[Method::GET],
            Self::PairMessages => &[Method::POST],
            Self::Metadata => &[Method::GET, Method::HEAD],
        }
    }

    pub(super) fn takes(self, method: &Method) -> bool {
        self.methods().contains(method)
    }

    /// Its methods, as a refusal tells them.
    pub(super) fn allow(self) -> String {
        let methods: Vec<_> = self.methods().iter().map(Method::as_str).collect();
        methods.join(", ")
    }
}
