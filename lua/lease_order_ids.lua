-- lease_order_ids.lua: lease N blocks of order ids, never given out before.
--
-- KEYS[1]  the one counter, `sec:order_id:block`: the last block number leased
-- ARGV     N (1 to 1024)  the epoch, Unix ms
--
-- Returns the first block of the lease as an integer; the lease is first .. first + N - 1.
-- A block is at least the milliseconds since the epoch by Redis' clock, and always beyond the last one leased. So numbers
-- stay apart when the clock steps back (the counter holds) and when the counter is lost (the clock has moved on: blocks are
-- used up at far less than one a millisecond). Only both at once could repeat one, and then the primary key of `orders`
-- turns the second order down.
-- The key never expires. Atomic: yes. Source: spec 2 (ids).

local count, epoch_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
if not count or count < 1 or count > 1024 or not epoch_ms then
  return redis.error_reply('ERR lease_order_ids takes a count of 1 to 1024 and the epoch')
end
local time = redis.call('TIME')
local by_clock = time[1] * 1000 + math.floor(time[2] / 1000) - epoch_ms
local first = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, by_clock, 1)
redis.call('SET', KEYS[1], string.format('%.0f', first + count - 1))
return first
