//! Sessions that move between the replicas of a fleet.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::record_file::key_of;
use super::session_id::OpenedId;
use super::{Session, SessionGuard, SessionLimit, Sessions};
use crate::legacy::session_facts::{SessionFacts, SessionSettings};
use crate::legacy::{LegacyClient, LegacyConnection};
use weir_access::policy::Principal;
use weir_base::ended_sessions::SessionNumber;
use weir_base::secrets::sealing::Instance;
use weir_base::text::hex::hex;
use weir_fleet::{Fleet, SessionIdentity};
use weir_gateway::ClientContext;
use weir_mcp::jsonrpc::Message;

impl Sessions {
    /// Delivers a response or a cancellation to the call in progress that it concerns, and returns
    /// whether there is one here. Another replica may have the session by now.
    pub(crate) fn deliver(&self, client: &ClientContext, id: &str, message: &Message) -> bool {
        let session = self.find_any(client, id);
        session.is_some_and(|it| it.with_former().any(|session| session.peer.deliver(message)))
    }

    /// Returns whether calls of a principal's session are in progress here. Another replica may
    /// have the session by now.
    pub(crate) fn has_calls(&self, client: &ClientContext, id: &str) -> bool {
        let session = self.find_any(client, id);
        session.is_some_and(|it| it.with_former().any(|it| !it.peer.in_flight.is_empty()))
    }

    fn find_any(&self, client: &ClientContext, id: &str) -> Option<Arc<Session>> {
        let session = Arc::clone(&*self.by_id.get(id)?);
        (session.principal == *client.principal()).then_some(session)
    }

    /// Returns the session of this id that was given up, if it has calls in progress.
    pub(super) fn former(&self, id: &str) -> Option<Arc<Session>> {
        let given_up = Arc::clone(&*self.by_id.get(id).filter(|session| session.is_moved())?);
        // Those without calls are left out, so that a session that moves often keeps few.
        let mut all = iter::successors(Some(&given_up), |session| session.former.as_ref());
        all.find(|session| session.usage.lock().active > 0).map(Arc::clone)
    }

    /// Returns a copy of a session that another replica has: it serves requests about tasks that
    /// only this one can reach, and the answers to what they ask. It remembers nothing else.
    pub(crate) fn copy(
        &self,
        client: &ClientContext,
        (id, opened): (&str, OpenedId),
        connection: impl FnOnce() -> LegacyConnection,
        limit: usize,
    ) -> Result<SessionGuard, SessionLimit> {
        let moved = self.by_id.get(id).filter(|it| it.is_moved()).map(|it| Arc::clone(&*it));
        if let Some(moved) = moved.filter(|it| it.principal == *client.principal()) {
            return Ok(SessionGuard::new(moved));
        }
        let settings = SessionSettings::default();
        let peer = LegacyClient::rebuild(client, &opened.facts, &settings, connection());
        let notifications = peer.notifications(client);
        let copy = self.create(client, id.into(), opened, peer, notifications, None);
        copy.is_moved.store(true, Ordering::Release);
        self.change_owned(client.principal(), |owned| {
            // A request that came at the same time was quicker.
            if let Some(other) = self.by_id.get(id) {
                return Ok(SessionGuard::new(Arc::clone(&*other)));
            }
            self.evict_if_full(client.principal(), owned, limit)?;
            self.insert(owned, &copy);
            Ok(SessionGuard::new(copy))
        })
    }

    /// Gives up the sessions that other replicas have taken over, or whose clients have ended them
    /// there: their streams end, and their calls in progress are finished.
    pub(crate) fn give_up_lost(&self, fleet: &Fleet, max_age: Duration) {
        let all = self.all();
        let lost = all.iter().filter(|session| fleet.sessions().has_lost(&session.place(max_age)));
        lost.for_each(|session| session.give_up());
    }

    /// Has sessions rebuilt at their next request whose settings could not be read when this
    /// replica took them over. `late` are the settings, by the keys of the sessions.
    pub(crate) fn rebuild_late(&self, mut late: HashMap<String, Vec<u8>>, max_age: Duration) {
        if late.is_empty() {
            return;
        }
        for session in self.all() {
            let placed = session.place(max_age);
            let written = late.remove(&placed.key);
            let settings =
                written.and_then(|it| self.records.take_over(&placed, &session.principal, &it));
            if settings.is_some_and(|settings| settings != session.peer.settings()) {
                session.give_up();
            }
        }
    }

    /// Counts a session that is taken over from another replica; false if the principal has taken
    /// over too many in this second.
    pub(crate) fn may_take_over(&self, principal: &Principal) -> bool {
        let mut taken_over = self.taken_over.lock();
        if taken_over.0.elapsed() >= Duration::from_secs(1) {
            *taken_over = (Instant::now(), HashMap::new());
        }
        let count = taken_over.1.entry(principal.clone()).or_default();
        *count += 1;
        *count <= principal.share(MAX_TAKEN_OVER_PER_SECOND)
    }
}

impl Session {
    /// Returns the session as its fleet places it.
    pub(super) fn place(&self, max_age: Duration) -> SessionIdentity {
        placed(&self.id, self.sealed_by, &self.facts, max_age)
    }

    /// Returns the session, and what it was before this replica gave it up.
    pub(super) fn with_former(&self) -> impl Iterator<Item = &Self> {
        iter::successors(Some(self), |session| session.former.as_deref())
    }

    /// Ends the streams of the session here; its calls in progress are finished. Its next request
    /// rebuilds it, here or on another replica.
    fn give_up(&self) {
        self.is_moved.store(true, Ordering::Release);
        self.end_standalone.lock().cancel();
        self.peer.subscriptions.end();
    }

    /// Returns whether another replica has the session.
    pub(crate) fn is_moved(&self) -> bool {
        self.is_moved.load(Ordering::Acquire)
    }
}

/// Returns a session as its fleet places it.
pub(crate) fn placed(
    id: &str,
    sealed_by: Instance,
    facts: &SessionFacts,
    max_age: Duration,
) -> SessionIdentity {
    let number = facts.place.map(|place| SessionNumber { opened_by: sealed_by, place });
    SessionIdentity { key: hex(&key_of(id)), number, sealed_by, until: facts.begun + max_age }
}

/// Most sessions that a client takes over from other replicas per second.
const MAX_TAKEN_OVER_PER_SECOND: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::session_records::RecordPlace;
    use weir_base::secrets::sealing::SealingKeys;

    #[tokio::test(start_paused = true)]
    async fn a_client_takes_over_so_many_sessions_per_second() {
        let sessions = Sessions::new(Arc::default(), &SealingKeys::random(), RecordPlace::Memory);
        let [ann, bob] = ["ann", "bob"].map(|name| Principal::new(name, "staff"));
        let took = |principal| (0..100).filter(|_| sessions.may_take_over(principal)).count();
        assert_eq!((took(&ann), took(&ann), took(&bob)), (64, 0, 64));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(took(&ann), 64);
    }
}
