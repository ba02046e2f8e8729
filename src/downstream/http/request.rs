//! HTTP request on its way through the handler.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName};
use hyper::http::request::Parts;

use super::ClientConnection;
use super::request_body::UnreadBody;
use super::response_body::{ConnectionClosed, HttpRefusal};
use crate::audit::AuditEvent;
use crate::downstream::modern::headers;
use crate::downstream::response::results;
use crate::downstream::session::{self, SessionGuard};
use crate::downstream::{ServerState, ServerStateCell, era, host_check};
use crate::gateway::ClientContext;
use crate::mcp::revision::{Era, Revision};
use crate::memory_budget::MemoryPressure;

/// One HTTP request. The whole request is served under one `state`, even if the configuration is
/// replaced meanwhile.
pub(super) struct HttpRequest {
    pub(super) state_cell: Arc<ServerStateCell>,
    pub(super) state: Arc<ServerState>,
    pub(super) connection: ClientConnection,
    pub(super) parts: Parts,
    pub(super) body: UnreadBody,
    /// Ends the response; never ready if a lost connection does not.
    pub(super) gone: ConnectionClosed,
    pub(super) audit_event: AuditEvent,
}

impl HttpRequest {
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// Returns the value of the version header.
    pub(super) fn version(&self) -> Option<&str> {
        host_check::single_value(self.headers(), &HeaderName::from_static(headers::VERSION))
    }

    /// Returns the era of a message that carries no version of its own.
    pub(super) fn era_of_unversioned(&self) -> Era {
        era::of_unversioned(&self.state.settings.versions, self.version())
    }

    /// Finds the session of a legacy request and validates its version header.
    pub(super) fn session(&self, client: &ClientContext) -> Result<SessionGuard, HttpRefusal> {
        let headers = self.headers();
        if !headers.contains_key(session::HEADER) {
            let text =
                "no session: send `initialize` first, then the Mcp-Session-Id of its response";
            return Err((StatusCode::BAD_REQUEST, text).into());
        }
        let id = host_check::single_value(headers, &HeaderName::from_static(session::HEADER));
        let session = id.and_then(|id| self.state.sessions.find(client, id)).ok_or((
            StatusCode::NOT_FOUND,
            "no session has this id, or it has ended: send `initialize` again",
        ))?;
        client.audit_event().set_session(&session.mark);
        client.audit_event().set_revision(session.peer.revision);
        // Spec 2025-06-18 and later, transports: an invalid or unsupported version MUST get 400.
        // Earlier revisions have no such header. Without the header the session's version applies.
        let checked = session.peer.revision >= Revision::V2025_06_18;
        if checked && headers.contains_key(headers::VERSION) {
            let version = self.version().and_then(|text| text.parse().ok());
            if !version.is_some_and(|revision| self.state.settings.versions.has(revision)) {
                let text = "this MCP-Protocol-Version is not supported here";
                return Err((StatusCode::BAD_REQUEST, text).into());
            }
        }
        Ok(session)
    }

    /// Refuses to open a stream while the memory budget is nearly exhausted.
    pub(super) fn require_memory(&self) -> Result<(), HttpRefusal> {
        match is_memory_scarce(&self.state) {
            true => Err(results::memory_scarce().into()),
            false => Ok(()),
        }
    }
}

/// True if so much memory is in use that no stream is opened.
pub(super) fn is_memory_scarce(state: &ServerState) -> bool {
    state.budget().pressure() >= MemoryPressure::High
}
