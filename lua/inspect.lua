-- inspect.lua: what Redis has of N >= 1 reservations. Read-only.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     2 a reservation, N <= 512:  user_id  reservation_id
--
-- Returns a flat array, nine bulks a reservation, '' where there is none:
--   status  created_at_ms  request_id  message_id  order_id  retry_count
--   the reservation that P:buyers has for the user   whether it is in P:pending ('1' | '')   state of the result of its request
-- Atomic: yes (one snapshot). Source: spec 7 (reconciliation).

local call = redis.call
local prefix = KEYS[1]
if #ARGV == 0 or #ARGV % 2 ~= 0 then
  return redis.error_reply('ERR inspect takes 2 arguments a reservation')
end
local reply = {}
for at = 1, #ARGV, 2 do
  local id = ARGV[at + 1]
  local found = call('HMGET', prefix .. ':reservation:' .. id,
    'status', 'created_at_ms', 'request_id', 'message_id', 'order_id', 'retry_count')
  local size = #reply
  for field = 1, 6 do
    reply[size + field] = found[field] or ''
  end
  reply[size + 7] = call('HGET', prefix .. ':buyers', ARGV[at]) or ''
  reply[size + 8] = call('ZSCORE', prefix .. ':pending', id) and '1' or ''
  reply[size + 9] = found[3] and call('HGET', prefix .. ':result:' .. found[3], 'state') or ''
end
return reply
