-- mark_pending.lua: nobody knows whether the broker stored the messages of N >= 1 reservations: RESERVED -> MQ_PENDING.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     3 a reservation, N <= 512:  reservation_id  expected_version ('' = any)  retry_count ('' = leave)
--          retry_count is the number of resends of the same message_id; recovery raises it before each resend.
--
-- Returns {codes, refused}: a bulk of N characters, one a reservation, in order; and how many of them are 3 or 4.
--   0 changed (version + 1)
--   1 already MQ_PENDING; if a greater retry_count is given it is stored (version + 1)
--   2 already further on (MQ_SENT, CREATED or REJECTED), nothing to do
--   3 refused: RELEASED
--   4 refused: the version is not the expected one
--   5 no such reservation
-- The reservation stays in P:pending, where the recovery task finds it.
-- Atomic: yes; each reservation is judged by itself. Source: spec 3; reference 8.5.

local call = redis.call
local argv = ARGV
local reservation_prefix = KEYS[1] .. ':reservation:'
if #argv == 0 or #argv % 3 ~= 0 then
  return redis.error_reply('ERR mark_pending takes 3 arguments a reservation')
end

local codes, refused = {}, 0
for at = 1, #argv, 3 do
  local key = reservation_prefix .. argv[at]
  local found = call('HMGET', key, 'status', 'version', 'retry_count')
  local status, version = found[1], found[2]
  local retry_count = tonumber(argv[at + 2])
  local code
  if not status then
    code = '5'
  elseif status == 'MQ_SENT' or status == 'CREATED' or status == 'REJECTED' then
    code = '2'
  elseif status ~= 'RESERVED' and status ~= 'MQ_PENDING' then
    code = '3'
  elseif argv[at + 1] ~= '' and argv[at + 1] ~= version then
    code = '4'
  else
    local raised = retry_count and retry_count > tonumber(found[3] or '0')
    code = status == 'RESERVED' and '0' or '1'
    if raised then
      call('HSET', key, 'status', 'MQ_PENDING', 'version', version + 1, 'retry_count', argv[at + 2])
    elseif code == '0' then
      call('HSET', key, 'status', 'MQ_PENDING', 'version', version + 1)
    end
  end
  if code == '3' or code == '4' then
    refused = refused + 1
  end
  codes[#codes + 1] = code
end
return { table.concat(codes), refused }
