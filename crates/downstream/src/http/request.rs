//! HTTP request on its way through the handler.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;

use super::ClientConnection;
use super::head::AcceptedForms;
use super::request_body::{self, UnreadBody};
use super::response_body::{ConnectionClosed, HttpRefusal};
use crate::modern::headers;
use crate::response::results;
use crate::session::session_id::OpenedId;
use crate::{ServerState, ServerStateCell, era, host_check, session};
use weir_base::memory::memory_budget::MemoryPressure;
use weir_gateway::ClientContext;
use weir_mcp::revision::{Era, Revision};
use weir_record::audit::AuditEvent;

/// One HTTP request. The whole request is served under one `state`, even if the configuration is
/// replaced meanwhile.
pub(super) struct HttpRequest {
    pub(super) state_cell: Arc<ServerStateCell>,
    pub(super) state: Arc<ServerState>,
    pub(super) connection: Arc<ClientConnection>,
    pub(super) parts: Parts,
    pub(super) body: UnreadBody,
    /// Text of the body once it is read, for another replica; empty without a fleet.
    pub(super) text: Bytes,
    /// Forms of a response that the client accepts.
    pub(super) forms: AcceptedForms,
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
        host_check::single_value(self.headers(), &headers::VERSION)
    }

    /// Returns the era of a message that carries no version of its own.
    pub(super) fn era_of_unversioned(&self) -> Era {
        era::of_unversioned(&self.state.settings.versions, self.version())
    }

    /// Returns the session id of the request and what it contains, if it is one of this client and
    /// has not expired.
    pub(super) fn opened_session(&self, client: &ClientContext) -> Option<(&str, OpenedId)> {
        let id = host_check::single_value(self.headers(), &session::HEADER)?;
        let max_age = self.state.settings.session_lifetime.max_age;
        Some((id, self.state.sessions.open_id(client, id, max_age)?))
    }

    /// Refuses a request in a session of this revision if its version header is invalid or
    /// unsupported.
    pub(super) fn check_version(&self, revision: Revision) -> Result<(), HttpRefusal> {
        // Spec 2025-06-18 and later, transports: an invalid or unsupported version MUST get 400.
        // Earlier revisions have no such header. Without the header the session's version applies.
        let is_checked = revision >= Revision::V2025_06_18;
        if is_checked && self.headers().contains_key(headers::VERSION) {
            let version = self.version().and_then(|text| text.parse().ok());
            if !version.is_some_and(|revision| self.state.settings.versions.has(revision)) {
                let text = "this MCP-Protocol-Version is not supported here";
                return Err((StatusCode::BAD_REQUEST, text).into());
            }
        }
        Ok(())
    }

    /// Reads the body within limits of size and time.
    pub(super) async fn read_text(&mut self) -> Result<Bytes, HttpRefusal> {
        let text = request_body::read(&self.state, &self.connection, &mut self.body).await?;
        self.audit_event.set_bytes_in(text.len());
        if self.state.fleet().is_some() {
            self.text = text.clone();
        }
        Ok(text)
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
