-- release.lua: give the units of N >= 1 reservations back, each exactly once.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     [1] why: `unsent`    from RESERVED | MQ_PENDING only: the broker certainly has not stored the message
--                   `rejected`  from REJECTED only: PostgreSQL has committed the rejection (release outbox). Project the
--                               result first; a reservation still MQ_SENT is refused until then.
--          then 3 a reservation, N <= 512:  reservation_id  user_id  expected_version ('' = any)
--
-- Returns {codes, refused, stock after the call or -1}: a bulk of N characters, one a reservation, in order; and how many
-- of them are 3, 4 or 6.
--   0 released: status RELEASED, version + 1, stock + 1, the user's entry in P:buyers removed if it names this reservation
--   1 already RELEASED: nothing changes
--   3 refused: the state does not allow it (MQ_SENT and CREATED never do)
--   4 refused: belongs to another user, or the version is not the expected one
--   5 no such reservation: nothing to give back
--   6 refused: not warmed, or the stock would exceed the total (the books do not agree: reconcile)
-- Codes 0 and 1 take the reservation out of P:pending. P:request:<request_id> and the reservation stay, so that a replay of
-- the request still finds its own final state.
-- Atomic: yes; each reservation is judged by itself. Source: spec 3, 12; reference 7.3, 7.5, 8.5.

local call = redis.call
local argv = ARGV
local prefix = KEYS[1]
local ALLOWED = ({
  unsent = { RESERVED = true, MQ_PENDING = true },
  rejected = { REJECTED = true },
})[argv[1]]
if not ALLOWED then
  return redis.error_reply('ERR release is `unsent` or `rejected`')
end
if #argv == 1 or #argv % 3 ~= 1 then
  return redis.error_reply('ERR release takes 3 arguments a reservation')
end
local stock = tonumber(call('GET', prefix .. ':stock') or '-1')
local total = tonumber(call('HGET', prefix .. ':activity', 'total') or '-1')

local function release(at)
  local key = prefix .. ':reservation:' .. argv[at]
  local found = call('HMGET', key, 'status', 'version', 'user_id')
  local status, version, user = found[1], found[2], found[3]
  if not status then
    return '5'
  elseif user ~= argv[at + 1] then
    return '4'
  elseif status == 'RELEASED' then
    return '1'
  elseif not ALLOWED[status] then
    return '3'
  elseif argv[at + 2] ~= '' and argv[at + 2] ~= version then
    return '4'
  elseif stock < 0 or stock >= total then
    return '6'
  end
  -- The state changes before the unit goes back: a fault in between loses a unit and never sells one twice.
  call('HSET', key, 'status', 'RELEASED', 'version', version + 1)
  stock = call('INCR', prefix .. ':stock')
  if call('HGET', prefix .. ':buyers', user) == argv[at] then
    call('HDEL', prefix .. ':buyers', user)
  end
  return '0'
end

local codes, settled, refused = {}, {}, 0
for at = 2, #argv, 3 do
  local code = release(at)
  codes[#codes + 1] = code
  if code == '0' or code == '1' then
    settled[#settled + 1] = argv[at]
  elseif code ~= '5' then
    refused = refused + 1
  end
end
if #settled > 0 then
  call('ZREM', prefix .. ':pending', unpack(settled))
end
return { table.concat(codes), refused, stock }
