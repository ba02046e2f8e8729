//! Additional sessions with an upstream, beside the supervisor's main connection.
//!
//! In the legacy era a server learns its client's capabilities when the session is opened.
//! Therefore calls use a session that was opened with the capabilities of their client: over
//! Streamable HTTP clients with equal capabilities share one; where each client has its own
//! connection the session is opened for that client, and ends with it. Sessions are opened when
//! they are first needed.
//!
//! Invariants: their number is bounded, in all and for one principal; idle ones are closed;
//! concurrent calls that need the same session open it once, and a call that stops waiting ends the
//! attempt. A session that cannot be opened, or does not last, is tried again after growing pauses,
//! in which calls fail at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::health::keyed_backoff::KeyedBackoff;
use crate::session::connection::{McpSession, UpstreamConnection};
use crate::session::connector::{ConnectRequest, Connector};
use crate::session::session_check::GiveUpBackoff;
use crate::subscriptions::SubscriptionRegistry;
use crate::transport::dispatcher::ConnectionClients;
use crate::{Error, ListChangeCounts, Settings, Sharing, UpstreamSource, declared_capabilities};
use weir_base::json::Object;
use weir_base::tasks::fairness::promptly;
use weir_base::tasks::sync::Mutex;
use weir_mcp::call::{CallContext, QuotaOwner};
use weir_mcp::revision::Era;

/// Log message for the client of a session that was rebuilt.
const BEGUN_ANEW: &str = "this server was started anew for the session, and does not remember what \
                          was before";
/// Maximum number of additional sessions.
const MAX_ADDITIONAL_SESSIONS: usize = 64;
/// Maximum number of sessions per client.
const MAX_SESSIONS_PER_CLIENT: usize = 16;
/// Idle timeout of a shared session.
const SHARED_IDLE: Duration = Duration::from_mins(15);
/// Idle timeout of a client's own session; the client's downstream session ends no sooner.
const OWN_IDLE: Duration = Duration::from_mins(30);
/// Time for which a server that refused a further session gets no request for one.
const REFUSAL_PAUSE: Duration = Duration::from_mins(1);
/// A client's own session that lasted this long resets the back-off.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Pool of the additional sessions of one upstream.
pub(crate) struct SessionPool {
    settings: Arc<Settings>,
    connector: Arc<Connector>,
    table: Mutex<HashMap<SessionKey, Arc<SessionSlot>>>,
    /// Back-off of clients' own sessions that do not last, and (without a client) of those that
    /// cannot be opened for any client.
    backoff: KeyedBackoff<SessionKey>,
    supervisors: TaskTracker,
    stop: CancellationToken,
    /// Receives list changes. Some servers send them only on the stream of the call that caused
    /// them.
    changes: watch::Sender<ListChangeCounts>,
}

/// Key of a session: calls with equal keys share it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SessionKey {
    /// `None`: any client that declared the same capabilities.
    client: Option<Arc<str>>,
    declared: Bytes,
}

/// Slot of one session, and its use.
struct SessionSlot {
    /// Principal that the slot counts against.
    owner: Arc<str>,
    usage: Mutex<SlotUsage>,
    session: tokio::sync::Mutex<Option<PooledSession>>,
    /// Fires when the slot is needed for another session.
    evicted: CancellationToken,
    give_ups: GiveUpBackoff,
}

struct SlotUsage {
    uses: usize,
    /// Number of its connections that have not ended yet.
    connections: usize,
    idle_since: Instant,
    refused: Option<SessionRefusal>,
}

/// Time at which a further session was refused, and the epoch of the main connection then.
#[derive(Clone, Copy)]
struct SessionRefusal {
    at: Instant,
    epoch: u64,
}

/// Open session of a slot.
#[derive(Clone)]
struct PooledSession {
    connection: Arc<McpSession>,
    /// Fires when a call has found that the session does not work any more.
    broken: CancellationToken,
}

/// Lease of a session, which is not closed for idleness until the lease is dropped.
pub(crate) struct SessionLease {
    session: PooledSession,
    _slot_guard: SlotGuard,
}

/// Counts one use of a slot. When the last one of an empty slot is dropped, the slot leaves the
/// table.
struct SlotGuard {
    pool: Arc<SessionPool>,
    key: SessionKey,
    slot: Arc<SessionSlot>,
}

impl SessionPool {
    pub(crate) fn new(
        settings: Arc<Settings>,
        connector: Arc<Connector>,
        changes: watch::Sender<ListChangeCounts>,
    ) -> Arc<Self> {
        let (supervisors, stop) = (TaskTracker::new(), CancellationToken::new());
        let (table, backoff) = (Mutex::default(), KeyedBackoff::new(settings.retry));
        Arc::new(Self { settings, connector, table, backoff, supervisors, stop, changes })
    }

    /// Returns the session for this caller; `None` where `main`, the supervisor's connection, is to
    /// be used. A call to an upstream with an account uses `main` only if that is its own session:
    /// no call goes over a connection that was opened for others.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        main: &McpSession,
        caller: &CallContext,
    ) -> Result<Option<SessionLease>, Error> {
        let Some(key) = self.key(main, caller) else { return Ok(None) };
        let is_own = key.client.is_some();
        let has_account =
            matches!(self.settings.source, UpstreamSource::Http { account: Some(_), .. });
        // `close` also waits for a session that is being opened here.
        let _tracked = self.supervisors.token();
        let slot_guard = match self.acquire_slot(&key, &caller.client.owner) {
            Some(slot_guard) => slot_guard,
            None if is_own || has_account => {
                return Err(Error::Busy { retry_after: Duration::from_secs(1) });
            }
            None => return Ok(None),
        };
        let slot = Arc::clone(&slot_guard.slot);
        let mut current = slot.session.lock().await;
        if let Some(session) = &*current
            && !session.broken.is_cancelled()
        {
            return Ok(Some(SessionLease { session: session.clone(), _slot_guard: slot_guard }));
        }
        // If a session cannot be opened, that holds for all clients with equal capabilities; if it
        // does not last, its client may be the cause.
        let shared_key = SessionKey { client: None, declared: key.declared.clone() };
        if is_own || has_account {
            let allowed = self.backoff.check(&shared_key).and_then(|()| self.backoff.check(&key));
            allowed.map_err(Error::Unavailable)?;
        }
        let epoch = main.about.epoch;
        let refused = slot.usage.lock().refused;
        if refused.is_some_and(|it| it.epoch == epoch && it.at.elapsed() < REFUSAL_PAUSE) {
            return Ok(None);
        }
        // Boxed, because it is rare and large and would be part of every call's future.
        let clients = match (is_own, caller.client.is_shared) {
            (false, _) => ConnectionClients::Many,
            (true, false) => ConnectionClients::Single,
            (true, true) => ConnectionClients::SamePrincipal,
        };
        match Box::pin(self.open(main, &key, &slot, clients)).await {
            Ok(connection) => {
                let session = PooledSession { connection, broken: CancellationToken::new() };
                {
                    let mut usage = slot.usage.lock();
                    usage.connections += 1;
                    usage.refused = None;
                }
                *current = Some(session.clone());
                drop(current);
                self.backoff.succeeded(&shared_key);
                if is_own && caller.client.is_rebuilt {
                    let text = format!("\"{}: {BEGUN_ANEW}\"", self.settings.name);
                    let log = Object::new().with("level", "\"warning\"").with("logger", "\"weir\"");
                    caller.notifications.log(&log.with("data", text));
                }
                let client_gone = match is_own {
                    true => caller.client.gone.clone(),
                    false => CancellationToken::new(),
                };
                let lease = SessionLease { session: session.clone(), _slot_guard: slot_guard };
                self.supervisors.spawn(Arc::clone(self).supervise(key, slot, session, client_gone));
                Ok(Some(lease))
            }
            Err(reason) if is_own || has_account => {
                self.backoff.failed(&shared_key, &reason);
                Err(Error::Unavailable(reason))
            }
            Err(reason) => {
                // Some servers support a single session only: then calls use that one.
                let upstream = &self.settings.name;
                tracing::debug!(%upstream, reason, "additional session refused");
                slot.usage.lock().refused = Some(SessionRefusal { at: Instant::now(), epoch });
                Ok(None)
            }
        }
    }

    /// Closes all sessions, and waits for that.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.supervisors.close();
        self.supervisors.wait().await;
    }

    fn key(&self, main: &McpSession, caller: &CallContext) -> Option<SessionKey> {
        let is_legacy = main.about.era() == Era::Legacy;
        let over_http = main.about.transport == "http";
        let client = match &self.settings.sharing {
            Sharing::Shared if is_legacy && over_http => None,
            // A shared stream cannot name the client of a server request, and a modern request
            // carries its client's capabilities: another connection would gain nothing.
            Sharing::Shared => return None,
            // Modern requests over HTTP are independent, so no connection belongs to a client. And
            // a single client has a modern child process to itself.
            Sharing::Client | Sharing::Sole(_) if over_http && !is_legacy => return None,
            Sharing::Sole(_) if !is_legacy => return None,
            Sharing::Client | Sharing::Sole(_) => Some(Arc::clone(caller.client.id())),
        };
        // A modern request itself declares its client's capabilities.
        let declared =
            if is_legacy { declared_capabilities(caller) } else { main.declared.clone() };
        let equals_main = declared == main.declared;
        let shares_main = !matches!(self.settings.sharing, Sharing::Client);
        (!equals_main || !shares_main).then_some(SessionKey { client, declared })
    }

    /// Acquires the slot of this key; `None` if the limit is reached and all slots are in use.
    fn acquire_slot(self: &Arc<Self>, key: &SessionKey, owner: &QuotaOwner) -> Option<SlotGuard> {
        let mut table = self.table.lock();
        let begin_use = |slot: Arc<SessionSlot>| {
            // Counted under the table's lock, so that the slot is not evicted as idle in between.
            slot.usage.lock().uses += 1;
            SlotGuard { pool: Arc::clone(self), key: key.clone(), slot }
        };
        if let Some(slot) = table.get(key) {
            return Some(begin_use(Arc::clone(slot)));
        }
        let owned = table.values().filter(|slot| slot.owner == owner.name).count();
        if owned >= owner.share(MAX_SESSIONS_PER_CLIENT) {
            Self::evict_idle(&mut table, |slot| slot.owner == owner.name)?;
        } else if table.len() >= MAX_ADDITIONAL_SESSIONS {
            Self::evict_idle(&mut table, |_| true)?;
        }
        let slot = Arc::new(SessionSlot {
            owner: Arc::clone(&owner.name),
            usage: Mutex::new(SlotUsage {
                uses: 0,
                connections: 0,
                idle_since: Instant::now(),
                refused: None,
            }),
            session: tokio::sync::Mutex::new(None),
            evicted: self.stop.child_token(),
            give_ups: Arc::new(KeyedBackoff::new(self.settings.retry)),
        });
        table.insert(key.clone(), Arc::clone(&slot));
        Some(begin_use(slot))
    }

    /// Evicts the slot that has been idle for longest among these; `None` if all are in use.
    fn evict_idle(
        table: &mut HashMap<SessionKey, Arc<SessionSlot>>,
        may_evict: impl Fn(&SessionSlot) -> bool,
    ) -> Option<()> {
        let idle = table.iter().filter_map(|(key, slot)| {
            let usage = slot.usage.lock();
            // A slot that only records a refusal is evicted first.
            let rank = (usage.connections > 0, usage.idle_since);
            (usage.uses == 0 && may_evict(slot)).then_some((rank, key))
        });
        let longest_idle = idle.min_by_key(|(rank, _)| *rank).map(|(_, key)| key.clone())?;
        if let Some(slot) = table.remove(&longest_idle) {
            slot.evicted.cancel();
        }
        Some(())
    }

    /// Removes a slot from the table.
    fn remove(
        table: &mut HashMap<SessionKey, Arc<SessionSlot>>,
        key: &SessionKey,
        slot: &Arc<SessionSlot>,
    ) {
        if table.get(key).is_some_and(|other| Arc::ptr_eq(other, slot)) {
            table.remove(key);
        }
    }

    async fn open(
        &self,
        main: &McpSession,
        key: &SessionKey,
        slot: &SessionSlot,
        clients: ConnectionClients,
    ) -> Result<Arc<McpSession>, String> {
        let request = ConnectRequest {
            epoch: main.about.epoch,
            detected: Some(Arc::clone(&main.about)),
            declared: Some(key.declared.clone()),
            clients,
            changes: self.changes.clone(),
            // Resource updates arrive on the main connection, which subscribes to them.
            registry: SubscriptionRegistry::new(self.settings.name.clone()),
            give_ups: Arc::clone(&slot.give_ups),
        };
        let opening = self.connector.open(&request).with_cancellation_token(&self.stop).await;
        match opening {
            Some(Ok(connection)) => Ok(connection),
            Some(Err(failed)) => {
                if let Some(transport) = failed.transport {
                    transport.close().await;
                }
                Err(failed.reason)
            }
            None => Err("it was stopped".into()),
        }
    }

    /// Supervises a session until it has ended, or is not needed any more, and closes it.
    async fn supervise(
        self: Arc<Self>,
        key: SessionKey,
        slot: Arc<SessionSlot>,
        session: PooledSession,
        client_gone: CancellationToken,
    ) {
        let limit = if key.client.is_some() { OWN_IDLE } else { SHARED_IDLE };
        // A server may send requests on the session's standalone stream, and would wait for ever if
        // that were not open.
        let no_subscribers = SubscriptionRegistry::new(self.settings.name.clone());
        let mut listen = Box::pin(Arc::clone(&session.connection).listen(&no_subscribers));
        let (mut listen_end, opened) = (None, Instant::now());
        let mut idle_after = opened;
        let is_over = loop {
            if let Some(Some(_)) = listen_end {
                break true;
            }
            let idle_until = slot.usage.lock().idle_since.max(idle_after) + limit;
            tokio::select! {
                biased;
                () = slot.evicted.cancelled() => break false,
                () = client_gone.cancelled() => break false,
                () = session.broken.cancelled() => break true,
                reason = session.connection.ended() => {
                    if opened.elapsed() < STABLE_AFTER {
                        self.backoff.failed(&key, &reason);
                    } else {
                        self.backoff.succeeded(&key);
                    }
                    break true;
                }
                over = &mut listen, if listen_end.is_none() => listen_end = Some(over),
                () = promptly(tokio::time::sleep_until(idle_until)) => {
                    let mut table = self.table.lock();
                    let mut usage = slot.usage.lock();
                    if usage.uses > 0 {
                        usage.idle_since = Instant::now();
                    } else if session.connection.dispatcher().has_tasks() {
                        // Its tasks end with it, so it does not count as idle; it may still be
                        // evicted for another session.
                        idle_after = Instant::now();
                    } else if usage.idle_since.elapsed() >= limit {
                        drop(usage);
                        Self::remove(&mut table, &key, &slot);
                        break false;
                    }
                }
            }
        };
        session.broken.cancel();
        {
            let mut table = self.table.lock();
            let mut usage = slot.usage.lock();
            usage.connections -= 1;
            let is_empty = usage.connections == 0 && usage.uses == 0;
            drop(usage);
            // A disconnected client does not return; other clients find their slot, and open
            // another session.
            if is_empty || !is_over {
                Self::remove(&mut table, &key, &slot);
            }
        }
        match is_over {
            true => session.connection.abandon().await,
            false => session.connection.close().await,
        }
    }
}

impl SessionLease {
    /// Connection of the session.
    pub(crate) fn connection(&self) -> UpstreamConnection {
        UpstreamConnection::Session(Arc::clone(&self.session.connection))
    }

    /// Marks the session as broken: the next call opens another one.
    pub(crate) fn invalidate(&self) {
        self.session.broken.cancel();
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let mut table = self.pool.table.lock();
        let mut usage = self.slot.usage.lock();
        usage.uses -= 1;
        usage.idle_since = Instant::now();
        let is_empty = usage.uses == 0 && usage.connections == 0 && usage.refused.is_none();
        drop(usage);
        if is_empty {
            SessionPool::remove(&mut table, &self.key, &self.slot);
        }
    }
}
