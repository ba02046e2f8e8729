//! What there is over HTTP, as one table.
//!
//! Promises: whatever is served is found here and nowhere else, so who walks [`Route::ALL`] has seen every
//! path and every method. Nothing is served without credentials.
//!
//! Knows nothing of: what is done at a path.

use hyper::Method;

use super::pair;
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
}

impl Route {
    /// All there are. A path that two of them have is the first one's.
    pub const ALL: [Self; 3] = [Self::Endpoint, Self::PairStream, Self::PairMessages];

    /// Finds what is at a path.
    pub(super) fn find(settings: &Settings, path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.paths(settings).any(|known| known == path))
    }

    /// Where it is; nowhere if it is switched off.
    pub fn paths(self, settings: &Settings) -> impl Iterator<Item = &str> {
        let path = match self {
            Self::Endpoint => Some(&*settings.path),
            Self::PairStream => settings.legacy_sse.then_some(pair::STREAM_PATH),
            Self::PairMessages => settings.legacy_sse.then_some(pair::MESSAGES_PATH),
        };
        path.into_iter()
    }

    /// The methods that it takes; each other gets 405.
    pub const fn methods(self) -> &'static [Method] {
        match self {
            Self::Endpoint => &[Method::POST, Method::GET, Method::DELETE],
            Self::PairStream => &[Method::GET],
            Self::PairMessages => &[Method::POST],
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
