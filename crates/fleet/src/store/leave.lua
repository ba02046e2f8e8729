-- Removes the record of a replica.
local members, members_until = KEYS[1], KEYS[2]
local replica = ARGV[1]

redis.call('HDEL', members, replica)
redis.call('ZREM', members_until, replica)
