-- reindex.lua: repairs of the two indexes of a SKU: put reservations back into P:pending, take buyers out who hold nothing.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}`
-- ARGV     3 an entry, N <= 512:  what (pending | buyer)  user_id  reservation_id
--            pending  the reservation is RESERVED or MQ_PENDING but not in P:pending, so nobody would send its message again
--            buyer    the user's entry in P:buyers names this reservation, which is RELEASED or does not exist
--
-- Returns {codes, refused}: a bulk of N characters, one an entry: 0 repaired, 1 nothing to do; and 0.
-- The entry is judged again here: what has changed since somebody looked stays as it is.
-- Atomic: yes; safe to repeat. The stock is not touched: recount.lua follows. Source: spec 7 (reconciliation).

local call = redis.call
local argv = ARGV
local prefix = KEYS[1]
if #argv == 0 or #argv % 3 ~= 0 then
  return redis.error_reply('ERR reindex takes 3 arguments an entry')
end
local expire_at_ms = call('HGET', prefix .. ':activity', 'expire_at_ms')
local codes = {}
for at = 1, #argv, 3 do
  local what, user, id = argv[at], argv[at + 1], argv[at + 2]
  local found = call('HMGET', prefix .. ':reservation:' .. id, 'status', 'created_at_ms')
  local code = '1'
  if what == 'pending' and expire_at_ms and (found[1] == 'RESERVED' or found[1] == 'MQ_PENDING') then
    if call('ZADD', prefix .. ':pending', 'NX', found[2], id) == 1 then
      call('PEXPIREAT', prefix .. ':pending', expire_at_ms)
      code = '0'
    end
  elseif what == 'buyer' and (not found[1] or found[1] == 'RELEASED')
      and call('HGET', prefix .. ':buyers', user) == id then
    call('HDEL', prefix .. ':buyers', user)
    code = '0'
  end
  codes[#codes + 1] = code
end
return { table.concat(codes), 0 }
