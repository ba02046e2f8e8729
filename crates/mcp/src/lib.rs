//! The Model Context Protocol: types that both eras have in common.
//!
//! Inside the gateway every request is stateless and has its own context, as in the newest
//! revision. Sessions, `initialize` and server-initiated requests are handled in the dialects and
//! transports of `downstream` and `upstream`.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

pub mod call;
pub mod call_notifications;
pub mod capabilities;
pub mod definition;
pub mod elicitation_complete;
pub mod input_request;
pub mod jsonrpc;
pub mod kind;
pub mod log_level;
pub mod methods;
pub mod name;
pub mod pattern;
pub mod resource_updates;
pub mod revision;
pub mod task;
pub mod trace_context;
pub mod uri;

/// Members of `_meta` that the protocol reserves and Weir owns.
pub mod meta {
    /// Token of progress notifications for a request.
    pub const PROGRESS_TOKEN: &str = "progressToken";
    /// Revision of a modern request.
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    /// Name and version of the client; for display only.
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// Client capabilities for this request.
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// Minimum level of log messages for this request.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    /// Name and version of the server; for display only.
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// Id of the listen request that a notification belongs to.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    /// The task that a result or notification is about.
    pub(crate) const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
    /// Upstreams that are missing from a list, in Weir's own namespace.
    pub const PARTIAL: &str = "weir/partial";
}

/// Error codes that MCP itself defines.
pub mod code {
    /// Unknown resource; legacy era only.
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// An HTTP header differs from the body; modern era only.
    pub const HEADER_MISMATCH: i64 = -32020;
    /// The request needs a capability that its client did not declare; modern era only.
    pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
    /// The revision is not served; modern era only.
    pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
    /// URL elicitation required; revision 2025-11-25 only.
    pub const URL_ELICITATION_REQUIRED: i64 = -32042;
    /// Data of the error by which Weir refuses a session that it does not know, so that another
    /// Weir can tell that from an error of the request.
    pub const UNKNOWN_SESSION: &str = r#"{"weir/session":"unknown"}"#;
}
