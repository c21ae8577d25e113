-- The peer: one request a call, five keys, as the reference does it (reference 9.4). Used by run.py only.
-- KEYS stock buyers request reservation   ARGV user_id request_id reservation_id now_ms ttl_ms message_id order_id
local known = redis.call('GET', KEYS[3])
if known then
  return { 1, known }
end
local held = redis.call('HGET', KEYS[2], ARGV[1])
if held then
  return { 2, held }
end
local stock = redis.call('GET', KEYS[1])
if not stock then
  return { 4, '' }
end
if tonumber(stock) <= 0 then
  return { 3, '' }
end
redis.call('DECR', KEYS[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[5])
redis.call('HSET', KEYS[4], 'reservation_id', ARGV[3], 'request_id', ARGV[2], 'user_id', ARGV[1], 'message_id', ARGV[6],
  'order_id', ARGV[7], 'status', 'RESERVED', 'created_at_ms', ARGV[4])
redis.call('PEXPIRE', KEYS[4], ARGV[5])
redis.call('ZADD', KEYS[5], ARGV[4], ARGV[3])
return { 0, ARGV[3] }
