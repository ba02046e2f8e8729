//! Table of the open HTTP+SSE sessions.
//!
//! Invariant: an id is random like any session id, and valid only for the principal that opened the
//! session.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::{mpsc, oneshot};

use crate::response::ClientResponse;
use crate::session::{self, SessionPermit};
use crate::stream_session::StreamMessage;
use weir_access::policy::Principal;
use weir_base::secrets::sealing::InstanceId;

/// Message that a client has posted.
pub(super) struct PostedMessage {
    pub(super) message: StreamMessage,
    /// Result of the POST: accepted, with the response on the stream, or refused.
    pub(super) outcome: oneshot::Sender<Result<(), ClientResponse>>,
}

/// Open HTTP+SSE sessions.
#[derive(Default, Clone)]
pub(crate) struct SseSessions {
    by_id: Arc<DashMap<Box<str>, InboxEntry>>,
}

struct InboxEntry {
    principal: Principal,
    inbox: mpsc::Sender<PostedMessage>,
}

/// Entry of one session in the table. Removed on drop.
pub(super) struct RegisteredSession {
    by_id: Arc<DashMap<Box<str>, InboxEntry>>,
    id: Box<str>,
    _permit: SessionPermit,
}

impl SseSessions {
    /// Adds a session under a new id, which names the process.
    pub(super) fn add(
        &self,
        principal: &Principal,
        inbox: mpsc::Sender<PostedMessage>,
        permit: SessionPermit,
        instance: InstanceId,
    ) -> RegisteredSession {
        let id = instance.name(session::new_id()).into_boxed_str();
        self.by_id.insert(id.clone(), InboxEntry { principal: principal.clone(), inbox });
        RegisteredSession { by_id: Arc::clone(&self.by_id), id, _permit: permit }
    }

    /// Finds the inbox of a principal's session.
    pub(super) fn find(
        &self,
        principal: &Principal,
        id: &str,
    ) -> Option<mpsc::Sender<PostedMessage>> {
        let entry = self.by_id.get(id)?;
        (entry.principal == *principal).then(|| entry.inbox.clone())
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl RegisteredSession {
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for RegisteredSession {
    fn drop(&mut self) {
        self.by_id.remove(&self.id);
    }
}
