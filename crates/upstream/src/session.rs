//! MCP sessions with an upstream: version negotiation, the legacy and the modern era, lists,
//! additional sessions.

pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod handshake;
pub(crate) mod input_exchange;
pub(crate) mod input_retry;
pub(crate) mod legacy;
pub(crate) mod library;
pub(crate) mod log_level;
pub(crate) mod modern;
pub(crate) mod negotiation;
pub(crate) mod notice;
pub(crate) mod pagination;
pub(crate) mod session_check;
pub(crate) mod session_pool;
