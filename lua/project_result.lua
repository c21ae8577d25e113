-- project_result.lua: show the committed outcome of N >= 1 orders to their owners.
-- RESERVED | MQ_PENDING | MQ_SENT -> CREATED | REJECTED (an order may be committed before mark_sent lands).
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     6 a result, N <= 512:
--            request_id  reservation_id  user_id  state (CREATED | REJECTED)  order_id ('' = none)  code ('' = none)
--
-- Returns {codes, refused}: a bulk of N characters, one a result, in order; and how many of them are 3 or 4.
--   0 changed (version + 1), result written
--   1 already in that state; the result is written again if it is missing
--   2 REJECTED for a reservation already RELEASED: the state stands, the result is written if it is missing
--   3 refused: another terminal state stands (CREATED against REJECTED, or CREATED for a RELEASED one: count and alarm).
--     A reservation that was RELEASED although its order exists keeps that state, but the result says CREATED, as
--     PostgreSQL does: its owner has an order.
--   4 refused: the reservation belongs to another request or user; nothing written
--   5 no such reservation: only the result is written, unless another one stands (then 3)
--   6 not warmed: nothing written (the expiry is unknown; queries fall back to PostgreSQL)
-- Codes 0, 1, 2 and the released case of 3 take the reservation out of P:pending.
-- P:result:<request_id> is a hash: state order_id reservation_id user_id code updated_at_ms.
-- Atomic: yes; each result is judged by itself; a terminal state never changes. Source: spec 3, 5, 6; reference 8.2, 8.5.

local STRIDE = 6
local call = redis.call
local argv = ARGV
local prefix = KEYS[1]
if #argv == 0 or #argv % STRIDE ~= 0 then
  return redis.error_reply('ERR project_result takes 6 arguments a result')
end
for at = 4, #argv, STRIDE do
  if argv[at] ~= 'CREATED' and argv[at] ~= 'REJECTED' then
    return redis.error_reply('ERR project_result knows the states CREATED and REJECTED')
  end
end
local expire_at_ms = call('HGET', prefix .. ':activity', 'expire_at_ms')
if not expire_at_ms then
  return { string.rep('6', #argv / STRIDE), 0 }
end
local time = call('TIME')
local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local function write_result(key, at)
  call('HSET', key, 'state', argv[at + 3], 'order_id', argv[at + 4], 'reservation_id', argv[at + 1],
    'user_id', argv[at + 2], 'code', argv[at + 5], 'updated_at_ms', now_ms)
  call('PEXPIREAT', key, expire_at_ms)
end

-- Writes the result unless one is there; says whether the one that now stands agrees.
local function write_missing_result(key, at)
  local state = call('HGET', key, 'state')
  if not state then
    write_result(key, at)
  end
  return not state or state == argv[at + 3]
end

local OPEN = { RESERVED = true, MQ_PENDING = true, MQ_SENT = true }

local function project(at)
  local state = argv[at + 3]
  local result_key = prefix .. ':result:' .. argv[at]
  local key = prefix .. ':reservation:' .. argv[at + 1]
  local found = call('HMGET', key, 'status', 'version', 'request_id', 'user_id')
  local status = found[1]
  if not status then
    return write_missing_result(result_key, at) and '5' or '3', false
  elseif found[3] ~= argv[at] or found[4] ~= argv[at + 2] then
    return '4', false
  elseif OPEN[status] then
    call('HSET', key, 'status', state, 'version', found[2] + 1)
    write_result(result_key, at)
    return '0', true
  elseif status == state then
    write_missing_result(result_key, at)
    return '1', true
  elseif status == 'RELEASED' then
    write_missing_result(result_key, at)
    return state == 'REJECTED' and '2' or '3', true
  end
  return '3', false
end

local codes, settled, refused = {}, {}, 0
for at = 1, #argv, STRIDE do
  local code, done = project(at)
  codes[#codes + 1] = code
  if done then
    settled[#settled + 1] = argv[at + 1]
  end
  if code == '3' or code == '4' then
    refused = refused + 1
  end
end
if #settled > 0 then
  call('ZREM', prefix .. ':pending', unpack(settled))
end
return { table.concat(codes), refused }
