-- Gives a lease to a holder for some time; a life of 0 gives it back. Returns whether the holder
-- has the lease, its number, and whether the last holder had given it back to this very process of
-- the store: another one may have missed who got it since. The number is at least the time in
-- milliseconds, so that it also increases in a store that was empty. The key of a lease without a
-- holder expires after a day.
local lease_key = KEYS[1]
local new_holder, life = ARGV[1], tonumber(ARGV[2])

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function server()
    return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end
local lease = redis.call('HMGET', lease_key, 'holder', 'number', 'until', 'released')
local holder, number, ends = lease[1], tonumber(lease[2]) or 0, tonumber(lease[3]) or 0
local released_to = lease[4]
local is_mine = holder == new_holder and ends > now
if life == 0 then
    if is_mine then
        redis.call('HSET', lease_key, 'holder', '', 'until', 0, 'released', server())
    end
    return { 0, number, 0 }
end
if ends > now and not is_mine then
    return { 0, number, 0 }
end
local was_released = is_mine
if not is_mine then
    number = math.max(number + 1, now)
    was_released = holder == '' and released_to == server()
end
redis.call('HSET', lease_key, 'holder', new_holder, 'number', number, 'until', now + life)
redis.call('PEXPIRE', lease_key, 86400000)
return { 1, number, was_released and 1 or 0 }
