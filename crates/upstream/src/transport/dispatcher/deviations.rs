//! Deviations of a server from the protocol: requests that are broken or come in an array that is
//! not allowed, ids in another form, and responses on another stream of the session.

use std::sync::Arc;

use bytes::Bytes;

use crate::health::author_notes::NoteKind;
use crate::transport::dispatcher::{
    Dispatched, Dispatcher, LISTEN_GRACE, MAX_BATCH, UnparsableMessage,
};
use crate::transport::junk_limits::JunkCounts;
use weir_base::json;
use weir_mcp::jsonrpc::{self, Id, MessageShape, PartialMessage};
use weir_mcp::revision::Era;

/// Open standalone stream of a session.
pub(crate) struct StandaloneGuard(Arc<Dispatcher>);

impl Drop for StandaloneGuard {
    fn drop(&mut self) {
        self.0.has_standalone.send_replace(false);
    }
}

impl Dispatcher {
    /// Returns the error response to a server's request that is not handled; `None` where none is
    /// allowed (spec 2026-07-28, transports: the client MUST NOT send responses).
    pub(crate) fn refuse(&self, id: &Id, error: &jsonrpc::Error) -> Option<Bytes> {
        let is_modern = self.revision.get().is_some_and(|revision| revision.era() == Era::Modern);
        (!is_modern).then(|| jsonrpc::write_error(Some(id), &error.to_bytes()))
    }

    /// Rejects an array as a whole: the requests in it get an error each.
    pub(super) fn reject_array(
        &self,
        text: &Bytes,
        reason: String,
    ) -> Result<Dispatched, UnparsableMessage> {
        let error = jsonrpc::Error::new(jsonrpc::code::INVALID_REQUEST, &*reason);
        let elements = json::elements(text).into_iter().flatten().take(MAX_BATCH);
        let messages = elements.map(|element| PartialMessage::read(&element));
        let requests = messages.filter(|message| message.shape == MessageShape::Request);
        let outgoing: Vec<_> =
            requests.filter_map(|request| self.refuse(&request.id?, &error)).collect();
        if outgoing.is_empty() {
            return Err(UnparsableMessage(reason));
        }
        let junk_counts = JunkCounts { invalid: 1, ..JunkCounts::default() };
        Ok(Dispatched { outgoing, junk_counts, ..Dispatched::default() })
    }

    /// Reports, once per connection, that the server returns the ids of requests in another form:
    /// its responses are lost.
    pub(super) fn report_disguised(&self, id: Option<u64>) {
        let is_pending = |id| self.pending.with_context(id, |_| ()).is_some();
        if id.is_some_and(is_pending) && self.has_disguised_ids.set(()).is_ok() {
            let upstream = &self.name;
            tracing::warn!(%upstream, "server returns ids in another form than they were sent");
        }
    }

    /// Notes a response with an id that no request has had, for the author of the server. An error
    /// in the HTTP response of a request is not noted: servers have an id of their own for what
    /// they refuse before they read it.
    pub(super) fn note_unknown_id(&self, id: Option<&Id>, is_error: bool, stream_of: Option<u64>) {
        if let Some(id) = id.filter(|_| !is_error || stream_of.is_none()) {
            self.health.notes.add(NoteKind::UnknownId, id.as_bytes());
        }
    }

    /// Records that the standalone stream of the session is open, until the guard is dropped.
    pub(crate) fn open_standalone(self: &Arc<Self>) -> StandaloneGuard {
        self.has_standalone.send_replace(true);
        StandaloneGuard(Arc::clone(self))
    }

    /// Waits until the session has no standalone stream, on which a response could arrive. One that
    /// is just being opened is waited for.
    pub(crate) async fn wait_while_standalone(&self) {
        if !self.has_session() {
            return;
        }
        let mut has_standalone = self.has_standalone.subscribe();
        let opened = has_standalone.wait_for(|is_open| *is_open);
        if matches!(tokio::time::timeout(LISTEN_GRACE, opened).await, Ok(Ok(_))) {
            let _ = has_standalone.wait_for(|is_open| !*is_open).await;
        }
    }

    /// Whether the server is known to speak in a session, in which its streams belong together.
    pub(crate) fn has_session(&self) -> bool {
        self.revision.get().is_some_and(|revision| revision.era() == Era::Legacy)
    }
}
