//! Form of a request to an endpoint of an authorization server.

use bytes::Bytes;
use hyper::Request;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use url::form_urlencoded::{Serializer, parse};

use crate::url_rules::without_parameters;
use weir_base::secrets::secret::Secret;

/// Body of a request.
#[derive(Default)]
pub(crate) struct Form {
    text: String,
    /// Secrets of the request, also those in its header.
    pub(super) secrets: Vec<Secret>,
}

impl Form {
    pub(crate) fn append(&mut self, name: &str, value: &str) {
        Serializer::for_suffix(&mut self.text, 0).append_pair(name, value);
    }

    pub(crate) fn append_secret(&mut self, name: &str, value: &str) {
        self.append(name, value);
        self.secrets.push(Secret::from(value));
    }

    /// Makes a request with the form to an endpoint, and returns the URL to which it is sent.
    pub(crate) fn into_request(
        self,
        endpoint: &str,
        authorization: Option<HeaderValue>,
    ) -> (String, Request<Bytes>) {
        let is_own = |name: &str| parse(self.text.as_bytes()).any(|(own, _)| own == name);
        let url = without_parameters(endpoint, is_own);
        let mut request = Request::post("/").body(Bytes::from(self.text)).unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, const { HeaderValue::from_static(FORM) });
        headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
        (url, request)
    }
}

pub(super) const FORM: &str = "application/x-www-form-urlencoded";
