-- A rebuild begins: the generation grows by one. One row, or none if there is no such sale.
-- $1 activity_id bigint, $2 sku_id bigint
-- -> generation bigint
UPDATE seckill_activity
SET generation = generation + 1,
    updated_at = clock_timestamp()
WHERE activity_id = $1::bigint
  AND sku_id = $2::bigint
RETURNING generation
