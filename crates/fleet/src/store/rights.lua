-- Tries the commands that Weir needs, on a text, a hash and a sorted set that expire at once.
-- Returns the number of the process, and the commands that are not allowed. Other errors, such as
-- those of a store that takes no writes, are met by what is written next.
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
