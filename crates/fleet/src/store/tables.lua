-- Functions of scripts that use tables: hashes of names and texts, with the number of the last
-- change and the expiry of each entry. Sums are numbers below 2^48, which are exact in Lua.

-- The table whose five keys begin at this index.
local function table_at(at)
    return {
        entries = KEYS[at], numbers = KEYS[at + 1], expiries = KEYS[at + 2],
        last = KEYS[at + 3], sum = KEYS[at + 4],
    }
end

local function weight(name, text)
    return tonumber(string.sub(redis.sha1hex(name .. ' ' .. text), 1, 12), 16)
end

-- The sum of a table; nil if a replica has changed the table without it.
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

-- Writes an entry, and returns its number.
local function put(t, name, text, expiry)
    local sum, before = sum_of(t), redis.call('HGET', t.entries, name)
    local number = redis.call('INCR', t.last)
    redis.call('HSET', t.entries, name, text)
    redis.call('ZADD', t.numbers, number, name)
    redis.call('ZADD', t.expiries, string.format('%.0f', expiry), name)
    set_sum(t, sum and sum - (before and weight(name, before) or 0) + weight(name, text))
    return number
end

