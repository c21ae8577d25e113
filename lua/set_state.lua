-- set_state.lua: close a SKU's gate by hand, or open it again.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     state (open | closed)
--
-- Returns {code, state now or ''}: 0 changed, 1 already so, 4 not warmed, 5 unknown state (nothing changed).
-- A closed gate refuses new reservations (reserve.lua code 8); replays, results, releases and marks go on.
-- Atomic: yes. Source: spec 12 (last row); design 6 (`activity close`).

local key = KEYS[1] .. ':activity'
local state = redis.call('HGET', key, 'state')
if not state then
  return { 4, '' }
end
if ARGV[1] ~= 'open' and ARGV[1] ~= 'closed' then
  return { 5, state }
end
if state == ARGV[1] then
  return { 1, state }
end
redis.call('HSET', key, 'state', ARGV[1])
return { 0, ARGV[1] }
