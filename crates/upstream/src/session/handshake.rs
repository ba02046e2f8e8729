//! Handshake with a server in either era: the information that the server gives, and why a
//! connection could not be opened.
//!
//! Contains only what has the same meaning in both eras; `legacy.rs` and `modern.rs` parse the
//! rest.

use std::sync::Arc;

use bytes::Bytes;

use crate::MAX_INSTRUCTIONS_BYTES;
use weir_base::json::{self, Object};
use weir_mcp::capabilities::Capabilities;
use weir_mcp::kind::ListTopic;
use weir_mcp::revision::{Era, Revision};

/// Information about a server from `initialize` or `server/discover`.
#[derive(Debug)]
pub(crate) struct HandshakeInfo {
    pub(crate) revision: Revision,
    /// Whether the server has shown that this is its era.
    pub(crate) is_certain: bool,
    /// Era of the revision that the server names first.
    pub(crate) first_era: Era,
    /// Topics that the server declares.
    pub(crate) topics: [bool; 3],
    /// Topics whose changes the server announces.
    pub(crate) list_changed: [bool; 3],
    pub(crate) capabilities: Capabilities,
    pub(crate) instructions: Option<Arc<str>>,
}

impl HandshakeInfo {
    /// Reads the members of the handshake's result that have the same meaning in both eras.
    pub(crate) fn read(revision: Revision, result: &Object) -> Self {
        let declared = result.get_object("capabilities").unwrap_or_default();
        let of_topic = |topic: ListTopic| declared.get_object_or_empty_array(topic.capability());
        let list_changed = |topic: ListTopic| {
            of_topic(topic).is_some_and(|about| about.get("listChanged") == Some("true"))
        };
        let mut capabilities = Capabilities::read(&declared);
        // 2024-11-05 has `completion/complete` but no capability for it.
        capabilities.completions |= revision == Revision::V2024_11_05;
        // Tasks differ between the eras: the modern capability has no meaning from a legacy server.
        if revision.era() == Era::Legacy {
            capabilities = capabilities.without_tasks();
        }
        Self {
            revision,
            is_certain: true,
            first_era: revision.era(),
            topics: ListTopic::ALL.map(|topic| of_topic(topic).is_some()),
            list_changed: ListTopic::ALL.map(list_changed),
            capabilities,
            instructions: result
                .get_string("instructions")
                .and_then(|text| truncate_instructions(&text)),
        }
    }
}

/// Returns the known revisions among those that a server lists in the error of an opening request;
/// `None` if it lists none.
pub(crate) fn supported_revisions(error: &Bytes) -> Option<Vec<Revision>> {
    let data = Object::parse(error.clone()).ok()?.get_object("data")?;
    revisions(data.get_bytes("supported")?)
}

/// Returns the known revisions of a list; `None` if the list is invalid.
pub(crate) fn revisions(list: Bytes) -> Option<Vec<Revision>> {
    let known = |version: &Bytes| {
        json::decode_string(std::str::from_utf8(version).ok()?)?.parse::<Revision>().ok()
    };
    Some(json::trusted_elements(&list)?.filter_map(|version| known(&version)).collect())
}

/// Truncates a server's instructions, with a note of how much was cut. `None` if they are empty.
fn truncate_instructions(text: &str) -> Option<Arc<str>> {
    let text = text.trim();
    if text.len() <= MAX_INSTRUCTIONS_BYTES {
        return (!text.is_empty()).then(|| text.into());
    }
    let mut end = MAX_INSTRUCTIONS_BYTES;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Some(format!("{}\n\n[cut here: {end} of {} bytes]", &text[..end], text.len()).into())
}

/// Reason why a connection could not be opened.
#[derive(Debug)]
pub(crate) enum NegotiationError {
    /// The connection ended after the first request, so the era is unknown.
    Ended(String),
    /// The server responds, but not in the era that was tried, or not over this transport.
    AnotherEra(String),
    /// The response to `server/discover` shows no era, or there is none: a legacy server may answer
    /// so, and a modern one that is starting.
    Undecided(String),
    /// The server has no Streamable HTTP at this URL; it may have HTTP+SSE.
    NotStreamable(String),
    /// The server refused a revision that it lists as supported, and `server/discover` was not
    /// retried yet.
    Retry(String),
    /// The server refuses the revision of `initialize`, and lists this one as supported.
    OtherRevision(Revision, String),
    /// The result of `initialize` names no revision.
    NoRevision(String),
    /// Nothing is decided, or the server refuses the connection.
    Refused(String),
}

impl NegotiationError {
    /// Returns the reason as text.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Ended(reason)
            | Self::AnotherEra(reason)
            | Self::Undecided(reason)
            | Self::Retry(reason)
            | Self::OtherRevision(_, reason)
            | Self::NoRevision(reason)
            | Self::Refused(reason) => reason,
            Self::NotStreamable(tried) => format!("{tried}: no Streamable HTTP is served here"),
        }
    }
}
