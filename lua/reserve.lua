-- reserve.lua: reserve one unit of a SKU for each of N >= 1 requests, in order, as if run one by one.
--
-- KEYS[1]  prefix of the SKU, `sec:{A:S}` (A activity_id, S sku_id). Every other key is made from it here; all of them
--          share the hash tag {A:S}, hence one cluster slot, so only the prefix needs to be declared:
--            P:activity               hash    start_ms end_ms expire_at_ms total state ... (see warm.lua)
--            P:stock                  string  units left
--            P:buyers                 hash    user_id -> reservation_id
--            P:pending                zset    reservations not known to be in the broker; score created_at_ms (claim_pending.lua moves it), member reservation_id
--            P:request:<request_id>   string  `<user_id>:<reservation_id>`
--            P:reservation:<id>       hash    request_id user_id message_id order_id status version created_at_ms [traceparent]
-- ARGV     7 a request, N <= 512 requests:
--            user_id  request_id  reservation_id  message_id  order_id  created_at_ms
--            record: the reservation hash as DUMP would give it (request_id user_id message_id order_id status=RESERVED version=1
--            created_at_ms [traceparent]), which one RESTORE writes with its expiry for half of what HSET and PEXPIREAT cost; or ''
--            from a caller who expects that nothing is left, and the script writes the hash itself should it be wrong
--
-- Returns a flat array:
--   [1] bulk     N characters, the code of each request in order
--   [2] integer  stock after the call, -1 when there is no stock key
--   [3] integer  Redis' clock, Unix ms
--   [4..] bulks  for each request in order whose code is
--                  1: six,  reservation_id message_id order_id status version created_at_ms (of the original;
--                           all but the first '' if the reservation has gone)
--                  2: one,  reservation_id (the user's own)
--                nothing for every other code.
-- Codes:
--   0 created (status RESERVED, version 1)        1 this user's same request_id: the original reservation
--   2 the user already holds a unit               3 sold out
--   4 not warmed: no activity or no stock key     5 not started          6 ended
--   7 request_id used by another user (nothing of that user is returned)  8 closed by the operator
-- Precedence: 1|7, 2, 4, 6, 8, 5, 3, 0. A replay and a holder's second try keep their answer after the end of the sale.
--
-- Atomic: all or nothing but for a server fault in mid-script. The records are written first, then units are taken, then the
-- rest is written: a record that is refused (another Redis' format, a full memory) leaves nothing but records that nobody
-- points to, and no fault sells a unit twice. Every key expires at expire_at_ms of the activity.
-- Redis 7.0 and later. Source: spec 2, 3, 12; reference 8.2, 9.4.

local STRIDE = 7
local call = redis.call
local prefix = KEYS[1]
local argv = ARGV
local last = #argv
if last == 0 or last % STRIDE ~= 0 then
  return redis.error_reply('ERR reserve takes 7 arguments a request')
end

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local gate = call('HMGET', prefix .. ':activity', 'start_ms', 'end_ms', 'expire_at_ms', 'state')
local expire_at_ms = gate[3]
local stock = tonumber(call('GET', prefix .. ':stock') or nil)

-- The answer to a request that is neither a replay nor a holder's second try; nil while units may be taken.
local refusal = nil
if not expire_at_ms or not stock then
  refusal = '4'
elseif now_ms >= tonumber(gate[2]) then
  refusal = '6'
elseif gate[4] ~= 'open' then
  refusal = '8'
elseif now_ms < tonumber(gate[1]) then
  refusal = '5'
elseif stock <= 0 then
  refusal = '3'
end

local request_keys, users = {}, {}
local request_prefix = prefix .. ':request:'
local count = 0
for at = 1, last, STRIDE do
  count = count + 1
  users[count] = argv[at]
  request_keys[count] = request_prefix .. argv[at + 1]
end
local records = call('MGET', unpack(request_keys))
local holdings = call('HMGET', prefix .. ':buyers', unpack(users))

local codes, reply = {}, { '', -1, now_ms }
-- What this very batch has reserved: request_id and user_id -> index of the first ARGV of the winning request.
local made_by_request, made_by_user = {}, {}
local created = {}

-- Appends the original of a request found in Redis, or refuses it to a stranger.
local function replay(record, user)
  local colon = string.find(record, ':', 1, true)
  if string.sub(record, 1, colon - 1) ~= user then
    return '7'
  end
  local reservation_id = string.sub(record, colon + 1)
  local found = call('HMGET', prefix .. ':reservation:' .. reservation_id,
    'message_id', 'order_id', 'status', 'version', 'created_at_ms')
  reply[#reply + 1] = reservation_id
  for i = 1, 5 do
    reply[#reply + 1] = found[i] or ''
  end
  return '1'
end

-- The same for a request that this batch has reserved: it is not written yet, so the answer comes from its arguments.
local function replay_made(at, user)
  if argv[at] ~= user then
    return '7'
  end
  local size = #reply
  reply[size + 1], reply[size + 2], reply[size + 3] = argv[at + 2], argv[at + 3], argv[at + 4]
  reply[size + 4], reply[size + 5], reply[size + 6] = 'RESERVED', '1', argv[at + 5]
  return '1'
end

local at = 1
for i = 1, count do
  local user = users[i]
  if records[i] then
    codes[i] = replay(records[i], user)
  elseif made_by_request[argv[at + 1]] then
    codes[i] = replay_made(made_by_request[argv[at + 1]], user)
  elseif holdings[i] then
    reply[#reply + 1] = holdings[i]
    codes[i] = '2'
  elseif made_by_user[user] then
    reply[#reply + 1] = argv[made_by_user[user] + 2]
    codes[i] = '2'
  elseif refusal then
    codes[i] = refusal
  else
    codes[i] = '0'
    created[#created + 1] = at
    made_by_request[argv[at + 1]], made_by_user[user] = at, at
    if #created >= stock then
      refusal = '3'
    end
  end
  at = at + STRIDE
end

local taken = #created
if taken > 0 then
  local buyers, pending, keys = {}, {}, {}
  local reservation_prefix = prefix .. ':reservation:'
  for i = 1, taken do
    local a = created[i]
    local reservation_id = argv[a + 2]
    local key = reservation_prefix .. reservation_id
    if argv[a + 6] ~= '' then
      call('RESTORE', key, expire_at_ms, argv[a + 6], 'ABSTTL')
    else
      call('HSET', key, 'request_id', argv[a + 1], 'user_id', argv[a], 'message_id', argv[a + 3], 'order_id', argv[a + 4],
        'status', 'RESERVED', 'version', '1', 'created_at_ms', argv[a + 5])
      call('PEXPIREAT', key, expire_at_ms)
    end
    buyers[2 * i - 1], buyers[2 * i] = argv[a], reservation_id
    pending[2 * i - 1], pending[2 * i] = argv[a + 5], reservation_id
    keys[2 * i - 1], keys[2 * i] = request_keys[(a - 1) / STRIDE + 1], argv[a] .. ':' .. reservation_id
  end
  stock = call('DECRBY', prefix .. ':stock', taken)
  -- All at once and their expiries after: cheaper than a SET with an expiry each.
  call('MSET', unpack(keys))
  for i = 1, taken do
    call('PEXPIREAT', keys[2 * i - 1], expire_at_ms)
  end
  -- Both of these fall away when they become empty, so whoever creates them sets the expiry.
  if call('HSET', prefix .. ':buyers', unpack(buyers)) == call('HLEN', prefix .. ':buyers') then
    call('PEXPIREAT', prefix .. ':buyers', expire_at_ms)
  end
  if call('ZADD', prefix .. ':pending', unpack(pending)) == call('ZCARD', prefix .. ':pending') then
    call('PEXPIREAT', prefix .. ':pending', expire_at_ms)
  end
end

reply[1] = table.concat(codes)
reply[2] = stock or -1
return reply
