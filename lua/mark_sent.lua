-- mark_sent.lua: the broker has stored the messages of N >= 1 reservations: RESERVED | MQ_PENDING -> MQ_SENT.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     2 a reservation, N <= 512:  reservation_id  expected_version ('' = any)
--
-- Returns {codes, refused}: a bulk of N characters, one a reservation, in order; and how many of them are 3 or 4.
--   0 changed (version + 1)
--   1 already MQ_SENT
--   2 already further on (CREATED or REJECTED: the worker was faster), nothing to do
--   3 refused: RELEASED, so its unit went back although the message is in the broker; count and alarm
--   4 refused: the version is not the expected one
--   5 no such reservation
-- Codes 0, 1 and 2 take the reservation out of P:pending.
-- Atomic: yes; each reservation is judged by itself. Source: spec 3; reference 8.5.

local call = redis.call
local argv = ARGV
local reservation_prefix = KEYS[1] .. ':reservation:'
if #argv == 0 or #argv % 2 ~= 0 then
  return redis.error_reply('ERR mark_sent takes 2 arguments a reservation')
end

local codes, settled, refused = {}, {}, 0
for at = 1, #argv, 2 do
  local key = reservation_prefix .. argv[at]
  local found = call('HMGET', key, 'status', 'version')
  local status, version = found[1], found[2]
  local code
  if not status then
    code = '5'
  elseif status == 'MQ_SENT' then
    code = '1'
  elseif status == 'CREATED' or status == 'REJECTED' then
    code = '2'
  elseif status ~= 'RESERVED' and status ~= 'MQ_PENDING' then
    code = '3'
  elseif argv[at + 1] ~= '' and argv[at + 1] ~= version then
    code = '4'
  else
    code = '0'
    call('HSET', key, 'status', 'MQ_SENT', 'version', version + 1)
  end
  if code == '3' or code == '4' then
    refused = refused + 1
  elseif code ~= '5' then
    settled[#settled + 1] = argv[at]
  end
  codes[#codes + 1] = code
end
if #settled > 0 then
  call('ZREM', KEYS[1] .. ':pending', unpack(settled))
end
return { table.concat(codes), refused }
