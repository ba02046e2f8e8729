//! Error response to an HTTP request that is refused: before its message was parsed, or instead of
//! being carried out.
//!
//! Invariant: it names the request as soon as the id is known.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{ALLOW, HeaderName, HeaderValue};

use super::response_body::{self, HttpBody, HttpResponse};
use crate::response::{ClientResponse, ErrorResponse};
use weir_mcp::jsonrpc::{self, Id, code};

/// Response to a request that is refused. Boxed, because few are.
pub(super) struct HttpRefusal(Box<HttpResponse>);

/// Error of a response that does not name its request.
#[derive(Clone)]
struct UnnamedError(Bytes);

impl HttpRefusal {
    /// Refuses a method that a route does not serve, with those that it does.
    pub(super) fn wrong_method(allowed: &str) -> Self {
        let allowed = HeaderValue::from_str(allowed).expect("methods are plain words");
        Self::from((StatusCode::METHOD_NOT_ALLOWED, "this method is not served here"))
            .with_header(ALLOW, allowed)
    }

    /// Names the request in an error response that has no id.
    pub(super) fn naming(mut self, id: Option<&Id>) -> Self {
        if let (Some(id), Some(UnnamedError(error))) = (id, self.0.extensions_mut().remove()) {
            *self.0.body_mut() = HttpBody::complete(jsonrpc::write_error(Some(id), &error));
        }
        self
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers_mut().insert(name, value);
        self
    }

    /// Ends the connection with the response: the rest of the input must not be read.
    pub(super) fn with_connection_close(self) -> Self {
        Self(response_body::with_connection_close(*self.0).into())
    }

    pub(super) fn into_response(self) -> HttpResponse {
        *self.0
    }
}

impl From<ClientResponse> for HttpRefusal {
    fn from(response: ClientResponse) -> Self {
        Self(response_body::json(response).into())
    }
}

impl From<ErrorResponse> for HttpRefusal {
    /// Refuses a request whose id is not known here.
    fn from(refused: ErrorResponse) -> Self {
        let mut response = response_body::json(ClientResponse::refused(None, &refused));
        response.extensions_mut().insert(UnnamedError(refused.error.to_bytes()));
        Self(response.into())
    }
}

impl From<(StatusCode, &str)> for HttpRefusal {
    fn from((status, text): (StatusCode, &str)) -> Self {
        ErrorResponse::new(status, code::INVALID_REQUEST, text).into()
    }
}
