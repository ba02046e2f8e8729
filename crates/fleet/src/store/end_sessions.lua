-- Adds the ends of a block of sessions to those that there are. Returns the number and the text of
-- the block; 0 as the number if it has expired, -1 if there are too many.
local ended = table_at(1)
local name, block, most_blocks = ARGV[1], ARGV[2], tonumber(ARGV[3])

local expiry, bits = string.match(block, '^(%d+):(%x+)$')
expiry = tonumber(expiry)
if expiry <= tonumber(redis.call('TIME')[1]) then
    return { 0, '' }
end
local before = redis.call('HGET', ended.entries, name)
local known_expiry, known = string.match(before or '', '^(%d+):(%x+)$')
if not before and redis.call('HLEN', ended.entries) >= most_blocks then
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
    return { tonumber(redis.call('ZSCORE', ended.numbers, name)) or 0, text }
end
return { put(ended, name, text, expiry * 1000), text }
