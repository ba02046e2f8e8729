//! Receiver of the messages between Weir and its upstreams, for a person who looks for a fault.

use weir_base::secrets::secret::Secret;
use weir_mcp::name::UpstreamName;

/// Receiver of messages. It gets each one before it is processed, and must return soon: the
/// connection waits for it.
pub trait TraceSink: Send + Sync {
    /// Number of bytes of a message that are shown.
    fn limit(&self) -> usize;

    /// Secrets of an upstream beside those in its settings, such as parts of its URL.
    fn secrets(&self, upstream: &UpstreamName) -> Vec<Secret>;

    /// Writes a message, or the head of an HTTP request or response.
    fn write(&self, line: &TraceLine<'_>);
}

/// Message as it is shown: in one line, without secrets, and without characters that a terminal
/// executes or that change the order of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceLine<'a> {
    /// The upstream.
    pub upstream: &'a UpstreamName,
    /// Direction of the message.
    pub direction: TraceDirection,
    /// Beginning of the message.
    pub text: &'a str,
    /// Number of bytes of the message behind that.
    pub left_out: usize,
    /// Remark about a message that did not arrive, or was not read, to its end.
    pub remark: Option<&'static str>,
}

/// Direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceDirection {
    /// To the server.
    ToServer,
    /// From the server.
    FromServer,
}
