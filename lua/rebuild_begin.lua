-- rebuild_begin.lua: shut the gate of a SKU and take over the terms that PostgreSQL has, before its buyers are restored.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     total  start_ms  end_ms  expire_at_ms  generation
--
-- Returns {code, buyers now}: 0 shut, state `rebuilding`, stock 0; 3 refused: a rebuild of this or a later generation has begun;
-- 4 refused: bad values.
-- While it is shut reserve.lua answers 8; replays, marks, results and releases go on. What Redis still has is kept: buyers whose
-- reservation is under way hold their units. Every key that stays gets the expiry of the activity where it is a key of the SKU.
-- Atomic: yes. Source: spec 12 (last row).

local call = redis.call
local prefix = KEYS[1]
local total, expire_at_ms, generation = tonumber(ARGV[1]), tonumber(ARGV[4]), tonumber(ARGV[5])
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if #ARGV ~= 5 or not total or total < 0 or not tonumber(ARGV[2]) or not tonumber(ARGV[3]) or not expire_at_ms
    or expire_at_ms <= now_ms or not generation then
  return { 4, 0 }
end
if generation <= tonumber(call('HGET', prefix .. ':activity', 'generation') or '0') then
  return { 3, call('HLEN', prefix .. ':buyers') }
end
call('HSET', prefix .. ':activity', 'total', ARGV[1], 'start_ms', ARGV[2], 'end_ms', ARGV[3], 'expire_at_ms', ARGV[4],
  'state', 'rebuilding', 'generation', ARGV[5], 'warmed_at_ms', string.format('%.0f', now_ms))
call('SET', prefix .. ':stock', '0', 'PXAT', ARGV[4])
for _, name in ipairs({ ':activity', ':buyers', ':pending' }) do
  call('PEXPIREAT', prefix .. name, ARGV[4])
end
return { 0, call('HLEN', prefix .. ':buyers') }
