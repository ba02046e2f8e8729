//! Script of the leases.

use std::sync::LazyLock;

use redis::Script;

use super::{RedisStore, millis};
use crate::store::{LeaseReply, LeaseRequest, StoreError};

impl RedisStore {
    pub(super) async fn do_lease(&self, request: LeaseRequest) -> Result<LeaseReply, StoreError> {
        let mut call = LEASE.key(self.key(&format!("lease:{}", request.lease)));
        let life = if request.life.is_zero() { 0 } else { millis(request.life) };
        call.arg(request.holder).arg(life);
        let (is_held, number, was_released): (bool, u64, bool) = self.run(&call).await?;
        Ok(match is_held {
            true => LeaseReply::Held { number, was_released },
            false => LeaseReply::Taken,
        })
    }
}

/// KEYS: the lease. ARGV: the holder, the life of the lease; 0 gives it back. Returns whether the
/// holder has the lease, its number, and whether the last holder had given it back to this very
/// process of the store: another one may have missed who got it since. The number is at least the
/// time in milliseconds, so that it also increases in a store that was empty. The key of a lease
/// without a holder expires after a day.
static LEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function server()
    return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end
local lease = redis.call('HMGET', KEYS[1], 'holder', 'number', 'until', 'released')
local holder, number, ends = lease[1], tonumber(lease[2]) or 0, tonumber(lease[3]) or 0
local is_mine = holder == ARGV[1] and ends > now
if tonumber(ARGV[2]) == 0 then
    if is_mine then
        redis.call('HSET', KEYS[1], 'holder', '', 'until', 0, 'released', server())
    end
    return { 0, number, 0 }
end
if ends > now and not is_mine then
    return { 0, number, 0 }
end
local was_released = is_mine
if not is_mine then
    number = math.max(number + 1, now)
    was_released = holder == '' and lease[4] == server()
end
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'number', number, 'until', now + ARGV[2])
redis.call('PEXPIRE', KEYS[1], 86400000)
return { 1, number, was_released and 1 or 0 }
",
    )
});
