-- read_result.lua: what is known of N >= 1 requests of a SKU. Read-only.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     1 a request, N <= 128:  request_id
--
-- Returns a flat array:
--   [1] integer  Redis' clock, Unix ms
--   [2] integer  1 warmed, 0 not (then nothing found here proves nothing: ask PostgreSQL)
--   then 9 bulks a request, in order, '' where there is none:
--     user_id (the owner: show nothing to anybody else)  reservation_id
--     reservation_status (RESERVED MQ_PENDING MQ_SENT CREATED REJECTED RELEASED)  reserved order_id  created_at_ms
--     result state (CREATED | REJECTED)  result order_id  result code  result updated_at_ms
-- A result without a request record (Redis rebuilt from PostgreSQL) still names its owner and reservation.
-- With RESP3 client tracking the keys read here are tracked for the caller.
-- Atomic: yes (one snapshot). Source: spec 6; reference 14.5.

local call = redis.call
local prefix = KEYS[1]
local time = call('TIME')
local reply = { time[1] * 1000 + math.floor(time[2] / 1000), call('EXISTS', prefix .. ':activity') }

for i = 1, #ARGV do
  local result = call('HMGET', prefix .. ':result:' .. ARGV[i],
    'state', 'order_id', 'code', 'updated_at_ms', 'user_id', 'reservation_id')
  local record = call('GET', prefix .. ':request:' .. ARGV[i])
  local user, reservation_id = result[5], result[6]
  local reservation = {}
  if record then
    local colon = string.find(record, ':', 1, true)
    user, reservation_id = string.sub(record, 1, colon - 1), string.sub(record, colon + 1)
  end
  if reservation_id then
    reservation = call('HMGET', prefix .. ':reservation:' .. reservation_id, 'status', 'order_id', 'created_at_ms')
  end
  local size = #reply
  reply[size + 1] = user or ''
  reply[size + 2] = reservation_id or ''
  for field = 1, 3 do
    reply[size + 2 + field] = reservation[field] or ''
  end
  for field = 1, 4 do
    reply[size + 5 + field] = result[field] or ''
  end
end
return reply
