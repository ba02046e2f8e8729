//! The open sessions of the HTTP+SSE pair: who may post to which.
//!
//! Promises: an id is as hard to guess as any session's, and good only for the principal that opened it.
//!
//! Knows nothing of: HTTP, and what is posted.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::mpsc;

use super::session::Posted;
use crate::downstream::session::{self, Seat};
use crate::policy::Principal;

/// All sessions of the pair.
#[derive(Default, Clone)]
pub(in crate::downstream) struct Pairs {
    by_id: Arc<DashMap<Box<str>, Entry>>,
}

struct Entry {
    principal: Principal,
    inbox: mpsc::Sender<Posted>,
}

/// A session's place in the table; dropped, nobody finds it any more.
pub(super) struct Listed {
    by_id: Arc<DashMap<Box<str>, Entry>>,
    id: Box<str>,
    _seat: Seat,
}

impl Pairs {
    /// Enters a session under a new id.
    pub(super) fn enter(
        &self,
        principal: &Principal,
        inbox: mpsc::Sender<Posted>,
        seat: Seat,
    ) -> Listed {
        let id = session::new_id();
        self.by_id.insert(id.clone(), Entry { principal: principal.clone(), inbox });
        Listed { by_id: Arc::clone(&self.by_id), id, _seat: seat }
    }

    /// Finds where a principal posts to its session.
    pub(super) fn find(&self, principal: &Principal, id: &str) -> Option<mpsc::Sender<Posted>> {
        let entry = self.by_id.get(id)?;
        (entry.principal == *principal).then(|| entry.inbox.clone())
    }

    pub(in crate::downstream) fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl Listed {
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.by_id.remove(&self.id);
    }
}
