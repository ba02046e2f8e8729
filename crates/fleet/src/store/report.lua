-- Takes over what a replica reports of its buckets. A report may come again, or late.
local replica, slots_life, ended_life = ARGV[1], ARGV[2], ARGV[3]
-- For each bucket: the number of requests in progress on the replica with its order, 0 if it has
-- never had any; the microseconds until all requests are paid for that the replica knows of, 0 if
-- the store knows it; the microseconds that are to be charged or, if negative, given back, with
-- their order.
local buckets = {}
for number = 1, #KEYS / 3 do
    local key, first = 3 * number, 5 * number - 1
    buckets[number] = {
        rate = KEYS[key - 2], slots = KEYS[key - 1], orders = KEYS[key],
        count = ARGV[first], order = ARGV[first + 1], known = tonumber(ARGV[first + 2]),
        owed = tonumber(ARGV[first + 3]), owed_order = ARGV[first + 4],
    }
end

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

local function set_slots(bucket)
    local order = tonumber(bucket.order)
    local newest = tonumber(redis.call('HGET', bucket.orders, replica)) or 0
    local is_forgotten = order == newest and not redis.call('HGET', bucket.slots, replica)
    if not (order > newest or order > 0 and is_forgotten) then
        return
    end
    redis.call('HSET', bucket.slots, replica, bucket.count)
    redis.call('HSET', bucket.orders, replica, bucket.order)
    local life = slots_life
    if bucket.count == '0' then
        -- What overtakes this report has come by the end of the shorter life.
        local all, total = redis.call('HGETALL', bucket.slots), 0
        for at = 2, #all, 2 do
            total = total + all[at]
        end
        life = total == 0 and ended_life or life
    end
    redis.call('PEXPIRE', bucket.slots, life)
    redis.call('PEXPIRE', bucket.orders, life)
end

-- Returns what is owed, unless it was settled before.
local function settle(bucket)
    if bucket.owed == 0 then
        return 0
    end
    local settled = tonumber(redis.call('HGET', bucket.orders, replica .. ':owed')) or 0
    if tonumber(bucket.owed_order) <= settled then
        return 0
    end
    redis.call('HSET', bucket.orders, replica .. ':owed', bucket.owed_order)
    redis.call('PEXPIRE', bucket.orders, slots_life)
    return bucket.owed
end

for _, bucket in ipairs(buckets) do
    set_slots(bucket)
    local known, owed = bucket.known, settle(bucket)
    if known > 0 or owed ~= 0 then
        local before = tonumber(redis.call('GET', bucket.rate)) or 0
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
            redis.call('SET', bucket.rate, string.format('%.0f', math.max(at, 0)), 'PX', life)
        end
    end
end
