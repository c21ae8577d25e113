-- status.lua: what a SKU looks like now. Read-only.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     none
--
-- Returns a flat array of 12, integers where a number is meant, '' or -1 where there is none:
--   [1] warmed (1 | 0)   [2] state ('open' | 'closed' | '')   [3] total   [4] stock (-1: no key)   [5] buyers
--   [6] pending          [7] created_at_ms of the first pending (-1: none)
--   [8] start_ms         [9] end_ms         [10] expire_at_ms       [11] generation       [12] Redis' clock, Unix ms
-- At rest total = stock + buyers. Atomic: yes (one snapshot). Source: design 6 (`activity status`).

local call = redis.call
local prefix = KEYS[1]
local time = call('TIME')
local gate = call('HMGET', prefix .. ':activity', 'state', 'total', 'start_ms', 'end_ms', 'expire_at_ms', 'generation')
-- Not its score: that moves when the reservation is claimed to be sent again.
local first = call('ZRANGE', prefix .. ':pending', 0, 0)[1]
local oldest = first and call('HGET', prefix .. ':reservation:' .. first, 'created_at_ms')
return {
  gate[5] and 1 or 0,
  gate[1] or '',
  tonumber(gate[2] or '-1'),
  tonumber(call('GET', prefix .. ':stock') or '-1'),
  call('HLEN', prefix .. ':buyers'),
  call('ZCARD', prefix .. ':pending'),
  tonumber(oldest or '-1'),
  tonumber(gate[3] or '-1'),
  tonumber(gate[4] or '-1'),
  tonumber(gate[5] or '-1'),
  tonumber(gate[6] or '-1'),
  time[1] * 1000 + math.floor(time[2] / 1000),
}
