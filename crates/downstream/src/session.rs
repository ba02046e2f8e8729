//! Legacy sessions over HTTP: ids, owners and lifetimes.
//!
//! An id contains what is needed to rebuild its session, so the table has only the sessions that
//! are in use: a session that is idle, or that another process of the installation has opened, is
//! rebuilt for its next request. A session that another replica has taken over is given up: its
//! calls in progress are finished here, and nothing new begins.
//!
//! Invariants: an id cannot be forged and is valid only with the credentials of the principal that
//! opened it; an unknown id, an expired one, an ended one and one of another principal look the
//! same. A principal has a bounded number of sessions in the table; the one that has been idle
//! longest is dropped first, and a session with an open call or stream is not idle. The end of a
//! session cancels its calls and closes its stream. A session of the HTTP+SSE transport, which
//! lives as long as its stream, counts through a [`SessionPermit`].

pub(crate) mod event_store;
mod moving;
mod opened_sessions;
mod record_file;
pub(crate) mod session_id;
pub(crate) mod session_records;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use hyper::header::HeaderName;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) use moving::placed;
use opened_sessions::OpenedSessions;

use super::legacy::{LegacyClient, LegacyConnection};
use crate::legacy::session_facts::SessionFacts;
use crate::session::event_store::EventStore;
use crate::session::session_id::{OpenedId, SessionIdCodec};
use crate::session::session_records::{NotKept, RecordPlace, SessionRecords};
use weir_access::policy::Principal;
use weir_base::memory::quota::{PerPrincipal, QuotaPermit};
use weir_base::metrics::{Gauge, GaugeGuard};
use weir_base::secrets::sealing::{Instance, SealingKeys};
use weir_base::secrets::secret;
use weir_base::tasks::sync::Mutex;
use weir_fleet::SessionIdentity;
use weir_gateway::{ClientContext, ClientIdentity, ClientNotifications, GatewayMetrics};
use weir_record::audit::SessionMark;

/// Header with the session id.
pub(super) const HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// Table of the sessions in use.
pub(super) struct Sessions {
    by_id: DashMap<Box<str>, Arc<Session>>,
    by_principal: DashMap<Principal, Vec<Arc<Session>>>,
    /// Sessions that are stored elsewhere.
    external: PerPrincipal<Principal>,
    /// Number of sessions that each principal has taken over from other replicas in this second.
    taken_over: Mutex<(Instant, HashMap<Principal, usize>)>,
    opened: OpenedSessions,
    ids: SessionIdCodec,
    pub(super) records: SessionRecords,
    metrics: Arc<GatewayMetrics>,
}

/// One session.
pub(super) struct Session {
    pub(super) id: Box<str>,
    /// Session mark for the audit log.
    pub(super) mark: SessionMark,
    principal: Principal,
    facts: SessionFacts,
    /// Process that opened the session.
    sealed_by: Instance,
    /// True once another replica has the session.
    is_moved: AtomicBool,
    /// The session as it was when this replica gave it up, if it has come back since and calls of
    /// that time are still in progress.
    former: Option<Arc<Session>>,
    /// Identity that the session was last used with.
    identity: Mutex<ClientIdentity>,
    /// Client of the session.
    pub(super) peer: LegacyClient,
    /// Event streams, if they can be resumed.
    pub(super) event_store: Arc<EventStore>,
    end: CancellationToken,
    /// Notifications for the client; the standalone stream holds the lock.
    notifications: Arc<tokio::sync::Mutex<ClientNotifications>>,
    /// Token that ends the current standalone stream.
    end_standalone: Mutex<CancellationToken>,
    usage: Mutex<SessionUsage>,
    opened_at: Instant,
    metrics: Arc<GatewayMetrics>,
}

#[derive(Debug)]
struct SessionUsage {
    /// Open requests and streams.
    active: usize,
    idle_since: Instant,
}

/// Keeps a session from being idle while something runs in it.
pub(super) struct SessionGuard(Arc<Session>);

/// Standalone stream of a session: the only one that notifications of changes are sent on.
pub(super) struct StandaloneStream {
    pub(super) notifications: OwnedMutexGuard<ClientNotifications>,
    /// Fires when a newer stream replaces this one or the session ends.
    pub(super) over: CancellationToken,
    _open: GaugeGuard,
    in_use: SessionGuard,
}

/// Counts a session that is stored elsewhere against its principal's limit. Released on drop.
pub(super) type SessionPermit = QuotaPermit<Principal>;

/// A session that was rebuilt from its id.
pub(super) struct RebuiltSession {
    pub(super) session: SessionGuard,
    /// Resources that it was subscribed to, and that it is to be subscribed to again.
    pub(super) lost_subscriptions: Vec<Box<str>>,
}

/// Time limits of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLifetime {
    /// Idle time after which a session is dropped from memory.
    pub idle: Duration,
    /// Age at which an id expires.
    pub max_age: Duration,
}

/// The principal has reached its limit, and all of its sessions are in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SessionLimit;

impl Sessions {
    /// Creates an empty table, whose sessions and streams are counted in these metrics. Ends and
    /// settings of sessions are recorded in this place.
    pub(super) fn new(
        metrics: Arc<GatewayMetrics>,
        keys: &SealingKeys,
        records: RecordPlace,
    ) -> Self {
        Self {
            by_id: DashMap::new(),
            by_principal: DashMap::new(),
            external: PerPrincipal::default(),
            taken_over: Mutex::new((Instant::now(), HashMap::new())),
            opened: OpenedSessions::default(),
            ids: SessionIdCodec::new(keys),
            records: SessionRecords::new(records),
            metrics,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Opens a session; drops the principal's longest idle one if the `limit` per client is
    /// reached.
    pub(super) fn open(
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
    pub(super) fn open_id(
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
    pub(super) async fn rebuild(
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
        OpenedId { facts, sealed_by }: OpenedId,
        peer: LegacyClient,
        notifications: ClientNotifications,
        former: Option<Arc<Session>>,
    ) -> Arc<Session> {
        let end = peer.context.client.gone.clone();
        Arc::new(Session {
            mark: SessionMark::of(&id),
            id,
            principal: client.principal().clone(),
            facts,
            sealed_by,
            is_moved: AtomicBool::new(false),
            former,
            identity: Mutex::new(client.identity()),
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
    pub(super) fn count_external(
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
    pub(super) fn find(
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
        *session.identity.lock() = client.identity();
        Some(SessionGuard::new(session))
    }

    /// Ends a session for good. The end survives a restart once the future is complete without an
    /// error.
    pub(super) fn end(
        &self,
        session: &Session,
        max_age: Duration,
    ) -> impl Future<Output = Result<(), NotKept>> + use<> {
        let recorded = self.records.end(&session.place(max_age));
        self.drop_session(session);
        recorded
    }

    /// Records what the client has set in its session, for the process that rebuilds it.
    pub(super) fn record_settings(&self, session: &Session, max_age: Duration) {
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
    pub(super) fn end_unauthorized(&self) {
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
    pub(super) async fn sweep(
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
}

/// Returns a random id of a session that lives as long as its stream, or of a stream.
pub(super) fn new_id() -> Box<str> {
    secret::random_token()
}

fn longest_idle(sessions: &[Arc<Session>]) -> Result<usize, SessionLimit> {
    let idle = sessions.iter().enumerate().filter(|(_, session)| !session.is_in_use());
    let idle = idle.map(|(at, session)| (session.usage.lock().idle_since, at));
    idle.min().map(|(_, at)| at).ok_or(SessionLimit)
}

impl Session {
    /// Cancels the calls in progress and ends the resource subscriptions, even if one of the
    /// session's streams is not read any more.
    fn close(&self) {
        if !self.end.is_cancelled() {
            self.metrics.sessions.observe(self.opened_at.elapsed());
        }
        self.with_former().for_each(|session| session.end.cancel());
        self.peer.subscriptions.end();
    }

    /// Returns whether calls or streams of the session are open.
    fn is_in_use(&self) -> bool {
        self.with_former().any(|session| session.usage.lock().active > 0)
    }

    /// Returns whether the session is idle for too long, or too old.
    fn is_over(&self, lifetime: SessionLifetime) -> bool {
        !self.is_in_use()
            && (self.is_moved()
                || self.usage.lock().idle_since.elapsed() >= lifetime.idle
                || self.facts.is_older_than(lifetime.max_age, SystemTime::now()))
    }
}

impl SessionGuard {
    fn new(session: Arc<Session>) -> Self {
        session.usage.lock().active += 1;
        Self(session)
    }

    /// Returns a second guard of the session.
    pub(super) fn clone_guard(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }

    /// Replaces the standalone stream. The newest stream wins: the older one may belong to a
    /// connection that was lost without notice, and would block its client for minutes.
    /// Notifications that the older stream has sent are not repeated, and the others are not lost:
    /// the newer one waits until the older has ended and returned them.
    pub(super) async fn into_standalone(self, client: &ClientContext) -> StandaloneStream {
        let over = self.0.end.child_token();
        std::mem::replace(&mut *self.0.end_standalone.lock(), over.clone()).cancel();
        let mut notifications = Arc::clone(&self.0.notifications).lock_owned().await;
        notifications.switch_client(client);
        let _open = Gauge::enter(&self.0.metrics.streams);
        StandaloneStream { notifications, over, _open, in_use: self }
    }
}

impl std::ops::Deref for StandaloneStream {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.in_use
    }
}

impl std::ops::Deref for SessionGuard {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.0
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let mut usage = self.0.usage.lock();
        usage.active -= 1;
        usage.idle_since = Instant::now();
    }
}

/// Interval of the sweep for idle sessions.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
