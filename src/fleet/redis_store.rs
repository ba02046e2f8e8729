//! Store in Valkey or Redis, from version 6.2 on.
//!
//! All keys begin with `{<name of the fleet>}`, so that several fleets can share a store, and all
//! keys of one are in the same slot of a cluster. Each operation is one script, and therefore
//! atomic.
//!
//! Invariants: no call takes longer than `reply_timeout`, except the first one on a new connection,
//! which only the heartbeat opens; after a call that failed, all others fail at once until the
//! heartbeat has a new connection. So no request waits for a store that is away.

mod lease;
mod tables;

use std::sync::LazyLock;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError, Script, ScriptInvocation, cmd};
use tokio::time::timeout;

use super::store::{
    ClaimReply, ClaimRequest, Heartbeat, LeaseReply, LeaseRequest, Roster, SharedAdmission,
    SharedCharge, Store, StoreAbout, StoreError, StoredEntry,
};
use super::store_node::{StoreSettings, described};
use crate::ended_sessions::EndedBlock;
use crate::rate_limit::RequestRate;
use crate::sync::Mutex;

/// Connection to the store.
pub(super) struct RedisStore {
    settings: StoreSettings,
    /// Common beginning of all keys.
    prefix: String,
    /// Longest time that one call may take.
    reply_timeout: Duration,
    /// Current connection; `None` after a failure.
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl RedisStore {
    pub(super) fn new(settings: StoreSettings, fleet: &str, reply_timeout: Duration) -> Self {
        let prefix = format!("{{{fleet}}}");
        Self { settings, prefix, reply_timeout, connection: Mutex::default() }
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    /// Opens a connection, if there is none. Returns whether it is new.
    async fn connect(&self) -> Result<bool, StoreError> {
        if self.connection.lock().is_some() {
            return Ok(false);
        }
        let opened = self.settings.open(&self.key("members"), self.reply_timeout).await?;
        *self.connection.lock() = Some(opened);
        Ok(true)
    }

    /// Sends a command on the current connection, which is given up after a failure.
    async fn send<T, F>(
        &self,
        command: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let connection = self.connection.lock().clone().ok_or(StoreError::Away)?;
        let sent = match timeout(self.reply_timeout, command(connection)).await {
            Err(_) => Err(StoreError::Late),
            // The connection still works, and so does what needs no memory.
            Ok(Err(error)) if is_out_of_memory(&error) => Err(StoreError::Full),
            Ok(replied) => replied.map_err(|error| StoreError::Failed(described(&error))),
        };
        if matches!(sent, Err(StoreError::Late | StoreError::Failed(_))) {
            *self.connection.lock() = None;
        }
        sent
    }

    async fn run<T: FromRedisValue>(
        &self,
        invocation: &ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        self.send(async |mut connection| invocation.invoke_async(&mut connection).await).await
    }

    async fn do_charge(
        &self,
        member: String,
        charges: Vec<SharedCharge>,
    ) -> Result<SharedAdmission, StoreError> {
        let mut call = CHARGE.key(self.key("members-until"));
        call.arg(member).arg(millis(SLOTS_LIFE));
        for charge in &charges {
            call.key(self.key(&format!("rate:{}", charge.bucket)));
            call.key(self.key(&format!("slots:{}", charge.bucket)));
            let (interval, tolerance) = charge.rate.map_or((0, 0), RequestRate::to_micros);
            let (max, here) = charge.slots.unwrap_or_default();
            call.arg(interval).arg(tolerance).arg(max).arg(here);
        }
        let (index, wait): (usize, u64) = self.run(&call).await?;
        Ok(match index.checked_sub(1) {
            None => SharedAdmission::Admitted,
            Some(index) => SharedAdmission::Refused(index, Duration::from_micros(wait)),
        })
    }

    async fn do_put_slots(
        &self,
        member: String,
        slots: Vec<(String, usize)>,
    ) -> Result<(), StoreError> {
        for some in slots.chunks(MAX_SLOTS_AT_ONCE) {
            let mut call = PUT_SLOTS.prepare_invoke();
            call.arg(&member).arg(millis(SLOTS_LIFE));
            for (bucket, here) in some {
                call.key(self.key(&format!("slots:{bucket}"))).arg(*here);
            }
            self.run::<()>(&call).await?;
        }
        Ok(())
    }

    async fn do_about(&self) -> Result<StoreAbout, StoreError> {
        self.connect().await?;
        let info: String = self
            .send(async |mut connection| cmd("INFO").query_async(&mut connection).await)
            .await?;
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

impl Store for RedisStore {
    fn heartbeat(&self, beat: Heartbeat) -> BoxFuture<'_, Result<Roster, StoreError>> {
        self.do_heartbeat(beat).boxed()
    }

    fn leave(&self, member: String) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let mut call = LEAVE.key(self.key("members"));
            call.key(self.key("members-until")).arg(member);
            self.run(&call).await
        }
        .boxed()
    }

    fn claim(&self, claim: ClaimRequest) -> BoxFuture<'_, Result<ClaimReply, StoreError>> {
        self.do_claim(claim).boxed()
    }

    fn end_sessions(
        &self,
        name: String,
        block: EndedBlock,
    ) -> BoxFuture<'_, Result<Option<StoredEntry>, StoreError>> {
        self.do_end_sessions(name, block).boxed()
    }

    fn put_settings(
        &self,
        session: String,
        settings: String,
        life: Duration,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let mut set = cmd("SET");
            set.arg(self.key(&format!("settings:{session}"))).arg(settings);
            set.arg("PX").arg(millis(life));
            self.send(async |mut connection| set.query_async(&mut connection).await).await
        }
        .boxed()
    }

    fn charge(
        &self,
        member: String,
        charges: Vec<SharedCharge>,
    ) -> BoxFuture<'_, Result<SharedAdmission, StoreError>> {
        self.do_charge(member, charges).boxed()
    }

    fn put_slots(
        &self,
        member: String,
        slots: Vec<(String, usize)>,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.do_put_slots(member, slots).boxed()
    }

    fn lease(&self, request: LeaseRequest) -> BoxFuture<'_, Result<LeaseReply, StoreError>> {
        self.do_lease(request).boxed()
    }

    fn about(&self) -> BoxFuture<'_, Result<StoreAbout, StoreError>> {
        self.do_about().boxed()
    }
}

/// Milliseconds of a time to live, which must not be zero.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).clamp(1, MAX_MILLIS)
}

/// Returns whether the store has refused a write because its memory is full.
fn is_out_of_memory(error: &RedisError) -> bool {
    // Up to Redis 6.2, an error of a script has a code of its own.
    error.code() == Some("OOM") || error.detail().is_some_and(|it| it.contains("-OOM "))
}

/// KEYS: members, members-until. ARGV: name of the member.
static LEAVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
",
    )
});

/// KEYS: members-until, then for each limit its rate and its slots. ARGV: the member, the life of
/// slots, then for each limit the microseconds per request and those of a burst, 0 without a rate;
/// the most requests in progress, 0 without such a limit, and the number on this member. Returns
/// the index of the limit with the longest wait, from 1, and that wait; or 0.
static CHARGE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local index, longest, paid = 0, 0, {}
for limit = 1, (#KEYS - 1) / 2 do
    local first = 4 * limit - 1
    local interval, burst = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
    local wait = 0
    if interval > 0 then
        local before = tonumber(redis.call('GET', KEYS[2 * limit])) or 0
        paid[limit] = math.max(before, now) + interval
        wait = paid[limit] - now - burst
    end
    local most = tonumber(ARGV[first + 2])
    if most > 0 then
        local total = tonumber(ARGV[first + 3])
        local others = redis.call('HGETALL', KEYS[2 * limit + 1])
        for at = 1, #others, 2 do
            if others[at] ~= ARGV[1] then
                local until_ = tonumber(redis.call('ZSCORE', KEYS[1], others[at]))
                if until_ and until_ * 1000 > now then
                    total = total + others[at + 1]
                else
                    redis.call('HDEL', KEYS[2 * limit + 1], others[at])
                end
            end
        end
        if total > most then
            wait = math.max(wait, 1000000)
        end
    end
    if wait > longest then
        index, longest = limit, wait
    end
end
if index > 0 then
    return { index, longest }
end
for limit = 1, (#KEYS - 1) / 2 do
    if paid[limit] then
        local life = math.ceil((paid[limit] - now) / 1000) + 1
        redis.call('SET', KEYS[2 * limit], string.format('%.0f', paid[limit]), 'PX', life)
    end
    if tonumber(ARGV[4 * limit + 1]) > 0 then
        redis.call('HSET', KEYS[2 * limit + 1], ARGV[1], ARGV[4 * limit + 2])
        redis.call('PEXPIRE', KEYS[2 * limit + 1], ARGV[2])
    end
end
return { 0, 0 }
",
    )
});

/// KEYS: slots. ARGV: the member, the life of slots, then a number for each key.
static PUT_SLOTS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
for at, key in ipairs(KEYS) do
    if ARGV[at + 2] == '0' then
        redis.call('HDEL', key, ARGV[1])
    else
        redis.call('HSET', key, ARGV[1], ARGV[at + 2])
        redis.call('PEXPIRE', key, ARGV[2])
    end
end
",
    )
});

/// Time after which the slots of a bucket are forgotten if no replica reports any.
const SLOTS_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// Most buckets that one call reports.
const MAX_SLOTS_AT_ONCE: usize = 1_000;
/// Longest time to live: numbers in Lua are exact up to 2^53.
const MAX_MILLIS: u64 = 1 << 52;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::super::store_node::{StoreKind, StoreLogin};
    use super::*;

    /// Asks a store that replies after some time, or never, and waits as the settings say.
    async fn ask(waiting: Duration, reply_after: Option<Duration>) -> Result<(), StoreError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let mut settings = super::super::tests::simulation::settings("a");
        settings.store = StoreSettings {
            urls: vec![format!("redis://{address}")],
            kind: StoreKind::Server,
            login: StoreLogin::default(),
            ca: None,
            timeout: waiting,
        };
        let store = super::super::open_store(&settings);
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
            asked = store.do_about() => asked.map(|_| ()),
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
