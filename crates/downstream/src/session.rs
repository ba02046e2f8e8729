//! Legacy sessions over HTTP: ids, owners and lifetimes.
//!
//! An id contains what is needed to rebuild its session, so the table has only the sessions that
//! are in use: a session that is idle, or that another process of the installation has opened, is
//! rebuilt for its next request. A session that another replica has taken over is given up: its
//! calls in progress are finished here, and nothing new begins.
//!
//! Invariants: an id cannot be forged and is valid only with the credentials of the principal that
//! opened it; an unknown id, an expired one, an ended one and one of another principal look the
//! same. The end of a session cancels its calls and closes its stream.

pub(crate) mod event_store;
mod opened_sessions;
mod record_file;
mod record_table;
pub(crate) mod session_id;
pub(crate) mod session_records;
mod sessions;
mod takeover_limit;

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use hyper::header::HeaderName;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::legacy::LegacyClient;
use crate::session::event_store::EventStore;
use crate::session::session_id::OpenedId;
pub(super) use sessions::{RebuiltSession, SessionPermit, Sessions};
use weir_access::policy::Principal;
use weir_base::metrics::{Gauge, GaugeGuard};
use weir_base::secrets::secret;
use weir_base::tasks::sync::Mutex;
use weir_fleet::SessionIdentity;
use weir_gateway::{ClientContext, ClientIdentity, ClientNotifications, GatewayMetrics};
use weir_record::audit::SessionMark;

/// Header with the session id.
pub(super) const HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// One session.
pub(super) struct Session {
    pub(super) id: Box<str>,
    /// Session mark for the audit log.
    pub(super) mark: SessionMark,
    principal: Principal,
    /// Contents of the id.
    opened: OpenedId,
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
                || self.opened.facts.is_older_than(lifetime.max_age, SystemTime::now()))
    }

    /// Returns the session as its fleet places it.
    fn place(&self, max_age: Duration) -> SessionIdentity {
        self.opened.placed(&self.id, max_age)
    }

    /// Returns the session, and what it was before this replica gave it up.
    fn with_former(&self) -> impl Iterator<Item = &Self> {
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

/// Returns a random id of a session that lives as long as its stream, or of a stream.
pub(super) fn new_id() -> Box<str> {
    secret::random_token()
}
