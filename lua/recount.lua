-- recount.lua: make the stock of a SKU what its buyers leave of the total; the end of a rebuild, and a repair.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     generation ('' = any)  state after it (open | closed | '' = leave)
--
-- Returns {code, stock now, buyers, stock before}:
--   0 the stock was changed       1 it was right already
--   2 refused: the gate is of another generation
--   3 more buyers than units: the stock is 0 now, and somebody will be turned down by PostgreSQL; count and alarm
--   4 not warmed
-- Every buyer holds one unit, so total = stock + buyers at any instant: reserve.lua and release.lua change both together.
-- Atomic: yes; safe at any time. Source: spec 7, 12.

local call = redis.call
local prefix = KEYS[1]
local gate = call('HMGET', prefix .. ':activity', 'total', 'expire_at_ms', 'generation')
if not gate[2] then
  return { 4, -1, 0, -1 }
end
local before = tonumber(call('GET', prefix .. ':stock') or '-1')
local buyers = call('HLEN', prefix .. ':buyers')
if ARGV[1] ~= '' and ARGV[1] ~= gate[3] then
  return { 2, before, buyers, before }
end
local stock = math.max(tonumber(gate[1]) - buyers, 0)
if stock ~= before then
  call('SET', prefix .. ':stock', string.format('%.0f', stock), 'PXAT', gate[2])
end
if ARGV[2] ~= '' then
  call('HSET', prefix .. ':activity', 'state', ARGV[2])
end
local code = stock == before and 1 or 0
if buyers > tonumber(gate[1]) then
  code = 3
end
return { code, stock, buyers, before }
