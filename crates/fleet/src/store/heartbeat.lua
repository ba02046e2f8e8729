-- Writes the record of a replica, unless it has no name, and returns what there is: the
-- milliseconds for which the store has been steady, the records, the milliseconds since the last
-- use of each key, and a page of each table.
local members, members_until, steady, keys = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local claims, ended = table_at(5), table_at(10)
local replica, record = ARGV[1], ARGV[2]
local time_to_live, longest_gap = tonumber(ARGV[3]), tonumber(ARGV[4])
local sealed_with, most_entries = ARGV[5], ARGV[6]
-- For each table the number of the last known entry; and a sum that is missing, with the last
-- number and the count that it belongs to.
local known_claims = { after = ARGV[7], last = ARGV[8], count = ARGV[9], sum = ARGV[10] }
local known_ended = { after = ARGV[11], last = ARGV[12], count = ARGV[13], sum = ARGV[14] }

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if replica ~= '' then
    -- A script that has deleted something may write in a store that is full.
    redis.call('HDEL', members, replica)
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', members_until, '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('HDEL', members, gone)
    redis.call('ZREM', members_until, gone)
end
local times = redis.call('HMGET', steady, 'since', 'last')
local since, last = tonumber(times[1]), tonumber(times[2])
if not since or not last or math.abs(now - last) > longest_gap then
    since = now
end
if replica ~= '' then
    redis.call('HSET', members, replica, record)
    redis.call('ZADD', members_until, now + time_to_live, replica)
    redis.call('HSET', steady, 'since', since, 'last', now)
    redis.call('HSET', keys, sealed_with, now)
    if not redis.call('HGET', keys, 'since') then
        redis.call('HSET', keys, 'since', now)
    end
end

-- Drops expired entries. Each replica reads all entries when one has expired: once for all of this
-- hour.
local function drop_expired(t)
    local hour = now - 3600000
    if #redis.call('ZRANGEBYSCORE', t.expiries, '-inf', hour, 'LIMIT', 0, 1) == 0 then
        return
    end
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

local function page(t, known)
    drop_expired(t)
    local number = redis.call('GET', t.last) or '0'
    local count, sum = redis.call('HLEN', t.entries), sum_of(t)
    local is_same = known.last == number and tonumber(known.count) == count
    if not sum and replica ~= '' and is_same then
        sum = tonumber(known.sum)
        set_sum(t, sum)
    end
    local numbers = redis.call('ZRANGEBYSCORE', t.numbers, '(' .. known.after, '+inf',
        'WITHSCORES', 'LIMIT', 0, most_entries)
    local texts = {}
    for entry = 1, #numbers, 2 do
        texts[#texts + 1] = redis.call('HGET', t.entries, numbers[entry])
    end
    return { numbers, texts, count, tonumber(number), sum or -1 }
end

local claims_page, ended_page = page(claims, known_claims), page(ended, known_ended)
local records = redis.call('HGETALL', members)
local uses = redis.call('HGETALL', keys)
for at = 2, #uses, 2 do
    uses[at] = math.max(0, now - uses[at])
end
return { now - since, records, uses, claims_page, ended_page }
