//! Sessions in the memory of this process, and the moves of sessions between replicas.
//!
//! Invariants: a principal has a bounded number of sessions in the table; the one that has been
//! idle longest is dropped first, and a session with an open call or stream is not idle. A session
//! of the HTTP+SSE transport, which lives as long as its stream, counts through a
//! [`SessionPermit`].

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::event_store::EventStore;
use super::opened_sessions::OpenedSessions;
use super::session_id::{OpenedId, SessionIdCodec};
use super::session_records::{NotKept, RecordPlace, SessionRecords};
use super::takeover_limit::TakeoverLimit;
use super::{Session, SessionGuard, SessionLifetime, SessionLimit, SessionUsage};
use crate::legacy::session_facts::{SessionFacts, SessionSettings};
use crate::legacy::{LegacyClient, LegacyConnection};
use weir_access::policy::Principal;
use weir_base::memory::quota::{PerPrincipal, QuotaPermit};
use weir_base::secrets::sealing::SealingKeys;
use weir_base::tasks::sync::Mutex;
use weir_fleet::{Fleet, SessionIdentity};
use weir_gateway::{ClientContext, ClientIdentity, ClientNotifications, GatewayMetrics};
use weir_mcp::jsonrpc::Message;
use weir_record::audit::SessionMark;

/// Table of the sessions in use.
pub(crate) struct Sessions {
    by_id: DashMap<Box<str>, Arc<Session>>,
    by_principal: DashMap<Principal, Vec<Arc<Session>>>,
    /// Sessions that are stored elsewhere.
    external: PerPrincipal<Principal>,
    takeovers: TakeoverLimit,
    opened: OpenedSessions,
    ids: SessionIdCodec,
    pub(crate) records: SessionRecords,
    metrics: Arc<GatewayMetrics>,
}

/// A session that was rebuilt from its id.
pub(crate) struct RebuiltSession {
    pub(crate) session: SessionGuard,
    /// Resources that it was subscribed to, and that it is to be subscribed to again.
    pub(crate) lost_subscriptions: Vec<Box<str>>,
}

/// Counts a session that is stored elsewhere against its principal's limit. Released on drop.
pub(crate) type SessionPermit = QuotaPermit<Principal>;

impl Sessions {
    /// Creates an empty table, whose sessions and streams are counted in these metrics. Ends and
    /// settings of sessions are recorded in this place.
    pub(crate) fn new(
        metrics: Arc<GatewayMetrics>,
        keys: &SealingKeys,
        records: RecordPlace,
    ) -> Self {
        Self {
            by_id: DashMap::new(),
            by_principal: DashMap::new(),
            external: PerPrincipal::default(),
            takeovers: TakeoverLimit::default(),
            opened: OpenedSessions::default(),
            ids: SessionIdCodec::new(keys),
            records: SessionRecords::new(records),
            metrics,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Opens a session; drops the principal's longest idle one if the `limit` per client is
    /// reached.
    pub(crate) fn open(
        &self,
        client: &ClientContext,
        peer: LegacyClient,
        limit: usize,
    ) -> Result<Arc<Session>, SessionLimit> {
        let place = self.opened.open(client.principal())?;
        let mut facts = SessionFacts::of(&peer.context, SystemTime::now());
        facts.place = self.records.may_number().then_some(place);
        let id = self.ids.seal(client.principal(), &facts);
        let notifications = peer.notifications(client);
        let opened = OpenedId { facts, sealed_by: client.instance() };
        let session = self.create(client, id, opened, peer, notifications, None);
        self.change_owned(client.principal(), |owned| {
            self.evict_if_full(client.principal(), owned, limit)?;
            self.insert(owned, &session);
            Ok(session)
        })
    }

    /// Opens an id; `None` if it is not one of this client, or too old.
    pub(crate) fn open_id(
        &self,
        client: &ClientContext,
        id: &str,
        max_age: Duration,
    ) -> Option<OpenedId> {
        let opened = self.ids.open(client.principal(), id)?;
        (!opened.facts.is_older_than(max_age, SystemTime::now())).then_some(opened)
    }

    /// Rebuilds the session of an id that is not in the table, as [`Sessions::open`] does; `None`
    /// if its client has ended it.
    pub(crate) async fn rebuild(
        &self,
        client: &ClientContext,
        (id, opened, placed): (&str, OpenedId, &SessionIdentity),
        connection: LegacyConnection,
        limit: usize,
    ) -> Result<Option<RebuiltSession>, SessionLimit> {
        let Some(settings) = self.records.find(placed).await else { return Ok(None) };
        let peer = LegacyClient::rebuild(client, &opened.facts, &settings, connection);
        // Lists may have changed since the client was notified last.
        let notifications = peer.notifications(client).with_all_lists_changed();
        let former = self.former(id);
        let session = self.create(client, id.into(), opened, peer, notifications, former);
        self.change_owned(client.principal(), |owned| {
            // It is the former one of this one, if it has calls in progress.
            owned.retain(|other| *other.id != *id || !other.is_moved());
            self.by_id.remove_if(id, |_, other| other.is_moved());
            if let Some(other) = self.by_id.get(id) {
                // A request that came at the same time was quicker.
                return Ok(Some(RebuiltSession {
                    session: SessionGuard::new(Arc::clone(&*other)),
                    lost_subscriptions: Vec::new(),
                }));
            }
            // A client may have ended it meanwhile.
            if self.records.is_ended(placed) {
                return Ok(None);
            }
            self.evict_if_full(client.principal(), owned, limit)?;
            self.insert(owned, &session);
            let lost_subscriptions = settings.subscriptions;
            Ok(Some(RebuiltSession { session: SessionGuard::new(session), lost_subscriptions }))
        })
    }

    fn insert(&self, owned: &mut Vec<Arc<Session>>, session: &Arc<Session>) {
        owned.push(Arc::clone(session));
        self.by_id.insert(session.id.clone(), Arc::clone(session));
    }

    fn create(
        &self,
        client: &ClientContext,
        id: Box<str>,
        opened: OpenedId,
        peer: LegacyClient,
        notifications: ClientNotifications,
        former: Option<Arc<Session>>,
    ) -> Arc<Session> {
        let end = peer.context.client.gone.clone();
        Arc::new(Session {
            mark: SessionMark::of(&id),
            id,
            principal: client.principal().clone(),
            opened,
            is_moved: AtomicBool::new(false),
            former,
            identity: Mutex::new(ClientIdentity::of(client)),
            peer,
            event_store: Arc::new(EventStore::new(client.instance())),
            end_standalone: Mutex::new(end.child_token()),
            end,
            notifications: Arc::new(tokio::sync::Mutex::new(notifications)),
            usage: Mutex::new(SessionUsage { active: 0, idle_since: Instant::now() }),
            opened_at: Instant::now(),
            metrics: Arc::clone(&self.metrics),
        })
    }

    /// Counts a session that is never idle; evicts the longest idle one if the limit is reached.
    pub(crate) fn count_external(
        &self,
        principal: &Principal,
        limit: usize,
    ) -> Result<SessionPermit, SessionLimit> {
        self.change_owned(principal, |owned| {
            self.evict_if_full(principal, owned, limit)?;
            self.external.acquire(principal, usize::MAX).ok_or(SessionLimit)
        })
    }

    /// Changes the sessions of a principal. A principal without any takes no memory.
    fn change_owned<T>(
        &self,
        principal: &Principal,
        change: impl FnOnce(&mut Vec<Arc<Session>>) -> T,
    ) -> T {
        let changed = change(&mut self.by_principal.entry(principal.clone()).or_default());
        self.by_principal.remove_if(principal, |_, owned| owned.is_empty());
        changed
    }

    fn evict_if_full(
        &self,
        principal: &Principal,
        owned: &mut Vec<Arc<Session>>,
        limit: usize,
    ) -> Result<(), SessionLimit> {
        if owned.len() + self.external.count(principal) >= principal.share(limit) {
            let evicted = owned.swap_remove(longest_idle(owned)?);
            self.by_id.remove(&evicted.id);
            self.records.drop_unclaimed(&evicted.id);
            evicted.close();
        }
        Ok(())
    }

    /// Finds a principal's session in the table and marks it as in use; drops one that is over.
    pub(crate) fn find(
        &self,
        client: &ClientContext,
        id: &str,
        lifetime: SessionLifetime,
    ) -> Option<SessionGuard> {
        let session = Arc::clone(&*self.by_id.get(id)?);
        if session.principal != *client.principal() || session.is_moved() {
            return None;
        }
        if session.is_over(lifetime) {
            self.drop_session(&session);
            return None;
        }
        *session.identity.lock() = ClientIdentity::of(client);
        Some(SessionGuard::new(session))
    }

    /// Ends a session for good. The end survives a restart once the future is complete without an
    /// error.
    pub(crate) fn end(
        &self,
        session: &Session,
        max_age: Duration,
    ) -> impl Future<Output = Result<(), NotKept>> + use<> {
        let recorded = self.records.end(&session.place(max_age));
        self.drop_session(session);
        recorded
    }

    /// Records what the client has set in its session, for the process that rebuilds it.
    pub(crate) fn record_settings(&self, session: &Session, max_age: Duration) {
        let settings = session.peer.settings();
        self.records.set(&session.place(max_age), &session.principal, settings);
    }

    /// Drops a session from the table; its next request rebuilds it.
    fn drop_session(&self, session: &Session) {
        self.forget(session);
        session.close();
    }

    /// Returns all sessions, collected, because ending one takes locks that an iteration holds.
    fn all(&self) -> Vec<Arc<Session>> {
        self.by_id.iter().map(|entry| Arc::clone(entry.value())).collect()
    }

    /// Drops each session for which the client's credentials are no longer valid, but not the calls
    /// in progress in it.
    pub(crate) fn end_unauthorized(&self) {
        for session in self.all().iter().filter(|session| !session.identity.lock().is_valid()) {
            self.forget(session);
            session.end_standalone.lock().cancel();
            session.peer.subscriptions.end();
        }
    }

    fn forget(&self, session: &Session) {
        self.records.drop_unclaimed(&session.id);
        let is_other = |other: &Arc<Session>| !std::ptr::eq(&**other, session);
        self.by_id.remove_if(&session.id, |_, found| !is_other(found));
        self.change_owned(&session.principal, |owned| owned.retain(is_other));
    }

    /// Drops the sessions that are over periodically, until `stop` fires.
    pub(crate) async fn sweep(
        &self,
        lifetime: impl Fn() -> SessionLifetime,
        stop: &CancellationToken,
    ) {
        let pause = || tokio::time::sleep(lifetime().idle.min(SWEEP_EVERY));
        while stop.run_until_cancelled(pause()).await.is_some() {
            let all = self.all();
            for session in all.iter().filter(|session| session.is_over(lifetime())) {
                self.drop_session(session);
            }
            all.iter().for_each(|session| session.event_store.expire());
        }
    }

    // === Replicas ===

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
    fn former(&self, id: &str) -> Option<Arc<Session>> {
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
        self.takeovers.may_take_over(principal)
    }
}

fn longest_idle(sessions: &[Arc<Session>]) -> Result<usize, SessionLimit> {
    let idle = sessions.iter().enumerate().filter(|(_, session)| !session.is_in_use());
    let idle = idle.map(|(at, session)| (session.usage.lock().idle_since, at));
    idle.min().map(|(_, at)| at).ok_or(SessionLimit)
}

/// Interval of the sweep for idle sessions.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
