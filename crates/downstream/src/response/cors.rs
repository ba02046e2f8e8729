//! CORS protocol (Fetch standard, 3.3), for pages of the origins in `server.allowed_origins`.
//!
//! Invariants: only an origin that the configuration names receives these headers. One that is
//! accepted by default, since its name is a loopback name, does not: its failing preflight is all
//! that keeps the pages of other local programs from calling tools without a key. The origin is
//! repeated, never `*`, and a browser's own credentials (cookies, certificates) are not allowed.
//!
//! Decision: docs/decisions/0014-identity-and-tokens.md

use hyper::Method;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, VARY,
};
use hyper::http::request::Parts;

use crate::{Settings, host_check};
use weir_mcp::definition::param_headers;

/// CORS headers of the response to one request.
pub(crate) struct CorsHeaders {
    /// Value of the request's Origin, if the configuration names it.
    origin: Option<HeaderValue>,
}

impl CorsHeaders {
    /// Creates the CORS headers of the response to a request; `None` if the configuration names no
    /// origin.
    pub(crate) fn of_response(settings: &Settings, headers: &HeaderMap) -> Option<Self> {
        (!settings.allowed_origins.is_empty())
            .then(|| Self { origin: host_check::configured_origin(settings, headers).cloned() })
    }

    /// Returns whether a request is a preflight of a configured origin. It passes without
    /// credentials, because browsers send none with it.
    pub(crate) fn is_preflight(&self, request: &Parts) -> bool {
        self.origin.is_some()
            && request.method == Method::OPTIONS
            && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Adds the headers to a response, which may be an error.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        // Also without an Origin: a cache must not serve this response to a page.
        headers.insert(VARY, HeaderValue::from_static("Origin"));
        if let Some(origin) = self.origin {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
    }
}

/// Returns the other headers of the response to a preflight, at a path with these methods.
///
/// A method or header that is not served is left out, and the browser then refuses the request by
/// itself.
pub(crate) fn preflight_headers(request: &HeaderMap, methods: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = |text: &str| HeaderValue::from_str(text).expect("names are visible ASCII");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, value(methods));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, value(&allowed_headers(request)));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    for (requested, allowed) in PRIVATE_NETWORK {
        if host_check::single_value(request, &requested) == Some("true") {
            headers.insert(allowed, HeaderValue::from_static("true"));
        }
    }
    headers
}

/// Returns the headers that pages may send: those of MCP, and each requested header that repeats a
/// tool's argument. Their number is bounded by the size of the request's head.
fn allowed_headers(headers: &HeaderMap) -> String {
    let values = headers.get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter();
    let names = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let names = names.filter_map(|name| name.trim().parse::<HeaderName>().ok());
    let params = names.filter(|name| name.as_str().starts_with(param_headers::PREFIX));
    params.fold(ALLOWED.to_owned(), |all, name| all + ", " + name.as_str())
}

/// Headers that clients send. `Accept` is here for values that a browser does not take as simple.
const ALLOWED: &str = "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, \
                       Mcp-Method, Mcp-Name, Mcp-Session-Id, traceparent, tracestate, baggage";
/// Headers that clients read, besides those that every page may read.
const EXPOSED: &str = "WWW-Authenticate, Retry-After, Mcp-Session-Id";
/// Seconds for which a browser remembers a preflight. Few: an origin may be removed from the
/// configuration and still be accepted without CORS, because its name is a loopback name.
const MAX_AGE: &str = "600";
/// Headers of browsers that ask whether a page of a public network may call a server of a private
/// one: of Private Network Access, and of a draft of its successor. The operator has named the
/// origin, which is the answer.
const PRIVATE_NETWORK: [(HeaderName, HeaderName); 2] = [
    (
        HeaderName::from_static("access-control-request-private-network"),
        HeaderName::from_static("access-control-allow-private-network"),
    ),
    (
        HeaderName::from_static("access-control-request-local-network"),
        HeaderName::from_static("access-control-allow-local-network"),
    ),
];
