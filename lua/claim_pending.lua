-- claim_pending.lua: take reservations whose message nobody has confirmed, to send it again; each to one instance at a time.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     [1] age_ms: only reservations made longer ago than this by Redis' clock; who made them may still be at work
--          [2] lease_ms: for this long nobody else gets them
--          [3] limit, 1..512: how many are looked at
--
-- Returns a flat array, eight a claimed reservation:
--   reservation_id  request_id  user_id  message_id  order_id  created_at_ms  retry_count  traceparent ('' = none)
--   retry_count is already raised: it is the one that the message sent now carries.
-- A claimed reservation is MQ_PENDING (version + 1), and its score in P:pending is such that it is old enough again when the lease
-- is over: those under a lease never stand in front of others. One that has moved on, or whose hash has expired, is taken out.
-- Atomic: yes. Longest due first.
-- Source: spec 3, 7, 10; design 5 (pending index).

local call = redis.call
local prefix = KEYS[1]
local age_ms, lease_ms, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if #ARGV ~= 3 or not age_ms or not lease_ms or not limit or limit < 1 or limit > 512 then
  return redis.error_reply('ERR claim_pending takes age_ms, lease_ms and a limit of 1 to 512')
end

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local ids = call('ZRANGEBYSCORE', prefix .. ':pending', '-inf', now_ms - age_ms, 'LIMIT', 0, limit)
local moved, reply = {}, {}
for i = 1, #ids do
  local key = prefix .. ':reservation:' .. ids[i]
  local found = call('HMGET', key, 'status', 'version', 'retry_count', 'request_id', 'user_id', 'message_id',
    'order_id', 'created_at_ms', 'traceparent')
  local status = found[1]
  if status ~= 'RESERVED' and status ~= 'MQ_PENDING' then
    moved[#moved + 1] = ids[i]
  else
    local retry_count = (tonumber(found[3]) or 0) + 1
    call('HSET', key, 'status', 'MQ_PENDING', 'version', found[2] + 1, 'retry_count', retry_count)
    call('ZADD', prefix .. ':pending', string.format('%.0f', now_ms + lease_ms - age_ms), ids[i])
    local size = #reply
    reply[size + 1], reply[size + 2], reply[size + 3] = ids[i], found[4], found[5]
    reply[size + 4], reply[size + 5], reply[size + 6] = found[6], found[7], found[8]
    reply[size + 7], reply[size + 8] = tostring(retry_count), found[9] or ''
  end
end
if #moved > 0 then
  call('ZREM', prefix .. ':pending', unpack(moved))
end
return reply
