-- Charges all limits of a request, or none. Returns the index of the limit with the longest wait,
-- from 1, and that wait; or 0; then the microseconds until each limit is paid for. A store whose
-- contents are younger than they should be does not know of the other replicas' requests: then this
-- replica gets its share only.
local members_until, steady, keys = KEYS[1], KEYS[2], KEYS[3]
local replica, slots_life, share = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- The milliseconds that the contents of the store are old at least, whether it may have lost the
-- last charges, and the milliseconds after which all replicas have come back.
local least_age, restores, settling = tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6])
-- For each limit: the microseconds per request and those of a burst, 0 without a rate; the most
-- requests in progress, 0 without such a limit, and the number on this replica with its order; the
-- microseconds until all requests are paid for that the replica knows of.
local limits = {}
for number = 1, (#KEYS - 3) / 3 do
    local key, first = 3 * number, 6 * number + 1
    limits[number] = {
        rate = KEYS[key + 1], slots = KEYS[key + 2], orders = KEYS[key + 3],
        interval = tonumber(ARGV[first]), burst = tonumber(ARGV[first + 1]),
        most = tonumber(ARGV[first + 2]),
        count = ARGV[first + 3], order = ARGV[first + 4], known = tonumber(ARGV[first + 5]),
    }
end

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local is_young
local function lives(other)
    local expiry = tonumber(redis.call('ZSCORE', members_until, other))
    if expiry and expiry * 1000 > now then
        return true
    end
    if is_young == nil then
        -- After a store was away, the records of all replicas have expired.
        local since = tonumber(redis.call('HGET', steady, 'since'))
        is_young = not since or now / 1000 - since < settling
    end
    return is_young
end
local began = tonumber(redis.call('HGET', keys, 'since'))
local is_lost = not began or now / 1000 - began < least_age

-- Sets the time until which a rate is paid for, and returns the wait for this request.
local function wait_for_rate(limit)
    local stored = tonumber(redis.call('GET', limit.rate)) or 0
    limit.before = math.max(stored, now)
    if is_lost or restores then
        limit.before = math.max(limit.before, now + limit.known)
    end
    local needed = limit.interval
    if is_lost then
        needed = math.min(share * limit.interval, limit.burst)
    end
    return limit.before + needed - now - limit.burst
end

-- Forgets the requests of replicas that have ended, and returns whether too many are in progress.
local function is_full(limit)
    local here, newest = tonumber(limit.count), 0
    local others, total = redis.call('HGETALL', limit.slots), 0
    local known_order = tonumber(redis.call('HGET', limit.orders, replica)) or 0
    limit.is_later = known_order > tonumber(limit.order)
    for at = 1, #others, 2 do
        if others[at] == replica then
            newest = tonumber(others[at + 1])
        elseif lives(others[at]) then
            total = total + others[at + 1]
        else
            redis.call('HDEL', limit.slots, others[at])
            redis.call('HDEL', limit.orders, others[at], others[at] .. ':owed')
        end
    end
    if limit.is_later then
        here = newest
    end
    return total + here > limit.most
        or is_lost and here > math.max(1, math.floor(limit.most / share))
end

local index, longest = 0, 0
for number, limit in ipairs(limits) do
    local wait = 0
    if limit.interval > 0 then
        wait = wait_for_rate(limit)
    end
    if limit.most > 0 and is_full(limit) then
        wait = math.max(wait, 1000000)
    end
    if wait > longest then
        index, longest = number, wait
    end
end

local taken = {}
for number, limit in ipairs(limits) do
    taken[number] = 0
    if limit.before then
        local at = index == 0 and limit.before + limit.interval or limit.before
        taken[number] = at - now
        if at > now then
            local life = math.ceil((at - now) / 1000) + 1
            redis.call('SET', limit.rate, string.format('%.0f', at), 'PX', life)
        end
    end
    if index == 0 and limit.is_later == false then
        redis.call('HSET', limit.slots, replica, limit.count)
        redis.call('HSET', limit.orders, replica, limit.order)
        redis.call('PEXPIRE', limit.slots, slots_life)
        redis.call('PEXPIRE', limit.orders, slots_life)
    end
end
return { index, longest, taken }
