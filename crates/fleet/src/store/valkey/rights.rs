//! Commands that the store has to allow, tried out on each new connection.

use std::sync::LazyLock;

use redis::{RedisError, Script};

use super::{RedisStore, StoreConnection};
use crate::store::StoreError;

impl RedisStore {
    /// Fails if the store does not allow a command that Weir needs. Returns the number of its
    /// process.
    pub(super) async fn check_rights(
        &self,
        connection: &StoreConnection,
    ) -> Result<String, StoreError> {
        let mut call = RIGHTS.prepare_invoke();
        for kind in ["text", "hash", "set"] {
            call.key(self.key(&format!("rights-{kind}")));
        }
        let tried = self.run_on::<(String, Vec<String>)>(connection, call);
        let (process, forbidden) = self.in_time(self.beat_timeout(), tried).await?;
        match forbidden.is_empty() {
            true => Ok(process),
            false => Err(StoreError::Forbidden(forbidden.join(", "))),
        }
    }
}

/// Returns the commands that an error says not to be allowed, or not to exist.
pub(super) fn forbidden_by(error: &RedisError) -> Option<String> {
    let text = error.to_string().to_lowercase();
    let is_forbidden = error.code() == Some("NOPERM")
        || text.contains("unknown command")
        || text.contains("unknown redis command")
        || text.contains("can't run this command")
        || text.contains("acl failure in script");
    is_forbidden.then(|| match text.contains("evalsha") {
        true => "evalsha".to_owned(),
        false => format!("a command ({error})"),
    })
}

/// KEYS: a text, a hash and a sorted set, which expire at once. Returns the number of the process,
/// and the commands that are not allowed. Other errors, such as those of a store that takes no
/// writes, are met by what is written next.
static RIGHTS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local text, hash, set = KEYS[1], KEYS[2], KEYS[3]
local calls = {
    { 'TIME' }, { 'INFO', 'server' },
    { 'SET', text, '1', 'PX', '1000' }, { 'GET', text }, { 'INCR', text },
    { 'HSET', hash, 'a', '1' }, { 'HGET', hash, 'a' }, { 'HMGET', hash, 'a' }, { 'HLEN', hash },
    { 'HGETALL', hash }, { 'PEXPIRE', hash, '1000' }, { 'HDEL', hash, 'a' },
    { 'ZADD', set, '1', 'a' }, { 'ZSCORE', set, 'a' }, { 'ZRANGEBYSCORE', set, '1', '1' },
    { 'ZREM', set, 'a' },
}
local forbidden, process = {}, ''
for _, call in ipairs(calls) do
    local reply = redis.pcall(unpack(call))
    if call[1] == 'INFO' and type(reply) == 'string' then
        process = string.match(reply, 'run_id:(%w+)') or ''
    end
    local problem = type(reply) == 'table' and reply.err and string.lower(reply.err) or ''
    if string.find(problem, 'noperm', 1, true) or string.find(problem, 'unknown', 1, true)
        or string.find(problem, 'acl failure', 1, true)
        or string.find(problem, 'run this command', 1, true) then
        forbidden[#forbidden + 1] = string.lower(call[1])
    end
end
return { process, forbidden }
",
    )
});
