//! Connections: HTTP/1.1 to a server, and the addresses that a URL may lead to.

pub mod allowed_addresses;
pub mod http_connection;
pub mod http_send;
