//! Scripts of the limits.
//!
//! A bucket has up to three keys: the time at which its rate is paid for, the requests in progress
//! of each member, and for each member the number of the change that led to this count.
//!
//! Versions of Weir without the third key charge and report the first two in the same way.

use std::sync::LazyLock;
use std::time::Duration;

use futures::future::BoxFuture;
use redis::{Script, ScriptInvocation};

use super::{RedisStore, millis};
use crate::shared_limits::SETTLING;
use crate::store::{BucketReport, Charge, ChargeReply, Settlement, SharedAdmission, StoreError};
use weir_base::time::rate_limit::RequestRate;

impl RedisStore {
    /// Adds the keys of a bucket.
    fn add_bucket(&self, call: &mut ScriptInvocation<'_>, bucket: &str) {
        for kind in ["rate", "slots", "order"] {
            call.key(self.key(&format!("{kind}:{bucket}")));
        }
    }

    pub(super) fn do_charge(
        &self,
        charge: Charge,
    ) -> BoxFuture<'static, Result<ChargeReply, StoreError>> {
        let mut call = CHARGE.prepare_invoke();
        for name in ["members-until", "steady", "keys"] {
            call.key(self.key(name));
        }
        call.arg(charge.member).arg(millis(SLOTS_LIFE)).arg(charge.share.max(1));
        call.arg(millis(charge.age)).arg(i32::from(charge.restores)).arg(millis(SETTLING));
        for limit in &charge.buckets {
            self.add_bucket(&mut call, &limit.bucket);
            let (interval, burst) = limit.rate.map_or((0, 0), RequestRate::to_micros);
            call.arg(interval).arg(burst).arg(limit.most.unwrap_or(0));
            call.arg(limit.slots.count).arg(limit.slots.order).arg(micros(limit.known));
        }
        let reply = self.unbounded::<(usize, u64, Vec<u64>)>(call);
        Box::pin(async move {
            let (index, wait, taken) = reply.await?;
            let admission = match index.checked_sub(1) {
                None => SharedAdmission::Admitted,
                Some(index) => SharedAdmission::Refused(index, Duration::from_micros(wait)),
            };
            let taken = taken.into_iter().map(Duration::from_micros).collect();
            Ok(ChargeReply { admission, taken })
        })
    }

    pub(super) async fn do_report(
        &self,
        member: String,
        reports: Vec<BucketReport>,
    ) -> Result<(), StoreError> {
        for some in reports.chunks(MAX_REPORTS_AT_ONCE) {
            let mut call = REPORT.prepare_invoke();
            call.arg(&member).arg(millis(SLOTS_LIFE)).arg(millis(ENDED_LIFE));
            for report in some {
                self.add_bucket(&mut call, &report.bucket);
                let (interval, _) = report.rate.map_or((0, 0), RequestRate::to_micros);
                let interval = i64::try_from(interval).unwrap_or(i64::MAX);
                let Settlement { order, count } = report.owed;
                call.arg(report.slots.count).arg(report.slots.order);
                call.arg(report.known.map_or(0, micros));
                call.arg(interval.saturating_mul(count)).arg(order);
            }
            let connection = self.current.lock().clone().ok_or(StoreError::Away)?;
            let reply = self.run_on::<()>(&connection, call);
            self.in_time(self.beat_timeout(), reply).await?;
        }
        Ok(())
    }
}

/// Microseconds of a time in which numbers in Lua are exact.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(1 << 52)
}

/// KEYS: members-until, steady, keys, then for each limit its rate, its slots and their order.
/// ARGV: the member, the life of slots, the number of members, the milliseconds that the contents
/// of the store are old at least, whether it may have lost the last charges, the time after which
/// all members have come back; then for each limit the microseconds per request and those of a
/// burst, 0 without a rate; the most requests in progress, 0 without such a limit, and the number
/// on this member with its order; the microseconds until all requests are paid for that the member
/// knows of.
///
/// Returns the index of the limit with the longest wait, from 1, and that wait; or 0; then the
/// microseconds until each limit is paid for. A store whose contents are younger than they should
/// be does not know of the other members' requests: then this member gets its share only.
static CHARGE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local member, share = ARGV[1], tonumber(ARGV[3])
local is_young
local function lives(other)
    local until_ = tonumber(redis.call('ZSCORE', KEYS[1], other))
    if until_ and until_ * 1000 > now then
        return true
    end
    if is_young == nil then
        -- After a store was away, the records of all members have expired.
        local steady = tonumber(redis.call('HGET', KEYS[2], 'since'))
        is_young = not steady or now / 1000 - steady < tonumber(ARGV[6])
    end
    return is_young
end
local began = tonumber(redis.call('HGET', KEYS[3], 'since'))
local is_lost = not began or now / 1000 - began < tonumber(ARGV[4])
local index, longest, before, paid, is_later = 0, 0, {}, {}, {}
for limit = 1, (#KEYS - 3) / 3 do
    local rate, slots, orders = KEYS[3 * limit + 1], KEYS[3 * limit + 2], KEYS[3 * limit + 3]
    local first = 6 * limit + 1
    local interval, burst = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
    local wait = 0
    if interval > 0 then
        local stored = tonumber(redis.call('GET', rate)) or 0
        before[limit] = math.max(stored, now)
        if is_lost or ARGV[5] == '1' then
            before[limit] = math.max(before[limit], now + ARGV[first + 5])
        end
        paid[limit] = before[limit] + interval
        local needed = interval
        if is_lost then
            needed = math.min(share * interval, burst)
        end
        wait = before[limit] + needed - now - burst
    end
    local most = tonumber(ARGV[first + 2])
    if most > 0 then
        local here, newest = tonumber(ARGV[first + 3]), 0
        local others, total = redis.call('HGETALL', slots), 0
        is_later[limit] = (tonumber(redis.call('HGET', orders, member)) or 0) > ARGV[first + 4] + 0
        for at = 1, #others, 2 do
            if others[at] == member then
                newest = tonumber(others[at + 1])
            elseif lives(others[at]) then
                total = total + others[at + 1]
            else
                redis.call('HDEL', slots, others[at])
                redis.call('HDEL', orders, others[at], others[at] .. ':owed')
            end
        end
        if is_later[limit] then
            here = newest
        end
        if total + here > most or is_lost and here > math.max(1, math.floor(most / share)) then
            wait = math.max(wait, 1000000)
        end
    end
    if wait > longest then
        index, longest = limit, wait
    end
end
local taken = {}
for limit = 1, (#KEYS - 3) / 3 do
    local rate, slots, orders = KEYS[3 * limit + 1], KEYS[3 * limit + 2], KEYS[3 * limit + 3]
    local first = 6 * limit + 1
    taken[limit] = 0
    if before[limit] then
        local at = index == 0 and paid[limit] or before[limit]
        taken[limit] = at - now
        if at > now then
            local life = math.ceil((at - now) / 1000) + 1
            redis.call('SET', rate, string.format('%.0f', at), 'PX', life)
        end
    end
    if index == 0 and is_later[limit] == false then
        redis.call('HSET', slots, member, ARGV[first + 3])
        redis.call('HSET', orders, member, ARGV[first + 4])
        redis.call('PEXPIRE', slots, ARGV[2])
        redis.call('PEXPIRE', orders, ARGV[2])
    end
end
return { index, longest, taken }
",
    )
});

/// KEYS: for each bucket its rate, its slots and their order. ARGV: the member, the life of slots,
/// and their life if there are none any more; then for each bucket the number of requests in
/// progress on the member with its order, 0 if it has never had any; the microseconds until all
/// requests are paid for that the member knows of, 0 if the store knows it; the microseconds that
/// are to be charged or, if negative, given back, with their order: a report may come again.
static REPORT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local member = ARGV[1]
for bucket = 1, #KEYS / 3 do
    local rate, slots, orders = KEYS[3 * bucket - 2], KEYS[3 * bucket - 1], KEYS[3 * bucket]
    local first = 5 * bucket - 1
    local order = tonumber(ARGV[first + 1])
    local newest = tonumber(redis.call('HGET', orders, member)) or 0
    local is_forgotten = order == newest and not redis.call('HGET', slots, member)
    if order > newest or order > 0 and is_forgotten then
        redis.call('HSET', slots, member, ARGV[first])
        redis.call('HSET', orders, member, ARGV[first + 1])
        local life = ARGV[2]
        if ARGV[first] == '0' then
            -- What overtakes this report has come by the end of the shorter life.
            local all, total = redis.call('HGETALL', slots), 0
            for at = 2, #all, 2 do
                total = total + all[at]
            end
            life = total == 0 and ARGV[3] or life
        end
        redis.call('PEXPIRE', slots, life)
        redis.call('PEXPIRE', orders, life)
    end
    local known, owed = tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3])
    if owed ~= 0 then
        local settled = tonumber(redis.call('HGET', orders, member .. ':owed')) or 0
        if tonumber(ARGV[first + 4]) > settled then
            redis.call('HSET', orders, member .. ':owed', ARGV[first + 4])
            redis.call('PEXPIRE', orders, ARGV[2])
        else
            owed = 0
        end
    end
    if known > 0 or owed ~= 0 then
        local before = tonumber(redis.call('GET', rate)) or 0
        local at = before
        if known > 0 then
            at = math.max(at, now + known)
        end
        if owed > 0 then
            at = math.max(at, now)
        end
        at = at + owed
        if at > now or before > now then
            local life = math.max(0, math.ceil((at - now) / 1000)) + 1
            redis.call('SET', rate, string.format('%.0f', math.max(at, 0)), 'PX', life)
        end
    end
end
",
    )
});

/// Time after which the slots of a bucket are forgotten if no replica reports any.
const SLOTS_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// Life of the slots of a bucket without any: longer than a message to the store is under way.
const ENDED_LIFE: Duration = Duration::from_secs(60);
/// Most buckets that one call reports.
const MAX_REPORTS_AT_ONCE: usize = 1_000;
