-- Closes a sale for good, whatever its window says. Affects 1 row, or 0 if there is no such sale.
-- $1 activity_id bigint, $2 sku_id bigint
UPDATE seckill_activity
SET state = 'CLOSED',
    updated_at = clock_timestamp()
WHERE activity_id = $1::bigint
  AND sku_id = $2::bigint
