//! Table of all HTTP routes.
//!
//! Invariants: everything that is served has an entry here, so [`HttpRoute::ALL`] covers every path
//! and every method. Only [`HttpRoute::Metadata`] and preflights of pages are served without
//! credentials.

use hyper::Method;

use super::oauth_metadata::ProtectedResource;
use crate::Settings;

/// Path of the event stream.
pub const STREAM_PATH: &str = "/sse";

/// Path for messages; the `endpoint` event contains it.
pub const MESSAGES_PATH: &str = "/messages";

/// HTTP route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpRoute {
    /// MCP endpoint: Streamable HTTP, in every revision.
    Endpoint,
    /// Event stream of the HTTP+SSE transport.
    SseStream,
    /// Endpoint for messages of HTTP+SSE clients.
    SseMessages,
    /// Protected resource metadata (RFC 9728), without credentials.
    Metadata,
}

impl HttpRoute {
    /// All routes. If two routes have the same path, the first one is used.
    pub const ALL: [Self; 4] = [Self::Endpoint, Self::SseStream, Self::SseMessages, Self::Metadata];

    /// Returns the route of a path.
    pub(super) fn find(settings: &Settings, path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.paths(settings).any(|known| known == path))
    }

    /// Paths of the route; none if it is disabled.
    pub(crate) fn paths(self, settings: &Settings) -> impl Iterator<Item = &str> {
        let path = match self {
            Self::Endpoint => Some(&*settings.path),
            Self::SseStream => settings.legacy_sse.then_some(STREAM_PATH),
            Self::SseMessages => settings.legacy_sse.then_some(MESSAGES_PATH),
            Self::Metadata => None,
        };
        let metadata = settings.protected_resource.as_ref().filter(|_| self == Self::Metadata);
        let metadata = metadata.map(ProtectedResource::paths).unwrap_or_default();
        path.into_iter().chain(metadata.iter().map(String::as_str))
    }

    /// Accepted methods; every other one gets 405.
    pub const fn methods(self) -> &'static [Method] {
        match self {
            Self::Endpoint => &[Method::POST, Method::GET, Method::DELETE],
            Self::SseStream => &[Method::GET],
            Self::SseMessages => &[Method::POST],
            Self::Metadata => &[Method::GET, Method::HEAD],
        }
    }

    /// True if pages of the configured origins may read its responses (CORS).
    pub(super) fn is_for_pages(self) -> bool {
        matches!(self, Self::Endpoint | Self::Metadata)
    }

    pub(super) fn takes(self, method: &Method) -> bool {
        self.methods().contains(method)
    }

    /// Accepted methods, as the value of an Allow header.
    pub(super) fn allow(self) -> String {
        let methods: Vec<_> = self.methods().iter().map(Method::as_str).collect();
        methods.join(", ")
    }
}
