//! Legacy sessions over HTTP: ids, owners and lifetimes.
//!
//! Invariants: an id has 256 random bits and is valid only with the credentials of the principal
//! that opened it; an unknown id, an ended one and one of another principal look the same. A
//! principal has a bounded number of sessions; the one that has been idle longest is evicted first,
//! and a session with an open call or stream is not idle. The end of a session cancels its calls
//! and closes its stream. A session of the HTTP+SSE transport, which lives as long as its stream,
//! counts through a [`SessionPermit`].

pub(crate) mod event_store;

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use hyper::header::HeaderName;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::legacy::LegacyClient;
use crate::audit::SessionMark;
use crate::downstream::session::event_store::EventStore;
use crate::gateway::{ClientContext, ClientIdentity, ClientNotifications, GatewayMetrics};
use crate::metrics::{Gauge, GaugeGuard};
use crate::policy::Principal;
use crate::quota::{PerPrincipal, QuotaPermit};
use crate::secret;
use crate::sync::Mutex;

/// Header with the session id.
pub(super) const HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// Table of all sessions.
pub(super) struct Sessions {
    by_id: DashMap<Box<str>, Arc<Session>>,
    by_principal: DashMap<Principal, Vec<Arc<Session>>>,
    /// Sessions that are stored elsewhere.
    external: PerPrincipal<Principal>,
    metrics: Arc<GatewayMetrics>,
}

/// One session.
pub(super) struct Session {
    pub(super) id: Box<str>,
    /// Session mark for the audit log.
    pub(super) mark: SessionMark,
    principal: Principal,
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

/// The principal has reached its limit, and all of its sessions are in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SessionLimit;

impl Sessions {
    /// Creates an empty table, whose sessions and streams are counted in these metrics.
    pub(super) fn new(metrics: Arc<GatewayMetrics>) -> Self {
        Self {
            by_id: DashMap::new(),
            by_principal: DashMap::new(),
            external: PerPrincipal::default(),
            metrics,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Opens a session; evicts the principal's longest idle one if the `limit` per client is
    /// reached.
    pub(super) fn open(
        &self,
        client: &ClientContext,
        peer: LegacyClient,
        limit: usize,
    ) -> Result<Arc<Session>, SessionLimit> {
        let (id, principal) = (new_id(), client.principal());
        let (end, notifications) = (peer.context.client.gone.clone(), peer.notifications(client));
        let session = Arc::new(Session {
            mark: SessionMark::of(&id),
            id: id.clone(),
            principal: principal.clone(),
            identity: Mutex::new(client.identity()),
            peer,
            event_store: Arc::default(),
            end_standalone: Mutex::new(end.child_token()),
            end,
            notifications: Arc::new(tokio::sync::Mutex::new(notifications)),
            usage: Mutex::new(SessionUsage { active: 0, idle_since: Instant::now() }),
            opened_at: Instant::now(),
            metrics: Arc::clone(&self.metrics),
        });
        self.change_owned(principal, |owned| {
            self.evict_if_full(principal, owned, limit)?;
            owned.push(Arc::clone(&session));
            self.by_id.insert(id, Arc::clone(&session));
            Ok(session)
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
            evicted.close();
        }
        Ok(())
    }

    /// Finds a principal's session and marks it as in use; ends one that has been idle for `ttl`.
    pub(super) fn find(
        &self,
        client: &ClientContext,
        id: &str,
        ttl: Duration,
    ) -> Option<SessionGuard> {
        let session = Arc::clone(&*self.by_id.get(id)?);
        if session.principal != *client.principal() {
            return None;
        }
        if session.is_idle_for(ttl) {
            self.end(&session);
            return None;
        }
        *session.identity.lock() = client.identity();
        Some(SessionGuard::new(session))
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &Session) {
        self.forget(session);
        session.close();
    }

    /// Ends each session for which the client's credentials are no longer valid, but not the calls
    /// in progress in it.
    pub(super) fn end_unauthorized(&self) {
        // Collected first: ending takes locks that the iteration holds.
        let all: Vec<_> = self.by_id.iter().map(|entry| Arc::clone(entry.value())).collect();
        for session in all.iter().filter(|session| !session.identity.lock().is_valid()) {
            self.forget(session);
            session.end_standalone.lock().cancel();
            session.peer.subscriptions.end();
        }
    }

    fn forget(&self, session: &Session) {
        self.by_id.remove(&session.id);
        let is_other = |other: &Arc<Session>| other.id != session.id;
        self.change_owned(&session.principal, |owned| owned.retain(is_other));
    }

    /// Ends sessions that have been idle for the current `ttl` periodically, until `stop` fires.
    pub(super) async fn sweep(&self, ttl: impl Fn() -> Duration, stop: &CancellationToken) {
        let pause = || tokio::time::sleep(ttl().min(SWEEP_EVERY));
        while stop.run_until_cancelled(pause()).await.is_some() {
            // Collected first: ending takes locks that the iteration holds.
            let idle: Vec<_> = self.by_id.iter().map(|entry| Arc::clone(entry.value())).collect();
            for session in idle.iter().filter(|session| session.is_idle_for(ttl())) {
                self.end(session);
            }
            idle.iter().for_each(|session| session.event_store.expire());
        }
    }
}

/// Returns a random session id.
pub(super) fn new_id() -> Box<str> {
    secret::random_token()
}

fn longest_idle(sessions: &[Arc<Session>]) -> Result<usize, SessionLimit> {
    let idle = sessions.iter().enumerate().filter_map(|(at, session)| {
        let usage = session.usage.lock();
        (usage.active == 0).then_some((usage.idle_since, at))
    });
    idle.min().map(|(_, at)| at).ok_or(SessionLimit)
}

impl Session {
    /// Cancels the calls in progress and ends the resource subscriptions, even if one of the
    /// session's streams is not read any more.
    fn close(&self) {
        if !self.end.is_cancelled() {
            self.metrics.sessions.observe(self.opened_at.elapsed());
        }
        self.end.cancel();
        self.peer.subscriptions.end();
    }

    fn is_idle_for(&self, time: Duration) -> bool {
        let usage = self.usage.lock();
        usage.active == 0 && usage.idle_since.elapsed() >= time
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
