//! HTTP headers of an outbound request.

use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

/// Capacity for the headers of a single request: method, name and length.
const USUAL_OWN_HEADERS: usize = 3;

/// HTTP headers of a request: those that all requests of a session have in common, and its own.
/// Empty for transports without headers. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestHeaders {
    common: Arc<HeaderMap>,
    /// They replace the common ones of their names. Several of one name follow each other.
    own: Vec<(HeaderName, HeaderValue)>,
}

impl RequestHeaders {
    /// Creates the headers that requests have in common.
    pub(crate) fn new(headers: HeaderMap) -> Self {
        // Copies of the map have this capacity, too.
        let mut common = HeaderMap::with_capacity(headers.len() + USUAL_OWN_HEADERS);
        common.extend(headers);
        Self { common: Arc::new(common), own: Vec::new() }
    }

    /// Sets one of the request's own headers.
    pub(crate) fn set(&mut self, name: HeaderName, value: HeaderValue) {
        self.remove(&name);
        self.own.push((name, value));
    }

    /// Removes one of the request's own headers.
    pub(crate) fn remove(&mut self, name: &HeaderName) {
        self.own.retain(|(other, _)| other != name);
    }

    /// Adds headers of which the request has none.
    pub(crate) fn add_all(&mut self, headers: &HeaderMap) {
        self.own.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    }

    /// Returns all headers as they are sent.
    pub(crate) fn to_map(&self) -> HeaderMap {
        let mut all = HeaderMap::clone(&self.common);
        let mut previous = None;
        for (name, value) in &self.own {
            if previous.replace(name) == Some(name) {
                all.append(name, value.clone());
            } else {
                all.insert(name, value.clone());
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_headers_replace_common_ones_and_several_of_a_name_are_all_sent() {
        const A: HeaderName = HeaderName::from_static("a");
        const B: HeaderName = HeaderName::from_static("b");
        let map = |pairs: &[(HeaderName, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(name, HeaderValue::from_static(value));
            }
            map
        };
        let mut headers = RequestHeaders::new(map(&[(A, "1"), (A, "2"), (B, "3")]));
        assert_eq!(headers.to_map(), map(&[(A, "1"), (A, "2"), (B, "3")]));
        headers.add_all(&map(&[(A, "4"), (A, "5")]));
        assert_eq!(headers.to_map(), map(&[(A, "4"), (A, "5"), (B, "3")]));
        headers.set(A, HeaderValue::from_static("6"));
        assert_eq!(headers.to_map(), map(&[(A, "6"), (B, "3")]));
        headers.remove(&A);
        assert_eq!(headers.to_map(), map(&[(A, "1"), (A, "2"), (B, "3")]));
    }
}
