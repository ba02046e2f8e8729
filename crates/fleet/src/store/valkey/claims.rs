//! Members, claims and ended sessions in the store.
//!
//! Claims and blocks of ended sessions are tables: hashes of names and texts, with the number of
//! the last change and the expiry of each entry, and a sum over all (see
//! [`crate::claim_table::table_reading`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Script, ScriptInvocation};

use super::{RedisStore, give_up, millis};
use crate::store::{
    ClaimReply, ClaimRequest, Heartbeat, KeyUsage, MAX_CLAIMS, MAX_ENDED_BLOCKS, MAX_GAP, MAX_PAGE,
    MEMBER_TTL, Roster, StoreError, StoredEntry, TablePage, TableRequest,
};
use weir_base::ended_sessions::{EndedBlock, SessionNumber};
use weir_base::secrets::sealing::KeyId;

impl RedisStore {
    pub(super) async fn do_heartbeat(&self, beat: Heartbeat) -> Result<Roster, StoreError> {
        let (connection, is_new) = self.connect().await?;
        let process = if is_new { Some(self.check_rights(&connection).await?) } else { None };
        let read_all = |request: TableRequest| match is_new {
            true => TableRequest::default(),
            false => request,
        };
        let (claims, ended) = (read_all(beat.claims), read_all(beat.ended));
        let (member, record) = beat.member.unwrap_or_default();
        let key = KeyId::of_sealed(&record).map(|id| id.to_string()).unwrap_or_default();
        let mut call = HEARTBEAT.prepare_invoke();
        for name in ["members", "members-until", "steady", "keys"] {
            call.key(self.key(name));
        }
        self.add_table(&mut call, &CLAIMS);
        self.add_table(&mut call, &ENDED);
        call.arg(member).arg(record).arg(millis(MEMBER_TTL)).arg(millis(MAX_GAP)).arg(key);
        call.arg(MAX_PAGE);
        for TableRequest { after, missing_sum } in [claims, ended] {
            call.arg(after);
            let sum = missing_sum.map(|it| (it.last.to_string(), it.count, it.sum));
            let (last, count, sum) = sum.unwrap_or_default();
            call.arg(last).arg(count).arg(sum);
        }
        let reply = self.run_on::<HeartbeatReply>(&connection, call);
        let reply = self.in_time(self.beat_timeout(), reply).await;
        if reply == Err(StoreError::Late) {
            give_up(&self.current, &connection.identity);
        }
        let (steady, members, keys, claimed, ends) = reply?;
        let mut is_other = false;
        if let Some(process) = process {
            is_other = std::mem::replace(&mut *self.process.lock(), process.clone()) != process;
            *self.current.lock() = Some(connection);
        }
        let mut unused: BTreeMap<_, _> =
            keys.into_iter().map(|(key, ms)| (key, Duration::from_millis(ms))).collect();
        let known = unused.remove(KEYS_SINCE).unwrap_or_default();
        Ok(Roster {
            is_other,
            steady: Duration::from_millis(steady),
            members: members.into_iter().collect(),
            claims: page(claims.after, claimed),
            ended: page(ended.after, ends),
            key_use: KeyUsage { known, unused },
        })
    }

    pub(super) async fn do_claim(&self, claim: ClaimRequest) -> Result<ClaimReply, StoreError> {
        let mut call = CLAIM.prepare_invoke();
        self.add_table(&mut call, &CLAIMS);
        self.add_table(&mut call, &ENDED);
        call.key(self.key(&format!("settings:{}", claim.session)));
        let block = claim.number.map(|number| number.block().to_string()).unwrap_or_default();
        let (digit, bit) = claim.number.map(SessionNumber::digit).unwrap_or_default();
        let is_any = i32::from(claim.expected.is_none());
        call.arg(claim.session).arg(claim.expected.unwrap_or_default()).arg(is_any);
        call.arg(claim.text)
            .arg(millis(claim.life))
            .arg(MAX_CLAIMS)
            .arg(&block)
            .arg(digit)
            .arg(bit);
        let (replaced, number, text, settings): (i64, u64, String, Option<String>) =
            self.run(&call).await?;
        match replaced {
            -1 => Err(StoreError::Full),
            -2 => {
                let ended = Some(StoredEntry { number, name: block, text });
                Ok(ClaimReply { ended, ..ClaimReply::default() })
            }
            replaced => {
                let (is_replaced, ended) = (replaced == 1, None);
                Ok(ClaimReply { is_replaced, number, text, settings, ended })
            }
        }
    }

    pub(super) async fn do_end_sessions(
        &self,
        name: String,
        block: EndedBlock,
    ) -> Result<Option<StoredEntry>, StoreError> {
        let mut call = END_SESSIONS.prepare_invoke();
        self.add_table(&mut call, &ENDED);
        call.arg(&name).arg(block.to_string()).arg(MAX_ENDED_BLOCKS);
        match self.run(&call).await? {
            (-1, _) => Err(StoreError::Full),
            (number, text) => {
                let stored = |number| StoredEntry { number, name, text };
                Ok(u64::try_from(number).ok().filter(|it| *it > 0).map(stored))
            }
        }
    }

    fn add_table(&self, call: &mut ScriptInvocation<'_>, keys: &[&str; 5]) {
        for name in keys {
            call.key(self.key(name));
        }
    }
}

fn page(after: u64, (numbers, texts, count, last, sum): PageReply) -> TablePage {
    let entries = numbers.chunks_exact(2).zip(texts).filter_map(|(pair, text)| {
        let number = pair[1].parse().ok()?;
        Some(StoredEntry { number, name: pair[0].clone(), text: text? })
    });
    TablePage { after, entries: entries.collect(), count, last, sum: sum.try_into().ok() }
}

/// Reply of [`HEARTBEAT`]: milliseconds for which the store has been steady; members with their
/// records; names of keys with the milliseconds since their last use; pages of both tables.
type HeartbeatReply = (u64, HashMap<String, String>, HashMap<String, u64>, PageReply, PageReply);
/// Names with their numbers, texts, number of all entries, last number, sum or -1.
type PageReply = (Vec<String>, Vec<Option<String>>, usize, u64, i64);

/// Entry of `keys` with the time since which the store keeps these times.
const KEYS_SINCE: &str = "since";

/// Keys of a table: its entries, their numbers, their expiries, the number that was given last, and
/// the sum with the last number and the count that it belongs to. Replicas of version 0.1.0 do not
/// know the sum: then it belongs to another number or count.
const CLAIMS: [&str; 5] =
    ["claims", "claims-by-number", "claims-until", "last-claim", "claims-sum"];
const ENDED: [&str; 5] = ["ended", "ended-by-number", "ended-until", "last-ended", "ended-sum"];

/// Functions of scripts that use tables. Sums are numbers below 2^48, which are exact in Lua.
const TABLES: &str = r"
local function table_at(at)
    return {
        entries = KEYS[at], numbers = KEYS[at + 1], expiries = KEYS[at + 2],
        last = KEYS[at + 3], sum = KEYS[at + 4],
    }
end
local function weight(name, text)
    return tonumber(string.sub(redis.sha1hex(name .. ' ' .. text), 1, 12), 16)
end
local function sum_of(t)
    local count = redis.call('HLEN', t.entries)
    if count == 0 then
        return 0
    end
    local known = redis.call('HMGET', t.sum, 'last', 'count', 'sum')
    local last = tonumber(redis.call('GET', t.last)) or 0
    if tonumber(known[1]) == last and tonumber(known[2]) == count then
        return tonumber(known[3])
    end
end
local function set_sum(t, sum)
    if sum then
        local last, count = redis.call('GET', t.last) or 0, redis.call('HLEN', t.entries)
        sum = string.format('%.0f', sum % 281474976710656)
        redis.call('HSET', t.sum, 'last', last, 'count', count, 'sum', sum)
    end
end
local function put(t, name, text, expiry)
    local sum, before = sum_of(t), redis.call('HGET', t.entries, name)
    local number = redis.call('INCR', t.last)
    redis.call('HSET', t.entries, name, text)
    redis.call('ZADD', t.numbers, number, name)
    redis.call('ZADD', t.expiries, string.format('%.0f', expiry), name)
    set_sum(t, sum and sum - (before and weight(name, before) or 0) + weight(name, text))
    return number
end
";

/// KEYS: members, members-until, steady, keys, tables of claims and of ended sessions. ARGV: name
/// and record of the member, its time to live, longest gap, name of the member's key, most entries;
/// then for each table the number of the last known entry, and a sum that is missing with the last
/// number and the count that it belongs to.
static HEARTBEAT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        "{TABLES}{}",
        r"
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local ttl, gap = tonumber(ARGV[3]), tonumber(ARGV[4])
if ARGV[1] ~= '' then
    -- A script that has deleted something may write in a store that is full.
    redis.call('HDEL', KEYS[1], ARGV[1])
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('HDEL', KEYS[1], gone)
    redis.call('ZREM', KEYS[2], gone)
end
local steady = redis.call('HMGET', KEYS[3], 'since', 'last')
local since, last = tonumber(steady[1]), tonumber(steady[2])
if not since or not last or math.abs(now - last) > gap then
    since = now
end
if ARGV[1] ~= '' then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    redis.call('ZADD', KEYS[2], now + ttl, ARGV[1])
    redis.call('HSET', KEYS[3], 'since', since, 'last', now)
    redis.call('HSET', KEYS[4], ARGV[5], now)
    if not redis.call('HGET', KEYS[4], 'since') then
        redis.call('HSET', KEYS[4], 'since', now)
    end
end
local function page(t, at)
    -- Each replica reads all entries when one has expired: once for all of this hour.
    local hour = now - 3600000
    if #redis.call('ZRANGEBYSCORE', t.expiries, '-inf', hour, 'LIMIT', 0, 1) > 0 then
        local sum = sum_of(t)
        local gone = redis.call('ZRANGEBYSCORE', t.expiries, '-inf', now, 'LIMIT', 0, 1000)
        for _, name in ipairs(gone) do
            local text = redis.call('HGET', t.entries, name)
            sum = sum and sum - (text and weight(name, text) or 0)
            redis.call('HDEL', t.entries, name)
            redis.call('ZREM', t.numbers, name)
            redis.call('ZREM', t.expiries, name)
        end
        set_sum(t, sum)
    end
    local number = redis.call('GET', t.last) or '0'
    local count, sum = redis.call('HLEN', t.entries), sum_of(t)
    if not sum and ARGV[1] ~= '' and ARGV[at + 1] == number and tonumber(ARGV[at + 2]) == count then
        sum = tonumber(ARGV[at + 3])
        set_sum(t, sum)
    end
    local numbers = redis.call('ZRANGEBYSCORE', t.numbers, '(' .. ARGV[at], '+inf',
        'WITHSCORES', 'LIMIT', 0, ARGV[6])
    local texts = {}
    for entry = 1, #numbers, 2 do
        texts[#texts + 1] = redis.call('HGET', t.entries, numbers[entry])
    end
    return { numbers, texts, count, tonumber(number), sum or -1 }
end
local claims, ended = page(table_at(5), 7), page(table_at(10), 11)
local members = redis.call('HGETALL', KEYS[1])
local keys = redis.call('HGETALL', KEYS[4])
for at = 2, #keys, 2 do
    keys[at] = math.max(0, now - keys[at])
end
return { now - since, members, keys, claims, ended }
"
    ))
});

/// KEYS: tables of claims and of ended sessions, settings of the session. ARGV: the session, the
/// expected claim, whether any claim is replaced, the new claim, its time to live, most claims; the
/// block of the session, or nothing, and the digit and the bit of its end there. Returns -2 with
/// the number and the text of the block if the session has ended.
static CLAIM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        "{TABLES}{}",
        r"
local claims, ended = table_at(1), table_at(6)
local block = ARGV[7] ~= '' and redis.call('HGET', ended.entries, ARGV[7])
local bits = string.match(block or '', '^%d+:(%x+)$') or ''
local digit = tonumber(string.sub(bits, ARGV[8], ARGV[8]), 16) or 0
if bit.band(digit, tonumber(ARGV[9])) ~= 0 then
    return { -2, tonumber(redis.call('ZSCORE', ended.numbers, ARGV[7])) or 0, block, false }
end
local current = redis.call('HGET', claims.entries, ARGV[1]) or ''
local settings = redis.call('GET', KEYS[11])
if ARGV[3] == '0' and current ~= ARGV[2] then
    local number = tonumber(redis.call('ZSCORE', claims.numbers, ARGV[1])) or 0
    return { 0, number, current, settings }
end
if current == '' and redis.call('HLEN', claims.entries) >= tonumber(ARGV[6]) then
    return { -1, 0, '', settings }
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
return { 1, put(claims, ARGV[1], ARGV[4], now + ARGV[5]), ARGV[4], settings }
"
    ))
});

/// KEYS: table of ended sessions. ARGV: name and text of a block, most blocks. Returns the number
/// and the text of the block; 0 as the number if it has expired, -1 if there are too many.
static END_SESSIONS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        "{TABLES}{}",
        r"
local ended = table_at(1)
local expiry, bits = string.match(ARGV[2], '^(%d+):(%x+)$')
expiry = tonumber(expiry)
if expiry <= tonumber(redis.call('TIME')[1]) then
    return { 0, '' }
end
local before = redis.call('HGET', ended.entries, ARGV[1])
local known_expiry, known = string.match(before or '', '^(%d+):(%x+)$')
if not before and redis.call('HLEN', ended.entries) >= tonumber(ARGV[3]) then
    return { -1, '' }
end
if known and #known == #bits then
    expiry = math.max(expiry, tonumber(known_expiry))
    local merged = {}
    for at = 1, #bits do
        local one, other = string.sub(bits, at, at), string.sub(known, at, at)
        if one == '0' or one == other then
            merged[at] = other
        else
            merged[at] = string.format('%x', bit.bor(tonumber(one, 16), tonumber(other, 16)))
        end
    end
    bits = table.concat(merged)
end
local text = string.format('%.0f:%s', expiry, bits)
if text == before then
    return { tonumber(redis.call('ZSCORE', ended.numbers, ARGV[1])) or 0, text }
end
return { put(ended, ARGV[1], text, expiry * 1000), text }
"
    ))
});
