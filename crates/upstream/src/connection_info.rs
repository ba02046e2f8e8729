//! Result of the handshake with a connected upstream.

use std::sync::Arc;

use weir_mcp::capabilities::Capabilities;
use weir_mcp::kind::ListTopic;
use weir_mcp::revision::{Era, Revision};
use weir_oauth::SignInNumber;

/// Result of the handshake with a connected upstream.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// Number of the connection; a new number means that everything has to be listed again.
    pub epoch: u64,
    /// Negotiated protocol revision.
    pub revision: Revision,
    /// Whether the server has shown that it speaks the era of that revision.
    pub(crate) is_era_certain: bool,
    /// Transport label: `stdio`, `http`, `http+sse` or `library`.
    pub transport: &'static str,
    /// Declared list topics, by [`ListTopic::index`].
    pub(crate) topics: [bool; 3],
    /// Other server capabilities.
    pub capabilities: Capabilities,
    /// Server instructions, cut to [`MAX_INSTRUCTIONS_BYTES`].
    pub instructions: Option<Arc<str>>,
    /// Sign-in with which it was opened; `None` without an account.
    pub sign_in: Option<SignInNumber>,
}

impl ConnectionInfo {
    /// Era of the negotiated revision.
    pub fn era(&self) -> Era {
        self.revision.era()
    }

    /// Whether the server declares this list topic.
    pub(crate) fn has(&self, topic: ListTopic) -> bool {
        self.topics[topic.index()]
    }
}

/// Maximum size of an upstream's instructions.
pub const MAX_INSTRUCTIONS_BYTES: usize = 8 * 1024;
