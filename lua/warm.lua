-- warm.lua: open the gate of a SKU once, by creating its activity and stock.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     total  stock  start_ms  end_ms  expire_at_ms  state (open | closed)  generation
--          stock is what may still be sold: equal to total for a new sale, less when rebuilt from PostgreSQL.
--
-- Returns {code, stock now or -1, generation now or ''}:
--   0 created
--   1 already warmed with the same total, window, expiry and generation: nothing changed, the live stock stands
--   2 refused: warmed with other values (a live sale is never overwritten)
--   3 refused: no activity, but stock, buyers or pending of an earlier life are there (close, then clean up first)
--   4 refused: bad values (0 <= stock <= total, start < end <= expire, expire after Redis' clock, state, generation >= 1)
--
-- P:activity is the gate: an empty, restarted Redis has none, and reserve.lua then answers 4 until somebody warms it again.
-- Its fields: total start_ms end_ms expire_at_ms state generation warmed_at_ms. `generation` grows by one with each rebuild.
-- Atomic: yes. Source: spec 2 (TTL), 12 (last row); reference 8.2.

local call = redis.call
local prefix = KEYS[1]
local total, stock = tonumber(ARGV[1]), tonumber(ARGV[2])
local start_ms, end_ms, expire_at_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local state, generation = ARGV[6], tonumber(ARGV[7])

local function answer(code)
  return { code, tonumber(call('GET', prefix .. ':stock') or '-1'),
    call('HGET', prefix .. ':activity', 'generation') or '' }
end

local gate = call('HMGET', prefix .. ':activity', 'total', 'start_ms', 'end_ms', 'expire_at_ms', 'generation')
if gate[4] then
  for i, given in ipairs({ ARGV[1], ARGV[3], ARGV[4], ARGV[5], ARGV[7] }) do
    if gate[i] ~= given then
      return answer(2)
    end
  end
  if call('EXISTS', prefix .. ':stock') == 0 then
    return answer(2)
  end
  return answer(1)
end

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if not (total and stock and start_ms and end_ms and expire_at_ms and generation)
    or total < 0 or stock < 0 or stock > total or generation < 1
    or start_ms >= end_ms or end_ms > expire_at_ms or expire_at_ms <= now_ms
    or (state ~= 'open' and state ~= 'closed') then
  return answer(4)
end
if call('EXISTS', prefix .. ':stock', prefix .. ':buyers', prefix .. ':pending') > 0 then
  return answer(3)
end

call('SET', prefix .. ':stock', ARGV[2], 'PXAT', ARGV[5])
call('HSET', prefix .. ':activity', 'total', ARGV[1], 'start_ms', ARGV[3], 'end_ms', ARGV[4], 'expire_at_ms', ARGV[5],
  'state', state, 'generation', ARGV[7], 'warmed_at_ms', string.format('%.0f', now_ms))
call('PEXPIREAT', prefix .. ':activity', ARGV[5])
return answer(0)
