//! HTTP client for single requests, as a trait: the crate with connections, proxies and TLS
//! implements it.

use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::{Request, Response};

use crate::net::allowed_addresses::AllowedAddresses;

/// HTTP client for single requests.
pub trait HttpSend: Send + Sync {
    /// Sends a request to its URL over a new connection, and returns the response with a body of
    /// at most `limit` bytes. With a limit of 0, and for a status whose body no caller needs, the
    /// body is not read. Follows no redirect. Connects to the servers in `allowed` only, or
    /// to any if it is `None`. Dropping the future cancels the request.
    fn send<'a>(
        &'a self,
        request: Request<Bytes>,
        limit: usize,
        allowed: Option<&'a AllowedAddresses>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, String>>;
}
