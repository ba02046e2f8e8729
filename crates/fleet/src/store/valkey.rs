//! Store in Valkey or Redis, from version 6.2 on.
//!
//! All keys begin with `{<name of the fleet>}`, so that several fleets can share a store, and all
//! keys of one are in the same slot of a cluster. What reads and writes is one script, and
//! therefore atomic.
//!
//! Invariants: no call that a request waits for takes longer than `reply_timeout`, except those
//! whose caller watches the time itself; only the heartbeat opens a connection, which others use
//! once it has got a reply. A late reply ends nothing but the wait for it. After a call that
//! failed, or a heartbeat without a reply, all others fail at once until there is a new connection.
//! So no request waits for a store that is away.

mod claims;
mod leases;
mod limits;
mod replicas;
mod rights;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, FromRedisValue, RedisError, ScriptInvocation, cmd};
use tokio::time::timeout;

use crate::FleetSettings;
use crate::store::StoreError;
use crate::store::node::{StoreSettings, described};
use weir_base::tasks::sync::Mutex;

/// Client of the store.
pub(crate) struct ValkeyStore {
    settings: StoreSettings,
    /// Common beginning of all keys.
    prefix: String,
    /// Longest time that one call may take.
    reply_timeout: Duration,
    /// Current connection; `None` after a failure.
    current: Arc<Mutex<Option<StoreConnection>>>,
    /// Number of the process of the store that has replied last, as it calls itself.
    process: Mutex<String>,
}

/// Facts about a store for its operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreAbout {
    /// Version that it reports.
    pub version: String,
    /// Name of the eviction policy.
    pub eviction: String,
    /// True if the data survives a restart of the store.
    pub is_persistent: bool,
    /// True if it is a node of a cluster.
    pub is_cluster: bool,
}

/// Connection to the store.
#[derive(Clone)]
struct StoreConnection {
    handle: MultiplexedConnection,
    /// Tells it from others.
    identity: Arc<()>,
}

impl ValkeyStore {
    /// Creates the client of a replica. Requests wait for some of its calls, so they take no longer
    /// than the configuration says.
    pub(crate) fn of(settings: &FleetSettings) -> Self {
        Self::new(settings.store.clone(), &settings.name, settings.store.timeout)
    }

    pub(crate) fn new(settings: StoreSettings, fleet: &str, reply_timeout: Duration) -> Self {
        let prefix = format!("{{{fleet}}}");
        Self { settings, prefix, reply_timeout, current: Arc::default(), process: Mutex::default() }
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    fn settings_key(&self, session: &str) -> String {
        self.key(&format!("settings:{session}"))
    }

    /// Returns the keys of a table.
    fn keys_of(&self, table: &TableKeys) -> [String; 5] {
        table.map(|name| self.key(name))
    }

    /// Longest wait of a call that no request waits for. A store without a reply to a heartbeat by
    /// then is away.
    fn beat_timeout(&self) -> Duration {
        self.reply_timeout.max(BEAT_TIMEOUT)
    }

    /// Returns the current connection, or a new one, which others do not use yet.
    async fn connect(&self) -> Result<(StoreConnection, bool), StoreError> {
        if let Some(current) = self.current.lock().clone() {
            return Ok((current, false));
        }
        let handle = self.settings.open(&self.key("members")).await?;
        Ok((StoreConnection { handle, identity: Arc::default() }, true))
    }

    /// Waits for a reply on a connection, which is given up if the call fails. Then no further
    /// calls use it, but replies are still read.
    fn reply_on<T, C>(
        &self,
        connection: &StoreConnection,
        call: C,
    ) -> impl Future<Output = Result<T, StoreError>> + use<T, C>
    where
        C: Future<Output = Result<T, RedisError>>,
    {
        let (identity, current) = (Arc::clone(&connection.identity), Arc::clone(&self.current));
        async move {
            let reply = call.await.map_err(|error| error_of(&error));
            // The connection still works in a full store, and so does what needs no memory.
            if reply.as_ref().is_err_and(|error| *error != StoreError::Full) {
                give_up(&current, &identity);
            }
            reply
        }
    }

    /// Runs a script on a connection, as [`Self::reply_on`] does.
    fn run_on<T: FromRedisValue>(
        &self,
        connection: &StoreConnection,
        call: ScriptInvocation<'static>,
    ) -> impl Future<Output = Result<T, StoreError>> + use<T> {
        let mut handle = connection.handle.clone();
        self.reply_on(connection, async move { call.invoke_async(&mut handle).await })
    }

    /// Waits for a reply for some time.
    async fn in_time<T>(
        &self,
        wait: Duration,
        reply: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        timeout(wait, reply).await.unwrap_or(Err(StoreError::Late))
    }

    /// Sends a command on the current connection.
    async fn send<T, F>(
        &self,
        command: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let connection = self.current.lock().clone().ok_or(StoreError::Away)?;
        let reply = self.reply_on(&connection, command(connection.handle.clone()));
        self.in_time(self.reply_timeout, reply).await
    }

    async fn run<T: FromRedisValue>(
        &self,
        invocation: &ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        self.send(async |mut connection| invocation.invoke_async(&mut connection).await).await
    }

    /// Runs a script whose caller decides when the reply is late, and reads it nevertheless.
    fn unbounded<T: FromRedisValue + Send + 'static>(
        &self,
        invocation: ScriptInvocation<'static>,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let Some(connection) = self.current.lock().clone() else {
            return async { Err(StoreError::Away) }.boxed();
        };
        let reply = self.run_on(&connection, invocation);
        async move {
            let lost = Err(StoreError::Lost("there is no reply".to_owned()));
            timeout(REPLY_LIFE, reply).await.unwrap_or(lost)
        }
        .boxed()
    }

    /// Returns facts about the store for its operator. Connects first, if there is no connection.
    pub(crate) async fn about(&self) -> Result<StoreAbout, StoreError> {
        let (connection, _) = self.connect().await?;
        let mut handle = connection.handle.clone();
        let reply = self.reply_on(&connection, async move {
            cmd("INFO").query_async::<String>(&mut handle).await
        });
        let info = self.in_time(self.reply_timeout, reply).await?;
        let value = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim().to_owned())
        };
        let is = |name: &str, expected: &str| value(name).is_some_and(|it| it == expected);
        let is_unusable = |what: &str| Err(StoreError::Failed(what.to_owned()));
        if is("redis_mode", "sentinel") || is("valkey_mode", "sentinel") {
            return is_unusable("it is a sentinel: name its primary with fleet.store.sentinel");
        }
        if is("role", "slave") {
            return is_unusable(
                "it is a replica, which takes no writes: name the primary in fleet.store.url, or \
                 sentinels with fleet.store.sentinel",
            );
        }
        let version = value("valkey_version").or_else(|| value("redis_version"));
        Ok(StoreAbout {
            version: version.unwrap_or_default(),
            eviction: value("maxmemory_policy").unwrap_or_default(),
            is_persistent: is("aof_enabled", "1"),
            is_cluster: is("cluster_enabled", "1"),
        })
    }
}

/// Table in the store: its entries, their numbers, their expiries, the number that was given last,
/// and the sum with the last number and the count that it belongs to. Replicas of version 0.1.0 do
/// not know the sum: then it belongs to another number or count.
type TableKeys = [&'static str; 5];

/// Milliseconds of a time to live, which must not be zero.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).clamp(1, MAX_MILLIS)
}

/// Gives a connection up, if it is still the current one.
fn give_up(current: &Mutex<Option<StoreConnection>>, identity: &Arc<()>) {
    current.lock().take_if(|connection| Arc::ptr_eq(&connection.identity, identity));
}

fn error_of(error: &RedisError) -> StoreError {
    if is_out_of_memory(error) {
        return StoreError::Full;
    }
    if let Some(commands) = rights::forbidden_by(error) {
        return StoreError::Forbidden(commands);
    }
    match error.kind() {
        ErrorKind::Io => StoreError::Lost(described(error)),
        _ => StoreError::Failed(described(error)),
    }
}

/// Returns whether the store has refused a write because its memory is full.
fn is_out_of_memory(error: &RedisError) -> bool {
    // Up to Redis 6.2, an error of a script has a code of its own.
    error.code() == Some("OOM") || error.detail().is_some_and(|it| it.contains("-OOM "))
}

/// Shortest wait for the reply to a heartbeat. A reply that is late for a request does not mean
/// that the store is away, and records must follow each other within [`MAX_GAP`].
const BEAT_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest time for which a late reply is waited for: a store that stands still may go on.
const REPLY_LIFE: Duration = Duration::from_secs(60);
/// Claims of sessions.
const CLAIMS: TableKeys =
    ["claims", "claims-by-number", "claims-until", "last-claim", "claims-sum"];
/// Blocks of ended sessions.
const ENDED: TableKeys = ["ended", "ended-by-number", "ended-until", "last-ended", "ended-sum"];
/// Longest time to live: numbers in Lua are exact up to 2^53.
const MAX_MILLIS: u64 = 1 << 52;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;
    use crate::store::node::{StoreKind, StoreLogin};

    /// Asks a store that replies after some time, or never, and waits as the settings say.
    async fn ask(waiting: Duration, reply_after: Option<Duration>) -> Result<(), StoreError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let mut settings = FleetSettings::of_replica("a");
        settings.store = StoreSettings {
            urls: vec![format!("redis://{address}")],
            kind: StoreKind::Server,
            login: StoreLogin::default(),
            ca: None,
            timeout: waiting,
        };
        let store = ValkeyStore::of(&settings);
        let replying = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut command = [0; 64];
            let read = stream.read(&mut command).await.expect("a command");
            assert!(read > 0, "the connection has ended");
            match reply_after {
                None => std::future::pending().await,
                Some(time) => sleep(time).await,
            }
            stream.write_all(b"$11\r\naof_enabled\r\n").await.expect("sent");
            std::future::pending().await
        };
        tokio::select! {
            asked = store.about() => asked.map(|_| ()),
            () = replying => unreachable!("it is pending"),
        }
    }

    #[tokio::test]
    async fn a_reply_is_waited_for_as_long_as_the_settings_say() {
        let (short, later, long) = (10, 300, 20_000);
        let [short, later, long] = [short, later, long].map(Duration::from_millis);
        let is_late = timeout(long, ask(short, None)).await.expect("it gives up");
        assert!(is_late.is_err());
        assert_eq!(ask(long, Some(later)).await, Ok(()));
    }
}
