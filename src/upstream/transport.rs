//! Transports to an upstream: stdio, Streamable HTTP and the deprecated HTTP+SSE, and the dispatcher of what arrives.

pub(crate) mod child;
pub(crate) mod demux;
pub(crate) mod dispatcher;
pub(crate) mod http_client;
pub(crate) mod http_connection;
pub(crate) mod http_pool;
pub(crate) mod http_sse;
pub(crate) mod json_body;
pub(crate) mod junk_limits;
pub(crate) mod lifetime;
pub(crate) mod min_rate;
pub(crate) mod sse_body;
pub(crate) mod stdio;
pub(crate) mod streamable_http;
pub(crate) mod uri_reference;
