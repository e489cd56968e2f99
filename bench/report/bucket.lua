-- A token bucket as of Guava's RateLimiter: tokens are counted up when somebody comes, by the server's clock.
-- KEYS[1] the bucket; ARGV[1] its capacity; ARGV[2] tokens that come in a microsecond
local capacity, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(bucket[1]) or capacity, tonumber(bucket[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - at) * rate)
if tokens < 1 then
	return 0
end
tokens = tokens - 1
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', math.max(now, at))
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - tokens) / rate / 1000) + 1000) -- full again: as good as new
return 1
