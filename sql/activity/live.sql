-- Sales whose reservations may still be on their way, soonest end first. At most $1 rows.
-- $1 limit bigint
-- -> activity_id bigint, sku_id bigint
SELECT activity_id, sku_id
FROM seckill_activity
WHERE start_at <= clock_timestamp()
  AND expire_at > clock_timestamp()
ORDER BY end_at, activity_id, sku_id
LIMIT $1::bigint
