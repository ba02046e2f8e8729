//! Legacy sessions over HTTP: who is in which, and until when.
//!
//! Promises: an id is 256 random bits, good only with the credentials of the principal that opened it;
//! unknown, ended and somebody else's look the same. A principal has a bounded number of them, of which
//! the one that has been idle longest goes first; one with a call or a stream open is not idle. The end
//! of a session cancels its calls and closes its stream. A session of the HTTP+SSE pair, whose life is its
//! stream's, has a [`Seat`] among them.
//!
//! Knows nothing of: HTTP, and what is said in a session.

pub(crate) mod event_store;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::in_flight::Calls;
use super::legacy::Peer;
use crate::audit::SessionMark;
use crate::downstream::session::event_store::Tracks;
use crate::gateway::{Guest, Listen, Standing};
use crate::metrics::{Gauge, Histogram, Present};
use crate::policy::Principal;
use crate::secret;

/// The header that names a session.
pub(super) const HEADER: &str = "mcp-session-id";

/// All sessions.
pub(super) struct Sessions {
    by_id: DashMap<Box<str>, Arc<Session>>,
    by_principal: Arc<DashMap<Principal, Own>>,
    /// In milliseconds.
    ttl: AtomicU64,
    /// How many a client may have.
    limit: AtomicUsize,
    /// How long sessions last.
    lives: Arc<Histogram>,
    /// The primary streams, among others.
    streams: Arc<Gauge>,
}

/// What a principal has.
#[derive(Default)]
struct Own {
    sessions: Vec<Arc<Session>>,
    seats: usize,
}

/// One session.
pub(super) struct Session {
    pub(super) id: Box<str>,
    /// What the audit log tells of it.
    pub(super) mark: SessionMark,
    principal: Principal,
    /// With what it was last used.
    standing: Mutex<Standing>,
    /// Its client.
    pub(super) peer: Peer,
    /// Its open requests.
    pub(super) calls: Arc<Calls>,
    /// Its event streams, where they can be taken up again.
    pub(super) tracks: Arc<Tracks>,
    end: CancellationToken,
    /// What the client has been told of changes; whoever holds it is the primary stream.
    listen: Arc<tokio::sync::Mutex<Listen>>,
    /// Ends the stream that is primary now.
    replaced: Mutex<CancellationToken>,
    usage: Mutex<Usage>,
    begun: Instant,
    lives: Arc<Histogram>,
    streams: Arc<Gauge>,
}

#[derive(Debug)]
struct Usage {
    /// Requests and streams that are open.
    active: usize,
    idle_since: Instant,
}

/// Holds a session open while something runs in it.
pub(super) struct InUse(Arc<Session>);

/// The primary stream of a session: the only one that changes go out on.
pub(super) struct Primary {
    pub(super) listen: OwnedMutexGuard<Listen>,
    /// Fires when a newer stream takes over or the session ends.
    pub(super) over: CancellationToken,
    _open: Present,
    in_use: InUse,
}

/// A place among the sessions of a principal, for one that is kept elsewhere; it returns when dropped.
pub(super) struct Seat {
    by_principal: Arc<DashMap<Principal, Own>>,
    principal: Principal,
}

/// Every session of this principal is busy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl Sessions {
    pub(super) fn new(ttl: Duration, limit: usize) -> Self {
        let sessions = Self {
            by_id: DashMap::new(),
            by_principal: Arc::default(),
            ttl: 0.into(),
            limit: limit.into(),
            lives: Arc::default(),
            streams: Arc::default(),
        };
        sessions.keep_for(ttl);
        sessions
    }

    /// The same; there is counted how long they last, and how many primary streams are open.
    pub(super) fn counted(self, lives: &Arc<Histogram>, streams: &Arc<Gauge>) -> Self {
        Self { lives: Arc::clone(lives), streams: Arc::clone(streams), ..self }
    }

    /// How long a session may be idle from now on.
    pub(super) fn keep_for(&self, ttl: Duration) {
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.ttl.store(millis, Ordering::Relaxed);
    }

    /// How many a client may have from now on. Who has more keeps them.
    pub(super) fn limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl.load(Ordering::Relaxed))
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Opens a session, and ends the principal's longest idle one if it has too many.
    pub(super) fn open(
        &self,
        guest: &Guest,
        peer: Peer,
        listen: Listen,
    ) -> Result<Arc<Session>, TooMany> {
        let (id, principal) = (new_id(), guest.principal());
        let end = peer.client.gone.clone();
        let session = Arc::new(Session {
            mark: SessionMark::of(&id),
            id: id.clone(),
            principal: principal.clone(),
            standing: Mutex::new(guest.standing()),
            peer,
            calls: Calls::new(end.clone()),
            tracks: Arc::default(),
            replaced: Mutex::new(end.child_token()),
            end,
            listen: Arc::new(tokio::sync::Mutex::new(listen)),
            usage: Mutex::new(Usage { active: 0, idle_since: Instant::now() }),
            begun: Instant::now(),
            lives: Arc::clone(&self.lives),
            streams: Arc::clone(&self.streams),
        });
        let mut own = self.by_principal.entry(principal.clone()).or_default();
        self.make_room(principal, &mut own)?;
        own.sessions.push(Arc::clone(&session));
        self.by_id.insert(id, Arc::clone(&session));
        Ok(session)
    }

    /// Takes a place for a session that is never idle, and ends the longest idle one if there are too
    /// many.
    pub(super) fn seat(&self, principal: &Principal) -> Result<Seat, TooMany> {
        let mut own = self.by_principal.entry(principal.clone()).or_default();
        self.make_room(principal, &mut own)?;
        own.seats += 1;
        Ok(Seat { by_principal: Arc::clone(&self.by_principal), principal: principal.clone() })
    }

    fn make_room(&self, principal: &Principal, own: &mut Own) -> Result<(), TooMany> {
        if own.sessions.len() + own.seats >= principal.share(self.limit.load(Ordering::Relaxed)) {
            let evicted = own.sessions.swap_remove(longest_idle(&own.sessions)?);
            self.by_id.remove(&evicted.id);
            evicted.close();
        }
        Ok(())
    }

    /// Finds a principal's session and keeps it from being idle.
    pub(super) fn find(&self, guest: &Guest, id: &str) -> Option<InUse> {
        let session = Arc::clone(&*self.by_id.get(id)?);
        if session.principal != *guest.principal() {
            return None;
        }
        if session.is_idle_for(self.ttl()) {
            self.end(&session);
            return None;
        }
        *session.standing() = guest.standing();
        Some(InUse::new(session))
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &Session) {
        self.forget(session);
        session.close();
    }

    /// Ends the sessions of those who would not be let in any more, but for the calls that are under way in them.
    pub(super) fn retire_unwelcome(&self) {
        // Collected first: ending takes locks that the iteration holds.
        let all: Vec<_> = self.by_id.iter().map(|entry| Arc::clone(entry.value())).collect();
        for session in all.iter().filter(|session| !session.standing().is_good()) {
            self.forget(session);
            session.replaced().cancel();
            session.peer.subscriptions.end();
        }
    }

    fn forget(&self, session: &Session) {
        self.by_id.remove(&session.id);
        if let Some(mut own) = self.by_principal.get_mut(&session.principal) {
            own.sessions.retain(|other| other.id != session.id);
        }
        self.by_principal.remove_if(&session.principal, |_, own| own.is_empty());
    }

    /// Ends sessions that nobody came back to. Ends itself only when `stop` fires.
    pub(super) async fn sweep(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.ttl().min(SWEEP_EVERY)) => {}
            }
            // Collected first: ending takes locks that the iteration holds.
            let idle: Vec<_> = self.by_id.iter().map(|entry| Arc::clone(entry.value())).collect();
            for session in idle.iter().filter(|session| session.is_idle_for(self.ttl())) {
                self.end(session);
            }
            idle.iter().for_each(|session| session.tracks.expire());
        }
    }
}

/// An id that nobody can guess.
pub(super) fn new_id() -> Box<str> {
    secret::unguessable()
}

fn longest_idle(sessions: &[Arc<Session>]) -> Result<usize, TooMany> {
    let idle = sessions.iter().enumerate().filter_map(|(at, session)| {
        let usage = session.usage();
        (usage.active == 0).then_some((usage.idle_since, at))
    });
    idle.min().map(|(_, at)| at).ok_or(TooMany)
}

impl Own {
    fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.seats == 0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(mut own) = self.by_principal.get_mut(&self.principal) {
            own.seats -= 1;
        }
        self.by_principal.remove_if(&self.principal, |_, own| own.is_empty());
    }
}

impl Session {
    /// Cancels what is under way, and lets go of what the client has subscribed to even if a stream of it is
    /// not read any more.
    fn close(&self) {
        if !self.end.is_cancelled() {
            self.lives.observe(self.begun.elapsed());
        }
        self.end.cancel();
        self.peer.subscriptions.end();
    }

    fn is_idle_for(&self, time: Duration) -> bool {
        let usage = self.usage();
        usage.active == 0 && usage.idle_since.elapsed() >= time
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replaced(&self) -> MutexGuard<'_, CancellationToken> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InUse {
    fn new(session: Arc<Session>) -> Self {
        session.usage().active += 1;
        Self(session)
    }

    /// The same session, in use once more.
    pub(super) fn again(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }

    /// Takes over as the primary stream. The newest stream wins: the older one may belong to a
    /// connection that is gone without anybody having noticed, and would hold its client off for
    /// minutes. What the older one has told is not told again, and what it has not told is not lost.
    pub(super) async fn become_primary(self, guest: &Guest) -> Primary {
        let over = self.0.end.child_token();
        std::mem::replace(&mut *self.0.replaced(), over.clone()).cancel();
        let mut listen = Arc::clone(&self.0.listen).lock_owned().await;
        listen.goes_on_as(guest);
        let _open = Gauge::enter(&self.0.streams);
        Primary { listen, over, _open, in_use: self }
    }
}

impl std::ops::Deref for Primary {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.in_use
    }
}

impl std::ops::Deref for InUse {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut usage = self.0.usage();
        usage.active -= 1;
        usage.idle_since = Instant::now();
    }
}

/// How often idle sessions are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
