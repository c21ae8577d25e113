-- restore_orders.lua: write back what Redis should know of N >= 1 orders that PostgreSQL has.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     5 an order, N <= 512:  user_id  request_id  reservation_id  order_id  created_at_ms
--
-- Returns {codes, refused}: a bulk of N characters, one an order, in order; and how many of them are 3 or 4.
--   0 something was missing and is there now
--   1 all was there
--   3 the reservation is RELEASED or REJECTED although it has an order: its state stands, the rest is written; count and alarm
--   4 refused: the reservation belongs to another request or user
--   6 not warmed: nothing written
-- The owner's entry in P:buyers names this reservation afterwards. If it named another one whose order is not decided yet, that one
-- becomes RELEASED without giving a unit back: its unit is this order's now, and its own message will be turned down.
-- The reservation is CREATED; one that was lost is made anew, without the message_id that nobody needs any more. The request record
-- and the result are written if they are missing. The stock is not touched: recount.lua follows.
-- Atomic: yes; each order is judged by itself; safe to repeat. Source: spec 3, 7, 12.

local STRIDE = 5
local call = redis.call
local argv = ARGV
local prefix = KEYS[1]
if #argv == 0 or #argv % STRIDE ~= 0 then
  return redis.error_reply('ERR restore_orders takes 5 arguments an order')
end
local expire_at_ms = call('HGET', prefix .. ':activity', 'expire_at_ms')
if not expire_at_ms then
  return { string.rep('6', #argv / STRIDE), 0 }
end
local time = call('TIME')
local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local OPEN = { RESERVED = true, MQ_PENDING = true, MQ_SENT = true }

-- The user's entry in P:buyers; true if it had to be changed.
local function hold(user, reservation_id)
  local held = call('HGET', prefix .. ':buyers', user)
  if held == reservation_id then
    return false
  end
  if held then
    local key = prefix .. ':reservation:' .. held
    local found = call('HMGET', key, 'status', 'version')
    if OPEN[found[1]] or found[1] == 'REJECTED' then
      call('HSET', key, 'status', 'RELEASED', 'version', found[2] + 1)
      call('ZREM', prefix .. ':pending', held)
    end
  end
  call('HSET', prefix .. ':buyers', user, reservation_id)
  call('PEXPIREAT', prefix .. ':buyers', expire_at_ms)
  return true
end

local function restore(at)
  local user, request_id, reservation_id, order_id = argv[at], argv[at + 1], argv[at + 2], argv[at + 3]
  local key = prefix .. ':reservation:' .. reservation_id
  local found = call('HMGET', key, 'status', 'version', 'request_id', 'user_id')
  local status, changed, code = found[1], false, nil
  if status and (found[3] ~= request_id or found[4] ~= user) then
    return '4'
  elseif not status then
    call('HSET', key, 'request_id', request_id, 'user_id', user, 'message_id', '', 'order_id', order_id,
      'status', 'CREATED', 'version', '1', 'created_at_ms', argv[at + 4])
    call('PEXPIREAT', key, expire_at_ms)
    changed = true
  elseif OPEN[status] then
    call('HSET', key, 'status', 'CREATED', 'version', found[2] + 1)
    call('ZREM', prefix .. ':pending', reservation_id)
    changed = true
  elseif status ~= 'CREATED' then
    code = '3'
  end
  changed = hold(user, reservation_id) or changed
  local record = prefix .. ':request:' .. request_id
  if call('SET', record, user .. ':' .. reservation_id, 'NX', 'PXAT', expire_at_ms) then
    changed = true
  end
  local result = prefix .. ':result:' .. request_id
  if call('HGET', result, 'state') ~= 'CREATED' then
    call('HSET', result, 'state', 'CREATED', 'order_id', order_id, 'reservation_id', reservation_id, 'user_id', user,
      'code', '', 'updated_at_ms', now_ms)
    call('PEXPIREAT', result, expire_at_ms)
    changed = true
  end
  return code or (changed and '0' or '1')
end

local codes, refused = {}, 0
for at = 1, #argv, STRIDE do
  local code = restore(at)
  codes[#codes + 1] = code
  if code == '3' or code == '4' then
    refused = refused + 1
  end
end
return { table.concat(codes), refused }
