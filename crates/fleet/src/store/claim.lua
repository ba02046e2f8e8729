-- Replaces the claim of a session by another one, if it is the expected one, or if any is replaced.
-- Returns 1 with the number and the text of the new claim, or 0 with those of the present one; -1
-- if there are too many; -2 with the number and the text of the block if the session has ended. The
-- settings of the session follow.
local claims, ended, settings_key = table_at(1), table_at(6), KEYS[11]
local session, expected, is_any, claim = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local time_to_live, most_claims = ARGV[5], tonumber(ARGV[6])
-- The block of the session, or nothing, and the digit and the bit of its end there.
local block_name, digit_at, bit_of_end = ARGV[7], ARGV[8], tonumber(ARGV[9])

local block = block_name ~= '' and redis.call('HGET', ended.entries, block_name)
local bits = string.match(block or '', '^%d+:(%x+)$') or ''
local digit = tonumber(string.sub(bits, digit_at, digit_at), 16) or 0
if bit.band(digit, bit_of_end) ~= 0 then
    return { -2, tonumber(redis.call('ZSCORE', ended.numbers, block_name)) or 0, block, false }
end
local current = redis.call('HGET', claims.entries, session) or ''
local settings = redis.call('GET', settings_key)
if not is_any and current ~= expected then
    local number = tonumber(redis.call('ZSCORE', claims.numbers, session)) or 0
    return { 0, number, current, settings }
end
if current == '' and redis.call('HLEN', claims.entries) >= most_claims then
    return { -1, 0, '', settings }
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
return { 1, put(claims, session, claim, now + time_to_live), claim, settings }
